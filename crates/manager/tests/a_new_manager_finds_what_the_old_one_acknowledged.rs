//! The danger: a manager dies between any two of its writes, journal, page, index, table, mark, and the next one finds
//! less than was acknowledged, or something that never was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use host::sim::{self, Dice, DiskOptions, SimDisk, Stop, World};
use host::{Disk, Host};
use log::{BodyPart, Cluster, LogReader, LogWriter, Record, WriterOptions};
use manager::{Manager, ManagerOptions, StartError};
use protocol::address::Position;
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Kind, NewInode, Time};
use protocol::id::{InodeId, LogId, StripeNumber, TargetId};
use protocol::manager::{Answer, Deltas, ManagerAnswer, ManagerError, ManagerRequest, Rename, RenameMode, XattrMode};
use protocol::maps::{TargetEntry, Writer};
use protocol::once::{CallId, Once, OnceName};
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Durability, Room};
use registry::{Registry, change};
use storage::{Storage, TargetOptions};

const CLUSTER: u128 = 77;
const TARGETS: u32 = 3;
/// How long somebody waits for what is to take effect once.
const PATIENCE: Duration = Duration::from_secs(20);

struct Site {
    world: World,
    disks: Vec<SimDisk>,
}

impl Site {
    async fn create(world: &World, host: &Host) -> Site {
        let disks: Vec<_> =
            (0..TARGETS).map(|n| world.add_disk(host.node(), &format!("t{n}"), DiskOptions::default())).collect();
        let site = Site { world: world.clone(), disks };
        let mut entries = Vec::new();
        for (target, disk) in site.plugged() {
            storage::format(&disk, CLUSTER, target, TargetOptions::default()).await.unwrap();
            let entry = TargetEntry::new(host.node().0, format!("t{}", target.0));
            entries.push((target, entry));
        }
        Registry::create(change::new_cluster(CLUSTER, entries, host.node().0, 1), site.plugged()).await.unwrap();
        site
    }

    fn plugged(&self) -> Vec<(TargetId, Disk)> {
        (0..).map(TargetId).zip(self.disks.iter().map(SimDisk::plug)).collect()
    }

    async fn start(&self, host: &Host) -> Arc<Manager> {
        self.try_start(host, 300 << 10, 40 << 10).await.unwrap()
    }

    async fn try_start(
        &self,
        host: &Host,
        memory_bytes: usize,
        journal_bytes_max: u64,
    ) -> Result<Arc<Manager>, StartError> {
        let (disks, host) = (self.plugged(), host.clone());
        let started = self.world.spawn(&host.clone(), async move {
            let registry = Registry::start(&host, disks.clone()).await.unwrap();
            let (_storage, lost) = Storage::start(host.clone(), CLUSTER, disks, TargetOptions::default()).await;
            assert!(lost.is_empty());
            drop(registry);
            let cluster = Cluster::connect(host.clone(), host.node()).await.unwrap();
            let reader = LogReader::new(cluster.clone());
            let options = ManagerOptions {
                memory_bytes,
                journal_bytes_max,
                orphan_grace: Duration::from_millis(10),
                ..ManagerOptions::default()
            };
            Manager::start(cluster, reader, options).await
        });
        started.await.unwrap()
    }
}

/// What was acknowledged: files by directory and name.
type Names = BTreeMap<(InodeId, Vec<u8>), InodeId>;

