//! The danger: `dazzle check` on one machine calls a file system sound whose names, links and counts do not fit together
//! across managers, or tells one fault in many ways, so that nobody finds it.
//!
//! Each world has one fault of its own, planted as a manager plants what an operation changes; every manager in turn looks.

// Nothing else goes wrong here.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use host::sim;
use host::{Address, Host, NodeId, Port};
use log::Cluster;
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Kind, NewInode, Time};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::intention::{Admission, Counts, Fetch, IntentionId, Keep, Outcome, Part, Prepare, Purpose, Settle};
use protocol::manager::{Answer, CloneRange, Deltas, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerRequest};

use crate::several::{GROUND, Site};

/// Of a client, which writes none.
const LOG: LogId = LogId(1_000_101);

/// Kinds of records (`docs/format-slot.md`).
const SHARED: u8 = 4;
const ORPHAN: u8 = 6;
const INODE: u8 = 16;
const ENTRY: u8 = 17;

type Changes = Vec<(Bytes, Option<Bytes>)>;

/// Makes names and files, and plants faults.
struct Planter {
    host: Host,
    cluster: Cluster,
    intentions: u64,
}

fn key(inode: u64, kind: u8, rest: &[u8]) -> Bytes {
    [&inode.to_be_bytes()[..], &[kind], rest].concat().into()
}

fn new(kind: Kind) -> NewInode {
    NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller: Caller::default() }
}

fn inode_key(inode: InodeId) -> Bytes {
    key(inode.0, INODE, &[])
}

/// An entry's value that names another inode of the same kind.
fn naming(entry: &Bytes, inode: InodeId) -> Option<Bytes> {
    Some([&entry[..1], &inode.0.to_be_bytes(), &entry[9..]].concat().into())
}

impl Planter {
    fn node(&self, slot: SlotId) -> NodeId {
        NodeId(self.cluster.maps().slot(slot.0).node)
    }

    async fn ask(&self, slot: SlotId, request: ManagerRequest) -> Answer {
        loop {
            let to = Address { node: self.node(slot), port: Port(MANAGER_PORT) };
            match self.host.call::<_, ManagerAnswer>(to, request.clone()).await {
                Ok(Err(ManagerError::NotMine)) | Err(_) => {}
                Ok(answer) => return answer.unwrap().answer,
            }
            self.host.sleep(Duration::from_millis(50)).await;
            let _ = self.cluster.refresh().await;
        }
    }

    async fn create(&self, directory: InodeId, name: &'static str, kind: Kind) -> InodeId {
        let create = ManagerRequest::Create { directory, name: Bytes::from(name), new: new(kind), open: false };
        match self.ask(directory.slot(), create).await {
            Answer::Entry(attributes, _) => attributes.inode,
            other => panic!("{other:?}"),
        }
    }

    async fn link(&self, inode: InodeId, directory: InodeId, name: &'static str) {
        let link = ManagerRequest::Link { inode, directory, name: Bytes::from(name) };
        self.ask(directory.slot(), link).await;
    }

    /// A directory, and two in it that different managers have.
    async fn apart(&self) -> (InodeId, InodeId, InodeId) {
        let mut base = InodeId::ROOT;
        loop {
            let (one, other) =
                (self.create(base, "a", Kind::Directory).await, self.create(base, "b", Kind::Directory).await);
            if self.node(one.slot()) != self.node(other.slot()) {
                return (base, one, other);
            }
            base = one;
        }
    }

    async fn fetch(&self, slot: SlotId, from: Bytes, end: Bytes) -> (LogId, Vec<(Bytes, Bytes)>) {
        let fetch = Fetch { slot, ranges: vec![(from, end)], wanted: 1, ..Fetch::default() };
        match self.ask(slot, ManagerRequest::Fetch(fetch)).await {
            Answer::Fetched(mut fetched) => (fetched.life, fetched.pieces.remove(0).records),
            other => panic!("{other:?}"),
        }
    }

    async fn record(&self, inode: InodeId) -> Bytes {
        let key = inode_key(inode);
        let end = [&key[..], &[0]].concat().into();
        self.fetch(inode.slot(), key, end).await.1.remove(0).1
    }

    /// The one entry of a directory that names this inode.
    async fn entry(&self, directory: InodeId, inode: InodeId) -> (Bytes, Bytes) {
        let (from, end) = (key(directory.0, ENTRY, &[]), key(directory.0, ENTRY + 1, &[]));
        let (_, entries) = self.fetch(directory.slot(), from, end).await;
        entries.into_iter().find(|(_, value)| value[1..9] == inode.0.to_be_bytes()).unwrap()
    }

