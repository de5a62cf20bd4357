//! One thing a test: how many messages a commit takes, what happens with full, damaged and lost targets, what a mark
//! does. The danger: being right only by being slow, or fast only while nothing breaks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, join_all, select};
use host::sim::{Stop, Verdict, World, run};
use host::{Host, NodeId, Port};
use log::{Appended, BodyPart, LogError, LogReader, LogWriter, ReadError, Record, WriterOptions, recovery, stripes};
use protocol::address::Position;
use protocol::fragment::{FragmentId, Part};
use protocol::id::StripeNumber;
use protocol::maps::Writer;
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Durability, Room, STORAGE_PORT, StorageRequest, ToTarget};

use crate::support::{Fakes, Fragment, REGISTRY_NODE};

const KIB: usize = 1 << 10;

async fn open(fakes: &Fakes, host: &Host) -> LogWriter {
    let cluster = fakes.cluster(host).await;
    LogWriter::open(cluster, Writer::Client, Room::Data, WriterOptions::default()).await.expect("all targets answer")
}

fn append(writer: &LogWriter, length: usize) -> (Appended, Vec<u8>) {
    let end = writer.end();
    let bytes: Vec<u8> = (0..length).map(|n| (n as u64 * 31 + u64::from(end.offset) + end.stripe.0) as u8).collect();
    let aligned = length >= 16 * KIB;
    let parts = &[BodyPart::Kept(bytes.clone().into())];
    let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned };
    (writer.append(record).expect("it fits"), bytes)
}

async fn right(reader: &LogReader, records: &[(Appended, Vec<u8>)]) {
    for (appended, bytes) in records {
        assert!(reader.read(appended.body).await.expect("it was acknowledged")[..] == bytes[..]);
    }
}

fn calls(world: &World) -> u64 {
    world.calls_to(Port(STORAGE_PORT))
}

#[test]
fn a_small_commit_is_one_append_and_m_copies() {
    for parity in [1, 2] {
        run(7, async |world, host| {
            let fakes = Fakes::new(&world, 6, parity, 1 << 20);
            let writer = open(&fakes, &host).await;
            for durability in [Durability::Replicated, Durability::Disk, Durability::Replicated] {
                let (appended, _) = append(&writer, 200);
                append(&writer, 100);
                let (before, began) = (calls(&world), world.now());
                writer.commit(appended.end, durability).await.unwrap();
                assert_eq!(calls(&world) - before, 1 + u64::from(parity));
                assert!(world.now().since(began) < Duration::from_millis(11), "one round trip, however slow");
                assert_eq!(writer.reached(durability), writer.end(), "the first committer sends for all");
            }
        });
    }
}

/// All fragments of a burst are begun, and their headers made, before any stripe is complete. Who seals the log read and wrote
/// all of it again: on busy links a take-over took half a minute.
#[test]
fn who_seals_a_log_at_rest_does_not_touch_what_is_complete() {
    run(11, async |world, host| {
        let fakes = Fakes::new(&world, 6, 1, 64 << 10);
        let writer = open(&fakes, &host).await;
        let mut records = Vec::new();
        while writer.end().stripe.0 < 24 {
            records.push(append(&writer, 60 * KIB));
        }
        writer.commit(writer.end(), Durability::Disk).await.unwrap();
        world.sleep(Duration::from_secs(1)).await;
        let log = writer.log();
        drop(writer);
        // One of its targets is gone, so whatever is taken for the tail is written again over others.
        world.crash(Fakes::node(2), Stop::Kill);
        let sealer = fakes.cluster(&world.add_node(NodeId(99))).await;
        let before = calls(&world);
        let length = recovery::seal(&sealer, log).await.unwrap();
        assert_eq!(length, records.last().unwrap().0.end);
        // Two stripes of five fragments: read and written; each target is asked six times around it.
        assert!(calls(&world) - before <= 2 * 2 * 5 + 6 * 6, "{}", calls(&world) - before);
        let reader = LogReader::new(sealer);
        right(&reader, &records).await;
    });
}

