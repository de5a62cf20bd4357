//! What a node keeps of the consensus, on several of its own targets: vote, log and the newest snapshot.
//!
//! 1. Whatever the library was told to be durable is on at least min(m+1, n) of the n copies: no m losses take it away. How
//!    one goes on without copies that failed, `counting` says.
//! 2. A start reads at least n−m of them, and one that misses something has fewer records than another: the longest tells
//!    all. It then brings all copies up to this before anything else happens, and writes none where it could not write enough.
//!    One that is damaged counts for nothing until it is written anew, behind those that suffice without it.
//! 3. One record or checkpoint is under way at a time, on all copies alike.
//!    Copies on targets that were taken out of the cluster are no copies any more.
//! 4. A copy that failed gets no record before its next checkpoint. Nor does one that was late, and that gets no checkpoint
//!    either before the write that it is at has ended: what it was given last would reach the disk later than what follows.
//! 5. Where too few copies are written because disks are full or answer nothing, this waits: an error the library takes for
//!    final.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_lock::Mutex as AsyncMutex;
use bytes::Bytes;
use futures_util::future::join_all;
use host::Disk;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{AsyncRuntime, EntryPayload, OptionalSend};
use protocol::id::TargetId;
use serde::{Deserialize, Serialize};

use crate::consensus::{Agreed, Entry, LogId, Membership, Meta, Vote, Words};
use crate::copies::{Checkpoint, Copies, Reached};
use crate::counting::{Dissent, Set, consent, must_read, must_write, patient_consent};
use crate::reign::SKIPPED;
use crate::replica::Found;
use crate::runtime::{HostRuntime, host, in_time, is_within};
use crate::service::RegistryStart;
use crate::{Replica, ReplicaError, Standing};

/// A log this long is cut by a checkpoint: it is read whole at a start.
const LOG_BYTES_MAX: usize = 1 << 20;
/// How long it may take to read what a new copy holds.
const OPEN_PATIENCE: Duration = Duration::from_secs(8);
/// How often copies are written anew when too few have what was promised.
const MEND_TRIES: u32 = 20;
const MEND_PAUSE: Duration = Duration::from_millis(250);
/// How often is looked whether disks answer again before the others are asked whether it may go on without: with what a write
/// waits before, these are 15 s.
const HUNG_LOOKS: u32 = 28;
/// What becomes of what is to be kept while disks have no room for it, or answer nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Otherwise {
    /// It waits for them: the library gives up for good over an error.
    Wait,
    /// It is told after a while.
    Fail,
}

/// Why too few copies could be written where none failed.
const MISSING: &str = "targets are missing, or the registry on them is damaged; bring them back, put empty disks in \
                       their places, or see what `dazzle registry rebuild DIR --plan` says";
/// The library reads so many entries at once at most.
const ENTRIES_READ_MAX: usize = 300;

/// What a checkpoint holds, and records change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// The targets that have a copy.
    pub copies: Vec<TargetId>,
    /// How many of them may be lost.
    pub spare: u8,
    pub vote: Option<Vote>,
    /// A hint: what was committed when the last record was written.
    pub committed: Option<LogId>,
    /// The newest entry that is not in `entries` any more.
    pub purged: Option<LogId>,
    pub entries: BTreeMap<u64, Entry>,
    pub snapshot: Option<(Meta, Arc<Agreed>)>,
}

/// What a record says.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Event {
    Vote(Vote),
    Committed(Option<LogId>),
    Append(Entry),
    /// Entries from this index on are gone.
    Truncate(u64),
    Purge(LogId),
}

/// The copies of one node.
pub(crate) struct Store {
    kept: Mutex<Kept>,
    written: AsyncMutex<Written>,
    /// What something waits for: what this node knows of the cluster is behind then.
    lack: Mutex<Option<Lack>>,
}

/// What disks may lack for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Room,
    Answers,
    /// Copies that work. Others are asked whether it may go on without those that do not.
    Copies,
}

/// Why too few copies were written.
struct TooFew {
    /// What may be there in a while.
    lack: Option<Lack>,
    why: String,
}