#[test]
fn deltas_of_a_dead_client_are_found_in_its_log() {
    sim::explore(0..4, async |world, host| {
        let site = Site::create(&world, &host).await;
        let manager = site.start(&host).await;
        let name = Bytes::from_static(b"file");
        let request = ManagerRequest::Create { directory: InodeId::ROOT, name, new: new(Kind::File), open: false };
        let inode = created(manager.answer(1, request).await).unwrap();
        let writing = host.clone();
        let written = world.spawn(&host, async move {
            let cluster = Cluster::connect(writing.clone(), writing.node()).await.unwrap();
            let writer = LogWriter::open(cluster, Writer::Client, Room::Data, WriterOptions::default()).await.unwrap();
            let mut sent = Vec::new();
            for number in 0..3_u64 {
                let owner = Owner::new(inode, number * 5000);
                let parts = &[BodyPart::Copied(&[7; 5000])];
                let record = Record { kind: RecordKind::Data, owner, parts, aligned: false };
                let address = writer.append(record).unwrap().body;
                let offset = number * 5000;
                let wrote = Change::Wrote { size: offset + 5000, time: Time(1) };
                let list =
                    vec![Delta { inode, change: Change::Extent { offset, address } }, Delta { inode, change: wrote }];
                let body = postcard::to_stdvec(&list).unwrap();
                let owner = Owner::default();
                let parts = &[BodyPart::Copied(&body)];
                let record = Record { kind: RecordKind::Deltas, owner, parts, aligned: false };
                let appended = writer.append(record).unwrap();
                writer.commit(appended.end, Durability::Disk).await.unwrap();
                sent.push(Deltas { log: writer.log(), position: appended.body.position(), list });
            }
            sent
        });
        let mut sent = written.await.unwrap();
        // The manager has the first only.
        manager.answer(1, ManagerRequest::Deltas(sent.remove(0))).await.unwrap();
        drop(manager);
        world.crash(host.node(), Stop::PowerLoss);
        let host = world.restart(host.node());
        let manager = site.start(&host).await;
        let Answer::Attributes(attributes) = manager.answer(1, ManagerRequest::Attributes(inode)).await.unwrap().answer
        else {
            panic!("attributes")
        };
        assert_eq!((attributes.size, attributes.stored), (15_000, 15_000));
    });
}

/// More fragments of a stripe are gone than redundancy covers: none of its targets shows anything of it, as if it had been
/// deleted. A journal that goes on behind it would be replayed over a hole.
#[test]
fn a_journal_with_a_hole_is_no_journal() {
    sim::explore(0..2, async |world, host| {
        let site = Site::create(&world, &host).await;
        let manager = site.try_start(&host, 1 << 30, 1 << 30).await.unwrap();
        host.sleep(Duration::from_secs(1)).await;
        let writing = host.clone();
        let lost = world.spawn(&host, async move {
            for number in 0..200 {
                let name = Bytes::from(format!("user.{number}"));
                let value = Bytes::from(vec![7; 60_000]);
                let (inode, mode, clear_set_gid) = (InodeId::ROOT, XattrMode::Create, false);
                let request = ManagerRequest::SetXattr { inode, name, value, mode, clear_set_gid };
                let reply = manager.answer(1, request).await.unwrap();
                manager.answer(1, ManagerRequest::Flush(reply.log, reply.journal)).await.unwrap();
            }
            let cluster = Cluster::connect(writing.clone(), writing.node()).await.unwrap();
            let stripes = log::stripes::list(&cluster, None).await;
            let newest = stripes.iter().map(|stripe| (stripe.log, stripe.number)).max().unwrap();
            // The stripes behind it say that it was complete.
            let lost = (newest.0, StripeNumber(2));
            assert!(newest.1.0 > 4, "there are several stripes of journal");
            log::stripes::delete(&cluster, &[lost]).await;
            lost
        });
        let (log, stripe) = lost.await.unwrap();
        world.crash(host.node(), Stop::Kill);
        let host = world.restart(host.node());
        let started = site.try_start(&host, 1 << 30, 1 << 30).await;
        let hole = started.err().is_some_and(|error| match error {
            StartError::Lost { log: of, stripe: at } => (of, at) == (log, stripe),
            other => panic!("{other}"),
        });
        assert!(hole, "it started without what was acknowledged");
    });
}

/// A client may still wait for the journal of an earlier life, which got further than the new one.
#[test]
fn a_journal_of_another_life_is_not_flushed() {
    sim::explore(0..2, async |world, host| {
        let site = Site::create(&world, &host).await;
        let manager = site.start(&host).await;
        let request = ManagerRequest::SetXattr {
            inode: InodeId::ROOT,
            name: "user.name".into(),
            value: Bytes::from(vec![7; 60_000]),
            mode: XattrMode::Create,
            clear_set_gid: false,
        };
        let old = manager.answer(1, request).await.unwrap();
        world.crash(host.node(), Stop::Kill);
        let host = world.restart(host.node());
        let manager = site.start(&host).await;
        let of_old = manager.answer(1, ManagerRequest::Flush(old.log, old.journal)).await;
        assert_eq!(of_old.err(), Some(ManagerError::NotMine));
        let new = manager.answer(1, ManagerRequest::Attributes(InodeId::ROOT)).await.unwrap();
        assert!(new.log > old.log);
        let beyond = Position::new(StripeNumber(new.journal.stripe.0 + 1), 0);
        let refused = manager.answer(1, ManagerRequest::Flush(new.log, beyond)).await;
        assert!(matches!(refused, Err(ManagerError::Invalid(_))), "{refused:?}");
    });
}

