//! How many bytes still fit, and how many may wait in memory. Decides, never awaits.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use event_listener::{Event, EventListener};
use host::Moment;
use protocol::address::Position;
use protocol::id::TargetId;
use protocol::maps::Maps;
use protocol::storage::TargetStat;

use crate::ClientError;
use crate::client::lock;

/// `statfs`, in bytes after redundancy: what can really be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statfs {
    /// Bytes of file data that fit in all.
    pub bytes_total: u64,
    /// Bytes that are free, those that only cleaners and journals may take included.
    pub bytes_free: u64,
    /// Bytes that programs can still write.
    pub bytes_available: u64,
    /// Inodes that exist or could.
    pub inodes_total: u64,
    /// Inodes that could be made.
    pub inodes_free: u64,
}

/// Bytes of file data that fit when every target has room for `bytes` of fragments.
///
/// Stripes go round over the current groups, so all groups fill evenly until a target is full; its groups take no more,
/// and the others go on. A target that told nothing limits nothing.
pub fn usable(maps: &Maps, stats: &BTreeMap<TargetId, TargetStat>, bytes: impl Fn(&TargetStat) -> u64) -> u64 {
    let mut left: BTreeMap<TargetId, u64> = stats.iter().map(|(&target, stat)| (target, bytes(stat))).collect();
    let mut groups: Vec<_> = maps.groups.values().filter(|group| group.current).collect();
    let mut usable = 0;
    loop {
        let mut shares = BTreeMap::<TargetId, u64>::new();
        for target in groups.iter().flat_map(|group| &group.targets).filter(|&target| left.contains_key(target)) {
            *shares.entry(*target).or_default() += 1;
        }
        // How many bytes each fragment of each group may grow before some target is full.
        let Some(step) = shares.iter().map(|(target, share)| left[target] / share).min() else { return usable };
        usable += groups.iter().map(|group| step * u64::from(group.geometry.data)).sum::<u64>();
        for (target, share) in &shares {
            *left.get_mut(target).expect("only known targets have shares") -= step * share;
        }
        let is_full = |target| shares.get(target).is_some_and(|share| left[target] < *share);
        groups.retain(|group| !group.targets.iter().any(is_full));
    }
}

/// Bytes of file data that fit, all in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// On empty targets.
    pub total: u64,
    /// Now.
    pub free: u64,
    /// Now, and programs may have it.
    pub available: u64,
}

impl Room {
    /// What the targets tell, less what is on its way to them. Where groups overlap, going round over them is not the best
    /// way to fill them, and emptier targets may seem to hold less: never does more seem to be left than there was.
    pub(crate) fn of(maps: &Maps, stats: &BTreeMap<TargetId, TargetStat>, under_way: u64) -> Room {
        let total = usable(maps, stats, |stat| stat.bytes_total);
        let free = usable(maps, stats, |stat| stat.bytes_free).saturating_sub(under_way).min(total);
        let unreserved = |stat: &TargetStat| stat.bytes_free.saturating_sub(stat.bytes_reserved);
        let available = usable(maps, stats, unreserved).saturating_sub(under_way + margin(maps)).min(free);
        Room { total, free, available }
    }
}

/// Bytes kept free of file data beyond what targets reserve: fragments are begun whole, an open stripe has copies beside
/// its data, and the end of a stripe may stay empty. Every other client has an open one, too.
pub(crate) fn margin(maps: &Maps) -> u64 {
    (OPEN_STRIPES + clients(maps) - 1) * stripe_size(maps)
}

/// Bytes of the largest stripe.
pub(crate) fn stripe_size(maps: &Maps) -> u64 {
    let groups = maps.groups.values().filter(|group| group.current);
    groups.map(|group| u64::from(group.geometry.stripe_size())).max().unwrap_or(0)
}

/// How many may be writing.
pub(crate) fn clients(maps: &Maps) -> u64 {
    maps.nodes.len().max(1) as u64
}