/// A manager that takes slots over waits for a dead client's log, and so does one that looks after dead logs. Each claimed it
/// from the other and read and wrote its tail again, until one was fast enough: on busy links that took seconds.
#[test]
fn on_one_node_a_log_is_sealed_once() {
    run(12, async |world, host| {
        let fakes = Fakes::new(&world, 6, 1, 64 << 10);
        let writer = open(&fakes, &host).await;
        let (last, _) = append(&writer, 60 * KIB);
        writer.commit(writer.end(), Durability::Disk).await.unwrap();
        let log = writer.log();
        drop(writer);
        world.crash(Fakes::node(2), Stop::Kill);
        let sealer = fakes.cluster(&world.add_node(NodeId(99))).await;
        let before = fakes.maps.lock().unwrap().logs[&log].version;
        let lengths = join_all((0..4).map(|_| recovery::seal(&sealer, log))).await;
        assert!(lengths.iter().all(|length| *length == Ok(last.end)), "{lengths:?}");
        let steps = fakes.maps.lock().unwrap().logs[&log].version - before;
        assert!(steps <= 3, "one claim, one run at most, one length; and not {steps} changes");
    });
}

/// When such a stripe ends there is nothing left to send, and so no answer that could complete it. Stripes that never
/// complete stay in memory until no more is let in.
#[test]
fn without_parity_a_stripe_that_was_committed_bit_by_bit_is_complete_when_it_ends() {
    run(9, async |world, host| {
        let fakes = Fakes::new(&world, 1, 0, 16 << 10);
        let writer = open(&fakes, &host).await;
        for durability in [Durability::Replicated, Durability::Disk].repeat(10) {
            let (appended, _) = append(&writer, 5000);
            writer.commit(appended.end, durability).await.unwrap();
        }
        assert!(writer.end().stripe.0 > 3);
        assert_eq!(writer.status().stripes_complete, writer.end().stripe.0, "all but the open one");
        writer.close().await.unwrap();
    });
}

/// A manager's last image did that, and its machine waited for a minute to stop.
#[test]
fn what_is_appended_while_a_log_is_closed_is_closed_in() {
    run(10, async |world, host| {
        let fakes = Fakes::new(&world, 4, 1, 64 << 10);
        let writer = open(&fakes, &host).await;
        append(&writer, 100);
        let mut closing = std::pin::pin!(writer.close());
        assert!((&mut closing).now_or_never().is_none());
        let (late, bytes) = append(&writer, 200);
        let began = world.now();
        closing.await.unwrap();
        assert!(world.now().since(began) < Duration::from_secs(1));
        assert!(writer.reached(Durability::Disk) >= late.end);
        right(&LogReader::new(fakes.cluster(&host).await), &[(late, bytes)]).await;
    });
}

#[test]
fn on_one_node_a_commit_and_a_read_are_one_poll() {
    run(8, async |world, _| {
        let fakes = Fakes::on_one_node(&world, 5, 1);
        let host = world.host(REGISTRY_NODE);
        let writer = open(&fakes, &host).await;
        let reader = LogReader::new(fakes.cluster(&host).await);
        let (mut commits, mut reads) = (0, 0);
        for _ in 0..200 {
            // The world lets half of all local calls wait; what a commit that was given up had begun is done again.
            let (appended, bytes) = append(&writer, 3000);
            if writer.commit(appended.end, Durability::Replicated).now_or_never() == Some(Ok(())) {
                commits += 1;
            } else {
                writer.commit(appended.end, Durability::Replicated).await.unwrap();
            }
            if let Some(read) = reader.read(appended.body).now_or_never() {
                assert!(read.unwrap()[..] == bytes[..]);
                reads += 1;
            }
        }
        assert!(commits > 20 && reads > 50, "{commits} commits and {reads} reads of 200 took one poll");
        let (appended, bytes) = append(&writer, 3000);
        reader.attach(&writer);
        let read = reader.read(appended.body).now_or_never().expect("it is in memory").unwrap();
        assert!(read[..] == bytes[..]);
    });
}

#[test]
fn an_open_stripe_is_read_with_any_target_lost() {
    for lost in 0..5 {
        run(lost as u64, async |world, host| {
            let fakes = Fakes::new(&world, 5, 1, 16 << 10);
            let writer = open(&fakes, &host).await;
            let mut records = Vec::new();
            for n in 0..70 {
                records.push(append(&writer, 10 + n * 17));
                writer.commit(writer.end(), Durability::Replicated).await.unwrap();
            }
            let other = world.add_node(NodeId(2));
            let reader = LogReader::new(fakes.cluster(&other).await);
            world.crash(Fakes::node(lost), Stop::Kill);
            right(&reader, &records).await;
        });
    }
}

