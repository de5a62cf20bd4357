//! A cluster of fakes in the simulated world: targets in memory that keep the rules of `docs/decisions/0003-log-model.md`
//! (4 to 7) and check what writers and recoverers send, and a registry that applies requests to maps in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use host::sim::{Dice, DiskOptions, SimDisk, World};
use host::{BoxFuture, Envelope, Handler, Host, NodeId, Port};
use log::{Appended, BodyPart, Cluster, LogWriter, Record, WriterOptions, recovery};
use protocol::checksum::{BLOCK_SIZE, block_checksums};
use protocol::fragment::{FragmentHeader, FragmentId, Part};
use protocol::id::{FenceEpoch, LogId, MapEpoch, StripeNumber, TargetId};
use protocol::maps::{Maps, TargetEntry, TargetState, Writer};
use protocol::record::{Owner, RecordKind};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryRequest};
use protocol::storage::{
    Append, Durability, Room, STORAGE_PORT, StorageAnswer, StorageError, StorageReply, StorageRequest, StoredFragment,
    TargetStat, ToTarget,
};

/// The node of the registry, which never fails here.
pub const REGISTRY_NODE: NodeId = NodeId(100);

/// One fragment of a fake target.
#[derive(Clone, Debug)]
pub struct Fragment {
    pub header: FragmentHeader,
    pub bytes: Vec<u8>,
    pub sums: Vec<u32>,
    /// How much survives a loss of power for certain.
    pub disk: usize,
    pub generation: u64,
}

/// What a fake target keeps: it outlives its node.
#[derive(Debug, Default)]
pub struct Store {
    pub fragments: BTreeMap<FragmentId, Fragment>,
    pub fences: BTreeMap<LogId, FenceEpoch>,
    /// Below which stripe all are complete, as writers said.
    pub complete: BTreeMap<LogId, StripeNumber>,
    pub incarnation: u64,
    /// How long it takes to tell how full it is, the next time it is asked.
    pub stat_takes: Option<Duration>,
    /// Replaces that are not durable: the parity, and the copies that come back without it.
    undo: Vec<(FragmentId, Vec<(FragmentId, Fragment)>)>,
    pub bytes_max: Option<usize>,
    pub broken: bool,
    /// It is not heard when it tells of more fragments at once.
    pub fragments_told_max: Option<usize>,
    generations: u64,
}

impl Store {
    fn ask(&mut self, request: StorageRequest) -> StorageAnswer {
        let answer = self.answer(request);
        match &answer {
            Ok(StorageReply::Fragments(told)) if self.fragments_told_max.is_some_and(|max| told.len() > max) => {
                Err(StorageError::Silent("the answer is too long".into()))
            }
            _ => answer,
        }
    }

    fn answer(&mut self, request: StorageRequest) -> StorageAnswer {
        if self.broken && matches!(request, StorageRequest::Append(_) | StorageRequest::Replace(_)) {
            return Err(StorageError::Failed("broken".into()));
        }
        match request {
            StorageRequest::Append(append) => self.append(append),
            StorageRequest::Replace(append) => self.replace(append),
            StorageRequest::Read { id, offset, length } => self.read(id, offset as usize, length as usize),
            StorageRequest::Tail { log, from } => {
                let of = |id: &FragmentId| id.log == log && id.stripe >= from;
                Ok(StorageReply::Fragments(self.list(of).collect()))
            }
            StorageRequest::List { after, limit } => {
                let behind = |id: &FragmentId| after.is_none_or(|after| *id > after);
                Ok(StorageReply::Fragments(self.list(behind).take(limit as usize).collect()))
            }
            StorageRequest::Delete { stripes } => {
                self.fragments.retain(|id, _| !stripes.contains(&(id.log, id.stripe)));
                Ok(StorageReply::Done { length: 0 })
            }
            StorageRequest::Discard { fragments } => {
                let is_it = |id: &FragmentId, it: &Fragment| fragments.contains(&(*id, it.generation));
                self.fragments.retain(|id, fragment| !is_it(id, fragment));
                Ok(StorageReply::Done { length: 0 })
            }
            StorageRequest::Fence { log, epoch } => {
                self.pass(log, epoch)?;
                let complete_below = self.complete.get(&log).copied().unwrap_or(StripeNumber(0));
                Ok(StorageReply::Fence { complete_below })
            }
            StorageRequest::Complete { log, epoch, below } => {
                if self.fences.get(&log).is_none_or(|fence| *fence <= epoch) {
                    self.complete.insert(log, below);
                }
                Ok(StorageReply::Done { length: 0 })
            }
            StorageRequest::Sync => {
                self.fragments.values_mut().for_each(|fragment| fragment.disk = fragment.bytes.len());
                self.undo.clear();
                Ok(StorageReply::Synced { incarnation: self.incarnation })
            }
            StorageRequest::Stat => {
                let stat = TargetStat { incarnation: self.incarnation, ..TargetStat::default() };
                Ok(StorageReply::Stat(stat))
            }
        }
    }

