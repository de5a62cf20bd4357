//! `check` and `repair`, of the whole cluster, by whichever machine is asked: the records of all managers against each other,
//! the records against the stripes, the stripes against their checksums and their parity.
//!
//! Invariants
//! 1. The records are compared as of one moment (`docs/decisions/0019-a-check-sees-one-moment.md`).
//! 2. Stripes are looked at behind that moment, while others write, delete and rebuild: what is odd about one is a problem if
//!    it is so in every look, and the stripe is in use in the last one.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::iter::Peekable;
use std::time::Duration;

use cleaner::{Goal, Managers};
use futures_util::future::join_all;
use host::{Address, NodeId, Port};
use log::stripes::{self, Problem, StripeState};
use log::{Damage, Look, ReadError, Tour, Walk};
use protocol::id::{LogId, StripeNumber, TargetId};
use protocol::maps::{Maps, NodeState, TargetEntry, TargetState};
use protocol::token::{CLIENT_PORT, ClientAnswer, ClientRequest};

use crate::roles::Roles;

/// How often a stripe is looked at that is odd, and the pause between: a machine that died meanwhile is found dead by then.
const LOOKS: u32 = 4;
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// How often a client is asked to store what it has, and the pause between: one that died is found dead by then.
const SETTLE_TRIES: u32 = 5;
const SETTLE_PAUSE: Duration = Duration::from_secs(2);

/// Told how far it is: what is looked at, how much of it was, and how much there is.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Send + Sync);

/// What a check found.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Files and directories that were looked at.
    pub inodes: u64,
    /// Pieces of their content.
    pub extents: u64,
    /// Stripes.
    pub stripes: u64,
    /// All that is wrong, in words.
    pub problems: Vec<String>,
}

/// What a repair did.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Stripes that were looked at.
    pub stripes: u64,
    /// Those of which fragments were made again.
    pub repaired: u64,
    /// Those of which that was not possible.
    pub failed: u64,
    /// Fragments that targets lack now, in words.
    pub lacking: Vec<String>,
    /// Targets that do not serve.
    pub missing: Vec<String>,
    /// Targets that missed writes.
    pub behind: Vec<String>,
}

type Stripe = (LogId, StripeNumber);
/// What is odd about stripes, in words: about each as a whole, or about a fragment of it.
type Odd = BTreeMap<(Stripe, Option<Damage>), String>;

/// What is wrong with the bytes of stripes, in words.
type Wrong = BTreeMap<Stripe, BTreeSet<String>>;

/// Checks everything. With `thorough`, every byte of every fragment is read.
pub async fn check(roles: &Roles, thorough: bool, progress: Progress<'_>) -> Result<Checked, String> {
    settle_all(roles).await?;
    progress("names and maps", 0, 1);
    let audit = roles.manager.audit().await.map_err(|error| format!("the slots cannot be read: {error}"))?;
    let mut problems = audit.problems;
    let (mut stripes, odd) = look_at_stripes(roles, audit.live).await?;
    problems.extend(odd.into_values());
    let maps = roles.cluster.maps();
    problems.extend(maps.targets.iter().filter_map(|(id, entry)| not_whole(&maps.called(*id), entry.state)));
    problems.extend(newcomers(&maps));
    if thorough {
        let (mut tour, mut wrong) = (Tour::begin(&roles.cluster).await, Wrong::new());
        stripes = tour.stripes();
        while let Some(StripeState { log, number, .. }) = tour.next(&roles.cluster).await {
            wrong.extend(verify(roles, (log, number)).await.map(|found| ((log, number), found)));
            progress("stripes", tour.done(), tour.ended());
        }
        problems.extend(still_wrong(roles, wrong).await.into_values().flatten());
    }
    Ok(Checked { inodes: audit.inodes, extents: audit.extents, stripes, problems })
}

/// Every living client stores what it has in memory, and managers know of it.
async fn settle_all(roles: &Roles) -> Result<(), String> {
    let failed = |error| format!("what is in memory cannot be stored: {error}");
    roles.client.settle().await.map_err(|error| failed(error.to_string()))?;
    let (own, maps) = (roles.cluster.host().node().0, roles.cluster.maps());
    let others = maps.nodes.keys().filter(|&&node| node != own && is_alive(&maps, node));
    let settled = join_all(others.map(|&node| settle(roles, node))).await;
    settled.into_iter().collect::<Result<(), String>>().map_err(failed)
}

async fn settle(roles: &Roles, node: u32) -> Result<(), String> {
    let (host, to) = (roles.cluster.host(), Address { node: NodeId(node), port: Port(CLIENT_PORT) });
    let mut why = String::new();
    for _ in 0..SETTLE_TRIES {
        match host.call::<ClientRequest, ClientAnswer>(to, ClientRequest::Settle).await {
            Ok(ClientAnswer::Done) => return Ok(()),
            Ok(ClientAnswer::Failed(error)) => why = error,
            Ok(other) => why = format!("it answers with {other:?}"),
            Err(unreachable) => why = unreachable.to_string(),
        }
        host.sleep(SETTLE_PAUSE).await;
        let maps = roles.cluster.refresh().await.map_err(|error| error.to_string())?;
        // What a dead machine had in its memory is gone; what it had acknowledged is in its log.
        if !is_alive(&maps, node) {
            return Ok(());
        }
    }
    let maps = roles.cluster.maps();
    let name = maps.nodes.get(&node).map_or(String::new(), |entry| entry.name.clone());
    Err(format!("machine {name} (node {node}): {why}"))
}

