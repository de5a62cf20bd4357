//! What a commit acknowledged is there after the writer died, up to m targets failed on the way, and another sealed the
//! log: all of it, in order, to the byte. What was acknowledged as `disk` is there even after all targets lost power.
//!
//! The danger: an address that was given out names nothing, or other bytes, after a recovery.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use host::sim::{Dice, Stop, Verdict, World, explore};
use host::{Host, NodeId};
use log::recovery::{Bodies, Scanned};
use log::{
    Appended, BodyPart, LogError, LogReader, LogWriter, ReadError, Record, SealError, WriterOptions, recovery, stripes,
};
use protocol::address::{LogAddress, Position};
use protocol::fragment::Part;
use protocol::id::{LogId, TargetId};
use protocol::maps::Writer;
use protocol::record::{Owner, RecordKind};
use protocol::registry::RegistryRequest;
use protocol::storage::{Durability, Room, StorageRequest, ToTarget};

use crate::support::{Fakes, Store};

/// What the writer did, as far as it can tell.
#[derive(Default)]
struct Story {
    log: Option<LogId>,
    records: Vec<(Appended, RecordKind, Vec<u8>)>,
    acknowledged: [Position; 2],
    done: bool,
    sealing: bool,
}

type Shared = Arc<Mutex<Story>>;

fn content(dice: &mut Dice, length: usize) -> Vec<u8> {
    let words = std::iter::repeat_with(|| dice.roll().to_le_bytes()).take(length.div_ceil(8));
    words.flatten().take(length).collect()
}

fn append(writer: &LogWriter, story: &Shared, dice: &mut Dice) -> Result<Position, LogError> {
    let length = match dice.below(10) {
        0..6 => dice.within(0..400),
        6..9 => dice.within(400..9000),
        _ => dice.within(16_384..120_000).min(u64::from(writer.record_size_max())),
    } as usize;
    let aligned = length >= 16_384;
    let kind = if aligned || dice.coin() { RecordKind::Data } else { RecordKind::Journal };
    let bytes = content(dice, length);
    let owner = Owner { inode: length as u64, file_offset: 7 };
    let (front, back) = bytes.split_at(length / 3);
    let parts = &[BodyPart::Copied(front), BodyPart::Kept(Bytes::copy_from_slice(back))];
    let record = Record { kind, owner, parts, aligned };
    let appended = writer.append(record)?;
    assert!(!aligned || appended.body.offset.is_multiple_of(4096));
    story.lock().unwrap().records.push((appended, kind, bytes));
    Ok(appended.end)
}

async fn commit(writer: LogWriter, story: Shared, through: Position, durability: Durability) -> Result<(), LogError> {
    writer.commit(through, durability).await?;
    assert!(writer.reached(durability) >= through);
    let known = &mut story.lock().unwrap().acknowledged[durability as usize];
    *known = through.max(*known);
    Ok(())
}

/// Writes until it is killed, fenced, or has had enough.
async fn write(host: Host, writer: LogWriter, story: Shared, mut dice: Dice) -> Result<(), LogError> {
    let rounds = dice.within(5..120);
    for _ in 0..rounds {
        let mut end = writer.end();
        for _ in 0..dice.within(1..12) {
            end = append(&writer, &story, &mut dice)?;
        }
        let durability = if dice.below(4) == 0 { Durability::Disk } else { Durability::Replicated };
        match dice.below(6) {
            0 => {}
            1 => {
                let task = commit(writer.clone(), story.clone(), end, durability);
                host.spawn(async move { drop(task.await) });
            }
            _ => commit(writer.clone(), story.clone(), end, durability).await?,
        }
        writer.room().await?;
        if dice.below(5) == 0 {
            host.sleep(Duration::from_micros(dice.below(3000))).await;
        }
    }
    if dice.coin() {
        commit(writer.clone(), story.clone(), writer.end(), Durability::Disk).await?;
        if dice.coin() {
            writer.close().await?;
        }
    }
    Ok(())
}

struct Plan {
    parity: u8,
    targets: u32,
    fragment_size: u32,
    faults: bool,
    /// True targets on simulated disks instead of fakes.
    disks: bool,
}

/// Hurts up to m targets while the writer works, then kills the writer. Returns who was hurt.
async fn hurt(world: &World, fakes: &Fakes, plan: &Plan, story: &Shared, dice: &mut Dice) -> Vec<usize> {
    let mut hurt = Vec::new();
    for _ in 0..dice.within(1..40) {
        world.sleep(Duration::from_micros(dice.below(4000))).await;
        if story.lock().unwrap().done {
            break;
        }
        if plan.faults && hurt.len() < usize::from(plan.parity) && dice.below(8) == 0 {
            let target = dice.below(u64::from(plan.targets)) as usize;
            if !hurt.contains(&target) {
                hurt.push(target);
                let stop = if dice.coin() { Stop::Kill } else { Stop::PowerLoss };
                fakes.crash(target, stop, dice);
            }
        } else if dice.below(6) == 0 {
            for &target in &hurt {
                fakes.restart(target);
            }
        }
    }
    if dice.coin() {
        // Give laying anew the time it takes.
        world.sleep(Duration::from_secs(dice.below(20))).await;
    }
    hurt
}

