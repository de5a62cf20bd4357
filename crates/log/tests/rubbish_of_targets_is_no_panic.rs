//! Danger: a target whose memory or software is broken tells of fragments that cannot be, and whoever seals, reads or
//! checks a log there counts with what it tells, and stops or asks for all the memory there is.

use host::Host;
use host::sim::{World, run};
use log::recovery::{self, Bodies};
use log::{BodyPart, Cluster, LogReader, LogWriter, ReadError, Record, WriterOptions, stripes};
use protocol::address::{LogAddress, Position};
use protocol::fragment::{FragmentHeader, Geometry, Part};
use protocol::id::{LogId, StripeNumber};
use protocol::maps::Writer;
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Durability, Room};

use crate::support::{Fakes, Fragment};

/// A log of some records on three targets, its writer gone.
async fn a_log(world: &World, host: &Host) -> (Fakes, Cluster, LogId) {
    let fakes = Fakes::new(world, 3, 1, 8192);
    let cluster = fakes.cluster(host).await;
    let options = WriterOptions::default();
    let writer = LogWriter::open(cluster.clone(), Writer::Client, Room::Data, options).await.expect("all answer");
    for _ in 0..6 {
        let parts = &[BodyPart::Copied(&[7; 3000])];
        let record = Record { kind: RecordKind::Journal, owner: Owner::default(), parts, aligned: false };
        let end = writer.append(record).expect("it fits").end;
        writer.commit(end, Durability::Disk).await.expect("all answer");
    }
    let log = writer.log();
    drop(writer);
    (fakes, cluster, log)
}

/// Lets a target tell of one fragment more, that is like another but for what `alter` does to it.
fn add(fakes: &Fakes, target: usize, alter: impl Fn(&mut FragmentHeader)) {
    let mut store = fakes.stores[target].lock().unwrap();
    let mut strange: Fragment = store.fragments.values().next().expect("it holds some").clone();
    strange.header.id.part = Part::Copy { of: 9, at: 0 };
    alter(&mut strange.header);
    store.fragments.insert(strange.header.id, strange);
}

async fn use_it(cluster: &Cluster, log: LogId) {
    let reader = LogReader::new(cluster.clone());
    if let Ok(length) = recovery::seal(cluster, log).await {
        let mark = recovery::newest_mark(cluster, log).await.unwrap_or(Position::START);
        let _ = recovery::scan(&reader, log, mark..length, Bodies::All, &mut |_| {}).await;
    }
    for state in stripes::list(cluster, None).await {
        let _ = stripes::verify(cluster, state.log, state.number).await;
        let _ = stripes::repair(cluster, state.log, state.number, state.length).await;
    }
}

#[test]
fn shapes_that_no_stripe_has() {
    for geometry in [
        Geometry { data: 255, parity: 255, fragment_size: u32::MAX },
        Geometry { data: 0, parity: 1, fragment_size: 4096 },
        Geometry { data: 40, parity: 1, fragment_size: 1 << 30 },
    ] {
        run(1, async |world, host| {
            let (fakes, cluster, log) = a_log(&world, &host).await;
            add(&fakes, 0, |header| header.geometry = geometry);
            use_it(&cluster, log).await;
        });
    }
}

#[test]
fn parts_and_lengths_that_the_stripe_has_not() {
    run(1, async |world, host| {
        let (fakes, cluster, log) = a_log(&world, &host).await;
        add(&fakes, 1, |header| header.id.part = Part::Parity(200));
        add(&fakes, 2, |header| header.data_lengths = vec![u32::MAX; 200]);
        use_it(&cluster, log).await;
    });
}

#[test]
fn a_mark_at_the_end_of_all_offsets() {
    run(1, async |world, host| {
        let (fakes, cluster, log) = a_log(&world, &host).await;
        for target in 0..3 {
            let mut store = fakes.stores[target].lock().unwrap();
            let fragments = store.fragments.values_mut();
            fragments.for_each(|fragment| fragment.header.mark = Position::new(StripeNumber(0), u32::MAX));
        }
        use_it(&cluster, log).await;
    });
}

#[test]
fn a_stripe_said_to_be_longer_than_any() {
    for end in [u32::MAX, u32::MAX / 2 + 2, 1 << 31] {
        run(1, async |world, host| {
            let (fakes, cluster, log) = a_log(&world, &host).await;
            let length = recovery::seal(&cluster, log).await.expect("all answer");
            for target in 0..3 {
                let mut store = fakes.stores[target].lock().unwrap();
                store.fragments.values_mut().for_each(|fragment| fragment.header.previous_end = end);
            }
            let reader = LogReader::new(cluster.clone());
            let _ = recovery::scan(&reader, log, Position::START..length, Bodies::All, &mut |_| {}).await;
            use_it(&cluster, log).await;
        });
    }
}

#[test]
fn a_log_complete_before_it_was_begun() {
    run(1, async |world, host| {
        let (fakes, cluster, log) = a_log(&world, &host).await;
        add(&fakes, 0, |header| {
            header.id.part = Part::Copy { of: 1, at: 0 };
            header.complete_below = StripeNumber(u64::MAX);
        });
        let length = recovery::seal(&cluster, log).await.expect("two targets are enough");
        assert!(length.stripe < StripeNumber(8), "{length:?}");
    });
}

#[test]
fn an_address_without_an_end() {
    run(1, async |world, host| {
        let (_fakes, cluster, log) = a_log(&world, &host).await;
        recovery::seal(&cluster, log).await.expect("all answer");
        let address = LogAddress { log, stripe: StripeNumber(0), offset: u32::MAX, length: 2 };
        assert_eq!(LogReader::new(cluster).read(address).await, Err(ReadError::Beyond(address)));
    });
}

#[test]
fn what_a_parity_lacks_is_not_taken_for_zeros() {
    run(1, async |world, host| {
        let (fakes, cluster, log) = a_log(&world, &host).await;
        recovery::seal(&cluster, log).await.expect("all answer");
        for store in &fakes.stores {
            let mut store = store.lock().unwrap();
            for fragment in store.fragments.values_mut().filter(|fragment| fragment.header.id.stripe.0 == 0) {
                if fragment.header.id.part != Part::Data(0) {
                    fragment.bytes.truncate(4096);
                    fragment.sums.truncate(1);
                }
            }
        }
        let reader = LogReader::new(cluster.clone());
        let _ = stripes::repair(&cluster, log, StripeNumber(0), 9).await;
        // The body of a record, behind what data fragment 1 has left.
        let address = LogAddress { log, stripe: StripeNumber(0), offset: 8192 + 4096, length: 2872 };
        if let Ok(bytes) = reader.read(address).await {
            assert!(bytes.iter().all(|byte| *byte == 7), "these bytes were never appended");
        }
    });
}
