//! A disk that is only looked at: what is written to it stays in memory, and is read again from there.
//!
//! Whoever wants to know what a part would find, without anything being changed, lets it start on the shadow of its disk.
//!
//! 1. A read returns what was written to the shadow last, and elsewhere what lies on the disk.
//! 2. Nothing is ever written to the disk. What a sync promises lasts as long as the shadow.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::{BoxFuture, Disk, DiskError, DiskUsage, File, StoredDisk, StoredFile};

/// The shadow of a disk.
pub(crate) struct Shadow {
    disk: Disk,
    /// By their names: a byte space that is opened twice is one.
    spaces: Mutex<BTreeMap<&'static str, Arc<Space>>>,
}

impl Shadow {
    pub(crate) fn of(disk: Disk) -> Disk {
        Disk::new(Arc::new(Shadow { disk, spaces: Mutex::default() }))
    }
}

impl StoredDisk for Shadow {
    fn open(&self, name: &'static str) -> Result<Arc<dyn StoredFile>, DiskError> {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = spaces.get(name) {
            return Ok(space.clone());
        }
        let space = Arc::new(Space { file: self.disk.open(name)?, written: Mutex::default() });
        spaces.insert(name, space.clone());
        Ok(space)
    }

    fn usage(&self) -> Result<DiskUsage, DiskError> {
        self.disk.usage()
    }
}

/// One byte space of a shadow.
struct Space {
    file: File,
    written: Mutex<Written>,
}

impl Space {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredFile for Space {
    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            let below = self.file.read(offset, length).await?;
            Ok(self.written().over(offset, length, below))
        })
    }

    fn write(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        let mut at = offset;
        for part in parts {
            let next = at + part.len() as u64;
            self.written().put(at, part);
            at = next;
        }
        Box::pin(async { Ok(()) })
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(async { Ok(()) })
    }

    fn reserve(&self, _: u64, _: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, _: u64, _: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        // The room of what is only looked at is nobody's to give back.
        Box::pin(async { Ok(()) })
    }

    fn size(&self) -> Result<u64, DiskError> {
        Ok(self.file.size()?.max(self.written().end()))
    }
}

/// What was written, in pieces that do not overlap, by where they begin.
#[derive(Default)]
struct Written(BTreeMap<u64, Bytes>);

impl Written {
    fn put(&mut self, at: u64, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len() as u64;
        let (mut left, mut right) = (None, None);
        for start in self.within(at..end) {
            let piece = self.0.remove(&start).expect("it was just found");
            let behind = start + piece.len() as u64;
            if start < at {
                left = Some((start, piece.slice(..(at - start) as usize)));
            }
            if behind > end {
                right = Some((end, piece.slice((end - start) as usize..)));
            }
        }
        self.0.extend(left.into_iter().chain(right).chain([(at, bytes)]));
    }

    /// Where the pieces begin that reach into a range.
    fn within(&self, range: Range<u64>) -> Vec<u64> {
        let before = self.0.range(..range.start).next_back();
        let before = before.filter(|(start, piece)| *start + piece.len() as u64 > range.start).map(|(start, _)| *start);
        before.into_iter().chain(self.0.range(range).map(|(start, _)| *start)).collect()
    }

    fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(start, piece)| start + piece.len() as u64)
    }

    /// What a read of `length` bytes returns where `below` is what the disk does.
    fn over(&self, offset: u64, length: usize, below: Bytes) -> Bytes {
        let end = offset + length as u64;
        let pieces = self.within(offset..end);
        if pieces.is_empty() && self.end() <= offset + below.len() as u64 {
            return below;
        }
        let mut bytes = below.to_vec();
        let reaches = self.end().min(end).saturating_sub(offset) as usize;
        bytes.resize(bytes.len().max(reaches), 0);
        for start in pieces {
            let piece = &self.0[&start];
            let (from, to) = (start.max(offset), end.min(start + piece.len() as u64));
            let part = &piece[(from - start) as usize..(to - start) as usize];
            bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use crate::NodeId;
    use crate::sim::{Dice, DiskOptions, World};

    /// Against plain bytes: whatever is written where, it is read, and the disk stays as it was.
    #[test]
    fn what_is_written_to_a_shadow_is_read_there_and_nowhere_else() {
        let world = World::new(3);
        let host = world.add_node(NodeId(1));
        let disk = world.add_disk(host.node(), "d", DiskOptions::default()).plug();
        world.block_on(async {
            let below: Vec<u8> = (0..5000).map(|n| n as u8).collect();
            let space = disk.open("data").unwrap();
            space.write(0, vec![below.clone().into()]).await.unwrap();
            let shadow = disk.shadow();
            let mut model = below.clone();
            let mut dice = Dice::new(7);
            for n in 0..500 {
                let (at, length) = (dice.below(8000) as usize, dice.below(900) as usize);
                let file = shadow.open("data").unwrap();
                if dice.coin() {
                    file.write(at as u64, vec![vec![n as u8; length].into()]).await.unwrap();
                    file.sync().await.unwrap();
                    if length > 0 {
                        model.resize(model.len().max(at + length), 0);
                        model[at..at + length].fill(n as u8);
                    }
                }
                let (at, length) = (dice.below(9000) as usize, dice.below(3000) as usize);
                let read = file.read(at as u64, length).await.unwrap();
                let end = model.len().min(at + length).max(at.min(model.len()));
                assert_eq!(read, model[at.min(model.len())..end], "{length} bytes at {at}");
                assert_eq!(file.size().unwrap(), model.len() as u64);
            }
            assert_eq!(space.read(0, 9000).await.unwrap(), below);
        });
        world.end();
    }
}
