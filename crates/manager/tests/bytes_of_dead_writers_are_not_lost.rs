//! The dangers: whoever deletes knows that a log is sealed, and a manager does not. The manager takes the log for one that its
//! writer still has, says that nothing lives of it, and replays its deltas later: what was fsynced is gone. A cleaner
//! that was taken for dead wakes up: what it copied is deleted, and it tells managers to name it. And whoever takes over from a
//! manager that had all deltas of a log wants to read them once more, though the log is deleted by then.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, Stop};
use host::{Address, Host, NodeId, Port};
use log::{BodyPart, Cluster, LogReader, LogWriter, ReadError, Record, WriterOptions, recovery};
use protocol::address::LogAddress;
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Kind, NewInode, SetAttributes, Time};
use protocol::id::{InodeId, LogId, StripeNumber, TargetId};
use protocol::manager::{Answer, Deltas, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerRequest, Moved};
use protocol::maps::{LogState, Writer};
use protocol::record::{Owner, RecordKind};
use protocol::registry::RegistryRequest;
use protocol::storage::{Durability, Room, StorageRequest};

use crate::several::{GROUND, Site};

/// A node that nobody takes for dead but who does so here.
const ALIVE: NodeId = NodeId(2);

/// A node that writes logs, and talks to managers.
struct Machine {
    host: Host,
    cluster: Cluster,
}

impl Machine {
    async fn start(host: Host) -> Machine {
        let cluster = Cluster::connect(host.clone(), GROUND).await.expect("the registry never fails");
        Machine { host, cluster }
    }

    async fn open(&self, writer: Writer) -> LogWriter {
        let opened = LogWriter::open(self.cluster.clone(), writer, Room::Data, WriterOptions::default()).await;
        opened.expect("all targets live")
    }

    async fn ask(&self, inode: InodeId, request: ManagerRequest) -> ManagerAnswer {
        let node = NodeId(self.cluster.maps().slot(inode.slot().0).node);
        self.host.call(Address { node, port: Port(MANAGER_PORT) }, request).await.expect("the manager lives")
    }

    async fn create(&self) -> InodeId {
        let caller = Caller::default();
        let new = NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target: Bytes::new(), caller };
        let name = Bytes::from_static(b"file");
        let create = ManagerRequest::Create { directory: InodeId::ROOT, name, new, open: false };
        match self.ask(InodeId::ROOT, create).await.expect("the name is new").answer {
            Answer::Entry(attributes, _) => attributes.inode,
            other => panic!("made, not {other:?}"),
        }
    }

    /// Takes a log's writer for dead.
    async fn seal(&self, log: LogId) {
        self.cluster.refresh().await.expect("the registry never fails");
        recovery::seal(&self.cluster, log).await.expect("all targets live");
    }

    /// What all managers together say that lives of the first stripe of a log, as somebody asks who has the newest maps.
    async fn live(&self, log: LogId) -> Option<u64> {
        let maps = self.cluster.refresh().await.expect("the registry never fails");
        let mut sum = 0_u64;
        let nodes: BTreeSet<u32> = maps.slots.values().map(|slot| slot.node).collect();
        for node in nodes {
            let address = Address { node: NodeId(node), port: Port(MANAGER_PORT) };
            let request = ManagerRequest::Live(maps.view(), vec![(log, StripeNumber(0))]);
            let answer: ManagerAnswer = self.host.call(address, request).await.expect("the manager lives");
            match answer {
                Ok(reply) => match reply.answer {
                    Answer::Live(list) => sum = sum.saturating_add(list[0]),
                    other => panic!("live bytes, not {other:?}"),
                },
                Err(ManagerError::NotMine) => return None,
                Err(error) => panic!("{error}"),
            }
        }
        Some(sum)
    }
}

impl Machine {
    /// Waits until all managers together say that so much lives.
    async fn hears(&self, log: LogId, bytes: u64) {
        for _ in 0..100 {
            if self.live(log).await == Some(bytes) {
                return;
            }
            self.host.sleep(Duration::from_millis(100)).await;
        }
        panic!("{:?} bytes live for ten seconds, and {bytes} should", self.live(log).await);
    }
}

