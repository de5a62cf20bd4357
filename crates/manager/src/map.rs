//! The map of a file: which extents cover which bytes, and what becomes of them when others take their place.
//!
//! Every function keeps invariants 2, 3 and 5 of `docs/format-slot.md`: live counts, references and `stored` follow.

use protocol::address::LogAddress;
use protocol::file::{Content, Extent};
use protocol::id::{InodeId, SlotId};

use crate::encoding::Damaged;
use crate::extent::{Backing, Mapped, Reference, Shared, SharedId};
use crate::inode::{Body, Inode};
use crate::key;
use crate::records::{decode, encode};
use crate::transaction::{Stop, Transaction};

/// Extents that one step of an operation may touch: bounds the time under the slot's lock and the journal record.
pub(crate) const STEP_EXTENTS_MAX: usize = if cfg!(test) { 5 } else { 1024 };
/// Extents that one answer carries.
const ANSWER_EXTENTS_MAX: usize = 512;
/// Extents that the answer to a lookup carries along.
const FIRST_EXTENTS_MAX: usize = 8;

impl Transaction<'_> {
    /// The first extent that reaches behind `offset` and begins before `end`.
    pub(crate) fn extent(&self, inode: InodeId, offset: u64, end: u64) -> Result<Option<Mapped>, Stop> {
        let Some((at, value)) = self.next(inode.slot(), &key::extents_behind(inode, offset))? else { return Ok(None) };
        let (extent_end, backing) = (key::rest_number(at), decode::<Backing>(value)?);
        let start = extent_end.checked_sub(u64::from(backing.length())).ok_or(Damaged("extent"))?;
        Ok((start < end).then_some(Mapped { start, end: extent_end, backing }))
    }

    /// The content of a file over a range, as far as one answer carries.
    pub(crate) fn content(&self, inode: InodeId, record: &Inode, range: (u64, u64)) -> Result<Content, Stop> {
        self.content_bounded(inode, record, range, ANSWER_EXTENTS_MAX)
    }

    /// What the answer to a lookup carries of a file's content.
    pub(crate) fn first_content(&self, inode: InodeId, record: &Inode) -> Result<Content, Stop> {
        self.content_bounded(inode, record, (0, u64::MAX), FIRST_EXTENTS_MAX)
    }

    fn content_bounded(
        &self,
        inode: InodeId,
        record: &Inode,
        (from, end): (u64, u64),
        count_max: usize,
    ) -> Result<Content, Stop> {
        if let Body::Inline(bytes) = &record.body {
            return Ok(Content::Inline(bytes.clone()));
        }
        let (mut list, mut through) = (Vec::new(), from);
        while let Some(mapped) = self.extent(inode, through, end)? {
            if list.len() == count_max {
                return Ok(Content::Extents { list, through });
            }
            list.push(Extent { offset: mapped.start, address: self.address(mapped.backing)? });
            through = mapped.end;
        }
        Ok(Content::Extents { list, through: end.max(through) })
    }

    /// Where the bytes behind an extent lie.
    pub(crate) fn address(&self, backing: Backing) -> Result<LogAddress, Stop> {
        match backing {
            Backing::Owned(address) => Ok(address),
            Backing::Shared(reference) => {
                let shared = self.shared(reference.slot, reference.id)?;
                let end = u64::from(reference.skip) + u64::from(reference.length);
                if end > u64::from(shared.address.length) {
                    return Err(Damaged("reference to a virtual extent").into());
                }
                Ok(shared.address.part(reference.skip, reference.length))
            }
        }
    }

    /// Frees `from..to` of a file, up to [`STEP_EXTENTS_MAX`] extents. Returns how far it came: `to` when done.
    pub(crate) fn carve(&mut self, inode: InodeId, record: &mut Inode, from: u64, to: u64) -> Result<u64, Stop> {
        // Each look begins behind what was found before: it would pass over all that this step has removed, one by one.
        let mut at = from;
        for _ in 0..STEP_EXTENTS_MAX {
            let Some(mapped) = self.extent(inode, at, to)? else { return Ok(to) };
            self.carve_one(inode, record, mapped, (from.max(mapped.start), to.min(mapped.end)))?;
            at = mapped.end;
        }
        Ok(self.extent(inode, at, to)?.map_or(to, |mapped| mapped.start))
    }

    /// Lets the file's bytes from `offset` on live at `backing`. The range must be free.
    pub(crate) fn map(
        &mut self,
        inode: InodeId,
        record: &mut Inode,
        offset: u64,
        backing: Backing,
    ) -> Result<(), Stop> {
        let length = u64::from(backing.length());
        self.put(inode.slot(), key::extent(inode, offset + length), encode(&backing))?;
        record.stored += length;
        match backing {
            Backing::Owned(address) => self.born(inode.slot(), address),
            Backing::Shared(reference) => self.refer(reference),
        }
    }

    /// Makes an owned extent shared, with itself as the one reference.
    pub(crate) fn share(&mut self, inode: InodeId, mapped: Mapped) -> Result<Reference, Stop> {
        let address = match mapped.backing {
            Backing::Shared(reference) => return Ok(reference),
            Backing::Owned(address) => address,
        };
        let (slot, id) = (inode.slot(), SharedId::of(address));
        let reference = Reference { slot, id, skip: 0, length: address.length };
        self.put(slot, key::shared(id), encode(&Shared { address, references: 1 }))?;
        self.put(slot, key::shared_place(address), encode(&id))?;
        self.put(slot, key::extent(inode, mapped.end), encode(&Backing::Shared(reference)))?;
        Ok(reference)
    }

    /// A shared virtual extent.
    pub(crate) fn shared(&self, slot: SlotId, id: SharedId) -> Result<Shared, Stop> {
        let value = self.value(slot, &key::shared(id))?.ok_or(Damaged("reference to no virtual extent"))?;
        Ok(decode(value)?)
    }

    /// Cuts `from..to`, which lies within `mapped`, out of it.
    fn carve_one(
        &mut self,
        inode: InodeId,
        record: &mut Inode,
        mapped: Mapped,
        (from, to): (u64, u64),
    ) -> Result<(), Stop> {
        let (left, cut, right) = ((from - mapped.start) as u32, (to - from) as u32, (mapped.end - to) as u32);
        let slot = inode.slot();
        if right > 0 {
            self.put(slot, key::extent(inode, mapped.end), encode(&mapped.backing.part(left + cut, right)))?;
        } else {
            self.remove(slot, key::extent(inode, mapped.end))?;
        }
        if left > 0 {
            self.put(slot, key::extent(inode, from), encode(&mapped.backing.part(0, left)))?;
        }
        record.stored = record.stored.checked_sub(u64::from(cut)).ok_or(Damaged("stored bytes"))?;
        match mapped.backing {
            Backing::Owned(address) => self.died(slot, address.part(left, cut)),
            Backing::Shared(reference) if left > 0 && right > 0 => self.refer(reference),
            Backing::Shared(_) if left > 0 || right > 0 => Ok(()),
            Backing::Shared(reference) => self.release(reference),
        }
    }

    /// One more extent refers to a shared virtual extent.
    fn refer(&mut self, reference: Reference) -> Result<(), Stop> {
        let mut shared = self.shared(reference.slot, reference.id)?;
        shared.references = shared.references.checked_add(1).ok_or(Damaged("too many references"))?;
        self.put(reference.slot, key::shared(reference.id), encode(&shared))
    }

    /// One extent less refers to it; with the last, its bytes are dead.
    fn release(&mut self, reference: Reference) -> Result<(), Stop> {
        let mut shared = self.shared(reference.slot, reference.id)?;
        shared.references = shared.references.checked_sub(1).ok_or(Damaged("references"))?;
        if shared.references > 0 {
            return self.put(reference.slot, key::shared(reference.id), encode(&shared));
        }
        self.remove(reference.slot, key::shared(reference.id))?;
        self.remove(reference.slot, key::shared_place(shared.address))?;
        self.died(reference.slot, shared.address)
    }
}

