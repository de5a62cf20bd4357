//! Disks that hang, or are slow, and callers that give up.
//!
//! The danger: what was given up keeps its cells, or lands in them when they are another's; whoever asks a disk that answers
//! nothing waits for ever, or one that is merely busy is taken for such; a target that comes back has lost something.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join, join_all, select};
use host::Host;
use host::sim::{self, Dice, DiskFaults, DiskOptions, SimDisk, World};
use protocol::fragment::{FragmentId, Part};
use protocol::id::{FenceEpoch, LogId, StripeNumber};
use protocol::storage::{Durability, StorageAnswer, StorageError, StorageReply, StorageRequest, TargetStat};
use storage::{HANG_PATIENCE, Storage, Target, format};

use crate::model::{CLUSTER, ID, OPTIONS, append, content, fragment_id, fragments, geometry, read};

const HUNG: DiskFaults = DiskFaults { reads: false, writes: false, syncs: false, read_only: false, hung: true };
const LOG: LogId = LogId(1);
/// A disk that hangs is found to within a second.
const FOUND_WITHIN: Duration = Duration::from_millis(1_100);

async fn open(host: &Host, disk: &SimDisk) -> Arc<Target> {
    Target::open(host.clone(), disk.plug(), CLUSTER, ID, OPTIONS).await.expect("the target opens")
}

/// A new target.
async fn begin(world: &World, host: &Host) -> (SimDisk, Arc<Target>) {
    let disk = world.add_disk(host.node(), "d", DiskOptions::default());
    format(&disk.plug(), CLUSTER, ID, OPTIONS).await.expect("it is empty");
    let target = open(host, &disk).await;
    (disk, target)
}

fn grow(id: FragmentId, offset: u32, end: u32, durability: Durability) -> StorageRequest {
    StorageRequest::Append(append(id, 0, offset, end, durability))
}

fn data(stripe: u64) -> FragmentId {
    fragment_id(LOG, stripe, Part::Data(0))
}

fn delete(id: FragmentId) -> StorageRequest {
    StorageRequest::Delete { stripes: vec![(id.log, id.stripe)] }
}

/// What comes of it within a time.
async fn within<T>(world: &World, most: Duration, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(world.sleep(most))).await {
        Either::Left((outcome, _)) => Some(outcome),
        Either::Right(_) => None,
    }
}

/// Asks, and gives up after a time.
async fn ask(world: &World, most: Duration, target: &Arc<Target>, request: StorageRequest) -> Option<StorageAnswer> {
    within(world, most, target.serve(request)).await
}

/// The same, of something that is not done by then.
async fn give_up(world: &World, after: Duration, target: &Arc<Target>, request: StorageRequest) {
    let answer = ask(world, after, target, request).await;
    assert!(answer.is_none(), "{answer:?}");
}

async fn stat(target: &Arc<Target>) -> TargetStat {
    match target.serve(StorageRequest::Stat).await {
        Ok(StorageReply::Stat(stat)) => stat,
        other => panic!("{other:?}"),
    }
}

/// All that is there is right.
async fn verify(target: &Arc<Target>) {
    for found in fragments(target).await {
        let id = found.header.id;
        let bytes = read(target, id, 0, u32::MAX).await.expect("it is listed");
        assert!(bytes == content((id.log, id.stripe), id.part, 0, 0, found.length), "{id:?} of {}", found.length);
    }
    assert_eq!(target.scrub(None, usize::MAX).await.expect("it serves").0, []);
}

/// Deletes all that is there; how much room there is then.
async fn empty(target: &Arc<Target>) -> u64 {
    for found in fragments(target).await {
        target.serve(delete(found.header.id)).await.expect("it serves");
    }
    stat(target).await.bytes_free
}

