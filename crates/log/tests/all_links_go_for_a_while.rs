//! A switch goes off for some seconds, and nobody dies. The danger: what was written is taken for lost though all have it, so
//! that whoever writes it begins anew; or what is lost passes for kept; or the log goes on with less redundancy than it has
//! targets for, for it looked for them while none was in reach.

use std::time::Duration;

use host::sim::{Stop, Verdict, World, run};
use host::{Host, Moment, NodeId};
use log::{Appended, BodyPart, Cluster, LogError, LogReader, LogWriter, Record, WriterOptions};
use protocol::id::TargetId;
use protocol::maps::{TargetState, Writer};
use protocol::record::{Owner, RecordKind};
use protocol::registry::RegistryRequest;
use protocol::storage::{Durability, Room};

use crate::support::{Fakes, REGISTRY_NODE};

const TARGETS: usize = 3;
const FRAGMENT: u32 = 16 << 10;
const OUTAGE: Duration = Duration::from_secs(5);
/// How long whoever commits pauses before he tries again.
const PAUSE: Duration = Duration::from_millis(100);

async fn open(cluster: Cluster) -> LogWriter {
    let opened = LogWriter::open(cluster, Writer::Client, Room::Data, WriterOptions::default()).await;
    opened.expect("all targets answer")
}

fn append(writer: &LogWriter, length: usize) -> (Appended, Vec<u8>) {
    let bytes: Vec<u8> = (0..length).map(|n| (n as u64 * 7 + writer.end().stripe.0) as u8).collect();
    let parts = &[BodyPart::Copied(&bytes)];
    let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
    (writer.append(record).expect("an open log takes records"), bytes)
}

/// Some twenty stripes that all targets have, and have not made durable.
async fn stream(world: &World, writer: &LogWriter) -> Vec<(Appended, Vec<u8>)> {
    let records = (0..20).map(|_| append(writer, 20_000)).collect();
    world.sleep(Duration::from_millis(500)).await;
    assert!(writer.status().stripes_complete >= 18, "{:?}", writer.status());
    assert_eq!(writer.reached(Durability::Disk), Default::default(), "nobody asked for that");
    records
}

