//! A full file system whose cleaner waits for room is lost: nothing can be written, and nothing freed. And a cleaner
//! that deletes one stripe too many has lost what fsync promised. Here small targets are overwritten many times over,
//! through kills and power losses, while all but a quarter of their room lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cleaner::{Cleaner, CleanerOptions, Goal};
use host::sim::{self, Dice, DiskOptions, SimDisk, Stop, Verdict, World};
use host::{Host, NodeId, Port};
use log::{Appended, BodyPart, Cluster, LogError, LogReader, LogWriter, ReadError, Record, WriterOptions, recovery};
use protocol::address::{LogAddress, Position};
use protocol::fragment::Geometry;
use protocol::id::{InodeId, TargetId};
use protocol::manager::MANAGER_PORT;
use protocol::maps::{GroupEntry, LogState, TargetEntry, Writer};
use protocol::record::{Owner, RecordKind};
use protocol::registry::RegistryRequest;
use protocol::storage::{Durability, Room, StorageReply, StorageRequest, ToTarget};
use registry::Registry;
use storage::{Storage, TargetOptions};

use crate::book::{BLOCK, Shared};

const CLUSTER: u128 = 7;
const CELL: u32 = 64 << 10;
/// With the head of a cell, and what lists take.
const CELL_ON_DISK: u64 = CELL as u64 + 8192 + 512;
const OVERHEAD: u64 = (1 << 20) + INTAKE as u64;
const INTAKE: u32 = 64 << 10;
const FILES: u64 = 4;
fn target_options() -> TargetOptions {
    TargetOptions {
        cell_data: CELL,
        window_cells: 16,
        journal_permille: 40,
        clean_permille: 40,
        intake_size: INTAKE,
        ..TargetOptions::default()
    }
}

/// Disks, what the manager knows, and what every block should hold.
struct House {
    disks: Vec<(TargetId, SimDisk)>,
    book: Shared,
    /// What was acknowledged. The driver writes, which no crash interrupts: only the cleaner dies in the middle.
    expected: BTreeMap<(InodeId, u64), u64>,
    dice: Dice,
    bytes_written: u64,
    bytes_copied: u64,
    stripes_deleted: u64,
    times_full: u64,
}

/// What runs on the node in one life.
struct Life {
    cluster: Cluster,
    reader: LogReader,
    writer: LogWriter,
    cleaner: Arc<Cleaner>,
}

impl House {
    async fn build(world: &World, host: &Host, targets: u32, cells: u64) -> House {
        let capacity_bytes = OVERHEAD + cells * CELL_ON_DISK;
        let options = DiskOptions { capacity_bytes, ..DiskOptions::default() };
        let disks: Vec<(TargetId, SimDisk)> =
            (0..targets).map(|n| (TargetId(n), world.add_disk(host.node(), &format!("d{n}"), options))).collect();
        for (id, disk) in &disks {
            storage::format(&disk.plug(), CLUSTER, *id, target_options())
                .await
                .expect("an empty disk can be formatted");
        }
        let entry = |n: u32| TargetEntry::new(host.node().0, format!("d{n}"));
        let entries = (0..targets).map(|n| (TargetId(n), entry(n))).collect();
        let mut maps = registry::change::new_cluster(CLUSTER, entries, host.node().0, 1);
        maps.groups.values_mut().for_each(|group| group.geometry.fragment_size = CELL);
        maps.fragment_size = CELL;
        let plugged = disks.iter().map(|(id, disk)| (*id, disk.plug())).collect();
        Registry::create(maps, plugged).await.expect("there is room for a registry");
        House {
            disks,
            book: Shared::default(),
            expected: BTreeMap::new(),
            dice: Dice::new(host.random()),
            bytes_written: 0,
            bytes_copied: 0,
            stripes_deleted: 0,
            times_full: 0,
        }
    }

