//! What maps a machine begins with whose registry is damaged, missing or older than what its targets hold: those that its best
//! copy tells, if any, completed from its fragments (`docs/decisions/0027-a-registry-is-rebuilt.md`). `salvage` finds the copy,
//! `evidence` is what the fragments tell.
//!
//! 1. A log that the maps do not know is one of this machine, and dead. Its records tell who wrote it.
//! 2. The newest checkpoint table of all managers' logs is what slots begin with; the managers' logs behind it are rolled in
//!    the order of their numbers, as each manager of a machine that is alone begins when those before have ended. So the
//!    managers' logs before it, and the clients' that it calls replayed, were sealed once: they may have been cleaned since,
//!    and none of their records is applied any more. They end where their fragments do. To seal them anew would take the first
//!    stripe that was deleted for their end.
//! 3. All others may have been open when the machine stopped, or were sealed so late that nobody deleted anything behind what
//!    is known to be complete (`docs/format-slot.md`, invariant 9). They are sealed as after a crash, to the same end.
//! 4. A length that the copy knows stays. Logs that it has forgotten stay so: what is left of them is deleted.
//! 5. Where other machines store, slots went from one to another with nothing that tells in which order. There the copy must
//!    lack nothing that any fragment tells of, and it counts as that of a machine that is promoted does.

use std::collections::{BTreeMap, BTreeSet};

use protocol::address::Position;
use protocol::id::{FenceEpoch, GroupId, LogId, MapEpoch, StripeNumber, TargetId};
use protocol::maps::{
    Class, GroupEntry, LogEntry, LogState, Maps, NodeEntry, Run, SlotEntry, SlotLog, TargetEntry, TargetState, Writer,
};

use crate::evidence::{Evidence, Members, Trace, turn};
use crate::reign::{self, SKIPPED};

/// The machine that rebuilds, as its settings and its disks tell.
#[derive(Clone, Debug)]
pub struct Founder {
    /// Its number.
    pub node: u32,
    /// What people call it.
    pub name: String,
    /// Where others call it.
    pub address: String,
    /// The cluster that its targets name.
    pub cluster: u128,
    /// The redundancy class in its settings.
    pub class: Class,
    /// Its targets, with their names.
    pub targets: BTreeMap<TargetId, String>,
    /// Those of them that can be read.
    pub present: BTreeSet<TargetId>,
    /// Those that are known to have missed something.
    pub outdated: BTreeSet<TargetId>,
    /// Other machines that store, as its settings tell.
    pub peers: BTreeSet<u32>,
}

/// Why a registry is not rebuilt. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// What lies here needs targets that are not there.
    #[error(
        "{have} of the {needed} targets that are needed of stripe group {} are there: what lies over it cannot be read. Bring \
         back {}", .group.0, called(.missing)
    )]
    Unreadable {
        /// A group over which something lies.
        group: GroupId,
        /// How many of its members are there.
        have: usize,
        /// How many are needed.
        needed: usize,
        /// Those that are not.
        missing: BTreeSet<TargetId>,
    },
    /// Others store, and no copy is there that lacks nothing.
    #[error(
        "other machines store in this cluster, and the best copy of the registry that is left here lacks {0}: which of the \
         slots they managed since nothing here tells. Bring back one of them, and promote it with `dazzle registry promote`, \
         or the missing targets of this one"
    )]
    Lacking(String),
    /// No maps are left, and others store.
    #[error(
        "no copy of the registry is left here, and {0} shows that other machines store in this cluster: how slots were shared \
         nothing here tells. Bring back one of them, and promote it with `dazzle registry promote`"
    )]
    Others(String),
    /// There is no metadata.
    #[error(
        "there are logs with the data of files, and none that a manager wrote: the names of all files lay on targets that are \
         not there. Bring them back"
    )]
    Headless,
    /// What fragments say cannot be true.
    #[error("the fragments of log {} contradict each other: no turn of groups fits all of its stripes", .0.0)]
    Contradiction(LogId),
}

fn called(targets: &BTreeSet<TargetId>) -> String {
    targets.iter().map(|target| format!("target {}", target.0)).collect::<Vec<_>>().join(", ")
}

/// What the records of a log tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A manager wrote it.
    Manager {
        /// The newest checkpoint table in it, of the newest log that has one.
        table: Option<ToldTable>,
        /// It handed slots over to another one, perhaps after that.
        hands_over: bool,
    },
    /// A client: it has deltas.
    Client,
    /// Nothing but data is seen: it is a cleaner's, or a client's of which nothing else is left.
    Data,
}

/// What a checkpoint table tells beside images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldTable {
    /// The sealed logs of clients of which all slots have all.
    pub replayed: BTreeSet<LogId>,
    /// Whether its writer had all slots.
    pub had_all: bool,
}

