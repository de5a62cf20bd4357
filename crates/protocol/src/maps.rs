//! What the registry keeps and every part reads: small, versioned, changed by compare-and-swap (DESIGN §9).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::address::{LogAddress, Position};
use crate::checksum::crc;
use crate::fragment::{FRAGMENT_SIZE, Geometry};
use crate::id::{FenceEpoch, GroupId, LogId, MapEpoch, RunNumber, SLOT_COUNT, StripeNumber, TargetId};
use crate::settings::Settings;

/// All maps as of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maps {
    /// Rises with every change.
    pub epoch: MapEpoch,
    /// Which cluster: random, so that a foreign target is known as such.
    pub cluster: u128,
    /// Since when registries agree on these maps: those of different reigns agree on nothing.
    pub reign: Reign,
    /// The redundancy class: how many targets of a stripe may be lost.
    pub parity: u8,
    /// The most data fragments that a stripe gets, where that is chosen.
    pub data_max: Option<u8>,
    /// The size of fragments in groups that the registry forms: a cluster constant (DESIGN §3).
    pub fragment_size: u32,
    /// All nodes, storing or not.
    pub nodes: BTreeMap<u32, NodeEntry>,
    /// All targets.
    pub targets: BTreeMap<TargetId, TargetEntry>,
    /// All stripe groups.
    pub groups: BTreeMap<GroupId, GroupEntry>,
    /// All logs that may still hold something.
    pub logs: BTreeMap<LogId, LogEntry>,
    /// The manager map, as runs of slots: the entry for a slot is the last one at or before it. Slot 0 is always there.
    pub slots: BTreeMap<u16, SlotEntry>,
    /// Slots that are to get another manager, in runs that do not overlap, by their first. Until the present one has handed
    /// them over, nothing has changed.
    pub wishes: BTreeMap<u16, SlotWish>,
    /// Invitations that nodes were added by, by their numbers, until they are long worth nothing.
    pub invitations: BTreeMap<u64, Invited>,
    /// What holds on all machines, however each is set up for itself.
    pub settings: Settings,
    /// In which epoch people last decided something: what holds on all machines, that targets go or stay, that all stop.
    /// Whoever decides by older maps than these does not know that.
    pub decided: MapEpoch,
    /// A stop of all machines at once, from when it is asked for until one of them begins again.
    pub stop: Option<Stop>,
    /// The number that the next log gets.
    pub next_log: LogId,
    /// The number that the next node gets. Numbers of nodes, targets and groups are never given twice: whoever was given one
    /// may come back with it after it was forgotten.
    pub next_node: u32,
    /// The number that the next target gets.
    pub next_target: TargetId,
    /// The number that the next group gets.
    pub next_group: GroupId,
}

/// A redundancy class (DESIGN §3): how much of a stripe may be lost, and how wide one may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// How many targets of a stripe may be lost.
    pub parity: u8,
    /// The most data fragments that it gets; none: what the registry takes for that parity.
    pub data_max: Option<u8>,
}

impl From<u8> for Class {
    fn from(parity: u8) -> Class {
        Class { parity, data_max: None }
    }
}

/// Why maps cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapsError {
    /// Slots below the first entry have no manager, an entry is of a slot that does not exist, or two wishes are of one slot.
    #[error("the slots do not begin at 0, go on behind the last, or are wished for twice")]
    Slots,
    /// There is nothing to store on.
    #[error("there are no targets")]
    Targets,
    /// A target is served, or a slot managed, by a node that does not exist.
    #[error("node {0} has targets or slots and does not exist")]
    Node(u32),
    /// A group's members or its geometry make no sense.
    #[error("stripe group {} has {targets} targets and cannot be laid out", .group.0)]
    Group {
        /// The group.
        group: GroupId,
        /// How many members it has.
        targets: usize,
    },
    /// New members of a group are none of its members, former ones still are, or new stripes are laid over it though it has
    /// new members.
    #[error("stripe group {} and those who took places in it do not agree", .0.0)]
    Newcomers(GroupId),
    /// A group has a number that is still to be given.
    #[error("stripe group {} has a number that was given to nobody", .0.0)]
    GroupNumber(GroupId),
    /// A target is in its state since an epoch that is still to come: nobody could ever find it whole.
    #[error("target {} is in its state since an epoch that is still to come", .0.0)]
    Since(TargetId),
    /// Something was said of a node's replica in an epoch that is still to come: its node could never go on without a copy.
    #[error("the copies of node {0}'s replica count since an epoch that is still to come")]
    Copies(u32),
    /// People decided something in an epoch that is still to come: nobody could ever decide anything.
    #[error("something was decided in an epoch that is still to come")]
    Decided,
    /// A run names no group, or one that does not exist.
    #[error("log {} has a run without groups that exist", .0.0)]
    Run(LogId),
}