    async fn live(&self, host: &Host, options: CleanerOptions) -> Life {
        let disks = || self.disks.iter().map(|(id, disk)| (*id, disk.plug())).collect::<Vec<_>>();
        Registry::start(host, disks()).await.expect("the registry starts");
        let (_, unopened) = Storage::start(host.clone(), CLUSTER, disks(), target_options()).await;
        assert!(unopened.is_empty(), "{unopened:?}");
        let cluster = Cluster::connect(host.clone(), host.node()).await.expect("the registry answers");
        let former = cluster
            .maps()
            .logs
            .iter()
            .filter(|(_, entry)| entry.writer == Writer::Client)
            .map(|(log, _)| *log)
            .collect::<Vec<_>>();
        for log in former {
            if !matches!(cluster.maps().logs[&log].state, LogState::Sealed(_)) {
                recovery::seal(&cluster, log).await.expect("all targets answer");
            }
        }
        host.listen(Port(MANAGER_PORT), Arc::new(self.book.clone()));
        let reader = LogReader::new(cluster.clone());
        let writer =
            LogWriter::open(cluster.clone(), Writer::Client, Room::Data, WriterOptions::default()).await.unwrap();
        reader.attach(&writer);
        let cleaner = Cleaner::start(cluster.clone(), reader.clone(), options).await;
        Life { cluster, reader, writer, cleaner }
    }

    /// Writes some blocks, and waits until they are `disk` and the manager knows.
    async fn write(&mut self, life: &Life, inode: InodeId, first: u64, count: u64) {
        let seed = self.dice.roll();
        let bytes: Vec<u8> = (first..first + count).flat_map(|block| content(seed, block)).collect();
        let owner = Owner::new(inode, first * u64::from(BLOCK));
        let appended = self.append(life, RecordKind::Data, owner, &bytes).await;
        self.book.lock().write(inode, first, appended.body);
        self.expected.extend((first..first + count).map(|block| ((inode, block), seed)));
        self.bytes_written += bytes.len() as u64;
        if self.dice.below(8) == 0 {
            let mark = self.append(life, RecordKind::Mark, Owner::default(), &[]).await;
            life.writer.set_mark(mark.place);
        }
    }

    /// Appends a record that the manager does not hear of, and waits until it is on `disk`.
    async fn append(&mut self, life: &Life, kind: RecordKind, owner: Owner, body: &[u8]) -> Appended {
        let parts: &[BodyPart] = if body.is_empty() { &[] } else { &[BodyPart::Copied(body)] };
        let appended = life.writer.append(Record { kind, owner, parts, aligned: false });
        let appended = appended.expect("an open log takes records");
        self.commit(life, appended.end).await;
        appended
    }

    /// Fills some stripes with blocks, for which it does not wait.
    fn append_stripes(&self, life: &Life, inode: InodeId, blocks: std::ops::Range<u64>) -> Vec<(u64, Appended)> {
        let one = |block: u64| {
            let (owner, body) = (Owner::new(inode, block * u64::from(BLOCK)), content(inode.0, block));
            let record = Record { kind: RecordKind::Data, owner, parts: &[BodyPart::Copied(&body)], aligned: false };
            (block, life.writer.append(record).expect("an open log takes records"))
        };
        blocks.map(one).collect()
    }

    async fn fill(&mut self, life: &Life, blocks: u64) {
        for inode in 1..=FILES {
            for first in (0..blocks).step_by(8) {
                self.write(life, InodeId(inode), first, 8.min(blocks - first)).await;
            }
        }
    }

    async fn overwrite(&mut self, life: &Life, blocks: u64) {
        let (inode, count) = (1 + self.dice.below(FILES), 1 + self.dice.below(8));
        let first = self.dice.below(blocks - count);
        self.write(life, InodeId(inode), first, count).await;
    }

    /// Whether there was room for it.
    async fn try_overwrite(&mut self, life: &Life, blocks: u64) -> bool {
        let (inode, first, seed) = (InodeId(1 + self.dice.below(FILES)), self.dice.below(blocks), self.dice.roll());
        let owner = Owner::new(inode, first * u64::from(BLOCK));
        let bytes = content(seed, first);
        let record = Record { kind: RecordKind::Data, owner, parts: &[BodyPart::Copied(&bytes)], aligned: false };
        let appended = life.writer.append(record).expect("an open log takes records");
        match life.writer.commit(appended.end, Durability::Disk).await {
            Ok(()) => {}
            Err(LogError::Full) => return false,
            Err(error) => panic!("{error}"),
        }
        self.book.lock().write(inode, first, appended.body);
        self.expected.insert((inode, first), seed);
        true
    }