    fn list(&self, wanted: impl Fn(&FragmentId) -> bool) -> impl Iterator<Item = StoredFragment> {
        let found = self.fragments.iter().filter(move |(id, _)| wanted(id));
        found.map(|(_, fragment)| StoredFragment {
            header: fragment.header.clone(),
            length: fragment.bytes.len() as u32,
            generation: fragment.generation,
        })
    }

    fn pass(&mut self, log: LogId, epoch: FenceEpoch) -> Result<(), StorageError> {
        let fence = self.fences.entry(log).or_default();
        if epoch < *fence {
            return Err(StorageError::Fenced(*fence));
        }
        *fence = epoch;
        Ok(())
    }

    fn has_room(&self, length: usize) -> bool {
        let used: usize = self.fragments.values().map(|fragment| fragment.bytes.len()).sum();
        self.bytes_max.is_none_or(|max| used + length <= max)
    }

    fn append(&mut self, append: Append) -> StorageAnswer {
        let id = append.header.id;
        self.pass(id.log, append.fence)?;
        assert!(!matches!(id.part, Part::Parity(_)), "parity is replaced");
        if let Part::Copy { at, .. } = id.part
            && self.fragments.contains_key(&FragmentId { part: Part::Parity(at), ..id })
        {
            return Err(StorageError::Refused("there is parity".into()));
        }
        let new: Vec<u8> = append.parts.concat();
        let length = self.fragments.get(&id).map_or(0, |fragment| fragment.bytes.len());
        let offset = append.offset as usize;
        if offset > length {
            return Err(StorageError::Gap { length: length as u32 });
        }
        if !self.has_room((offset + new.len()).saturating_sub(length)) {
            return Err(StorageError::Full);
        }
        self.generations += 1;
        let (header, generation) = (append.header.clone(), self.generations);
        let empty = || Fragment { header, bytes: Vec::new(), sums: Vec::new(), disk: 0, generation };
        let fragment = self.fragments.entry(id).or_insert_with(empty);
        let overlap = new.len().min(length - offset);
        assert!(fragment.bytes[offset..offset + overlap] == new[..overlap], "{id:?}: the same address, other bytes");
        assert_eq!(fragment.header.geometry, append.header.geometry);
        assert_eq!(fragment.header.previous_end, append.header.previous_end, "a final length stays");
        fragment.bytes.extend_from_slice(&new[overlap..]);
        assert!(fragment.bytes.len() <= append.header.geometry.fragment_size as usize);
        if offset + new.len() == fragment.bytes.len() {
            let first = offset / BLOCK_SIZE;
            let sums = block_checksums(&fragment.bytes[first * BLOCK_SIZE..]);
            assert_eq!(sums, append.checksums, "{id:?}: checksums cover every block that the bytes touch");
            fragment.sums.truncate(first);
            fragment.sums.extend(sums);
        }
        if append.durability == Durability::Disk {
            fragment.disk = fragment.bytes.len();
        }
        Ok(StorageReply::Done { length: fragment.bytes.len() as u32 })
    }

    fn replace(&mut self, append: Append) -> StorageAnswer {
        let id = append.header.id;
        self.pass(id.log, append.fence)?;
        let Part::Parity(at) = id.part else { panic!("only parity is replaced") };
        let bytes = append.parts.concat();
        assert_eq!(append.offset, 0);
        assert_eq!(append.checksums, block_checksums(&bytes));
        assert_eq!(bytes.len() as u32, append.header.data_lengths.iter().copied().max().unwrap_or(0));
        let of_it = |other: &FragmentId| {
            let copy = matches!(other.part, Part::Copy { at: other, .. } if other == at);
            other.log == id.log && other.stripe == id.stripe && other.run == id.run && copy
        };
        let copies: Vec<_> = self.fragments.extract_if(.., |other, _| of_it(other)).collect();
        let durable = append.durability == Durability::Disk;
        let disk = if durable { bytes.len() } else { 0 };
        if durable {
            self.undo.retain(|(undone, _)| *undone != id);
        } else if !self.fragments.contains_key(&id) {
            self.undo.push((id, copies));
        }
        let length = bytes.len() as u32;
        self.generations += 1;
        let (header, sums, generation) = (append.header, append.checksums, self.generations);
        self.fragments.insert(id, Fragment { header, bytes, sums, disk, generation });
        Ok(StorageReply::Done { length })
    }