#[test]
fn bulk_before_a_sync_is_not_copied() {
    run(3, async |world, host| {
        let fakes = Fakes::new(&world, 5, 1, 1 << 20);
        let writer = open(&fakes, &host).await;
        let reader = LogReader::new(fakes.cluster(&host).await);
        reader.attach(&writer);
        let mut records = Vec::new();
        for _ in 0..4 {
            for _ in 0..90 {
                records.push(append(&writer, 128 * KIB));
                writer.room().await.unwrap();
            }
            right(&reader, &records[records.len() - 20..]).await;
            writer.commit(writer.end(), Durability::Disk).await.unwrap();
        }
        let status = writer.status();
        assert!(status.bytes_copied <= 4 * 2048 * KIB as u64, "{status:?}");
        assert!(status.bytes_parity < status.bytes_appended / 3, "{status:?}");
        right(&LogReader::new(fakes.cluster(&host).await), &records).await;
    });
}

#[test]
fn behind_who_waits_for_lulls_a_commit_waits_for_little() {
    run(3, async |world, host| {
        let fakes = Fakes::new(&world, 5, 1, 1 << 20);
        let writer = open(&fakes, &host).await;
        for _ in 0..300 {
            append(&writer, 128 * KIB);
            writer.lull().await.unwrap();
            let (reached, end) = (writer.reached(Durability::Replicated), writer.end());
            assert!(end.stripe.0 - reached.stripe.0 <= 2, "{reached:?} of {end:?}");
        }
    });
}

#[test]
fn a_journal_wastes_no_stripes() {
    run(3, async |world, host| {
        let fakes = Fakes::new(&world, 5, 1, 1 << 20);
        let writer = open(&fakes, &host).await;
        for _ in 0..2000 {
            append(&writer, 1500);
            writer.commit(writer.end(), Durability::Replicated).await.unwrap();
        }
        assert_eq!(writer.end().stripe, StripeNumber(0));
        assert!(writer.status().bytes_copied <= writer.status().bytes_appended);
    });
}

