//! Danger: a flag agreed on by mistake changes what the kernel does behind our back (dirty pages, stale pages, skipped
//! opens), and nothing fails until data are wrong.
#![cfg(target_endian = "little")]

use fuse::abi::init;
use fuse::negotiate::*;
use fuse::operation::Unique;
use fuse::{Dialect, Operation, Request};

use crate::captured::{self, bytes};

/// What Linux 6.18 offers.
fn offer() -> Offer {
    let (_, raw) = captured::requests().into_iter().find(|(name, _)| *name == "init").expect("captured");
    let Operation::Init(offer) = Request::parse(raw, Dialect::default()).expect("the kernel's own").operation else {
        panic!("not INIT");
    };
    offer
}

fn session(offer: &Offer, wishes: &Wishes) -> Session {
    let Handshake::Agreed(session) = negotiate(offer, wishes) else { panic!("no agreement") };
    session
}

#[test]
fn linux_6_18_offers_all_that_always_applies() {
    let offer = offer();
    assert_eq!((offer.major, offer.minor, offer.read_ahead_bytes_max), (7, 45, 128 << 10));
    let session = session(&offer, &Wishes::default());
    let wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::MAX_PAGES
        | init::PARALLEL_DIROPS
        | init::INIT_EXT
        | init::EXPORT_SUPPORT
        | init::POSIX_LOCKS
        | init::FLOCK_LOCKS
        | init::POSIX_ACL
        | init::DONT_MASK
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT
        | init::CREATE_SUPP_GROUP
        | init::DIRECT_IO_ALLOW_MMAP
        | init::AUTO_INVAL_DATA
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::CACHE_SYMLINKS
        | init::NO_OPENDIR_SUPPORT
        | init::HAS_EXPIRE_ONLY
        | init::HAS_RESEND;
    assert_eq!(session.flags, InitFlags(wanted));
    assert!(session.dialect().setxattr_extended && session.can_expire() && session.can_resend());
    assert!(session.can_increment_epoch() && session.can_prune() && session.can_skip_opendir());
}

#[test]
fn a_lone_client_lets_the_kernel_keep_its_pages() {
    let alone = session(&offer(), &Wishes { alone: true, ..Wishes::default() }).flags;
    assert!(alone.contains(init::EXPLICIT_INVAL_DATA) && !alone.contains(init::AUTO_INVAL_DATA));
    let among_others = session(&offer(), &Wishes::default()).flags;
    assert!(among_others.contains(init::AUTO_INVAL_DATA) && !among_others.contains(init::EXPLICIT_INVAL_DATA));
}

#[test]
fn what_would_break_coherence_is_never_taken() {
    let everything = Offer { flags: InitFlags(u64::MAX), ..offer() };
    let wishes = Wishes { io_uring: true, passthrough: true, ..Wishes::default() };
    let flags = session(&everything, &wishes).flags;
    for unwanted in [
        init::WRITEBACK_CACHE,
        init::ASYNC_DIO,
        init::ATOMIC_O_TRUNC,
        init::EXPLICIT_INVAL_DATA,
        init::NO_OPEN_SUPPORT,
        init::ABORT_ERROR,
        init::HANDLE_KILLPRIV,
        init::SECURITY_CTX,
        init::HAS_INODE_DAX,
        init::MAP_ALIGNMENT,
        init::REQUEST_TIMEOUT,
        init::ALLOW_IDMAP,
        init::NO_EXPORT_SUPPORT,
    ] {
        assert!(!flags.contains(unwanted), "{unwanted:#x}");
    }
    assert!(flags.contains(init::OVER_IO_URING | init::PASSTHROUGH));
}

#[test]
fn the_reply_has_the_bytes_linux_reads() {
    let frame = session(&offer(), &Wishes::default()).reply(Unique(2));
    let expected = bytes(
        "50000000 00000000 0200000000000000 \
         07000000 2d000000 00001000 7374d471 4000 3000 00001000 01000000 0001 0000 9c000000 00000000 0000",
    );
    let mut expected = expected.to_vec();
    expected.resize(80, 0);
    assert_eq!(frame.to_bytes(), expected, "{:02x?}", frame.to_bytes());
    let passthrough = Wishes { passthrough: true, ..Wishes::default() };
    let frame = session(&offer(), &passthrough).reply(Unique(2)).to_bytes();
    assert_eq!((frame[48], frame[52]), (0xbc, 1), "passthrough without a stack depth is off");
}

#[test]
fn an_older_kernel_gets_less() {
    let old = Offer { minor: 31, flags: InitFlags(0), ..offer() };
    let session = session(&old, &Wishes::default());
    assert_eq!((session.minor, session.request_bytes_max), (31, 128 << 10), "32 pages without MAX_PAGES");
    assert!(!session.dialect().setxattr_extended && !session.can_expire() && !session.can_prune());
}

#[test]
fn requests_are_whole_pages() {
    let bytes = |request_bytes_max| {
        let wishes = Wishes { request_bytes_max, ..Wishes::default() };
        session(&offer(), &wishes).request_bytes_max
    };
    assert_eq!(bytes(0), 4096);
    assert_eq!(bytes(10_000), 8192);
    assert_eq!(bytes(u32::MAX), 65_535 * 4096);
}

#[test]
fn versions_that_do_not_meet() {
    let newer = Offer { major: 8, minor: 0, ..offer() };
    assert_eq!(negotiate(&newer, &Wishes::default()), Handshake::Again);
    assert_eq!(again(Unique(1)).to_bytes()[16..24], [7, 0, 0, 0, 45, 0, 0, 0]);
    for (major, minor) in [(6, 99), (7, 30), (0, 0)] {
        let older = Offer { major, minor, ..offer() };
        assert_eq!(negotiate(&older, &Wishes::default()), Handshake::Refused);
    }
    assert_eq!(refused(Unique(1)).to_bytes()[4..8], (-71i32).to_le_bytes());
}
