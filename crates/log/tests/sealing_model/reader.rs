//! How anybody finds a record: in the runs that cover its stripe, directly, as a copy, or decoded.

use crate::rules::Breach;
use crate::state::{DATA, Fragments, Parity, Run, Stripe};

/// The record at an address, as far as `fragments` let one read it. All copies being equal is a property of its own.
pub(crate) fn read(
    fragments: &Fragments,
    runs: impl Iterator<Item = (usize, Run)>,
    at: (usize, usize),
    breach: Breach,
) -> u8 {
    let (stripe, index) = at;
    runs.filter(|(_, run)| run.covers(stripe))
        .map(|(number, _)| read_stripe(&fragments[number][stripe], index, breach))
        .find(|&record| record != 0)
        .unwrap_or(0)
}

fn read_stripe(stripe: &Stripe, index: usize, breach: Breach) -> u8 {
    match stripe.parity {
        _ if stripe.data[index] != 0 => stripe.data[index],
        Parity::Copies(copies) => copies[index],
        Parity::Ended(lengths) if can_decode(stripe, &lengths, index, breach) => lengths[index],
        Parity::Ended(_) => 0,
    }
}

/// Whether all other data fragments that went into the parity are there. One that is longer than the parity's header says
/// is cut; with the breach it spoils the sum.
fn can_decode(stripe: &Stripe, parity: &[u8; DATA], index: usize, breach: Breach) -> bool {
    let mut others = (0..DATA).filter(|&other| other != index);
    others.all(|other| match parity[other] {
        0 => breach != Breach::UncutDecoding || stripe.data[other] == 0,
        record => stripe.data[other] == record,
    })
}
