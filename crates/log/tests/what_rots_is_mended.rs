//! The danger: bits rot where nobody reads, one disk after the other, until parity no longer makes up for them.

use std::time::Duration;

use host::sim::{Verdict, World, run};
use log::{
    Cluster, LogReader, ScrubOptions, ScrubStatus, Scrubber,
    stripes::{self, StripeState},
};
use protocol::fragment::FragmentId;
use protocol::id::{FenceEpoch, TargetId};
use protocol::registry::RegistryRequest;
use protocol::settings::Setting;
use protocol::storage::{StorageRequest, ToTarget};

use crate::support::{Fakes, a_closed_log, a_sealed_log};

const PASS: Duration = Duration::from_secs(3600);

/// How late what is to be discarded is heard of, where that is late.
const LATE: Duration = Duration::from_secs(40);

/// Flips a bit in each fragment of a target, and returns how many.
fn rot(fakes: &Fakes, target: usize) -> u64 {
    let mut store = fakes.stores[target].lock().unwrap();
    store.fragments.iter_mut().for_each(|(id, fragment)| fragment.bytes[id.stripe.0 as usize % 100] ^= 8);
    store.fragments.len() as u64
}

/// All that is stored: the bytes of each fragment, and the lengths of data that a parity is of.
fn stored(fakes: &Fakes) -> Vec<(FragmentId, Vec<u8>, Vec<u32>)> {
    let stores = fakes.stores.iter().map(|store| store.lock().unwrap());
    let told = stores.flat_map(|store| {
        let all = store.fragments.iter();
        all.map(|(id, it)| (*id, it.bytes.clone(), it.header.data_lengths.clone())).collect::<Vec<_>>()
    });
    told.collect()
}

/// These targets are asked in vain what they hold; what they are sent they take.
fn silence(world: &World, targets: Vec<u32>) {
    world.judge_messages(move |passing| match passing.message.peek().downcast_ref::<ToTarget>() {
        Some(ToTarget { target, request: StorageRequest::List { .. } }) if targets.contains(&target.0) => Verdict::Lose,
        _ => Verdict::Pass,
    });
}

/// Targets stand still for a while where something is to be discarded: they hear of it late.
fn delay_discards(world: &World) {
    world.judge_messages(|passing| match passing.message.peek().downcast_ref::<ToTarget>() {
        Some(ToTarget { request: StorageRequest::Discard { .. }, .. }) => Verdict::Delay(LATE),
        _ => Verdict::Pass,
    });
}

/// Repairs what can be, and leaves the rest: its turn comes again.
async fn try_to_repair(cluster: &Cluster, all: &[StripeState]) {
    for StripeState { log, number, length, .. } in all {
        let _ = stripes::repair(cluster, *log, *number, *length).await;
    }
}

/// Repairs all stripes, none of which may be beyond that, and returns how many fragments were mended.
async fn repair(cluster: &Cluster, all: &[StripeState]) -> u64 {
    let mut mended = 0;
    for StripeState { log, number, length, .. } in all {
        mended += stripes::repair(cluster, *log, *number, *length).await.expect("all can be read").mended as u64;
    }
    mended
}

/// The same by what makes lost fragments anew.
async fn refill(cluster: &Cluster, all: &[StripeState]) -> u64 {
    let mut mended = 0;
    for StripeState { log, number, length, .. } in all {
        mended += stripes::refill(cluster, *log, *number, *length).await.expect("all can be read").mended as u64;
    }
    mended
}

async fn passes(world: &World, scrubber: &Scrubber, count: u64) -> ScrubStatus {
    let wanted = scrubber.status().passes + count;
    while scrubber.status().passes < wanted {
        world.sleep(PASS / 10).await;
    }
    scrubber.status()
}

