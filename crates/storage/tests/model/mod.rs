//! A naive model of one target, workers that use the target and keep the model, and the comparison after a crash.
//!
//! Bytes follow from the name of what they belong to, so the model need not keep any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::join_all;
use host::sim::{Dice, Stop};
use protocol::address::Position;
use protocol::checksum::{BLOCK_SIZE, block_checksums, blocks_are_right};
use protocol::fragment::{FragmentHeader, FragmentId, Geometry, Part};
use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, StripeNumber, TargetId};
use protocol::storage::{Append, Durability, Room, StorageAnswer, StorageError, StorageReply, StorageRequest};
use storage::{Target, TargetOptions};

pub const CLUSTER: u128 = 42;
pub const ID: TargetId = TargetId(7);
pub const OPTIONS: TargetOptions = TargetOptions {
    cell_data: 16 << 10,
    window_cells: 8,
    journal_permille: 20,
    clean_permille: 20,
    list_growth: 4096,
    intake_size: 12 << 10,
};
/// Each log uses so many stripe numbers, again and again.
const STRIPES: u64 = 4;

/// A fragment that grows, as the model knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Growing {
    sent: u32,
    acked: u32,
    acked_disk: u32,
}

/// A stripe's parity.
#[derive(Clone, Debug, Default)]
struct Parity {
    tried: BTreeSet<u32>,
    acked: Option<u32>,
    acked_disk: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct Stripe {
    growing: BTreeMap<Part, Growing>,
    parity: Parity,
    /// A deletion was asked for and not answered.
    deleting: bool,
}

#[derive(Debug, Default)]
pub struct Model {
    stripes: BTreeMap<(LogId, StripeNumber), Stripe>,
    fences: BTreeMap<LogId, u32>,
    /// Asked for, durable or not.
    fences_tried: BTreeMap<LogId, u32>,
    stopped: Option<Stop>,
}

pub type Shared = Arc<Mutex<Model>>;

/// Uses one log.
pub struct Worker {
    log: LogId,
    model: Shared,
    target: Arc<Target>,
    dice: Dice,
}

impl Model {
    pub fn shared() -> Shared {
        Arc::default()
    }

    /// Of several stops before a start that gets through, the worst counts.
    pub fn crashed(&mut self, stop: Stop) {
        if self.stopped != Some(Stop::PowerLoss) {
            self.stopped = Some(stop);
        }
    }

    /// Everything acknowledged so far is durable now.
    fn all_durable(&mut self, log: LogId) {
        for (_, stripe) in self.stripes.iter_mut().filter(|((of, _), _)| *of == log) {
            for growing in stripe.growing.values_mut() {
                growing.acked_disk = growing.acked;
            }
            stripe.parity.acked_disk = stripe.parity.acked;
        }
    }

    fn stripe(&mut self, id: FragmentId) -> &mut Stripe {
        self.stripes.entry((id.log, id.stripe)).or_default()
    }
}

/// Compares what the target holds with what it may and must hold, and takes that for the truth from then on.
pub async fn check(model: &Shared, target: &Arc<Target>) {
    let mut found: BTreeMap<(LogId, StripeNumber), BTreeMap<Part, (u32, Bytes)>> = BTreeMap::new();
    for fragment in fragments(target).await {
        let id = fragment.header.id;
        let bytes = read(target, id, 0, u32::MAX).await.unwrap();
        assert_eq!(bytes.len() as u32, fragment.length, "{id:?}");
        assert_eq!(fragment.header.geometry, geometry(id.log));
        found.entry((id.log, id.stripe)).or_default().insert(id.part, (fragment.length, bytes));
    }
    let mut model = model.lock().unwrap();
    let power_lost = model.stopped.take() == Some(Stop::PowerLoss);
    for (key, parts) in &found {
        assert!(model.stripes.contains_key(key), "{key:?} was never sent");
        assert!(!parts.is_empty());
    }
    for (key, stripe) in &mut model.stripes {
        let parts = found.remove(key).unwrap_or_default();
        check_stripe(*key, stripe, &parts, power_lost);
    }
}

fn check_stripe(
    key: (LogId, StripeNumber),
    stripe: &mut Stripe,
    parts: &BTreeMap<Part, (u32, Bytes)>,
    power_lost: bool,
) {
    let parity = &stripe.parity;
    let must = if power_lost { parity.acked_disk } else { parity.acked };
    let epoch = parts.get(&Part::Parity(0)).map(|(_, bytes)| {
        let right = |epoch: &&u32| *bytes == content(key, Part::Parity(0), **epoch, 0, parity_length(key.0));
        *parity.tried.iter().find(right).unwrap_or_else(|| panic!("{key:?}: wrong parity"))
    });
    assert!(epoch >= must || stripe.deleting, "{key:?}: parity {epoch:?}, acknowledged {must:?}");
    for part in parts.keys() {
        assert!(*part == Part::Parity(0) || stripe.growing.contains_key(part), "{key:?} {part:?} was never sent");
    }
    for (part, growing) in &mut stripe.growing {
        let (length, bytes) = parts.get(part).cloned().unwrap_or_default();
        let replaced = epoch.is_some() && matches!(part, Part::Copy { .. });
        if replaced {
            assert_eq!(length, 0, "{key:?} {part:?}: neither copy nor parity, but both");
        } else {
            let must = if power_lost { growing.acked_disk } else { growing.acked };
            let gone = stripe.deleting && length == 0;
            assert!(length >= must || gone, "{key:?} {part:?}: {length} bytes, acknowledged {must}");
            assert!(length <= growing.sent, "{key:?} {part:?}: {length} bytes, sent {}", growing.sent);
            assert!(bytes == content(key, *part, 0, 0, length), "{key:?} {part:?}: wrong bytes");
        }
        *growing = Growing { sent: growing.sent, acked: length, acked_disk: length };
    }
    stripe.deleting = false;
    stripe.parity.acked = epoch;
    stripe.parity.acked_disk = epoch;
}

pub async fn fragments(target: &Arc<Target>) -> Vec<protocol::storage::StoredFragment> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let Ok(StorageReply::Fragments(page)) = target.serve(StorageRequest::List { after, limit: 5 }).await else {
            panic!("a list is answered with fragments");
        };
        let Some(last) = page.last() else { return all };
        after = Some(last.header.id);
        all.extend(page);
    }
}