/// The answer may be lost, with the manager or without: whoever asks again under the same name gets the same answer, from
/// whichever life; and what was given up takes no effect when it arrives late.
#[test]
fn what_is_asked_twice_takes_effect_once() {
    sim::explore(0..4, async |world, host| {
        let site = Site::create(&world, &host).await;
        let ask = |number, below, request: &ManagerRequest| {
            let call = CallId { client: LogId(77), number };
            ManagerRequest::Once(Once::new(OnceName { call, below, slot: InodeId::ROOT.slot() }, PATIENCE, request))
        };
        let make = ManagerRequest::Create {
            directory: InodeId::ROOT,
            name: "name".into(),
            new: new(Kind::Directory),
            open: false,
        };
        let remove = ManagerRequest::RemoveDirectory { directory: InodeId::ROOT, name: "name".into() };
        let inode = |answer: ManagerAnswer| match answer.unwrap().answer {
            Answer::Entry(attributes, _) => attributes.inode,
            other => panic!("{other:?}"),
        };
        let manager = site.start(&host).await;
        let made = inode(manager.answer(2, ask(0, 0, &make)).await);
        assert_eq!(inode(manager.answer(2, ask(0, 0, &make)).await), made);
        assert_eq!(manager.answer(2, ask(1, 0, &make)).await.err(), Some(ManagerError::Exists));
        world.crash(host.node(), Stop::Kill);
        let host = world.restart(host.node());
        let manager = site.start(&host).await;
        assert_eq!(inode(manager.answer(2, ask(0, 0, &make)).await), made);
        manager.answer(2, ask(2, 2, &remove)).await.unwrap();
        manager.answer(2, ask(2, 2, &remove)).await.unwrap();
        let late = manager.answer(2, ask(0, 0, &make)).await;
        assert!(matches!(late, Err(ManagerError::Invalid(_))), "{late:?}");
        assert_eq!(manager.answer(2, ask(3, 3, &remove)).await.err(), Some(ManagerError::NotFound));
    });
}

/// A client asks to remove a name, on a connection that breaks, and asks again: there is no such name. Then another one makes
/// it, and what was under way on the first connection arrives.
#[test]
fn what_was_refused_has_no_effect_though_it_comes_late() {
    sim::explore(0..4, async |world, host| {
        let site = Site::create(&world, &host).await;
        let remove = ManagerRequest::RemoveDirectory { directory: InodeId::ROOT, name: "name".into() };
        let name = OnceName { call: CallId { client: LogId(77), number: 0 }, below: 0, slot: InodeId::ROOT.slot() };
        let asked = || ManagerRequest::Once(Once::new(name, PATIENCE, &remove));
        let new = new(Kind::Directory);
        let make = ManagerRequest::Create { directory: InodeId::ROOT, name: "name".into(), new, open: false };
        let manager = site.start(&host).await;
        assert_eq!(manager.answer(2, asked()).await.err(), Some(ManagerError::NotFound));
        created(manager.answer(3, make).await).unwrap();
        assert_eq!(manager.answer(2, asked()).await.err(), Some(ManagerError::NotFound), "as it was told before");
        let look = ManagerRequest::Lookup { directory: InodeId::ROOT, name: "name".into() };
        created(manager.answer(3, look).await).expect("nobody removed it who was not told otherwise");
    });
}

