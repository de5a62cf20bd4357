//! Promotion: a machine whose registry lost its quorum founds the next reign with what its replica tells. `reign` says what
//! that makes of the maps; this file asks whether it may be, and does it.
//!
//! 1. Every other machine that stores answers, or is off: whoever promotes names those. None that votes, as far as this one
//!    knows, answers. A replica may not know who votes by now; but any quorum that runs has a machine with that entry in its
//!    log, and that one is newer than this.
//! 2. Nobody who answers has a newer replica, or is of a newer reign: that one is the one to promote, or to follow.
//! 3. It is done, or it is not: one checkpoint says so, as of a machine that founds a cluster. Doing it twice is two reigns.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use host::{Disk, Host};
use protocol::id::TargetId;
use protocol::maps::{Maps, NodeState};

use crate::consensus::Agreed;
use crate::network::{Said, Talk, ask};
use crate::standing::Age;
use crate::store::{Kept, Store, first};
use crate::{RegistryStart, Standing, reign};

/// How long another machine may take to answer who is asked how it stands.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a machine is not promoted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromotionError {
    /// It has its quorum by itself.
    #[error("this machine alone votes: its registry needs no other. Start it with `dazzle up`")]
    Alone,
    /// Others store, do not answer, and nobody said that they are off.
    #[error(
        "these machines do not answer, and must be off before this one goes on without them: {}. Make sure that they are, \
         and name each: {}",
        called(.maps, .unnamed),
        .unnamed.iter().map(|node| format!("--off {}", name(.maps, *node))).collect::<Vec<_>>().join(" ")
    )]
    Unnamed {
        /// Those that were not named.
        unnamed: BTreeSet<u32>,
        /// Their names.
        maps: Arc<Maps>,
    },
    /// One that votes, or is said to be off, answers.
    #[error(
        "{} answers: it is not off. Look why the machines that vote do not agree (`dazzle status` there), or switch it off",
        called(.maps, &[*.node].into())
    )]
    Answers {
        /// That one.
        node: u32,
        /// Its name.
        maps: Arc<Maps>,
    },
    /// One answers, and so has a sound replica.
    #[error(
        "{} answers, so its copy of the registry is sound: promote that one with `dazzle registry promote` there. This one \
         comes back as a new, empty one: remove it there with `dazzle node remove`, and `dazzle join` with another directory",
        called(.maps, &[*.node].into())
    )]
    Sounder {
        /// That one.
        node: u32,
        /// Its name.
        maps: Arc<Maps>,
    },
    /// Another one knows more.
    #[error(
        "{} knows of later changes than this machine: promote that one, and this one follows it",
        called(.maps, &[*.node].into())
    )]
    Newer {
        /// That one.
        node: u32,
        /// Its name.
        maps: Arc<Maps>,
    },
}

/// People call them by name and number.
pub(crate) fn called(maps: &Maps, nodes: &BTreeSet<u32>) -> String {
    nodes.iter().map(|&node| format!("{} (node {node})", name(maps, node))).collect::<Vec<_>>().join(", ")
}

fn name(maps: &Maps, node: u32) -> String {
    let name = maps.nodes.get(&node).map(|entry| entry.name.clone()).filter(|name| !name.is_empty());
    name.unwrap_or_else(|| node.to_string())
}

/// What another machine said about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which machine.
    pub node: u32,
    /// How new its replica is; nothing where it said something else, or has none.
    pub age: Option<Age>,
}

/// Whether `node` may found the next reign, when `off` are said to be off, and these have answered.
pub fn judge(
    (node, standing): (u32, &Standing),
    off: &BTreeSet<u32>,
    answers: &[Answer],
) -> Result<(), PromotionError> {
    let maps = standing.maps().clone();
    if standing.voters().iter().eq([&node]) {
        return Err(PromotionError::Alone);
    }
    let counts = |other: &u32| standing.voters().contains(other) || off.contains(other);
    if let Some(Answer { node, .. }) = answers.iter().find(|answer| counts(&answer.node)) {
        return Err(PromotionError::Answers { node: *node, maps });
    }
    if let Some(newer) = answers.iter().find(|answer| answer.age.is_some_and(|age| age > standing.age())) {
        return Err(PromotionError::Newer { node: newer.node, maps });
    }
    let answers: BTreeSet<u32> = answers.iter().map(|answer| answer.node).collect();
    let silent = others(node, standing).filter(|other| !answers.contains(other));
    let unnamed: BTreeSet<u32> = silent.filter(|other| !off.contains(other)).collect();
    if !unnamed.is_empty() {
        return Err(PromotionError::Unnamed { unnamed, maps });
    }
    Ok(())
}

/// Whether `node` may found the next reign on maps that were rebuilt, when `off` are said to be off, and these answer.
pub fn judge_rebuilt(
    (node, maps): (u32, &Arc<Maps>),
    off: &BTreeSet<u32>,
    answering: &BTreeSet<u32>,
) -> Result<(), PromotionError> {
    let others: BTreeSet<u32> = stored(maps).filter(|&other| other != node).collect();
    if let Some(&node) = others.intersection(answering).next() {
        return Err(PromotionError::Sounder { node, maps: maps.clone() });
    }
    let unnamed: BTreeSet<u32> = others.difference(off).copied().collect();
    if !unnamed.is_empty() {
        return Err(PromotionError::Unnamed { unnamed, maps: maps.clone() });
    }
    Ok(())
}

/// The machines that ever had a replica, as far as maps know.
fn stored(maps: &Maps) -> impl Iterator<Item = u32> {
    maps.nodes.iter().filter(|(_, entry)| entry.stores && entry.session > 0).map(|(&node, _)| node)
}

/// All other machines that ever had a replica, or vote.
fn others(own: u32, standing: &Standing) -> impl Iterator<Item = u32> {
    let all: BTreeSet<u32> = stored(standing.maps()).chain(standing.voters().iter().copied()).collect();
    all.into_iter().filter(move |&node| node != own)
}

/// Asks all other machines that store how they stand: those that answer.
pub async fn ask_others(host: &Host, standing: &Standing) -> Vec<Answer> {
    let reign = standing.maps().reign;
    let asked = others(host.node().0, standing).map(|node| async move {
        let answer = pin!(ask(host, node, reign, &Talk::Stand));
        match select(answer, pin!(host.sleep(PATIENCE))).await {
            Either::Left((Ok(Said::Stands(age)), _)) => Some(Answer { node, age }),
            Either::Left((Ok(Said::Outdated(reign)), _)) => Some(Answer { node, age: Some(Age { reign, last: None }) }),
            Either::Left((Ok(_), _)) => Some(Answer { node, age: None }),
            Either::Left((Err(_), _)) | Either::Right(_) => None,
        }
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// Founds the next reign on the targets of `node`, with what they hold. Whether it may be was judged before.
pub async fn promote(node: u32, disks: &[(TargetId, Disk)]) -> Result<Arc<Maps>, RegistryStart> {
    let standing = Standing::read(disks).await?;
    let maps = Arc::new(reign::begin(standing.maps(), node, standing.age().last));
    assert_eq!(maps.verify(), Ok(()), "nothing is stored that a start would refuse");
    assert_eq!(maps.nodes[&node].state, NodeState::Alive, "the founder goes on");
    let agreed = Arc::new(Agreed { maps: maps.clone(), answered: standing.agreed.answered });
    let kept = Kept { copies: standing.copies, ..first(maps.parity, Some((node, agreed))) };
    let founded = Store::create(kept, disks).await;
    founded.map(|_| maps).map_err(|error| RegistryStart::Unwritten(error.to_string()))
}
