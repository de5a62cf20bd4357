//! LFS 3.5 and 3.6 in small: a tenth of the blocks takes nine writes of ten. The emptiest-first choice lets cold
//! stripes linger just above the point where they would be cleaned, each tying up dead room for long; cost-benefit
//! cleans them earlier, while hot ones may empty by themselves. It must pay: fewer copies for the same writes.

use std::collections::BTreeMap;
use std::time::Duration;

use cleaner::policy::{Candidate, Order, batch, rank};
use host::sim::Dice;
use protocol::id::{LogId, StripeNumber};

const STRIPES: usize = 200;
const BLOCKS: u64 = 64;
const CLIENT: LogId = LogId(1);
const CLEANER: LogId = LogId(2);

type Stripe = (LogId, StripeNumber);

/// A disk of stripes, one writer, one cleaner.
struct Model {
    place: Vec<Stripe>,
    live: BTreeMap<Stripe, u64>,
    /// When the youngest block of a stripe was written, in writes.
    born: BTreeMap<Stripe, u64>,
    open: [(Stripe, u64); 2],
    writes: u64,
    copies: u64,
}

impl Model {
    fn new(blocks: usize) -> Model {
        let open = [((CLIENT, StripeNumber(0)), 0), ((CLEANER, StripeNumber(0)), 0)];
        let place = vec![(LogId(0), StripeNumber(0)); blocks];
        Model { place, live: BTreeMap::new(), born: BTreeMap::new(), open, writes: 0, copies: 0 }
    }

    fn put(&mut self, block: usize, log: usize, born: u64) {
        let (mut stripe, taken) = self.open[log];
        if taken == BLOCKS {
            stripe.1.0 += 1;
        }
        self.open[log] = (stripe, taken % BLOCKS + 1);
        let old = std::mem::replace(&mut self.place[block], stripe);
        if let Some(live) = self.live.get_mut(&old) {
            *live -= 1;
        }
        *self.live.entry(stripe).or_default() += 1;
        let youngest = self.born.entry(stripe).or_default();
        *youngest = born.max(*youngest);
    }

    fn write(&mut self, block: usize, order: Order) {
        self.writes += 1;
        self.put(block, 0, self.writes);
        self.live.retain(|stripe, live| *live > 0 || self.open.iter().any(|(open, _)| open == stripe));
        if self.live.len() >= STRIPES - 4 {
            while self.live.len() > STRIPES - 10 {
                self.clean(order);
            }
        }
    }

    fn clean(&mut self, order: Order) {
        let closed = self.live.iter().filter(|(stripe, _)| self.open.iter().all(|(open, _)| open != *stripe));
        let candidates = closed.map(|(&stripe, &live)| Candidate {
            stripe,
            bytes_live: live,
            bytes_occupied: BLOCKS,
            age: Duration::from_secs(self.writes - self.born[&stripe]),
        });
        let ranked = rank(candidates.collect(), order);
        let count = batch(&ranked, 4 * BLOCKS);
        assert!(count > 0, "nothing is worth cleaning");
        let mut victims: Vec<Stripe> = ranked[..count].iter().map(|candidate| candidate.stripe).collect();
        // Oldest first, so that what is alike in age ends up together (LFS 3.6).
        victims.sort_by_key(|stripe| self.born[stripe]);
        for victim in victims {
            let born = self.born[&victim];
            for block in 0..self.place.len() {
                if self.place[block] == victim {
                    self.put(block, 1, born);
                    self.copies += 1;
                }
            }
            self.live.remove(&victim);
        }
    }

    /// Blocks written for each block that a program wrote.
    fn amplification(order: Order, utilization: f64) -> f64 {
        let blocks = (STRIPES as f64 * BLOCKS as f64 * utilization) as usize;
        let mut model = Model::new(blocks);
        let mut dice = Dice::new(7);
        (0..blocks).for_each(|block| model.write(block, order));
        let mut write = |model: &mut Model, count| {
            for _ in 0..count {
                let hot = dice.below(10) < 9;
                let tenth = blocks as u64 / 10;
                let block = if hot { dice.below(tenth) } else { tenth + dice.below(blocks as u64 - tenth) };
                model.write(block as usize, order);
            }
        };
        write(&mut model, 8 * blocks);
        model.copies = 0;
        let before = model.writes;
        write(&mut model, 8 * blocks);
        1.0 + model.copies as f64 / (model.writes - before) as f64
    }
}

#[test]
fn cost_benefit_copies_less_than_emptiest_first() {
    for utilization in [0.6, 0.75, 0.85] {
        let [profit, emptiest] = [Order::Profit, Order::Emptiest].map(|order| Model::amplification(order, utilization));
        println!("{utilization} alive: cost-benefit {profit:.2}, emptiest first {emptiest:.2}");
        assert!(profit < emptiest, "cost-benefit {profit:.2}, emptiest first {emptiest:.2} at {utilization}");
    }
}