impl Maps {
    /// Those of a cluster in which nothing is yet. They cannot be followed.
    pub fn empty(cluster: u128, class: impl Into<Class>) -> Maps {
        let Class { parity, data_max } = class.into();
        Maps {
            epoch: MapEpoch(1),
            cluster,
            reign: Reign::default(),
            parity,
            data_max,
            fragment_size: FRAGMENT_SIZE,
            nodes: BTreeMap::new(),
            targets: BTreeMap::new(),
            groups: BTreeMap::new(),
            logs: BTreeMap::new(),
            slots: BTreeMap::new(),
            wishes: BTreeMap::new(),
            invitations: BTreeMap::new(),
            settings: Settings::default(),
            decided: MapEpoch(0),
            stop: None,
            next_log: LogId(1),
            next_node: 1,
            next_target: TargetId(0),
            next_group: GroupId(0),
        }
    }

    /// What people call a target: by its name, and where there are several machines also by the one that has it.
    pub fn called(&self, target: TargetId) -> String {
        let Some(entry) = self.targets.get(&target) else { return format!("target {}", target.0) };
        match self.nodes.get(&entry.node) {
            Some(machine) if self.nodes.len() > 1 => format!("{}:{}", machine.name, entry.name),
            _ => entry.name.clone(),
        }
    }

    /// The redundancy class.
    pub fn class(&self) -> Class {
        Class { parity: self.parity, data_max: self.data_max }
    }

    /// Whether they can be followed: whoever takes in maps asks this first, and nobody needs to ask later.
    pub fn verify(&self) -> Result<(), MapsError> {
        if !self.slots.contains_key(&0) || self.slots.range(SLOT_COUNT..).next().is_some() {
            return Err(MapsError::Slots);
        }
        let mut free = 0;
        for (&first, wish) in &self.wishes {
            if first < free || wish.last < first || wish.last >= SLOT_COUNT {
                return Err(MapsError::Slots);
            }
            free = wish.last + 1;
        }
        if self.present().next().is_none() {
            return Err(MapsError::Targets);
        }
        let serving = self.present().map(|(_, target)| target.node);
        let wished = self.wishes.values().flat_map(|wish| [wish.from, wish.to]);
        if let Some(node) = serving.chain(self.managers()).chain(wished).find(|node| !self.nodes.contains_key(node)) {
            return Err(MapsError::Node(node));
        }
        if let Some((&target, _)) = self.targets.iter().find(|(_, target)| target.since > self.epoch) {
            return Err(MapsError::Since(target));
        }
        if let Some((&node, _)) = self.nodes.iter().find(|(_, node)| node.copies.since > self.epoch) {
            return Err(MapsError::Copies(node));
        }
        if self.decided > self.epoch {
            return Err(MapsError::Decided);
        }
        for (&group, entry) in &self.groups {
            let are_known = entry.targets.iter().all(|target| self.targets.contains_key(target));
            if !entry.geometry.is_possible() || entry.geometry.width() != entry.targets.len() || !are_known {
                return Err(MapsError::Group { group, targets: entry.targets.len() });
            }
            let members: BTreeSet<TargetId> = entry.targets.iter().copied().collect();
            let is_served = !entry.current || entry.newcomers.is_empty();
            if !entry.newcomers.is_subset(&members) || !entry.former.is_disjoint(&members) || !is_served {
                return Err(MapsError::Newcomers(group));
            }
            if group >= self.next_group {
                return Err(MapsError::GroupNumber(group));
            }
        }
        for (&log, entry) in &self.logs {
            let exist = |run: &Run| !run.groups.is_empty() && run.groups.iter().all(|id| self.groups.contains_key(id));
            if !entry.layout.iter().all(exist) {
                return Err(MapsError::Run(log));
            }
        }
        Ok(())
    }

    /// Whether a log was there and is no more: numbers are never given twice.
    pub fn is_forgotten(&self, log: LogId) -> bool {
        log < self.next_log && !self.logs.contains_key(&log)
    }

