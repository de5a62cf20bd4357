//! What one request makes of the maps. Pure: the service stores the outcome before it answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::fragment::Geometry;
use protocol::id::{FenceEpoch, GroupId, LogId, MapEpoch, RunNumber, StripeNumber, TargetId};
use protocol::maps::{
    Class, GroupEntry, LogEntry, LogState, Maps, NodeEntry, Run, SlotEntry, TargetEntry, TargetState, Writer,
};
use protocol::registry::{RegistryAnswer, RegistryError, RegistryReply, RegistryRequest};
use protocol::settings::Setting;
use serde::{Deserialize, Serialize};

use crate::{counting, drain, members, nodes, slots, stop};

/// The maps of a new cluster, whose first node is `node`. Nodes that its targets name live too.
pub fn new_cluster(cluster: u128, targets: Vec<(TargetId, TargetEntry)>, node: u32, class: impl Into<Class>) -> Maps {
    let entry = || NodeEntry::new("", "", true).begun();
    let numbers: BTreeSet<_> = targets.iter().map(|(_, target)| target.node).chain([node]).collect();
    let mut maps = Maps {
        next_node: numbers.last().map_or(1, |last| last + 1),
        next_target: TargetId(targets.iter().map(|(id, _)| id.0 + 1).max().unwrap_or(0)),
        nodes: numbers.into_iter().map(|number| (number, entry())).collect(),
        targets: targets.into_iter().collect(),
        slots: [(0, SlotEntry { node, base: None, logs: Vec::new() })].into(),
        ..Maps::empty(cluster, class)
    };
    nodes::form(&mut maps);
    maps
}

/// What `request` makes of `maps`, and what to answer once that is durable. `None`: nothing changes.
pub fn apply(maps: &Maps, request: RegistryRequest) -> (Option<Maps>, Reply) {
    let mut next = maps.clone();
    let outcome = match request {
        RegistryRequest::Maps | RegistryRequest::Newest { .. } | RegistryRequest::Watch { .. } => Ok(Outcome::Maps),
        RegistryRequest::Renew { node, session, .. } => nodes::current(&next, node, session).map(|()| Outcome::Lease),
        RegistryRequest::AddNode { name, address, stores, attempt } => {
            nodes::add(&mut next, (name, address, stores), attempt)
        }
        RegistryRequest::AddTargets { node, names } => nodes::add_targets(&mut next, node, names),
        RegistryRequest::AddTarget { node, session, name } => nodes::add_target(&mut next, (node, session), name),
        RegistryRequest::TargetSizes(sizes) => nodes::size_targets(&mut next, &sizes),
        RegistryRequest::Set(changes, seen) => set(&mut next, &changes, seen),
        RegistryRequest::SetCopies { node, from, to, seen } => counting::set(&mut next, (node, seen), from, to),
        RegistryRequest::RenameTarget(target, name) => nodes::rename_target(&mut next, target, name),
        RegistryRequest::RenameNode(node, name) => nodes::rename(&mut next, node, name),
        RegistryRequest::Begin { node, after, address, keeps } => {
            nodes::begin(&mut next, (node, after), address, keeps)
        }
        RegistryRequest::End { node, session } | RegistryRequest::Expire { node, session } => {
            nodes::end(&mut next, node, session)
        }
        RegistryRequest::OpenLog { node, session, writer, opening } => {
            open_log(&mut next, (node, session), writer, opening)
        }
        RegistryRequest::AddRun { log, version, epoch, from, groups } => {
            add_run(&mut next, (log, version, epoch), from, groups)
        }
        RegistryRequest::FinishRuns { log, version, epoch, end } => finish_runs(&mut next, (log, version, epoch), end),
        RegistryRequest::FormGroup(group) => form_group(&mut next, group),
        RegistryRequest::RetireGroup(group) => retire_group(&mut next, group),
        RegistryRequest::Claim { log, version } => claim(&mut next, log, version),
        RegistryRequest::Seal { log, epoch, length, tail } => {
            seal(&mut next, (log, epoch), LogState::Sealed(length), tail)
        }
        RegistryRequest::ForgetLogs(logs, seen) => Ok(forget(&mut next, &logs, seen)),
        RegistryRequest::SetSlots { first, last, node, base, logs, epoch } => {
            let seen = MapEpoch(epoch);
            set_slots(&mut next, (first, last), SlotEntry { node, base, logs }, seen)
        }
        RegistryRequest::Balance => {
            slots::plan(&mut next);
            Ok(Outcome::Maps)
        }
        RegistryRequest::SetTarget(target, state) => set_target(&mut next, target, state),
        RegistryRequest::TargetWhole(target, seen) => target_whole(&mut next, target, seen),
        RegistryRequest::ReplaceMember { group, old, new } => members::replace(&mut next, group, old, new),
        RegistryRequest::MemberWhole(group, member, seen) => members::whole(&mut next, (group, member), seen),
        RegistryRequest::Drain(targets, drain, seen) => drain::set(&mut next, &targets, drain, seen),
        RegistryRequest::RemoveTargets(targets, seen) => drain::remove(&mut next, &targets, seen),
        RegistryRequest::TargetsEmpty(targets, seen) => drain::conclude(&mut next, &targets, seen),
        RegistryRequest::RemoveNode(node) => drain::remove_node(&mut next, node),
        RegistryRequest::StopAll { force, seen } => stop::ask(&mut next, force, seen),
        RegistryRequest::FinishPhase { node, session, phase, asked } => {
            stop::finish(&mut next, (node, session), (phase, asked))
        }
        RegistryRequest::CallStopOff { node, session, asked } => stop::call_off(&mut next, (node, session), asked),
        RegistryRequest::DisksGone(targets, seen) => disks_gone(&mut next, &targets, seen),
    };
    drain::reconsider(&mut next);
    stop::go_on(&mut next);
    slots::drop_fulfilled(&mut next);
    match outcome {
        Ok(outcome) if next == *maps => (None, Ok(outcome)),
        Ok(outcome) => {
            next.epoch = next_epoch(maps);
            (Some(next), Ok(outcome))
        }
        Err(error) => (None, Err(error)),
    }
}