#[cfg(test)]
mod tests {
    use protocol::file::{Kind, Time};
    use protocol::id::{LogId, StripeNumber};

    use super::*;
    use crate::placement::Placement;
    use crate::slot::Slot;
    use crate::state::SlotState;
    use crate::transaction::Context;

    fn empty_file() -> Inode {
        let born = Time(1);
        Inode {
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            stored: 0,
            accessed: born,
            modified: born,
            changed: born,
            created: born,
            version: 1,
            body: Body::Plain,
        }
    }

    #[test]
    fn carving_looks_once_for_each_extent() {
        let (slot, inode) = (SlotId(7), InodeId::new(SlotId(7), 1));
        let (placement, context) = (Placement::new(vec![slot], u64::MAX), Context { now: Time(1), node: 1 });
        let (mut state, mut record) = (SlotState::new(slot, Slot::empty(slot)), empty_file());
        let held = [&state];
        let mut tx = Transaction::new(&held, &placement, context);
        for number in 0..STEP_EXTENTS_MAX as u32 {
            let address = LogAddress { log: LogId(3), stripe: StripeNumber(0), offset: number * 10, length: 10 };
            tx.map(inode, &mut record, u64::from(number) * 20, Backing::Owned(address)).unwrap();
        }
        for (key, value) in tx.finish().changes.into_iter().flat_map(|(_, changes)| changes) {
            state.records.apply(&key, value.as_deref());
        }
        let held = [&state];
        let mut tx = Transaction::new(&held, &placement, context);
        assert_eq!(tx.carve(inode, &mut record, 0, u64::MAX), Ok(u64::MAX));
        assert_eq!(record.stored, 0);
        assert_eq!(state.records.looks.get(), STEP_EXTENTS_MAX + 1, "one for each, and one that finds no more");
    }
}
