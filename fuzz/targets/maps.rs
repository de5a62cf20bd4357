//! What a registry is asked, and what it finds on its targets when it starts.
//!
//! Bytes: one that says which, then requests, or what lies in the byte spaces of a copy, or fragments. Held true:
//! 1. No sequence of requests breaks the maps: whoever follows them finds a manager for every slot and groups for every
//!    run; they can be stored; and an epoch says of each change that there was one.
//! 2. A copy opens or is refused. A registry starts on it or says why not, and whoever rebuilds one takes what is left of it.
//! 3. Whatever fragments say, a registry is rebuilt of them with maps that can be followed, or not at all.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use dazzle_fuzz::feed::Feed;
use dazzle_fuzz::fragments;
use host::NodeId;
use host::sim::{DiskOptions, World};
use libfuzzer_sys::fuzz_target;
use protocol::address::Position;
use protocol::fragment::{Geometry, Part, WIDTH_MAX};
use protocol::id::{FenceEpoch, GroupId, LogId, MapEpoch, StripeNumber, TargetId};
use protocol::maps::{Class, Drain, GroupEntry, LogState, Maps, SlotLog, StopPhase, TargetEntry, TargetState, Writer};
use protocol::registry::{Attempt, Invitation, RegistryRequest};
use protocol::settings::Setting;
use protocol::storage::StoredFragment;
use registry::evidence::{Evidence, Trace};
use registry::rebuilding::{Founder, Ruins, Told, ToldTable};
use registry::{Registry, Replica, Salvage, change};

/// Requests that one input makes at the most.
const REQUESTS_MAX: usize = 64;
/// Fragments that one input makes at the most.
const FRAGMENTS_MAX: usize = 48;
/// The byte spaces of a copy.
const SPACES: [&str; 3] = ["registry.0", "registry.1", "registry.log"];

/// Holds one input to what is said above.
fn run(input: &[u8]) {
    match input.split_first() {
        Some((0, body)) => requests(body),
        Some((1, body)) => replica(body),
        Some((2, body)) => ruins(body),
        _ => {}
    }
}

fn encode(maps: &Maps) -> Vec<u8> {
    postcard::to_stdvec(maps).expect("maps have no part that cannot be encoded")
}

fn requests(body: &[u8]) {
    let entry = |n| TargetEntry::new(1, format!("t{n}"));
    let mut feed = Feed::new(body);
    let targets = u32::from(feed.choice(8)) + 1;
    let parity = feed.choice(4);
    let mut maps = change::new_cluster(7, (0..targets).map(|n| (TargetId(n), entry(n))).collect(), 1, parity);
    sound(&maps);
    for _ in 0..REQUESTS_MAX {
        if feed.is_empty() {
            break;
        }
        let request = match feed.choice(2) {
            0 => near(&mut feed, &maps),
            _ => match postcard::from_bytes(feed.run()) {
                Ok(request) => request,
                Err(_) => continue,
            },
        };
        let (next, reply) = change::apply(&maps, request);
        if let Some(next) = next {
            assert!(next.epoch > maps.epoch, "a change has an epoch of its own");
            maps = next;
        }
        let _ = reply.map(|outcome| outcome.with(Arc::new(maps.clone())));
        sound(&maps);
        in_order(&maps);
    }
    assert_eq!(postcard::from_bytes::<Maps>(&encode(&maps)).as_ref(), Ok(&maps));
}