/// How many stripes there are, and what is odd about those in which `live` says that bytes are in use.
async fn look_at_stripes(roles: &Roles, mut live: BTreeMap<Stripe, u64>) -> Result<(u64, Odd), String> {
    let maps = roles.cluster.maps();
    let (mut stripes, mut oddities) = (0, Oddities::new(&maps, &live));
    let note = |state: StripeState| {
        stripes += 1;
        oddities.add(&state);
    };
    Walk::over_all(&roles.cluster, &maps).to_end(note).await;
    let mut odd = oddities.all();
    for _ in 1..LOOKS {
        if odd.is_empty() {
            break;
        }
        roles.cluster.host().sleep(LOOK_PAUSE).await;
        let maps = roles.cluster.refresh().await.map_err(|error| error.to_string())?;
        let named: BTreeSet<Stripe> = odd.keys().map(|(stripe, _)| *stripe).collect();
        live.retain(|stripe, _| named.contains(stripe));
        let mut states = Vec::new();
        let of_named =
            |state: StripeState| states.extend(Some(state).filter(|it| named.contains(&(it.log, it.number))));
        Walk::over_all(&roles.cluster, &maps).to_end(of_named).await;
        // Asked behind the list: what was in use before and is now has been in use all along, since bytes come to live in
        // a stripe but once.
        let named: Vec<Stripe> = named.into_iter().collect();
        let sums = Managers::new(roles.cluster.clone()).live(&named).await.map_err(|error| error.to_string())?;
        for (stripe, bytes) in named.into_iter().zip(sums) {
            match bytes {
                0 => drop(live.remove(&stripe)),
                // Somebody has yet to learn what a dead client wrote: what was known stands.
                u64::MAX => {}
                bytes => drop(live.insert(stripe, bytes)),
            }
        }
        let maps = roles.cluster.maps();
        let mut oddities = Oddities::new(&maps, &live);
        states.iter().for_each(|state| oddities.add(state));
        let still = oddities.all();
        odd.retain(|what, _| still.contains_key(what));
    }
    Ok((stripes, odd))
}

/// What is odd about stripes that are in use. One in which nothing lives waits for the cleaner; a target that was away may
/// still have a part of one that the others have deleted.
struct Oddities<'a> {
    maps: &'a Maps,
    /// Those that are in use behind the last one that was looked at.
    live: Peekable<btree_map::Iter<'a, Stripe, u64>>,
    odd: Odd,
}

impl<'a> Oddities<'a> {
    fn new(maps: &'a Maps, live: &'a BTreeMap<Stripe, u64>) -> Oddities<'a> {
        Oddities { maps, live: live.iter().peekable(), odd: Odd::new() }
    }

    /// Looks at the next stripe that there is.
    fn add(&mut self, state: &StripeState) {
        let stripe = (state.log, state.number);
        while let Some((gone, _)) = self.live.next_if(|(live, _)| **live < stripe) {
            self.note_gone(*gone);
        }
        let Some((_, &bytes)) = self.live.next_if(|(live, _)| **live == stripe) else { return };
        if u64::from(state.length) < bytes {
            let text = format!("{} has {} bytes, and {bytes} of it are in use", name(stripe), state.length);
            self.odd.insert((stripe, None), text);
        }
        for damage in state.missing.iter().filter(|damage| is_whole(self.maps, damage.target)) {
            let text = format!("{}; `dazzle repair` makes it again", in_words(self.maps, damage));
            self.odd.insert((stripe, Some(*damage)), text);
        }
    }

    /// All that is odd: there are no more stripes.
    fn all(mut self) -> Odd {
        while let Some((gone, _)) = self.live.next() {
            self.note_gone(*gone);
        }
        self.odd
    }

    fn note_gone(&mut self, stripe: Stripe) {
        self.odd.insert((stripe, None), format!("{} is in use, and no target has it", name(stripe)));
    }
}

fn name((log, number): Stripe) -> String {
    format!("stripe {} of log {}", number.0, log.0)
}

/// What of this is found in every look: the cleaner deletes a stripe on one target after the other.
async fn still_wrong(roles: &Roles, mut wrong: Wrong) -> Wrong {
    for _ in 1..LOOKS {
        if wrong.is_empty() {
            break;
        }
        roles.cluster.host().sleep(LOOK_PAUSE).await;
        let mut still = Wrong::new();
        for (stripe, mut found) in wrong {
            let again = verify(roles, stripe).await.unwrap_or_default();
            found.retain(|problem| again.contains(problem));
            if !found.is_empty() {
                still.insert(stripe, found);
            }
        }
        wrong = still;
    }
    wrong
}

