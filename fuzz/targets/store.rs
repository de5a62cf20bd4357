//! What a target reads from its disk when it starts, and what it is asked then.
//!
//! Bytes: two superblocks, batches of two lists, heads with identities, tail slots and tables, an intake, and requests, all as
//! `docs/format-target.md` lays them; checksums are right where the input does not ask for wrong ones. Held true:
//! 1. A target opens or is refused with an error, whatever lies on its disk, and takes no more memory than a small disk
//!    can ask for.
//! 2. Every request is answered. What an answer says of a fragment is so: a list names each fragment once and in order, a
//!    read of what is listed has its length, and an append that was taken is as long as the answer said.
//! 3. After a kill the same target opens again, with the same fragments at the same lengths.
#![no_main]

use std::collections::BTreeMap;

use bytes::Bytes;
use dazzle_fuzz::feed::Feed;
use dazzle_fuzz::fragments;
use dazzle_fuzz::memory::bounded;
use host::sim::{DiskOptions, SimDisk, Stop, World};
use host::{Disk, Host, NodeId};
use libfuzzer_sys::fuzz_target;
use protocol::checksum::{block_checksums, crc, crc_parts};
use protocol::fragment::{FragmentId, Geometry};
use protocol::id::{FenceEpoch, LogId, StripeNumber, TargetId};
use protocol::storage::{Append, Durability, Room, StorageAnswer, StorageReply, StorageRequest};
use serde::Serialize;
use storage::{Storage, TargetOptions};

const CLUSTER: u128 = 7;
const TARGET: TargetId = TargetId(3);
const SECTOR: usize = 512;
const BLOCK: usize = 4096;
const HEAD: usize = 2 * BLOCK;
/// What the disk holds, in bytes: a start that asks for more memory than this asks for too much.
const DISK: u64 = 16 << 20;
/// The simulated medium keeps what was written twice, and a start reads it.
const MEMORY_FACTOR: usize = 4;
/// A disk has fewer cells than two to this power.
const CELL_BITS: u32 = 14;
/// Requests that one input makes at the most.
const REQUESTS_MAX: usize = 12;

/// An entry of the list, as the format page has it.
#[derive(Serialize)]
enum Entry<'a> {
    Fragment { cell: u32, generation: u64, epoch: FenceEpoch, settled: Option<(u32, u32)>, header: &'a [u8] },
    Open { cell: u32, generation: u64 },
    Gone { cell: u32, generation: u64 },
    Fence { log: LogId, epoch: FenceEpoch },
    Window(Vec<((u32, u32), u64)>),
    End,
}

/// Holds one disk and what is asked of it to what is said above.
fn run(input: &[u8]) {
    let mut feed = Feed::new(input);
    let world = World::new(1);
    let host = world.add_node(NodeId(1));
    let options = DiskOptions { capacity_bytes: DISK, ..DiskOptions::default() };
    let disk = world.add_disk(host.node(), "d", options);
    let story = async {
        let cell_data = lay(&mut feed, &disk.plug()).await;
        live(&world, &host, &disk, (&mut feed, cell_data)).await;
    };
    bounded(DISK as usize, MEMORY_FACTOR, || world.block_on(story));
    world.end();
}

