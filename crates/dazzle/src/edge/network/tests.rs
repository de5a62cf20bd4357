//! Networks of several nodes in one process: over real sockets where sockets matter, over pipes in virtual time where
//! time does.

mod byways;
mod calls;
mod faults;
mod joining;
mod rubbish;
mod strangers;
mod time;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use host::byways::BYWAY_PORT;
use host::{Address, BoxFuture, Envelope, Handler, Host, NodeId, Port, Unreachable};
use protocol::payload;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::edge::machine::RealMachine;
use crate::edge::trust::{Authority, Date, Identity, Validity};

use super::{Admission, NetworkOptions, Tongue};

const CLUSTER: u128 = 0x0123_4567_89ab_cdef;
const PORT: u16 = 17;
const DEAF_PORT: u16 = 18;
static SPOKEN: &[Tongue] = &[
    Tongue::of::<Ask, Tell>(PORT).expecting(room),
    Tongue::of::<Ask, Tell>(DEAF_PORT),
    Tongue::passing(BYWAY_PORT, &SPOKEN),
];

/// What the tests' part is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Who asks?
    Who,
    /// Say this again.
    Echo(#[serde(with = "payload::parts")] Vec<Bytes>),
    /// Say nothing for so many seconds.
    Wait(u64),
    /// Take this, and never say anything.
    Keep(#[serde(with = "payload::parts")] Vec<Bytes>),
    /// Say so many bytes.
    Much(u32),
    /// Do not come to an end.
    Panic,
}

/// What it answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Tell {
    Node(u32),
    Parts(#[serde(with = "payload::parts")] Vec<Bytes>),
    Done,
}

fn room(_: &Tongue, request: &(dyn std::any::Any + Send)) -> u32 {
    match request.downcast_ref() {
        Some(Ask::Much(bytes)) => *bytes,
        Some(Ask::Echo(parts)) => parts.iter().map(Bytes::len).sum::<usize>() as u32,
        _ => 0,
    }
}

struct Part;

impl Handler for Part {
    fn handle(&self, from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let request: Ask = request.open().expect("the part is asked as itself");
        Box::pin(async move {
            Envelope::new(match request {
                Ask::Who => Tell::Node(from.0),
                Ask::Echo(parts) => Tell::Parts(parts),
                Ask::Wait(seconds) => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Tell::Done
                }
                Ask::Keep(_) => std::future::pending().await,
                Ask::Much(bytes) => Tell::Parts(vec![Bytes::from(vec![1; bytes as usize])]),
                Ask::Panic => panic!("on purpose"),
            })
        })
    }
}

/// A cluster's CA, and nodes of it.
struct Cluster(Authority);

impl Cluster {
    fn new(cluster: u128) -> Cluster {
        Cluster(Authority::create(cluster, Validity::of_authority(now())).unwrap())
    }

    fn identity(&self, node: u32) -> Identity {
        Identity::create(&self.0, NodeId(node), Validity::of_node(now())).unwrap()
    }

    async fn node(&self, node: u32) -> Node {
        Node::start(self.identity(node), None).await
    }
}

/// A node that answers on [`PORT`].
struct Node {
    machine: Arc<RealMachine>,
    host: Host,
}

impl Node {
    async fn start(identity: Identity, admission: Option<Arc<dyn Admission>>) -> Node {
        let machine = RealMachine::new(identity.name().node, Handle::current());
        let host = Host::new(machine.clone()).with_byways();
        host.listen(Port(PORT), Arc::new(Part));
        let (listen, session) = ("127.0.0.1:0".to_owned(), host.random());
        machine.connect(NetworkOptions { identity, listen, tongues: SPOKEN, admission, session }).await.unwrap();
        Node { machine, host }
    }

    fn address(&self) -> String {
        self.machine.address().unwrap().to_string()
    }

    fn knows(&self, other: &Node) {
        self.machine.know(other.host.node(), other.address());
    }

    async fn ask(&self, node: u32, ask: Ask) -> Result<Tell, Unreachable> {
        self.host.call(at(node), ask).await
    }

    /// The error of the last dial to `node`.
    fn complaint(&self, node: u32) -> super::NetworkError {
        let peers = self.machine.peers();
        peers.into_iter().find(|peer| peer.node.0 == node).and_then(|peer| peer.error).expect("a dial failed")
    }

    fn connections(&self, node: u32) -> usize {
        self.machine.peers().into_iter().find(|peer| peer.node.0 == node).map_or(0, |peer| peer.connections)
    }
}

/// Two nodes, 1 and 2; 1 knows where 2 is.
async fn pair() -> (Node, Node) {
    let cluster = Cluster::new(CLUSTER);
    let (one, two) = (cluster.node(1).await, cluster.node(2).await);
    one.knows(&two);
    (one, two)
}

fn at(node: u32) -> Address {
    Address { node: NodeId(node), port: Port(PORT) }
}

fn now() -> Date {
    Date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}
