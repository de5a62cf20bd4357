//! Danger: who goes through all that is stored takes days, and others write and delete meanwhile. What moves under its feet
//! may be passed over, and so rot; and a way to an end that others push on never ends.

use std::collections::BTreeSet;

use host::sim::{Dice, explore};
use log::{Tour, stripes};
use protocol::id::{LogId, StripeNumber};

use crate::support::{Fakes, a_sealed_log};

/// As many logs that are like log `of`, behind all others.
fn add_logs(fakes: &Fakes, of: LogId, count: u64) {
    let mut maps = fakes.maps.lock().unwrap();
    let mut next = protocol::maps::Maps::clone(&maps);
    for _ in 0..count {
        let log = next.next_log;
        next.logs.insert(log, next.logs[&of].clone());
        next.next_log.0 += 1;
        for store in &fakes.stores {
            let mut store = store.lock().unwrap();
            let like: Vec<_> = store.fragments.values().filter(|it| it.header.id.log == of).cloned().collect();
            for mut fragment in like {
                fragment.header.id.log = log;
                store.fragments.insert(fragment.header.id, fragment);
            }
        }
    }
    next.epoch.0 += 1;
    *maps = next.into();
}

#[test]
fn each_stripe_has_one_turn_while_others_write_and_delete() {
    explore(0..10, async |world, host| {
        let (fakes, cluster, log) = a_sealed_log(&world, &host).await;
        add_logs(&fakes, log, 300);
        cluster.refresh().await.expect("the registry never fails");
        let listed = stripes::list(&cluster, None).await;
        let all: BTreeSet<_> = listed.iter().map(|state| (state.log, state.number)).collect();
        let mut dice = Dice::new(world.seed());
        let tour = Tour::begin(&cluster).await;
        assert_eq!((tour.stripes(), tour.ended()), (all.len() as u64, all.len() as u64));
        let mut tour = tour.turned(&cluster, dice.below(all.len() as u64)).await;
        let (mut seen, mut deleted) = (BTreeSet::new(), BTreeSet::<(LogId, StripeNumber)>::new());
        while let Some(state) = tour.next(&cluster).await {
            let stripe = (state.log, state.number);
            assert!(all.contains(&stripe), "{stripe:?} was written since");
            assert!(seen.insert(stripe), "{stripe:?} has a second turn");
            if dice.below(20) == 0 {
                add_logs(&fakes, log, 2);
                let gone = *all.iter().nth(dice.below(all.len() as u64) as usize).expect("it is one of them");
                // The others are made of this one.
                let gone: &[(LogId, StripeNumber)] = if gone.0 == log { &[] } else { &[gone] };
                stripes::delete(&cluster, gone).await;
                deleted.extend(gone);
                cluster.refresh().await.expect("the registry never fails");
            }
        }
        assert!(all.difference(&seen).all(|stripe| deleted.contains(stripe)), "what is there has its turn");
        assert_eq!(tour.done(), seen.len() as u64);
        assert!(all.len() > 1500 && deleted.len() > 20);
    });
}
