//! A page: a sorted run of records, packed into one heap, so that a record costs its bytes and fourteen more.
//!
//! Who has many files looks into pages that no processor's cache holds, and waits for memory at each step of a search. So a
//! piece of each key lies beside its offset, all of them next to each other, and some of these pieces lie in the page itself:
//! most searches look at a few neighbouring places, and then at one record.
//!
//! Invariants
//! 1. `order` holds the heap offset of every record, in strictly ascending key order.
//! 2. `dead` counts the heap bytes that no offset names; a page whose heap is mostly dead is packed anew.
//! 3. All keys begin with `prefix`. Beside each offset lie the four bytes of the key behind that, with zeros for what the key
//!    lacks; so they never descend.
//! 4. `marks` are of the tags.

use std::cmp::Ordering;

use crate::encoding::{Cursor, Damaged, VERSION, pack, unpack};
use crate::marks::Marks;

/// A page that holds more bytes than this is split. A look at one record that is not in memory reads a page, and what does
/// not fit into memory costs by that; a slot's index has an entry for each. Small in tests, so that there are many.
pub(crate) const PAGE_SIZE: usize = if cfg!(test) { 1 << 10 } else { 16 << 10 };
/// Bytes by which the heap of a large page grows. Doubling it would leave half of the memory for metadata empty.
const HEAP_STEP: usize = PAGE_SIZE / 8;
/// Bytes before a record's key: two lengths.
const LENGTHS_SIZE: usize = 6;
const COUNT_SIZE: usize = 4;

/// What the keys of a page have in common counts up to here: nearly all of it in a page of files, of names, or of live bytes.
const PREFIX_MAX: usize = 23;
/// As many marks as a line of a processor's cache holds: of a full page, a share between two is two or three lines.
const MARKS: usize = 16;

/// A sorted run of records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    heap: Vec<u8>,
    order: Vec<Place>,
    dead: usize,
    prefix: Prefix,
    marks: Marks<u32, MARKS>,
}

/// Where a record is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// What its key says behind the prefix.
    tag: u32,
    /// Where it begins in the heap.
    start: u32,
}

/// The bytes that all keys of a page begin with, up to [`PREFIX_MAX`].
#[derive(Clone, Copy, Debug, Default)]
struct Prefix {
    bytes: [u8; PREFIX_MAX],
    size: u8,
}

impl Prefix {
    /// What two keys have in common.
    fn common(one: &[u8], other: &[u8]) -> Prefix {
        let size = one.iter().zip(other).take(PREFIX_MAX).take_while(|(one, other)| one == other).count();
        let mut bytes = [0; PREFIX_MAX];
        bytes[..size].copy_from_slice(&one[..size]);
        Prefix { bytes, size: size as u8 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.size)]
    }

    /// What a key that begins with it says behind it.
    fn tag(&self, key: &[u8]) -> u32 {
        let rest = &key[usize::from(self.size)..];
        if let Some(tag) = rest.first_chunk() {
            return u32::from_be_bytes(*tag);
        }
        let mut tag = [0; size_of::<u32>()];
        tag[..rest.len()].copy_from_slice(rest);
        u32::from_be_bytes(tag)
    }
}

impl Page {
    /// How many records.
    pub(crate) fn count(&self) -> usize {
        self.order.len()
    }

    /// Bytes of the records with their lengths: what an image takes.
    pub(crate) fn size(&self) -> usize {
        self.heap.len() - self.dead
    }

    /// Bytes of memory taken.
    pub(crate) fn memory(&self) -> usize {
        taken(self.heap.capacity()) + taken(self.order.capacity() * size_of::<Place>())
    }

    /// The record at `index`, counted in key order.
    pub(crate) fn record(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let start = self.order.get(index)?.start as usize;
        let (key, value) = self.lengths(start);
        let body = &self.heap[start + LENGTHS_SIZE..start + LENGTHS_SIZE + key + value];
        Some(body.split_at(key))
    }