struct Written {
    copies: Copies,
    /// The targets that what is kept named when it was written last: a set that counts.
    counts: Set,
    /// No copy that counts is at a later one, but for the next.
    generation: u64,
    /// Of the checkpoint that was written last, to enough copies or not.
    newest: u64,
    /// Whether to enough.
    is_settled: bool,
    /// Records since the newest checkpoint, and their bytes.
    records: u32,
    log_bytes: usize,
}

/// A store that was opened.
pub(crate) struct Opened {
    pub store: Arc<Store>,
    /// Targets that missed more than a crash explains.
    pub outdated: Vec<TargetId>,
    /// Targets whose copies did not tell all that was promised.
    pub damaged: Vec<TargetId>,
}

impl Opened {
    /// One that was just made.
    pub fn new(store: Arc<Store>) -> Opened {
        Opened { store, outdated: Vec::new(), damaged: Vec::new() }
    }
}

impl Store {
    /// Makes a store that holds `kept` on `disks`, whatever was there. Other targets that `kept` says have a copy count too:
    /// what they hold must not be taken for the newest once they are back.
    pub async fn create(mut kept: Kept, disks: &[(TargetId, Disk)]) -> Result<Arc<Store>, ReplicaError> {
        let Copied { replicas, found, .. } = open_all(disks).await?;
        let generation = found.iter().map(|(_, found)| found.generation).max().unwrap_or(0);
        disks.iter().for_each(|(target, _)| kept.take_copy(*target));
        Store::begin(kept, replicas, generation).await
    }

    /// Writes `kept` to these copies, as the generation behind `generation`.
    pub(crate) async fn begin(
        kept: Kept,
        replicas: Vec<(TargetId, Replica)>,
        generation: u64,
    ) -> Result<Arc<Store>, ReplicaError> {
        let store = Store::of(kept, Written::new(Copies::new(replicas), generation, 0));
        let stored = store.checkpoint(&mut *store.written.lock().await).await;
        stored.map(|()| store).map_err(|few| ReplicaError::TooFew(few.why))
    }

    /// Reads what the copies on `disks` hold, and brings all of them up to it.
    pub async fn open(disks: &[(TargetId, Disk)]) -> Result<Opened, RegistryStart> {
        let Copied { replicas, found, damaged } = open_all(disks).await.map_err(RegistryStart::Foreign)?;
        let (newest, kept) = newest_of(&found)?;
        let outdated = found.iter().filter(|(_, found)| !found.is_explained_by_a_crash(newest));
        let outdated: Vec<_> = outdated.map(|(target, _)| *target).collect();
        let latest = replicas.iter().chain(&damaged).map(|(_, replica)| replica.latest()).max().unwrap_or(0);
        let (counted, mut others): (Vec<_>, Vec<_>) =
            replicas.into_iter().partition(|(target, _)| kept.copies.contains(target));
        let unsound = damaged.iter().map(|(target, _)| *target).collect();
        others.extend(damaged);
        let written = Written::new(Copies::new(counted), newest.generation, newest.records.len() as u32);
        let store = Store::of(kept, Written { generation: latest, ..written });
        let mut written = store.written.lock().await;
        store.begin_anew(&mut written).await?;
        // Where those cannot be written it goes on without.
        let taken_in = store.take_in(&mut written, others).await;
        taken_in.or_else(|few| written.is_settled.then_some(()).ok_or(RegistryStart::Unwritten(few.why)))?;
        drop(written);
        Ok(Opened { store, outdated, damaged: unsound })
    }

    /// The first checkpoint of a start, which goes on without some copies if the others agree.
    async fn begin_anew(&self, written: &mut Written) -> Result<(), RegistryStart> {
        loop {
            let Err(few) = self.checkpoint(written).await else { return Ok(()) };
            let (set, left, standing) = self.asking(written);
            let (Some(standing), None, true) = (standing, few.lack, is_within() && !left.is_empty()) else {
                return Err(RegistryStart::Unwritten(few.why));
            };
            let consent = patient_consent(&host(), &standing, &set, &left).await;
            consent.map_err(|dissent| match dissent {
                Dissent::Refused(why) => RegistryStart::Uncounted(why),
                Dissent::Unheard(why) => RegistryStart::Alone { few: few.why, why },
            })?;
            self.go_on_without_others(written, &left);
        }
    }

