//! What targets tell of a log: to whoever seals it, scans it, reads from it, verifies and repairs its stripes.
//!
//! Bytes: the records of a small log, what is wrong with the fragments that hold it, and what is done then. The targets
//! are made up: they answer from memory, and rubbish where the input says so. Held true:
//! 1. Whatever targets tell of fragments, lengths, blocks and checksums, every operation ends, with an error at the worst,
//!    and takes no more memory than a few stripes.
//! 2. A sealed log keeps its length. A scan visits records in order, within its range, each verified at its place.
//! 3. Whatever is lost, rots or is told wrong, scans and readers give the bytes that were appended or none. The only
//!    exception is a target that gives other bytes with checksums made for them: nobody can tell these from the right ones.
//!    `docs/format.md` knows no such medium (a checksum is made before the bytes are written) and nodes trust each other,
//!    so that of forged bytes no more is held than 1 and 2.
//! 4. When nothing is wrong, a scan finds exactly the records that were appended.
#![no_main]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dazzle_fuzz::feed::Feed;
use dazzle_fuzz::fragments;
use dazzle_fuzz::memory::bounded;
use host::sim::World;
use host::{BoxFuture, Envelope, Handler, NodeId, Port};
use libfuzzer_sys::fuzz_target;
use log::recovery::{self, Bodies, Scanned};
use log::{Cluster, LogReader, stripes};
use protocol::address::{LogAddress, Position};
use protocol::checksum::block_checksums;
use protocol::erasure;
use protocol::fragment::{FragmentHeader, FragmentId, Geometry, Part};
use protocol::id::{GroupId, LogId, RunNumber, StripeNumber, TargetId};
use protocol::maps::{Maps, TargetEntry, Writer};
use protocol::record::{Owner, RecordHeader, RecordKind};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryRequest};
use protocol::storage::{
    STORAGE_PORT, StorageAnswer, StorageError, StorageReply, StorageRequest, StoredFragment, TargetStat, ToTarget,
};
use registry::change;

const LOG: LogId = LogId(1);
const NODE: NodeId = NodeId(1);
const BLOCK: usize = 4096;
/// Two data fragments of two blocks, and their parity.
const SHAPE: Geometry = Geometry { data: 2, parity: 1, fragment_size: 8192 };
/// A stripe of the largest shape has 128 MiB: read whole and decoded, from two runs.
const MEMORY: usize = 768 << 20;
const OPERATIONS_MAX: usize = 4;
/// The oddity of a target that tells more bytes than it has, with checksums for them.
const INVENTS: u8 = 6;

/// A fragment as a target tells of it.
#[derive(Clone, Debug)]
struct Held {
    header: FragmentHeader,
    bytes: Vec<u8>,
    sums: Vec<u32>,
    /// What a list says.
    length: u32,
    /// What is wrong with the answers to reads.
    odd: u8,
}

type Stores = BTreeMap<TargetId, Vec<Held>>;

/// A log as it was appended.
#[derive(Debug, Default)]
struct Laid {
    /// The bytes of each stripe.
    stripes: Vec<Vec<u8>>,
    /// Where the records begin.
    records: Vec<Position>,
}

/// What was done to the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    None,
    /// Something is lost, rotten or told wrong; bytes that fit their checksums are right.
    Told,
    /// Bytes that were never appended have checksums that fit.
    Forged,
}