/// The epoch of the maps that come of a change.
pub(crate) fn next_epoch(maps: &Maps) -> MapEpoch {
    MapEpoch(maps.epoch.0 + 1)
}

/// People decide something, with the maps of epoch `seen`. That counts only where nothing was decided since: a request that is
/// asked for twice, or that a machine held which stood still, must not undo it.
pub(crate) fn decide(maps: &mut Maps, seen: MapEpoch) -> Result<(), RegistryError> {
    if maps.decided > seen {
        return Err(RegistryError::Lost);
    }
    maps.decided = next_epoch(maps);
    Ok(())
}

/// What to answer, but for the maps themselves.
pub type Reply = Result<Outcome, RegistryError>;

/// An answer that lacks the maps, which are joined to it once they are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The maps alone.
    Maps,
    /// A log and the epoch to write it with.
    Log(LogId, FenceEpoch),
    /// A group.
    Group(GroupId),
    /// A new node.
    Node(u32),
    /// The first of new targets.
    Targets(TargetId),
    /// A new session.
    Session(u64),
    /// The lease of a session.
    Lease,
}

impl Outcome {
    /// The whole answer.
    pub fn with(self, maps: Arc<Maps>) -> RegistryAnswer {
        Ok(match self {
            Outcome::Maps => RegistryReply::Maps(maps),
            Outcome::Log(log, epoch) => RegistryReply::Log(log, epoch, maps),
            Outcome::Group(group) => RegistryReply::Group(group, maps),
            Outcome::Node(node) => RegistryReply::Node(node, maps),
            Outcome::Targets(first) => RegistryReply::Targets(first, maps),
            Outcome::Session(session) => RegistryReply::Session(session, maps),
            Outcome::Lease => RegistryReply::Lease(maps.epoch),
        })
    }
}

fn open_log(maps: &mut Maps, (node, session): (u32, u64), writer: Writer, opening: u64) -> Reply {
    // Others seal what a session that is over has written; only what comes behind that is nobody's.
    if maps.nodes.get(&node).is_some_and(|entry| entry.session != session) {
        return Err(RegistryError::Over(node, session));
    }
    let is_same = |entry: &LogEntry| (entry.node, entry.session, entry.opening) == (node, session, opening);
    if let Some((&log, entry)) = maps.logs.iter().find(|(_, entry)| is_same(entry)) {
        let LogState::Open(epoch) = entry.state else { return Err(RegistryError::Lost) };
        return Ok(Outcome::Log(log, epoch));
    }
    let log = maps.next_log;
    maps.next_log = LogId(log.0 + 1);
    let mut groups: Vec<_> = maps.groups.iter().filter(|(_, group)| group.current).map(|(id, _)| *id).collect();
    if groups.is_empty() {
        return Err(RegistryError::Unavailable("no target is whole, so no stripe group can be written to".into()));
    }
    turn(maps, (log, writer), StripeNumber(0), &mut groups);
    let layout = vec![Run::new(RunNumber(0), StripeNumber(0), groups)];
    let epoch = FenceEpoch(1);
    let entry = LogEntry { opening, ..LogEntry::new((node, session), writer, layout, LogState::Open(epoch)) };
    maps.logs.insert(log, entry);
    Ok(Outcome::Log(log, epoch))
}

/// Turns the groups of a new run of `log` so that its first stripe lies in the one where the fewest logs of its kind began.
/// All logs go round in the same order: those that began in the same group, and are written or read at the same pace, would
/// be at the same targets all the time.
fn turn(maps: &Maps, (log, writer): (LogId, Writer), from: StripeNumber, groups: &mut [GroupId]) {
    let is_alike = |entry: &LogEntry| entry.writer == writer && matches!(entry.state, LogState::Open(_));
    let others = maps.logs.iter().filter(|(other, entry)| **other != log && is_alike(entry));
    let begun = others.filter_map(|(_, entry)| entry.layout.last().map(|run| run.group(run.from)));
    let begun: Vec<GroupId> = begun.collect();
    let count = |group: &GroupId| begun.iter().filter(|other| *other == group).count();
    let quietest = (0..groups.len()).min_by_key(|&at| count(&groups[at])).expect("a run has groups");
    let first = (from.0 % groups.len() as u64) as usize;
    groups.rotate_left((quietest + groups.len() - first) % groups.len());
}