/// Appends a piece of a file; committed to the disk.
async fn append(writer: &LogWriter, inode: InodeId) -> LogAddress {
    let (owner, parts) = (Owner::new(inode, 0), &[BodyPart::Copied(&[7; 5000])]);
    let appended = writer.append(Record { kind: RecordKind::Data, owner, parts, aligned: false }).expect("it is open");
    writer.commit(appended.end, Durability::Disk).await.expect("all targets live");
    appended.body
}

/// The deltas that name it: appended, committed, and not told.
async fn append_deltas(writer: &LogWriter, inode: InodeId, address: LogAddress) -> Deltas {
    let extent = Delta { inode, change: Change::Extent { offset: 0, address } };
    let list = vec![extent, Delta { inode, change: Change::Wrote { size: 5000, time: Time(1) } }];
    let body = postcard::to_stdvec(&list).expect("deltas have no unserializable part");
    let parts = &[BodyPart::Copied(&body)];
    let record = Record { kind: RecordKind::Deltas, owner: Owner::default(), parts, aligned: false };
    let appended = writer.append(record).expect("it is open");
    writer.commit(appended.end, Durability::Disk).await.expect("all targets live");
    Deltas { log: writer.log(), position: appended.body.position(), list }
}

#[test]
fn a_manager_that_has_not_heard_of_a_death_does_not_say_that_nothing_lives() {
    sim::explore(0..20, async |world, host| {
        let mut site = Site::create(&world, &host, &mut world.dice()).await;
        site.start_managers().await;
        let [writing, looking] = [world.host(ALIVE), world.add_node(NodeId(101))];
        let told = world.spawn(&writing.clone(), async move {
            let (writing, looking) = (Machine::start(writing).await, Machine::start(looking).await);
            let inode = writing.create().await;
            let writer = writing.open(Writer::Client).await;
            let address = append(&writer, inode).await;
            append_deltas(&writer, inode, address).await;
            looking.seal(writer.log()).await;
            for _ in 0..20 {
                assert_ne!(looking.live(writer.log()).await, Some(0), "a file has these bytes");
                looking.host.sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(looking.live(writer.log()).await, Some(5000), "its deltas were found");
        });
        told.await.expect("nobody dies");
    });
}

#[test]
fn a_cleaner_that_wakes_up_moves_nothing_to_a_sealed_log() {
    sim::explore(0..20, async |world, host| {
        let mut site = Site::create(&world, &host, &mut world.dice()).await;
        site.start_managers().await;
        let [cleaning, looking] = [world.host(ALIVE), world.add_node(NodeId(101))];
        let told = world.spawn(&cleaning.clone(), async move {
            let (cleaning, looking) = (Machine::start(cleaning).await, Machine::start(looking).await);
            let inode = cleaning.create().await;
            let writer = cleaning.open(Writer::Client).await;
            let old = append(&writer, inode).await;
            let deltas = append_deltas(&writer, inode, old).await;
            cleaning.ask(inode, ManagerRequest::Deltas(deltas)).await.expect("the file is there");
            let cleaner = cleaning.open(Writer::Cleaner).await;
            let new = append(&cleaner, inode).await;
            let moved = Moved { inode, file_offset: 0, old, new };
            looking.seal(cleaner.log()).await;
            assert_eq!(looking.live(cleaner.log()).await, Some(0), "nobody names the copy: it may be deleted");
            cleaning.ask(inode, ManagerRequest::Move(vec![moved])).await.expect("it was heard, and is void");
            assert_eq!(looking.live(cleaner.log()).await, Some(0), "nobody names it for ever");
            assert_eq!(looking.live(writer.log()).await, Some(5000), "the file has its bytes");
            // Of a log that is open it is as it says.
            let cleaner = cleaning.open(Writer::Cleaner).await;
            let new = append(&cleaner, inode).await;
            let moved = Moved { new, ..moved };
            cleaning.ask(inode, ManagerRequest::Move(vec![moved])).await.expect("the file is there");
            assert_eq!(looking.live(cleaner.log()).await, Some(5000));
            assert_eq!(looking.live(writer.log()).await, Some(0));
        });
        told.await.expect("nobody dies");
    });
}

#[test]
fn what_was_deleted_is_not_wanted_by_whoever_takes_over() {
    sim::explore(0..20, async |world, host| {
        let mut dice = world.dice();
        let mut site = Site::create(&world, &host, &mut dice).await;
        site.start_managers().await;
        let looking = world.add_node(NodeId(101));
        let told = world.spawn(&looking.clone(), async move {
            let looking = Machine::start(looking).await;
            let inode = looking.create().await;
            let writer = looking.open(Writer::Client).await;
            let address = append(&writer, inode).await;
            append_deltas(&writer, inode, address).await;
            // With this both data fragments have bytes.
            let parts = &[BodyPart::Copied(&vec![7; writer.record_size_max() as usize * 3 / 4])];
            let filler = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
            let end = writer.append(filler).expect("it is open").end;
            writer.commit(end, Durability::Disk).await.expect("all targets live");
            assert_eq!(end.stripe, address.stripe);
            writer.close().await.expect("all targets live");
            looking.seal(writer.log()).await;
            looking.hears(writer.log(), 5000).await;
            let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
            looking.ask(inode, ManagerRequest::SetAttributes(inode, set)).await.expect("the file is there");
            looking.hears(writer.log(), 0).await;
            for target in [0, 1].map(TargetId) {
                let delete = StorageRequest::Delete { stripes: vec![(writer.log(), address.stripe)] };
                looking.cluster.ask(target, delete).await.expect("it lives");
            }
            (looking, address)
        });
        let (looking, address) = told.await.expect("nobody dies");
        site.fall_behind(TargetId(1));
        site.deal_anew(&mut dice).await;
        site.start_managers().await;
        let told = world.spawn(&looking.host.clone(), async move {
            looking.hears(address.log, 0).await;
            let left = LogReader::new(looking.cluster.clone()).read(address).await;
            assert!(matches!(left, Err(ReadError::Unreadable { .. })), "{left:?}: nobody can tell whether it is lost");
        });
        told.await.expect("nobody dies");
    });
}

/// A machine that starts anew left several logs. The danger: while it seals one of them, others have all that they need of the
/// next, which is forgotten; and the machine does not start.
#[test]
fn what_is_forgotten_of_an_earlier_life_stops_no_start() {
    sim::explore(0..10, async |world, host| {
        let mut site = Site::create(&world, &host, &mut world.dice()).await;
        let node = *site.managers.keys().next().expect("there are managers");
        let (living, other) = (world.host(node), world.add_node(NodeId(101)));
        let left = world.spawn(&living.clone(), async move {
            let machine = Machine::start(living).await;
            (machine.open(Writer::Client).await.log(), machine.open(Writer::Client).await.log())
        });
        let (first, second) = left.await.expect("nobody dies");
        let others = world.spawn(&other.clone(), async move {
            let machine = Machine::start(other).await;
            machine.seal(second).await;
            machine
        });
        let machine = others.await.expect("nobody dies");
        world.crash(node, Stop::Kill);
        let forgotten = world.spawn(&machine.host.clone(), async move {
            loop {
                let maps = machine.cluster.refresh().await.expect("the registry never fails");
                if !matches!(maps.logs[&first].state, LogState::Open(_)) {
                    let forget = RegistryRequest::ForgetLogs(vec![second], maps.epoch);
                    machine.cluster.registry(forget).await.expect("it is sealed");
                    return machine.cluster.maps().is_forgotten(second);
                }
                machine.host.sleep(Duration::from_micros(50)).await;
            }
        });
        site.start_managers().await;
        assert!(forgotten.await.expect("nobody dies"));
    });
}
