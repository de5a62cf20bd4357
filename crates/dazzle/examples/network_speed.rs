//! How fast two nodes call each other over loopback, both on this machine: round trips, and gigabytes a second each way.
//!
//!     cargo run --release -p dazzle --example network_speed
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use dazzle::machine::RealMachine;
use dazzle::network::{NetworkOptions, TONGUES};
use dazzle::trust::{Authority, Date, Identity, Validity};
use host::{Address, BoxFuture, Envelope, Handler, Host, NodeId, Port};
use protocol::fragment::{FragmentId, Part};
use protocol::id::{LogId, RunNumber, StripeNumber, TargetId};
use protocol::storage::{STORAGE_PORT, StorageAnswer, StorageReply, StorageRequest, TargetStat, ToTarget};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

const READ_BYTES: u32 = 1 << 20;
const READS: u32 = 2000;
const READERS: u32 = 8;
const ROUND_TRIPS: u32 = 20_000;

/// Answers reads with one and the same megabyte.
struct Store(Bytes);

impl Handler for Store {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let ToTarget { request, .. } = request.open().expect("storage is asked as storage");
        let bytes = self.0.clone();
        let reply = match request {
            StorageRequest::Read { .. } => StorageReply::Blocks { offset: 0, bytes, checksums: vec![0; 256] },
            _ => StorageReply::Stat(TargetStat::default()),
        };
        Box::pin(async move { Envelope::new(StorageAnswer::Ok(reply)) })
    }
}

async fn node(authority: &Authority, node: u32) -> (Arc<RealMachine>, Host) {
    let now = Date(SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs());
    let identity = Identity::create(authority, NodeId(node), Validity::of_node(now)).expect("a certificate is made");
    let machine = RealMachine::new(NodeId(node), Handle::current());
    let host = Host::new(machine.clone());
    let (listen, session) = ("127.0.0.1:0".to_owned(), host.random());
    let options = NetworkOptions { identity, listen, tongues: TONGUES, admission: None, session };
    machine.connect(options).await.expect("a free port is found");
    host.listen(Port(STORAGE_PORT), Arc::new(Store(vec![7; READ_BYTES as usize].into())));
    (machine, host)
}

async fn ask(host: &Host, request: StorageRequest) {
    let to = Address { node: NodeId(2), port: Port(STORAGE_PORT) };
    let answer: StorageAnswer = host.call(to, ToTarget { target: TargetId(0), request }).await.expect("it answers");
    answer.expect("it does as asked");
}

async fn read(host: &Host) {
    let part = Part::Data(0);
    let id = FragmentId { log: LogId(1), stripe: StripeNumber(0), run: RunNumber(0), part };
    ask(host, StorageRequest::Read { id, offset: 0, length: READ_BYTES }).await;
}

#[tokio::main]
async fn main() {
    let now = Date(SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs());
    let authority = Authority::create(1, Validity::of_authority(now)).expect("a CA is made");
    let ((one, host), (two, _host)) = (node(&authority, 1).await, node(&authority, 2).await);
    one.know(NodeId(2), two.address().expect("it listens").to_string());
    ask(&host, StorageRequest::Stat).await;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        ask(&host, StorageRequest::Stat).await;
        times.push(begun.elapsed());
    }
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("round trip: median {:?}, fastest tenth {:?}, slowest hundredth {:?}", at(50), at(10), at(99));
    read(&host).await;
    let (begun, processor) = (Instant::now(), processor_seconds());
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let host = host.clone();
        readers.spawn(async move {
            for _ in 0..READS / READERS {
                read(&host).await;
            }
        });
    }
    readers.join_all().await;
    let gigabytes = f64::from(READS) * f64::from(READ_BYTES) / 1e9;
    let (wall, processor) = (begun.elapsed().as_secs_f64(), processor_seconds() - processor);
    let (rate, cost) = (gigabytes / wall, gigabytes / processor);
    println!("reads of 1 MiB, {READERS} at once: {rate:.2} GB/s, {cost:.2} GB per processor second, both ends");
}

/// What this process has taken of the processors, in user and system time.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the kernel tells");
    let behind_name = stat.rsplit(')').next().expect("something stands behind the name");
    let ticks = behind_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
    // In hundredths of a second on every Linux there is.
    ticks.sum::<f64>() / 100.0
}
