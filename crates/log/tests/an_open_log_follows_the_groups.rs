//! A log is open for as long as its daemon runs, and machines come and go meanwhile. The danger: what is written after a
//! machine joined lies on the first one alone, as on the day when the log began; or the change of groups loses what was
//! acknowledged before, or makes programs wait.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::sim::{self, Dice, Stop, World};
use host::{BoxFuture, Envelope, Handler, Host, NodeId, Port};
use log::{Appended, BodyPart, LogReader, LogWriter, RebuildOptions, Rebuilder, Record, WriterOptions, recovery};
use protocol::fragment::FragmentId;
use protocol::id::{GroupId, LogId, TargetId};
use protocol::maps::{Maps, TargetState, Writer};
use protocol::record::{Owner, RecordKind};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryError, RegistryRequest};
use protocol::storage::{Durability, Room};

use crate::support::{Fakes, REGISTRY_NODE};

const WRITER: NodeId = NodeId(2);
const OTHER: NodeId = NodeId(3);
const FRAGMENT: u32 = 64 << 10;
/// A commit takes some round trips, and no more while the groups change.
const COMMIT_MAX: Duration = Duration::from_millis(100);

/// What was acknowledged as `disk`.
#[derive(Default)]
struct Story {
    log: Option<LogId>,
    records: Vec<(Appended, Vec<u8>)>,
    slowest: Duration,
    runs_added: u64,
}

type Shared = Arc<Mutex<Story>>;

/// Appends and commits records until told how many are enough, with pauses.
async fn write(host: Host, writer: LogWriter, story: Shared, (records, pause_max): (usize, Duration)) {
    let mut dice = Dice::new(host.random());
    for _ in 0..records {
        let mut fresh = Vec::new();
        for _ in 0..dice.within(1..5) {
            let length = dice.within(1..30_000).min(u64::from(writer.record_size_max()));
            let bytes = vec![dice.roll() as u8; length as usize];
            let parts = &[BodyPart::Copied(&bytes)];
            let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
            fresh.push((writer.append(record).expect("an open log takes records"), bytes));
        }
        let begun = host.now();
        let end = fresh.last().expect("there is one").0.end;
        writer.commit(end, Durability::Disk).await.expect("enough targets live");
        let taken = host.now().since(begun);
        {
            let mut story = story.lock().unwrap();
            story.slowest = story.slowest.max(taken);
            story.records.append(&mut fresh);
        }
        host.sleep(Duration::from_micros(dice.below(pause_max.as_micros() as u64))).await;
    }
}

/// The writer's node writes; the others join meanwhile, and it hears of them.
async fn begin(world: &World, fakes: &Fakes, records: usize) -> Shared {
    begin_slowly(world, fakes, (records, Duration::from_millis(3))).await
}

/// The same, with pauses of up to so long between the records.
async fn begin_slowly(world: &World, fakes: &Fakes, records: (usize, Duration)) -> Shared {
    let host = world.add_node(WRITER);
    let story: Shared = Arc::default();
    let cluster = fakes.cluster(&host).await;
    let (told, own) = (story.clone(), host.clone());
    let writing = world.spawn(&host, async move {
        let opened = LogWriter::open(cluster.clone(), Writer::Client, Room::Data, WriterOptions::default()).await;
        let writer = opened.expect("all targets answer");
        told.lock().unwrap().log = Some(writer.log());
        let (writing, log) = (write(own.clone(), writer.clone(), told.clone(), records), writer.clone());
        own.spawn(writing);
        loop {
            own.sleep(Duration::from_millis(20)).await;
            cluster.refresh().await.expect("the registry answers");
            told.lock().unwrap().runs_added = log.status().runs_added;
        }
    });
    drop(writing);
    story
}