/// The log and its entry's version that an asker saw, and the epoch it writes with.
type Seen = (LogId, u64, FenceEpoch);

/// Whoever writes the log adds runs: its writer, and after a claim the claimant alone (DESIGN §3, fencing and sealing,
/// step 1; `docs/decisions/0003-log-model.md`, rule 2).
fn add_run(maps: &mut Maps, seen: Seen, from: StripeNumber, mut groups: Vec<GroupId>) -> Reply {
    if groups.is_empty() || groups.iter().any(|group| !maps.groups.contains_key(group)) {
        return Err(RegistryError::Unknown("group".into()));
    }
    // A member was replaced since the asker saw it.
    if groups.iter().any(|group| !maps.groups[group].newcomers.is_empty()) {
        return Err(RegistryError::Lost);
    }
    let writer = entry_of_writer(maps, seen)?.writer;
    turn(maps, (seen.0, writer), from, &mut groups);
    let entry = entry_of_writer(maps, seen)?;
    let number = entry.layout.iter().map(|run| run.number.0 + 1).max().unwrap_or(0);
    entry.layout.push(Run::new(RunNumber(number), from, groups));
    entry.version += 1;
    Ok(Outcome::Maps)
}

fn finish_runs(maps: &mut Maps, seen: Seen, end: StripeNumber) -> Reply {
    let entry = entry_of_writer(maps, seen)?;
    finish(&mut entry.layout, end);
    entry.version += 1;
    Ok(Outcome::Maps)
}

/// Ends all runs but the last at `end`, if they did not end before.
fn finish(layout: &mut [Run], end: StripeNumber) {
    let Some((_, older)) = layout.split_last_mut() else { return };
    for run in older {
        run.end = Some(run.end.map_or(end, |before| before.min(end)));
        run.gone.clear();
    }
}

fn entry_of_writer(maps: &mut Maps, (log, version, epoch): Seen) -> Result<&mut LogEntry, RegistryError> {
    let entry = entry_at(maps, log, version)?;
    match entry.state {
        LogState::Open(own) | LogState::Sealing(own) if own == epoch => Ok(entry),
        _ => Err(RegistryError::Lost),
    }
}

/// What holds on all machines from now on: all that was asked for, or nothing of it.
fn set(maps: &mut Maps, changes: &[Setting], seen: MapEpoch) -> Reply {
    let settings = changes.iter().fold(maps.settings, |settings, &change| settings.with(change));
    settings.verify().map_err(|error| RegistryError::Wrong(error.to_string()))?;
    if settings != maps.settings {
        decide(maps, seen)?;
    }
    maps.settings = settings;
    Ok(Outcome::Maps)
}

/// Everybody who lays stripes or reads them relies on a group's being possible: a peer's rubbish ends here.
fn form_group(maps: &mut Maps, group: GroupEntry) -> Reply {
    let members: BTreeSet<_> = group.targets.iter().collect();
    let width = group.geometry.width();
    if !group.geometry.is_possible() || group.targets.len() != width || members.len() != width {
        return Err(RegistryError::Unknown("shape of a group".into()));
    }
    let is_there = |target: &TargetId| maps.present().any(|(id, _)| id == *target);
    if !members.into_iter().all(is_there) {
        return Err(RegistryError::Unknown("target".into()));
    }
    let group = GroupEntry::new(group.targets, group.geometry, group.current);
    Ok(Outcome::Group(find_or_form(maps, group, &BTreeSet::new())))
}

/// A group that lies as this one, and is none of those that are `taken`.
pub(crate) fn find_or_form(maps: &mut Maps, group: GroupEntry, taken: &BTreeSet<GroupId>) -> GroupId {
    if let Some((id, _)) = maps.groups.iter().find(|(id, old)| old.lies_as(&group) && !taken.contains(id)) {
        return *id;
    }
    let id = maps.next_group;
    maps.next_group = GroupId(id.0 + 1);
    let replaced = maps.groups.insert(id, group);
    assert_eq!(replaced, None, "a number is given once");
    id
}

fn retire_group(maps: &mut Maps, group: GroupId) -> Reply {
    maps.groups.get_mut(&group).ok_or(RegistryError::Unknown("group".into()))?.current = false;
    Ok(Outcome::Maps)
}

fn claim(maps: &mut Maps, log: LogId, version: u64) -> Reply {
    let entry = entry_at(maps, log, version)?;
    let epoch = match entry.state {
        LogState::Open(epoch) | LogState::Sealing(epoch) => FenceEpoch(epoch.0 + 1),
        LogState::Sealed(_) => return Err(RegistryError::Lost),
    };
    entry.state = LogState::Sealing(epoch);
    entry.version += 1;
    Ok(Outcome::Log(log, epoch))
}