/// Holds one log to what is said above.
fn run(input: &[u8]) {
    let mut feed = Feed::new(input);
    let world = World::new(1);
    let host = world.add_node(NODE);
    let entry = |n| TargetEntry::new(NODE.0, format!("t{n}"));
    let mut maps = change::new_cluster(7, (0..3).map(|n| (TargetId(n), entry(n))).collect(), NODE.0, 1);
    maps.groups.values_mut().for_each(|group| group.geometry = SHAPE);
    let open = RegistryRequest::open_log(&maps, NODE.0, Writer::Client, 0);
    let maps = change::apply(&maps, open).0.expect("a log is opened");
    let (mut stores, laid) = lay(&mut feed, &maps);
    let harm = harm(&mut feed, &mut stores);
    let truth = (harm < Harm::Forged).then_some(&laid);
    host.listen(Port(REGISTRY_PORT), Arc::new(FakeRegistry(Mutex::new(Arc::new(maps)))));
    host.listen(Port(STORAGE_PORT), Arc::new(FakeTargets(Arc::new(Mutex::new(stores)))));
    let story = async {
        let cluster = Cluster::connect(host.clone(), NODE).await.expect("the registry answers");
        if harm == Harm::None {
            let length = recovery::seal(&cluster, LOG).await.expect("nothing stands in the way of sealing");
            let found = scan(&LogReader::new(cluster.clone()), Position::START..length, truth).await;
            assert_eq!(found.as_ref(), Some(&laid.records), "a whole log has all its records");
        }
        for _ in 0..OPERATIONS_MAX {
            operate(&mut feed, &cluster, truth).await;
        }
    };
    bounded(MEMORY, 1, || world.block_on(story));
    world.end();
}

async fn operate(feed: &mut Feed<'_>, cluster: &Cluster, truth: Option<&Laid>) {
    let reader = LogReader::new(cluster.clone());
    let stripe = StripeNumber(if feed.choice(8) == 7 { feed.number() } else { feed.choice(4).into() });
    match feed.choice(8) {
        0 | 1 => {
            if let Ok(length) = recovery::seal(cluster, LOG).await {
                assert_eq!(recovery::seal(cluster, LOG).await, Ok(length), "a sealed log keeps its length");
                let mark = recovery::newest_mark(cluster, LOG).await.unwrap_or_default();
                assert!(mark < length || mark == Position::START, "a mark lies within the log");
                scan(&reader, mark..length, truth).await;
            }
        }
        2 => {
            let end = Position::new(StripeNumber(feed.choice(8).into()), feed.word());
            let start = Position::new(StripeNumber(feed.choice(8).into()), feed.word());
            scan(&reader, start..end, truth).await;
        }
        3 => {
            let address = LogAddress { log: LOG, stripe, offset: feed.word(), length: feed.word() };
            let one = reader.on_one_target(address);
            assert!(one.length <= address.length && one.offset == address.offset);
            if let Ok(bytes) = reader.read(address).await {
                assert_eq!(bytes.len(), address.length as usize);
                check(truth, address, &bytes);
            }
        }
        4 => {
            for state in stripes::list(cluster, (feed.choice(2) == 0).then_some(LOG)).await {
                let _ = stripes::verify(cluster, state.log, state.number).await;
            }
        }
        5 => drop(stripes::verify(cluster, LOG, stripe).await),
        6 => {
            let told = stripes::list(cluster, Some(LOG)).await.into_iter().find(|told| told.number == stripe);
            let _ = stripes::repair(cluster, LOG, stripe, told.map_or(9, |told| told.length)).await;
            let _ = stripes::verify(cluster, LOG, stripe).await;
        }
        _ => stripes::delete(cluster, &[(LOG, stripe)]).await,
    }
}

/// Scans, and tells where the records begin that were found.
async fn scan(reader: &LogReader, range: Range<Position>, truth: Option<&Laid>) -> Option<Vec<Position>> {
    let mut found: Vec<Scanned> = Vec::new();
    let mut keep = |scanned| found.push(scanned);
    let outcome = recovery::scan(reader, LOG, range.clone(), Bodies::All, &mut keep).await;
    assert!(found.is_sorted_by_key(|scanned| scanned.place));
    for scanned in &found {
        assert!(range.contains(&scanned.place), "a scan keeps to its range");
        assert_eq!(scanned.bytes.len(), scanned.header.length as usize);
        check(truth, scanned.body, &scanned.bytes);
        if let Ok(bytes) = reader.read(scanned.body).await {
            check(truth, scanned.body, &bytes);
        }
    }
    outcome.ok().map(|_| found.iter().map(|scanned| scanned.place).collect())
}