/// Everything acknowledged from record `first` on is read back.
async fn read_back(world: &World, fakes: &Fakes, story: &Shared, first: usize) {
    let host = world.add_node(OTHER);
    let cluster = fakes.cluster(&host).await;
    let (log, records) = {
        let story = story.lock().unwrap();
        (story.log.expect("it was opened"), story.records.clone())
    };
    assert!(records.len() > first, "something was written");
    let length = recovery::seal(&cluster, log).await.expect("enough targets live");
    assert!(length >= records.last().unwrap().0.end, "nothing that was acknowledged is cut off");
    let reader = LogReader::new(cluster);
    for (appended, bytes) in &records[first..] {
        let read = reader.read(appended.body).await.unwrap_or_else(|error| panic!("{error}"));
        assert!(read[..] == bytes[..], "the very bytes");
    }
}

#[test]
fn what_is_written_after_a_machine_joined_survives_the_first_one() {
    for counts in [&[3, 2, 1][..], &[5, 1], &[1, 1], &[2, 2, 2, 2]] {
        sim::explore(0..12, async |world, _| {
            let fakes = Fakes::machines(&world, counts, FRAGMENT);
            let story = begin(&world, &fakes, 200).await;
            world.sleep(Duration::from_millis(20 + world.dice().below(100))).await;
            (1..counts.len()).for_each(|machine| fakes.join(counts, machine));
            // It hears of it, and goes on in the new groups.
            world.sleep(Duration::from_millis(100)).await;
            let first = story.lock().unwrap().records.len();
            world.sleep(Duration::from_secs(3)).await;
            assert_eq!(story.lock().unwrap().runs_added, 1, "the change of groups costs one run");
            assert!(story.lock().unwrap().slowest < COMMIT_MAX, "{:?}", story.lock().unwrap().slowest);
            world.crash(WRITER, Stop::Kill);
            world.crash(Fakes::node(0), Stop::Kill);
            read_back(&world, &fakes, &story, first).await;
        });
    }
}

/// A target fails while the log still waits for a machine of the new groups to answer: its stripes go on without it, in a
/// narrower group, and those begun there are larger than what was chosen before would hold.
#[test]
fn groups_are_not_gone_on_in_that_were_chosen_before_a_target_failed() {
    sim::explore(0..12, async |world, _| {
        let counts = &[4, 1, 1, 1];
        let fakes = Fakes::machines(&world, counts, 60 << 10);
        let story = begin(&world, &fakes, 200).await;
        world.sleep(Duration::from_millis(20 + world.dice().below(100))).await;
        fakes.stores[4].lock().unwrap().stat_takes = Some(Duration::from_millis(200));
        (1..counts.len()).for_each(|machine| fakes.join(counts, machine));
        world.sleep(Duration::from_millis(50)).await;
        world.crash(Fakes::node(3), Stop::Kill);
        fakes.stores[1].lock().unwrap().broken = true;
        world.sleep(Duration::from_secs(3)).await;
        assert!(story.lock().unwrap().runs_added >= 1);
        world.crash(WRITER, Stop::Kill);
        read_back(&world, &fakes, &story, 0).await;
    });
}

#[test]
fn a_log_that_nobody_writes_to_follows_too() {
    sim::explore(0..12, async |world, _| {
        let counts = &[3, 1, 1];
        let fakes = Fakes::machines(&world, counts, FRAGMENT);
        let story = begin(&world, &fakes, 3).await;
        world.sleep(Duration::from_secs(1)).await;
        let acknowledged = story.lock().unwrap().records.last().unwrap().0;
        (1..counts.len()).for_each(|machine| fakes.join(counts, machine));
        world.sleep(Duration::from_secs(2)).await;
        world.crash(WRITER, Stop::Kill);
        world.crash(Fakes::node(0), Stop::Kill);
        // What was in the open stripe lies in the new groups; what was complete before is the cleaner's.
        let records = story.lock().unwrap().records.clone();
        let first = records.iter().position(|(appended, _)| appended.body.stripe == acknowledged.body.stripe).unwrap();
        read_back(&world, &fakes, &story, first).await;
    });
}