    /// Whether nobody writes a log any more, and all of it that counts is `disk`. Of one that these maps do not know yet nobody
    /// can tell so.
    pub fn is_over(&self, log: LogId) -> bool {
        let is_sealed = |entry: &LogEntry| matches!(entry.state, LogState::Sealed(_));
        self.logs.get(&log).map_or(log < self.next_log, is_sealed)
    }

    /// The length of a sealed log.
    pub fn sealed_length(&self, log: LogId) -> Option<Position> {
        match self.logs.get(&log)?.state {
            LogState::Sealed(length) => Some(length),
            LogState::Open(_) | LogState::Sealing(_) => None,
        }
    }

    /// Logs whose writer's session is over and that nobody has sealed yet.
    pub fn dead_logs(&self) -> impl Iterator<Item = LogId> {
        let is_dead = |entry: &LogEntry| {
            let writer = self.nodes.get(&entry.node);
            writer.is_none_or(|node| node.session > entry.session || node.session > 0 && node.state == NodeState::Gone)
        };
        let unsealed = self.logs.iter().filter(|(_, entry)| !matches!(entry.state, LogState::Sealed(_)));
        unsealed.filter(move |(_, entry)| is_dead(entry)).map(|(&log, _)| log)
    }

    /// Tells this manager map from others.
    pub fn manager_map_sum(&self) -> ManagerMapSum {
        let bytes = postcard::to_stdvec(&self.slots).expect("the manager map has no unserializable part");
        ManagerMapSum(crc(&bytes))
    }

    /// What whoever asks all managers knows.
    pub fn view(&self) -> View {
        View { epoch: self.epoch, managers: self.manager_map_sum() }
    }

    fn managers(&self) -> impl Iterator<Item = u32> {
        self.slots.values().map(|slot| slot.node)
    }

    /// The nodes that live and store: those that groups, slots and votes are given to.
    pub fn storing(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().filter(|(_, node)| node.stores && node.state == NodeState::Alive).map(|(&number, _)| number)
    }

    /// Those of them that are not being emptied, if there are any: who else is to have slots, and to vote.
    pub fn staying(&self) -> BTreeSet<u32> {
        let (leaving, staying): (BTreeSet<u32>, BTreeSet<u32>) = self.storing().partition(|&node| self.drains(node));
        if staying.is_empty() { leaving } else { staying }
    }

    /// Whether a node is being emptied: all its targets are.
    pub fn drains(&self, node: u32) -> bool {
        let mut own = self.targets.values().filter(|target| target.node == node).peekable();
        own.peek().is_some() && own.all(|target| target.drain != Drain::No)
    }

    /// The targets that were not taken away.
    pub fn present(&self) -> impl Iterator<Item = (TargetId, &TargetEntry)> {
        self.targets.iter().filter(|(_, entry)| entry.state != TargetState::Removed).map(|(&id, entry)| (id, entry))
    }

    /// Those of them that should answer.
    pub fn serving(&self) -> impl Iterator<Item = (TargetId, &TargetEntry)> {
        self.targets.iter().filter(|(_, entry)| entry.serves()).map(|(&id, entry)| (id, entry))
    }

    /// Whether what a member of a group does not show, it does not have though it should.
    pub fn is_whole_in(&self, group: &GroupEntry, member: TargetId) -> bool {
        let is_whole = self.targets.get(&member).is_some_and(|entry| entry.state == TargetState::Whole);
        is_whole && !group.newcomers.contains(&member)
    }

    /// The groups over which stripes may still come to lie: new ones, or those that a writer or recoverer has yet to end.
    pub fn written(&self) -> BTreeSet<GroupId> {
        let current = self.groups.iter().filter(|(_, group)| group.current).map(|(&id, _)| id);
        current.chain(self.in_logs()).collect()
    }

    /// Those of them over which logs lie that are written still.
    fn in_logs(&self) -> impl Iterator<Item = GroupId> {
        let unsealed = self.logs.values().filter(|log| !matches!(log.state, LogState::Sealed(_)));
        let written = unsealed.flat_map(|log| &log.layout).filter(|run| run.end.is_none());
        written.flat_map(|run| run.groups.iter().copied())
    }

    /// Whether nothing lies on a target that anybody needs.
    pub fn has_nothing(&self, target: TargetId) -> bool {
        self.targets.get(&target).is_some_and(TargetEntry::has_nothing)
    }

    /// Whether stripes may still come to lie on a target.
    pub fn takes_stripes(&self, target: TargetId) -> bool {
        self.written().iter().any(|group| self.groups[group].targets.contains(&target))
    }

