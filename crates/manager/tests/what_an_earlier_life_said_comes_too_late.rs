//! The danger: a client's machine starts anew, greets its manager and is granted something; then the greeting of its earlier
//! life arrives, which was under way all the time, and voids what the client holds: two write one file. Or the next life says
//! what it holds, which is nothing, to a manager that does not know yet that there was a death.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use host::sim;
use host::{Address, BoxFuture, Envelope, Handler, Host, NodeId, Port};
use log::{BodyPart, Cluster, LogWriter, Record, WriterOptions};
use protocol::address::Position;
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Kind, NewInode, SetAttributes, Time};
use protocol::id::{InodeId, LogId, StripeNumber};
use protocol::manager::{Answer, Deltas, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerRequest};
use protocol::maps::{LogState, Writer};
use protocol::once::{CallId, Once, OnceName};
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Durability, Room};
use protocol::token::{CLIENT_PORT, Claims, ClientAnswer, ClientRequest, Grant};

use crate::several::{GROUND, SharedMaps, Site, change_maps};

/// Gives up whatever it is asked for, and notes of which life.
struct Holder(Arc<Mutex<Vec<LogId>>>);

impl Handler for Holder {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let answer = match request.open().expect("a request to a client") {
            ClientRequest::GiveUpSlot { life, .. } => {
                self.0.lock().unwrap().push(life);
                ClientAnswer::Tokens(Vec::new())
            }
            _ => ClientAnswer::Done,
        };
        Box::pin(std::future::ready(Envelope::new(answer)))
    }
}

const NAME: Bytes = Bytes::from_static(b"a");

/// A client of few words.
struct Client {
    host: Host,
    cluster: Cluster,
}

impl Client {
    async fn on(host: Host) -> Client {
        let cluster = Cluster::connect(host.clone(), GROUND).await.expect("the registry never fails");
        Client { host, cluster }
    }

    async fn open_log(&self) -> (LogWriter, LogId) {
        let opened = LogWriter::open(self.cluster.clone(), Writer::Client, Room::Data, WriterOptions::default()).await;
        let writer = opened.expect("all targets live");
        let log = writer.log();
        (writer, log)
    }

    /// Opens a log and says so. Nothing has been stored in it.
    async fn greet(&self) -> (LogWriter, LogId) {
        let (writer, log) = self.open_log().await;
        self.ask(ManagerRequest::Greet(log)).await.expect("the first word of a life");
        (writer, log)
    }

    /// Makes a file of that name, and tells what was granted beside it.
    async fn make(&self) -> (InodeId, Option<Grant>) {
        let caller = Caller::default();
        let new = NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target: Bytes::new(), caller };
        let create = ManagerRequest::Create { directory: InodeId::ROOT, name: NAME, new, open: false };
        let made = self.ask(create).await.expect("the name is new");
        match made.answer {
            Answer::Entry(attributes, _) => (attributes.inode, made.granted),
            other => panic!("made, not {other:?}"),
        }
    }

    async fn size(&self, inode: InodeId) -> u64 {
        match self.ask(ManagerRequest::Attributes(inode)).await.expect("the manager has started").answer {
            Answer::Attributes(found) => found.size,
            other => panic!("attributes, not {other:?}"),
        }
    }

    async fn ask(&self, request: ManagerRequest) -> ManagerAnswer {
        let node = NodeId(self.cluster.maps().slot(InodeId::ROOT.slot().0).node);
        self.host.call(Address { node, port: Port(MANAGER_PORT) }, request).await.expect("the manager lives")
    }
}