/// Nothing of it lies on the first machine; whoever seals it must not wait for that.
#[test]
fn a_log_to_which_nothing_was_ever_written_is_sealed_without_the_first_machine() {
    sim::explore(0..12, async |world, _| {
        let counts = &[3, 1, 1];
        let fakes = Fakes::machines(&world, counts, FRAGMENT);
        let story = begin(&world, &fakes, 0).await;
        world.sleep(Duration::from_secs(1)).await;
        (1..counts.len()).for_each(|machine| fakes.join(counts, machine));
        world.sleep(Duration::from_secs(2)).await;
        world.crash(WRITER, Stop::Kill);
        world.crash(Fakes::node(0), Stop::Kill);
        let cluster = fakes.cluster(&world.add_node(OTHER)).await;
        let log = story.lock().unwrap().log.expect("it was opened");
        recovery::seal(&cluster, log).await.expect("all targets of its present groups live");
    });
}

#[test]
fn a_power_loss_at_any_moment_of_the_change_loses_nothing() {
    sim::explore(0..200, async |world, _| {
        let counts = &[3, 1, 2];
        let mut dice = world.dice();
        let fakes = Fakes::machines(&world, counts, FRAGMENT);
        let story = begin(&world, &fakes, 300).await;
        world.sleep(Duration::from_millis(dice.below(60))).await;
        for machine in 1..counts.len() {
            fakes.join(counts, machine);
            world.sleep(Duration::from_millis(dice.below(40))).await;
        }
        let magnitude = dice.within(6..17);
        world.sleep(Duration::from_micros(dice.below(1 << magnitude))).await;
        world.crash(WRITER, Stop::PowerLoss);
        fakes.stores.iter().for_each(|store| store.lock().unwrap().lose_power(&mut dice));
        read_back(&world, &fakes, &story, 0).await;
    });
}

/// The groups of the log's newest run, if they are just the current ones.
fn is_in_current_groups(fakes: &Fakes, story: &Shared) -> bool {
    let maps = fakes.maps.lock().unwrap().clone();
    let log = story.lock().unwrap().log.expect("it was opened");
    let run = maps.logs[&log].layout.last().expect("it has runs");
    let targets = |id: &GroupId| (maps.groups[id].targets.clone(), maps.groups[id].geometry.data);
    let current = maps.groups.iter().filter(|(_, group)| group.current).map(|(id, _)| targets(id));
    run.groups.iter().map(targets).collect::<BTreeSet<_>>() == current.collect()
}

/// The registry forms no groups anew, for it never saw the machine gone.
#[test]
fn a_machine_that_is_back_within_its_lease_is_written_to_again() {
    for counts in [&[1, 1][..], &[1, 1, 1], &[2, 2, 2, 2]] {
        sim::explore(0..12, async |world, _| {
            let fakes = Fakes::machines(&world, counts, FRAGMENT);
            (1..counts.len()).for_each(|machine| fakes.join(counts, machine));
            let story = begin_slowly(&world, &fakes, (300, Duration::from_millis(40))).await;
            world.sleep(Duration::from_millis(20 + world.dice().below(100))).await;
            world.crash(Fakes::node(1), Stop::Kill);
            world.sleep(Duration::from_millis(500 + world.dice().below(1000))).await;
            assert!(!is_in_current_groups(&fakes, &story), "it goes on without that machine");
            fakes.restart_machine(counts, 1);
            world.sleep(Duration::from_millis(3500)).await;
            assert!(is_in_current_groups(&fakes, &story), "and then with it");
            assert_eq!(story.lock().unwrap().runs_added, 2);
            let first = story.lock().unwrap().records.len();
            world.sleep(Duration::from_secs(1)).await;
            world.crash(WRITER, Stop::Kill);
            world.crash(Fakes::node(0), Stop::Kill);
            read_back(&world, &fakes, &story, first).await;
        });
    }
}

/// Nobody writes, who would have stripes laid anew. A log that names a target keeps it from being removed.
#[test]
fn a_log_to_which_nothing_is_written_leaves_a_target_that_fails() {
    for counts in [&[1, 1][..], &[1, 1, 1], &[2, 2, 2]] {
        sim::explore(0..6, async |world, _| {
            let fakes = Fakes::machines(&world, counts, FRAGMENT);
            (1..counts.len()).for_each(|machine| fakes.join(counts, machine));
            world.crash(Fakes::node(1), Stop::Kill);
            let story = begin(&world, &fakes, 0).await;
            world.sleep(Duration::from_secs(20)).await;
            assert!(!is_written_over(&fakes, &story, counts, 1));
        });
    }
}