/// A request that makes sense more often than one out of rubbish.
fn near(feed: &mut Feed<'_>, maps: &Maps) -> RegistryRequest {
    let log = LogId(feed.number());
    let entry = maps.logs.get(&log);
    let version = entry.map_or(0, |entry| entry.version).wrapping_add(u64::from(feed.choice(8) == 7));
    let epoch = match entry.map(|entry| entry.state) {
        Some(LogState::Open(epoch) | LogState::Sealing(epoch)) => epoch,
        _ => FenceEpoch(feed.word()),
    };
    let seen = MapEpoch(maps.epoch.0.saturating_sub(feed.choice(3).into()));
    match feed.choice(34) {
        0 => RegistryRequest::open_log(maps, feed.word(), Writer::Client, feed.byte().into()),
        1 => {
            let groups = feed.run().iter().map(|&id| GroupId(id.into())).collect();
            RegistryRequest::AddRun { log, version, epoch, from: StripeNumber(feed.number()), groups }
        }
        2 => RegistryRequest::FinishRuns { log, version, epoch, end: StripeNumber(feed.number()) },
        3 => {
            let geometry = Geometry { data: feed.byte(), parity: feed.byte(), fragment_size: feed.word() };
            let targets = feed.run().iter().map(|&id| TargetId(id.into())).collect();
            RegistryRequest::FormGroup(GroupEntry::new(targets, geometry, feed.choice(2) == 0))
        }
        4 => RegistryRequest::RetireGroup(GroupId(feed.word())),
        5 | 6 => RegistryRequest::Claim { log, version },
        7 => {
            let length = Position::new(StripeNumber(feed.number()), feed.word());
            RegistryRequest::Seal { log, epoch, length, tail: StripeNumber(feed.number()) }
        }
        8 => RegistryRequest::ForgetLogs(feed.run().iter().map(|&id| LogId(id.into())).collect(), seen),
        9 | 10 => {
            let (first, last) = (feed.number() as u16, feed.number() as u16);
            let listed = |&id: &u8| SlotLog { log: LogId(id.into()), from: Position::START };
            let logs = feed.run().iter().map(listed).collect();
            RegistryRequest::SetSlots { first, last, node: feed.word(), base: None, logs, epoch: maps.epoch.0 }
        }
        11 => RegistryRequest::Balance,
        12 | 13 => {
            let drain = [Drain::No, Drain::Careful, Drain::Forced][usize::from(feed.choice(3))];
            RegistryRequest::Drain(feed.run().iter().map(|&id| TargetId(id.into())).collect(), drain, seen)
        }
        14 => RegistryRequest::RemoveTargets(feed.run().iter().map(|&id| TargetId(id.into())).collect(), maps.epoch),
        15 => RegistryRequest::RemoveNode(feed.word()),
        16 => {
            let node = feed.word();
            let session = maps.nodes.get(&node).map_or(0, |entry| entry.session);
            RegistryRequest::AddTarget { node, session, name: feed.number().to_string() }
        }
        18 => {
            let group = GroupId(feed.word());
            RegistryRequest::ReplaceMember { group, old: TargetId(feed.word()), new: TargetId(feed.word()) }
        }
        19 => RegistryRequest::MemberWhole(GroupId(feed.word()), TargetId(feed.word()), seen),
        17 => RegistryRequest::RenameTarget(TargetId(feed.word()), feed.number().to_string()),
        20 => RegistryRequest::RenameNode(feed.word(), feed.number().to_string()),
        21 => RegistryRequest::TargetWhole(TargetId(feed.word()), seen),
        22 => RegistryRequest::TargetsEmpty(feed.run().iter().map(|&id| TargetId(id.into())).collect(), maps.epoch),
        23 => {
            let invitation = Invitation { number: feed.choice(4).into(), expires: feed.number() };
            let attempt = (feed.choice(4) > 0).then(|| Attempt { invitation, number: feed.choice(4).into() });
            let (name, address) = (feed.choice(4).to_string(), feed.choice(4).to_string());
            RegistryRequest::AddNode { name, address, stores: feed.choice(2) == 0, attempt }
        }
        24 => {
            let names = feed.run().iter().map(u8::to_string).collect();
            RegistryRequest::AddTargets { node: feed.word(), names }
        }
        26..=31 => of_sessions(feed, maps),
        32 => RegistryRequest::Set(settings(feed), seen),
        33 => {
            let mut copies = || feed.run().iter().map(|&id| TargetId(id.into())).collect();
            let (from, to) = (copies(), copies());
            let from = (feed.choice(2) == 0).then_some(from);
            RegistryRequest::SetCopies { node: feed.word(), from, to, seen }
        }
        _ => {
            let state = [TargetState::Whole, TargetState::Behind, TargetState::Failed, TargetState::New]
                [usize::from(feed.choice(4))];
            RegistryRequest::SetTarget(TargetId(feed.word()), state)
        }
    }
}