    /// Changes records of a slot as the outcome of an operation does.
    async fn plant(&mut self, slot: SlotId, mut changes: Changes, counts: Counts) {
        changes.sort();
        let (life, _) = self.fetch(slot, key(0, 1, &[]), key(0, 2, &[])).await;
        self.intentions += 1;
        let intention = IntentionId { log: LOG, number: self.intentions };
        let part = Part { slot, life, changes, counts, ..Part::default() };
        let (keep, purpose, admission) = (Keep::Journal, Purpose::Asked, Admission::default());
        let prepare = Prepare { intention, coordinator: slot, keep, purpose, admission, parts: vec![part] };
        assert!(matches!(self.ask(slot, ManagerRequest::Prepare(prepare)).await, Answer::Held(true)));
        let settle = Settle { intention, slots: vec![slot], outcome: Outcome::Done };
        assert!(matches!(self.ask(slot, ManagerRequest::Settle(settle)).await, Answer::Held(true)));
    }

    /// An inode, which has no records but its own, is gone.
    async fn lose(&mut self, inode: InodeId) {
        let counts = Counts { inodes: -1, ..Counts::default() };
        self.plant(inode.slot(), vec![(inode_key(inode), None)], counts).await;
    }

    async fn write(&self, file: InodeId) {
        let address = LogAddress { log: LOG, stripe: StripeNumber(3), offset: 0, length: 5000 };
        let list = vec![
            Delta { inode: file, change: Change::Extent { offset: 0, address } },
            Delta { inode: file, change: Change::Wrote { size: 5000, time: Time(1) } },
        ];
        let position = Position::new(StripeNumber(3), 5000);
        self.ask(file.slot(), ManagerRequest::Deltas(Deltas { log: LOG, position, list })).await;
    }

    /// Plants a fault; what is to be told of it, in pieces.
    async fn break_something(&mut self, fault: u64) -> Vec<String> {
        let (base, one, other) = self.apart().await;
        match fault {
            0 => {
                let of = if self.node(base.slot()) == self.node(one.slot()) { other } else { one };
                self.lose(of).await;
                vec![format!("inode {} is named in {} and does not exist", of.0, base.0)]
            }
            1 => {
                let file = self.create(one, "f", Kind::File).await;
                self.lose(file).await;
                vec![format!("inode {} is named in {} and does not exist", file.0, one.0)]
            }
            2 => {
                let (linked, file) = (self.create(one, "f", Kind::File).await, self.create(one, "g", Kind::File).await);
                self.link(linked, other, "h").await;
                let record = self.record(linked).await;
                self.plant(file.slot(), vec![(inode_key(file), Some(record))], Counts::default()).await;
                vec![format!("inode {} counts 2 links; it has 1 names", file.0)]
            }
            3 => {
                let (file, lost) = (self.create(one, "f", Kind::File).await, self.create(other, "g", Kind::File).await);
                self.rename_entry(other, lost, file).await;
                vec![format!("inode {} counts 1 links; it has 2 names", file.0)]
            }
            4 => {
                let lost = self.create(other, "c", Kind::Directory).await;
                self.rename_entry(other, lost, one).await;
                vec![format!("inode {} counts 2 links; it has 2 names", one.0)]
            }
            5 => self.close_circle(base, one).await,
            6 => {
                let file = self.create(one, "f", Kind::File).await;
                self.write(file).await;
                let counts = Counts { live: vec![(LOG, StripeNumber(3), 7)], ..Counts::default() };
                self.plant(file.slot(), Vec::new(), counts).await;
                vec![format!("5007 bytes of stripe 3 of log {} count as live, 5000 are", LOG.0)]
            }
            7 => {
                self.plant(one.slot(), Vec::new(), Counts { inodes: 1, ..Counts::default() }).await;
                vec![format!("slot {}: it counts", one.slot().0)]
            }
            8 => self.share_wrongly(one, other).await,
            9 => {
                let unnamed = ManagerRequest::CreateUnnamed { directory: one, new: new(Kind::File) };
                let Answer::Entry(file, _) = self.ask(one.slot(), unnamed).await else { panic!("it is made") };
                let orphan = key(0, ORPHAN, &file.inode.0.to_be_bytes());
                self.plant(one.slot(), vec![(orphan, None)], Counts::default()).await;
                vec![format!("inode {} has 0 names, and its being an orphan is false", file.inode.0)]
            }
            _ => unreachable!("there are {FAULTS} faults"),
        }
    }