    /// Copies that do not count yet get all that is kept, and count from then on. Where that cannot be written it goes on as
    /// before.
    async fn take_in(&self, written: &mut Written, others: Vec<(TargetId, Replica)>) -> Result<(), TooFew> {
        if others.is_empty() {
            return Ok(());
        }
        // Who starts with those alone that count knows of all that may have been written, but for one generation.
        if !written.is_settled {
            self.checkpoint(written).await?;
        }
        let before = self.kept().set();
        for (target, replica) in others {
            written.generation = written.generation.max(replica.latest());
            written.copies.take(target, replica);
            self.kept().take_copy(target);
        }
        let Err(few) = self.checkpoint(written).await else { return Ok(()) };
        self.go_on_with(written, &before);
        self.checkpoint(written).await?;
        Err(few)
    }

    /// The set, those of it that are left, and what the others are to be asked with.
    fn asking(&self, written: &Written) -> (Set, Set, Option<Standing>) {
        let left = self.left(written);
        let kept = self.kept();
        (kept.set(), left, kept.standing())
    }

    /// Those of the set whose copies are there and have not failed.
    fn left(&self, written: &Written) -> Set {
        let set = self.kept().set();
        written.copies.sound().filter(|target| set.contains(target)).collect()
    }

    /// Goes on without all copies but these. The next checkpoint says so to them.
    fn go_on_with(&self, written: &mut Written, left: &Set) {
        self.kept().copies.retain(|target| left.contains(target));
        written.copies.set_aside(left);
    }

    /// The same, where the others agreed: whatever the copies hold that were given up is older from then on.
    fn go_on_without_others(&self, written: &mut Written, left: &Set) {
        self.go_on_with(written, left);
        written.generation += SKIPPED;
    }

    /// Takes copies in again that it went on without, where their targets serve.
    pub async fn take_back(&self, serves: impl FnMut(TargetId) -> Option<()>) {
        let mut written = self.written.lock().await;
        let back = written.copies.back(serves);
        // Where that is impossible it goes on as before.
        drop(self.take_in(&mut written, back).await);
    }

    /// The set that counts, and those of it whose copies have failed.
    pub async fn counted(&self) -> (Set, Set) {
        let written = self.written.lock().await;
        let sound: Set = written.copies.sound().collect();
        (written.counts.clone(), written.counts.difference(&sound).copied().collect())
    }

    /// Goes on with the set `to` in the place of `from`, to which the others have agreed.
    pub async fn narrow(&self, from: &Set, to: &Set) -> io::Result<()> {
        let mut written = self.written.lock().await;
        if self.kept().set() != *from || written.counts != *from {
            return Ok(());
        }
        self.go_on_without_others(&mut written, to);
        self.mend(&mut written, Otherwise::Fail).await
    }

    fn of(kept: Kept, written: Written) -> Arc<Store> {
        Arc::new(Store { kept: Mutex::new(kept), written: AsyncMutex::new(written), lack: Mutex::new(None) })
    }

    /// Reads what the copies on `disks` hold, and changes nothing.
    pub async fn read(disks: &[(TargetId, Disk)]) -> Result<Kept, RegistryStart> {
        let Copied { found, .. } = open_all(disks).await.map_err(RegistryStart::Foreign)?;
        newest_of(&found).map(|(_, kept)| kept)
    }

    /// What is kept now.
    pub fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a snapshot, durably.
    pub async fn keep_snapshot(&self, meta: Meta, agreed: Arc<Agreed>) -> io::Result<()> {
        let mut written = self.written.lock().await;
        if self.kept().snapshot.as_ref().is_some_and(|(known, _)| known.last_log_id >= meta.last_log_id) {
            return Ok(());
        }
        self.kept().snapshot = Some((meta, agreed));
        self.mend(&mut written, Otherwise::Wait).await
    }

