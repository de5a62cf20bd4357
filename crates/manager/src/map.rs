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
        for _ in 0..STEP_EXTENTS_MAX {
            let Some(mapped) = self.extent(inode, from, to)? else { return Ok(to) };
            self.carve_one(inode, record, mapped, (from.max(mapped.start), to.min(mapped.end)))?;
        }
        Ok(self.extent(inode, from, to)?.map_or(to, |mapped| mapped.start))
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
