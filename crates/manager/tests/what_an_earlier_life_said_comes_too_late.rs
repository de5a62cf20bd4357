//! The danger: a client's machine starts anew, greets its manager and is granted something; then the greeting of its earlier
//! life arrives, which was under way all the time, and voids what the client holds: two write one file.

#[allow(dead_code, reason = "other tests do more to a site")]
mod several;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use host::sim;
use host::{Address, BoxFuture, Envelope, Handler, Host, NodeId, Port};
use log::{Cluster, LogWriter, WriterOptions};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::{InodeId, LogId};
use protocol::manager::{MANAGER_PORT, ManagerAnswer, ManagerRequest};
use protocol::maps::Writer;
use protocol::storage::Room;
use protocol::token::{CLIENT_PORT, ClientAnswer, ClientRequest, Grant};
use several::{GROUND, Site};

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

/// A client of few words.
struct Client {
    host: Host,
    cluster: Cluster,
}

impl Client {
    async fn open_log(&self) -> (LogWriter, LogId) {
        let opened = LogWriter::open(self.cluster.clone(), Writer::Client, Room::Data, WriterOptions::default()).await;
        let writer = opened.expect("all targets live");
        let log = writer.log();
        (writer, log)
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
            let cluster = Cluster::connect(host.clone(), GROUND).await.expect("the registry never fails");
            let client = Client { host, cluster };
            let (_, earlier) = client.open_log().await;
            client.ask(ManagerRequest::Greet(earlier)).await.expect("its first word");
            let (_writer, later) = client.open_log().await;
            client.ask(ManagerRequest::Greet(later)).await.expect("the first word of its next life");
            let (name, caller) = (Bytes::from_static(b"a"), Caller::default());
            let new = NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target: Bytes::new(), caller };
            let create = ManagerRequest::Create { directory: InodeId::ROOT, name: name.clone(), new, open: false };
            let made = client.ask(create).await.expect("the name is new");
            assert_eq!(made.granted, Some(Grant::Slot(InodeId::ROOT.slot())));
            assert!(client.ask(ManagerRequest::Greet(earlier)).await.is_err(), "that life is over");
            let cluster = Cluster::connect(other.clone(), GROUND).await.expect("the registry never fails");
            let other = Client { host: other, cluster };
            let (_other_writer, log) = other.open_log().await;
            other.ask(ManagerRequest::Greet(log)).await.expect("its first word");
            let found = other.ask(ManagerRequest::Lookup { directory: InodeId::ROOT, name }).await;
            found.expect("it was made");
            later
        });
        let later = told.await.expect("nobody dies");
        assert_eq!(*asked.lock().unwrap(), [later], "what the later life holds is called back from it");
    });
}