fn seal(maps: &mut Maps, (log, epoch): (LogId, FenceEpoch), sealed: LogState, tail: StripeNumber) -> Reply {
    let entry = maps.logs.get_mut(&log).ok_or(RegistryError::Unknown("log".into()))?;
    if entry.state == sealed {
        return Ok(Outcome::Maps);
    }
    if entry.state != LogState::Sealing(epoch) {
        return Err(RegistryError::Lost);
    }
    entry.state = sealed;
    finish(&mut entry.layout, tail);
    entry.layout.iter_mut().for_each(|run| run.gone.clear());
    entry.version += 1;
    Ok(Outcome::Maps)
}

/// Only sealed logs are forgotten, and none that a slot is still to be taken over from, or that lies on a target of which
/// something was said since it was asked: it may have answered from another disk.
fn forget(maps: &mut Maps, logs: &[LogId], seen: MapEpoch) -> Outcome {
    for log in logs {
        let is_as_seen = |target: &TargetId| maps.targets.get(target).is_none_or(|entry| entry.since <= seen);
        let may_go = |entry: &LogEntry| {
            let mut groups = entry.layout.iter().flat_map(|run| &run.groups).filter_map(|group| maps.groups.get(group));
            matches!(entry.state, LogState::Sealed(_)) && groups.all(|group| group.targets.iter().all(is_as_seen))
        };
        if maps.logs.get(log).is_some_and(may_go) && !maps.slots.values().any(|slot| slot.needs(*log)) {
            maps.logs.remove(log);
        }
    }
    forget_groups(maps);
    Outcome::Maps
}

/// Forgets the groups that no log names any more, and of targets that were taken away those that no group names.
pub(crate) fn forget_groups(maps: &mut Maps) {
    let used: BTreeSet<_> =
        maps.logs.values().flat_map(|log| &log.layout).flat_map(|run| run.groups.iter().copied()).collect();
    maps.groups.retain(|id, group| group.current || used.contains(id));
    let named: BTreeSet<TargetId> = maps.groups.values().flat_map(|group| &group.targets).copied().collect();
    maps.targets.retain(|id, entry| entry.state != TargetState::Removed || named.contains(id));
}

fn set_slots(maps: &mut Maps, (first, last): (u16, u16), entry: SlotEntry, seen: MapEpoch) -> Reply {
    if seen != maps.epoch {
        return Err(RegistryError::Lost);
    }
    if first > last || last >= protocol::id::SLOT_COUNT {
        return Err(RegistryError::Unknown("slot".into()));
    }
    if !maps.nodes.get(&entry.node).is_some_and(|node| node.stores) {
        return Err(RegistryError::Unknown("storing node".into()));
    }
    let after = maps.slot(last).clone();
    maps.slots.retain(|&slot, _| slot < first || slot > last);
    if last + 1 < protocol::id::SLOT_COUNT {
        maps.slots.entry(last + 1).or_insert(after);
    }
    maps.slots.insert(first, entry);
    slots::join(maps);
    Ok(Outcome::Maps)
}

/// A target that fails or comes back re-forms the groups: stripes begun from now on lie on whole targets only.
fn set_target(maps: &mut Maps, target: TargetId, state: TargetState) -> Reply {
    if state == TargetState::Removed {
        return Err(RegistryError::InUse("only what is being drained can be removed".into()));
    }
    let since = next_epoch(maps);
    let entry = maps.targets.get_mut(&target).filter(|entry| entry.state != TargetState::Removed);
    let entry = entry.ok_or(RegistryError::Unknown("target".into()))?;
    match (entry.state, state) {
        (TargetState::New | TargetState::Whole, same) if same == entry.state => return Ok(Outcome::Maps),
        (_, TargetState::New) => return Err(RegistryError::InUse("a target that has served is not new".into())),
        (_, TargetState::Whole) => {
            return Err(RegistryError::InUse("a target is whole when it was found to lack nothing".into()));
        }
        _ => (entry.state, entry.since) = (state, since),
    }
    nodes::form(maps);
    Ok(Outcome::Maps)
}

/// A target that was behind is whole, unless something was said of it since it was looked at: it may have missed something
/// again, or its disk may be another one.
fn target_whole(maps: &mut Maps, target: TargetId, seen: MapEpoch) -> Reply {
    let since = next_epoch(maps);
    let entry = maps.targets.get_mut(&target).ok_or(RegistryError::Unknown("target".into()))?;
    match entry.state {
        TargetState::Whole => return Ok(Outcome::Maps),
        TargetState::Behind if entry.since <= seen => (entry.state, entry.since) = (TargetState::Whole, since),
        _ => return Err(RegistryError::Lost),
    }
    nodes::form(maps);
    Ok(Outcome::Maps)
}