/// Of all bytes written, one in so many goes to headers, padding and deltas.
const OVERHEAD_SHARE: u64 = 32;
/// Of all room, one part in so many is not worth the cleaner's work: it lies among live bytes.
const SLACK_SHARE: u64 = 12;
/// How long nobody waits for room after it did not come.
const VAIN: Duration = Duration::from_secs(60);
/// So many stripes may be under way when the targets tell how full they are.
const OPEN_STRIPES: u64 = 3;

/// What of the memory and of the targets' room is taken (DESIGN §4: clients get ENOSPC first, and before they lose
/// anything).
#[derive(Debug)]
pub(crate) struct Budget {
    dirty_max: u64,
    taken: Mutex<Taken>,
    /// Why dirty bytes could not be written out the last time: waiting for room in memory would be in vain.
    blocked: Mutex<Option<ClientError>>,
    freed: Event,
    filled: Event,
    /// Room that was to come did not: nobody waits for it before this moment.
    vain_until: Mutex<Moment>,
    /// How many wait for room.
    awaiting: AtomicU32,
}

/// Somebody waits for room, as long as this is there.
#[derive(Debug)]
pub(crate) struct Awaited<'a>(&'a Budget);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.awaiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What dirty bytes take of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Weight {
    /// Themselves.
    pub(crate) bytes: u64,
    /// What keeps them: many small files take more of it than of bytes.
    pub(crate) beside: u64,
}

impl Weight {
    fn memory(self) -> u64 {
        self.bytes + self.beside
    }
}

#[derive(Debug, Default)]
struct Taken {
    /// Written bytes that are in no log.
    dirty: Weight,
    /// Bytes of which the targets had room when they were asked, as far as they are this client's to take.
    usable: u64,
    /// Bytes written since, or then on their way.
    spent: u64,
    /// When so many are spent, targets are asked again: small durable writes take more of their room than one in
    /// [`OVERHEAD_SHARE`] says, and others write, too.
    ask_at: u64,
    /// Bytes that it could take in since, as its share of the room; and at best, if targets had all that was on its way.
    share: u64,
    share_at_best: u64,
    /// Bytes that ever went to the log, and of those, how many are known to be on targets: the first.
    appended: u64,
    stored: u64,
    /// Where the log ended once, and how many bytes had gone there by then: they are on targets when the log is up to here.
    mark: Option<(Position, u64)>,
}

impl Taken {
    /// Bytes of file data that are on their way to the targets, or wait for that, unless they were among the first `stored`.
    fn under_way(&self, stored: u64) -> u64 {
        self.dirty.bytes + self.appended - stored
    }
}

/// Whether a write may be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may, and its bytes are counted.
    Granted,
    /// Not before others are written out.
    Wait,
    /// Not before targets have told how much room they have by now.
    Ask,
    /// The targets had no room for it when they were asked last.
    NoRoom,
}

/// How what is on its way comes to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settling {
    /// It does not, or that would not help.
    Never,
    /// Some of it is to be written out first, as happens while room is awaited.
    WrittenOut,
    /// All of it is in the log, which is to be committed: nobody else may do it.
    Committed,
}

impl Budget {
    pub(crate) fn new(dirty_max: u64) -> Budget {
        Budget {
            dirty_max,
            taken: Mutex::default(),
            blocked: Mutex::default(),
            freed: Event::new(),
            filled: Event::new(),
            vain_until: Mutex::default(),
            awaiting: AtomicU32::new(0),
        }
    }

    /// Asks to take in `bytes`; with `is_fresh`, when targets were asked just now.
    pub(crate) fn admit(&self, bytes: u64, is_fresh: bool) -> Admission {
        let mut taken = lock(&self.taken);
        if taken.dirty.bytes > 0 && taken.dirty.memory() + bytes > self.dirty_max {
            self.filled.notify(usize::MAX);
            return Admission::Wait;
        }
        if taken.spent + bytes > taken.usable {
            return Admission::NoRoom;
        }
        if !is_fresh && taken.spent + bytes > taken.ask_at {
            return Admission::Ask;
        }
        taken.dirty.bytes += bytes;
        taken.spent += bytes + bytes / OVERHEAD_SHARE;
        if taken.dirty.memory() > self.dirty_max / 2 {
            self.filled.notify(usize::MAX);
        }
        Admission::Granted
    }

