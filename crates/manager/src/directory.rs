//! The names of a directory, which may be split by cookie over several slots (DESIGN §5, placement).
//!
//! A split directory has parts: ranges of cookies, each in a slot of its own. The inode's record, in the home slot, counts
//! the names that lie there, and all names of a directory that was never split; in each other slot a holding counts
//! those that lie in that one. So a new name changes one slot, and who looks at the directory adds up. Every function keeps
//! invariants 6 and 7 of `docs/format-slot.md`.

use protocol::file::{Attributes, Kind, Time};
use protocol::id::{InodeId, SlotId};
use protocol::manager::ManagerError;
use serde::{Deserialize, Serialize};

use crate::encoding::Damaged;
use crate::entry::{COOKIE_LAST, Entry, cookies};
use crate::inode::Inode;
use crate::key;
use crate::records::{decode, encode};
use crate::snapshot::Wish;
use crate::transaction::{Effect, Stop, Transaction, behind};

/// What an entry adds to its directory's size beside the name's bytes.
const ENTRY_SIZE: u64 = 32;
/// A part that is too large asks again to be split whenever it grew by this fraction of what it may take.
const ASK_AGAIN: u64 = 8;

/// A name found in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) cookie: u64,
    pub(crate) inode: InodeId,
    pub(crate) kind: Kind,
}

/// The names of a directory up to a cookie, from behind the part before: they lie in this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) last: u64,
    pub(crate) slot: SlotId,
}

/// What a directory's names in one slot come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// Bytes, of names and for each.
    pub(crate) size: u64,
    /// Names of directories.
    pub(crate) directories: u32,
    /// When one came, went or changed; of a new holding, what was known where it comes from.
    pub(crate) modified: Time,
    /// The same, by the clock.
    pub(crate) changed: Time,
    /// Grows with every change.
    pub(crate) version: u64,
}

impl Holding {
    fn touch(&mut self, now: Time) {
        (self.modified, self.changed) = (now, now);
        self.version += 1;
    }
}

/// Names that came and went, as a directory counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Bytes, of names and for each.
    pub(crate) size: u64,
    /// Names of directories.
    pub(crate) directories: u32,
}

impl Tally {
    /// One name more.
    pub(crate) fn add(&mut self, name: &[u8], kind: Kind) {
        self.size += ENTRY_SIZE + name.len() as u64;
        self.directories += u32::from(kind == Kind::Directory);
    }

    fn of(name: &[u8], kind: Kind) -> Tally {
        let mut tally = Tally::default();
        tally.add(name, kind);
        tally
    }
}