#[test]
fn every_disk_may_rot_if_there_is_a_pass_in_between() {
    run(9, async |world, host| {
        let fakes = Fakes::new(&world, 6, 1, 16 << 10);
        let (_, records) = a_closed_log(&fakes, &host).await;
        let cluster = fakes.cluster(&host).await;
        let scrubber = Scrubber::start(cluster.clone(), ScrubOptions { pass: PASS });
        let mut rotten = 0;
        for target in 0..fakes.stores.len() {
            rotten += rot(&fakes, target);
            // The pass under way may have been there already.
            let status = passes(&world, &scrubber, 2).await;
            assert_eq!((status.fragments_mended, status.fragments_lost), (rotten, 0));
        }
        assert!(rotten >= 20, "{rotten}");
        scrubber.stop();
        let reader = LogReader::new(cluster.clone());
        for (appended, bytes) in &records {
            assert_eq!(reader.read(appended.body).await.unwrap()[..], bytes[..]);
        }
        assert_eq!(reader.pieces_decoded(), 0, "nothing is wrong any more");
        for state in stripes::list(&cluster, None).await {
            assert_eq!(stripes::verify(&cluster, state.log, state.number).await, Ok(vec![]));
        }
    });
}

#[test]
fn how_long_a_pass_takes_is_set_for_all_while_one_is_under_way() {
    run(12, async |world, host| {
        let fakes = Fakes::new(&world, 6, 1, 16 << 10);
        a_closed_log(&fakes, &host).await;
        let cluster = fakes.cluster(&host).await;
        let hour = Duration::from_secs(3600);
        let scrubber = Scrubber::start(cluster.clone(), ScrubOptions::default());
        let set = async |days| {
            fakes.change(RegistryRequest::Set(vec![Setting::ScrubDays(days)], cluster.maps().epoch));
            cluster.refresh().await.expect("the registry never fails");
        };
        world.sleep(hour).await;
        assert_eq!(scrubber.status(), ScrubStatus::default(), "it is told never to");
        set(Some(300)).await;
        world.sleep(2 * hour).await;
        let ScrubStatus { stripes, stripes_done, .. } = scrubber.status();
        assert!(stripes >= 5 && stripes_done == 0, "each of {stripes} stripes waits for days, and not {stripes_done}");
        set(Some(1)).await;
        world.sleep(8 * hour).await;
        let done = scrubber.status().stripes_done;
        assert!((1..stripes).contains(&done), "{done} of {stripes} in less than half a day");
        set(None).await;
        world.sleep(hour).await;
        let ended = scrubber.status();
        world.sleep(8 * hour).await;
        assert_eq!(scrubber.status(), ended, "its own options say never");
    });
}

#[test]
fn what_is_beyond_repair_is_counted_and_left_alone() {
    run(10, async |world, host| {
        let fakes = Fakes::new(&world, 5, 1, 16 << 10);
        a_closed_log(&fakes, &host).await;
        let scrubber = Scrubber::start(fakes.cluster(&host).await, ScrubOptions { pass: PASS });
        let lost: u64 = (0..2).map(|target| rot(&fakes, target)).sum();
        let held = |target: usize| fakes.stores[target].lock().unwrap().fragments.len();
        let before: Vec<usize> = (0..5).map(held).collect();
        let status = passes(&world, &scrubber, 2).await;
        assert!(status.fragments_lost > 0 && status.fragments_lost <= lost, "{status:?} of {lost}");
        // A second flip of the same bit makes it right again.
        let again: u64 = (0..2).map(|target| rot(&fakes, target)).sum();
        assert_eq!(again, lost);
        assert_eq!(passes(&world, &scrubber, 2).await.fragments_lost, 0);
        assert_eq!((0..5).map(held).collect::<Vec<usize>>(), before);
    });
}

#[test]
fn what_is_not_heard_of_is_not_made_anew() {
    run(11, async |world, host| {
        let (fakes, cluster, log) = a_sealed_log(&world, &host).await;
        let all = stripes::list(&cluster, Some(log)).await;
        assert!(all.iter().any(|stripe| stripe.ended));
        let before = stored(&fakes);
        for (one, other) in (0..6).flat_map(|one| (0..one).map(move |other| (one, other))) {
            // One more than parity makes up for.
            silence(&world, vec![one, other]);
            try_to_repair(&cluster, &all).await;
            world.dismiss_judge();
            assert_eq!(stored(&fakes), before, "with targets {one} and {other} unheard");
        }
    });
}