/// What is wrong with the bytes of a stripe, if anything is.
async fn verify(roles: &Roles, (log, number): Stripe) -> Option<BTreeSet<String>> {
    let name = name((log, number));
    let in_words = |problem: &Problem| match problem {
        // Listed already.
        Problem::Missing(_) => None,
        Problem::Checksum(damage) => Some(format!("{name}: {:?} is damaged", damage.id.part)),
        Problem::Parity(damage) => Some(format!("{name}: {:?} is not the parity", damage.id.part)),
    };
    let found: BTreeSet<String> = match stripes::verify(&roles.cluster, log, number).await {
        Ok(found) => found.iter().filter_map(in_words).collect(),
        // The cleaner has deleted it since it was listed.
        Err(ReadError::Deleted(_)) => BTreeSet::new(),
        Err(error) => [format!("{name} cannot be verified: {error}")].into(),
    };
    (!found.is_empty()).then_some(found)
}

/// Makes every missing or damaged fragment again. Targets that then have all they should have are whole, unless others that are
/// away may have more.
pub async fn repair(roles: &Roles, progress: Progress<'_>) -> Result<Repaired, String> {
    progress("deleted stripes", 0, 1);
    // What the others deleted while a target was away is deleted there too, before anything is rebuilt of it.
    roles.cleaner.clean_now(Goal::Marks).await.map_err(|error| format!("dead stripes cannot be deleted: {error}"))?;
    let (mut repaired, mut failed, mut tour) = (0u64, 0u64, Tour::begin(&roles.cluster).await);
    while let Some(StripeState { log, number, length, .. }) = tour.next(&roles.cluster).await {
        match stripes::repair(&roles.cluster, log, number, length).await {
            Ok(repair) => repaired += u64::from(repair.mended > 0),
            Err(ReadError::Deleted(_)) => {}
            Err(_) => failed += 1,
        }
        progress("stripes", tour.done(), tour.ended());
    }
    let mut missing = Vec::new();
    let look = Look::take(&roles.cluster, |_, state| missing.extend(state.missing)).await;
    let look = look.map_err(|error| error.to_string())?;
    if failed == 0 {
        // Whoever is away is waited for: it may have what nobody else shows.
        if let Some(error) = look.call_whole(&roles.cluster, &BTreeSet::new()).await.failed {
            return Err(format!(
                "{repaired} stripes were repaired, but the registry could not be told which targets are whole: {error}"
            ));
        }
    }
    let lacking = lacking(&look.maps, &missing);
    let maps = roles.cluster.maps();
    let names = |state| -> Vec<_> {
        maps.targets.iter().filter(|(_, entry)| entry.state == state).map(|(id, _)| maps.called(*id)).collect()
    };
    Ok(Repaired {
        stripes: tour.stripes(),
        repaired,
        failed,
        lacking,
        missing: names(TargetState::Failed),
        behind: names(TargetState::Behind),
    })
}

/// Which fragments targets lack that serve, in words, target by target.
fn lacking(maps: &Maps, missing: &[Damage]) -> Vec<String> {
    let mut lacking: BTreeMap<TargetId, Vec<String>> = BTreeMap::new();
    for damage in missing {
        if maps.targets.get(&damage.target).is_some_and(TargetEntry::serves) {
            lacking.entry(damage.target).or_default().push(in_words(maps, damage));
        }
    }
    lacking.into_values().flatten().collect()
}

fn in_words(maps: &Maps, damage: &Damage) -> String {
    let id = damage.id;
    format!("stripe {} of log {} lacks {:?} on {}", id.stripe.0, id.log.0, id.part, maps.called(damage.target))
}

/// Who has yet to be given what lay on another, in words.
fn newcomers(maps: &Maps) -> Vec<String> {
    let mut groups: BTreeMap<TargetId, usize> = BTreeMap::new();
    maps.groups.values().flat_map(|group| &group.newcomers).for_each(|&it| *groups.entry(it).or_default() += 1);
    let in_words = |(target, count)| {
        let name = maps.called(target);
        format!(
            "{name} took the place of a missing target in {count} stripe group(s); what it lacks is being made again"
        )
    };
    groups.into_iter().map(in_words).collect()
}

/// What is wrong with a target that is not whole.
fn not_whole(name: &str, state: TargetState) -> Option<String> {
    match state {
        TargetState::Whole | TargetState::New | TargetState::Removed => None,
        TargetState::Behind => Some(format!("{name} missed writes; what it lacks is being rebuilt")),
        TargetState::Failed => Some(format!(
            "{name} is missing: what lies on it has less redundancy; bring it back, or put an empty disk in its place with \
             `dazzle target replace` on its machine"
        )),
    }
}

fn is_alive(maps: &Maps, node: u32) -> bool {
    maps.nodes.get(&node).is_some_and(|entry| entry.state == NodeState::Alive)
}

fn is_whole(maps: &Maps, target: TargetId) -> bool {
    maps.targets.get(&target).is_some_and(|entry| entry.state == TargetState::Whole)
}