/// Some questions about what fragments hold get no answer: the targets are there, and what they hold is too.
fn lose_some_reads(world: &World, loss_ppm: u32) {
    let dice = Mutex::new(world.dice());
    world.judge_messages(move |passing| {
        let asked = passing.message.peek().downcast_ref::<ToTarget>();
        let is_read = asked.is_some_and(|asked| matches!(asked.request, StorageRequest::Read { .. }));
        if is_read && dice.lock().unwrap().chance(loss_ppm) { Verdict::Lose } else { Verdict::Pass }
    });
}

async fn seal(fakes: &Fakes, host: &Host, log: LogId) -> Position {
    let cluster = fakes.cluster(host).await;
    for tries in 0..200 {
        match recovery::seal(&cluster, log).await {
            Ok(length) => return length,
            // Two that seal side by side void each other's claims, unless one is given the time that it needs.
            Err(_) => host.sleep(Duration::from_millis(1 + host.random() % (300 << (tries / 20)))).await,
        }
    }
    panic!("the log could not be sealed: {:?}", recovery::seal(&cluster, log).await);
}

/// The middle third of the records of a stripe is a run; bytes that end within a record are none.
async fn check_run(reader: &LogReader, scanned: &[Scanned]) {
    let Some(middle) = scanned.get(scanned.len() / 2) else { return };
    let stripe: Vec<&Scanned> = scanned.iter().filter(|record| record.place.stripe == middle.place.stripe).collect();
    let run = &stripe[stripe.len() / 3..stripe.len().div_ceil(3).max(stripe.len() * 2 / 3)];
    let (first, last) = (run[0], run[run.len() - 1]);
    let length = last.place.offset + last.header.size() - first.place.offset;
    let whole = LogAddress { offset: first.place.offset, length, ..first.body };
    let found = recovery::scan_run(reader, whole, Bodies::All).await.expect("a sealed log is readable");
    let told = |record: &Scanned| (record.place, record.body, record.bytes.clone());
    assert!(found.iter().map(told).eq(run.iter().map(|record| told(record))));
    let cut = recovery::scan_run(reader, whole.part(0, length - 1), Bodies::All).await;
    assert!(matches!(cut, Err(ReadError::Unreadable { .. })), "{cut:?}");
}

/// Returns how many pieces had to be decoded.
async fn check(fakes: &Fakes, host: &Host, story: &Shared, length: Position) -> u64 {
    let reader = LogReader::new(fakes.cluster(host).await);
    let (log, records) = {
        let story = story.lock().unwrap();
        (story.log.unwrap(), story.records.clone())
    };
    let kept: Vec<_> = records.into_iter().filter(|(appended, ..)| appended.end <= length).collect();
    let mut scanned: Vec<Scanned> = Vec::new();
    let visit = &mut |record| scanned.push(record);
    recovery::scan(&reader, log, Position::START..length, Bodies::All, visit).await.expect("a sealed log is readable");
    assert_eq!(scanned.len(), kept.len(), "as many records as were appended up to {length:?}");
    for (found, (appended, kind, bytes)) in scanned.iter().zip(&kept) {
        assert_eq!((found.place, found.body, found.header.kind), (appended.place, appended.body, *kind));
        assert!(found.bytes[..] == bytes[..], "the very bytes");
    }
    check_run(&reader, &scanned).await;
    for (appended, _, bytes) in kept.iter().step_by(7) {
        let read = reader.read(appended.body).await.expect("an address within the log is readable");
        assert!(read[..] == bytes[..]);
    }
    reader.pieces_decoded()
}