    /// The index of `key`, or that of the first greater one.
    pub(crate) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix.bytes();
        match key[..prefix.len().min(key.len())].cmp(prefix) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.count()),
            Ordering::Equal => {}
        }
        let tag = self.prefix.tag(key);
        let from = self.first_from(tag);
        let compare = |place: &Place| self.key(place.start as usize).cmp(key);
        // Most often it is the first of those with its tag, or would be.
        match self.order.get(from).filter(|place| place.tag == tag).map(compare) {
            Some(Ordering::Equal) => return Ok(from),
            Some(Ordering::Greater) | None => return Err(from),
            Some(Ordering::Less) => {}
        }
        let alike = self.order[from..].iter().take_while(|place| place.tag == tag).count();
        let found = self.order[from..from + alike].binary_search_by(compare);
        found.map(|index| from + index).map_err(|index| from + index)
    }

    /// The index of the first record whose tag is not below this one.
    fn first_from(&self, tag: u32) -> usize {
        let share = self.marks.share(self.count(), |mark| mark < tag);
        // All of the share, for it is small: so its lines are waited for together.
        share.start + self.order[share].iter().filter(|place| place.tag < tag).count()
    }

    fn mark(&mut self) {
        self.marks = Marks::of(self.count(), |index| self.order[index].tag);
    }

    /// The value of `key`.
    pub(crate) fn value(&self, key: &[u8]) -> Option<&[u8]> {
        let index = self.find(key).ok()?;
        self.record(index).map(|(_, value)| value)
    }

    /// Puts a record, or removes it.
    pub(crate) fn change(&mut self, key: &[u8], value: Option<&[u8]>) {
        match value {
            Some(value) => self.put(key, value),
            None => self.remove(key),
        }
    }

    /// Puts or replaces a record.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        match self.find(key) {
            Ok(index) => {
                let start = self.order[index].start as usize;
                let (_, old) = self.lengths(start);
                if old == value.len() {
                    let from = start + LENGTHS_SIZE + key.len();
                    self.heap[from..from + old].copy_from_slice(value);
                    return;
                }
                self.dead += LENGTHS_SIZE + key.len() + old;
                self.order[index].start = self.push(key, value);
            }
            Err(index) => {
                self.admit(key);
                let place = Place { tag: self.prefix.tag(key), start: self.push(key, value) };
                self.order.insert(index, place);
                self.mark();
            }
        }
        self.pack_if_sparse();
    }

    /// Removes a record, if there.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if let Ok(index) = self.find(key) {
            let start = self.order.remove(index).start as usize;
            let (key, value) = self.lengths(start);
            self.dead += LENGTHS_SIZE + key + value;
            self.mark();
            self.pack_if_sparse();
        }
    }

    /// Takes away all records from `index` on.
    pub(crate) fn split_off(&mut self, index: usize) -> Page {
        let mut upper = Page::default();
        for at in index..self.count() {
            let (key, value) = self.record(at).expect("within the page");
            let place = Place { tag: 0, start: upper.push(key, value) };
            upper.order.push(place);
        }
        upper.find_prefix();
        self.order.truncate(index);
        self.pack();
        upper
    }

    /// Adds all records of `upper`, which all sort behind ours.
    pub(crate) fn append(&mut self, upper: &Page) {
        for at in 0..upper.count() {
            let (key, value) = upper.record(at).expect("within the page");
            let place = Place { tag: 0, start: self.push(key, value) };
            self.order.push(place);
        }
        self.find_prefix();
    }

    /// Takes no more memory than the records need.
    pub(crate) fn pack(&mut self) {
        let mut heap = Vec::with_capacity(self.size());
        for place in &mut self.order {
            let from = place.start as usize;
            let lengths = &self.heap[from..from + LENGTHS_SIZE];
            let key = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
            let value = u32::from_le_bytes([lengths[2], lengths[3], lengths[4], lengths[5]]) as usize;
            place.start = heap.len() as u32;
            heap.extend_from_slice(&self.heap[from..from + LENGTHS_SIZE + key + value]);
        }
        self.heap = heap;
        self.order.shrink_to_fit();
        self.dead = 0;
        self.find_prefix();
    }

    /// The body of a page record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        pack(self.plain())
    }

    /// The same before it is packed. Of one page there is one.
    pub(crate) fn plain(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(1 + COUNT_SIZE + self.size());
        body.push(VERSION);
        body.extend_from_slice(&(self.count() as u32).to_le_bytes());
        for place in &self.order {
            let start = place.start as usize;
            let (key, value) = self.lengths(start);
            body.extend_from_slice(&self.heap[start..start + LENGTHS_SIZE + key + value]);
        }
        body
    }

    /// Reads the body of a page record.
    pub(crate) fn decode(body: &[u8]) -> Result<Page, Damaged> {
        let body = unpack(body, "page")?;
        let mut cursor = Cursor::new(&body, "page")?;
        let count = cursor.u32()? as usize;
        let heap = &body[1 + COUNT_SIZE..];
        // A count that the bytes cannot hold must not make us reserve for it.
        let mut order = Vec::with_capacity(count.min(heap.len() / LENGTHS_SIZE));
        let (mut at, mut last) = (0, None);
        for _ in 0..count {
            let (key_size, value_size) = (cursor.u16()? as usize, cursor.u32()? as usize);
            let key = cursor.take(key_size)?;
            cursor.take(value_size)?;
            if last.is_some_and(|last| last >= key) {
                return Err(Damaged("page order"));
            }
            last = Some(key);
            order.push(Place { tag: 0, start: at as u32 });
            at += LENGTHS_SIZE + key_size + value_size;
        }
        if !cursor.is_empty() {
            return Err(Damaged("page end"));
        }
        let mut page = Page { heap: heap.to_vec(), order, dead: 0, ..Page::default() };
        page.find_prefix();
        Ok(page)
    }

    /// Makes place for a key that may begin otherwise than all others.
    fn admit(&mut self, key: &[u8]) {
        if self.order.is_empty() {
            self.prefix = Prefix::common(key, key);
        } else if !key.starts_with(self.prefix.bytes()) {
            self.prefix = Prefix::common(self.prefix.bytes(), key);
            self.tag_behind_prefix();
        }
    }

    /// Finds out what all keys have in common, which is what the first and the last have, and tags them by the rest.
    fn find_prefix(&mut self) {
        let (Some(first), Some(last)) = (self.order.first(), self.order.last()) else { return self.mark() };
        self.prefix = Prefix::common(self.key(first.start as usize), self.key(last.start as usize));
        self.tag_behind_prefix();
    }

    fn tag_behind_prefix(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.iter_mut().for_each(|place| place.tag = self.prefix.tag(self.key(place.start as usize)));
        self.order = order;
        self.mark();
    }

    fn lengths(&self, start: usize) -> (usize, usize) {
        let bytes = &self.heap[start..start + LENGTHS_SIZE];
        let value = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        (usize::from(u16::from_le_bytes([bytes[0], bytes[1]])), value as usize)
    }

    fn key(&self, start: usize) -> &[u8] {
        let (key, _) = self.lengths(start);
        &self.heap[start + LENGTHS_SIZE..start + LENGTHS_SIZE + key]
    }

    fn push(&mut self, key: &[u8], value: &[u8]) -> u32 {
        let start = self.heap.len() as u32;
        let key_size = u16::try_from(key.len()).expect("keys are short");
        let value_size = u32::try_from(value.len()).expect("values are bounded");
        let (size, room) = (LENGTHS_SIZE + key.len() + value.len(), self.heap.capacity() - self.heap.len());
        if size > room && self.heap.capacity() >= HEAP_STEP {
            self.heap.reserve_exact(size.max(HEAP_STEP));
        }
        self.heap.extend_from_slice(&key_size.to_le_bytes());
        self.heap.extend_from_slice(&value_size.to_le_bytes());
        self.heap.extend_from_slice(key);
        self.heap.extend_from_slice(value);
        start
    }

    fn pack_if_sparse(&mut self) {
        if self.dead > self.heap.len() / 2 && self.dead > PAGE_SIZE / 16 {
            self.pack();
        }
    }
}