/// Remembers over which targets whose disks are gone logs were written: whatever is to be sealed still. Who has claimed one may
/// have counted with such a disk, and claims it again. Something that was said of a target since the asker looked may mean that
/// it has another disk by now, on which lies what was written since.
fn disks_gone(maps: &mut Maps, targets: &[TargetId], seen: MapEpoch) -> Reply {
    for target in targets {
        let entry = maps.present().find(|(id, _)| id == target).map(|(_, entry)| entry);
        if entry.ok_or_else(|| RegistryError::Unknown("target".into()))?.since > seen {
            return Err(RegistryError::Lost);
        }
    }
    let groups = &maps.groups;
    let lies_on = |run: &Run, target: &TargetId| run.groups.iter().any(|id| groups[id].targets.contains(target));
    for entry in maps.logs.values_mut().filter(|entry| !matches!(entry.state, LogState::Sealed(_))) {
        let before = entry.layout.clone();
        for run in entry.layout.iter_mut().filter(|run| run.end.is_none()) {
            let gone: Vec<TargetId> = targets.iter().copied().filter(|target| lies_on(run, target)).collect();
            run.gone.extend(gone);
        }
        if entry.layout != before {
            entry.version += 1;
            if let LogState::Sealing(FenceEpoch(epoch)) = entry.state {
                entry.state = LogState::Sealing(FenceEpoch(epoch + 1));
            }
        }
    }
    Ok(Outcome::Maps)
}

fn entry_at(maps: &mut Maps, log: LogId, version: u64) -> Result<&mut LogEntry, RegistryError> {
    let entry = maps.logs.get_mut(&log).ok_or(RegistryError::Unknown("log".into()))?;
    if entry.version == version { Ok(entry) } else { Err(RegistryError::Lost) }
}

/// The widest stripe that any current group gives, for people.
pub fn widest(maps: &Maps) -> Option<Geometry> {
    maps.groups.values().filter(|group| group.current).map(|group| group.geometry).max_by_key(|shape| shape.width())
}

/// A target that failed is back, and lacks nothing.
#[cfg(test)]
pub(crate) fn bring_back(maps: &mut Maps, target: TargetId) {
    step(maps, RegistryRequest::SetTarget(target, TargetState::Behind)).expect("it serves");
    let seen = maps.epoch;
    step(maps, RegistryRequest::TargetWhole(target, seen)).expect("nothing was said of it since");
}

/// A node's newest session opens a log.
#[cfg(test)]
pub(crate) fn open(maps: &mut Maps, node: u32, writer: Writer) -> Reply {
    let (session, opening) = (maps.nodes[&node].session, maps.next_log.0);
    step(maps, RegistryRequest::OpenLog { node, session, writer, opening })
}