    fn read(&self, id: FragmentId, offset: usize, length: usize) -> StorageAnswer {
        let fragment = self.fragments.get(&id).ok_or(StorageError::Missing)?;
        let size = fragment.bytes.len();
        let start = (offset / BLOCK_SIZE * BLOCK_SIZE).min(size.next_multiple_of(BLOCK_SIZE));
        let end = (offset + length).next_multiple_of(BLOCK_SIZE).min(size).max(start.min(size));
        let bytes = Bytes::copy_from_slice(&fragment.bytes[start.min(size)..end]);
        let sums = fragment.sums[start / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE).max(start / BLOCK_SIZE)].to_vec();
        Ok(StorageReply::Blocks { offset: start as u32, bytes, checksums: sums })
    }

    /// What is not durable may go, in part.
    pub fn lose_power(&mut self, dice: &mut Dice) {
        for (parity, copies) in std::mem::take(&mut self.undo) {
            if dice.coin() {
                self.fragments.remove(&parity);
                self.fragments.extend(copies);
            } else if let Some(fragment) = self.fragments.get_mut(&parity) {
                fragment.disk = fragment.bytes.len();
            }
        }
        for fragment in self.fragments.values_mut() {
            let kept = dice.within(fragment.disk as u64..fragment.bytes.len() as u64 + 1) as usize;
            fragment.bytes.truncate(kept);
            fragment.sums = block_checksums(&fragment.bytes);
        }
        self.fragments.retain(|_, fragment| !fragment.bytes.is_empty());
    }
}

/// The targets of one node.
struct FakeStorage(World, BTreeMap<TargetId, Arc<Mutex<Store>>>);

impl Handler for FakeStorage {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let ToTarget { target, request } = request.open().expect("storage is asked as storage");
        let (world, store) = (self.0.clone(), self.1.get(&target).cloned());
        Box::pin(async move {
            let takes = store.as_ref().filter(|_| matches!(request, StorageRequest::Stat));
            let takes = takes.and_then(|store| store.lock().unwrap().stat_takes.take());
            if let Some(takes) = takes {
                world.sleep(takes).await;
            }
            let answer: StorageAnswer = match store {
                Some(store) => store.lock().unwrap().ask(request),
                None => Err(StorageError::NoTarget(target)),
            };
            Envelope::new(answer)
        })
    }
}

struct FakeRegistry(Arc<Mutex<Arc<Maps>>>);

impl Handler for FakeRegistry {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let request: RegistryRequest = request.open().expect("the registry is asked as the registry");
        let maps = self.0.clone();
        Box::pin(async move {
            let mut maps = maps.lock().unwrap();
            let (next, reply) = registry::change::apply(&maps, request);
            if let Some(next) = next {
                *maps = Arc::new(next);
            }
            let answer: RegistryAnswer = reply.and_then(|outcome| outcome.with(maps.clone()));
            Envelope::new(answer)
        })
    }
}

/// The fakes of one world: target n on node 10 + n.
pub struct Fakes {
    pub world: World,
    pub stores: Vec<Arc<Mutex<Store>>>,
    pub maps: Arc<Mutex<Arc<Maps>>>,
    /// Disks of true targets, which then take the place of the stores.
    disks: Vec<SimDisk>,
    options: storage::TargetOptions,
}