/// Holds what was read to what was appended.
fn check(truth: Option<&Laid>, address: LogAddress, bytes: &[u8]) {
    let Some(laid) = truth.filter(|_| !bytes.is_empty()) else { return };
    let stripe = laid.stripes.get(address.stripe.0 as usize).map_or(&[][..], |stripe| stripe);
    let start = address.offset as usize;
    assert_eq!(stripe.get(start..start + bytes.len()), Some(bytes), "an address means the same bytes for ever");
}

/// Lays a whole log.
fn lay(feed: &mut Feed<'_>, maps: &Maps) -> (Stores, Laid) {
    let (mut stores, mut laid, mut previous_end) = (Stores::new(), Laid::default(), 0);
    for number in 0..u64::from(feed.choice(4)) {
        let stripe = StripeNumber(number);
        let mut bytes = Vec::new();
        for _ in 0..=feed.choice(4) {
            let place = Position::new(stripe, bytes.len() as u32);
            if append(feed, place, &mut bytes) {
                laid.records.push(place);
            }
        }
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len() as u32;
        for held in stripe_of(stripe, &bytes, previous_end) {
            let member = SHAPE.member(stripe, held.header.id.part);
            stores.entry(maps.groups[&GroupId(0)].targets[member]).or_default().push(held);
        }
        previous_end = length;
        laid.stripes.push(bytes);
    }
    (stores, laid)
}

/// Appends a record if the stripe takes it.
fn append(feed: &mut Feed<'_>, place: Position, bytes: &mut Vec<u8>) -> bool {
    use RecordKind::{Checkpoint, Data, Deltas, Journal, Mark, Page, PageIndex};
    let kind = [Data, Deltas, Journal, Page, PageIndex, Checkpoint, Mark][usize::from(feed.choice(7))];
    let size = usize::from(feed.byte()) * if feed.choice(4) == 3 { 40 } else { 1 };
    let (body, padding) = (vec![feed.byte(); size], u16::from(feed.choice(32)));
    let header = RecordHeader { kind, padding, length: size as u32, owner: Owner::default() };
    if bytes.len() + header.size() as usize > SHAPE.stripe_size() as usize {
        return false;
    }
    bytes.extend_from_slice(&header.encode(LOG, place, [&body[..]]));
    bytes.resize(bytes.len() + usize::from(padding), 0);
    bytes.extend_from_slice(&body);
    true
}

/// The fragments of an ended stripe.
fn stripe_of(stripe: StripeNumber, bytes: &[u8], previous_end: u32) -> Vec<Held> {
    let lengths = SHAPE.data_lengths(bytes.len() as u32);
    let mut parity = vec![0; lengths.iter().copied().max().unwrap_or(0) as usize];
    let mut parts = Vec::new();
    for (index, piece) in (0u8..).zip(bytes.chunks(SHAPE.fragment_size as usize)) {
        erasure::accumulate(&mut [&mut parity[..]], index, 0, piece);
        parts.push((Part::Data(index), piece.to_vec(), Vec::new()));
    }
    parts.push((Part::Parity(0), parity, lengths));
    let held = parts.into_iter().map(|(part, bytes, data_lengths)| {
        let id = FragmentId { log: LOG, stripe, run: RunNumber(0), part };
        let (mark, complete_below) = (Position::START, StripeNumber(0));
        let header =
            FragmentHeader { id, group: GroupId(0), geometry: SHAPE, mark, previous_end, complete_below, data_lengths };
        Held { header, sums: block_checksums(&bytes), length: bytes.len() as u32, bytes, odd: 0 }
    });
    held.collect()
}

/// Does what the input says to some fragments.
fn harm(feed: &mut Feed<'_>, stores: &mut Stores) -> Harm {
    let mut worst = Harm::None;
    for _ in 0..feed.choice(8) {
        let target = TargetId(feed.choice(3).into());
        let store = stores.entry(target).or_default();
        let at = usize::from(feed.byte());
        let done = match (!store.is_empty()).then(|| at % store.len()) {
            Some(at) => harm_one(feed, store, at),
            None => add_strange(feed, store),
        };
        worst = worst.max(done);
    }
    worst
}