/// Makes a request of maps, which can be followed then.
#[cfg(test)]
pub(crate) fn step(maps: &mut Maps, request: RegistryRequest) -> Reply {
    let (next, reply) = apply(maps, request);
    *maps = next.unwrap_or_else(|| maps.clone());
    assert_eq!(maps.verify(), Ok(()));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use protocol::address::Position;
    use protocol::maps::{MapsError, SlotLog};

    fn cluster(targets: u32) -> Maps {
        let entry = |n: u32| TargetEntry::new(1, format!("target-{n}"));
        new_cluster(7, (0..targets).map(|n| (TargetId(n), entry(n))).collect(), 1, 1)
    }

    fn step(maps: &mut Maps, request: RegistryRequest) -> Reply {
        let (next, reply) = apply(maps, request);
        if let Some(next) = next {
            assert!(next.epoch > maps.epoch);
            *maps = next;
        }
        reply
    }

    #[test]
    fn maps_that_cannot_be_followed_are_known_as_such() {
        let mut maps = cluster(5);
        let _ = open(&mut maps, 1, Writer::Client);
        assert_eq!(maps.verify(), Ok(()));
        let broken = |change: &dyn Fn(&mut Maps)| {
            let mut maps = maps.clone();
            change(&mut maps);
            maps.verify()
        };
        assert_eq!(broken(&|maps| maps.slots.clear()), Err(MapsError::Slots));
        let beyond = SlotEntry { node: 1, base: None, logs: Vec::new() };
        assert_eq!(broken(&|maps| drop(maps.slots.insert(4096, beyond.clone()))), Err(MapsError::Slots));
        assert_eq!(broken(&|maps| maps.targets.clear()), Err(MapsError::Targets));
        let group = GroupId(0);
        let of_group = |targets| Err(MapsError::Group { group, targets });
        assert_eq!(broken(&|maps| maps.groups.get_mut(&group).unwrap().targets.truncate(4)), of_group(4));
        assert_eq!(broken(&|maps| maps.groups.get_mut(&group).unwrap().geometry.data = 0), of_group(5));
        assert_eq!(broken(&|maps| drop(maps.targets.remove(&TargetId(2)))), of_group(5));
        assert_eq!(broken(&|maps| maps.next_group = group), Err(MapsError::GroupNumber(group)));
        let run = |maps: &mut Maps, groups| maps.logs.get_mut(&LogId(1)).unwrap().layout[0].groups = groups;
        assert_eq!(broken(&|maps| run(maps, vec![])), Err(MapsError::Run(LogId(1))));
        assert_eq!(broken(&|maps| run(maps, vec![GroupId(77)])), Err(MapsError::Run(LogId(1))));
        assert_eq!(broken(&|maps| maps.decided = next_epoch(maps)), Err(MapsError::Decided));
    }

    #[test]
    fn all_of_what_is_to_be_set_is_set_or_nothing() {
        let mut maps = cluster(3);
        let (soon, never) = (Setting::RebuildMinutes(Some(2)), Setting::ScrubDays(Some(0)));
        let before = maps.epoch;
        step(&mut maps, RegistryRequest::Set(vec![soon, never], before)).expect("both make sense");
        let set = maps.clone();
        assert_eq!(
            (set.settings.rebuild_minutes, set.settings.scrub_days, set.settings.rebuild),
            (Some(2), Some(0), None)
        );
        let seen = maps.epoch;
        let wrong = RegistryRequest::Set(vec![Setting::RebuildMinutes(None), Setting::Rebuild(Some(1))], seen);
        let refused = step(&mut maps, wrong);
        assert!(matches!(refused, Err(RegistryError::Wrong(_))), "{refused:?}");
        assert_eq!(step(&mut maps, RegistryRequest::Set(vec![never], before)), Ok(Outcome::Maps), "so it is");
        assert_eq!(maps, set);
        step(&mut maps, RegistryRequest::Set(vec![Setting::RebuildMinutes(None)], seen)).expect("it is left to each");
        assert_eq!((maps.settings.rebuild_minutes, maps.settings.scrub_days), (None, Some(0)));
        let late = RegistryRequest::Set(vec![soon], before);
        assert_eq!(step(&mut maps, late), Err(RegistryError::Lost), "that was decided since");
    }

    #[test]
    fn no_group_is_formed_that_stripes_cannot_lie_on() {
        let mut maps = cluster(3);
        let geometry = Geometry { data: 1, parity: 1, fragment_size: 4096 };
        let good = GroupEntry::new(vec![TargetId(0), TargetId(2)], geometry, true);
        let shape = |data, parity, fragment_size| GroupEntry {
            geometry: Geometry { data, parity, fragment_size },
            ..good.clone()
        };
        let members =
            |targets: &[u32]| GroupEntry { targets: targets.iter().copied().map(TargetId).collect(), ..good.clone() };
        let bad = [
            shape(0, 2, 4096),
            shape(1, 0, 4096),
            shape(255, 255, u32::MAX),
            shape(1, 1, 0),
            members(&[0]),
            members(&[0, 0]),
            members(&[0, 3]),
        ];
        for group in bad {
            let before = maps.clone();
            let reply = step(&mut maps, RegistryRequest::FormGroup(group));
            assert!(matches!(reply, Err(RegistryError::Unknown(_))), "{reply:?}");
            assert_eq!(maps, before);
        }
        assert!(step(&mut maps, RegistryRequest::FormGroup(good)).is_ok());
    }

    /// Until a log goes on in it, a group that was just formed is nobody's, and may be forgotten. Whoever then goes on in the
    /// number that it was given must not find another group there.
    #[test]
    fn the_number_of_a_group_that_was_forgotten_is_not_given_again() {
        let mut maps = cluster(5);
        let Ok(Outcome::Log(log, epoch)) = open(&mut maps, 1, Writer::Client) else { panic!("it is opened") };
        let form = |maps: &mut Maps, fragment_size| {
            let geometry = Geometry { data: 1, parity: 1, fragment_size };
            let group = GroupEntry::new(vec![TargetId(0), TargetId(1)], geometry, false);
            match step(maps, RegistryRequest::FormGroup(group)) {
                Ok(Outcome::Group(id)) => id,
                other => panic!("{other:?}"),
            }
        };
        let first = form(&mut maps, 8192);
        let _ = step(&mut maps, RegistryRequest::ForgetLogs(vec![LogId(77)], MapEpoch(1)));
        assert!(!maps.groups.contains_key(&first));
        let second = form(&mut maps, 4096);
        assert_ne!(first, second);
        let version = maps.logs[&log].version;
        let add = |group| RegistryRequest::AddRun { log, version, epoch, from: StripeNumber(0), groups: vec![group] };
        assert_eq!(step(&mut maps, add(first)), Err(RegistryError::Unknown("group".into())));
        assert_eq!(step(&mut maps, add(second)), Ok(Outcome::Maps));
    }

    #[test]
    fn a_log_is_forgotten_only_by_who_looked_since_its_targets_are_what_they_are() {
        let mut maps = cluster(5);
        let _ = open(&mut maps, 1, Writer::Client);
        let log = LogId(1);
        let _ = step(&mut maps, RegistryRequest::Claim { log, version: 1 });
        let (epoch, length, tail) = (FenceEpoch(2), Position::new(StripeNumber(0), 0), StripeNumber(0));
        let _ = step(&mut maps, RegistryRequest::Seal { log, epoch, length, tail });
        let seen = maps.epoch;
        let _ = step(&mut maps, RegistryRequest::SetTarget(TargetId(2), TargetState::Behind));
        let forget = |maps: &mut Maps, seen| step(maps, RegistryRequest::ForgetLogs(vec![log], seen));
        assert_eq!(forget(&mut maps, seen), Ok(Outcome::Maps));
        assert!(maps.logs.contains_key(&log), "one of its targets may have answered from another disk");
        let seen = maps.epoch;
        assert_eq!(forget(&mut maps, seen), Ok(Outcome::Maps));
        assert!(!maps.logs.contains_key(&log));
    }

    #[test]
    fn an_opening_is_one_log_however_often_it_is_asked_for() {
        let mut maps = cluster(5);
        let asked = |session, opening| {
            let (node, writer) = (1, Writer::Client);
            RegistryRequest::OpenLog { node, session, writer, opening }
        };
        let log = |number| Ok(Outcome::Log(LogId(number), FenceEpoch(1)));
        assert_eq!(step(&mut maps, asked(1, 7)), log(1));
        assert_eq!(apply(&maps, asked(1, 7)), (None, log(1)), "the answer was lost");
        assert_eq!(step(&mut maps, asked(1, 8)), log(2));
        let _ = step(&mut maps, RegistryRequest::Claim { log: LogId(1), version: 1 });
        assert_eq!(step(&mut maps, asked(1, 7)), Err(RegistryError::Lost), "it is another's by now");
        let begin = RegistryRequest::Begin { node: 1, after: 1, address: String::new(), keeps: None };
        assert_eq!(step(&mut maps, begin), Ok(Outcome::Session(2)));
        assert_eq!(step(&mut maps, asked(1, 9)), Err(RegistryError::Over(1, 1)), "nobody would write it, or seal it");
        assert_eq!(step(&mut maps, asked(2, 7)), log(3), "another session, another log");
    }

    #[test]
    fn two_recoverers_cannot_both_seal_a_log() {
        let mut maps = cluster(5);
        assert_eq!(open(&mut maps, 1, Writer::Client), Ok(Outcome::Log(LogId(1), FenceEpoch(1))));
        let log = LogId(1);
        assert_eq!(step(&mut maps, RegistryRequest::Claim { log, version: 1 }), Ok(Outcome::Log(log, FenceEpoch(2))));
        assert_eq!(step(&mut maps, RegistryRequest::Claim { log, version: 1 }), Err(RegistryError::Lost));
        assert_eq!(step(&mut maps, RegistryRequest::Claim { log, version: 2 }), Ok(Outcome::Log(log, FenceEpoch(3))));
        let length = Position::new(StripeNumber(4), 99);
        let seal = |epoch| RegistryRequest::Seal { log, epoch, length, tail: StripeNumber(0) };
        assert_eq!(step(&mut maps, seal(FenceEpoch(2))), Err(RegistryError::Lost));
        assert_eq!(step(&mut maps, seal(FenceEpoch(3))), Ok(Outcome::Maps));
        assert_eq!(step(&mut maps, RegistryRequest::Claim { log, version: 4 }), Err(RegistryError::Lost));
    }

    #[test]
    fn logs_of_a_kind_go_round_all_groups_and_begin_in_different_ones() {
        let mut maps = cluster(8);
        let all: Vec<GroupId> = (0..8).map(GroupId).collect();
        let begun = |maps: &Maps| {
            let clients = maps.logs.values().filter(|entry| entry.writer == Writer::Client);
            let runs = clients.map(|entry| entry.layout.last().unwrap());
            let begun: BTreeSet<GroupId> = runs.clone().map(|run| run.group(run.from)).collect();
            for run in runs {
                assert_eq!(run.groups.iter().copied().collect::<BTreeSet<_>>(), all.iter().copied().collect());
            }
            begun.len()
        };
        for _ in 0..8 {
            for writer in [Writer::Client, Writer::Manager] {
                let _ = open(&mut maps, 1, writer);
            }
        }
        assert_eq!(begun(&maps), 8);
        // The same of runs that are added, wherever each log has come to by then.
        for (turn, log) in (1..16).step_by(2).map(LogId).enumerate() {
            let from = StripeNumber(3 * turn as u64);
            let request = RegistryRequest::AddRun { log, version: 1, epoch: FenceEpoch(1), from, groups: all.clone() };
            assert_eq!(step(&mut maps, request), Ok(Outcome::Maps));
        }
        assert_eq!(begun(&maps), 8);
    }

    #[test]
    fn a_claimed_log_gets_runs_from_its_claimant_alone() {
        let mut maps = cluster(5);
        let _ = open(&mut maps, 1, Writer::Client);
        let log = LogId(1);
        let add = |version, epoch| RegistryRequest::AddRun {
            log,
            version,
            epoch: FenceEpoch(epoch),
            from: StripeNumber(3),
            groups: vec![GroupId(0)],
        };
        assert_eq!(step(&mut maps, add(1, 1)), Ok(Outcome::Maps));
        let _ = step(&mut maps, RegistryRequest::Claim { log, version: 2 });
        assert_eq!(step(&mut maps, add(3, 1)), Err(RegistryError::Lost));
        assert_eq!(step(&mut maps, add(3, 2)), Ok(Outcome::Maps));
        let numbers: Vec<_> = maps.logs[&log].layout.iter().map(|run| run.number.0).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn a_target_is_whole_only_for_who_looked_since_it_came_back() {
        let mut maps = cluster(5);
        let target = TargetId(2);
        let set = |maps: &mut Maps, state| step(maps, RegistryRequest::SetTarget(target, state));
        let whole = |maps: &mut Maps, seen| step(maps, RegistryRequest::TargetWhole(target, seen));
        assert!(matches!(set(&mut maps, TargetState::Behind), Ok(Outcome::Maps)));
        let seen = maps.epoch;
        assert!(matches!(set(&mut maps, TargetState::Behind), Ok(Outcome::Maps)), "its disk is another one");
        assert_eq!(whole(&mut maps, seen), Err(RegistryError::Lost));
        let seen = maps.epoch;
        assert!(matches!(set(&mut maps, TargetState::Failed), Ok(Outcome::Maps)));
        let away = maps.epoch;
        assert_eq!(whole(&mut maps, away), Err(RegistryError::Lost), "it is away");
        assert!(matches!(set(&mut maps, TargetState::Behind), Ok(Outcome::Maps)));
        assert_eq!(
            (whole(&mut maps, seen), whole(&mut maps, away)),
            (Err(RegistryError::Lost), Err(RegistryError::Lost))
        );
        assert!(matches!(set(&mut maps, TargetState::Whole), Err(RegistryError::InUse(_))), "nobody looked");
        let seen = maps.epoch;
        let _ = open(&mut maps, 1, Writer::Client);
        assert_eq!(whole(&mut maps, seen), Ok(Outcome::Maps), "what else happened says nothing of it");
        assert_eq!((maps.targets[&target].state, whole(&mut maps, seen)), (TargetState::Whole, Ok(Outcome::Maps)));
    }

    #[test]
    fn a_disk_that_is_gone_tells_of_no_log_that_was_written_over_it() {
        let (mut maps, log, target) = (cluster(5), LogId(1), TargetId(2));
        let gone = |maps: &Maps, log: LogId| maps.logs[&log].layout.last().expect("it has a run").gone.clone();
        let _ = open(&mut maps, 1, Writer::Client);
        let _ = step(&mut maps, RegistryRequest::Claim { log, version: 1 });
        let length = Position::START;
        let seal = |epoch| RegistryRequest::Seal { log, epoch: FenceEpoch(epoch), length, tail: length.stripe };
        let seen = maps.epoch;
        let ask = RegistryRequest::DisksGone(vec![target], seen);
        assert_eq!(step(&mut maps, ask.clone()), Ok(Outcome::Maps));
        assert_eq!((gone(&maps, log), maps.logs[&log].state), ([target].into(), LogState::Sealing(FenceEpoch(3))));
        assert_eq!(step(&mut maps, seal(2)), Err(RegistryError::Lost), "it may have counted with the old disk");
        let before = maps.clone();
        assert_eq!((step(&mut maps, ask.clone()), &maps), (Ok(Outcome::Maps), &before), "asked again");
        let _ = open(&mut maps, 1, Writer::Client);
        let _ = step(&mut maps, RegistryRequest::SetTarget(target, TargetState::Behind));
        assert_eq!(step(&mut maps, ask), Err(RegistryError::Lost), "it comes late");
        assert!(gone(&maps, LogId(2)).is_empty(), "that one was begun on the new disk");
        assert_eq!(step(&mut maps, seal(3)), Ok(Outcome::Maps));
        assert!(gone(&maps, log).is_empty());
    }

    #[test]
    fn a_failed_target_leaves_the_groups_and_comes_back() {
        let mut maps = cluster(5);
        assert_eq!(step(&mut maps, RegistryRequest::SetTarget(TargetId(2), TargetState::Failed)), Ok(Outcome::Maps));
        let current: Vec<_> = maps.groups.values().filter(|group| group.current).collect();
        assert!(current.iter().all(|group| !group.targets.contains(&TargetId(2)) && group.geometry.data == 3));
        bring_back(&mut maps, TargetId(2));
        let current: Vec<_> = maps.groups.iter().filter(|(_, group)| group.current).map(|(id, _)| *id).collect();
        assert_eq!(current, [GroupId(0)]);
    }

    #[test]
    fn runs_of_slots_split_where_they_must() {
        let mut maps = cluster(2);
        let add = RegistryRequest::AddNode { name: "b".into(), address: String::new(), stores: true, attempt: None };
        assert_eq!(step(&mut maps, add), Ok(Outcome::Node(2)));
        let epoch = maps.epoch.0;
        let set = RegistryRequest::SetSlots {
            first: 10,
            last: 19,
            node: 2,
            base: None,
            logs: vec![SlotLog { log: LogId(5), from: Position::START }],
            epoch,
        };
        assert_eq!(step(&mut maps, set), Ok(Outcome::Maps));
        let nodes: Vec<_> = [0, 9, 10, 19, 20, 4095].iter().map(|&slot| maps.slot(slot).node).collect();
        assert_eq!(nodes, [1, 1, 2, 2, 1, 1]);
        let stale = RegistryRequest::SetSlots { first: 0, last: 0, node: 3, base: None, logs: vec![], epoch };
        assert_eq!(step(&mut maps, stale), Err(RegistryError::Lost));
    }
}