    /// Whether a log lies over a target that is written still. Where none does, nobody has written there since the last one
    /// ended: before a stripe lies over a group, a log does.
    pub fn is_written(&self, target: TargetId) -> bool {
        self.in_logs().any(|group| self.groups[&group].targets.contains(&target))
    }

    /// The owner of a slot.
    ///
    /// # Panics
    /// When the map is empty, which no registry hands out.
    pub fn slot(&self, slot: u16) -> &SlotEntry {
        self.slots.range(..=slot).next_back().expect("slot 0 always has an entry").1
    }
}

/// The life of a registry from one promotion to the next: one that lost its quorum ends, and the next begins with what one
/// machine had (`docs/decisions/0024-a-registry-without-quorum.md`). The greater one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reign {
    /// Rises with every promotion.
    pub number: u32,
    /// The machine whose replica it began with; 0: that of the first machine of all.
    pub node: u32,
    /// The last session of that machine before.
    pub session: u64,
    /// Term and index of the last entry of that replica: who may have answered what lies behind it does not follow.
    pub last: Option<(u64, u64)>,
}

/// A checksum of the manager map: two nodes that name the same agree about who manages which slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerMapSum(pub u32);

/// What somebody knows of the maps who concludes something from what all managers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// As of when.
    pub epoch: MapEpoch,
    /// Whom it asks.
    pub managers: ManagerMapSum,
}

/// A node as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// What people call it.
    pub name: String,
    /// `host:port` at which its daemon is called; empty: from its own machine alone.
    pub address: String,
    /// Counts its lives: each begins a new session, and a lease is of one session. Zero: it never began.
    pub session: u64,
    /// Whether its session goes on.
    pub state: NodeState,
    /// Whether it has targets, manages slots and keeps a replica of the maps; a pure client does not.
    pub stores: bool,
    /// Where that replica is.
    pub copies: Counted,
}

impl NodeEntry {
    /// A node that never began.
    pub fn new(name: impl Into<String>, address: impl Into<String>, stores: bool) -> NodeEntry {
        let (name, address, copies) = (name.into(), address.into(), Counted::default());
        NodeEntry { name, address, session: 0, state: NodeState::Gone, stores, copies }
    }

    /// The same in its first session.
    pub fn begun(self) -> NodeEntry {
        NodeEntry { session: 1, state: NodeState::Alive, ..self }
    }
}

/// Which of its targets hold the copies of a node's replica of the maps that count: it goes on with others only once the
/// cluster agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Those targets. None: it has not told yet.
    pub targets: BTreeSet<TargetId>,
    /// Since which epoch of the maps.
    pub since: MapEpoch,
}

/// Who came with an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invited {
    /// The node that was added. It may be gone by now.
    pub node: u32,
    /// The second since 1970 from which the invitation is worth nothing.
    pub expires: u64,
    /// The number of the attempt by which it came.
    pub attempt: u64,
}

/// Whether a node's session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// Its lease has not been found to have run out.
    Alive,
    /// It ended its session, its lease ran out, or it never began.
    Gone,
}

/// A stop of all machines at once: a phase begins when every living node has finished the one before
/// (`docs/decisions/0022-all-stop-together.md`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Even if programs use mounts.
    pub force: bool,
    /// How far it is.
    pub phase: StopPhase,
    /// Living nodes that have not finished the phase.
    pub left: BTreeSet<u32>,
    /// The epoch in which it was asked for: what is said of another one counts for nothing in this.
    pub asked: MapEpoch,
}

/// How far a stop of all machines is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopPhase {
    /// Each looks whether programs use its mount; nothing has happened yet.
    Asked,
    /// Programs use the mount of this node, so nobody stops.
    CalledOff(u32),
    /// Mounts go, and clients store what they hold.
    Clients,
    /// Managers store what they hold. No client asks them any more.
    Managers,
    /// Everything is stored, and daemons end.
    Over,
}

/// A target as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetEntry {
    /// The node that serves it.
    pub node: u32,
    /// What people call it: its path on that node.
    pub name: String,
    /// Whether it serves.
    pub state: TargetState,
    /// Whether it is being emptied.
    pub drain: Drain,
    /// Since which epoch of the maps it is in its state. Whoever looked at it with older ones looked before it missed
    /// something, perhaps, or at another disk.
    pub since: MapEpoch,
    /// Whether it has been emptied: whoever asked all found that nothing lies there, and no log has gone there since.
    pub empty: bool,
    /// How many bytes of fragments fit there in all, about: of that much is made what it is used for. None: it has not told.
    pub size: Option<u64>,
}