impl Fakes {
    /// A cluster of `targets` targets, each on its own node.
    pub fn new(world: &World, targets: u32, parity: u8, fragment_size: u32) -> Fakes {
        let entry = |n: u32| TargetEntry::new(10 + n, format!("t{n}"));
        let targets: Vec<_> = (0..targets).map(|n| (TargetId(n), entry(n))).collect();
        let count = targets.len();
        let mut maps = registry::change::new_cluster(1, targets, REGISTRY_NODE.0, parity);
        maps.groups.values_mut().for_each(|group| group.geometry.fragment_size = fragment_size);
        maps.fragment_size = fragment_size;
        // They only store: whoever is tested works for all.
        maps.nodes.values_mut().for_each(|node| node.stores = false);
        maps.epoch = MapEpoch(1);
        let maps = Arc::new(Mutex::new(Arc::new(maps)));
        let host = world.add_node(REGISTRY_NODE);
        host.listen(Port(REGISTRY_PORT), Arc::new(FakeRegistry(maps.clone())));
        let stores: Vec<Arc<Mutex<Store>>> = (0..count).map(|_| Arc::default()).collect();
        let (window_cells, intake_size) = (8, 64 << 10);
        let options =
            storage::TargetOptions { cell_data: fragment_size, window_cells, intake_size, ..Default::default() };
        let fakes = Fakes { world: world.clone(), stores, maps, disks: Vec::new(), options };
        for n in 0..count {
            let host = world.add_node(Fakes::node(n));
            fakes.serve(n, &host);
        }
        fakes
    }

    /// A cluster whose targets are the true ones, on simulated disks.
    pub async fn on_disks(world: &World, targets: u32, parity: u8, fragment_size: u32) -> Fakes {
        Fakes::on_disks_of(256 << 20, world, targets, parity, fragment_size).await
    }

    /// The same, on disks of so many bytes.
    pub async fn on_disks_of(
        capacity_bytes: u64,
        world: &World,
        targets: u32,
        parity: u8,
        fragment_size: u32,
    ) -> Fakes {
        let mut fakes = Fakes::new(world, targets, parity, fragment_size);
        for n in 0..targets as usize {
            let options = DiskOptions { capacity_bytes, ..DiskOptions::default() };
            let disk = world.add_disk(Fakes::node(n), &format!("d{n}"), options);
            let id = TargetId(n as u32);
            storage::format(&disk.plug(), 1, id, fakes.options).await.expect("the disk is empty");
            fakes.disks.push(disk);
        }
        for n in 0..targets as usize {
            world.crash(Fakes::node(n), host::sim::Stop::Kill);
            fakes.restart(n);
        }
        world.sleep(std::time::Duration::from_secs(1)).await;
        fakes
    }

    /// Stops a target's node.
    pub fn crash(&self, target: usize, stop: host::sim::Stop, dice: &mut Dice) {
        if self.world.runs(Fakes::node(target)) {
            self.world.crash(Fakes::node(target), stop);
            if stop == host::sim::Stop::PowerLoss {
                self.stores[target].lock().unwrap().lose_power(dice);
            }
        }
    }

    pub fn node(target: usize) -> NodeId {
        NodeId(10 + target as u32)
    }

    fn serve(&self, target: usize, host: &Host) {
        if let Some(disk) = self.disks.get(target) {
            let (host, disks, options) = (host.clone(), vec![(TargetId(target as u32), disk.plug())], self.options);
            host.clone().spawn(async move {
                let (_, unopened) = storage::Storage::start(host, 1, disks, options).await;
                assert!(unopened.is_empty(), "{unopened:?}");
            });
            return;
        }
        let mut store = self.stores[target].lock().unwrap();
        store.incarnation += 1;
        store.complete.clear();
        let one = BTreeMap::from([(TargetId(target as u32), self.stores[target].clone())]);
        host.listen(Port(STORAGE_PORT), Arc::new(FakeStorage(self.world.clone(), one)));
    }

    /// Begins the next life of a target's node.
    pub fn restart(&self, target: usize) {
        if !self.world.runs(Fakes::node(target)) {
            let host = self.world.restart(Fakes::node(target));
            self.serve(target, &host);
        }
    }

    /// The registry takes a target away, whatever is on it.
    pub fn remove(&self, target: usize) {
        let mut maps = self.maps.lock().unwrap();
        let maps = Arc::make_mut(&mut maps);
        maps.targets.get_mut(&TargetId(target as u32)).expect("it is there").state = TargetState::Removed;
        maps.epoch.0 += 1;
    }

    /// A cluster of one node, the registry's, with `targets` targets on it.
    pub fn on_one_node(world: &World, targets: u32, parity: u8) -> Fakes {
        let fakes = Fakes::new(world, targets, parity, 1 << 20);
        let host = world.host(REGISTRY_NODE);
        let all = fakes.stores.iter().enumerate().map(|(n, store)| (TargetId(n as u32), store.clone()));
        host.listen(Port(STORAGE_PORT), Arc::new(FakeStorage(world.clone(), all.collect())));
        let mut maps = fakes.maps.lock().unwrap();
        let mut one = Maps::clone(&maps);
        one.targets.values_mut().for_each(|target| target.node = REGISTRY_NODE.0);
        one.epoch.0 += 1;
        *maps = Arc::new(one);
        drop(maps);
        fakes
    }