    /// Memory that written bytes take which are in no log.
    pub(crate) fn dirty(&self) -> u64 {
        lock(&self.taken).dirty.memory()
    }

    /// Whether `bytes` would fit, by what the targets told last.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        let taken = lock(&self.taken);
        taken.spent.saturating_add(bytes) <= taken.usable
    }

    /// Whether it makes sense to wait for room that dead stripes take, when so many bytes of it are needed and all targets
    /// together could hold `usable`, of which `live` are in use. Stripes that mostly live keep a part of it for good.
    pub(crate) fn may_come(&self, bytes: u64, (usable, live): (u64, u64), now: Moment) -> bool {
        let kept = usable / SLACK_SHARE + live / OVERHEAD_SHARE + self.under_way();
        now >= *lock(&self.vain_until) && live.saturating_add(kept).saturating_add(bytes) < usable
    }

    /// It did not come.
    pub(crate) fn did_not_come(&self, now: Moment) {
        *lock(&self.vain_until) = now + VAIN;
    }

    /// So many bytes are no longer dirty, or never became.
    pub(crate) fn release(&self, bytes: u64) {
        self.change(Weight { bytes, beside: 0 }, Weight::default());
    }

    /// What weighed `before` now weighs `after`.
    pub(crate) fn change(&self, before: Weight, after: Weight) {
        if before == after {
            return;
        }
        let dirty = &mut lock(&self.taken).dirty;
        dirty.bytes = dirty.bytes + after.bytes - before.bytes;
        dirty.beside = dirty.beside + after.beside - before.beside;
        if after.memory() < before.memory() {
            self.freed.notify(usize::MAX);
        }
    }

    /// So many bytes went to the log.
    pub(crate) fn appended(&self, bytes: u64) {
        lock(&self.taken).appended += bytes;
    }

    /// How many bytes ever went there.
    pub(crate) fn appended_so_far(&self) -> u64 {
        lock(&self.taken).appended
    }

    /// The first `appended` of those lie before `end`, and what lies before `reached` is on targets. What went to the log
    /// behind a mark waits for the next one.
    pub(crate) fn settle(&self, appended: u64, end: Position, reached: Position) {
        let mut taken = lock(&self.taken);
        assert!(appended <= taken.appended, "nothing lies in the log that was not appended");
        if let Some((_, marked)) = taken.mark.take_if(|mark| mark.0 <= reached) {
            taken.stored = taken.stored.max(marked);
        }
        if end <= reached {
            taken.stored = taken.stored.max(appended);
        } else {
            taken.mark.get_or_insert((end, appended));
        }
    }

    /// Of those the targets have so many, the first ones.
    pub(crate) fn stored_so_far(&self) -> u64 {
        lock(&self.taken).stored
    }

    /// Whether room for `bytes` may be seen when what is on its way is stored, and what has to be done for that: until then
    /// it counts twice, for targets may have it already.
    pub(crate) fn may_settle(&self, bytes: u64) -> Settling {
        if self.blocked().is_some() {
            return Settling::Never;
        }
        let taken = lock(&self.taken);
        match (taken.under_way(taken.stored), taken.dirty.bytes) {
            (0, _) => Settling::Never,
            _ if bytes > taken.share_at_best => Settling::Never,
            (_, 0) => Settling::Committed,
            _ => Settling::WrittenOut,
        }
    }

    /// The targets said that they have room for `usable` bytes, and when they were asked they had the first `stored` bytes of
    /// the log. Who takes no more than `unasked` need not ask.
    ///
    /// So many `clients` see the same room: each takes its share before it asks again. What all of them took in at once
    /// would be more than fits, and what cannot be stored cannot be given up to others either.
    pub(crate) fn learn(&self, (usable, stored): (u64, u64), unasked: u64, clients: u64) {
        let mut taken = lock(&self.taken);
        assert!(stored <= taken.stored, "what is stored stays stored");
        let under_way = taken.under_way(stored);
        taken.spent = under_way + under_way / OVERHEAD_SHARE;
        let share = usable.saturating_sub(taken.spent) / clients;
        taken.usable = taken.spent + share;
        taken.ask_at = taken.spent + (share / 2).max(unasked);
        taken.share = share;
        taken.share_at_best = usable / clients;
    }

    /// Bytes that are on their way to the targets.
    pub(crate) fn under_way(&self) -> u64 {
        let taken = lock(&self.taken);
        taken.under_way(taken.stored)
    }

    /// Bytes that were on their way to the targets when they had the first `stored` of the log, or have come since.
    pub(crate) fn under_way_since(&self, stored: u64) -> u64 {
        lock(&self.taken).under_way(stored)
    }

    /// Begins to wait for room. What is dirty has its room already, but only what targets hold makes them clean.
    pub(crate) fn awaited(&self) -> Awaited<'_> {
        self.awaiting.fetch_add(1, Ordering::Relaxed);
        self.filled.notify(usize::MAX);
        Awaited(self)
    }

    /// Whether what is dirty must be written out, whatever its age: there is much of it, or somebody waits for room, or others
    /// might take the room that it needs.
    pub(crate) fn is_pressed(&self) -> bool {
        let taken = lock(&self.taken);
        let (dirty, is_awaited) = (taken.dirty, self.awaiting.load(Ordering::Relaxed) > 0);
        dirty.memory() > self.dirty_max / 2 || dirty.bytes > 0 && (is_awaited || dirty.bytes > taken.share / 2)
    }

    /// Dirty bytes could not be written out, or could.
    pub(crate) fn block(&self, blocked: Option<ClientError>) {
        let is_blocked = blocked.is_some();
        *lock(&self.blocked) = blocked;
        if is_blocked {
            self.freed.notify(usize::MAX);
        }
    }

    /// Why waiting for room in memory would be in vain.
    pub(crate) fn blocked(&self) -> Option<ClientError> {
        lock(&self.blocked).clone()
    }

    /// Hears when dirty bytes become less.
    pub(crate) fn freed(&self) -> EventListener {
        self.freed.listen()
    }

    /// Hears when much is dirty.
    pub(crate) fn filled(&self) -> EventListener {
        self.filled.listen()
    }

    /// Lets all who wait look again.
    pub(crate) fn wake(&self) {
        self.freed.notify(usize::MAX);
        self.filled.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use protocol::fragment::Geometry;
    use protocol::id::{GroupId, StripeNumber};
    use protocol::maps::GroupEntry;

    use super::*;

    fn maps(groups: &[(&[u32], u8)]) -> Maps {
        let entry = |(targets, parity): &(&[u32], u8)| {
            let geometry = Geometry { data: targets.len() as u8 - parity, parity: *parity, fragment_size: 1 << 20 };
            GroupEntry::new(targets.iter().map(|&target| TargetId(target)).collect(), geometry, true)
        };
        Maps {
            groups: groups.iter().enumerate().map(|(id, group)| (GroupId(id as u32), entry(group))).collect(),
            ..Maps::empty(1, 1)
        }
    }

    fn position(offset: u32) -> Position {
        Position::new(StripeNumber(0), offset)
    }

    fn stats(free: &[u64]) -> BTreeMap<TargetId, TargetStat> {
        let stat = |bytes_free| TargetStat { bytes_free, ..TargetStat::default() };
        free.iter().enumerate().map(|(target, &free)| (TargetId(target as u32), stat(free))).collect()
    }

    #[test]
    fn the_fullest_target_limits_its_group_alone() {
        let free = |stat: &TargetStat| stat.bytes_free;
        assert_eq!(usable(&maps(&[(&[0, 1, 2], 1)]), &stats(&[100, 100, 100]), free), 200);
        assert_eq!(usable(&maps(&[(&[0, 1, 2], 1)]), &stats(&[100, 40, 100]), free), 80);
        assert_eq!(usable(&maps(&[(&[0, 1], 1), (&[2, 3], 1)]), &stats(&[10, 90, 70, 70]), free), 80);
        assert_eq!(usable(&maps(&[(&[0, 1], 1), (&[1, 2], 1)]), &stats(&[100, 100, 100]), free), 100);
        assert_eq!(usable(&maps(&[(&[0], 0)]), &stats(&[]), free), 0);
    }

    #[test]
    fn never_is_more_free_than_there_is() {
        let all: Vec<Vec<u32>> = (0..6).map(|left_out| (0..6).filter(|target| *target != left_out).collect()).collect();
        let maps = maps(&all.iter().map(|targets| (&targets[..], 1)).collect::<Vec<_>>());
        let (mut dice, mut odd) = (host::sim::Dice::new(1), 0);
        for _ in 0..20_000 {
            let mut stat = || {
                let bytes_total = 1 + dice.below(100);
                TargetStat { bytes_total, bytes_free: bytes_total - dice.below(bytes_total), ..TargetStat::default() }
            };
            let stats = (0..6).map(|target| (TargetId(target), stat())).collect();
            let room = Room::of(&maps, &stats, 0);
            assert!(room.available <= room.free && room.free <= room.total, "{room:?} of {stats:?}");
            odd += u32::from(usable(&maps, &stats, |stat| stat.bytes_free) > room.total);
        }
        assert!(odd > 0, "none of these worlds had the trouble");
    }

    #[test]
    fn what_was_taken_in_is_counted_until_it_is_stored() {
        let budget = Budget::new(100);
        budget.learn((150, 0), 1000, 1);
        assert_eq!(budget.admit(90, false), Admission::Granted);
        assert_eq!(budget.admit(20, false), Admission::Wait);
        budget.release(90);
        budget.appended(90);
        assert_eq!(budget.admit(70, false), Admission::NoRoom);
        assert_eq!(budget.admit(50, false), Admission::Granted);
        budget.settle(90, position(90), position(90));
        budget.learn((50, 90), 1000, 1);
        assert_eq!(budget.under_way(), 50);
        assert!(!budget.fits(1));
    }

    #[test]
    fn no_more_is_taken_off_than_what_the_log_has_reached() {
        let budget = Budget::new(100);
        budget.appended(30);
        budget.settle(30, position(30), position(0));
        budget.appended(20);
        budget.settle(50, position(50), position(29));
        assert_eq!(budget.under_way(), 50);
        budget.settle(50, position(50), position(40));
        assert_eq!(budget.under_way(), 20, "what lies before the first mark is stored, and the second is at the end");
        budget.appended(10);
        budget.settle(50, position(50), position(50));
        assert_eq!(budget.under_way(), 10, "it may lie behind the end that was seen");
        budget.settle(60, position(60), position(50));
        assert_eq!(budget.under_way(), 10);
        budget.settle(60, position(60), position(61));
        assert_eq!(budget.under_way(), 0);
    }

    #[test]
    fn what_was_stored_while_targets_were_asked_still_counts() {
        let budget = Budget::new(100);
        budget.learn((100, 0), 1000, 1);
        assert_eq!(budget.admit(64, false), Admission::Granted);
        let stored = budget.stored_so_far();
        budget.release(64);
        budget.appended(64);
        budget.settle(64, position(64), position(64));
        budget.learn((100, stored), 1000, 1);
        assert!(budget.fits(34) && !budget.fits(35), "they told of the time before");
    }

    #[test]
    fn what_is_on_its_way_is_awaited_where_that_helps() {
        let budget = Budget::new(1000);
        budget.learn((100, 0), 1000, 1);
        assert_eq!(budget.may_settle(50), Settling::Never, "nothing is on its way");
        assert_eq!(budget.admit(64, false), Admission::Granted);
        assert_eq!((budget.may_settle(100), budget.may_settle(101)), (Settling::WrittenOut, Settling::Never));
        budget.release(64);
        budget.appended(64);
        assert_eq!(budget.may_settle(100), Settling::Committed);
        budget.block(Some(ClientError::NoRoom));
        assert_eq!(budget.may_settle(100), Settling::Never);
    }

    #[test]
    fn what_keeps_dirty_bytes_is_counted_as_memory_and_not_as_room() {
        let budget = Budget::new(100);
        budget.learn((150, 0), 1000, 1);
        let (bytes, beside) = (10, 30);
        assert_eq!(budget.admit(bytes, false), Admission::Granted);
        budget.change(Weight { bytes, beside: 0 }, Weight { bytes, beside });
        assert!(!budget.is_pressed());
        assert_eq!(budget.admit(bytes, false), Admission::Granted);
        budget.change(Weight { bytes, beside: 0 }, Weight { bytes, beside });
        assert!(budget.is_pressed() && budget.fits(129));
        assert_eq!((budget.dirty(), budget.under_way()), (80, 20));
        assert_eq!(budget.admit(21, false), Admission::Wait);
        budget.change(Weight { bytes: 20, beside: 60 }, Weight::default());
        assert_eq!((budget.dirty(), budget.under_way()), (0, 0));
    }

    #[test]
    fn when_half_the_room_is_taken_targets_are_asked_again() {
        let budget = Budget::new(1000);
        budget.learn((100, 0), 10, 1);
        assert_eq!(budget.admit(50, false), Admission::Granted);
        assert_eq!(budget.admit(1, false), Admission::Ask);
        assert_eq!(budget.admit(1, true), Admission::Granted);
        // They hold more than was written.
        budget.learn((70, 0), 10, 1);
        assert_eq!(budget.admit(11, false), Admission::Ask);
        assert_eq!(budget.admit(10, false), Admission::Granted);
        assert_eq!(budget.admit(10, true), Admission::NoRoom);
    }

    #[test]
    fn of_room_that_others_see_too_a_share_is_taken_and_written_out_soon() {
        let budget = Budget::new(1000);
        budget.learn((400, 0), 10, 4);
        assert_eq!(budget.admit(50, false), Admission::Granted);
        assert!(!budget.is_pressed());
        assert_eq!(budget.admit(10, true), Admission::Granted);
        assert!(budget.is_pressed(), "the others might take what it needs");
        assert_eq!(budget.admit(50, true), Admission::NoRoom);
        // It is asked again, and nobody else took anything.
        budget.learn((400, 0), 10, 4);
        assert_eq!(budget.admit(50, true), Admission::Granted);
    }

    #[test]
    fn while_room_is_awaited_all_that_is_dirty_is_due() {
        let budget = Budget::new(1000);
        budget.learn((1000, 0), 0, 1);
        let awaited = budget.awaited();
        assert!(!budget.is_pressed(), "nothing is dirty");
        assert_eq!(budget.admit(10, true), Admission::Granted);
        assert!(budget.is_pressed());
        drop(awaited);
        assert!(!budget.is_pressed());
    }

    #[test]
    fn room_is_awaited_only_where_it_can_come() {
        let budget = Budget::new(100);
        let now = Moment(0);
        assert!(budget.may_come(1000, (120_000, 60_000), now));
        assert!(!budget.may_come(1000, (120_000, 110_000), now));
        budget.did_not_come(now);
        assert!(!budget.may_come(1000, (120_000, 0), now));
        assert!(budget.may_come(1000, (120_000, 0), now + VAIN));
    }
}