#[test]
fn a_late_greeting_voids_nothing() {
    sim::explore(0..3, async |world, host| {
        let mut site = Site::create(&world, &host, &mut world.dice()).await;
        site.start_managers().await;
        let hosts = [world.add_node(NodeId(101)), world.add_node(NodeId(102))];
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let told = world.spawn(&hosts[0].clone(), async move {
            let [host, other] = hosts;
            host.listen(Port(CLIENT_PORT), Arc::new(Holder(noted)));
            let client = Client::on(host).await;
            let (_, earlier) = client.greet().await;
            let (_writer, later) = client.greet().await;
            let (_, granted) = client.make().await;
            assert_eq!(granted, Some(Grant::Slot(InodeId::ROOT.slot())));
            assert!(client.ask(ManagerRequest::Greet(earlier)).await.is_err(), "that life is over");
            let other = Client::on(other).await;
            let _other_log = other.greet().await;
            let found = other.ask(ManagerRequest::Lookup { directory: InodeId::ROOT, name: NAME }).await;
            found.expect("it was made");
            later
        });
        let later = told.await.expect("nobody dies");
        assert_eq!(*asked.lock().unwrap(), [later], "what the later life holds is called back from it");
    });
}

/// The next life of a client's machine. It is there from when somebody asks it, and the registry tells of it later.
struct NextLife {
    node: NodeId,
    maps: SharedMaps,
    told: SharedMaps,
    log: OnceLock<LogId>,
}

impl NextLife {
    fn begin(&self) -> LogId {
        *self.told.lock().unwrap() = self.maps.lock().unwrap().clone();
        let mut log = LogId(0);
        change_maps(&self.maps, |maps| {
            log = maps.next_log;
            maps.next_log = LogId(log.0 + 1);
            maps.nodes.get_mut(&self.node.0).expect("it has joined").session += 1;
        });
        log
    }
}

impl Handler for NextLife {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let answer = match request.open().expect("a request to a client") {
            ClientRequest::Claim { .. } => {
                ClientAnswer::Claim(*self.log.get_or_init(|| self.begin()), Claims::default())
            }
            _ => ClientAnswer::Done,
        };
        Box::pin(std::future::ready(Envelope::new(answer)))
    }
}

#[test]
fn what_an_earlier_life_stored_is_seen_though_nobody_has_heard_of_its_end() {
    sim::explore(0..20, async |world, host| {
        let mut dice = world.dice();
        let mut site = Site::create(&world, &host, &mut dice).await;
        site.start_managers().await;
        let node = NodeId(101);
        site.join(node);
        let host = world.add_node(node);
        let (maps, told) = (site.maps.clone(), site.told.clone());
        let next = NextLife { node, maps, told: told.clone(), log: OnceLock::new() };
        let stored = world.spawn(&host.clone(), async move {
            let client = Client::on(host).await;
            let (inode, _) = client.make().await;
            let (writer, _) = client.open_log().await;
            let delta = Delta { inode, change: Change::Wrote { size: 5000, time: Time(1) } };
            let body = postcard::to_stdvec(&vec![delta]).expect("deltas have no unserializable part");
            let parts = &[BodyPart::Copied(&body)];
            let record = Record { kind: RecordKind::Deltas, owner: Owner::default(), parts, aligned: false };
            let end = writer.append(record).expect("it is open").end;
            writer.commit(end, Durability::Disk).await.expect("all targets live");
            client.host.listen(Port(CLIENT_PORT), Arc::new(next));
            (client, inode, writer)
        });
        let (client, inode, _writer) = stored.await.expect("nobody dies");
        site.managers.keys().copied().collect::<Vec<_>>().into_iter().for_each(|node| site.kill(node));
        let later = world.clone();
        let heard = world.spawn(&world.host(GROUND), async move {
            while told.lock().unwrap().is_none() {
                later.sleep(Duration::from_millis(10)).await;
            }
            later.sleep(Duration::from_secs(1)).await;
            *told.lock().unwrap() = None;
        });
        site.start_managers().await;
        let looked = world.spawn(&client.host.clone(), async move {
            client.cluster.refresh().await.expect("the registry never fails");
            client.size(inode).await
        });
        assert_eq!(looked.await.expect("nobody dies"), 5000);
        heard.await.expect("nobody dies");
    });
}

