//! Danger: the kernel refuses a reply of a wrong length and leaves its caller waiting; a field in the wrong place it
//! believes. The bytes here were written out by hand from fuse.h; the same forms were accepted by Linux 6.18.
#![cfg(target_endian = "little")]

use std::time::Duration;

use bytes::Bytes;
use fuse::attributes::{Attributes, Device, Entry, Opened, Space};
use fuse::directory::{DirectoryBuffer, DirectoryEntry};
use fuse::notify::{Notification, Pages};
use fuse::operation::{CopyReply, Handle, Lock, LockKind, NodeId, Time, Unique};
use fuse::{Errno, Frame, abi, reply};

use crate::captured::bytes;

const UNIQUE: Unique = Unique(0x0102);
/// `unique` and an `error` of none, as they stand in a header.
const FINE: &str = "00000000 0201000000000000";

const ATTRIBUTES: Attributes = Attributes {
    inode: 0x11,
    size: 0x22,
    blocks: 0x33,
    accessed: Time { seconds: 0x44, nanoseconds: 0x77 },
    modified: Time { seconds: -1, nanoseconds: 0x88 },
    changed: Time { seconds: 0x66, nanoseconds: 0x99 },
    mode: 0o100644,
    links: 0xaa,
    uid: 0xbb,
    gid: 0xcc,
    device: Device { major: 259, minor: 300 },
    block_size: 0x1000,
};
const ATTRIBUTES_BYTES: &str = "1100000000000000 2200000000000000 3300000000000000 4400000000000000 ffffffffffffffff \
    6600000000000000 77000000 88000000 99000000 a4810000 aa000000 bb000000 cc000000 2c031100 00100000 00000000";

const ENTRY: Entry = Entry {
    node: NodeId(0x11),
    generation: 0x12,
    attributes: ATTRIBUTES,
    name_valid: Duration::new(0x13, 0x15),
    attributes_valid: Duration::new(0x14, 0x16),
};
const ENTRY_BYTES: &str = "1100000000000000 1200000000000000 1300000000000000 1400000000000000 15000000 16000000";

#[track_caller]
fn assert_reads(frame: &Frame, expected: &[&str]) {
    let expected = bytes(&expected.concat());
    assert_eq!(frame.to_bytes(), expected, "{:02x?}", frame.to_bytes());
    assert_eq!(frame.size(), expected.len());
    assert_eq!(u32::from_le_bytes(frame.head()[..4].try_into().expect("four bytes")) as usize, expected.len());
}

#[test]
fn errors_and_nothing() {
    assert_reads(&reply::error(UNIQUE, Errno::ENOENT), &["10000000 feffffff 0201000000000000"]);
    assert_reads(&reply::done(UNIQUE), &["10000000", FINE]);
    assert_eq!(Errno::new(512), Errno::EIO, "the kernel's private numbers never leave it");
    assert_eq!(Errno::new(-2), Errno::EIO);
    assert_eq!(Errno::new(39), Errno::ENOTEMPTY);
}

#[test]
fn entries_attributes_and_open_files() {
    assert_reads(&reply::entry(UNIQUE, &ENTRY), &["90000000", FINE, ENTRY_BYTES, ATTRIBUTES_BYTES]);
    let absent = reply::entry(UNIQUE, &Entry::absent(Duration::from_secs(5))).to_bytes();
    assert_eq!((absent.len(), absent[16], absent[32]), (144, 0, 5));
    let valid = Duration::new(1, 2);
    let head = ["78000000", FINE, "0100000000000000 02000000 00000000", ATTRIBUTES_BYTES];
    assert_reads(&reply::attributes(UNIQUE, &ATTRIBUTES, valid), &head);
    let opened = Opened { handle: Handle(7), flags: abi::fopen::KEEP_CACHE, backing: -1 };
    let opened_bytes = "0700000000000000 02000000 ffffffff";
    assert_reads(&reply::opened(UNIQUE, &opened), &["20000000", FINE, opened_bytes]);
    let created = ["a0000000", FINE, ENTRY_BYTES, ATTRIBUTES_BYTES, opened_bytes];
    assert_reads(&reply::created(UNIQUE, &ENTRY, &opened), &created);
}