/// Once a target failed the log goes on elsewhere, and then little is written: the stripe that was open may be so for long.
#[test]
fn a_log_to_which_little_is_written_leaves_a_target_that_fails() {
    for counts in [&[1, 1][..], &[1, 1, 1], &[2, 2, 2]] {
        sim::explore(0..12, async |world, _| {
            let fakes = Fakes::machines(&world, counts, FRAGMENT);
            (1..counts.len()).for_each(|machine| fakes.join(counts, machine));
            let story = begin_slowly(&world, &fakes, (5, Duration::from_millis(400))).await;
            world.sleep(Duration::from_millis(20)).await;
            world.crash(Fakes::node(1), Stop::Kill);
            world.sleep(Duration::from_secs(20)).await;
            assert!(story.lock().unwrap().runs_added >= 1, "it was written to after the target failed");
            assert!(!is_written_over(&fakes, &story, counts, 1));
        });
    }
}

/// Whether the log may still come to lie on targets of a machine.
fn is_written_over(fakes: &Fakes, story: &Shared, counts: &[u32], machine: usize) -> bool {
    let maps = fakes.maps.lock().unwrap().clone();
    let log = story.lock().unwrap().log.expect("it was opened");
    let open = maps.logs[&log].layout.iter().filter(|run| run.end.is_none());
    let mut targets = open.flat_map(|run| &run.groups).flat_map(|id| &maps.groups[id].targets).peekable();
    assert!(targets.peek().is_some(), "an open log is written somewhere");
    let lost = fakes.targets_of(counts, machine);
    targets.any(|target| lost.contains(&(target.0 as usize)))
}

/// It answers, so that it looks as if it were back. Every turn of the log is a run in its layout.
#[test]
fn a_target_that_takes_nothing_is_gone_back_to_ever_more_rarely() {
    sim::explore(0..3, async |world, _| {
        let counts = &[1, 1];
        let fakes = Fakes::machines(&world, counts, FRAGMENT);
        fakes.join(counts, 1);
        let story = begin_slowly(&world, &fakes, (usize::MAX, Duration::from_secs(2))).await;
        world.sleep(Duration::from_secs(1)).await;
        fakes.stores[1].lock().unwrap().broken = true;
        world.sleep(Duration::from_mins(20)).await;
        let turns = story.lock().unwrap().runs_added;
        assert!((9..=20).contains(&turns), "{turns} turns in 20 minutes");
        fakes.stores[1].lock().unwrap().broken = false;
        world.sleep(Duration::from_mins(20)).await;
        assert!(is_in_current_groups(&fakes, &story));
        assert!(story.lock().unwrap().runs_added <= turns + 1);
        world.crash(WRITER, Stop::Kill);
        read_back(&world, &fakes, &story, 0).await;
    });
}

#[test]
fn a_current_group_that_does_not_answer_is_not_gone_to() {
    sim::run(7, async |world, _| {
        let counts = &[3, 1];
        let fakes = Fakes::machines(&world, counts, FRAGMENT);
        let story = begin(&world, &fakes, 100).await;
        world.sleep(Duration::from_millis(20)).await;
        world.crash(Fakes::node(1), Stop::Kill);
        fakes.join(counts, 1);
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(story.lock().unwrap().runs_added, 0);
        let written = story.lock().unwrap().records.len();
        assert!(written >= 100, "it goes on where it was: {written}");
        read_back(&world, &fakes, &story, 0).await;
    });
}

/// A registry that for a while cannot be told that runs have ended.
struct Deaf(Arc<Mutex<Arc<Maps>>>, Arc<AtomicBool>);

impl Handler for Deaf {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let (maps, is_deaf) = (self.0.clone(), self.1.load(Ordering::Relaxed));
        Box::pin(async move {
            let request: RegistryRequest = request.open().expect("a registry's request");
            if is_deaf && matches!(request, RegistryRequest::FinishRuns { .. }) {
                let unheard = RegistryError::Unavailable("it does not hear".into());
                return Envelope::new::<RegistryAnswer>(Err(unheard));
            }
            let mut maps = maps.lock().unwrap();
            let (next, reply) = registry::change::apply(&maps, request);
            *maps = next.map_or_else(|| maps.clone(), Arc::new);
            Envelope::new::<RegistryAnswer>(reply.and_then(|outcome| outcome.with(maps.clone())))
        })
    }
}

