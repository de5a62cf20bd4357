//! What a manager is asked, by whomever.
//!
//! Bytes: whether there is a kill, and a story of requests to a running manager, most of them about few files and names, in
//! every field sometimes anything. Held true:
//! 1. No request breaks a slot: every one is answered, and afterwards an audit finds names a tree, links, stored bytes and
//!    live counts exact.
//! 2. The manager that takes over after a kill finds slots that pass the same audit.
#![no_main]

use bytes::Bytes;
use dazzle_fuzz::feed::Feed;
use host::sim::{Dice, Stop, World};
use host::{Address, Host, NodeId, Port};
use libfuzzer_sys::fuzz_target;
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Kind, Lock, LockFamily, LockOwner, NewInode, SetAttributes, Time};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::manager::{
    CloneRange, Deltas, MANAGER_PORT, ManagerAnswer, ManagerRequest, Moved, Rename, RenameMode, XattrMode,
};
use protocol::token::TokenMode;
use testbed::{Parts, Shape, Site};

const REQUESTS_MAX: usize = 24;

/// Holds a manager to what is said above.
fn run(input: &[u8]) {
    let mut feed = Feed::new(input);
    // A life costs as much as all requests together: not every story has two.
    let is_killed = feed.choice(4) == 3;
    let world = World::new(1);
    let host = world.add_node(NodeId(1));
    world.block_on(async {
        let site = Site::create(&world, &host, Shape::new(1, 0).with_small_stripes()).await;
        let parts = site.start().await;
        for _ in 0..REQUESTS_MAX {
            if feed.is_empty() {
                break;
            }
            let request = request(&mut feed);
            let _ = ask(&world, &host, request).await;
        }
        audit(&parts).await;
        drop(parts);
        if is_killed {
            audit(&site.crash(Stop::Kill, &mut Dice::new(1)).await).await;
        }
    });
    world.end();
}

/// Asks as a node would.
async fn ask(world: &World, host: &Host, request: ManagerRequest) -> Option<ManagerAnswer> {
    let to = Address { node: host.node(), port: Port(MANAGER_PORT) };
    let asking = host.clone();
    let call = world.spawn(host, async move { asking.call::<ManagerRequest, ManagerAnswer>(to, request).await });
    call.await.ok()?.ok()
}

async fn audit(parts: &Parts) {
    let report = parts.manager.audit().await.expect("nothing changes while the audit reads");
    assert!(report.problems.is_empty(), "the audit found {:#?}", report.problems);
}

fn inode(feed: &mut Feed<'_>) -> InodeId {
    match feed.byte() {
        small @ 0..=199 => InodeId(u64::from(small % 8) + 1),
        200..=220 => InodeId::new(SlotId(feed.number() as u16 % 4096), u64::from(feed.choice(4))),
        _ => InodeId(feed.number()),
    }
}

fn name(feed: &mut Feed<'_>) -> Bytes {
    match feed.byte() {
        letter @ 0..=219 => Bytes::copy_from_slice(&[b'a' + letter % 6]),
        220 => Bytes::from(vec![feed.byte(); 256]),
        _ => Bytes::copy_from_slice(feed.run()),
    }
}

/// An address in a stripe of its own: no byte of a log is in two virtual extents, whatever else a client says.
fn address(feed: &mut Feed<'_>) -> LogAddress {
    let stripe = StripeNumber(feed.left() as u64);
    let offset = if feed.choice(4) == 3 { feed.word() } else { feed.choice(3).into() };
    LogAddress { log: LogId(9), stripe, offset, length: feed.word() }
}

fn delta(feed: &mut Feed<'_>) -> Delta {
    let inode = inode(feed);
    let change = match feed.choice(6) {
        0..=2 => Change::Extent { offset: feed.number(), address: address(feed) },
        3 => Change::Inline { bytes: Bytes::copy_from_slice(feed.run()) },
        4 => Change::Wrote { size: feed.number(), time: Time(feed.number() as i64) },
        _ => Change::Read { time: Time(feed.number() as i64) },
    };
    Delta { inode, change }
}

fn new_inode(feed: &mut Feed<'_>) -> NewInode {
    let kinds = [Kind::File, Kind::Directory, Kind::Symlink, Kind::Pipe, Kind::CharacterDevice];
    let kind = kinds[usize::from(feed.choice(5))];
    let target = if kind == Kind::Symlink { Bytes::copy_from_slice(feed.run()) } else { Bytes::new() };
    NewInode { kind, mode: feed.number() as u16, mask: 0o22, device: feed.word(), target, caller: Default::default() }
}

fn lock(feed: &mut Feed<'_>) -> Lock {
    let family = if feed.choice(2) == 0 { LockFamily::Flock } else { LockFamily::Posix };
    let owner = LockOwner { node: 1, owner: feed.choice(3).into() };
    let exclusive = feed.choice(2) == 0;
    Lock { family, owner, pid: 1, exclusive, start: feed.number(), last: feed.number() }
}

fn request(feed: &mut Feed<'_>) -> ManagerRequest {
    let choice = feed.choice(24);
    match choice {
        0..=7 => of_names(feed, choice),
        8..=15 => of_content(feed, choice),
        _ => of_the_rest(feed, choice),
    }
}