    /// What a directory named leads to another inode, and it is gone.
    async fn rename_entry(&mut self, directory: InodeId, lost: InodeId, to: InodeId) {
        let (entry, value) = self.entry(directory, lost).await;
        self.plant(directory.slot(), vec![(entry, naming(&value, to))], Counts::default()).await;
        self.lose(lost).await;
    }

    /// `base/a/s/x/x`: the second and the fourth change places, with names, records and all.
    async fn close_circle(&mut self, base: InodeId, upper: InodeId) -> Vec<String> {
        let mut names = ["s", "t", "u", "v", "w", "x", "y", "z"].into_iter();
        let middle = loop {
            let name = names.next().expect("one of these names has a slot of another manager");
            let middle = self.create(upper, name, Kind::Directory).await;
            if self.node(middle.slot()) != self.node(upper.slot()) {
                break middle;
            }
            let remove = ManagerRequest::RemoveDirectory { directory: upper, name: Bytes::from(name) };
            self.ask(upper.slot(), remove).await;
        };
        let lower = self.create(middle, "x", Kind::Directory).await;
        self.create(lower, "x", Kind::Directory).await;
        let (upper_record, lower_record) = (self.record(upper).await, self.record(lower).await);
        let (in_base, in_middle) = (self.entry(base, upper).await, self.entry(middle, lower).await);
        let counts = Counts::default;
        self.plant(base.slot(), vec![(in_base.0, naming(&in_base.1, lower))], counts()).await;
        self.plant(middle.slot(), vec![(in_middle.0, naming(&in_middle.1, upper))], counts()).await;
        self.plant(upper.slot(), vec![(inode_key(upper), Some(lower_record))], counts()).await;
        self.plant(lower.slot(), vec![(inode_key(lower), Some(upper_record))], counts()).await;
        vec![upper.0.to_string(), middle.0.to_string(), "lie in each other, and no path from the root".to_owned()]
    }

    /// Bytes of a file in one slot that a file in another's shares count one reference too many.
    async fn share_wrongly(&mut self, one: InodeId, other: InodeId) -> Vec<String> {
        let (source, target) = (self.create(one, "f", Kind::File).await, self.create(other, "g", Kind::File).await);
        self.write(source).await;
        let clone = CloneRange { source, source_offset: 0, target, target_offset: 0, length: 5000 };
        self.ask(target.slot(), ManagerRequest::CloneRange(clone)).await;
        let (_, mut shared) = self.fetch(source.slot(), key(0, SHARED, &[]), key(0, SHARED + 1, &[])).await;
        let (at, value) = shared.remove(0);
        let (references, address) = value.split_last().unwrap();
        let more = [address, &[references + 1]].concat().into();
        self.plant(source.slot(), vec![(at, Some(more))], Counts::default()).await;
        vec![format!("in slot {} count 3 references, 2 exist", source.slot().0)]
    }
}

const FAULTS: u64 = 10;

#[test]
fn every_manager_finds_each_fault_once() {
    sim::explore(sim::seeds(4 * FAULTS), async |world, host| {
        let mut dice = world.dice();
        let mut site = Site::create(&world, &host, &mut dice).await;
        site.start_managers().await;
        let planting = world.add_node(NodeId(101));
        let (at, fault) = (planting.clone(), world.seed() % FAULTS);
        let planted = world.spawn(&planting, async move {
            let cluster = Cluster::connect(at.clone(), GROUND).await.unwrap();
            let mut planter = Planter { host: at, cluster, intentions: 0 };
            // In some worlds all slots were dealt to one manager.
            let owners: BTreeSet<u32> = planter.cluster.maps().slots.values().map(|slot| slot.node).collect();
            if owners.len() > 1 { Some(planter.break_something(fault).await) } else { None }
        });
        let Some(expected) = planted.await.unwrap() else { return };
        for manager in site.managers.values().flatten() {
            let problems = manager.audit().await.unwrap().problems;
            assert_eq!(problems.len(), 1, "fault {fault}: {problems:#?}");
            for piece in &expected {
                assert!(problems[0].contains(piece), "fault {fault}: {} does not say {piece}", problems[0]);
            }
        }
    });
}