/// Whoever asks again, or somebody else asks, while the first answer waits for the journal: nobody is told of what a new
/// manager will not know.
#[test]
fn what_is_on_its_way_to_the_journal_is_told_when_it_is_safe() {
    sim::explore(0..8, async |world, host| {
        let site = Site::create(&world, &host).await;
        let new = new(Kind::Directory);
        let make = ManagerRequest::Create { directory: InodeId::ROOT, name: "name".into(), new, open: false };
        let name = OnceName { call: CallId { client: LogId(77), number: 0 }, below: 0, slot: InodeId::ROOT.slot() };
        let ask = || ManagerRequest::Once(Once::new(name, PATIENCE, &make));
        let look = || ManagerRequest::Lookup { directory: InodeId::ROOT, name: "name".into() };
        let manager = site.start(&host).await;
        let (own, before, kind) = (host.node().0, manager.bytes_resident(), world.seed() % 4);
        // A client on the same machine would die with it, but was promised that its call is done.
        let client = if kind == 0 { own } else { own + 1 };
        let (first, request) = (manager.clone(), ask());
        let _asked = world.spawn(&host, async move { first.answer(client, request).await });
        // The change is made, and on its way to the targets.
        while manager.bytes_resident() == before {
            host.sleep(Duration::from_nanos(1)).await;
        }
        match kind {
            0 | 1 => drop(created(manager.answer(client, ask()).await).unwrap()),
            2 => drop(created(manager.answer(client, look()).await).unwrap()),
            _ => assert_eq!(manager.answer(client, make.clone()).await.err(), Some(ManagerError::Exists)),
        }
        world.crash(host.node(), Stop::Kill);
        let host = world.restart(host.node());
        let manager = site.start(&host).await;
        let found = created(manager.answer(client, look()).await);
        assert!(found.is_ok(), "what was told stands, and not {found:?}");
    });
}

fn new(kind: Kind) -> NewInode {
    NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller: Caller::default() }
}

fn name(dice: &mut Dice) -> Bytes {
    Bytes::from(format!("{}{}", "name-".repeat(dice.below(30) as usize), dice.below(40)))
}

async fn some_work(manager: &Manager, dice: &mut Dice, names: &mut Names, directories: &mut Vec<InodeId>) {
    let directory = directories[dice.below(directories.len() as u64) as usize];
    let name = name(dice);
    match dice.below(10) {
        0 => {
            let request =
                ManagerRequest::Create { directory, name: name.clone(), new: new(Kind::Directory), open: false };
            if let Ok(inode) = created(manager.answer(1, request).await) {
                names.insert((directory, name.to_vec()), inode);
                directories.push(inode);
            }
        }
        1..=6 => {
            let request = ManagerRequest::Create { directory, name: name.clone(), new: new(Kind::File), open: false };
            match created(manager.answer(1, request).await) {
                Ok(inode) => assert!(names.insert((directory, name.to_vec()), inode).is_none()),
                Err(error) => assert_eq!(error, ManagerError::Exists),
            }
        }
        7 | 8 => {
            let answer = manager.answer(1, ManagerRequest::Unlink { directory, name: name.clone() }).await;
            match answer {
                Ok(_) => assert!(names.remove(&(directory, name.to_vec())).is_some()),
                Err(ManagerError::IsDirectory) => {}
                Err(error) => assert_eq!(error, ManagerError::NotFound),
            }
        }
        _ => {
            let to_directory = directories[dice.below(directories.len() as u64) as usize];
            let to_name = self::name(dice);
            let rename = Rename {
                from_directory: directory,
                from_name: name.clone(),
                to_directory,
                to_name: to_name.clone(),
                mode: RenameMode::Keep,
            };
            if manager.answer(1, ManagerRequest::Rename(rename)).await.is_ok() {
                let inode = names.remove(&(directory, name.to_vec())).unwrap();
                names.insert((to_directory, to_name.to_vec()), inode);
            }
        }
    }
}

fn created(answer: ManagerAnswer) -> Result<InodeId, ManagerError> {
    match answer?.answer {
        Answer::Entry(attributes, _) => Ok(attributes.inode),
        other => panic!("{other:?}"),
    }
}

async fn check(manager: &Manager, names: &Names, directories: &[InodeId]) {
    let mut found = Names::new();
    for &directory in directories {
        let mut after = 0;
        loop {
            let request = ManagerRequest::List { directory, after, limit: 100, attributes: true };
            let Answer::Listing(list, last) = manager.answer(1, request).await.unwrap().answer else {
                panic!("a list")
            };
            for entry in list {
                after = entry.cookie;
                found.insert((directory, entry.name.to_vec()), entry.inode);
            }
            if last {
                break;
            }
        }
    }
    assert_eq!(found, *names);
    let Answer::Census(inodes, _) = manager.answer(1, ManagerRequest::Census).await.unwrap().answer else {
        panic!("a census")
    };
    assert_eq!(inodes, names.len() as u64 + 1, "every inode has a name, but for the root");
}