/// Reads, verifies, and cuts what was asked for out of the blocks.
pub async fn read(target: &Arc<Target>, id: FragmentId, offset: u32, length: u32) -> Result<Bytes, StorageError> {
    let reply = target.serve(StorageRequest::Read { id, offset, length }).await?;
    let StorageReply::Blocks { offset: start, bytes, checksums } = reply else { panic!("no blocks") };
    assert!(blocks_are_right(&bytes, &checksums), "{id:?} at {offset}: blocks do not verify");
    assert_eq!(start as usize % BLOCK_SIZE, 0);
    let skip = (offset - start) as usize;
    let end = bytes.len().min(skip.saturating_add(length as usize));
    Ok(bytes.slice(skip.min(end)..end))
}

pub fn geometry(log: LogId) -> Geometry {
    let fragment_size = if log.0.is_multiple_of(2) { 40_000 } else { 12_000 };
    Geometry { data: 2, parity: 1, fragment_size }
}

fn parity_length(log: LogId) -> u32 {
    geometry(log).fragment_size - 10
}

/// The bytes that belong to a part; a copy's are those of its data.
pub fn content((log, stripe): (LogId, StripeNumber), part: Part, epoch: u32, offset: u32, length: u32) -> Bytes {
    let kind = match part {
        Part::Data(of) | Part::Copy { of, .. } => u32::from(of),
        Part::Parity(at) => 100 + u32::from(at) + 1000 * epoch,
    };
    let seed = (log.0 * 7919 + stripe.0 * 104_729 + u64::from(kind) * 1_299_709) as u32;
    (offset..offset + length)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 13) as u8)
        .collect()
}

pub fn header(id: FragmentId) -> FragmentHeader {
    let geometry = geometry(id.log);
    let data_lengths = if matches!(id.part, Part::Parity(_)) { vec![1; 2] } else { Vec::new() };
    FragmentHeader {
        id,
        group: GroupId(3),
        geometry,
        mark: Position::START,
        previous_end: 0,
        complete_below: StripeNumber(0),
        data_lengths,
    }
}

/// The request that brings bytes `offset..end` of a part.
pub fn append(id: FragmentId, epoch: u32, offset: u32, end: u32, durability: Durability) -> Append {
    let key = (id.log, id.stripe);
    let start = offset / BLOCK_SIZE as u32 * BLOCK_SIZE as u32;
    let bytes = content(key, id.part, epoch, offset, end - offset);
    let checksums =
        if end > offset { block_checksums(&content(key, id.part, epoch, start, end - start)) } else { Vec::new() };
    let cut = bytes.len() / 3;
    let parts = vec![bytes.slice(..cut), bytes.slice(cut..)];
    let fence = FenceEpoch(epoch);
    Append { header: header(id), fence, offset, parts, checksums, durability, room: Room::Clean }
}

pub fn fragment_id(log: LogId, stripe: u64, part: Part) -> FragmentId {
    FragmentId { log, stripe: StripeNumber(stripe), run: RunNumber(1), part }
}