#[test]
fn what_was_given_up_is_done_to_its_end_with_its_stripe_locked() {
    sim::explore(0..10, async |world, host| {
        let (disk, target) = begin(&world, &host).await;
        let free = stat(&target).await.bytes_free;
        target.serve(grow(data(0), 0, 5_000, Durability::Disk)).await.expect("there is room");
        disk.set_faults(HUNG);
        let second = Duration::from_secs(1);
        give_up(&world, second, &target, grow(data(0), 5_000, 9_000, Durability::Replicated)).await;
        for stripe in 1..4 {
            give_up(&world, second, &target, grow(data(stripe), 0, 7_000, Durability::Disk)).await;
        }
        give_up(&world, second, &target, delete(data(0))).await;
        assert_eq!(fragments(&target).await.len(), 1, "a stripe that is written is not deleted meanwhile");
        disk.heal();
        world.sleep(second).await;
        let found = fragments(&target).await;
        let found: Vec<_> = found.iter().map(|found| (found.header.id.stripe.0, found.length)).collect();
        assert_eq!(found, [(1, 7_000), (2, 7_000), (3, 7_000)], "what was begun was done, in order");
        verify(&target).await;
        assert_eq!(empty(&target).await, free);
    });
}

/// What somebody asks who gives up before long, most often: to make a fragment longer, of which another may be doing the same.
async fn give_up_something(world: &World, target: &Arc<Target>, dice: &mut Dice, most: u64) {
    let id = fragment_id(LogId(1 + dice.below(2)), dice.below(3), Part::Data(0));
    let known = fragments(target).await;
    let length = known.iter().find(|found| found.header.id == id).map_or(0, |found| found.length);
    let end = (length + 1 + dice.below(5_000) as u32).min(geometry(id.log).fragment_size);
    let durability = if dice.coin() { Durability::Disk } else { Durability::Replicated };
    let request = if dice.below(4) == 0 { delete(id) } else { grow(id, length, end, durability) };
    match ask(world, Duration::from_micros(dice.below(most)), target, request).await {
        None | Some(Ok(_) | Err(StorageError::Gap { .. })) => {}
        Some(Err(error)) => panic!("{id:?}: {error}"),
    }
}

#[test]
fn what_was_given_up_harms_nobody() {
    sim::explore(sim::seeds(150), async |world, host| {
        let (disk, mut target) = begin(&world, &host).await;
        let (free, mut dice) = (stat(&target).await.bytes_free, world.dice());
        let slowness = 1 + dice.below(50);
        disk.slow(slowness as u32);
        for _ in 0..100 {
            give_up_something(&world, &target, &mut dice, 1_000 * slowness).await;
        }
        disk.slow(1);
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(Arc::strong_count(&target), 1, "all is done");
        verify(&target).await;
        if dice.coin() {
            drop(target);
            target = open(&host, &disk).await;
        }
        verify(&target).await;
        assert_eq!(empty(&target).await, free);
    });
}

#[test]
fn a_target_that_is_closed_waits_for_what_was_given_up() {
    sim::explore(0..10, async |world, host| {
        let (disk, target) = begin(&world, &host).await;
        target.serve(grow(data(0), 0, 5_000, Durability::Disk)).await.expect("there is room");
        drop(target);
        let (storage, _) = Storage::start(host.clone(), CLUSTER, vec![(ID, disk.plug())], OPTIONS).await;
        let target = storage.target(ID).expect("it was opened");
        disk.set_faults(HUNG);
        let durability = if world.dice().coin() { Durability::Disk } else { Durability::Replicated };
        let second = Duration::from_secs(1);
        give_up(&world, second, &target, grow(data(0), 5_000, 5_100, durability)).await;
        drop(target);
        let mut closing = pin!(storage.close(ID));
        assert_eq!(within(&world, 3 * second, closing.as_mut()).await, None, "the disk is still to write");
        disk.heal();
        assert_eq!(within(&world, second, closing).await, Some(()));
    });
}