    /// Keeps a copy on one more target from now on, or on the disk that takes the place of a target's.
    pub async fn adopt(&self, target: TargetId, disk: &Disk) -> io::Result<()> {
        let mut written = self.written.lock().await;
        let opening = in_time(OPEN_PATIENCE, Replica::open(disk)).await.unwrap_or(Err(ReplicaError::Hung));
        let (replica, _) = opening.map_err(io::Error::other)?;
        let mut coming = vec![(target, replica)];
        let mut tries = 0;
        loop {
            let Err(few) = self.take_in(&mut written, coming).await else { return Ok(()) };
            // A disk that is full or slow for a moment is tried again.
            coming = loop {
                if tries == MEND_TRIES {
                    return Err(io::Error::other(few.why));
                }
                tries += 1;
                HostRuntime::sleep(MEND_PAUSE).await;
                let back = written.copies.back(|other| (other == target).then_some(()));
                if !back.is_empty() {
                    break back;
                }
            };
        }
    }

    /// Goes on without copies on targets that were taken away: a start must neither ask for them nor believe them. The last
    /// copy stays.
    pub async fn leave(&self, gone: &BTreeSet<TargetId>) -> io::Result<()> {
        let mut written = self.written.lock().await;
        let stays = |target: &TargetId| !gone.contains(target);
        let is_one_left = written.copies.targets().any(|target| stays(&target));
        if !is_one_left || self.kept().copies.iter().all(stays) {
            return Ok(());
        }
        self.kept().copies.retain(stays);
        // They too are told that they do not count any more; who starts with them alone learns it from them.
        self.mend(&mut written, Otherwise::Fail).await?;
        written.copies.retain(stays);
        self.mend(&mut written, Otherwise::Fail).await
    }

    /// Makes `events` durable, and then so in memory.
    async fn keep(&self, mut events: Vec<Event>) -> io::Result<()> {
        let mut written = self.written.lock().await;
        if written.copies.have_come_back() || written.log_bytes > LOG_BYTES_MAX {
            self.mend(&mut written, Otherwise::Wait).await?;
        }
        // The hint rides along, so that a start need not wait for others to apply what it knows.
        events.push(Event::Committed(self.kept().committed));
        let body = Bytes::from(postcard::to_stdvec(&events).map_err(io::Error::other)?);
        written.records += 1;
        written.log_bytes += body.len();
        let reached = written.copies.append(body, self.needed()).await;
        events.into_iter().for_each(|event| self.kept().happen(event));
        if reached.stored >= self.needed() {
            return Ok(());
        }
        written.is_settled = false;
        self.mend(&mut written, Otherwise::Wait).await
    }

    /// Too few copies have the newest record: all are written anew, again and again for a while. A disk that was full or slow
    /// for a moment shall not keep a node from agreeing until its next start.
    async fn mend(&self, written: &mut Written, otherwise: Otherwise) -> io::Result<()> {
        let mut tries = 0;
        let stored = loop {
            let Err(few) = self.checkpoint(written).await else { break Ok(()) };
            let mut waits = few.lack.filter(|_| otherwise == Otherwise::Wait);
            if tries == MEND_TRIES && waits != Some(Lack::Room) {
                if otherwise == Otherwise::Fail {
                    break Err(io::Error::other(few.why));
                }
                waits = waits.or(Some(Lack::Copies));
                *self.lack() = waits;
                match self.go_on_if_others_agree(written).await {
                    Ok(()) => continue,
                    Err(Dissent::Refused(why)) if waits == Some(Lack::Copies) => {
                        break Err(io::Error::other(format!("{}; {why}", few.why)));
                    }
                    Err(_) => {}
                }
            }
            *self.lack() = waits;
            tries = MEND_TRIES.min(tries + 1);
            HostRuntime::sleep(MEND_PAUSE).await;
            let mut looks = 0;
            // Nothing would become better before.
            while waits == Some(Lack::Answers) && looks < HUNG_LOOKS && !written.copies.have_come_back() {
                HostRuntime::sleep(MEND_PAUSE).await;
                (looks, tries) = (looks + 1, MEND_TRIES);
            }
        };
        *self.lack() = None;
        stored
    }

    /// Goes on with the copies that are left, if the others agree.
    async fn go_on_if_others_agree(&self, written: &mut Written) -> Result<(), Dissent> {
        let (set, left, standing) = self.asking(written);
        let Some(standing) = standing.filter(|_| !left.is_empty() && is_within()) else {
            return Err(Dissent::Refused("no copy is left, or nobody is there to be asked".into()));
        };
        consent(&host(), &standing, &set, &left).await?;
        self.go_on_without_others(written, &left);
        Ok(())
    }