impl Worker {
    pub fn new(log: u64, model: Shared, target: Arc<Target>, seed: u64) -> Worker {
        Worker { log: LogId(log), model, target, dice: Dice::new(seed) }
    }

    pub async fn run(mut self) {
        loop {
            self.step().await;
        }
    }

    /// Appends to a few fragments, small ones that are mostly to be durable, several at once and nothing else.
    pub async fn run_small(mut self) {
        loop {
            let stripe = self.dice.below(STRIPES);
            match self.dice.below(30) {
                0 => self.delete(stripe).await,
                1 => self.append(fragment_id(self.log, stripe, Part::Data(0))).await,
                _ => self.append_several(fragment_id(self.log, stripe, Part::Data(0))).await,
            }
        }
    }

    async fn step(&mut self) {
        let stripe = self.dice.below(STRIPES);
        match self.dice.below(30) {
            0 => self.delete(stripe).await,
            1 => self.replace(stripe).await,
            2 => self.discard(stripe).await,
            3 => self.fence().await,
            4..=6 => self.read(stripe).await,
            7 => {
                self.serve(StorageRequest::Sync).await.unwrap();
                self.model.lock().unwrap().all_durable(self.log);
            }
            8..=13 => {
                let of = self.dice.below(2) as u8;
                self.append(fragment_id(self.log, stripe, Part::Copy { of, at: 0 })).await;
            }
            14..=19 => self.append_several(fragment_id(self.log, stripe, Part::Data(0))).await,
            _ => self.append(fragment_id(self.log, stripe, Part::Data(0))).await,
        }
    }

    async fn serve(&self, request: StorageRequest) -> StorageAnswer {
        self.target.serve(request).await
    }

    fn epoch(&self) -> u32 {
        self.model.lock().unwrap().fences_tried.get(&self.log).copied().unwrap_or(0)
    }

    fn durability(&mut self) -> Durability {
        if self.dice.coin() { Durability::Disk } else { Durability::Replicated }
    }

    async fn append(&mut self, id: FragmentId) {
        let (epoch, durability) = (self.epoch(), self.durability());
        let size = geometry(id.log).fragment_size;
        let (length, parity) = {
            let mut model = self.model.lock().unwrap();
            let stripe = model.stripe(id);
            (stripe.growing.entry(id.part).or_default().acked, stripe.parity.acked)
        };
        let most = if self.dice.coin() { 2_000 } else { u64::from(size) };
        let end = (length + 1 + self.dice.below(most) as u32).min(size);
        let offset = if self.dice.chance(200_000) { self.dice.below(u64::from(length) + 1) as u32 } else { length };
        {
            let mut model = self.model.lock().unwrap();
            let growing = model.stripe(id).growing.get_mut(&id.part).unwrap();
            growing.sent = growing.sent.max(end);
        }
        let answer = self.serve(StorageRequest::Append(append(id, epoch, offset, end, durability))).await;
        match answer {
            Ok(StorageReply::Done { length }) => {
                assert_eq!(length, end);
                let mut model = self.model.lock().unwrap();
                let growing = model.stripe(id).growing.get_mut(&id.part).unwrap();
                growing.acked = end;
                if durability == Durability::Disk {
                    growing.acked_disk = end;
                }
            }
            Err(StorageError::Full) => {}
            Err(StorageError::Refused(_)) => assert!(parity.is_some() && matches!(id.part, Part::Copy { .. })),
            other => panic!("{id:?}: {other:?}"),
        }
    }

    /// Small appends, one behind the other, of which none waits for the answer of the one before.
    async fn append_several(&mut self, id: FragmentId) {
        let (epoch, size) = (self.epoch(), geometry(id.log).fragment_size);
        let mut end = self.model.lock().unwrap().stripe(id).growing.entry(id.part).or_default().acked;
        let mut requests = Vec::new();
        for _ in 0..1 + self.dice.below(4) {
            let offset = end;
            end = (offset + 1 + self.dice.below(1_500) as u32).min(size);
            let durability = if self.dice.chance(100_000) { Durability::Replicated } else { Durability::Disk };
            requests.push(append(id, epoch, offset, end, durability));
        }
        {
            let mut model = self.model.lock().unwrap();
            let growing = model.stripe(id).growing.get_mut(&id.part).unwrap();
            growing.sent = growing.sent.max(end);
        }
        join_all(requests.into_iter().map(|request| self.append_one(request))).await;
    }

