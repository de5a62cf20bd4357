//! How long a target with many fragments takes to start: `cargo run --release -p dazzle-storage --example startup`.
//!
//! The disk is memory that keeps the list whole and of the data only what start-up looks at; so this measures the
//! program, and counts the bytes and reads that a real disk would add.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use host::{BoxFuture, Disk, DiskError, DiskUsage, StoredDisk, StoredFile};
use protocol::address::Position;
use protocol::checksum::block_checksums;
use protocol::fragment::{FragmentHeader, FragmentId, Geometry, Part};
use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, StripeNumber, TargetId};
use protocol::storage::{Append, Durability, Room, StorageRequest};
use storage::{Target, TargetOptions, format};

const FRAGMENTS: u64 = 1_000_000;
const CLUSTER: u128 = 1;
const TARGET: TargetId = TargetId(1);
/// Writes to the data that are kept: those of the last windows.
const WRITES_KEPT: usize = 4096;

#[derive(Default)]
struct Memory {
    files: Mutex<BTreeMap<&'static str, Arc<Space>>>,
}

#[derive(Default)]
struct Space {
    sparse: bool,
    whole: Mutex<Vec<u8>>,
    writes: Mutex<BTreeMap<u64, Bytes>>,
    reads: AtomicU64,
    bytes_read: AtomicU64,
}

impl StoredDisk for Memory {
    fn open(&self, name: &'static str) -> Result<Arc<dyn StoredFile>, DiskError> {
        let mut files = self.files.lock().unwrap();
        let space = files.entry(name).or_insert_with(|| Arc::new(Space { sparse: name == "data", ..Space::default() }));
        Ok(space.clone())
    }

    fn usage(&self) -> Result<DiskUsage, DiskError> {
        Ok(DiskUsage { bytes_total: 2 << 40, bytes_free: 2 << 40, is_shared: false })
    }
}

impl Space {
    fn count(&self, bytes: &Bytes) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes_read.fetch_add(bytes.len() as u64, Relaxed);
    }
}

impl StoredFile for Space {
    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        let bytes = if self.sparse {
            let writes = self.writes.lock().unwrap();
            let found = writes.range(..=offset).next_back().map(|(at, bytes)| ((offset - at) as usize, bytes.clone()));
            let cut =
                |(skip, bytes): (usize, Bytes)| bytes.slice(skip.min(bytes.len())..bytes.len().min(skip + length));
            found.map(cut).unwrap_or_default()
        } else {
            let whole = self.whole.lock().unwrap();
            let start = whole.len().min(offset as usize);
            Bytes::copy_from_slice(&whole[start..whole.len().min(start + length)])
        };
        self.count(&bytes);
        Box::pin(async move { Ok(bytes) })
    }

    fn write(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        let bytes = parts.concat();
        if self.sparse {
            let mut writes = self.writes.lock().unwrap();
            writes.insert(offset, Bytes::from(bytes));
            if writes.len() > WRITES_KEPT {
                writes.pop_first();
            }
        } else {
            let mut whole = self.whole.lock().unwrap();
            let end = offset as usize + bytes.len();
            let size = whole.len().max(end);
            whole.resize(size, 0);
            whole[offset as usize..end].copy_from_slice(&bytes);
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
        Box::pin(async { Ok(()) })
    }

    fn size(&self) -> Result<u64, DiskError> {
        let writes = self.writes.lock().unwrap();
        let end = writes.last_key_value().map_or(0, |(at, bytes)| at + bytes.len() as u64);
        Ok(end.max(self.whole.lock().unwrap().len() as u64))
    }
}

/// A full fragment of one block, as if it were one of 1 MiB.
fn append(stripe: u64) -> Append {
    let id = FragmentId {
        log: LogId(1 + stripe % 100),
        stripe: StripeNumber(stripe / 100),
        run: RunNumber(1),
        part: Part::Data(0),
    };
    let header = FragmentHeader {
        id,
        group: GroupId(stripe as u32 % 7),
        geometry: Geometry { data: 4, parity: 1, fragment_size: 4096 },
        mark: Position::new(StripeNumber(stripe / 100), 4096),
        previous_end: 4 << 20,
        complete_below: StripeNumber(stripe / 100),
        data_lengths: Vec::new(),
    };
    let bytes = Bytes::from_static(&[7; 4096]);
    let checksums = block_checksums(&bytes);
    let (durability, room) = (Durability::Replicated, Room::Clean);
    Append { header, fence: FenceEpoch(0), offset: 0, parts: vec![bytes], checksums, durability, room }
}

#[allow(clippy::disallowed_methods, reason = "a measurement of real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

fn main() {
    host::sim::run(1, async |_, host| {
        let memory = Arc::new(Memory::default());
        let disk = Disk::new(memory.clone());
        let options = TargetOptions { cell_data: 4096, ..TargetOptions::default() };
        format(&disk, CLUSTER, TARGET, options).await.expect("an empty disk is formatted");
        let target = Target::open(host.clone(), disk.clone(), CLUSTER, TARGET, options).await.expect("it opens");
        let begin = now();
        for stripe in 0..FRAGMENTS {
            target.serve(StorageRequest::Append(append(stripe))).await.expect("there is room");
            if stripe % 64 == 0 {
                target.serve(StorageRequest::Sync).await.expect("memory is synced");
            }
        }
        println!("{FRAGMENTS} fragments stored in {:?}", begin.elapsed());
        drop(target);
        let spaces = memory.files.lock().unwrap().clone();
        for space in spaces.values() {
            space.reads.store(0, Relaxed);
            space.bytes_read.store(0, Relaxed);
        }
        let begin = now();
        let target = Target::open(host.clone(), disk, CLUSTER, TARGET, options).await.expect("it opens");
        println!("started in {:?}", begin.elapsed());
        for (name, space) in spaces {
            println!("{name}: {} reads, {} bytes", space.reads.load(Relaxed), space.bytes_read.load(Relaxed));
        }
        println!("{:?}", target.serve(StorageRequest::Stat).await);
    });
}
