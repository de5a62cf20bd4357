//! A daemon that is restarted while programs have files open leaves its log at rest, and the next process goes on with it. The
//! danger: what was acknowledged before cannot be read or is cut off when the log is sealed; or a stripe is begun twice.

use host::sim::{Dice, Stop, run};
use host::{Host, NodeId};
use log::{Appended, BodyPart, LogError, LogReader, LogWriter, Record, WriterOptions, recovery};
use protocol::maps::Writer;
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Durability, Room};

use crate::support::Fakes;

const FRAGMENT: u32 = 64 << 10;

fn append(writer: &LogWriter, dice: &mut Dice) -> (Appended, Vec<u8>) {
    let bytes = vec![dice.roll() as u8; dice.within(1..60_000) as usize];
    let parts = &[BodyPart::Copied(&bytes)];
    let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
    (writer.append(record).expect("an open log takes records"), bytes)
}

/// Leaves the log at rest, which then takes nothing more, and goes on with it.
async fn again(fakes: &Fakes, host: &Host, writer: LogWriter) -> LogWriter {
    let rest = writer.rest().await.expect("enough targets live");
    assert_eq!(writer.reached(Durability::Disk), writer.end(), "nothing is under way");
    let parts = &[BodyPart::Copied(b"late")];
    let late = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
    assert_eq!(writer.append(late), Err(LogError::Closed));
    let cluster = fakes.cluster(host).await;
    LogWriter::resume(cluster, rest, WriterOptions::default()).await.expect("it is open still")
}

#[test]
fn what_every_process_wrote_is_there_when_the_log_is_sealed() {
    for seed in 0..100 {
        run(seed, async |world, host| {
            let fakes = Fakes::new(&world, 6, 1 + (seed % 2) as u8, FRAGMENT);
            let mut dice = Dice::new(seed);
            let cluster = fakes.cluster(&host).await;
            let opened = LogWriter::open(cluster, Writer::Client, Room::Data, WriterOptions::default()).await;
            let mut writer = opened.expect("all targets answer");
            let (log, mut records) = (writer.log(), Vec::new());
            for _ in 0..dice.within(2..6) {
                for _ in 0..dice.below(12) {
                    records.push(append(&writer, &mut dice));
                    if dice.chance(300_000) {
                        writer.commit(writer.end(), Durability::Disk).await.unwrap();
                    }
                }
                // A target that fails has the log go on in another run.
                if dice.chance(250_000) {
                    world.crash(Fakes::node(0), Stop::Kill);
                }
                writer = again(&fakes, &host, writer).await;
            }
            assert_eq!(writer.log(), log);
            writer.commit(writer.end(), Durability::Disk).await.unwrap();
            drop(writer);
            let sealer = fakes.cluster(&world.add_node(NodeId(99))).await;
            let length = recovery::seal(&sealer, log).await.expect("enough targets live");
            assert!(records.last().is_none_or(|(last, _)| length >= last.end), "nothing is cut off");
            let reader = LogReader::new(sealer);
            for (appended, bytes) in records {
                assert!(reader.read(appended.body).await.expect("it was acknowledged")[..] == bytes[..]);
            }
        });
    }
}