    async fn commit(&mut self, life: &Life, end: Position) {
        for _ in 0..600 {
            match life.writer.commit(end, Durability::Disk).await {
                Ok(()) => return,
                Err(LogError::Full) => {
                    self.times_full += 1;
                    life.cluster.host().sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("full for a minute: {:?}, {:?}", life.cleaner.status(), fill(life).await);
    }

    async fn verify(&self, life: &Life) {
        for (&(inode, block), &seed) in &self.expected {
            let bytes = self.read(life, inode, block).await;
            assert_eq!(bytes, content(seed, block), "block {block} of inode {}", inode.0);
        }
    }

    /// A reader asks the manager again, once, when a stripe was deleted under it (DESIGN §3).
    async fn read(&self, life: &Life, inode: InodeId, block: u64) -> Vec<u8> {
        let find = || -> LogAddress { self.book.lock().find(inode, block).expect("it was written") };
        match life.reader.read(find()).await {
            Ok(bytes) => bytes.to_vec(),
            Err(ReadError::Deleted(_)) => life.reader.read(find()).await.expect("the manager knows").to_vec(),
            Err(error) => panic!("{error}"),
        }
    }

    fn note(&mut self, life: &Life) {
        let status = life.cleaner.status();
        self.bytes_copied += status.bytes_copied;
        self.stripes_deleted += status.stripes_deleted;
    }

    fn report(&self, title: &str) {
        let amplification = 1.0 + self.bytes_copied as f64 / self.bytes_written as f64;
        let bytes_live = self.book.lock().bytes_live();
        let moves_lost = self.book.lock().moves_lost;
        println!(
            "{title}: {} MiB written, {} MiB live, {} MiB copied, write amplification {amplification:.2}, {} stripes \
             deleted, {} times full, {} moves lost",
            self.bytes_written >> 20,
            bytes_live >> 20,
            self.bytes_copied >> 20,
            self.stripes_deleted,
            self.times_full,
            moves_lost,
        );
    }
}

fn content(seed: u64, block: u64) -> Vec<u8> {
    let word = (seed ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    word.repeat(BLOCK as usize / word.len())
}

async fn fill(life: &Life) -> Vec<(u64, u64)> {
    let mut fill = Vec::new();
    for &target in life.cluster.maps().targets.keys() {
        if let Ok(StorageReply::Stat(stat)) = life.cluster.ask(target, StorageRequest::Stat).await {
            fill.push((stat.bytes_free / u64::from(CELL), stat.bytes_total / u64::from(CELL)));
        }
    }
    fill
}

fn options() -> CleanerOptions {
    CleanerOptions { interval: Duration::from_millis(50), batch_bytes: 1 << 20, ..CleanerOptions::default() }
}

/// The data bytes that clients may fill, when targets of `cells` hold stripes of k+1.
fn room(targets: u64, cells: u64) -> u64 {
    let kept = (cells * 40).div_ceil(1000).max(4.min(cells / 8));
    let for_clients = cells - 2 * kept;
    for_clients * targets * (targets - 1) / targets * u64::from(CELL)
}

#[test]
fn random_overwrites_never_end_in_full() {
    sim::run(1, async |world, host| {
        let (targets, cells) = (5, 48);
        let mut house = House::build(&world, &host, targets, cells).await;
        let life = house.live(&host, options()).await;
        let blocks = room(u64::from(targets), cells) * 3 / 4 / u64::from(BLOCK) / FILES;
        house.fill(&life, blocks).await;
        for _ in 0..3000 {
            house.overwrite(&life, blocks).await;
        }
        house.verify(&life).await;
        house.note(&life);
        house.report("uniform, 75 % live");
        life.cleaner.stop().await;
        house.verify(&life).await;
    });
}

#[test]
fn kills_and_power_losses_lose_nothing_and_leave_no_rubbish() {
    sim::explore(0..4, async |world, host| {
        let (targets, cells) = (4, 48);
        let mut house = House::build(&world, &host, targets, cells).await;
        let blocks = room(u64::from(targets), cells) * 2 / 3 / u64::from(BLOCK) / FILES;
        let mut host = host;
        for round in 0..5 {
            let life = house.live(&host, options()).await;
            if round == 0 {
                house.fill(&life, blocks).await;
            }
            house.verify(&life).await;
            for _ in 0..200 + house.dice.below(200) {
                house.overwrite(&life, blocks).await;
            }
            house.note(&life);
            let stop = if house.dice.coin() { Stop::Kill } else { Stop::PowerLoss };
            world.crash(host.node(), stop);
            host = world.restart(host.node());
        }
        let life = house.live(&host, options()).await;
        house.verify(&life).await;
        life.cleaner.clean_now(Goal::Compact).await.expect("all answer");
        house.verify(&life).await;
        // Of all the former logs of clients and cleaners only those that hold something are left.
        life.cleaner.clean_now(Goal::Compact).await.expect("all answer");
        let logs = life.cluster.maps().logs.len();
        assert!(logs <= 5, "{logs} logs are left");
        house.note(&life);
        house.report("crashes, 67 % live");
    });
}

#[test]
fn with_nothing_but_the_reserve_left_cleaning_goes_on() {
    sim::explore(0..4, async |world, host| {
        let (targets, cells) = (3, 40);
        let mut house = House::build(&world, &host, targets, cells).await;
        let asleep = CleanerOptions { interval: Duration::from_secs(36_000), ..options() };
        let life = house.live(&host, asleep).await;
        let blocks = room(u64::from(targets), cells) * 7 / 10 / u64::from(BLOCK) / FILES;
        house.fill(&life, blocks).await;
        // Nobody cleans until a commit meets the end.
        while house.try_overwrite(&life, blocks).await {}
        assert_eq!(life.cleaner.status().stripes_deleted, 0);
        life.cleaner.clean_now(Goal::Marks).await.expect("the reserve is enough to begin");
        house.overwrite(&life, blocks).await;
        house.verify(&life).await;
        house.note(&life);
        house.report("from full, 70 % live");
    });
}

#[test]
fn a_target_that_is_to_leave_is_emptied() {
    sim::explore(0..2, async |world, host| {
        let mut house = House::build(&world, &host, 4, 60).await;
        let life = house.live(&host, options()).await;
        house.fill(&life, 200).await;
        world.crash(host.node(), Stop::Kill);
        let host = world.restart(host.node());
        // The former log is sealed now, so that all of it may be judged.
        let life = house.live(&host, options()).await;
        let leaving = TargetId(2);
        let others = vec![TargetId(0), TargetId(1), TargetId(3)];
        let maps = life.cluster.maps();
        let (&old, group) = maps.groups.iter().next().expect("there is a group");
        let geometry = Geometry { data: 2, ..group.geometry };
        let narrower = GroupEntry::new(others, geometry, true);
        life.cluster.registry(RegistryRequest::FormGroup(narrower)).await.expect("the registry answers");
        life.cluster.registry(RegistryRequest::RetireGroup(old)).await.expect("the registry answers");
        life.cleaner.clean_now(Goal::Empty(leaving)).await.expect("all answer");
        life.cleaner.clean_now(Goal::Empty(leaving)).await.expect("all answer");
        house.verify(&life).await;
        let stat = match life.cluster.ask(leaving, StorageRequest::Stat).await {
            Ok(StorageReply::Stat(stat)) => stat,
            other => panic!("{other:?}"),
        };
        assert_eq!(stat.fragments, 0, "{:?}", life.cleaner.status());
    });
}

#[test]
fn without_its_manager_nothing_is_deleted() {
    sim::run(3, async |world, host| {
        let mut house = House::build(&world, &host, 3, 40).await;
        let asleep = CleanerOptions { interval: Duration::from_secs(36_000), ..options() };
        let life = house.live(&host, asleep).await;
        house.fill(&life, 60).await;
        house.fill(&life, 60).await;
        house.book.lock().is_silent = true;
        assert!(life.cleaner.clean_now(Goal::Compact).await.is_err());
        assert_eq!(life.cleaner.status().stripes_deleted, 0);
        house.book.lock().is_silent = false;
        life.cleaner.clean_now(Goal::Compact).await.expect("all answer");
        assert!(life.cleaner.status().stripes_deleted > 0);
        house.verify(&life).await;
    });
}

/// A log rests in the middle of a stripe, and all before its mark is dead. When the stripe was listed, and before the log is
/// asked how far it is, a burst fills it and goes on behind it; of that no delta is told yet.
#[test]
fn what_is_written_between_a_listing_and_the_question_behind_it_stays() {
    sim::explore(0..4, async |world, host| {
        let mut house = House::build(&world, &host, 3, 40).await;
        let asleep = CleanerOptions { interval: Duration::from_secs(36_000), ..options() };
        let life = house.live(&host, asleep).await;
        life.cleaner.stop().await;
        let other = world.add_node(NodeId(99));
        let elsewhere = Cluster::connect(other.clone(), host.node()).await.expect("the registry answers");
        let cleaner = Cleaner::start(elsewhere.clone(), LogReader::new(elsewhere), asleep).await;

        let owner = Owner::new(InodeId(1), 0);
        let removed = house.append(&life, RecordKind::Data, owner, &content(1, 0)).await;
        let is_asked = Arc::new(AtomicBool::new(false));
        let asked = is_asked.clone();
        world.judge_messages(move |passing| match passing.message.peek().downcast_ref::<ToTarget>() {
            Some(ToTarget { request: StorageRequest::Tail { .. }, .. }) => {
                asked.store(true, Ordering::Relaxed);
                Verdict::Delay(Duration::from_millis(500))
            }
            _ => Verdict::Pass,
        });
        let cleaning = world.spawn(&other, async move {
            cleaner.clean_now(Goal::Marks).await.expect("all answer");
            cleaner.status()
        });
        while !is_asked.load(Ordering::Relaxed) {
            host.sleep(Duration::from_millis(1)).await;
        }
        let mark = house.append(&life, RecordKind::Mark, Owner::default(), &[]).await;
        assert_eq!(mark.place, removed.end, "the log rested here when it was listed");
        life.writer.set_mark(mark.place);
        let mut burst = Vec::new();
        for block in 0..4 * u64::from(2 * CELL / BLOCK) {
            burst.push((block, house.append(&life, RecordKind::Data, owner, &content(2, block)).await.body));
        }
        let status = cleaning.await.expect("nobody ends it");
        assert_eq!(status.stripes_deleted, 0, "{status:?}");
        for (block, address) in burst {
            assert_eq!(life.reader.read(address).await.expect("it was fsynced"), content(2, block));
        }
    });
}

/// A burst becomes `disk` at one stroke, so that none of its own headers calls any of it complete; those of the next one do,
/// and nobody has synced them yet. What is deleted because of them is gone at once, and they may go with the power.
#[test]
fn what_lets_stripes_be_deleted_is_not_lost_with_the_power() {
    sim::explore(0..20, async |world, host| {
        let mut house = House::build(&world, &host, 3, 40).await;
        let asleep = CleanerOptions { interval: Duration::from_secs(36_000), ..options() };
        let life = house.live(&host, asleep).await;
        let (removed, kept) = (InodeId(1), InodeId(2));
        let stripes = |count: u64| count * u64::from(2 * CELL / BLOCK);
        house.append_stripes(&life, removed, 0..stripes(4));
        let burst = house.append_stripes(&life, kept, 0..stripes(4));
        // All that is full is stored before anybody asks for more.
        host.sleep(Duration::from_millis(100)).await;
        let end = burst.last().expect("it is not empty").1.end;
        house.commit(&life, end).await;
        for (block, appended) in burst {
            house.book.lock().write(kept, block, appended.body);
            house.expected.insert((kept, block), kept.0);
        }
        life.writer.set_mark(end);
        let next = house.append_stripes(&life, removed, 0..stripes(1) / 3);
        let end = next.last().expect("it is not empty").1.end;
        life.writer.commit(end, Durability::Replicated).await.expect("all targets answer");
        life.cleaner.clean_now(Goal::Marks).await.expect("all answer");
        assert!(life.cleaner.status().stripes_deleted > 0, "{:?}", life.cleaner.status());
        world.crash(host.node(), Stop::PowerLoss);
        let host = world.restart(host.node());
        let life = house.live(&host, asleep).await;
        house.verify(&life).await;
    });
}