/// What a dead client recorded was replayed, written over and deleted; its log is forgotten. It was only cut off, and says now
/// what nobody acknowledged.
#[test]
fn deltas_of_a_log_that_was_forgotten_change_nothing() {
    sim::explore(0..3, async |world, host| {
        let mut site = Site::create(&world, &host, &mut world.dice()).await;
        site.start_managers().await;
        let host = world.add_node(NodeId(101));
        let maps = site.maps.clone();
        let told = world.spawn(&host.clone(), async move {
            let client = Client::on(host).await;
            let (_writer, log) = client.greet().await;
            let (inode, _) = client.make().await;
            change_maps(&maps, |maps| drop(maps.logs.remove(&log)));
            (client, inode, log)
        });
        let (client, inode, log) = told.await.expect("nobody dies");
        restart_managers(&mut site).await;
        let looked = world.spawn(&client.host.clone(), async move {
            let list = vec![Delta { inode, change: Change::Wrote { size: 5000, time: Time(1) } }];
            let position = Position::new(StripeNumber(0), 100);
            let late = client.ask(ManagerRequest::Deltas(Deltas { log, position, list })).await;
            (late, client.size(inode).await)
        });
        let (late, size) = looked.await.expect("nobody dies");
        assert!(matches!(late, Err(ManagerError::Stale)), "{late:?}");
        assert_eq!(size, 0);
    });
}

/// The answer to a truncation was lost, the client's lease ended, and somebody else has written the file since. Its machine
/// only stood still, and asks again.
#[test]
fn who_lost_his_lease_truncates_nothing() {
    sim::explore(0..6, async |world, host| {
        let is_forgotten = world.seed() % 2 == 0;
        let mut site = Site::create(&world, &host, &mut world.dice()).await;
        site.start_managers().await;
        let host = world.add_node(NodeId(101));
        let maps = site.maps.clone();
        let told = world.spawn(&host.clone(), async move {
            let client = Client::on(host).await;
            let (_writer, log) = client.greet().await;
            let (inode, _) = client.make().await;
            let truncate = |number| {
                let name = OnceName { call: CallId { client: log, number }, below: 0, slot: inode.slot() };
                ManagerRequest::Once(Once::new(name, Duration::from_secs(20), &set_size(inode, 0)))
            };
            client.ask(truncate(1)).await.expect("it lives");
            client.ask(set_size(inode, 5000)).await.expect("others may");
            client.ask(truncate(1)).await.expect("it took effect");
            assert_eq!(client.size(inode).await, 5000, "once");
            change_maps(&maps, |maps| match is_forgotten {
                true => drop(maps.logs.remove(&log)),
                false => maps.logs.get_mut(&log).expect("it is open").state = LogState::Sealed(Position::START),
            });
            (client, inode, [1, 2].map(truncate))
        });
        let (client, inode, truncations) = told.await.expect("nobody dies");
        restart_managers(&mut site).await;
        let looked = world.spawn(&client.host.clone(), async move {
            let [answered, not_yet] = truncations;
            // The answer may be there, or be forgotten.
            let _ = client.ask(answered).await;
            let late = client.ask(not_yet).await;
            (late, client.size(inode).await)
        });
        let (late, size) = looked.await.expect("nobody dies");
        assert!(matches!(late, Err(ManagerError::Failed(_))), "{late:?}");
        assert_eq!(size, 5000);
    });
}

async fn restart_managers(site: &mut Site) {
    let nodes: Vec<NodeId> = site.managers.keys().copied().collect();
    nodes.into_iter().for_each(|node| site.kill(node));
    site.start_managers().await;
}

fn set_size(inode: InodeId, size: u64) -> ManagerRequest {
    ManagerRequest::SetAttributes(inode, SetAttributes { size: Some(size), ..SetAttributes::default() })
}