/// Anything that needs the disk, and was not done in an earlier round.
fn any_request(dice: &mut Dice, round: u32) -> StorageRequest {
    let new = data(u64::from(10 * round) + dice.below(5));
    match dice.below(5) {
        0 => grow(data(0), 5_000, 5_100 + 1_000 * round, Durability::Disk),
        1 => grow(new, 0, 1 + dice.below(9_000) as u32, Durability::Replicated),
        2 => StorageRequest::Read { id: data(0), offset: 0, length: 5_000 },
        3 => StorageRequest::Fence { log: LogId(9), epoch: FenceEpoch(4) },
        _ => StorageRequest::Sync,
    }
}

fn is_refused(answer: &StorageAnswer) -> bool {
    matches!(answer, Err(StorageError::Failed(why)) if why.contains("has not answered for 15 s"))
}

/// The disk hangs while something is asked of it: who waits is refused in time and not before, and who comes then at once.
async fn hang(world: &World, (disk, target): (&SimDisk, &Arc<Target>), dice: &mut Dice, round: u32) {
    disk.set_faults(HUNG);
    let began = world.now();
    // The first one is given up, by which its disk answers nothing sooner.
    give_up(world, Duration::from_secs(5), target, any_request(dice, round)).await;
    assert_eq!(target.failure(), None);
    let answer = target.serve(any_request(dice, round)).await;
    let waited = world.now().since(began);
    assert!(is_refused(&answer), "{answer:?}");
    assert!((HANG_PATIENCE..HANG_PATIENCE + FOUND_WITHIN).contains(&waited), "{waited:?}");
    for _ in 0..3 {
        world.sleep(Duration::from_millis(dice.below(30_000))).await;
        assert!(target.failure().is_some());
        let soon = Duration::from_millis(1);
        // The others need no disk.
        let tail = StorageRequest::Tail { log: LOG, from: StripeNumber(0) };
        for request in [any_request(dice, round), StorageRequest::Stat, tail] {
            let answer = ask(world, soon, target, request).await;
            assert!(answer.as_ref().is_some_and(is_refused), "{answer:?}");
        }
    }
}

#[test]
fn a_disk_that_hangs_is_waited_for_once_and_serves_again_when_it_answers() {
    sim::explore(sim::seeds(50), async |world, host| {
        let (disk, target) = begin(&world, &host).await;
        let mut dice = world.dice();
        target.serve(grow(data(0), 0, 5_000, Durability::Disk)).await.expect("there is room");
        target.serve(grow(data(3), 0, 5_000, Durability::Replicated)).await.expect("there is room");
        for round in 1..3 {
            hang(&world, (&disk, &target), &mut dice, round).await;
            disk.heal();
            world.sleep(Duration::from_millis(100)).await;
            assert_eq!(target.failure(), None, "it answers again");
            verify(&target).await;
            for stripe in [0, 3] {
                assert_eq!(read(&target, data(stripe), 0, 5_000).await.expect("it was acknowledged").len(), 5_000);
            }
            target.serve(StorageRequest::Sync).await.expect("it serves");
            target.serve(grow(data(0), 0, 5_900 + 1_000 * round, Durability::Disk)).await.expect("it serves");
        }
    });
}

#[test]
fn a_disk_that_is_busy_is_waited_for() {
    sim::explore(0..5, async |world, host| {
        let (disk, target) = begin(&world, &host).await;
        // An operation takes up to twelve seconds, and these go through one stripe, one after the other.
        disk.slow(1500);
        let began = world.now();
        let appends = (0..600).map(|number| {
            let durability = if number % 2 == 0 { Durability::Disk } else { Durability::Replicated };
            target.serve(grow(data(0), 20 * number, 20 * (number + 1), durability))
        });
        let reads = (0..20).map(|number| {
            let (world, target) = (world.clone(), target.clone());
            async move {
                world.sleep(Duration::from_secs(10 + number)).await;
                target.serve(StorageRequest::Read { id: data(0), offset: 0, length: 1 }).await
            }
        });
        let (appended, read) = join(join_all(appends), join_all(reads)).await;
        for answer in appended.into_iter().chain(read) {
            assert!(answer.is_ok(), "{answer:?}");
        }
        let took = world.now().since(began);
        assert!(took > 2 * HANG_PATIENCE, "{took:?}");
    });
}