/// One life, a kill, and the start of another.
async fn live(world: &World, host: &Host, disk: &SimDisk, (feed, cell_data): (&mut Feed<'_>, u32)) {
    let Some(storage) = open(world, host, disk).await else { return };
    let known = check(&storage).await;
    let usual = Geometry { data: 2, parity: 1, fragment_size: cell_data };
    for _ in 0..REQUESTS_MAX {
        if feed.is_empty() {
            break;
        }
        let request = request(feed, usual, &known);
        let target = storage.target(TARGET).expect("it was opened").clone();
        let answer = world.spawn(host, async move { (target.serve(request.clone()).await, request) });
        let (answer, request) = answer.await.expect("nobody stops the node");
        check_answer(&storage, &request, &answer).await;
    }
    let before = check(&storage).await;
    let (damages, _) = storage.target(TARGET).expect("it was opened").scrub(None, 100).await.unwrap_or_default();
    assert!(damages.len() <= before.len());
    drop(storage);
    world.crash(host.node(), Stop::Kill);
    let host = world.restart(host.node());
    let storage = open(world, &host, disk).await.expect("what opened once opens again");
    assert_eq!(check(&storage).await, before, "what a start finds depends on the disk alone");
}

async fn open(world: &World, host: &Host, disk: &SimDisk) -> Option<Storage> {
    let options = TargetOptions { window_cells: 4, list_growth: 8192, ..TargetOptions::default() };
    let (disks, starting) = (vec![(TARGET, disk.plug())], host.clone());
    let started = world.spawn(host, async move { Storage::start(starting, CLUSTER, disks, options).await });
    let (storage, unopened) = started.await.expect("nobody stops the node");
    for (_, error) in &unopened {
        let _ = error.to_string();
    }
    unopened.is_empty().then_some(storage)
}

/// All fragments with their lengths; looks whether reads agree.
async fn check(storage: &Storage) -> BTreeMap<FragmentId, u32> {
    let target = storage.target(TARGET).expect("it was opened");
    let all = StorageRequest::List { after: None, limit: u32::MAX };
    let listed = match target.serve(all).await {
        Ok(StorageReply::Fragments(listed)) => listed,
        Ok(other) => panic!("a list is answered with {other:?}"),
        // A target that failed says so, and nothing else.
        Err(_) => return BTreeMap::new(),
    };
    assert!(listed.is_sorted_by_key(|fragment| fragment.header.id));
    for fragment in &listed {
        assert!(fragment.length > 0, "an empty fragment is never stored");
        assert!(fragment.length <= fragment.header.geometry.fragment_size, "longer than its size");
        let read = StorageRequest::Read { id: fragment.header.id, offset: 0, length: fragment.length };
        if let Ok(StorageReply::Blocks { offset, bytes, checksums }) = target.serve(read).await {
            assert_eq!((offset, bytes.len()), (0, fragment.length as usize));
            assert_eq!(checksums.len(), bytes.len().div_ceil(BLOCK));
        }
    }
    let count = listed.len();
    let by_id: BTreeMap<_, _> = listed.into_iter().map(|fragment| (fragment.header.id, fragment.length)).collect();
    assert_eq!(by_id.len(), count, "a fragment is listed once");
    by_id
}

async fn check_answer(storage: &Storage, request: &StorageRequest, answer: &StorageAnswer) {
    let Ok(reply) = answer else { return };
    match (request, reply) {
        (StorageRequest::Append(append) | StorageRequest::Replace(append), StorageReply::Done { length }) => {
            assert!(*length as usize >= append.offset as usize + append.length() || append.length() == 0);
            let held = check(storage).await.get(&append.header.id).copied().unwrap_or(0);
            assert!(held == *length, "{held} bytes are held, {length} were answered");
        }
        (StorageRequest::Read { length, .. }, StorageReply::Blocks { bytes, .. }) => {
            assert!(bytes.len() <= *length as usize + 2 * BLOCK);
        }
        (StorageRequest::Delete { stripes }, StorageReply::Done { .. }) => {
            let left = check(storage).await;
            assert!(!left.keys().any(|id| stripes.contains(&(id.log, id.stripe))), "what is deleted is gone");
        }
        _ => {}
    }
}

fn request(feed: &mut Feed<'_>, usual: Geometry, known: &BTreeMap<FragmentId, u32>) -> StorageRequest {
    let id = match known.keys().nth(usize::from(feed.byte())) {
        Some(id) => *id,
        None => fragments::id(feed, false),
    };
    match feed.choice(9) {
        0 | 1 => StorageRequest::Append(append(feed, usual)),
        2 => StorageRequest::Replace(append(feed, usual)),
        3 => StorageRequest::Read { id, offset: feed.word(), length: feed.word() },
        4 => StorageRequest::Tail { log: id.log, from: StripeNumber(feed.number()) },
        5 => StorageRequest::Delete { stripes: vec![(id.log, id.stripe), (LogId(2), StripeNumber(feed.number()))] },
        6 => StorageRequest::Fence { log: id.log, epoch: FenceEpoch(feed.word()) },
        7 => StorageRequest::Sync,
        _ => postcard::from_bytes(feed.run()).unwrap_or(StorageRequest::Stat),
    }
}

fn append(feed: &mut Feed<'_>, usual: Geometry) -> Append {
    let header = fragments::header(feed, usual);
    let odd = feed.byte();
    let offset = if odd & 1 == 0 { 0 } else { feed.word() };
    let bytes = vec![feed.byte(); fragments::length(feed, usual) as usize];
    // Right for an appender who wrote the beginning of the first block with the same byte. What a checksum says of nothing
    // but its own append's bytes, the target takes as it comes: readers verify, and a start cuts what does not check out.
    let begun = if bytes.is_empty() { 0 } else { offset as usize % BLOCK };
    let mut checksums = block_checksums(&[&vec![bytes.first().copied().unwrap_or(0); begun], &bytes[..]].concat());
    if odd & 2 != 0 {
        checksums.resize(usize::from(feed.byte()), 5);
    }
    let durability = if odd & 4 == 0 { Durability::Disk } else { Durability::Replicated };
    let parts = bytes.chunks(1000).map(Bytes::copy_from_slice).collect();
    Append { header, fence: FenceEpoch(feed.word()), offset, parts, checksums, durability, room: Room::Clean }
}

/// Lays a disk; returns the data bytes of its cells.
async fn lay(feed: &mut Feed<'_>, disk: &Disk) -> u32 {
    let cell_data = match feed.choice(4) {
        0 | 1 => 8192,
        2 => 65536,
        _ => feed.word(),
    };
    let list = feed.number();
    for copy in 0..feed.choice(3) {
        let sector = superblock(feed, cell_data, list);
        write(disk, "target", u64::from(copy) * BLOCK as u64, sector).await;
    }
    for space in ["list.0", "list.1"] {
        let batches = batches(feed, list, cell_data);
        write(disk, space, 0, batches).await;
    }
    let cell = HEAD as u64 + u64::from(cell_data);
    for _ in 0..feed.choice(6) {
        let number = feed.choice(8).into();
        let at = u64::from(number) * cell;
        let fragment = fragment(feed, cell_data, number);
        if at + fragment.len() as u64 <= DISK {
            write(disk, "data", at, fragment).await;
        }
    }
    let intake = intake(feed);
    write(disk, "intake", 0, intake).await;
    cell_data
}

async fn write(disk: &Disk, space: &'static str, offset: u64, bytes: Vec<u8>) {
    if !bytes.is_empty() {
        let file = disk.open(space).expect("the disk is well");
        file.write(offset, vec![bytes.into()]).await.expect("the disk has room");
    }
}

fn superblock(feed: &mut Feed<'_>, cell_data: u32, list: u64) -> Vec<u8> {
    let odd = feed.byte();
    let (version, target) = (
        if odd & 1 == 0 { storage::FORMAT_VERSION } else { feed.word() },
        if odd & 2 == 0 { TARGET.0 } else { feed.word() },
    );
    let mut sector = b"DAZZLETG".to_vec();
    sector.extend_from_slice(&version.to_le_bytes());
    sector.extend_from_slice(&target.to_le_bytes());
    sector.extend_from_slice(&CLUSTER.to_le_bytes());
    sector.extend_from_slice(&cell_data.to_le_bytes());
    sector.extend_from_slice(&[0; 4]);
    // A counter that is at its end opens once and not again; no target counts so far.
    let counter = |number: u64| if number >> 31 == 1 { number >> 1 } else { number.min(1 << 62) };
    for number in [feed.number(), feed.number(), list, feed.number()].map(counter) {
        sector.extend_from_slice(&number.to_le_bytes());
    }
    seal(sector, odd)
}

/// A sector with its checksum at its end, right unless `odd` is.
fn seal(mut sector: Vec<u8>, odd: u8) -> Vec<u8> {
    sector.resize(SECTOR - 4, 0);
    let sum = crc(&sector) ^ u32::from(odd == u8::MAX);
    sector.extend_from_slice(&sum.to_le_bytes());
    sector
}

fn batches(feed: &mut Feed<'_>, list: u64, cell_data: u32) -> Vec<u8> {
    let (mut bytes, mut chain) = (Vec::new(), 0);
    for number in 0..u64::from(feed.choice(5)) {
        let odd = feed.byte();
        let mut payload = Vec::new();
        for _ in 0..feed.choice(6) {
            entry(feed, cell_data, &mut payload);
        }
        let stated = if odd & 1 == 0 { payload.len() as u32 } else { feed.word() };
        let mut batch = b"DzLs".to_vec();
        batch.extend_from_slice(&stated.to_le_bytes());
        let of_list = if odd & 2 == 0 { list } else { feed.number() };
        // Nothing of a list is said to be durable before the superblock names it, so that a list which was begun and given
        // up never belies the one that is written over it. Whoever forges such loses what no head vouches for.
        let synced = if odd & 4 == 0 || of_list > list { 0 } else { feed.number() };
        for number in [of_list, if odd & 8 == 0 { number } else { feed.number() }, 1, synced] {
            batch.extend_from_slice(&number.to_le_bytes());
        }
        batch.extend_from_slice(&if odd & 16 == 0 { chain } else { feed.word() }.to_le_bytes());
        chain = crc_parts([&batch[..], &payload]);
        batch.extend_from_slice(&chain.to_le_bytes());
        batch.extend_from_slice(&payload);
        batch.resize(batch.len().next_multiple_of(SECTOR), 0);
        bytes.extend_from_slice(&batch);
    }
    bytes
}

/// A generation of an earlier incarnation, as a cell may have it. Later ones are higher: whoever forged one of the future, with
/// right checksums, would let new fragments look old. No two cells have the same: what an intake holds goes by it.
fn past(feed: &mut Feed<'_>, cell: u32) -> u64 {
    (feed.word() << CELL_BITS | cell & ((1 << CELL_BITS) - 1)).into()
}

fn entry(feed: &mut Feed<'_>, cell_data: u32, payload: &mut Vec<u8>) {
    let cell = if feed.choice(8) == 7 { feed.word() } else { feed.choice(8).into() };
    let (generation, epoch) = (past(feed, cell), FenceEpoch(feed.byte().into()));
    let usual = Geometry { data: 2, parity: 1, fragment_size: cell_data };
    let header = postcard::to_stdvec(&fragments::header(feed, usual)).expect("a header encodes");
    let entry = match feed.choice(8) {
        0 | 1 => {
            let settled = (feed.choice(2) == 0).then(|| (fragments::length(feed, usual), 0));
            Entry::Fragment { cell, generation, epoch, settled, header: &header }
        }
        2 => Entry::Fragment { cell, generation, epoch, settled: Some((feed.word(), 1)), header: feed.run() },
        3 => Entry::Open { cell, generation },
        4 => Entry::Gone { cell, generation },
        5 => Entry::Fence { log: LogId(feed.number()), epoch },
        6 => Entry::Window((0..feed.choice(4)).map(|_| ((feed.word(), feed.word()), feed.number())).collect()),
        _ => Entry::End,
    };
    payload.extend(postcard::to_stdvec(&entry).expect("an entry encodes"));
}

/// A head, its table and some data.
fn fragment(feed: &mut Feed<'_>, cell_data: u32, cell: u32) -> Vec<u8> {
    let odd = feed.byte();
    let generation = past(feed, cell);
    let usual = Geometry { data: 2, parity: 1, fragment_size: cell_data };
    let encoded = match odd & 1 {
        0 => postcard::to_stdvec(&fragments::header(feed, usual)).expect("a header encodes"),
        _ => feed.run().to_vec(),
    };
    let stated = if odd & 2 == 0 { encoded.len() as u16 } else { feed.number() as u16 };
    let owner = crc_parts([&CLUSTER.to_le_bytes()[..], &TARGET.0.to_le_bytes()]) ^ u32::from(odd & 4 != 0);
    let mut identity = b"DzFrag\0\x01".to_vec();
    identity.extend_from_slice(&generation.to_le_bytes());
    identity.extend_from_slice(&owner.to_le_bytes());
    identity.extend_from_slice(&u32::from(feed.byte()).to_le_bytes());
    identity.extend_from_slice(&stated.to_le_bytes());
    identity.extend_from_slice(&[0; 2]);
    identity.extend_from_slice(&encoded[..encoded.len().min(SECTOR - 4 - 28)]);
    let mut head = seal(identity, odd);
    let data = vec![feed.byte(); fragments::length(feed, usual).min(16 << 10) as usize];
    for _ in 0..feed.choice(4) {
        head.extend(slot(feed, generation, &data));
    }
    head.resize(BLOCK, 0);
    for sum in block_checksums(&data).iter().take(data.len() / BLOCK) {
        head.extend_from_slice(&(sum ^ crc(&generation.to_le_bytes()) ^ u32::from(odd & 8 != 0)).to_le_bytes());
    }
    head.resize(HEAD, 0);
    head.extend_from_slice(&data);
    head
}

fn slot(feed: &mut Feed<'_>, generation: u64, data: &[u8]) -> Vec<u8> {
    let odd = feed.byte();
    let length = if odd & 1 == 0 { data.len() as u32 } else { feed.word() };
    let full = data.len() / BLOCK * BLOCK;
    let partial = if full == data.len() { 0 } else { crc(&data[full..]) };
    let cell = generation as u32;
    let generation = if odd & 2 == 0 { generation } else { past(feed, cell) };
    let floor = if odd & 4 == 0 { 0 } else { feed.word() };
    let mut slot = generation.to_le_bytes().to_vec();
    slot.extend_from_slice(&feed.number().to_le_bytes());
    for word in [length, partial, floor] {
        slot.extend_from_slice(&word.to_le_bytes());
    }
    slot.extend_from_slice(&(crc(&slot) ^ u32::from(odd & 8 != 0)).to_le_bytes());
    slot.resize(SECTOR, 0);
    slot
}

/// Small appends that the fragments may or may not be continued by.
fn intake(feed: &mut Feed<'_>) -> Vec<u8> {
    let mut intake = Vec::new();
    for _ in 0..feed.choice(4) {
        let (odd, cell) = (feed.byte(), feed.choice(8).into());
        let generation = past(feed, cell);
        let (sequence, offset) = (feed.number(), feed.word());
        let bytes = vec![feed.byte(); usize::from(feed.byte()) * 40];
        let begun = if odd & 1 == 0 { offset as usize % BLOCK } else { 0 };
        let checksums = block_checksums(&[&vec![bytes.first().copied().unwrap_or(0); begun], &bytes[..]].concat());
        let owner = crc_parts([&CLUSTER.to_le_bytes()[..], &TARGET.0.to_le_bytes()]);
        let mut covered = owner.to_le_bytes().to_vec();
        for number in [if odd & 2 == 0 { intake.len() as u64 } else { feed.number() }, generation, sequence] {
            covered.extend_from_slice(&number.to_le_bytes());
        }
        for word in [offset, if odd & 4 == 0 { bytes.len() as u32 } else { feed.word() }] {
            covered.extend_from_slice(&word.to_le_bytes());
        }
        checksums.iter().for_each(|checksum| covered.extend_from_slice(&checksum.to_le_bytes()));
        covered.extend_from_slice(&bytes);
        intake.extend_from_slice(b"DzTakeIn");
        intake.extend_from_slice(&(crc(&covered) ^ u32::from(odd & 8 != 0)).to_le_bytes());
        intake.extend_from_slice(&covered);
        intake.resize(intake.len().next_multiple_of(SECTOR), 0);
    }
    intake
}

/// Scripts, for the format's own bytes are made from them: an empty target, one with a list, one with heads and requests.
fn seeds() -> Vec<Vec<u8>> {
    let superblock = [0, 1, 1, 0];
    let empty = [&[0, 0, 1][..], &superblock, &[0, 0, 0]].concat();
    let header = [0, 0, 0, 0, 0, 0, 0];
    let fragment_entry = [&[0, 0, 9, 1][..], &header, &[0, 0, 2, 0]].concat();
    let end = [&[0, 0, 0, 0][..], &header, &[7]].concat();
    let window = [&[0, 0, 0, 0][..], &header, &[6, 1, 0, 8, 0]].concat();
    let batch = [&[1, 0, 3][..], &fragment_entry, &window, &end].concat();
    let head = [&[1, 0, 9][..], &header, &[1, 77, 2, 200, 1, 0, 1, 0]].concat();
    let intake = [2, 0, 0, 9, 20, 100, 5, 3, 0, 0, 9, 22, 220, 5, 9];
    let append = [&[0, 0][..], &header, &[0, 5, 2, 0, 1]].concat();
    let requests = [&append[..], &[0, 3, 0, 100], &[0, 5, 1], &[0, 6, 3], &[0, 7], &[0, 8, 0]].concat();
    let listed = [&[0, 2, 1][..], &superblock, &batch].concat();
    let whole = [&[0, 1, 1][..], &superblock, &[0], &batch, &head, &intake, &requests].concat();
    let heads = [&[3], &head[1..], &head[1..]].concat();
    let mixed = [&[0, 1, 2][..], &superblock, &superblock, &batch, &batch, &heads, &intake, &requests].concat();
    vec![empty, listed, whole, mixed]
}

fuzz_target!(init: dazzle_fuzz::seeds(seeds), |input: &[u8]| run(input));