fn of_names(feed: &mut Feed<'_>, choice: u8) -> ManagerRequest {
    let (directory, name_) = (inode(feed), name(feed));
    match choice {
        0 | 1 => ManagerRequest::Create { directory, name: name_, new: new_inode(feed), open: feed.choice(2) == 1 },
        2 => ManagerRequest::Link { inode: inode(feed), directory, name: name_ },
        3 => ManagerRequest::Unlink { directory, name: name_ },
        4 => ManagerRequest::RemoveDirectory { directory, name: name_ },
        5 => ManagerRequest::CreateUnnamed { directory, new: new_inode(feed) },
        6 => ManagerRequest::Lookup { directory, name: name_ },
        _ => {
            let modes = [RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange, RenameMode::Whiteout];
            let mode = modes[usize::from(feed.choice(4))];
            let (to_directory, to_name) = (inode(feed), name(feed));
            ManagerRequest::Rename(Rename { from_directory: directory, from_name: name_, to_directory, to_name, mode })
        }
    }
}

fn of_content(feed: &mut Feed<'_>, choice: u8) -> ManagerRequest {
    let file = inode(feed);
    match choice {
        8 | 9 => {
            let position = Position::new(StripeNumber(feed.choice(4).into()), feed.word());
            let list = (0..=feed.choice(4)).map(|_| delta(feed)).collect();
            ManagerRequest::Deltas(Deltas { log: LogId(feed.choice(4).into()), position, list })
        }
        10 => ManagerRequest::Punch { inode: file, offset: feed.number(), length: feed.number() },
        11 => ManagerRequest::Grow { inode: file, size: feed.number() },
        12 => {
            let (source_offset, target_offset, length) = (feed.number(), feed.number(), feed.number());
            ManagerRequest::CloneRange(CloneRange {
                source: file,
                source_offset,
                target: inode(feed),
                target_offset,
                length,
            })
        }
        13 => ManagerRequest::Content { inode: file, offset: feed.number(), length: feed.number() },
        14 => {
            let moved = |feed: &mut Feed<'_>| Moved {
                inode: inode(feed),
                file_offset: feed.number(),
                old: address(feed),
                new: address(feed),
            };
            ManagerRequest::Move((0..=feed.choice(3)).map(|_| moved(feed)).collect())
        }
        _ => ManagerRequest::Pieces { inode: file, file_offset: feed.number(), address: address(feed) },
    }
}

fn of_the_rest(feed: &mut Feed<'_>, choice: u8) -> ManagerRequest {
    let inode = inode(feed);
    match choice {
        16 => {
            let size = (feed.choice(2) == 0).then(|| feed.number());
            let mode = (feed.choice(2) == 0).then(|| feed.number() as u16);
            let set = SetAttributes { size, mode, uid: Some(1), clear_set_id: true, ..SetAttributes::default() };
            ManagerRequest::SetAttributes(inode, set)
        }
        17 => {
            let names = [&b"user.a"[..], b"system.posix_acl_access", b"system.posix_acl_default", feed.run()];
            let name = Bytes::copy_from_slice(names[usize::from(feed.choice(4))]);
            let value = Bytes::copy_from_slice(feed.run());
            ManagerRequest::SetXattr { inode, name, value, mode: XattrMode::Either, clear_set_gid: feed.choice(2) == 0 }
        }
        18 => ManagerRequest::List { directory: inode, after: feed.number(), limit: feed.word(), attributes: true },
        19 => {
            let keep = [None, Some(TokenMode::Read), Some(TokenMode::Write)];
            ManagerRequest::Open { inode, keep: keep[usize::from(feed.choice(3))] }
        }
        20 => ManagerRequest::Close(inode),
        21 => ManagerRequest::Lock { inode, lock: lock(feed), wait: false, ticket: feed.number() },
        22 => ManagerRequest::Unlock { inode, lock: lock(feed) },
        _ => {
            let request = postcard::from_bytes(feed.run()).unwrap_or(ManagerRequest::Why(inode));
            // Who waits for a lock, or for the journal to get somewhere, may wait for ever: nobody else is here.
            match request {
                ManagerRequest::Lock { wait: true, .. } | ManagerRequest::Flush(..) => {
                    ManagerRequest::ListXattrs(inode)
                }
                other => other,
            }
        }
    }
}

/// Stories of requests: a file written and cloned, names that move.
fn seeds() -> Vec<Vec<u8>> {
    let file = [0, 0, 0, 0, 200, 1, 0, 0];
    let directory = [0, 0, 1, 1, 255, 1, 0, 0];
    let written = [8, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 200, 1, 4, 200, 1];
    let cloned = [12, 1, 0, 0, 50, 1];
    let renamed = [7, 0, 0, 0, 0, 0, 3];
    vec![
        [&[3][..], &file, &written, &cloned, &[16, 1, 0, 10, 1]].concat(),
        [&[0][..], &directory, &file, &renamed, &[3, 0, 3], &[4, 0, 1]].concat(),
    ]
}

fuzz_target!(init: dazzle_fuzz::seeds(seeds), |input: &[u8]| run(input));