/// A request by which sessions begin and end, alone or all together.
fn of_sessions(feed: &mut Feed<'_>, maps: &Maps) -> RegistryRequest {
    let node = feed.word();
    let session = maps.nodes.get(&node).map_or(0, |entry| entry.session).wrapping_sub(u64::from(feed.choice(8) == 7));
    let stop = maps.stop.as_ref().filter(|_| feed.choice(8) < 7);
    let (phase, asked) = stop.map_or((StopPhase::Asked, MapEpoch(feed.number())), |stop| (stop.phase, stop.asked));
    match feed.choice(8) {
        0 => {
            let keeps = (feed.choice(4) == 0).then(|| LogId(feed.number()));
            RegistryRequest::Begin { node, after: session, address: feed.choice(4).to_string(), keeps }
        }
        1 => RegistryRequest::End { node, session },
        2 => RegistryRequest::StopAll { force: feed.choice(2) == 0, seen: maps.epoch },
        3 => RegistryRequest::CallStopOff { node, session, asked },
        4 => {
            let phase = [StopPhase::Asked, StopPhase::Clients, StopPhase::Managers, StopPhase::Over]
                [usize::from(feed.choice(4))];
            RegistryRequest::FinishPhase { node, session, phase, asked }
        }
        _ => RegistryRequest::FinishPhase { node, session, phase, asked },
    }
}

/// What is to hold on all machines.
fn settings(feed: &mut Feed<'_>) -> Vec<Setting> {
    let one = |feed: &mut Feed<'_>| match (feed.choice(3), feed.choice(4) > 0) {
        (0, is_set) => Setting::Rebuild(is_set.then(|| feed.number())),
        (1, is_set) => Setting::RebuildMinutes(is_set.then(|| feed.word())),
        (_, is_set) => Setting::ScrubDays(is_set.then(|| feed.word())),
    };
    (0..feed.choice(4)).map(|_| one(feed)).collect()
}

/// What everybody who reads maps relies on.
fn sound(maps: &Maps) {
    assert_eq!(maps.verify(), Ok(()), "what is stored is what a start believes");
    for slot in [0, 1, 4094, 4095] {
        let _ = maps.slot(slot);
    }
    assert!(maps.slots.keys().all(|&first| first < protocol::id::SLOT_COUNT));
    for run in maps.logs.values().flat_map(|log| &log.layout) {
        let group = run.group(StripeNumber(u64::MAX));
        assert!(maps.groups.contains_key(&group), "a run lies over groups that there are");
    }
    for group in maps.groups.values() {
        let Geometry { data, parity, .. } = group.geometry;
        assert!((1..=WIDTH_MAX).contains(&data) && parity <= WIDTH_MAX, "no stripe has the shape {:?}", group.geometry);
        assert_eq!(group.targets.len(), group.geometry.width(), "a member for each part");
        let _ = group.geometry.data_lengths(group.geometry.stripe_size());
        let _ = group.geometry.member(StripeNumber(u64::MAX), Part::Data(0));
        assert!(group.targets.iter().all(|target| maps.targets.contains_key(target)), "a group of known targets");
    }
}

/// What holds beyond that of maps that were made here. A copy that bears the right checksum is not asked for it.
fn in_order(maps: &Maps) {
    for (&target, entry) in maps.targets.iter().filter(|(_, entry)| entry.empty) {
        assert!(entry.may_go() && !maps.takes_stripes(target), "nothing can come to lie on what is empty");
    }
    assert_eq!(maps.settings.verify(), Ok(()), "what holds for all is within its bounds");
    if let Some(stop) = &maps.stop {
        let waits = matches!(stop.phase, StopPhase::Asked | StopPhase::Clients | StopPhase::Managers);
        assert_eq!(waits, !stop.left.is_empty(), "a phase waits for somebody, and what is over for nobody");
    }
}

fn replica(body: &[u8]) {
    let mut feed = Feed::new(body);
    let world = World::new(1);
    let host = world.add_node(NodeId(1));
    let disk = world.add_disk(host.node(), "d", DiskOptions::default()).plug();
    world.block_on(async {
        for space in SPACES {
            let image = space_of(&mut feed);
            if !image.is_empty() {
                disk.open(space).expect("the disk is well").write(0, vec![image]).await.expect("the disk is well");
            }
        }
        let _ = Replica::open(&disk).await;
        let disks = vec![(TargetId(0), disk)];
        if let Some(standing) = Salvage::read(&disks).await.as_ref().ok().and_then(Salvage::standing) {
            sound(standing.maps());
        }
        if let Ok(registry) = Registry::start(&host, disks).await {
            sound(&registry.maps());
        }
    });
    world.end();
}