#[test]
fn a_full_target_refuses_and_the_log_goes_on_when_there_is_room() {
    run(4, async |world, host| {
        let fakes = Fakes::new(&world, 3, 1, 16 << 10);
        let limit = |bytes| fakes.stores.iter().for_each(|store| store.lock().unwrap().bytes_max = bytes);
        let writer = open(&fakes, &host).await;
        limit(Some(40_000));
        let mut records = Vec::new();
        let refused = loop {
            records.push(append(&writer, 3000));
            match writer.commit(writer.end(), Durability::Replicated).await {
                Ok(()) => assert!(records.len() < 100, "nothing was refused"),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, LogError::Full);
        assert_eq!(writer.commit(writer.end(), Durability::Replicated).await, Err(LogError::Full));
        limit(None);
        writer.commit(writer.end(), Durability::Disk).await.unwrap();
        records.push(append(&writer, 3000));
        writer.close().await.unwrap();
        right(&LogReader::new(fakes.cluster(&host).await), &records).await;
        assert_eq!(
            writer.append(Record { kind: RecordKind::Mark, owner: Owner::default(), parts: &[], aligned: false }),
            Err(LogError::Closed)
        );
    });
}

#[test]
fn a_log_goes_on_when_all_targets_were_away_and_are_back() {
    for targets in [1, 3] {
        run(4, async |world, host| {
            let fakes = Fakes::new(&world, targets, u8::from(targets > 1), 16 << 10);
            let writer = open(&fakes, &host).await;
            let mut records = vec![append(&writer, 3000)];
            writer.commit(writer.end(), Durability::Disk).await.unwrap();
            for _ in 0..2 {
                (0..targets as usize).for_each(|n| world.crash(Fakes::node(n), Stop::Kill));
                records.push(append(&writer, 3000));
                let alone = writer.commit(writer.end(), Durability::Replicated).await;
                assert!(matches!(alone, Err(LogError::Unavailable(_))), "{alone:?}");
                (0..targets as usize).for_each(|n| fakes.restart(n));
                let before = writer.status().runs_added;
                writer.commit(writer.end(), Durability::Disk).await.unwrap();
                assert_eq!(writer.status().runs_added, before + 1);
            }
            right(&LogReader::new(fakes.cluster(&host).await), &records).await;
        });
    }
}

/// Data got ahead of its parity, which then took the room that is kept for journals and cleaners: no manager could say any more
/// what was dead, and a full file system stayed full whatever was removed.
#[test]
fn data_that_fills_all_targets_leaves_journals_and_cleaners_their_room() {
    run(13, async |world, host| {
        let fakes = Fakes::on_disks_of(16 << 20, &world, 3, 1, 64 << 10).await;
        let cluster = fakes.cluster(&host).await;
        let open = async |writer, room| {
            let opened = LogWriter::open(cluster.clone(), writer, room, WriterOptions::default()).await;
            opened.expect("all targets answer")
        };
        let data = join_all((0..4).map(|_| open(Writer::Client, Room::Data))).await;
        data.iter().for_each(|log| (0..400).for_each(|_| drop(append(log, 100 * KIB))));
        let outcomes = join_all(data.iter().map(|log| log.commit(log.end(), Durability::Disk))).await;
        assert_eq!(outcomes, vec![Err(LogError::Full); data.len()]);
        for (writer, room) in [(Writer::Manager, Room::Journal), (Writer::Cleaner, Room::Clean)] {
            let log = open(writer, room).await;
            (0..4).for_each(|_| drop(append(&log, 50 * KIB)));
            assert_eq!(log.commit(log.end(), Durability::Disk).await, Ok(()), "{writer:?}");
        }
        for log in data {
            let sealed = recovery::seal(&cluster, log.log()).await;
            assert!(sealed.is_ok(), "who takes a log over makes its last stripes whole: {sealed:?}");
        }
    });
}

/// The stripe before it was not complete yet, so it was in memory. Its copies, whose place parity had taken, were looked for in
/// vain, it passed for incomplete, and as nothing of it was left to send nobody said ever after that it was: who waited for room
/// in the log did so for ever.
#[test]
fn a_stripe_stays_complete_when_a_target_restarts_that_had_copies_of_it() {
    run(11, async |world, host| {
        let fakes = Fakes::new(&world, 3, 1, 16 << 10);
        let writer = open(&fakes, &host).await;
        let held_back = Duration::from_secs(10);
        world.judge_messages(move |passing| match passing.message.peek().downcast_ref::<ToTarget>() {
            Some(ToTarget { request: StorageRequest::Replace(parity), .. })
                if parity.header.id.stripe == StripeNumber(0) =>
            {
                Verdict::Delay(held_back)
            }
            _ => Verdict::Pass,
        });
        let began = world.now();
        let mut records = vec![append(&writer, 20 * KIB), append(&writer, 20 * KIB)];
        let committing = writer.clone();
        let through = writer.end();
        let commit = world.spawn(&host, async move { committing.commit(through, Durability::Replicated).await });
        world.sleep(Duration::from_secs(1)).await;
        let has_copies = |stripe| {
            let is_copy = |id: &FragmentId| id.stripe == stripe && matches!(id.part, Part::Copy { .. });
            fakes.stores.iter().position(|store| store.lock().unwrap().fragments.keys().any(is_copy))
        };
        let holder = has_copies(StripeNumber(1)).expect("what was to be committed was copied");
        records.push(append(&writer, 20 * KIB));
        world.sleep(Duration::from_secs(1)).await;
        assert!(has_copies(StripeNumber(1)).is_none(), "parity took their place");
        world.crash(Fakes::node(holder), Stop::Kill);
        fakes.restart(holder);
        let syncing = writer.clone();
        let through = writer.end();
        let sync = world.spawn(&host, async move { syncing.commit(through, Durability::Disk).await });
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(writer.status().targets_restarted, 1);
        assert!(
            world.now().since(began) < held_back && writer.status().stripes_complete == 0,
            "the first is under way"
        );
        assert_eq!((commit.await, sync.await), (Ok(Ok(())), Ok(Ok(()))));
        let (rest, patience) = (std::pin::pin!(writer.rest()), std::pin::pin!(world.sleep(Duration::from_secs(60))));
        assert!(matches!(select(rest, patience).await, Either::Left((Ok(_), _))), "{:?}", writer.status());
        right(&LogReader::new(fakes.cluster(&host).await), &records).await;
    });
}

/// Two of three targets lose their power before their disks have what they took. Who wrote it is told; but a client could store
/// nothing ever after, for nobody opened another log.
#[test]
fn whoever_writes_a_log_hears_of_a_hole_and_of_no_lesser_loss() {
    run(12, async |world, host| {
        let fakes = Fakes::new(&world, 3, 1, 16 << 10);
        let writer = open(&fakes, &host).await;
        let (listening, heard) = (writer.clone(), Arc::new(AtomicBool::new(false)));
        let hears = heard.clone();
        host.spawn(async move {
            listening.lost().await;
            hears.store(true, Ordering::Relaxed);
        });
        for (targets, outcome) in [(0..1, Ok(())), (0..2, Err(LogError::Lost(writer.log())))] {
            (0..6).for_each(|_| drop(append(&writer, 20 * KIB)));
            let end = writer.end();
            assert_eq!(writer.commit(end, Durability::Replicated).await, Ok(()));
            for target in targets {
                fakes.crash(target, Stop::PowerLoss, &mut world.dice());
                fakes.restart(target);
            }
            assert_eq!(writer.commit(end, Durability::Disk).await, outcome);
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(heard.load(Ordering::Relaxed), outcome.is_err());
        }
    });
}

#[test]
fn who_asks_while_all_targets_answer_is_not_told_that_they_did_not() {
    for steps in 0..70 {
        run(4, async |world, host| {
            let fakes = Fakes::new(&world, 3, 1, 16 << 10);
            let writer = Arc::new(open(&fakes, &host).await);
            (0..3).for_each(|n| world.crash(Fakes::node(n), Stop::Kill));
            let records = vec![append(&writer, 3000)];
            let alone = writer.clone();
            let alone = world.spawn(&host, async move { alone.commit(alone.end(), Durability::Disk).await });
            // Where the attempts that he waits for stand now is different every time.
            host.sleep(steps * Duration::from_millis(100)).await;
            (0..3).for_each(|n| fakes.restart(n));
            let answer = writer.commit(writer.end(), Durability::Disk).await;
            assert_eq!(answer, Ok(()), "all answered since {steps} steps after all were away");
            drop(alone);
            right(&LogReader::new(fakes.cluster(&host).await), &records).await;
        });
    }
}

#[test]
fn damage_is_read_around_found_and_repaired() {
    run(5, async |world, host| {
        let fakes = Fakes::new(&world, 5, 1, 16 << 10);
        let writer = open(&fakes, &host).await;
        let records: Vec<_> = (0..40).map(|_| append(&writer, 5000)).collect();
        writer.close().await.unwrap();
        let cluster = fakes.cluster(&host).await;
        let (mut data, mut parity) = (0, 0);
        for store in &fakes.stores {
            for (id, fragment) in &mut store.lock().unwrap().fragments {
                let bad = id.stripe.0 % 5;
                if id.part == Part::Data(bad as u8 % 4) && bad < 3 {
                    fragment.bytes[77] ^= 4;
                    data += 1;
                } else if matches!(id.part, Part::Parity(_)) && bad == 4 {
                    fragment.bytes[77] ^= 4;
                    parity += 1;
                }
            }
        }
        assert!(data >= 2 && parity <= 9, "{data} {parity}");
        let reader = LogReader::new(cluster.clone());
        right(&reader, &records).await;
        let decoded = reader.pieces_decoded();
        assert!(decoded >= data as u64, "{decoded}: each of {data} fragments is read around");
        let (mut found, mut repaired) = (0, 0);
        for stripe in stripes::list(&cluster, Some(writer.log())).await {
            found += stripes::verify(&cluster, stripe.log, stripe.number).await.unwrap().len();
            repaired += stripes::repair(&cluster, stripe.log, stripe.number, stripe.length).await.unwrap().mended;
            assert_eq!(stripes::verify(&cluster, stripe.log, stripe.number).await, Ok(vec![]));
        }
        assert_eq!((found, repaired), (data + parity, data + parity));
        right(&reader, &records).await;
        assert_eq!(reader.pieces_decoded(), decoded, "nothing is wrong any more");
    });
}

/// The danger: a stripe whose only parity is lost looks like an open one, which repair leaves alone.
#[test]
fn an_emptied_target_gets_all_of_a_sealed_log_again() {
    run(8, async |world, host| {
        let fakes = Fakes::new(&world, 5, 1, 16 << 10);
        let writer = open(&fakes, &host).await;
        let records: Vec<_> = (0..40).map(|_| append(&writer, 5000)).collect();
        writer.close().await.unwrap();
        let cluster = fakes.cluster(&host).await;
        recovery::seal(&cluster, writer.log()).await.unwrap();
        let reader = LogReader::new(cluster.clone());
        for store in &fakes.stores {
            let before = std::mem::take(&mut store.lock().unwrap().fragments);
            for stripe in stripes::list(&cluster, Some(writer.log())).await {
                stripes::repair(&cluster, stripe.log, stripe.number, stripe.length).await.unwrap();
                assert_eq!(stripes::verify(&cluster, stripe.log, stripe.number).await, Ok(vec![]));
            }
            let bytes = |fragments: &BTreeMap<_, Fragment>| -> Vec<_> {
                fragments.iter().map(|(&id, fragment)| (id, fragment.bytes.clone())).collect()
            };
            assert_eq!(bytes(&store.lock().unwrap().fragments), bytes(&before));
        }
        right(&reader, &records).await;
    });
}

#[test]
fn the_newest_mark_is_found_and_deleted_stripes_are_known_as_such() {
    run(6, async |world, host| {
        let fakes = Fakes::new(&world, 5, 1, 16 << 10);
        let writer = open(&fakes, &host).await;
        let mut records: Vec<_> = (0..30).map(|_| append(&writer, 5000)).collect();
        let parts = &[BodyPart::Copied(b"applied")];
        let mark = Record { kind: RecordKind::Mark, owner: Owner::default(), parts, aligned: false };
        let marked = writer.append(mark).unwrap();
        writer.commit(marked.end, Durability::Disk).await.unwrap();
        writer.set_mark(marked.place);
        records.extend((0..30).map(|_| append(&writer, 5000)));
        writer.close().await.unwrap();
        let cluster = fakes.cluster(&host).await;
        let length = recovery::seal(&cluster, writer.log()).await.unwrap();
        assert_eq!(length, writer.end());
        assert_eq!(recovery::newest_mark(&cluster, writer.log()).await, Ok(marked.place));
        let reader = LogReader::new(cluster.clone());
        let beyond = protocol::address::LogAddress { offset: length.offset, ..records[59].0.body };
        assert_eq!(reader.read(beyond).await, Err(ReadError::Beyond(beyond)));
        stripes::delete(&cluster, &[(writer.log(), StripeNumber(0))]).await;
        let gone = records[0].0.body;
        assert_eq!(reader.read(gone).await, Err(ReadError::Deleted(gone)));
        let mut count = 0;
        let visit = &mut |_| count += 1;
        let bodies = recovery::Bodies::NotOfData;
        recovery::scan(&reader, writer.log(), Position::START..length, bodies, visit).await.unwrap();
        let left = records.iter().filter(|(appended, _)| appended.place.stripe > StripeNumber(0)).count();
        assert_eq!(count, left + 1);
        // The registry tells the last stripe's length when no target does.
        stripes::delete(&cluster, &[(writer.log(), length.stripe)]).await;
        recovery::scan(&reader, writer.log(), Position::START..length, bodies, &mut |_| ()).await.unwrap();
    });
}

#[test]
fn a_broken_target_is_left_for_another_run() {
    run(9, async |world, host| {
        let fakes = Fakes::new(&world, 6, 1, 16 << 10);
        let writer = open(&fakes, &host).await;
        let mut records: Vec<_> = (0..10).map(|_| append(&writer, 5000)).collect();
        writer.commit(writer.end(), Durability::Disk).await.unwrap();
        fakes.stores[1].lock().unwrap().broken = true;
        records.extend((0..40).map(|_| append(&writer, 5000)));
        writer.commit(writer.end(), Durability::Disk).await.unwrap();
        writer.close().await.unwrap();
        assert!(writer.status().runs_added >= 1);
        world.crash(Fakes::node(1), Stop::Kill);
        right(&LogReader::new(fakes.cluster(&host).await), &records).await;
    });
}