/// What a machine knows of its cluster: the best copy of the maps, if there is any, and what its targets hold.
#[derive(Clone, Copy, Debug)]
pub struct Ruins<'a> {
    /// The machine.
    pub founder: &'a Founder,
    /// The maps of the best copy, and whether it tells all that was ever promised of it.
    pub known: Option<(&'a Maps, bool)>,
    /// Its fragments.
    pub evidence: &'a Evidence,
}

impl Ruins<'_> {
    /// What the best copy lacks, in words; nothing where it is as new as all that the targets hold.
    pub fn lack(&self) -> Option<String> {
        let Some((maps, is_whole)) = self.known else { return Some("all of it".into()) };
        let log = |log: LogId| format!("log {}", log.0);
        if let Some((target, _)) = self.founder.targets.range(maps.next_target..).next() {
            return Some(format!("target {}", target.0));
        }
        if self.evidence.last_log() >= maps.next_log {
            return Some(log(self.evidence.last_log()));
        }
        for (id, trace) in self.evidence.logs() {
            let Some(entry) = maps.logs.get(&id) else { continue };
            let is_known = |run| entry.layout.iter().any(|known| known.number == run);
            if let Some((run, _)) = trace.runs().find(|(run, _)| !is_known(*run)) {
                return Some(format!("run {} of log {}", run.0, id.0));
            }
        }
        let claimed = maps.logs.iter().find(|(id, entry)| match entry.state {
            LogState::Open(epoch) | LogState::Sealing(epoch) => self.evidence.fence(**id) > epoch,
            LogState::Sealed(_) => false,
        });
        if let Some((id, _)) = claimed {
            return Some(format!("that log {} was taken from its writer", id.0));
        }
        let listed = maps.slots.values().flat_map(|slot| &slot.logs).map(|listed| listed.log).max();
        let is_unlisted = |id: LogId, entry: &LogEntry| entry.writer == Writer::Manager && Some(id) > listed;
        let unlisted =
            self.evidence.logs().find(|(id, _)| maps.logs.get(id).is_some_and(|known| is_unlisted(*id, known)));
        if let Some((id, _)) = unlisted {
            return Some(format!("that slots are taken over from log {}", id.0));
        }
        (!is_whole).then(|| "changes that were promised".into())
    }

    /// Whether other machines store, as the copy knows.
    pub fn has_others(&self) -> bool {
        let stores =
            |(node, entry): (&u32, &NodeEntry)| *node != self.founder.node && entry.stores && entry.session > 0;
        self.known.is_some_and(|(maps, _)| maps.nodes.iter().any(stores))
    }

    /// The maps as far as fragments and the copy tell, to read records by. Every log has a length behind all that is there
    /// of it.
    pub fn outline(&self) -> Result<Maps, RebuildError> {
        let mut maps = match (self.known, self.founder.peers.first()) {
            (Some((known, _)), _) => known.clone(),
            (None, None) => self.blank(),
            (None, Some(peer)) => return Err(RebuildError::Others(format!("node {peer} in dazzle.toml"))),
        };
        // What was found of them counted as long as nothing came to lie there, of which the copy may not know.
        maps.targets.values_mut().for_each(|entry| entry.empty = false);
        // A target that the copy could know, and does not, was taken away.
        for (&target, name) in self.founder.targets.range(maps.next_target..) {
            maps.targets.insert(target, TargetEntry::new(self.founder.node, name.clone()));
        }
        self.number(&mut maps);
        self.groups(&mut maps)?;
        for (id, trace) in self.evidence.logs().filter(|(id, _)| !self.is_forgotten(*id)) {
            let entry = maps.logs.remove(&id).unwrap_or_else(|| self.unknown());
            let entry = completed(entry, id, trace)?;
            maps.logs.insert(id, entry);
        }
        for (&target, entry) in &mut maps.targets {
            let own = entry.node == self.founder.node && entry.state != TargetState::Removed;
            if own && !self.founder.present.contains(&target) && entry.state != TargetState::New {
                entry.state = TargetState::Failed;
            }
        }
        self.expect_readable(&maps)?;
        Ok(maps)
    }

    /// The logs of which it is to be told who wrote them, and what their managers' tables say: none where the copy is enough,
    /// or nothing would be.
    pub fn asked(&self, outline: &Maps) -> Vec<(LogId, &Trace)> {
        if self.has_others() || self.lack().is_none() {
            return Vec::new();
        }
        let known = self.known.map(|(maps, _)| maps);
        let is_asked = |id: &LogId| match known.and_then(|maps| maps.logs.get(id)) {
            Some(entry) => entry.writer == Writer::Manager,
            None => outline.logs.contains_key(id),
        };
        self.evidence.logs().filter(|(id, _)| is_asked(id)).collect()
    }

    /// The maps of the next reign.
    pub fn conclude(&self, mut maps: Maps, told: &BTreeMap<LogId, Told>) -> Result<Maps, RebuildError> {
        match self.lack() {
            None => maps.logs.iter_mut().for_each(|(&id, entry)| entry.state = self.state(id, false)),
            Some(lack) if self.has_others() => return Err(RebuildError::Lacking(lack)),
            Some(_) => self.judge_logs(&mut maps, told)?,
        }
        self.judge_targets(&mut maps);
        // Who knows the reign before must not follow by itself: what it was answered may be lost here.
        maps.reign.number = maps.reign.number.max((maps.next_log.0 >> SKIPPED.trailing_zeros()) as u32) + 1;
        Ok(reign::begin(&maps, self.founder.node, None))
    }

    fn blank(&self) -> Maps {
        let Founder { node, name, address, cluster, class, .. } = self.founder;
        let entry = NodeEntry { session: 1, ..NodeEntry::new(name, address, true) };
        let shapes = || self.evidence.groups().values().map(|group| group.geometry);
        let parity = shapes().map(|shape| shape.parity).max().unwrap_or(0).max(class.parity);
        let mut maps = Maps {
            nodes: [(*node, entry)].into(),
            slots: [(0, SlotEntry { node: *node, base: None, logs: Vec::new() })].into(),
            ..Maps::empty(*cluster, Class { parity, ..*class })
        };
        // Only in groups with fewer data fragments they are larger.
        maps.fragment_size = shapes().map(|shape| shape.fragment_size).min().unwrap_or(maps.fragment_size);
        maps
    }

    /// Numbers behind all that anything here names. Every session and every change of the maps but few opens a log, and a reign
    /// skips more than these few.
    fn number(&self, maps: &mut Maps) {
        let founder = self.founder;
        maps.next_log = maps.next_log.max(LogId(self.evidence.last_log().0 + 1));
        maps.next_node = maps.next_node.max(founder.node + 1);
        let target = founder.targets.keys().next_back().map_or(0, |last| last.0 + 1);
        maps.next_target = maps.next_target.max(TargetId(target));
        let group = self.evidence.groups().keys().next_back().map_or(0, |last| last.0 + 1);
        maps.next_group = maps.next_group.max(GroupId(group));
        maps.epoch = maps.epoch.max(MapEpoch(maps.next_log.0));
        if let Some(entry) = maps.nodes.get_mut(&founder.node) {
            entry.session = entry.session.max(maps.next_log.0);
        }
    }

    /// Whether the copy knew a log and has forgotten it: numbers are never given twice.
    fn is_forgotten(&self, log: LogId) -> bool {
        self.known.is_some_and(|(maps, _)| log < maps.next_log && !maps.logs.contains_key(&log))
    }

    fn unknown(&self) -> LogEntry {
        let state = LogState::Open(FenceEpoch(1));
        LogEntry::new((self.founder.node, 0), Writer::Cleaner, Vec::new(), state)
    }

    /// Groups as their fragments show them; those that the copy knows, with the members that took another's place since.
    fn groups(&self, maps: &mut Maps) -> Result<(), RebuildError> {
        for (&id, members) in self.evidence.groups() {
            let known = maps.groups.get(&id).filter(|known| known.geometry == members.geometry);
            let entry = match known {
                Some(known) => replaced(known.clone(), members),
                None => self.group(members).ok_or_else(|| RebuildError::Others(format!("stripe group {}", id.0)))?,
            };
            maps.groups.insert(id, entry);
        }
        Ok(())
    }

    /// A group that nobody tells of but its fragments. A place without any is that of a target on which nothing of it lies;
    /// where something should, of one that is not there. Nothing, if there are not so many: the member is another machine's.
    fn group(&self, members: &Members) -> Option<GroupEntry> {
        let mut places: Vec<Option<TargetId>> = vec![None; members.places.len()];
        for (place, counts) in members.places.iter().enumerate() {
            let free = counts.iter().filter(|(target, _)| !places.contains(&Some(**target)));
            places[place] =
                free.max_by_key(|(target, count)| (**count, std::cmp::Reverse(**target))).map(|(id, _)| *id);
        }
        for place in 0..places.len() {
            if places[place].is_none() {
                let own = self.founder.targets.keys().filter(|target| !places.contains(&Some(**target)));
                let is_missed = members.missed.contains(&place);
                let fits = |target: &&TargetId| self.founder.present.contains(target) != is_missed;
                let (fitting, others): (Vec<TargetId>, Vec<TargetId>) = own.copied().partition(|target| fits(&target));
                places[place] = Some(*fitting.first().or(others.first())?);
            }
        }
        Some(GroupEntry::new(places.into_iter().flatten().collect(), members.geometry, false))
    }

    /// Whether all that anything lies over can be read with the targets that are there.
    fn expect_readable(&self, maps: &Maps) -> Result<(), RebuildError> {
        let runs = self.evidence.logs().filter(|(id, _)| !self.is_forgotten(*id)).flat_map(|(_, trace)| trace.runs());
        let used: BTreeSet<GroupId> = runs.flat_map(|(_, stripes)| stripes.values().map(|laid| laid.group)).collect();
        for group in used {
            let entry = &maps.groups[&group];
            let missing = entry.targets.iter().filter(|target| !self.founder.present.contains(target));
            let missing: BTreeSet<TargetId> = missing.copied().collect();
            let (have, needed) = (entry.targets.len() - missing.len(), usize::from(entry.geometry.data));
            if have < needed {
                return Err(RebuildError::Unreadable { group, have, needed, missing });
            }
        }
        Ok(())
    }

    /// Rules 1 to 4.
    fn judge_logs(&self, maps: &mut Maps, told: &BTreeMap<LogId, Told>) -> Result<(), RebuildError> {
        for (id, told) in told {
            let writer = match told {
                Told::Manager { .. } => Writer::Manager,
                Told::Client => Writer::Client,
                // As long as nothing shows that it was sealed, what could not be read of it may be deltas.
                Told::Data if self.stays_sealed(*id, false) => Writer::Cleaner,
                Told::Data => Writer::Client,
            };
            maps.logs.get_mut(id).expect("it was asked for").writer = writer;
        }
        let managers = maps.logs.iter().filter(|(_, entry)| entry.writer == Writer::Manager).map(|(&id, _)| id);
        let managers: BTreeSet<LogId> = managers.collect();
        if managers.is_empty() && self.evidence.logs().any(|(id, _)| maps.logs.contains_key(&id)) {
            return Err(RebuildError::Headless);
        }
        let (base, replayed) = self.base(maps, &managers, told)?;
        let rolled: Vec<LogId> = managers.iter().copied().filter(|id| Some(*id) >= base).collect();
        for (&id, entry) in &mut maps.logs {
            let is_over = match entry.writer {
                Writer::Manager => !rolled.contains(&id) && self.stays_sealed(id, true),
                Writer::Client => replayed.contains(&id) && self.stays_sealed(id, true),
                // None of its records is ever applied.
                Writer::Cleaner => self.stays_sealed(id, false),
            };
            entry.state = self.state(id, is_over);
        }
        let listed = |log: &LogId| SlotLog { log: *log, from: Position::START };
        let entry = SlotEntry { node: self.founder.node, base: None, logs: rolled.iter().map(listed).collect() };
        maps.slots = [(0, entry)].into();
        Ok(())
    }

    /// The newest manager's log with a table, and what that calls replayed.
    fn base(
        &self,
        maps: &Maps,
        managers: &BTreeSet<LogId>,
        told: &BTreeMap<LogId, Told>,
    ) -> Result<(Option<LogId>, BTreeSet<LogId>), RebuildError> {
        for id in managers.iter().rev() {
            let others = || RebuildError::Others(format!("log {}", id.0));
            let is_own = maps.logs[id].node == self.founder.node;
            match told.get(id) {
                Some(Told::Manager { table: Some(table), hands_over: false }) if table.had_all && is_own => {
                    return Ok((Some(*id), table.replayed.clone()));
                }
                Some(Told::Manager { table: Some(_), .. } | Told::Manager { hands_over: true, .. }) => {
                    return Err(others());
                }
                Some(_) if !is_own => return Err(others()),
                // Nothing is left of it, or it holds no table yet.
                _ => {}
            }
        }
        Ok((None, BTreeSet::new()))
    }

    fn stays_sealed(&self, id: LogId, was: bool) -> bool {
        self.evidence.trace(id).is_some_and(|trace| trace.stays_sealed(was))
    }

    fn state(&self, id: LogId, is_over: bool) -> LogState {
        match (self.sealed(id), self.evidence.trace(id)) {
            (Some(length), _) => LogState::Sealed(length),
            (None, Some(trace)) if is_over => LogState::Sealed(trace.end()),
            _ => {
                let known = self.known.and_then(|(maps, _)| maps.logs.get(&id)).map(|entry| entry.state);
                let epoch = match known {
                    Some(LogState::Open(epoch) | LogState::Sealing(epoch)) => epoch,
                    _ => FenceEpoch(1),
                };
                LogState::Sealing(epoch.max(self.evidence.fence(id)))
            }
        }
    }

    /// The length that the copy knows.
    fn sealed(&self, id: LogId) -> Option<Position> {
        match self.known?.0.logs.get(&id)?.state {
            LogState::Sealed(length) => Some(length),
            LogState::Open(_) | LogState::Sealing(_) => None,
        }
    }

    /// Who is known to have missed something serves reads until it was made whole.
    fn judge_targets(&self, maps: &mut Maps) {
        let missed = self.evidence.groups().iter().filter_map(|(id, members)| Some((maps.groups.get(id)?, members)));
        let missed = missed.flat_map(|(group, members)| members.missed.iter().map(|&place| group.targets[place]));
        let behind: BTreeSet<TargetId> = missed.chain(self.founder.outdated.iter().copied()).collect();
        for (_, entry) in maps.targets.iter_mut().filter(|(target, _)| behind.contains(target)) {
            if entry.state == TargetState::Whole {
                entry.state = TargetState::Behind;
            }
        }
    }
}

