//! The danger: deleting is one message to each target. A stop comes between them, and of what is left some rots, or
//! was cut by a bit flipped at rest. No byte of it is needed, but it looks like damage beyond repair, and a log that is
//! scanned at every start stands in the way of all of them. The other danger: needed bytes are taken for deleted ones.

use std::collections::BTreeSet;

use host::Host;
use host::sim::{Dice, Stop, explore, run};
use log::recovery::{self, Bodies};
use log::{Appended, BodyPart, Cluster, LogReader, LogWriter, ReadError, Record, WriterOptions, stripes};
use protocol::address::Position;
use protocol::checksum::block_checksums;
use protocol::fragment::{FragmentId, Part};
use protocol::id::{LogId, StripeNumber};
use protocol::maps::Writer;
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Durability, Room};

use crate::support::Fakes;

const FRAGMENT_SIZE: u32 = 16 << 10;

type Records = Vec<(Appended, Vec<u8>)>;

/// A log that is being written.
async fn begun(fakes: &Fakes, host: &Host) -> (Cluster, LogWriter) {
    let cluster = fakes.cluster(host).await;
    let writer = LogWriter::open(cluster.clone(), Writer::Client, Room::Data, WriterOptions::default()).await;
    (cluster, writer.expect("all answer"))
}

/// Stores a short record.
async fn store(writer: &LogWriter) {
    let parts = &[BodyPart::Copied(&[1; 200])];
    let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
    let end = writer.append(record).expect("it fits").end;
    writer.commit(end, Durability::Disk).await.expect("enough answer");
}

/// A sealed log of a few stripes, the last of them mostly short.
async fn a_log(fakes: &Fakes, host: &Host, dice: &mut Dice) -> (Cluster, LogId, Records) {
    let (cluster, writer) = begun(fakes, host).await;
    let mut records = Records::new();
    for _ in 0..dice.within(1..40) {
        let kind = if dice.coin() { RecordKind::Data } else { RecordKind::Deltas };
        let bytes: Vec<u8> = (0..dice.within(1..9000)).map(|_| dice.roll() as u8).collect();
        let record = Record { kind, owner: Owner::default(), parts: &[BodyPart::Copied(&bytes)], aligned: false };
        let appended = writer.append(record).expect("it fits");
        if dice.below(4) == 0 {
            writer.commit(appended.end, Durability::Disk).await.expect("all answer");
        }
        records.push((appended, bytes));
    }
    writer.commit(writer.end(), Durability::Disk).await.expect("all answer");
    let (log, end) = (writer.log(), writer.end());
    drop(writer);
    assert_eq!(recovery::seal(&cluster, log).await, Ok(end));
    (cluster, log, records)
}

/// Deletes some stripes; of a few of them the message reaches some targets only. Returns all that it began to delete.
async fn delete_some(cluster: &Cluster, fakes: &Fakes, log: LogId, dice: &mut Dice) -> BTreeSet<StripeNumber> {
    let mut begun = BTreeSet::new();
    for state in stripes::list(cluster, Some(log)).await {
        match dice.below(4) {
            0 => continue,
            1 => stripes::delete(cluster, &[(log, state.number)]).await,
            _ => {
                for store in fakes.stores.iter().filter(|_| dice.coin()) {
                    store.lock().unwrap().fragments.retain(|id, _| id.stripe != state.number);
                }
            }
        }
        begun.insert(state.number);
    }
    begun
}

/// Harms what one target holds, as bits that flip at rest may: wrong bytes, a forgotten end, a forgotten fragment.
fn harm(fakes: &Fakes, target: usize, dice: &mut Dice) {
    let mut store = fakes.stores[target].lock().unwrap();
    store.fragments.retain(|_, fragment| {
        let byte = dice.below(fragment.bytes.len() as u64) as usize;
        match dice.below(5) {
            0 => return false,
            1 => fragment.bytes[byte] ^= 1 << dice.below(8),
            2 => {
                fragment.bytes.truncate(byte.max(1));
                fragment.sums = block_checksums(&fragment.bytes);
            }
            _ => {}
        }
        true
    });
}

async fn check(cluster: &Cluster, log: LogId, records: &Records, begun: &BTreeSet<StripeNumber>) {
    let reader = LogReader::new(cluster.clone());
    for (appended, bytes) in records {
        let needed = !begun.contains(&appended.place.stripe);
        match reader.read(appended.body).await {
            Ok(found) => assert!(found[..] == bytes[..], "{:?} has other bytes", appended.body),
            Err(ReadError::Deleted(_)) if !needed => {}
            Err(error) => panic!("{:?}, needed: {needed}: {error}", appended.body),
        }
    }
    let end = records.last().map_or(Position::START, |(appended, _)| appended.end);
    for bodies in [Bodies::NotOfData, Bodies::All, Bodies::Only(&[RecordKind::Data])] {
        let mut met = BTreeSet::new();
        let mut visit = |scanned: recovery::Scanned| {
            let is_it = |(appended, _): &&(Appended, Vec<u8>)| appended.place == scanned.place;
            let (appended, bytes) = records.iter().find(is_it).expect("it was appended");
            assert_eq!(scanned.body, appended.body);
            let brought = if bodies.brings(scanned.header.kind) { &bytes[..] } else { &[] };
            assert_eq!(scanned.bytes[..], *brought);
            met.insert(scanned.place);
        };
        let gone = recovery::scan(&reader, log, Position::START..end, bodies, &mut visit).await;
        let gone = gone.expect("nothing that is needed is lost");
        assert!(gone.iter().all(|stripe| begun.contains(stripe)), "{gone:?} are gone, and not all were deleted");
        let needed = records.iter().map(|(appended, _)| appended.place).filter(|place| !begun.contains(&place.stripe));
        needed.for_each(|place| assert!(met.contains(&place), "{place:?} was passed over"));
    }
}