/// Whether sizes of targets differ by so much that they are used differently: by more than an eighth of the larger one.
pub fn differ(one: u64, other: u64) -> bool {
    let (less, more) = (one.min(other), one.max(other));
    more - less > more / 8
}

/// Whether a target is being emptied, so that it can be taken away. Until then it serves, and counts for what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Drain {
    /// It stays.
    #[default]
    No,
    /// No new stripes lie on it, as long as the others alone are as redundant as with it.
    Careful,
    /// No new stripes lie on it, whatever redundancy that costs.
    Forced,
}

/// Whether a target serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// Reads and writes.
    Whole,
    /// Was away and has not caught up: reads only, and counts as failed for redundancy (DESIGN §3).
    Behind,
    /// Gone.
    Failed,
    /// It has a number and has never served: nothing lies there, and nobody misses it.
    New,
    /// Taken away, empty. It is known only as long as a group of the past names it.
    Removed,
}

impl TargetEntry {
    /// A new one, whole and to stay.
    pub fn new(node: u32, name: String) -> TargetEntry {
        let since = MapEpoch(0);
        TargetEntry { node, name, state: TargetState::Whole, drain: Drain::No, since, empty: false, size: None }
    }

    /// Whether a size that it tells is news: machines that are alike tell theirs one after the other, and are taken for alike
    /// all the while.
    pub fn is_news(&self, size: u64) -> bool {
        self.size.is_none_or(|known| known.abs_diff(size) > known / 16)
    }

    /// Whether it should answer.
    pub fn serves(&self) -> bool {
        matches!(self.state, TargetState::Whole | TargetState::Behind)
    }

    /// Whether nothing lies there that anybody needs: what it does not show, it does not lack.
    pub fn has_nothing(&self) -> bool {
        self.empty || self.state == TargetState::Removed
    }

    /// Whether it may be taken away once nothing lies there.
    pub fn may_go(&self) -> bool {
        self.drains() || self.state == TargetState::New
    }

    /// Whether it is being emptied still.
    pub fn drains(&self) -> bool {
        self.drain != Drain::No && self.state != TargetState::Removed
    }
}

/// A stripe group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupEntry {
    /// Its members, in order; as many as the geometry is wide.
    pub targets: Vec<TargetId>,
    /// The shape of its stripes.
    pub geometry: Geometry,
    /// Whether new stripes are laid over it; an obsolete group only keeps what it has.
    pub current: bool,
    /// Members that took another's place and may lack what lay there: what they do not show was not deleted for that. A
    /// group that has any is obsolete (`docs/decisions/0026-a-member-is-replaced.md`).
    pub newcomers: BTreeSet<TargetId>,
    /// Members whose place another one took. They never become members again: what is left there of the group's stripes is
    /// of no use to anybody once these are whole without it.
    pub former: BTreeSet<TargetId>,
}

impl GroupEntry {
    /// One whose members are its first.
    pub fn new(targets: Vec<TargetId>, geometry: Geometry, current: bool) -> GroupEntry {
        GroupEntry { targets, geometry, current, newcomers: BTreeSet::new(), former: BTreeSet::new() }
    }

    /// Whether stripes may be laid over it as over the other one: nobody is missed in either.
    pub fn lies_as(&self, other: &GroupEntry) -> bool {
        self.newcomers.is_empty() && self.targets == other.targets && self.geometry == other.geometry
    }
}

/// Who writes a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Writer {
    /// A client: file data and deltas.
    Client,
    /// A manager: journal, images, checkpoint tables.
    Manager,
    /// A cleaner: what it moved.
    Cleaner,
}

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The node that writes or wrote it.
    pub node: u32,
    /// In which session of that node it was opened.
    pub session: u64,
    /// By which question of that session.
    pub opening: u64,
    /// In which role.
    pub writer: Writer,
    /// Where its stripes lie.
    pub layout: Vec<Run>,
    /// Open, being sealed, or sealed.
    pub state: LogState,
    /// Changes with every change of this entry: what a compare-and-swap compares.
    pub version: u64,
}

impl LogEntry {
    /// A log of a session of a node, of which nothing has changed yet.
    pub fn new((node, session): (u32, u64), writer: Writer, layout: Vec<Run>, state: LogState) -> LogEntry {
        LogEntry { node, session, opening: 0, writer, layout, state, version: 1 }
    }

