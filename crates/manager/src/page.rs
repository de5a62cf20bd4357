//! A page: a sorted run of records, packed into one heap, so that a record costs its bytes and ten more.
//!
//! Invariants
//! 1. `order` holds the heap offset of every record, in strictly ascending key order.
//! 2. `dead` counts the heap bytes that no offset names; a page whose heap is mostly dead is packed anew.

use crate::encoding::{Cursor, Damaged, VERSION};

/// A page that holds more bytes than this is split. A look at one record that is not in memory reads a page, and what does
/// not fit into memory costs by that; a slot's index has an entry for each. Small in tests, so that there are many.
pub(crate) const PAGE_SIZE: usize = if cfg!(test) { 1 << 10 } else { 16 << 10 };
/// Bytes by which the heap of a large page grows. Doubling it would leave half of the memory for metadata empty.
const HEAP_STEP: usize = PAGE_SIZE / 8;
/// Bytes before a record's key: two lengths.
const LENGTHS_SIZE: usize = 6;
const COUNT_SIZE: usize = 4;

/// A sorted run of records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    heap: Vec<u8>,
    order: Vec<u32>,
    dead: usize,
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
        taken(self.heap.capacity()) + taken(self.order.capacity() * size_of::<u32>())
    }

    /// The record at `index`, counted in key order.
    pub(crate) fn record(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let start = *self.order.get(index)? as usize;
        let (key, value) = self.lengths(start);
        let body = &self.heap[start + LENGTHS_SIZE..start + LENGTHS_SIZE + key + value];
        Some(body.split_at(key))
    }

    /// The index of `key`, or that of the first greater one.
    pub(crate) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.order.binary_search_by(|&start| self.key(start as usize).cmp(key))
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
                let start = self.order[index] as usize;
                let (_, old) = self.lengths(start);
                if old == value.len() {
                    let from = start + LENGTHS_SIZE + key.len();
                    self.heap[from..from + old].copy_from_slice(value);
                    return;
                }
                self.dead += LENGTHS_SIZE + key.len() + old;
                self.order[index] = self.push(key, value);
            }
            Err(index) => {
                let start = self.push(key, value);
                self.order.insert(index, start);
            }
        }
        self.pack_if_sparse();
    }

    /// Removes a record, if there.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if let Ok(index) = self.find(key) {
            let start = self.order.remove(index) as usize;
            let (key, value) = self.lengths(start);
            self.dead += LENGTHS_SIZE + key + value;
            self.pack_if_sparse();
        }
    }

    /// Takes away all records from `index` on.
    pub(crate) fn split_off(&mut self, index: usize) -> Page {
        let mut upper = Page::default();
        for at in index..self.count() {
            let (key, value) = self.record(at).expect("within the page");
            let start = upper.push(key, value);
            upper.order.push(start);
        }
        self.order.truncate(index);
        self.pack();
        upper
    }

    /// Adds all records of `upper`, which all sort behind ours.
    pub(crate) fn append(&mut self, upper: &Page) {
        for at in 0..upper.count() {
            let (key, value) = upper.record(at).expect("within the page");
            let start = self.push(key, value);
            self.order.push(start);
        }
    }

    /// Takes no more memory than the records need.
    pub(crate) fn pack(&mut self) {
        let mut heap = Vec::with_capacity(self.size());
        for start in &mut self.order {
            let from = *start as usize;
            let lengths = &self.heap[from..from + LENGTHS_SIZE];
            let key = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
            let value = u32::from_le_bytes([lengths[2], lengths[3], lengths[4], lengths[5]]) as usize;
            *start = heap.len() as u32;
            heap.extend_from_slice(&self.heap[from..from + LENGTHS_SIZE + key + value]);
        }
        self.heap = heap;
        self.order.shrink_to_fit();
        self.dead = 0;
    }

    /// The body of a page record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(1 + COUNT_SIZE + self.size());
        body.push(VERSION);
        body.extend_from_slice(&(self.count() as u32).to_le_bytes());
        for &start in &self.order {
            let (key, value) = self.lengths(start as usize);
            body.extend_from_slice(&self.heap[start as usize..start as usize + LENGTHS_SIZE + key + value]);
        }
        body
    }

    /// Reads the body of a page record.
    pub(crate) fn decode(body: &[u8]) -> Result<Page, Damaged> {
        let mut cursor = Cursor::new(body, "page")?;
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
            order.push(at as u32);
            at += LENGTHS_SIZE + key_size + value_size;
        }
        if !cursor.is_empty() {
            return Err(Damaged("page end"));
        }
        Ok(Page { heap: heap.to_vec(), order, dead: 0 })
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
    use super::*;

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
            let order = page.count().max(4) * size_of::<u32>();
            let heap = (page.size() + HEAP_STEP).min(2 * page.size().max(64));
            assert!(page.memory() <= taken(heap) + taken(2 * order), "{} for {heap}", page.memory());
        }
    }

    #[test]
    fn rubbish_is_refused_and_never_panics() {
        let mut page = Page::default();
        (0..50_u8).for_each(|number| page.put(&[number, 1], &[number; 7]));
        let good = page.encode();
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