async fn tell(world: World, host: Host, plan: Plan) -> [u64; 5] {
    let mut dice = world.dice();
    let fakes = if plan.disks {
        Fakes::on_disks(&world, plan.targets, plan.parity, plan.fragment_size).await
    } else {
        Fakes::new(&world, plan.targets, plan.parity, plan.fragment_size)
    };
    let writer_host = world.add_node(NodeId(2));
    let story: Shared = Arc::default();
    let cluster = fakes.cluster(&writer_host).await;
    let (told, dice_of_writer, host_of_writer) = (story.clone(), world.dice(), writer_host.clone());
    let task = world.spawn(&writer_host, async move {
        let options = WriterOptions { bytes_waiting_max: 1 << 20, ..WriterOptions::default() };
        let Ok(writer) = LogWriter::open(cluster, Writer::Client, Room::Data, options).await else { return };
        told.lock().unwrap().log = Some(writer.log());
        let outcome = write(host_of_writer, writer.clone(), told.clone(), dice_of_writer).await;
        let mut story = told.lock().unwrap();
        let fair = matches!(outcome, Ok(()) | Err(LogError::Unavailable(_)));
        assert!(fair || (story.sealing && matches!(outcome, Err(LogError::Fenced(_)))), "{outcome:?}");
        story.done = true;
    });
    let hurt = hurt(&world, &fakes, &plan, &story, &mut dice).await;
    // A frozen or working writer must not harm either; a dead one is the usual case.
    let alive = dice.below(3) == 0;
    if !alive {
        world.crash(NodeId(2), Stop::Kill);
        drop(task);
    }
    let Some(log) = story.lock().unwrap().log else { return [0; 5] };
    let dark = !alive && dice.below(3) == 0;
    if dark {
        (0..fakes.stores.len()).for_each(|target| fakes.crash(target, Stop::PowerLoss, &mut dice));
        (0..fakes.stores.len()).for_each(|target| fakes.restart(target));
    } else if dice.coin() {
        hurt.iter().for_each(|&target| fakes.restart(target));
    }
    let second = world.add_node(NodeId(3));
    story.lock().unwrap().sealing = true;
    if dice.coin() {
        lose_some_reads(&world, dice.below(10_000) as u32);
    }
    let length = if dice.coin() {
        let (first, other) = futures_util::future::join(seal(&fakes, &host, log), seal(&fakes, &second, log)).await;
        assert_eq!(first, other, "one length");
        first
    } else {
        seal(&fakes, &host, log).await
    };
    assert_eq!(length, seal(&fakes, &second, log).await);
    world.dismiss_judge();
    if alive {
        world.sleep(Duration::from_secs(5)).await;
    }
    let acknowledged = {
        let story = story.lock().unwrap();
        story.acknowledged[if dark { Durability::Disk } else { Durability::Replicated } as usize]
    };
    let disk = story.lock().unwrap().acknowledged[Durability::Disk as usize];
    assert!(length >= acknowledged.max(disk), "sealed at {length:?}, acknowledged {acknowledged:?} {disk:?}");
    let mut decoded = check(&fakes, &second, &story, length).await;
    if hurt.is_empty() {
        decoded += lose_any(&fakes, &second, &story, length, &mut dice).await;
    }
    let records = story.lock().unwrap().records.len() as u64;
    let runs = fakes.maps.lock().unwrap().logs[&log].layout.len() as u64 - 1;
    [1, records, length.stripe.0 + 1, runs, decoded]
}

/// With any m targets lost all of a sealed log is still there; with all of them back its stripes are whole.
async fn lose_any(fakes: &Fakes, host: &Host, story: &Shared, length: Position, dice: &mut Dice) -> u64 {
    let cluster = fakes.cluster(host).await;
    let log = story.lock().unwrap().log;
    for stripe in stripes::list(&cluster, log).await.iter().filter(|stripe| stripe.ended) {
        let problems = stripes::verify(&cluster, stripe.log, stripe.number).await.expect("all targets answer");
        assert_eq!((problems, &stripe.missing), (vec![], &vec![]), "stripe {:?}", stripe.number);
    }
    let parity = cluster.maps().parity;
    for _ in 0..parity {
        let target = dice.below(fakes.stores.len() as u64) as usize;
        fakes.crash(target, Stop::Kill, dice);
    }
    check(fakes, host, story, length).await
}

fn many(seeds: std::ops::Range<u64>, plan: impl Fn(u64) -> Plan + Copy) {
    let sums = Mutex::new([0; 5]);
    explore(seeds, async |world, host| {
        let seed = world.seed();
        let told = tell(world, host, plan(seed)).await;
        let mut sums = sums.lock().unwrap();
        (0..5).for_each(|n| sums[n] += told[n]);
    });
    let [logs, records, stripes, runs, decoded] = *sums.lock().unwrap();
    println!("{logs} logs, {records} records, {stripes} stripes, {runs} runs added, {decoded} pieces decoded");
}

fn size(seed: u64) -> u32 {
    if seed.is_multiple_of(3) { 128 << 10 } else { 16 << 10 }
}

#[test]
fn without_faults() {
    many(0..60, |seed| Plan { parity: 1, targets: 5, fragment_size: size(seed), faults: false, disks: false });
}

#[test]
fn with_one_parity() {
    many(1000..1300, |seed| Plan {
        parity: 1,
        targets: 2 + (seed % 5) as u32,
        fragment_size: size(seed),
        faults: true,
        disks: false,
    });
}