    /// What something waits for.
    pub fn lacks(&self) -> Option<Lack> {
        *self.lack()
    }

    fn lack(&self) -> MutexGuard<'_, Option<Lack>> {
        self.lack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all that is kept to all copies, those that failed among them; to none where there are too few. Where the last
    /// time too few were written, or it was before this start, enough know first what is going to be written.
    async fn checkpoint(&self, written: &mut Written) -> Result<(), TooFew> {
        let set = self.kept().set();
        let needed = self.needed();
        let there = written.copies.targets().filter(|target| set.contains(target)).count();
        if there < needed {
            return self.judge(&written.copies, Reached { stored: there, ..Reached::default() }, needed);
        }
        if !written.is_settled {
            // One may have been begun that was not claimed.
            written.generation = written.generation.max(written.copies.latest()) + 1;
            let must_know = must_read(set.len(), self.kept().spare);
            let reached = written.copies.claim(written.generation + 1, must_know).await;
            self.judge(&written.copies, reached, must_know)?;
        }
        let body = postcard::to_stdvec(&*self.kept());
        let body = body.map_err(|error| TooFew { lack: None, why: error.to_string() })?.into();
        written.generation += 1;
        written.log_bytes = 0;
        let back = u32::try_from(written.generation - written.newest).unwrap_or(0);
        let before = (back, std::mem::take(&mut written.records));
        written.newest = written.generation;
        written.is_settled = false;
        let checkpoint = Checkpoint { generation: written.generation, before, body };
        let reached = written.copies.checkpoint(checkpoint, needed).await;
        self.judge(&written.copies, reached, needed)?;
        (written.counts, written.is_settled) = (set, true);
        Ok(())
    }

    /// How many copies are to have everything.
    fn needed(&self) -> usize {
        let kept = self.kept();
        must_write(kept.copies.len(), kept.spare)
    }

    /// Whether enough copies were written.
    fn judge(&self, copies: &Copies, reached: Reached, needed: usize) -> Result<(), TooFew> {
        let Reached { stored, full, late } = reached;
        if stored >= needed {
            return Ok(());
        }
        let reasons = copies.reasons();
        let reasons = if reasons.is_empty() { MISSING.to_owned() } else { reasons.join("; ") };
        let why = format!("{stored} of {needed} needed copies were stored: {reasons}");
        let lack = match stored + full + late {
            all if all < needed => None,
            // Who waits for room looks again and again, and finds those that answer, too.
            _ if full > 0 => Some(Lack::Room),
            _ => Some(Lack::Answers),
        };
        Err(TooFew { lack, why })
    }
}

/// What the newest copy holds, if so many were read that no newer one can be missing.
fn newest_of(found: &[(TargetId, Found)]) -> Result<(&Found, Kept), RegistryStart> {
    let newest = found.iter().map(|(_, found)| found).max_by_key(|found| found.place());
    let newest = newest.ok_or(RegistryStart::Nothing)?;
    let kept = newest.read().ok_or(RegistryStart::Contradiction)?;
    let copies = found.iter().filter(|(target, _)| kept.copies.contains(target)).count();
    let total = kept.copies.len();
    let needed = must_read(total, kept.spare);
    if copies < needed {
        return Err(RegistryStart::TooFew { found: copies, total, needed });
    }
    Ok((newest, kept))
}

impl Written {
    /// Nothing was written yet; of the newest copy there is generation and records.
    fn new(copies: Copies, generation: u64, records: u32) -> Written {
        let (newest, counts) = (generation, Set::new());
        Written { copies, counts, generation, newest, is_settled: false, records, log_bytes: 0 }
    }
}

impl Kept {
    /// The targets that have a copy.
    fn set(&self) -> Set {
        self.copies.iter().copied().collect()
    }

    fn take_copy(&mut self, target: TargetId) {
        if !self.copies.contains(&target) {
            self.copies.push(target);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Vote(vote) => self.vote = Some(vote),
            Event::Committed(committed) => self.committed = committed,
            Event::Append(entry) => drop(self.entries.insert(entry.log_id.index, entry)),
            Event::Truncate(from) => drop(self.entries.split_off(&from)),
            Event::Purge(upto) => {
                self.entries = self.entries.split_off(&upto.index.saturating_add(1));
                self.purged = Some(upto);
            }
        }
    }