    async fn append_one(&self, append: Append) {
        let (id, durability) = (append.header.id, append.durability);
        let end = append.offset + append.length() as u32;
        match self.serve(StorageRequest::Append(append)).await {
            Ok(StorageReply::Done { length }) => {
                assert!(length >= end);
                let mut model = self.model.lock().unwrap();
                let growing = model.stripe(id).growing.get_mut(&id.part).unwrap();
                growing.acked = growing.acked.max(end);
                if durability == Durability::Disk {
                    growing.acked_disk = growing.acked_disk.max(end);
                }
            }
            // One that was refused leaves those behind it without what they continue.
            Err(StorageError::Full | StorageError::Gap { .. }) => {}
            other => panic!("{id:?}: {other:?}"),
        }
    }

    async fn replace(&mut self, stripe: u64) {
        let id = fragment_id(self.log, stripe, Part::Parity(0));
        let (epoch, durability) = (self.epoch(), self.durability());
        self.model.lock().unwrap().stripe(id).parity.tried.insert(epoch);
        let request = append(id, epoch, 0, parity_length(id.log), durability);
        match self.serve(StorageRequest::Replace(request)).await {
            Ok(_) => {
                let mut model = self.model.lock().unwrap();
                let stripe = model.stripe(id);
                stripe.parity.acked = Some(epoch);
                if durability == Durability::Disk {
                    stripe.parity.acked_disk = Some(epoch);
                }
                for (part, growing) in &mut stripe.growing {
                    if matches!(part, Part::Copy { .. }) {
                        // What was durable must be there until the parity is.
                        growing.acked = 0;
                    }
                }
            }
            Err(StorageError::Full) => {}
            other => panic!("{id:?}: {other:?}"),
        }
    }

    async fn delete(&mut self, stripe: u64) {
        let id = fragment_id(self.log, stripe, Part::Data(0));
        self.model.lock().unwrap().stripe(id).deleting = true;
        match self.serve(StorageRequest::Delete { stripes: vec![(id.log, id.stripe)] }).await {
            Ok(_) => *self.model.lock().unwrap().stripe(id) = Stripe::default(),
            other => panic!("{other:?}"),
        }
    }

    /// Nobody else deletes or writes what is of this log: what is listed stays until it is discarded.
    async fn discard(&mut self, stripe: u64) {
        let id = fragment_id(self.log, stripe, Part::Data(0));
        let Ok(StorageReply::Fragments(all)) = self.serve(StorageRequest::Tail { log: id.log, from: id.stripe }).await
        else {
            panic!("a tail is answered with fragments");
        };
        let all = all.into_iter().filter(|fragment| fragment.header.id.stripe == id.stripe);
        let seen: Vec<(FragmentId, u64)> = all.map(|found| (found.header.id, found.generation)).collect();
        let others = seen.iter().map(|&(id, generation)| (id, generation + 1)).collect();
        self.serve(StorageRequest::Discard { fragments: others }).await.unwrap();
        for &(id, _) in &seen {
            assert!(read(&self.target, id, 0, 1).await.is_ok(), "{id:?}: that was another one");
        }
        self.model.lock().unwrap().stripe(id).deleting = true;
        self.serve(StorageRequest::Discard { fragments: seen }).await.unwrap();
        *self.model.lock().unwrap().stripe(id) = Stripe::default();
    }

    async fn fence(&mut self) {
        let old = self.epoch();
        self.model.lock().unwrap().fences_tried.insert(self.log, old + 1);
        self.serve(StorageRequest::Fence { log: self.log, epoch: FenceEpoch(old + 1) }).await.unwrap();
        self.model.lock().unwrap().fences.insert(self.log, old + 1);
        self.stale_appends_are_refused().await;
    }

    /// Also after every restart.
    async fn stale_appends_are_refused(&self) {
        let fence = self.model.lock().unwrap().fences.get(&self.log).copied().unwrap_or(0);
        if fence > 0 {
            let id = fragment_id(self.log, 0, Part::Data(0));
            let answer = self.serve(StorageRequest::Append(append(id, fence - 1, 0, 1, Durability::Replicated))).await;
            assert!(matches!(answer, Err(StorageError::Fenced(epoch)) if epoch.0 >= fence), "{answer:?}");
        }
    }

    async fn read(&mut self, stripe: u64) {
        self.stale_appends_are_refused().await;
        let id = fragment_id(self.log, stripe, Part::Data(0));
        let length = self.model.lock().unwrap().stripe(id).growing.get(&id.part).map_or(0, |growing| growing.acked);
        if length > 0 {
            let offset = self.dice.below(u64::from(length)) as u32;
            let bytes = read(&self.target, id, offset, length - offset).await.unwrap();
            assert!(bytes == content((id.log, id.stripe), id.part, 0, offset, length - offset));
        }
    }
}