impl Transaction<'_> {
    /// The part that a cookie lies in.
    pub(crate) fn part(&self, directory: InodeId, cookie: u64) -> Result<Part, Stop> {
        match self.next(directory.slot(), &key::parts_from(directory, cookie))? {
            Some((at, value)) => Ok(Part { last: key::rest_number(at), slot: decode(value)? }),
            None => Ok(Part { last: COOKIE_LAST, slot: directory.slot() }),
        }
    }

    /// The part that a name lies in, or would.
    pub(crate) fn part_of_name(&self, directory: InodeId, name: &[u8]) -> Result<Part, Stop> {
        self.part(directory, cookies(name).0)
    }

    /// All parts, in order; none of a directory that was never split.
    pub(crate) fn parts(&self, directory: InodeId) -> Result<Vec<Part>, Stop> {
        let mut parts = Vec::new();
        let (mut from, end) = key::parts_from(directory, 0);
        while let Some((at, value)) = self.next(directory.slot(), &(from, end.clone()))? {
            let last = key::rest_number(at);
            parts.push(Part { last, slot: decode(value)? });
            if last >= COOKIE_LAST {
                break;
            }
            from = key::part(directory, last + 1);
        }
        Ok(parts)
    }

    /// What `stat` tells of an inode: of a split directory, its holdings added up, and the times of the newest.
    pub(crate) fn attributes(&self, inode: InodeId, record: &Inode) -> Result<Attributes, Stop> {
        let mut sum = record.attributes(inode);
        if !record.is_directory() {
            return Ok(sum);
        }
        for (_, holding) in self.holdings(inode)? {
            sum.size += holding.size;
            sum.links = sum.links.saturating_add(holding.directories);
            // Not the greater of both: somebody may have set a time in the future.
            if (holding.changed, holding.modified) > (sum.changed, sum.modified) {
                (sum.changed, sum.modified) = (holding.changed, holding.modified);
            }
            sum.version += holding.version;
        }
        Ok(sum)
    }

    /// An inode whose record is about to change. Of a split directory it becomes the newest thereby, and must know the
    /// modification time.
    pub(crate) fn inode_to_change(&self, inode: InodeId) -> Result<Inode, Stop> {
        let mut record = self.inode(inode)?;
        record.modified = self.attributes(inode, &record)?.modified;
        Ok(record)
    }

    /// What a name stands for. Few directories were ever split: what lies in the directory's own slot is found without a look
    /// at its parts.
    pub(crate) fn find(&self, directory: InodeId, name: &[u8]) -> Result<Option<Found>, Stop> {
        let home = directory.slot();
        if let Some(found) = self.find_in(home, directory, name)? {
            return Ok(Some(found));
        }
        let slot = self.part_of_name(directory, name)?.slot;
        if slot == home { Ok(None) } else { self.find_in(slot, directory, name) }
    }

    /// What a name stands for, if it lies in this slot.
    fn find_in(&self, slot: SlotId, directory: InodeId, name: &[u8]) -> Result<Option<Found>, Stop> {
        let (first, last) = cookies(name);
        let end = key::entry(directory, last + 1);
        let mut from = key::entry(directory, first);
        while let Some((at, value)) = self.next(slot, &(from, end.clone()))? {
            let (cookie, entry) = (key::rest_number(at), Entry::decode(value)?);
            if entry.name == name {
                return Ok(Some(Found { cookie, inode: entry.inode, kind: entry.kind }));
            }
            from = key::entry(directory, cookie + 1);
        }
        Ok(None)
    }

    /// A name that must be there.
    pub(crate) fn found(&self, directory: InodeId, name: &[u8]) -> Result<Found, Stop> {
        self.find(directory, name)?.ok_or(Stop::Refused(ManagerError::NotFound))
    }

    /// Adds a name that is not there, at the first free cookie of its hash. The directory counts it.
    pub(crate) fn add_name(&mut self, directory: InodeId, name: &[u8], to: (InodeId, Kind)) -> Result<(), Stop> {
        if self.directory(directory)?.links == 0 {
            return Err(ManagerError::NotFound.into());
        }
        let slot = self.part_of_name(directory, name)?.slot;
        let (mut cookie, last) = cookies(name);
        while self.value(slot, &key::entry(directory, cookie))?.is_some() {
            if cookie == last {
                return Err(ManagerError::NoRoom.into());
            }
            cookie += 1;
        }
        self.put_entry((slot, directory), cookie, name, to)?;
        let added = Tally::of(name, to.1);
        let size = self.count((slot, directory), added, Tally::default(), Change::Names)?;
        self.ask_to_split((slot, directory), (size - added.size, size));
        Ok(())
    }

    /// Removes a name that is there.
    pub(crate) fn remove_name(&mut self, directory: InodeId, name: &[u8], found: Found) -> Result<(), Stop> {
        let slot = self.part_of_name(directory, name)?.slot;
        self.remove(slot, key::entry(directory, found.cookie))?;
        self.count((slot, directory), Tally::default(), Tally::of(name, found.kind), Change::Names)?;
        Ok(())
    }

    /// Lets a name that is there stand for something else, at the same place of the listing.
    pub(crate) fn replace_name(
        &mut self,
        directory: InodeId,
        name: &[u8],
        found: Found,
        to: (InodeId, Kind),
    ) -> Result<(), Stop> {
        let slot = self.part_of_name(directory, name)?.slot;
        self.put_entry((slot, directory), found.cookie, name, to)?;
        self.count((slot, directory), Tally::of(name, to.1), Tally::of(name, found.kind), Change::Names)?;
        Ok(())
    }

    /// Whether a directory has no names.
    pub(crate) fn is_empty_directory(&self, directory: InodeId) -> Result<bool, Stop> {
        for slot in self.slots_of(directory)? {
            if self.next(slot, &key::entries_behind(directory, 0))?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves names to another slot, up to and with `boundary`: they become the part of that slot, or are added to it. They
    /// must be the first of their own part, and the names behind which that part begins those of `to`, if it has any.
    pub(crate) fn move_names(
        &mut self,
        directory: InodeId,
        (from, to): (SlotId, SlotId),
        (boundary, cookies): (u64, &[u64]),
    ) -> Result<(), Stop> {
        let home = directory.slot();
        let parts = self.parts(directory)?;
        if parts.is_empty() {
            self.put(home, key::part(directory, COOKIE_LAST), encode(&from))?;
        }
        if let Some(grown) = parts.iter().find(|part| part.slot == to) {
            self.remove(home, key::part(directory, grown.last))?;
        } else {
            let times = self.holding_or_record((from, directory))?;
            let holding = Holding { size: 0, directories: 0, version: 0, ..times };
            self.put(to, key::holding(directory), encode(&holding))?;
        }
        self.put(home, key::part(directory, boundary), encode(&to))?;
        let mut moved = Tally::default();
        for &cookie in cookies {
            let key = key::entry(directory, cookie);
            let value = self.value(from, &key)?.ok_or(Damaged("a name that was just there"))?.to_vec();
            let entry = Entry::decode(&value)?;
            moved.add(entry.name, entry.kind);
            self.remove(from, key.clone())?;
            self.put(to, key, value)?;
        }
        self.count((from, directory), Tally::default(), moved, Change::Nothing)?;
        self.count((to, directory), moved, Tally::default(), Change::Nothing)?;
        Ok(())
    }

    /// Bytes of the names that a directory has in a slot.
    pub(crate) fn names_size(&self, place: (SlotId, InodeId)) -> Result<u64, Stop> {
        Ok(self.holding_or_record(place)?.size)
    }

    /// Removes what a directory has beside its inode. It must be empty.
    pub(crate) fn remove_parts(&mut self, directory: InodeId) -> Result<(), Stop> {
        for (slot, _) in self.holdings(directory)? {
            self.remove(slot, key::holding(directory))?;
        }
        for part in self.parts(directory)? {
            self.remove(directory.slot(), key::part(directory, part.last))?;
        }
        Ok(())
    }

    /// The slots that a directory has names in. All are locked then.
    fn slots_of(&self, directory: InodeId) -> Result<Vec<SlotId>, Stop> {
        let parts = self.parts(directory)?;
        if parts.is_empty() {
            return Ok(vec![directory.slot()]);
        }
        let slots: Vec<SlotId> = parts.into_iter().map(|part| part.slot).collect();
        let wish = |slot: &SlotId| {
            let key = key::holding(directory);
            Wish::Range(*slot, (key.clone(), behind(&key)))
        };
        self.need(&slots, || slots.iter().filter(|&&slot| slot != directory.slot()).map(wish).collect())?;
        Ok(slots)
    }

    /// The holdings of a split directory: of all its slots but the home slot.
    fn holdings(&self, directory: InodeId) -> Result<Vec<(SlotId, Holding)>, Stop> {
        let slots = self.slots_of(directory)?.into_iter().filter(|&slot| slot != directory.slot());
        slots.map(|slot| Ok((slot, self.holding(slot, directory)?))).collect()
    }

    fn holding(&self, slot: SlotId, directory: InodeId) -> Result<Holding, Stop> {
        let value = self.value(slot, &key::holding(directory))?.ok_or(Damaged("a part without a holding"))?;
        Ok(decode(value)?)
    }

    /// What a directory's names in a slot come to, in the home slot by the inode's record.
    fn holding_or_record(&self, (slot, directory): (SlotId, InodeId)) -> Result<Holding, Stop> {
        if slot != directory.slot() {
            return self.holding(slot, directory);
        }
        let record = self.directory(directory)?;
        let Inode { size, modified, changed, version, .. } = record;
        Ok(Holding { size, directories: record.links.saturating_sub(2), modified, changed, version })
    }

    /// Counts names that came to a slot and that went. Returns the size of those that are there now.
    fn count(
        &mut self,
        (slot, directory): (SlotId, InodeId),
        came: Tally,
        went: Tally,
        change: Change,
    ) -> Result<u64, Stop> {
        let now = self.now();
        if slot == directory.slot() {
            let mut record = self.directory(directory)?;
            record.size = (record.size + came.size).saturating_sub(went.size);
            let links = record.links.checked_add(came.directories).ok_or(ManagerError::TooManyLinks)?;
            record.links = links.saturating_sub(went.directories);
            if change == Change::Names {
                record.touch(now);
            }
            self.put_inode(directory, &record)?;
            return Ok(record.size);
        }
        let mut holding = self.holding(slot, directory)?;
        holding.size = (holding.size + came.size).saturating_sub(went.size);
        let directories = holding.directories.checked_add(came.directories).ok_or(ManagerError::TooManyLinks)?;
        holding.directories = directories.saturating_sub(went.directories);
        if change == Change::Names {
            holding.touch(now);
        }
        self.put(slot, key::holding(directory), encode(&holding))?;
        Ok(holding.size)
    }

    /// Asks for a split when a part has grown too large, and again and again while nobody splits it.
    fn ask_to_split(&mut self, (slot, directory): (SlotId, InodeId), (before, after): (u64, u64)) {
        let may = self.placement().part_bytes_max();
        let step = (may / ASK_AGAIN).max(1);
        if after.saturating_sub(may) / step > before.saturating_sub(may) / step {
            self.effect(Effect::Split(directory, slot));
        }
    }

    fn put_entry(
        &mut self,
        (slot, directory): (SlotId, InodeId),
        cookie: u64,
        name: &[u8],
        to: (InodeId, Kind),
    ) -> Result<(), Stop> {
        let entry = Entry { kind: to.1, inode: to.0, name };
        self.put(slot, key::entry(directory, cookie), entry.encode())
    }
}

/// What counting anew means to those who look at a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Its names changed.
    Names,
    /// They only lie elsewhere.
    Nothing,
}