    /// The newest run in which `stripe` may lie.
    pub fn run(&self, stripe: StripeNumber) -> Option<&Run> {
        self.layout.iter().rev().find(|run| run.covers(stripe))
    }
}

/// From a stripe on, which groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its number: counts up, never used twice in its log.
    pub number: RunNumber,
    /// The first stripe.
    pub from: StripeNumber,
    /// One past the last stripe, once all later ones are complete in a later run.
    pub end: Option<StripeNumber>,
    /// The groups; the stripe number picks one.
    pub groups: Vec<GroupId>,
    /// Targets of theirs of which the disk is gone that was there while the run was written: what they do not show of its
    /// last stripes may have been there.
    pub gone: BTreeSet<TargetId>,
}

impl Run {
    /// One that was just begun.
    pub fn new(number: RunNumber, from: StripeNumber, groups: Vec<GroupId>) -> Run {
        Run { number, from, end: None, groups, gone: BTreeSet::new() }
    }

    /// Whether `stripe` may lie in this run.
    pub fn covers(&self, stripe: StripeNumber) -> bool {
        self.from <= stripe && self.end.is_none_or(|end| stripe < end)
    }

    /// The group of `stripe`.
    pub fn group(&self, stripe: StripeNumber) -> GroupId {
        self.groups[(stripe.0 % self.groups.len() as u64) as usize]
    }
}

/// The life of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogState {
    /// Its writer appends, with this fence epoch.
    Open(FenceEpoch),
    /// A recoverer claimed it with this epoch: no run can be added.
    Sealing(FenceEpoch),
    /// It ends here, for ever.
    Sealed(Position),
}

/// Who manages a run of slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotEntry {
    /// The node.
    pub node: u32,
    /// Where the table lies with which their manager before the first of the logs handed them over; none when they are to be
    /// found in the logs alone.
    pub base: Option<LogAddress>,
    /// The manager logs to roll when taking over, oldest first.
    pub logs: Vec<SlotLog>,
}

impl SlotEntry {
    /// Whether the slots are taken over from what lies in a log, as far as the registry knows.
    pub fn needs(&self, log: LogId) -> bool {
        self.base.is_some_and(|table| table.log == log) || self.logs.iter().any(|listed| listed.log == log)
    }
}

/// A run of slots that is to get another manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotWish {
    /// The last slot of the run.
    pub last: u16,
    /// The node that manages them now, and is to hand them over.
    pub from: u32,
    /// The node that is to take them.
    pub to: u32,
}

/// A manager's log, and from where on it may hold journal records of the slots that list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotLog {
    /// The log.
    pub log: LogId,
    /// Where it ended when its writer took these slots over. A checkpoint table of the log names images of them exactly
    /// if it covers the journal at least up to here.
    pub from: Position,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::FenceEpoch;

    #[test]
    fn a_target_is_called_by_its_machine_where_there_are_several() {
        let mut maps = Maps::empty(1, 1);
        let target = |id, node| (TargetId(id), TargetEntry::new(node, "target-0".into()));
        maps.targets.extend([target(0, 1), target(1, 2)]);
        maps.nodes.insert(1, NodeEntry::new("host-1", "", true));
        assert_eq!(maps.called(TargetId(0)), "target-0");
        maps.nodes.insert(2, NodeEntry::new("host-2", "", true));
        assert_eq!(maps.called(TargetId(1)), "host-2:target-0");
        assert_eq!(maps.called(TargetId(7)), "target 7");
    }

    #[test]
    fn a_log_that_maps_do_not_know_yet_is_not_over() {
        let log = |state| LogEntry::new((1, 1), Writer::Manager, vec![], state);
        let open = (LogId(2), log(LogState::Open(FenceEpoch(1))));
        let sealed = (LogId(3), log(LogState::Sealed(Position::START)));
        let maps = Maps { logs: [open, sealed].into(), next_log: LogId(4), ..Maps::empty(1, 1) };
        let of_all = |tell: fn(&Maps, LogId) -> bool| (1..=4).map(|log| tell(&maps, LogId(log))).collect::<Vec<_>>();
        assert_eq!(of_all(Maps::is_over), [true, false, true, false], "forgotten, open, sealed, not yet known");
        assert_eq!(of_all(Maps::is_forgotten), [true, false, false, false]);
    }
}