/// A log's entry with the runs that its fragments show, open to be read up to the end of all that is there.
fn completed(mut entry: LogEntry, id: LogId, trace: &Trace) -> Result<LogEntry, RebuildError> {
    for (number, stripes) in trace.runs() {
        if entry.layout.iter().all(|run| run.number != number) {
            let groups = turn(stripes).ok_or(RebuildError::Contradiction(id))?;
            let first = if number.0 == 0 { None } else { stripes.keys().next().copied() };
            let from = first.unwrap_or_default();
            entry.layout.push(Run::new(number, from, groups));
        }
    }
    entry.layout.sort_by_key(|run| run.number);
    let behind = trace.stripes().last().map_or(0, |last| last.0.saturating_add(1));
    entry.state = LogState::Sealed(Position::new(StripeNumber(behind), 0));
    Ok(entry)
}

/// A group that the copy knows, with those who took a place in it since: what lies there now was laid by them.
fn replaced(mut entry: GroupEntry, members: &Members) -> GroupEntry {
    for (place, counts) in members.places.iter().enumerate() {
        let known = entry.targets[place];
        let newcomer =
            counts.iter().filter(|(target, _)| !entry.targets.contains(target)).max_by_key(|(_, count)| **count);
        let Some((&newcomer, _)) = newcomer.filter(|_| !counts.contains_key(&known)) else { continue };
        if !entry.former.contains(&newcomer) {
            entry.targets[place] = newcomer;
            entry.newcomers.remove(&known);
            entry.newcomers.insert(newcomer);
            entry.former.insert(known);
            entry.current = false;
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{new_cluster, open};
    use protocol::fragment::{FragmentHeader, FragmentId, Geometry, Part};
    use protocol::id::RunNumber;
    use protocol::maps::NodeState;
    use protocol::storage::StoredFragment;

    const SHAPE: Geometry = Geometry { data: 2, parity: 1, fragment_size: 4096 };

    fn founder() -> Founder {
        Founder {
            node: 1,
            name: String::new(),
            address: String::new(),
            cluster: 7,
            class: 1.into(),
            targets: (0..3).map(|n| (TargetId(n), format!("target-{n}"))).collect(),
            present: (0..3).map(TargetId).collect(),
            outdated: BTreeSet::new(),
            peers: BTreeSet::new(),
        }
    }

    /// Stripes of logs that have ended, over targets 0, 1 and 2 in group 3; nothing behind `below` was known to be complete.
    fn evidence(logs: &[(u64, &[u64])], below: u64) -> Evidence {
        let mut evidence = Evidence::default();
        for &(log, stripes) in logs {
            for &stripe in stripes {
                for part in [Part::Data(0), Part::Data(1), Part::Parity(0)] {
                    let (log, stripe, run) = (LogId(log), StripeNumber(stripe), RunNumber(0));
                    let header = FragmentHeader {
                        id: FragmentId { log, stripe, run, part },
                        group: GroupId(3),
                        geometry: SHAPE,
                        mark: Position::START,
                        previous_end: 4100,
                        complete_below: StripeNumber(stripe.0.min(below)),
                        data_lengths: if part == Part::Parity(0) { vec![4096, 4] } else { Vec::new() },
                    };
                    let target = TargetId(SHAPE.member(stripe, part) as u32);
                    let fence = [(log, FenceEpoch(2))].into();
                    evidence.add(target, [StoredFragment { header, length: 4, generation: 0 }], fence);
                }
            }
        }
        evidence.conclude()
    }

    fn table(replayed: &[u64]) -> Told {
        let replayed = replayed.iter().copied().map(LogId).collect();
        Told::Manager { table: Some(ToldTable { replayed, had_all: true }), hands_over: false }
    }

    const YOUNG: Told = Told::Manager { table: None, hands_over: false };

    fn rebuild(known: Option<(&Maps, bool)>, evidence: &Evidence, told: &[(u64, Told)]) -> Result<Maps, RebuildError> {
        let founder = founder();
        let ruins = Ruins { founder: &founder, known, evidence };
        let outline = ruins.outline()?;
        assert_eq!(outline.verify(), Ok(()));
        let asked: BTreeSet<LogId> = ruins.asked(&outline).into_iter().map(|(id, _)| id).collect();
        let told = told.iter().map(|(id, told)| (LogId(*id), told.clone())).filter(|(id, _)| asked.contains(id));
        let maps = ruins.conclude(outline, &told.collect())?;
        assert_eq!(maps.verify(), Ok(()));
        Ok(maps)
    }

    fn sealed(maps: &Maps, log: u64) -> Option<Position> {
        match maps.logs[&LogId(log)].state {
            LogState::Sealed(length) => Some(length),
            LogState::Sealing(epoch) => {
                assert!(epoch.0 > 1000, "whoever wrote it is behind the next fence");
                None
            }
            LogState::Open(_) => panic!("nobody writes it"),
        }
    }

    #[test]
    fn who_seals_again_what_was_sealed_and_repaired_is_not_shut_out() {
        let mut evidence = evidence(&[(1, &[0]), (2, &[0])], 0);
        evidence.add(TargetId(1), [], [(LogId(2), FenceEpoch::SEALED)].into());
        let maps = rebuild(None, &evidence, &[(1, table(&[])), (2, Told::Client)]).expect("it lacks nothing");
        let LogState::Sealing(epoch) = maps.logs[&LogId(2)].state else { panic!("its deltas were not replayed") };
        assert!(epoch > FenceEpoch::SEALED);
    }

    /// Manager's logs 1, 4 and 7, clients' 2, 5 and 8, a cleaner's 3, each with a hole where something was deleted.
    #[test]
    fn what_was_sealed_once_ends_behind_all_that_is_left_of_it_and_the_rest_is_sealed_anew() {
        let all: Vec<(u64, &[u64])> = (1..=8).filter(|&n| n != 6).map(|n| (n, &[2, 5, 9][..])).collect();
        let told = [
            (1, YOUNG),
            (2, Told::Client),
            (3, Told::Data),
            (4, table(&[2])),
            (5, Told::Client),
            (7, YOUNG),
            (8, Told::Client),
        ];
        let maps = rebuild(None, &evidence(&all, 3), &told).expect("it lacks nothing");
        let end = Some(Position::new(StripeNumber(9), 4100));
        for (log, length) in [(1, end), (2, end), (3, end), (4, None), (5, None), (7, None), (8, None)] {
            assert_eq!(sealed(&maps, log), length, "log {log}");
        }
        let listed: Vec<u64> = maps.slot(17).logs.iter().map(|listed| listed.log.0).collect();
        assert_eq!(listed, [4, 7], "the newest table, and what was written behind it");
        assert_eq!(maps.slots.len(), 1);
        let writers: Vec<Writer> = maps.logs.values().map(|log| log.writer).collect();
        use Writer::{Cleaner, Client, Manager};
        assert_eq!(writers, [Manager, Client, Cleaner, Manager, Client, Manager, Client]);
        assert!(maps.next_log.0 > 1 << 32 && maps.next_group.0 > 1 << 20 && maps.epoch.0 > 1 << 32);
        assert!(maps.nodes[&1].session > 1 << 32 && maps.reign.number > 0);
        assert!(maps.dead_logs().count() == 4, "all that are unsealed are dead");
    }

    #[test]
    fn data_that_may_be_a_clients_is_replayed_as_such() {
        let mut evidence = evidence(&[(1, &[0])], 0);
        let header = FragmentHeader {
            id: FragmentId { log: LogId(2), stripe: StripeNumber(0), run: RunNumber(0), part: Part::Data(0) },
            group: GroupId(3),
            geometry: SHAPE,
            mark: Position::START,
            previous_end: 0,
            complete_below: StripeNumber(0),
            data_lengths: Vec::new(),
        };
        evidence.add(TargetId(0), [StoredFragment { header, length: 9, generation: 0 }], BTreeMap::new());
        let maps = rebuild(None, &evidence, &[(1, YOUNG), (2, Told::Data)]).expect("it lacks nothing");
        assert_eq!((maps.logs[&LogId(2)].writer, sealed(&maps, 2)), (Writer::Client, None));
    }

    /// A cluster of one machine, with a manager's log 1 and a client's 2.
    fn known() -> Maps {
        let targets = (0..3).map(|n| (TargetId(n), TargetEntry::new(1, format!("target-{n}")))).collect();
        let mut maps = new_cluster(7, targets, 1, 1);
        for writer in [Writer::Manager, Writer::Client] {
            open(&mut maps, 1, writer).expect("it lives");
        }
        let group = GroupEntry::new((0..3).map(TargetId).collect(), SHAPE, true);
        maps.groups = [(GroupId(3), group)].into();
        maps.next_group = GroupId(4);
        maps.logs.values_mut().for_each(|log| log.layout[0].groups = vec![GroupId(3)]);
        let logs = vec![SlotLog { log: LogId(1), from: Position::new(StripeNumber(0), 3) }];
        maps.slots.get_mut(&0).expect("slot 0 is always there").logs = logs;
        maps
    }

    #[test]
    fn a_copy_that_lacks_nothing_counts_as_it_is() {
        let mut maps = known();
        let evidence = evidence(&[(1, &[0, 1]), (2, &[0])], 0);
        assert_eq!(
            Ruins { founder: &founder(), known: Some((&maps, true)), evidence: &evidence }.lack(),
            Some("that log 1 was taken from its writer".into())
        );
        maps.logs.values_mut().for_each(|log| log.state = LogState::Sealing(FenceEpoch(2)));
        assert_eq!(Ruins { founder: &founder(), known: Some((&maps, true)), evidence: &evidence }.lack(), None);
        let rebuilt = rebuild(Some((&maps, true)), &evidence, &[(1, YOUNG)]).expect("it lacks nothing");
        assert_eq!(rebuilt.slots, maps.slots);
        assert_eq!((sealed(&rebuilt, 1), sealed(&rebuilt, 2)), (None, None));
    }

    #[test]
    fn an_old_copy_is_completed_and_what_it_forgot_stays_forgotten() {
        let mut maps = known();
        let length = Position::new(StripeNumber(1), 77);
        maps.logs.get_mut(&LogId(2)).expect("it was opened").state = LogState::Sealed(length);
        let forget = LogId(3);
        open(&mut maps, 1, Writer::Client).expect("it lives");
        maps.logs.remove(&forget);
        let evidence = evidence(&[(1, &[0, 1]), (2, &[0, 1]), (3, &[0]), (4, &[0, 1, 4])], 0);
        let rebuilt =
            rebuild(Some((&maps, true)), &evidence, &[(1, YOUNG), (4, table(&[2]))]).expect("it lacks nothing");
        assert_eq!(rebuilt.logs.keys().map(|log| log.0).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(sealed(&rebuilt, 2), Some(length), "what is known for a fact stays");
        assert_eq!(rebuilt.slot(0).logs, [SlotLog { log: LogId(4), from: Position::START }]);
        assert_eq!(rebuilt.groups[&GroupId(3)].targets, (0..3).map(TargetId).collect::<Vec<_>>());
    }

    #[test]
    fn a_manager_that_wrote_and_is_not_listed_shows_that_the_copy_is_old() {
        let mut maps = known();
        open(&mut maps, 1, Writer::Manager).expect("it lives");
        maps.logs.values_mut().for_each(|log| {
            log.layout[0].groups = vec![GroupId(3)];
            log.state = LogState::Sealing(FenceEpoch(2));
        });
        let evidence = evidence(&[(1, &[0]), (3, &[0])], 0);
        let founder = founder();
        let lack = Ruins { founder: &founder, known: Some((&maps, true)), evidence: &evidence }.lack();
        assert_eq!(lack, Some("that slots are taken over from log 3".into()));
        let rebuilt = rebuild(Some((&maps, true)), &evidence, &[(1, table(&[])), (3, YOUNG)]).expect("it is alone");
        assert_eq!(rebuilt.slot(0).logs.iter().map(|listed| listed.log.0).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn where_others_store_a_copy_must_lack_nothing() {
        let mut maps = known();
        maps.nodes.insert(2, NodeEntry { name: "b".into(), ..maps.nodes[&1].clone() });
        maps.next_node = 3;
        let behind = evidence(&[(1, &[0]), (9, &[0])], 0);
        let refused = rebuild(Some((&maps, true)), &behind, &[(1, YOUNG), (9, table(&[]))]);
        assert_eq!(refused, Err(RebuildError::Lacking("log 9".into())));
        maps.logs.values_mut().for_each(|log| log.state = LogState::Sealing(FenceEpoch(2)));
        let level = evidence(&[(1, &[0])], 0);
        let refused = rebuild(Some((&maps, false)), &level, &[(1, YOUNG)]);
        assert!(matches!(refused, Err(RebuildError::Lacking(_))), "{refused:?}");
        let rebuilt = rebuild(Some((&maps, true)), &level, &[(1, YOUNG)]).expect("it lacks nothing");
        assert_eq!(rebuilt.nodes[&2].state, NodeState::Gone);
        assert!(!reign::may_follow(&maps, None, rebuilt.reign), "it may have answered what is lost here");
        assert!((0..4096).all(|slot| rebuilt.slot(slot).node == 1));
    }

    #[test]
    fn what_shows_other_machines_or_cannot_be_read_is_refused() {
        let evidence = evidence(&[(1, &[0, 1, 2]), (2, &[0])], 3);
        let refused = |founder: &Founder, told: &[(u64, Told)]| {
            let ruins = Ruins { founder, known: None, evidence: &evidence };
            let told: BTreeMap<LogId, Told> = told.iter().map(|(id, told)| (LogId(*id), told.clone())).collect();
            ruins.outline().and_then(|outline| ruins.conclude(outline, &told)).expect_err("it is refused")
        };
        let young = [(1, YOUNG), (2, Told::Client)];
        let joined = Founder { peers: [4].into(), ..founder() };
        assert!(matches!(refused(&joined, &young), RebuildError::Others(_)));
        // Some slots were another's.
        let partly =
            Told::Manager { table: Some(ToldTable { replayed: BTreeSet::new(), had_all: false }), hands_over: false };
        assert!(matches!(refused(&founder(), &[(1, partly), (2, Told::Client)]), RebuildError::Others(_)));
        let table = Some(ToldTable { replayed: BTreeSet::new(), had_all: true });
        for table in [None, table] {
            let giving = Told::Manager { table, hands_over: true };
            assert!(matches!(refused(&founder(), &[(1, giving), (2, Told::Client)]), RebuildError::Others(_)));
        }
        assert_eq!(refused(&founder(), &[(1, Told::Data), (2, Told::Client)]), RebuildError::Headless);
        let missing = BTreeSet::from([TargetId(0), TargetId(2)]);
        let maimed = Founder { present: [TargetId(1)].into(), ..founder() };
        let unreadable = RebuildError::Unreadable { group: GroupId(3), have: 1, needed: 2, missing };
        assert_eq!(refused(&maimed, &young), unreadable);
    }

    #[test]
    fn a_group_is_completed_with_the_targets_that_are_there_or_missed() {
        let mut evidence = Evidence::default();
        let whole = super::tests::evidence(&[(1, &[0, 1, 2, 3])], 4);
        assert!(whole.groups()[&GroupId(3)].missed.is_empty());
        // The third target is lost: its place is known to have had something.
        for stripe in 0..4 {
            for part in [Part::Data(0), Part::Data(1), Part::Parity(0)] {
                let target = SHAPE.member(StripeNumber(stripe), part) as u32;
                let header = FragmentHeader {
                    id: FragmentId { log: LogId(1), stripe: StripeNumber(stripe), run: RunNumber(0), part },
                    group: GroupId(3),
                    geometry: SHAPE,
                    mark: Position::START,
                    previous_end: 4100,
                    complete_below: StripeNumber(stripe),
                    data_lengths: if part == Part::Parity(0) { vec![4096, 4] } else { Vec::new() },
                };
                if target != 2 {
                    evidence.add(
                        TargetId(target),
                        [StoredFragment { header, length: 4, generation: 0 }],
                        BTreeMap::new(),
                    );
                }
            }
        }
        let evidence = evidence.conclude();
        assert_eq!(evidence.groups()[&GroupId(3)].missed, [2].into());
        let lost = Founder { present: (0..2).map(TargetId).collect(), ..founder() };
        let ruins = Ruins { founder: &lost, known: None, evidence: &evidence };
        let outline = ruins.outline().expect("two of three are enough");
        assert_eq!(outline.groups[&GroupId(3)].targets, (0..3).map(TargetId).collect::<Vec<_>>());
        let maps = ruins.conclude(outline, &[(LogId(1), YOUNG)].into()).expect("it can be read");
        assert_eq!(maps.targets[&TargetId(2)].state, TargetState::Failed);
        assert_eq!(maps.targets[&TargetId(0)].state, TargetState::Whole);
        // It is there, and lacks what it should have: it missed something.
        let maps = {
            let founder = founder();
            let ruins = Ruins { founder: &founder, known: None, evidence: &evidence };
            ruins
                .conclude(ruins.outline().expect("all are there"), &[(LogId(1), YOUNG)].into())
                .expect("it can be read")
        };
        assert_eq!(maps.targets[&TargetId(2)].state, TargetState::Behind);
        // Nobody here has that place.
        let fewer = Founder { targets: lost.targets.clone().into_iter().take(2).collect(), ..lost.clone() };
        let ruins = Ruins { founder: &fewer, known: None, evidence: &evidence };
        assert!(matches!(ruins.outline(), Err(RebuildError::Others(_))));
    }
}