fn ruins(body: &[u8]) {
    let mut feed = Feed::new(body);
    let targets: BTreeMap<TargetId, String> = (0..4).map(|n| (TargetId(n), n.to_string())).collect();
    let usual = Geometry { data: 2, parity: 1, fragment_size: 4096 };
    let mut evidence = Evidence::default();
    for _ in 0..FRAGMENTS_MAX {
        if feed.is_empty() {
            break;
        }
        let target = TargetId(feed.choice(4).into());
        let (header, fence) = (fragments::header(&mut feed, usual), feed.word());
        let fences = [(header.id.log, FenceEpoch(fence))].into();
        let length = fragments::length(&mut feed, usual);
        evidence.add(target, [StoredFragment { header, length, generation: 0 }], fences);
    }
    let evidence = evidence.conclude();
    let founder = Founder {
        node: 1,
        name: String::new(),
        address: String::new(),
        cluster: 7,
        class: Class { parity: feed.choice(3), data_max: Some(feed.choice(6)).filter(|&data| data > 0) },
        present: targets.keys().copied().filter(|_| feed.choice(8) < 7).collect(),
        targets,
        outdated: BTreeSet::new(),
        peers: BTreeSet::new(),
    };
    let ruins = Ruins { founder: &founder, known: None, evidence: &evidence };
    let Ok(outline) = ruins.outline() else { return };
    sound(&outline);
    let tell = |(log, _): (LogId, &Trace)| {
        let replayed = [LogId(feed.choice(4).into())].into();
        let table = Some(ToldTable { replayed, had_all: feed.choice(4) > 0 });
        let told = match feed.choice(4) {
            0 => Told::Client,
            1 => Told::Data,
            2 => Told::Manager { table, hands_over: false },
            _ => Told::Manager { table: None, hands_over: feed.choice(4) == 0 },
        };
        (log, told)
    };
    let told = ruins.asked(&outline).into_iter().map(tell).collect();
    if let Ok(maps) = ruins.conclude(outline, &told) {
        sound(&maps);
        in_order(&maps);
        let seen = evidence.logs().map(|(log, _)| log).max();
        assert!(Some(maps.next_log) > seen, "no number is given twice");
    }
}

/// What one space holds: rubbish, or a head that is right around a body that need not be.
fn space_of(feed: &mut Feed<'_>) -> Bytes {
    match feed.choice(4) {
        0 => Bytes::new(),
        1 => Bytes::copy_from_slice(feed.run()),
        choice => {
            let length = usize::from(feed.byte()) * 4;
            let (generation, body) = (u64::from(feed.byte()), feed.bytes(length));
            if choice == 2 {
                registry::fuzzing::checkpoint(generation, body)
            } else {
                registry::fuzzing::record(generation, u32::from(feed.byte()), body)
            }
        }
    }
}

/// Some requests, and a copy.
fn seeds() -> Vec<Vec<u8>> {
    let entry = |n| TargetEntry::new(1, format!("t{n}"));
    let maps = change::new_cluster(7, (0..5).map(|n| (TargetId(n), entry(n))).collect(), 1, 1);
    let open = RegistryRequest::open_log(&maps, 1, Writer::Client, 0);
    let maps = change::apply(&maps, open).0.expect("a change");
    let mut body = registry::fuzzing::body(maps, 1);
    body.resize(body.len().next_multiple_of(4), 0);
    let requests =
        [0, 4, 1, 0, 1, 0, 0, 0, 1, 0, 5, 0, 1, 0, 7, 2, 2, 0, 9, 0, 0, 9, 10, 20, 1, 1, 2, 0, 1, 0, 11, 0, 1];
    vec![requests.to_vec(), [&[1, 0, 2, (body.len() / 4) as u8, 1], &body[..]].concat()]
}

fuzz_target!(init: dazzle_fuzz::seeds(seeds), |input: &[u8]| run(input));