/// Of a stripe with a hole the parity alone tells how long the data was, and whoever has it may be silent.
#[test]
fn what_is_not_heard_of_is_not_taken_for_lost() {
    run(16, async |world, host| {
        let (fakes, cluster, log) = a_sealed_log(&world, &host).await;
        let (whole, all) = (stored(&fakes), stripes::list(&cluster, Some(log)).await);
        for hole in 0..6 {
            fakes.stores[hole].lock().unwrap().fragments.clear();
            for silent in (0..6).filter(|&silent| silent != hole as u32) {
                silence(&world, vec![silent]);
                try_to_repair(&cluster, &all).await;
            }
            world.dismiss_judge();
            repair(&cluster, &all).await;
            assert!(stored(&fakes) == whole, "what target {hole} lost");
        }
    });
}

#[test]
fn what_is_read_in_vain_is_not_deleted() {
    run(12, async |world, host| {
        let (fakes, cluster, log) = a_sealed_log(&world, &host).await;
        let before = stored(&fakes);
        // It tells what it holds, and then no more: what it is sent by then it takes late.
        world.judge_messages(|passing| match passing.message.peek().downcast_ref::<ToTarget>() {
            Some(ToTarget { target: TargetId(0), request: StorageRequest::Read { .. } }) => Verdict::Lose,
            Some(ToTarget { request, .. }) if matches!(request, StorageRequest::Discard { .. }) => {
                panic!("{request:?}")
            }
            _ => Verdict::Pass,
        });
        for StripeState { log, number, length, .. } in stripes::list(&cluster, Some(log)).await {
            assert!(stripes::refill(&cluster, log, number, length).await.is_ok());
            assert!(stripes::repair(&cluster, log, number, length).await.is_ok());
        }
        assert_eq!(stored(&fakes), before);
    });
}

#[test]
fn what_may_be_deleted_late_is_not_written_before() {
    run(13, async |world, host| {
        let (fakes, cluster, log) = a_sealed_log(&world, &host).await;
        let whole = stored(&fakes);
        let rotten = rot(&fakes, 0);
        delay_discards(&world);
        let all = stripes::list(&cluster, Some(log)).await;
        assert_eq!(refill(&cluster, &all).await, 0);
        world.sleep(LATE).await;
        world.dismiss_judge();
        assert_eq!((refill(&cluster, &all).await, stored(&fakes)), (rotten, whole));
    });
}

#[test]
fn what_another_has_mended_meanwhile_is_not_discarded() {
    run(14, async |world, host| {
        let (fakes, cluster, log) = a_sealed_log(&world, &host).await;
        let whole = stored(&fakes);
        let rotten = rot(&fakes, 0);
        delay_discards(&world);
        let all = stripes::list(&cluster, Some(log)).await;
        assert_eq!(repair(&cluster, &all).await, 0);
        world.dismiss_judge();
        assert_eq!((repair(&cluster, &all).await, stored(&fakes)), (rotten, whole.clone()));
        // What the first one asked for arrives.
        world.sleep(LATE).await;
        assert_eq!(stored(&fakes), whole);
    });
}

#[test]
fn what_was_sealed_again_behind_a_registry_made_anew_is_mended() {
    run(15, async |world, host| {
        let (fakes, cluster, log) = a_sealed_log(&world, &host).await;
        let whole = stored(&fakes);
        let rotten = rot(&fakes, 0);
        let fence = FenceEpoch(FenceEpoch::SEALED.0 + 7);
        for store in &fakes.stores {
            store.lock().unwrap().fences.insert(log, fence);
        }
        let all = stripes::list(&cluster, Some(log)).await;
        assert_eq!((repair(&cluster, &all).await, stored(&fakes)), (rotten, whole));
    });
}