fn harm_one(feed: &mut Feed<'_>, store: &mut Vec<Held>, at: usize) -> Harm {
    let held = &mut store[at];
    match feed.choice(9) {
        0 => {
            held.odd = feed.byte();
            return if held.odd & 7 == INVENTS { Harm::Forged } else { Harm::Told };
        }
        1 => held.length = feed.word(),
        2 => {
            held.header = near(fragments::header(feed, SHAPE));
            return forged(held);
        }
        3 => held.header.previous_end = feed.word(),
        4 => held.header.mark = Position::new(StripeNumber(feed.choice(4).into()), feed.word()),
        5 => {
            let (place, how) = (feed.word() as usize, feed.byte());
            let Some(byte) = held.bytes.get_mut(place) else { return Harm::Told };
            *byte ^= 1 << (how % 8);
            if how < 128 {
                held.sums = block_checksums(&held.bytes);
                return Harm::Forged;
            }
        }
        // Decoding is done with these lengths: wrong ones make other bytes of right ones.
        6 => {
            held.header.data_lengths = (0..feed.choice(4)).map(|_| fragments::length(feed, SHAPE)).collect();
            return Harm::Forged;
        }
        7 => drop(store.swap_remove(at)),
        _ => return add_strange(feed, store),
    }
    Harm::Told
}

/// Bytes of nobody in the log's name are forged; those in another's are none of its business.
fn forged(held: &Held) -> Harm {
    if held.header.id.log == LOG { Harm::Forged } else { Harm::Told }
}

fn add_strange(feed: &mut Feed<'_>, store: &mut Vec<Held>) -> Harm {
    let strange = strange(feed);
    let harm = forged(&strange);
    store.push(strange);
    harm
}

fn strange(feed: &mut Feed<'_>) -> Held {
    let header = near(fragments::header(feed, SHAPE));
    let bytes = vec![feed.byte(); fragments::length(feed, SHAPE) as usize];
    Held { header, sums: block_checksums(&bytes), length: bytes.len() as u32, bytes, odd: 0 }
}

/// Targets may tell rubbish, but a target that lies about how far a log goes makes whoever believes it go there: a log
/// of 2⁶⁰ stripes takes as long to scan as it takes.
fn near(mut header: FragmentHeader) -> FragmentHeader {
    header.id.stripe.0 %= 64;
    header
}

struct FakeRegistry(Mutex<Arc<Maps>>);

impl Handler for FakeRegistry {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let request: RegistryRequest = request.open().expect("the registry is asked as the registry");
        let mut maps = self.0.lock().expect("nobody panics over the maps");
        let (next, reply) = change::apply(&maps, request);
        if let Some(next) = next {
            *maps = Arc::new(next);
        }
        let answer: RegistryAnswer = reply.and_then(|outcome| outcome.with(maps.clone()));
        Box::pin(async move { Envelope::new(answer) })
    }
}

struct FakeTargets(Arc<Mutex<Stores>>);

impl Handler for FakeTargets {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let ToTarget { target, request } = request.open().expect("storage is asked as storage");
        let mut stores = self.0.lock().expect("nobody panics over the stores");
        let answer = serve(stores.entry(target).or_default(), request);
        Box::pin(async move { Envelope::new(answer) })
    }
}