#[test]
fn with_two_parities() {
    many(2000..2200, |seed| Plan {
        parity: 2,
        targets: 4 + (seed % 4) as u32,
        fragment_size: size(seed),
        faults: true,
        disks: false,
    });
}

#[test]
fn on_a_single_target() {
    many(3000..3060, |seed| Plan { parity: 0, targets: 1, fragment_size: size(seed), faults: false, disks: false });
}

#[test]
fn on_true_targets() {
    many(4000..4100, |seed| Plan {
        parity: 1 + (seed % 2) as u8,
        targets: 3 + (seed % 4) as u32,
        fragment_size: size(seed),
        faults: true,
        disks: true,
    });
}

/// Of 10486 and 10574 records that had been acknowledged were cut off: one target had lost its power, and another did not
/// answer one question.
#[test]
fn many_more() {
    many(10_000..14_000, |seed| Plan {
        parity: 1 + (seed % 2) as u8,
        targets: 3 + (seed % 5) as u32,
        fragment_size: size(seed),
        faults: true,
        disks: seed.is_multiple_of(4),
    });
}

/// The notes of how far a log is complete are gone with the targets' memory, and what one of them holds of it is more than goes
/// into one answer.
#[test]
fn a_log_of_more_fragments_than_one_answer_tells_is_sealed() {
    host::sim::run(1, async |world, host| {
        let fakes = Fakes::new(&world, 3, 1, 4096);
        let cluster = fakes.cluster(&world.add_node(NodeId(2))).await;
        let opened = LogWriter::open(cluster, Writer::Client, Room::Data, WriterOptions::default()).await;
        let writer = opened.expect("all targets answer");
        for _ in 0..2500 {
            let parts = &[BodyPart::Copied(&[7; 4000])];
            let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
            writer.append(record).expect("an open log takes records");
            writer.room().await.expect("all targets answer");
        }
        let end = writer.end();
        writer.commit(end, Durability::Disk).await.expect("all targets answer");
        world.crash(NodeId(2), Stop::Kill);
        for target in 0..3 {
            fakes.crash(target, Stop::PowerLoss, &mut world.dice());
            fakes.restart(target);
            let mut store = fakes.stores[target].lock().unwrap();
            store.fragments_told_max = Some(1024);
            assert!(store.fragments.len() > 1024);
        }
        let cluster = fakes.cluster(&host).await;
        assert!(recovery::seal(&cluster, writer.log()).await.expect("all targets answer") >= end);
    });
}

/// What one record's data lies on is away, and an empty disk took the place of its copy's: too few are left that know where the
/// log ends, until the one comes back, or is given up.
#[test]
fn an_empty_disk_does_not_tell_where_a_log_ends() {
    for is_given_up in [false, true] {
        host::sim::run(1, async |world, host| {
            let fakes = Fakes::new(&world, 3, 1, 64 << 10);
            let cluster = fakes.cluster(&world.add_node(NodeId(2))).await;
            let opened = LogWriter::open(cluster, Writer::Client, Room::Data, WriterOptions::default()).await;
            let writer = opened.expect("all targets answer");
            let parts = &[BodyPart::Copied(&[7; 1000])];
            let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
            let end = writer.append(record).expect("an open log takes records").end;
            writer.commit(end, Durability::Disk).await.expect("all targets answer");
            world.crash(NodeId(2), Stop::Kill);
            let holds = |is_it: fn(&Part) -> bool| {
                let shows =
                    |target: &usize| fakes.stores[*target].lock().unwrap().fragments.keys().any(|id| is_it(&id.part));
                (0..3).find(shows).expect("it was stored")
            };
            let data = holds(|part| matches!(part, Part::Data(_)));
            let copy = holds(|part| matches!(part, Part::Copy { .. }));
            fakes.crash(data, Stop::Kill, &mut world.dice());
            fakes.crash(copy, Stop::Kill, &mut world.dice());
            let cluster = fakes.cluster(&host).await;
            let gone = async |target: usize| {
                let gone = |seen| RegistryRequest::DisksGone(vec![TargetId(target as u32)], seen);
                cluster.decide(gone).await.expect("it is known");
            };
            gone(copy).await;
            *fakes.stores[copy].lock().unwrap() = Store::default();
            fakes.restart(copy);
            let awaited = Err(SealError::Awaits(vec![cluster.maps().called(TargetId(data as u32))]));
            assert_eq!(recovery::seal(&cluster, writer.log()).await, awaited);
            assert!(!recovery::can_be_sealed(&cluster, writer.log()).await);
            if is_given_up {
                gone(data).await;
                assert_eq!(recovery::seal(&cluster, writer.log()).await, Ok(Position::START), "nobody else has it");
            } else {
                fakes.restart(data);
                assert!(recovery::seal(&cluster, writer.log()).await.expect("two of three know") >= end);
            }
        });
    }
}