/// As programs do it: again and again while too few targets answer.
async fn commit(host: &Host, writer: &LogWriter) -> Result<(), LogError> {
    loop {
        match writer.commit(writer.end(), Durability::Disk).await {
            Err(LogError::Unavailable(_)) => host.sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}

/// The same while the test goes on.
fn commit_beside(world: &World, host: &Host, writer: &LogWriter) -> impl Future<Output = Result<(), LogError>> {
    let (writer, own) = (writer.clone(), host.clone());
    let outcome = world.spawn(host, async move { commit(&own, &writer).await });
    async move { outcome.await.expect("the writer's machine lives") }
}

async fn all_is_there(fakes: &Fakes, host: &Host, records: impl IntoIterator<Item = &(Appended, Vec<u8>)>) {
    let reader = LogReader::new(fakes.cluster(host).await);
    for (appended, bytes) in records {
        assert!(reader.read(appended.body).await.expect("it was acknowledged")[..] == bytes[..]);
    }
}

/// The links between all machines go; those to the registry stay where the writer's machine has a replica.
fn go(world: &World, fakes: &Fakes, writer: NodeId, has_replica: bool) {
    let nodes: Vec<_> = (0..fakes.stores.len()).map(Fakes::node).chain([writer]).collect();
    for (index, &one) in nodes.iter().enumerate() {
        nodes[..index].iter().filter(|&&other| other != one).for_each(|&other| world.cut(one, other));
    }
    if !has_replica {
        world.isolate(REGISTRY_NODE);
    }
}

#[test]
fn nothing_counts_as_lost_that_only_could_not_be_asked_for() {
    for seed in 0..12 {
        run(seed, async move |world, host| {
            let fakes = Fakes::new(&world, TARGETS as u32, 1, FRAGMENT);
            let writer = open(fakes.cluster(&host).await).await;
            let records = stream(&world, &writer).await;
            go(&world, &fakes, host.node(), seed % 2 == 0);
            let committed = commit_beside(&world, &host, &writer);
            world.sleep(OUTAGE).await;
            world.heal_all();
            assert_eq!(committed.await, Ok(()));
            let later = append(&writer, 100);
            assert_eq!(commit(&host, &writer).await, Ok(()));
            all_is_there(&fakes, &host, records.iter().chain([&later])).await;
        });
    }
}

#[test]
fn what_is_lost_meanwhile_is_told() {
    for seed in 0..12 {
        run(seed, async move |world, host| {
            let fakes = Fakes::new(&world, TARGETS as u32, 1, FRAGMENT);
            let writer = open(fakes.cluster(&host).await).await;
            stream(&world, &writer).await;
            go(&world, &fakes, host.node(), seed % 2 == 0);
            let committed = commit_beside(&world, &host, &writer);
            world.sleep(OUTAGE / 2).await;
            for target in 0..2 {
                fakes.crash(target, Stop::PowerLoss, &mut world.dice());
                fakes.restart(target);
            }
            go(&world, &fakes, host.node(), seed % 2 == 0);
            world.sleep(OUTAGE / 2).await;
            world.heal_all();
            assert_eq!(committed.await, Err(LogError::Lost(writer.log())));
        });
    }
}

/// What one lost, another one makes up for.
#[test]
fn one_that_lost_something_meanwhile_is_no_hole() {
    for seed in 0..12 {
        run(seed, async move |world, host| {
            let fakes = Fakes::new(&world, TARGETS as u32, 1, FRAGMENT);
            let writer = open(fakes.cluster(&host).await).await;
            let records = stream(&world, &writer).await;
            go(&world, &fakes, host.node(), seed % 2 == 0);
            let committed = commit_beside(&world, &host, &writer);
            world.sleep(OUTAGE / 2).await;
            fakes.crash(seed as usize % TARGETS, Stop::PowerLoss, &mut world.dice());
            fakes.restart(seed as usize % TARGETS);
            world.sleep(OUTAGE / 2).await;
            world.heal_all();
            assert_eq!(committed.await, Ok(()));
            all_is_there(&fakes, &host, &records).await;
        });
    }
}

/// Both die for good. Whoever writes must not wait for them for ever: the registry gives them up.
#[test]
fn who_is_given_up_is_not_waited_for() {
    run(5, async move |world, host| {
        let fakes = Fakes::new(&world, 5, 1, FRAGMENT);
        let writer = open(fakes.cluster(&host).await).await;
        (0..20).for_each(|_| drop(append(&writer, 20_000)));
        world.sleep(Duration::from_millis(500)).await;
        assert!(writer.status().stripes_complete >= 4);
        (0..2).for_each(|target| fakes.crash(target, Stop::PowerLoss, &mut world.dice()));
        let committed = commit_beside(&world, &host, &writer);
        world.sleep(2 * OUTAGE).await;
        assert!(writer.reached(Durability::Disk) < writer.end());
        let failed = |target| fakes.change(RegistryRequest::SetTarget(TargetId(target), TargetState::Failed));
        (0..2).for_each(failed);
        assert_eq!(committed.await, Err(LogError::Lost(writer.log())));
    });
}

/// What is asked of the registry is carried out when links are back, by maps and looks at targets that are older than that.
#[test]
fn what_is_committed_when_links_are_back_is_as_redundant_as_its_class() {
    for seed in 0..24 {
        run(seed, async move |world, other| {
            let fakes = Fakes::new(&world, TARGETS as u32, 1, FRAGMENT);
            let host = if seed % 2 == 0 { world.host(Fakes::node(0)) } else { other };
            let writer = open(fakes.cluster(&host).await).await;
            append(&writer, 3000);
            assert_eq!(commit(&host, &writer).await, Ok(()));
            let has_replica = seed % 4 < 2;
            go(&world, &fakes, host.node(), has_replica);
            let back = world.now() + OUTAGE;
            if has_replica {
                answers_from(&world, back, if seed % 8 < 4 { is_form } else { is_add });
            }
            append(&writer, 3000);
            let (committing, own) = (writer.clone(), host.clone());
            let parity = async move {
                assert_eq!(commit(&own, &committing).await, Ok(()));
                committing.status().parity_now
            };
            let committed = world.spawn(&host, parity);
            world.sleep(OUTAGE).await;
            world.heal_all();
            assert_eq!(committed.await, Ok(1), "all answer");
        });
    }
}

fn is_form(request: &RegistryRequest) -> bool {
    matches!(request, RegistryRequest::FormGroup(_))
}

fn is_add(request: &RegistryRequest) -> bool {
    matches!(request, RegistryRequest::AddRun { .. })
}

/// The registry carries out some requests only from then on, as one does that finds no quorum before.
fn answers_from(world: &World, then: Moment, waits: fn(&RegistryRequest) -> bool) {
    let clock = world.clone();
    world.judge_messages(move |passing| match passing.message.peek().downcast_ref::<RegistryRequest>() {
        Some(request) if waits(request) && clock.now() < then => Verdict::Delay(then.since(clock.now())),
        _ => Verdict::Pass,
    });
}