fn serve(store: &mut Vec<Held>, request: StorageRequest) -> StorageAnswer {
    let told = |held: &Held| StoredFragment { header: held.header.clone(), length: held.length, generation: 0 };
    match request {
        StorageRequest::Append(append) | StorageRequest::Replace(append) => {
            let bytes = append.parts.concat();
            let new = append.offset == 0 && !store.iter().any(|held| held.header.id == append.header.id);
            let length = append.offset.saturating_add(bytes.len() as u32);
            if new {
                let (header, sums) = (append.header, append.checksums);
                store.push(Held { header, sums, length, bytes, odd: 0 });
            }
            Ok(StorageReply::Done { length })
        }
        StorageRequest::Read { id, offset, length } => match store.iter().find(|held| held.header.id == id) {
            Some(held) => read(held, offset, length),
            None => Err(StorageError::Missing),
        },
        StorageRequest::Tail { log, from } => {
            let of_it = |held: &&Held| held.header.id.log == log && held.header.id.stripe >= from;
            Ok(StorageReply::Fragments(store.iter().filter(of_it).map(told).collect()))
        }
        StorageRequest::List { after, limit } => {
            let behind = |held: &&Held| after.is_none_or(|after| held.header.id > after);
            let mut all: Vec<_> = store.iter().filter(behind).map(told).collect();
            all.sort_by_key(|fragment| fragment.header.id);
            all.truncate(limit as usize);
            Ok(StorageReply::Fragments(all))
        }
        StorageRequest::Delete { stripes } => {
            store.retain(|held| !stripes.contains(&(held.header.id.log, held.header.id.stripe)));
            Ok(StorageReply::Done { length: 0 })
        }
        StorageRequest::Discard { fragments } => {
            store.retain(|held| !fragments.contains(&(held.header.id, 0)));
            Ok(StorageReply::Done { length: 0 })
        }
        StorageRequest::Fence { log, .. } => Ok(StorageReply::Fence { complete_below: StripeNumber(log.0 % 3) }),
        StorageRequest::Complete { .. } => Ok(StorageReply::Done { length: 0 }),
        StorageRequest::Sync => Ok(StorageReply::Synced { incarnation: 1 }),
        StorageRequest::Stat => Ok(StorageReply::Stat(TargetStat { incarnation: 1, ..TargetStat::default() })),
    }
}

/// Whole blocks, or what `odd` makes of them.
fn read(held: &Held, offset: u32, length: u32) -> StorageAnswer {
    let size = held.bytes.len();
    let end = (offset as usize).saturating_add(length as usize).next_multiple_of(BLOCK).min(size);
    let start = (offset as usize / BLOCK * BLOCK).min(end);
    let mut bytes = held.bytes[start..end].to_vec();
    let mut checksums: Vec<u32> =
        held.sums.iter().copied().skip(start / BLOCK).take(bytes.len().div_ceil(BLOCK)).collect();
    let mut told = offset / BLOCK as u32 * BLOCK as u32;
    match held.odd & 7 {
        1 => told = told.wrapping_add(u32::from(held.odd) * 64),
        2 => drop(bytes.split_off(bytes.len() / 2)),
        3 => drop(checksums.pop()),
        4 => checksums.push(0),
        5 => return Err(StorageError::Failed("odd".into())),
        INVENTS => {
            bytes.extend_from_slice(&[held.odd; 5000]);
            checksums = block_checksums(&bytes);
        }
        7 => return Ok(StorageReply::Fragments(Vec::new())),
        _ => {}
    }
    Ok(StorageReply::Blocks { offset: told, bytes: Bytes::from(bytes), checksums })
}

/// Whole logs, and some that are not, with each operation.
fn seeds() -> Vec<Vec<u8>> {
    let records = [2, 1, 2, 100, 0, 7, 0, 0, 200, 3, 9, 5, 1, 0, 1, 6, 20, 0, 1, 0];
    let whole = [&records[..], &[0]].concat();
    let operations = (0..8).map(|operation| [&whole[..], &[0, operation, 10, 200]].concat());
    let harmed =
        (0..9).map(|harm| [&records[..], &[1, 1, 0, harm, 3, 200, 1], &[0, 0, 0, 3, 0, 100, 0, 6, 0, 4, 0]].concat());
    operations.chain(harmed).collect()
}

fuzz_target!(init: dazzle_fuzz::seeds(seeds), |input: &[u8]| run(input));