    /// Whether it can be gone on from: the maps can be followed, and no entry is missing between them and the last.
    fn is_sound(&self) -> bool {
        let follow = |index: u64| index.checked_add(1);
        let mut before = self.purged.as_ref().map(|purged| purged.index);
        let in_order = self.entries.iter().all(|(&index, entry)| {
            let next = before.map_or(Some(0), follow);
            before = Some(index);
            entry.log_id.index == index && next == Some(index)
        });
        let maps = self.snapshot.as_ref().is_none_or(|(meta, agreed)| {
            agreed.maps.verify().is_ok()
                && meta.last_log_id >= self.purged
                && meta.last_membership.voter_ids().next().is_some()
                // The library relies on that: the next voters are agreed on behind these.
                && *meta.last_membership.log_id() <= meta.last_log_id
        });
        in_order && maps && (self.snapshot.is_some() || self.purged.is_none()) && self.has_voted_for_its_entries()
    }

    /// Whoever takes entries from a leader has noted that it votes for it, or for a later one. The library relies on that.
    fn has_voted_for_its_entries(&self) -> bool {
        let of_snapshot = self.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
        let newest = [self.entries.values().map(|entry| entry.log_id).max(), self.purged, of_snapshot];
        let place = |leader: &LeaderId<u64, u32>| (leader.term, leader.node_id);
        let led = newest.iter().flatten().map(|id| place(id.committed_leader_id())).max();
        // Of the first entry of all nobody was the leader.
        led.is_none_or(|led| led.0 == 0 || self.vote.as_ref().is_some_and(|vote| led <= place(&vote.leader_id)))
    }

    /// Who votes, by the newest entry or the snapshot that says so.
    pub fn voters(&self) -> BTreeSet<u32> {
        let of_entry = |entry: &Entry| match &entry.payload {
            EntryPayload::Membership(members) => Some(members.voter_ids().collect()),
            _ => None,
        };
        let of_snapshot = || self.snapshot.as_ref().map(|(meta, _)| meta.last_membership.voter_ids().collect());
        self.entries.values().rev().find_map(of_entry).or_else(of_snapshot).unwrap_or_default()
    }

    /// The newest entry's name.
    pub fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, entry)| entry.log_id).or(self.purged)
    }
}

impl Found {
    pub(crate) fn place(&self) -> (u64, usize) {
        (self.generation, self.records.len())
    }

    pub(crate) fn read(&self) -> Option<Kept> {
        let mut kept: Kept = postcard::from_bytes(&self.body).ok()?;
        for record in &self.records {
            let events: Vec<Event> = postcard::from_bytes(record).ok()?;
            events.into_iter().for_each(|event| kept.happen(event));
        }
        kept.is_sound().then_some(kept)
    }

    /// A crash leaves a copy one record, or one checkpoint, behind the newest.
    pub(crate) fn is_explained_by_a_crash(&self, newest: &Found) -> bool {
        let (generation, records) = self.place();
        if generation == newest.generation {
            return records + 1 >= newest.records.len();
        }
        let (back, before) = newest.before;
        let is_the_one_before = back > 0 && generation + u64::from(back) == newest.generation;
        is_the_one_before && records == before as usize && newest.records.is_empty()
    }
}

/// Copies that were opened.
#[derive(Default)]
struct Copied {
    replicas: Vec<(TargetId, Replica)>,
    /// What those held that held something.
    found: Vec<(TargetId, Found)>,
    /// Those that do not tell all that was promised: they count for nothing until they are written anew.
    damaged: Vec<(TargetId, Replica)>,
}

/// Opens the copies on `disks`, and reads those that hold something. Another version's bytes are left alone.
async fn open_all(disks: &[(TargetId, Disk)]) -> Result<Copied, ReplicaError> {
    let opened = join_all(disks.iter().map(|(id, disk)| async move { (*id, Replica::open(disk).await) })).await;
    let mut copied = Copied::default();
    for ((id, result), (_, disk)) in opened.into_iter().zip(disks) {
        match result {
            Ok((replica, found)) => {
                copied.replicas.push((id, replica));
                copied.found.extend(found.map(|found| (id, found)));
            }
            Err(error @ ReplicaError::Version(_)) => return Err(error),
            Err(_) => {
                // A disk that gives nothing of it is left out.
                let salvaged = Replica::salvage(disk).await.ok();
                copied.damaged.extend(salvaged.map(|salvaged| (id, salvaged.replica)));
            }
        }
    }
    Ok(copied)
}

