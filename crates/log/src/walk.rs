//! A walk over what is stored, stripe by stripe, in order: however much that is, it takes little memory. This file awaits;
//! `listing` decides.
//!
//! A walk is no snapshot: targets are asked one page after another while others write, delete and rebuild, and of a stripe
//! that changes meanwhile one target may have told before and another after. All are asked for the same stripes at about
//! the same time; for that to be so whoever walks does not tarry. Who takes long over each stripe makes a [`crate::Tour`].
//! What is missing may have been written meanwhile, or is just being deleted: who mends asks again, and who concludes from
//! what is there tells the registry by which maps.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use protocol::id::{LogId, StripeNumber, TargetId};
use protocol::maps::Maps;
use protocol::storage::{StorageReply, StorageRequest};

use crate::Cluster;
use crate::listing::{Answer, Listing, Next, PAGE_SIZE, Place, Question};
use crate::stripes::StripeState;

/// A walk over stripes, each in the newest run that holds anything of it.
pub struct Walk<'a> {
    cluster: &'a Cluster,
    listing: Listing<'a>,
}

impl<'a> Walk<'a> {
    /// Over all stripes, as of these maps.
    pub fn over_all(cluster: &'a Cluster, maps: &'a Maps) -> Walk<'a> {
        Walk { cluster, listing: Listing::new(maps, None, None) }
    }

    /// Over those of one log.
    pub fn over(cluster: &'a Cluster, maps: &'a Maps, log: LogId) -> Walk<'a> {
        let before = log.0.checked_sub(1).map(|before| (LogId(before), StripeNumber(u64::MAX)));
        Walk { cluster, listing: Listing::new(maps, before, Some(log)) }
    }

    /// Over those behind a stripe, in its log and those that follow.
    pub(crate) fn behind(cluster: &'a Cluster, maps: &'a Maps, place: Option<Place>) -> Walk<'a> {
        Walk { cluster, listing: Listing::new(maps, place, None) }
    }

    /// The next stripe.
    pub async fn next(&mut self) -> Option<StripeState> {
        self.step().await.ok()
    }

    /// Hands all stripes to `each`. Returns, at the end, which targets did not tell all they have: whoever concludes from what
    /// is not there needs to know.
    pub async fn to_end(mut self, mut each: impl FnMut(StripeState)) -> BTreeSet<TargetId> {
        loop {
            match self.step().await {
                Ok(state) => each(state),
                Err(silent) => return silent,
            }
        }
    }

    async fn step(&mut self) -> Result<StripeState, BTreeSet<TargetId>> {
        loop {
            match self.listing.next() {
                Next::Stripe(state) => return Ok(state),
                Next::Ask(questions) => {
                    let answers = join_all(questions.iter().map(|&question| told(self.cluster, question))).await;
                    self.listing.take(questions.into_iter().map(|(target, _)| target).zip(answers));
                }
                Next::End(silent) => return Err(silent),
            }
        }
    }
}

async fn told(cluster: &Cluster, (target, after): Question) -> Answer {
    match cluster.ask(target, StorageRequest::List { after, limit: PAGE_SIZE as u32 }).await {
        Ok(StorageReply::Fragments(page)) => Some(page),
        _ => None,
    }
}