#[test]
fn statx_has_the_time_of_birth() {
    let birth = Time { seconds: 0x55, nanoseconds: 0x56 };
    let zeroes = "00".repeat(8 + 14 * 8);
    let stat = [
        "30010000",
        FINE,
        "0100000000000000 02000000 00000000 0000000000000000 0000000000000000",
        "ff0f0000 00100000 0000000000000000 aa000000 bb000000 cc000000 a481 0000",
        "1100000000000000 2200000000000000 3300000000000000 0000000000000000",
        "4400000000000000 77000000 00000000 5500000000000000 56000000 00000000",
        "6600000000000000 99000000 00000000 ffffffffffffffff 88000000 00000000",
        "03010000 2c010000",
        &zeroes,
    ];
    assert_reads(&reply::statx(UNIQUE, &ATTRIBUTES, Some(birth), Duration::new(1, 2)), &stat);
    let without = reply::statx(UNIQUE, &ATTRIBUTES, None, Duration::ZERO).to_bytes();
    assert_eq!(without[48..52], [0xff, 0x07, 0, 0]);
}

#[test]
fn data_is_referred_to_and_not_copied() {
    let pieces = vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"de")];
    let frame = reply::data(UNIQUE, pieces.clone());
    assert_reads(&frame, &["15000000", FINE, "6162636465"]);
    assert_eq!(frame.slices().count(), 3, "an empty piece takes no slot of writev");
    assert_eq!(frame.payload()[0].as_ptr(), pieces[0].as_ptr());
}

#[test]
fn more_pieces_than_writev_takes_are_joined() {
    let frame = reply::data(UNIQUE, vec![Bytes::from_static(b"x"); 1023]);
    assert_eq!((frame.slices().count(), frame.size()), (1024, 1039));
    let frame = reply::data(UNIQUE, vec![Bytes::from_static(b"x"); 1024]);
    assert_eq!((frame.slices().count(), frame.size()), (2, 1040));
}

#[test]
fn counts_offsets_and_locks() {
    assert_reads(&reply::written(UNIQUE, 5), &["18000000", FINE, "05000000 00000000"]);
    assert_reads(&reply::copied(UNIQUE, 5, CopyReply::Narrow), &["18000000", FINE, "05000000 00000000"]);
    let copied = reply::copied(UNIQUE, 1 << 33, CopyReply::Wide);
    assert_reads(&copied, &["18000000", FINE, "0000000002000000"]);
    assert_reads(&reply::attribute_size(UNIQUE, 6), &["18000000", FINE, "06000000 00000000"]);
    assert_reads(&reply::offset(UNIQUE, 7), &["18000000", FINE, "0700000000000000"]);
    assert_reads(&reply::block(UNIQUE, 8), &["18000000", FINE, "0800000000000000"]);
    assert_reads(&reply::events(UNIQUE, 9), &["18000000", FINE, "09000000 00000000"]);
    let ioctl = reply::ioctl(UNIQUE, -1, Bytes::from_static(b"out"));
    assert_reads(&ioctl, &["23000000", FINE, "ffffffff 00000000 00000000 00000000 6f7574"]);
    let lock = Lock { start: 1, end: 2, kind: LockKind::Write, pid: 3 };
    let lock_bytes = "0100000000000000 0200000000000000 01000000 03000000";
    assert_reads(&reply::lock(UNIQUE, &lock), &["28000000", FINE, lock_bytes]);
}

#[test]
fn space_is_told_in_blocks() {
    let space = Space {
        block_size: 0x1000,
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        inodes: 4,
        inodes_free: 5,
        name_bytes_max: 255,
    };
    let numbers = "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000";
    let rest = ["00100000 ff000000 00100000 00000000", &"00".repeat(24)].concat();
    assert_reads(&reply::space(UNIQUE, &space), &["60000000", FINE, numbers, &rest]);
}

#[test]
fn a_listing_is_padded_and_never_longer_than_asked() {
    let entry = |name| DirectoryEntry { inode: 9, next: 1, mode: 0o40755, name };
    let mut listing = DirectoryBuffer::new(64);
    assert!(listing.push(&entry(b"abc")));
    assert!(listing.push(&entry(b"12345678")));
    assert!(!listing.push(&entry(b"x")), "exactly full");
    let first = "0900000000000000 0100000000000000 03000000 04000000 6162630000000000";
    let second = "0900000000000000 0100000000000000 08000000 04000000 3132333435363738";
    assert_reads(&reply::listing(UNIQUE, listing), &["50000000", FINE, first, second]);

    let mut listing = DirectoryBuffer::new(63);
    assert!(listing.push(&entry(b"abc")));
    assert!(!listing.push(&entry(b"12345678")));
    assert!(listing.is_full());
    assert!(!listing.push(&entry(b"x")), "a shorter one must not overtake");
    assert_eq!(listing.into_bytes().len(), 32);
    assert!(!DirectoryBuffer::new(0).push(&entry(b"x")));
}