/// The library's way to the store.
#[derive(Clone)]
pub(crate) struct LogStore(pub Arc<Store>);

impl RaftLogReader<Words> for LogStore {
    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<Entry>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Ok(self.0.kept().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let end = end.min(start.saturating_add(ENTRIES_READ_MAX as u64));
        self.try_get_log_entries(start..end).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.kept().vote)
    }
}

impl RaftLogStorage<Words> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<Words>> {
        let kept = self.0.kept();
        Ok(LogState { last_purged_log_id: kept.purged, last_log_id: kept.last() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.keep(vec![Event::Vote(*vote)]).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.0.kept().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        // The hint may be ahead of entries that were cut since.
        let kept = self.0.kept();
        Ok(kept.committed.filter(|committed| Some(committed) <= kept.last().as_ref()))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Words>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let events = entries.into_iter().map(Event::Append).collect();
        let kept = self.0.keep(events).await;
        let failure = kept.as_ref().err().map(|error| io::Error::other(error.to_string()));
        callback.io_completed(failure.map_or(Ok(()), Err));
        kept
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.0.keep(vec![Event::Truncate(last.map_or(0, |last| last.index + 1))]).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.0.keep(vec![Event::Purge(upto)]).await
    }
}

/// What a new cluster, or a node that joins one, keeps at first.
pub(crate) fn first(spare: u8, agreed: Option<(u32, Arc<Agreed>)>) -> Kept {
    let mut kept = Kept {
        copies: Vec::new(),
        spare,
        vote: None,
        committed: None,
        purged: None,
        entries: BTreeMap::new(),
        snapshot: None,
    };
    if let Some((voter, agreed)) = agreed {
        let leader = LeaderId { term: 0, node_id: voter };
        let first = LogId::new(leader, 0);
        let voters = [[voter].into()].into();
        let members = openraft::Membership::new_with_defaults(voters, [voter]);
        let last_membership = Membership::new(Some(first), members);
        kept.purged = Some(first);
        kept.committed = Some(first);
        kept.snapshot = Some((Meta { last_log_id: Some(first), last_membership }, agreed));
    }
    kept
}

#[cfg(test)]
mod tests {
    use protocol::maps::TargetEntry;

    use super::*;

    /// What a new cluster keeps.
    fn first_kept() -> Kept {
        let targets = vec![(TargetId(0), TargetEntry::new(1, String::new()))];
        let maps = Arc::new(crate::change::new_cluster(1, targets, 0, 1));
        first(1, Some((1, Arc::new(Agreed { maps, answered: Default::default() }))))
    }

    #[test]
    fn a_copy_without_the_vote_for_its_entries_is_unsound() {
        let mut kept = first_kept();
        assert!(kept.is_sound(), "of the first entry nobody was the leader");
        let log_id = LogId::new(LeaderId { term: 5, node_id: 2 }, 1);
        kept.happen(Event::Append(Entry { log_id, payload: EntryPayload::Blank }));
        assert!(!kept.is_sound());
        for (vote, sound) in
            [(Vote::new(4, 3), false), (Vote::new(5, 1), false), (Vote::new(5, 2), true), (Vote::new(6, 1), true)]
        {
            kept.happen(Event::Vote(vote));
            assert_eq!(kept.is_sound(), sound, "{vote}");
        }
    }

    #[test]
    fn a_copy_whose_voters_were_agreed_on_behind_all_that_it_has_is_unsound() {
        let mut kept = first_kept();
        let (meta, _) = kept.snapshot.as_mut().expect("the first maps");
        let last = meta.last_log_id.expect("the first entry");
        let later = LogId::new(*last.committed_leader_id(), last.index + 1);
        meta.last_membership = Membership::new(Some(later), meta.last_membership.membership().clone());
        assert!(!kept.is_sound(), "the next voters would be agreed on before them");
    }
}