/// Journal and images of a round lie between each other, and no image of it has all that the journal there says.
#[test]
fn what_was_journaled_during_a_round_is_found() {
    sim::explore(0..8, async |world, host| {
        let site = Site::create(&world, &host).await;
        let manager = site.try_start(&host, 1 << 30, 1 << 30).await.unwrap();
        let mut dice = world.dice();
        let work = world.spawn(&host, async move {
            let (mut names, mut directories) = (Names::new(), vec![InodeId::ROOT]);
            for round in 0..3 {
                for _ in 0..200 {
                    some_work(&manager, &mut dice, &mut names, &mut directories).await;
                }
                let more = async {
                    for _ in 0..dice.below(60) {
                        some_work(&manager, &mut dice, &mut names, &mut directories).await;
                    }
                };
                join(async { manager.checkpoint().await.unwrap() }, more).await;
                // Fragments that are begun now name the round's mark.
                for number in 0..if round < 2 { dice.below(40) } else { 40 } {
                    let value = Bytes::from(vec![number as u8; 60_000]);
                    let (inode, mode, clear_set_gid) = (InodeId::ROOT, XattrMode::Either, false);
                    let request =
                        ManagerRequest::SetXattr { inode, name: "user.it".into(), value, mode, clear_set_gid };
                    manager.answer(1, request).await.unwrap();
                }
            }
            (names, directories)
        });
        let (names, directories) = work.await.unwrap();
        world.crash(host.node(), Stop::Kill);
        let host = world.restart(host.node());
        let manager = site.try_start(&host, 1 << 30, 1 << 30).await.unwrap();
        check(&manager, &names, &directories).await;
    });
}

/// Does what the cleaner does to manager logs.
async fn delete_dead(world: &World, host: &Host, manager: &Arc<Manager>) -> usize {
    let (manager, host) = (manager.clone(), host.clone());
    let deleted = world.spawn(&host.clone(), async move {
        // The first round of images comes when what a start brings along is tidied: in the second look behind it, a second later.
        host.sleep(Duration::from_secs(2)).await;
        let cluster = Cluster::connect(host.clone(), host.node()).await.unwrap();
        let stripes = log::stripes::list(&cluster, None).await;
        let stripes = stripes.into_iter().map(|stripe| (stripe.log, stripe.number)).collect();
        let dead = manager.dead_stripes(stripes);
        log::stripes::delete(&cluster, &dead).await;
        dead.len()
    });
    deleted.await.unwrap()
}

#[test]
fn names_survive_kills_and_power_losses() {
    sim::explore(0..12, async |world, mut host| {
        let site = Site::create(&world, &host).await;
        let mut dice = world.dice();
        let (mut names, mut directories) = (Names::new(), vec![InodeId::ROOT]);
        for life in 0..4 {
            let manager = site.start(&host).await;
            check(&manager, &names, &directories).await;
            let dead = delete_dead(&world, &host, &manager).await;
            assert!(life < 2 || dead > 0, "what little lives in old logs moves on");
            let power = dice.below(2) == 0;
            let count = dice.below(600);
            let moved = (manager.clone(), names.clone(), directories.clone(), dice.below(u64::MAX));
            // The manager's work is its node's, so that a crash ends it.
            let work = world.spawn(&host, async move {
                let (manager, mut names, mut directories, seed) = moved;
                let mut dice = Dice::new(seed);
                for _ in 0..count {
                    some_work(&manager, &mut dice, &mut names, &mut directories).await;
                    if dice.below(200) == 0 {
                        manager.checkpoint().await.unwrap();
                    }
                }
                if power {
                    let reply = manager.answer(1, ManagerRequest::Attributes(InodeId::ROOT)).await.unwrap();
                    manager.answer(1, ManagerRequest::Flush(reply.log, reply.journal)).await.unwrap();
                }
                (names, directories)
            });
            (names, directories) = work.await.unwrap();
            if dice.below(2) == 0 {
                // A round of images may be under way when the node stops.
                let busy = manager.clone();
                drop(world.spawn(&host, async move { drop(busy.checkpoint().await) }));
                world.sleep(Duration::from_micros(dice.below(20_000))).await;
            }
            drop(manager);
            world.crash(host.node(), if power { Stop::PowerLoss } else { Stop::Kill });
            host = world.restart(host.node());
        }
    });
}