/// What a piece of memory of so many bytes takes: allocators have four sizes between a power of two and the next.
fn taken(bytes: usize) -> usize {
    bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Keys that differ early or late, begin with one another, and are shorter than what others have in common.
    fn keys_alike() -> Vec<Vec<u8>> {
        let stem = [7_u8; PREFIX_MAX + 2];
        let ends: [&[u8]; 9] =
            [b"", b"\0", b"\0\0", b"\0\0\0\0\x01", b"a", b"abcd", b"abcde", b"abcdf", b"\xff\xff\xff\xff\xff"];
        let sizes = [0, 1, 8, PREFIX_MAX - 1, PREFIX_MAX, PREFIX_MAX + 2];
        let keys = sizes.iter().flat_map(|&size| ends.map(|end| [&stem[..size], end].concat()));
        keys.collect()
    }

    fn checked(page: &Page, model: &BTreeMap<Vec<u8>, Vec<u8>>, asked: &[Vec<u8>]) {
        let records: Vec<_> = (0..page.count()).map(|at| page.record(at).unwrap()).collect();
        assert!(records.iter().copied().eq(model.iter().map(|(key, value)| (&key[..], &value[..]))));
        for key in asked {
            let below = model.keys().filter(|&other| other < key).count();
            let place = if model.contains_key(key) { Ok(below) } else { Err(below) };
            assert_eq!(page.find(key), place, "{key:?} in {:?}", model.keys());
        }
    }

    #[test]
    fn a_page_finds_what_a_sorted_map_finds() {
        let keys = keys_alike();
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % below
        };
        for _ in 0..60 {
            let (mut page, mut model) = (Page::default(), BTreeMap::new());
            // Long ones alone now and then: with the empty key nothing is in common.
            let mine = &keys[next(keys.len())..];
            for _ in 0..80 {
                let key = &mine[next(mine.len())];
                if next(3) > 0 {
                    let value = vec![b'v'; next(40)];
                    page.put(key, &value);
                    model.insert(key.clone(), value);
                } else {
                    page.remove(key);
                    model.remove(key);
                }
                checked(&page, &model, &keys);
            }
            checked(&Page::decode(&page.encode()).unwrap(), &model, &keys);
            let at = next(page.count() + 1);
            let mut lower_model = model.clone();
            let upper_model = page.record(at).map_or_else(BTreeMap::new, |(low, _)| lower_model.split_off(low));
            let upper = page.split_off(at);
            checked(&page, &lower_model, &keys);
            checked(&upper, &upper_model, &keys);
            page.append(&upper);
            checked(&page, &model, &keys);
        }
    }

    #[test]
    fn a_page_comes_back_from_its_bytes() {
        let mut page = Page::default();
        for number in [5_u8, 3, 9, 1] {
            page.put(&[number], &vec![number; usize::from(number)]);
        }
        page.put(&[3], b"longer than before");
        page.remove(&[9]);
        let again = Page::decode(&page.encode()).unwrap();
        assert_eq!(again.count(), 3);
        assert_eq!(again.value(&[3]), Some(&b"longer than before"[..]));
        assert_eq!(again.encode(), page.encode());
    }

    #[test]
    fn memory_comes_in_sizes() {
        let pairs =
            [(0, 0), (1, 1), (8, 8), (9, 10), (40 << 10, 40 << 10), (65 << 10, 80 << 10), (97 << 10, 112 << 10)];
        pairs.into_iter().for_each(|(asked, got)| assert_eq!(taken(asked), got));
    }

    #[test]
    fn a_page_takes_little_more_than_its_records() {
        let mut page = Page::default();
        for number in 0..200_u16 {
            page.put(&number.to_be_bytes(), &[0; 20]);
            let order = page.count().max(4) * size_of::<Place>();
            let heap = (page.size() + HEAP_STEP).min(2 * page.size().max(64));
            assert!(page.memory() <= taken(heap) + taken(2 * order), "{} for {heap}", page.memory());
        }
    }

    #[test]
    fn rubbish_is_refused_and_never_panics() {
        let mut page = Page::default();
        (0..50_u8).for_each(|number| page.put(&[number, 1], &[number; 7]));
        for good in [page.plain(), page.encode()] {
            for at in 0..good.len() {
                for bit in 0..8 {
                    let mut bad = good.clone();
                    bad[at] ^= 1 << bit;
                    let _ = Page::decode(&bad);
                }
                assert!(Page::decode(&good[..at]).is_err());
            }
        }
    }
}
