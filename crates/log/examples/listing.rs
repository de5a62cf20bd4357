//! How much memory it takes to look at all that is stored: `cargo run -p dazzle-log --example listing`.
//!
//! The targets make up what they hold when they are asked for it, and send it without encoding; so what is counted is what
//! the one that looks has in memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use host::sim::{World, run};
use host::{BoxFuture, Envelope, Handler, Host, NodeId, Port};
use log::stripes::StripeState;
use log::{Cluster, Walk};
use protocol::address::Position;
use protocol::fragment::{FRAGMENT_SIZE, FragmentHeader, FragmentId, Geometry, Part};
use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, StripeNumber, TargetId};
use protocol::maps::{LogEntry, LogState, Maps, Run, TargetEntry, Writer};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryReply};
use protocol::storage::{STORAGE_PORT, StorageAnswer, StorageReply, StorageRequest, StoredFragment, ToTarget};

const TARGETS: u32 = 5;
const LOGS: u64 = 4;
const STRIPES_EACH: u64 = 10_000;

/// Counts the bytes that are allocated.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static BYTES_MAX: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        BYTES_MAX.fetch_max(bytes, Relaxed);
        // SAFETY: the caller keeps what the contract asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above, and all memory came from there.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// The one group over all targets.
fn maps() -> Maps {
    let targets = (0..TARGETS).map(|n| (TargetId(n), TargetEntry::new(10 + n, format!("t{n}")))).collect();
    let mut maps = registry::change::new_cluster(1, targets, 1, 1);
    let group = *maps.groups.keys().next().expect("all serve");
    let run = Run::new(RunNumber(0), StripeNumber(0), vec![group]);
    let log = LogEntry::new((1, 1), Writer::Client, vec![run], LogState::Open(FenceEpoch(1)));
    maps.logs = (1..=LOGS).map(|number| (LogId(number), log.clone())).collect();
    maps
}

/// What a target has of a stripe.
fn fragment(maps: &Maps, target: TargetId, (log, stripe): (LogId, StripeNumber)) -> StoredFragment {
    let (&group, entry) = maps.groups.iter().next().expect("there is one");
    let geometry: Geometry = entry.geometry;
    let parts = (0..geometry.data).map(Part::Data).chain([Part::Parity(0)]);
    let mut own = parts.filter(|part| entry.targets[geometry.member(stripe, *part)] == target);
    let part = own.next().expect("it is as wide as the cluster");
    let lengths = if part == Part::Parity(0) { vec![FRAGMENT_SIZE; usize::from(geometry.data)] } else { Vec::new() };
    let header = FragmentHeader {
        id: FragmentId { log, stripe, run: RunNumber(0), part },
        group: GroupId(group.0),
        geometry,
        mark: Position::START,
        previous_end: if stripe.0 == 0 { 0 } else { geometry.stripe_size() },
        complete_below: StripeNumber(stripe.0.saturating_sub(3)),
        data_lengths: lengths,
    };
    StoredFragment { header, length: FRAGMENT_SIZE, generation: stripe.0 }
}

struct Registry(Arc<Maps>);

impl Handler for Registry {
    fn handle(&self, _: NodeId, _: Envelope) -> BoxFuture<'static, Envelope> {
        let answer: RegistryAnswer = Ok(RegistryReply::Maps(self.0.clone()));
        Box::pin(async move { Envelope::new(answer) })
    }
}

struct Target(Arc<Maps>);

impl Handler for Target {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let ToTarget { target, request } = request.open().expect("storage is asked as storage");
        let StorageRequest::List { after, limit } = request else { panic!("it is listed only") };
        // Where in all stripes it goes on: logs and stripes are numbered through.
        let place = |after: FragmentId| match after.log.0.checked_sub(1) {
            Some(log) => log * STRIPES_EACH + (after.stripe.0 + 1).min(STRIPES_EACH),
            None => 0,
        };
        let first = after.map_or(0, place);
        let places = (first..LOGS * STRIPES_EACH).take(limit as usize);
        let stripes = places.map(|at| (LogId(1 + at / STRIPES_EACH), StripeNumber(at % STRIPES_EACH)));
        let answer: StorageAnswer =
            Ok(StorageReply::Fragments(stripes.map(|stripe| fragment(&self.0, target, stripe)).collect()));
        Box::pin(async move { Envelope::new(answer) })
    }
}

async fn measure(world: World, host: Host) {
    let maps = Arc::new(maps());
    world.add_node(NodeId(100)).listen(Port(REGISTRY_PORT), Arc::new(Registry(maps.clone())));
    for n in 0..TARGETS {
        world.add_node(NodeId(10 + n)).listen(Port(STORAGE_PORT), Arc::new(Target(maps.clone())));
    }
    let cluster = Cluster::connect(host, NodeId(100)).await.expect("the registry never fails");
    let (before, mut count) = (BYTES.load(Relaxed), 0_u64);
    BYTES_MAX.store(before, Relaxed);
    let note = |state: StripeState| count += u64::from(state.ended && state.missing.is_empty());
    let silent = Walk::over_all(&cluster, &maps).to_end(note).await;
    assert_eq!((count, silent), (LOGS * STRIPES_EACH, BTreeSet::new()));
    let most = BYTES_MAX.load(Relaxed) - before;
    println!("{count} stripes, {} fragments: {} KiB at the most", count * u64::from(TARGETS), most >> 10);
}

fn main() {
    run(1, measure);
}