    /// Machine n, on node 10 + n, with so many targets of its own, numbered through. Only the first is in the cluster; the
    /// others join.
    pub fn machines(world: &World, counts: &[u32], fragment_size: u32) -> Fakes {
        let fakes = Fakes::new(world, counts.iter().sum(), 1, fragment_size);
        for machine in 0..counts.len() {
            world.crash(Fakes::node(machine), host::sim::Stop::Kill);
            fakes.restart_machine(counts, machine);
        }
        let entry = |n: usize| TargetEntry::new(10, format!("t{n}"));
        let targets = fakes.targets_of(counts, 0).map(|n| (TargetId(n as u32), entry(n))).collect();
        let mut maps = registry::change::new_cluster(1, targets, 10, 1);
        maps.groups.values_mut().for_each(|group| group.geometry.fragment_size = fragment_size);
        maps.fragment_size = fragment_size;
        *fakes.maps.lock().unwrap() = Arc::new(maps);
        fakes
    }

    /// Begins the next life of a machine.
    pub fn restart_machine(&self, counts: &[u32], machine: usize) {
        let served = self.targets_of(counts, machine);
        let stores: BTreeMap<_, _> = served.map(|n| (TargetId(n as u32), self.stores[n].clone())).collect();
        stores.values().for_each(|store| store.lock().unwrap().incarnation += 1);
        self.world
            .restart(Fakes::node(machine))
            .listen(Port(STORAGE_PORT), Arc::new(FakeStorage(self.world.clone(), stores)));
    }

    /// The numbers of a machine's targets, which are those of its stores.
    pub fn targets_of(&self, counts: &[u32], machine: usize) -> std::ops::Range<usize> {
        let first: u32 = counts[..machine].iter().sum();
        first as usize..(first + counts[machine]) as usize
    }

    /// Machine `machine` joins, and is written to from now on.
    pub fn join(&self, counts: &[u32], machine: usize) {
        let node = Fakes::node(machine).0;
        let names = self.targets_of(counts, machine).map(|n| format!("t{n}")).collect();
        self.change(RegistryRequest::AddNode {
            name: node.to_string(),
            address: String::new(),
            stores: true,
            attempt: None,
        });
        self.change(RegistryRequest::AddTargets { node, names });
        self.change(RegistryRequest::Begin { node, after: 0, address: String::new(), keeps: None });
    }

    /// Changes the maps without asking anybody.
    pub fn change(&self, request: RegistryRequest) {
        let mut maps = self.maps.lock().unwrap();
        let (next, reply) = registry::change::apply(&maps, request);
        reply.expect("the change is possible");
        if let Some(next) = next {
            *maps = Arc::new(next);
        }
    }

    /// A view of the cluster from a node.
    pub async fn cluster(&self, host: &Host) -> Cluster {
        Cluster::connect(host.clone(), REGISTRY_NODE).await.expect("the registry never fails")
    }
}

/// A log of some stripes that its writer has closed, and what it says.
pub async fn a_closed_log(fakes: &Fakes, host: &Host) -> (LogWriter, Vec<(Appended, Vec<u8>)>) {
    let cluster = fakes.cluster(host).await;
    let writer = LogWriter::open(cluster, Writer::Client, Room::Data, WriterOptions::default()).await.unwrap();
    let record = |number: u8| {
        let bytes = vec![number; 5000];
        let parts = &[BodyPart::Copied(&bytes)];
        let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
        (writer.append(record).expect("it fits"), bytes)
    };
    let records = (0..60).map(record).collect();
    writer.commit(writer.end(), Durability::Disk).await.unwrap();
    writer.close().await.unwrap();
    (writer, records)
}

/// One on six targets that is sealed.
pub async fn a_sealed_log(world: &World, host: &Host) -> (Fakes, Cluster, LogId) {
    let fakes = Fakes::new(world, 6, 1, 16 << 10);
    let (writer, _) = a_closed_log(&fakes, host).await;
    let cluster = fakes.cluster(host).await;
    recovery::seal(&cluster, writer.log()).await.expect("all targets answer");
    (fakes, cluster, writer.log())
}