#[test]
fn a_listing_with_attributes_carries_entries() {
    let entry = |name| DirectoryEntry { inode: 0x11, next: 2, mode: 0o100644, name };
    let mut listing = DirectoryBuffer::new(160 * 2);
    assert!(listing.push_plus(&entry(b"."), &Entry::default()));
    assert!(listing.push_plus(&entry(b"file"), &ENTRY));
    assert!(!listing.push_plus(&entry(b"other"), &ENTRY));
    let names = ["1100000000000000 0200000000000000", " 01000000 08000000 2e00000000000000"].concat();
    let name = "1100000000000000 0200000000000000 04000000 08000000 66696c6500000000";
    let expected = ["50010000", FINE, &"00".repeat(128), &names, ENTRY_BYTES, ATTRIBUTES_BYTES, name];
    assert_reads(&reply::listing(UNIQUE, listing), &expected);
}

#[test]
#[should_panic(expected = "no FORGET")]
fn a_dot_is_never_a_lookup() {
    let dot = DirectoryEntry { inode: 1, next: 1, mode: 0o40755, name: b"." };
    let _ = DirectoryBuffer::new(4096).push_plus(&dot, &ENTRY);
}

#[test]
fn notifications_are_replies_to_nobody() {
    const NOBODY: &str = "0000000000000000";
    let (parent, child, name) = (NodeId(1), NodeId(2), Bytes::from_static(b"ab"));
    let inode = |pages| Notification::InvalidateInode { node: child, pages }.encode();
    let head = ["28000000 02000000", NOBODY, "0200000000000000"];
    assert_reads(&inode(Pages::None), &[&head[..], &["ffffffffffffffff 0000000000000000"]].concat());
    assert_reads(&inode(Pages::From(16)), &[&head[..], &["1000000000000000 0000000000000000"]].concat());
    let range = Pages::Range { offset: 16, length: 4 };
    assert_reads(&inode(range), &[&head[..], &["1000000000000000 0400000000000000"]].concat());
    let nothing = Pages::Range { offset: 16, length: 0 };
    assert_eq!(inode(nothing), inode(Pages::None), "to the kernel a length of 0 would mean everything");

    let entry = Notification::InvalidateEntry { parent, name: name.clone() }.encode();
    assert_reads(&entry, &["23000000 03000000", NOBODY, "0100000000000000 02000000 00000000 616200"]);
    let expire = Notification::ExpireEntry { parent, name: name.clone() }.encode();
    assert_reads(&expire, &["23000000 03000000", NOBODY, "0100000000000000 02000000 01000000 616200"]);
    let delete = Notification::Delete { parent, child, name: name.clone() }.encode();
    let ids = "0100000000000000 0200000000000000 02000000 00000000 616200";
    assert_reads(&delete, &["2b000000 06000000", NOBODY, ids]);

    let store = Notification::Store { node: child, offset: 8, pieces: vec![name.clone(), name] }.encode();
    let body = "0200000000000000 0800000000000000 04000000 00000000 61626162";
    assert_reads(&store, &["2c000000 04000000", NOBODY, body]);
    let retrieve = Notification::Retrieve { unique: UNIQUE, node: child, offset: 8, size: 9 }.encode();
    let body = "0201000000000000 0200000000000000 0800000000000000 09000000 00000000";
    assert_reads(&retrieve, &["30000000 05000000", NOBODY, body]);
    let poll = Notification::Poll { kernel_handle: 3 }.encode();
    assert_reads(&poll, &["18000000 01000000", NOBODY, "0300000000000000"]);
    assert_reads(&Notification::Resend.encode(), &["10000000 07000000", NOBODY]);
    assert_reads(&Notification::IncrementEpoch.encode(), &["10000000 08000000", NOBODY]);
    let prune = Notification::Prune { nodes: vec![parent, child] }.encode();
    let body = "02000000 00000000 0000000000000000 0100000000000000 0200000000000000";
    assert_reads(&prune, &["30000000 09000000", NOBODY, body]);
}

#[test]
fn device_numbers_survive_their_encoding() {
    for (major, minor) in [(0, 0), (8, 1), (259, 300), (0xfff, 0xf_ffff), (1, 0x1_0000)] {
        let device = Device { major, minor };
        assert_eq!(Device::decode(device.encode()), device);
    }
}