/// What an open log's past lies over can only be taken away when the registry knows that it is past. But a run that ended
/// before another was added must not end later where it began: what lies in it would be gone.
#[test]
fn runs_end_though_the_registry_hears_of_it_late_and_where_they_ended() {
    sim::explore(0..12, async |world, _| {
        let counts = [1, 1, 1, 1];
        let fakes = Fakes::machines(&world, &counts, FRAGMENT);
        let is_deaf = Arc::new(AtomicBool::new(true));
        let deaf = Deaf(fakes.maps.clone(), is_deaf.clone());
        world.crash(REGISTRY_NODE, Stop::Kill);
        world.restart(REGISTRY_NODE).listen(Port(REGISTRY_PORT), Arc::new(deaf));
        let story = begin(&world, &fakes, 100).await;
        for machine in 1..4 {
            world.sleep(Duration::from_millis(50 + world.dice().below(100))).await;
            fakes.join(&counts, machine);
        }
        world.sleep(Duration::from_millis(world.dice().below(300))).await;
        is_deaf.store(false, Ordering::Relaxed);
        world.sleep(Duration::from_secs(3)).await;
        let log = story.lock().unwrap().log.expect("it was opened");
        let layout = fakes.maps.lock().unwrap().logs[&log].layout.clone();
        let (last, past) = layout.split_last().expect("it has runs");
        assert!(layout.len() == 4 && past.iter().all(|run| run.end.is_some()) && last.end.is_none(), "{layout:?}");
        world.crash(WRITER, Stop::Kill);
        read_back(&world, &fakes, &story, 0).await;
    });
}

/// Once all of the older run's stripes are whole in the newer one, nobody reads what is left of them there.
#[test]
fn what_a_stripe_that_was_laid_anew_left_behind_goes() {
    sim::explore(0..12, async |world, _| {
        let counts = [1, 1, 1];
        let fakes = Fakes::machines(&world, &counts, FRAGMENT);
        (1..counts.len()).for_each(|machine| fakes.join(&counts, machine));
        let story = begin_slowly(&world, &fakes, (60, Duration::from_millis(20))).await;
        world.sleep(Duration::from_millis(100 + world.dice().below(300))).await;
        world.crash(Fakes::node(1), Stop::Kill);
        world.sleep(Duration::from_secs(3)).await;
        assert!(story.lock().unwrap().runs_added >= 1);
        let log = story.lock().unwrap().log.expect("it was opened");
        fakes.restart_machine(&counts, 1);
        // It was away, so that somebody looks whether it is whole.
        fakes.change(RegistryRequest::SetTarget(TargetId(1), TargetState::Failed));
        fakes.change(RegistryRequest::SetTarget(TargetId(1), TargetState::Behind));
        let cluster = fakes.cluster(&world.host(Fakes::node(0))).await;
        let rebuilder = Rebuilder::start(cluster, RebuildOptions::default());
        world.sleep(Duration::from_secs(20)).await;
        rebuilder.stop();
        let maps = fakes.maps.lock().unwrap().clone();
        let layout = &maps.logs[&log].layout;
        assert!(layout.len() > 1 && layout[..layout.len() - 1].iter().all(|run| run.end.is_some()), "{layout:?}");
        let stores = || fakes.stores.iter().map(|store| store.lock().unwrap());
        let newest = stores().filter_map(|store| store.fragments.keys().map(|id| id.stripe).max()).max();
        for store in stores() {
            // The newest may be open still, and its writer's.
            let is_left = |id: &&FragmentId| {
                Some(id.stripe) < newest && !layout.iter().any(|run| run.number == id.run && run.covers(id.stripe))
            };
            let left = store.fragments.keys().find(is_left);
            assert_eq!(left, None, "{layout:?}");
        }
        read_back(&world, &fakes, &story, 0).await;
    });
}