fn tell(seeds: u64, targets: u32, parity: u8) {
    explore(0..seeds, async |world, host| {
        let mut dice = world.dice();
        let fakes = Fakes::new(&world, targets, parity, FRAGMENT_SIZE);
        let (cluster, log, records) = a_log(&fakes, &host, &mut dice).await;
        let begun = delete_some(&cluster, &fakes, log, &mut dice).await;
        let mut sound: Vec<usize> = (0..fakes.stores.len()).collect();
        for _ in 0..dice.below(u64::from(parity) + 1) {
            let target = sound.swap_remove(dice.below(sound.len() as u64) as usize);
            harm(&fakes, target, &mut dice);
        }
        check(&cluster, log, &records, &begun).await;
    });
}

#[test]
fn with_one_parity() {
    tell(400, 5, 1);
    tell(100, 2, 1);
}

#[test]
fn with_two_parities() {
    tell(300, 6, 2);
}

#[test]
fn without_parity() {
    tell(100, 1, 0);
}

/// A target was away while its stripe was laid anew without it, and then deleted. What it brings back is of a run in which nobody
/// looks for that stripe; but as another target of that run had left meanwhile, it passed for one that nobody can read any more.
#[test]
fn what_a_target_brings_back_of_a_run_that_was_left_need_not_be_whole() {
    run(1, async |world, host| {
        let fakes = Fakes::new(&world, 4, 1, FRAGMENT_SIZE);
        let (cluster, writer) = begun(&fakes, &host).await;
        store(&writer).await;
        let stripe = StripeNumber(0);
        let holds = |wanted: fn(&Part) -> bool| {
            let of_it = |id: &FragmentId| id.stripe == stripe && wanted(&id.part);
            fakes.stores.iter().position(|store| store.lock().unwrap().fragments.keys().any(of_it))
        };
        let away = holds(|part| matches!(part, Part::Copy { .. })).expect("it was copied");
        let leaves = holds(|part| matches!(part, Part::Data(_))).expect("it was stored");
        world.crash(Fakes::node(away), Stop::Kill);
        store(&writer).await;
        let log = writer.log();
        drop(writer);
        recovery::seal(&cluster, log).await.expect("three answer");
        stripes::delete(&cluster, &[(log, stripe)]).await;
        fakes.restart(away);
        fakes.remove(leaves);
        cluster.refresh().await.expect("the registry answers");
        assert_eq!(holds(|part| matches!(part, Part::Copy { .. })), Some(away), "it brings it back");
        assert_eq!(stripes::verify(&cluster, log, stripe).await, Ok(Vec::new()));
        let listed = stripes::list(&cluster, Some(log)).await;
        assert!(listed.iter().any(|state| state.number == stripe), "it is listed, so that it is deleted");
    });
}

/// A target was away while a stripe was deleted, and brings its part back. Another target, which had none of it, was removed
/// meanwhile: it hides nothing, and the stripe does not pass for one that nobody can read any more.
#[test]
fn what_is_left_of_a_deleted_stripe_need_not_be_whole_where_a_target_was_removed() {
    run(2, async |world, host| {
        let fakes = Fakes::new(&world, 4, 1, FRAGMENT_SIZE);
        let (cluster, writer) = begun(&fakes, &host).await;
        store(&writer).await;
        let log = writer.log();
        drop(writer);
        recovery::seal(&cluster, log).await.expect("all answer");
        let stripe = StripeNumber(0);
        let holds = |index: usize| !fakes.stores[index].lock().unwrap().fragments.is_empty();
        let is_parity = |index: usize| {
            let store = fakes.stores[index].lock().unwrap();
            store.fragments.keys().any(|id| matches!(id.part, Part::Parity(_)))
        };
        let away = (0..4).find(|&index| holds(index) && !is_parity(index)).expect("it has data");
        let leaves = (0..4).find(|&index| !holds(index)).expect("it is a short one");
        world.crash(Fakes::node(away), Stop::Kill);
        stripes::delete(&cluster, &[(log, stripe)]).await;
        fakes.restart(away);
        assert!(holds(away), "it brings it back");
        fakes.remove(leaves);
        cluster.refresh().await.expect("the registry answers");
        let verified = stripes::verify(&cluster, log, stripe).await;
        assert!(verified.as_ref().is_ok_and(|problems| !problems.is_empty()), "{verified:?}");
    });
}
