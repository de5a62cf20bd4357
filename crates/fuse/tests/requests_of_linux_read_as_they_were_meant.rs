//! Danger: a field read from the wrong place parses without complaint and corrupts files. So these requests are the
//! kernel's own, written for system calls whose arguments are known (`captured/requests.txt`).
#![cfg(target_endian = "little")]

use bytes::Bytes;
use fuse::operation::*;
use fuse::request::Reason;
use fuse::{Dialect, Extensions, Request};

use crate::captured::{self, bytes};

const EXTENDED: Dialect = Dialect { setxattr_extended: true };
const OWNER: LockOwner = LockOwner(0x80a8_76f7_6a7a_464d);
const FILE: Handle = Handle(1002);
const ROOT: Handle = Handle(1001);

fn request(name: &str) -> Request {
    let (_, bytes) = captured::requests().into_iter().find(|(known, _)| *known == name).expect("a captured request");
    Request::parse(bytes, EXTENDED).expect("the kernel's own")
}

fn operation(name: &str) -> Operation {
    request(name).operation
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn a_header_names_request_inode_and_caller() {
    let lookup = request("lookup");
    assert_eq!((lookup.unique, lookup.node), (Unique(8), NodeId::ROOT));
    assert_eq!((lookup.uid, lookup.gid, lookup.pid), (0, 0, 0x10c1));
    assert_eq!(lookup.operation, Operation::Lookup { name: text("a") });
    assert!(!lookup.is_resent());
    let create = request("create_with_group");
    assert_eq!((create.uid, create.gid), (5, 5));
}

#[test]
fn a_request_sent_again_says_so() {
    let (_, lookup) = captured::requests().swap_remove(0);
    let mut again = lookup.to_vec();
    again[15] |= 0x80;
    let again = Request::parse(again.into(), EXTENDED).expect("still a request");
    assert!(again.is_resent());
    assert_eq!(again.unique, Unique(8 | 1 << 63), "the reply must echo the bit");
}

#[test]
fn operations_on_names() {
    assert_eq!(operation("mkdir"), Operation::Mkdir { name: text("sub"), mode: 0o755, umask: 0o22 });
    assert_eq!(operation("symlink"), Operation::Symlink { name: text("l"), target: text("a") });
    assert_eq!(operation("readlink"), Operation::Readlink);
    let device = 259 << 8 | 300 & 0xff | (300 & !0xff) << 12;
    assert_eq!(operation("mknod"), Operation::Mknod { name: text("dev"), mode: 0o20600, device, umask: 0o22 });
    assert_eq!(operation("unlink"), Operation::Unlink { name: text("file-0000") });
    assert_eq!(operation("rmdir"), Operation::Rmdir { name: text("d") });
    assert_eq!(operation("link"), Operation::Link { source: NodeId(2), name: text("b") });
    let plain = Operation::Rename { name: text("b"), new_parent: NodeId(4), new_name: text("c"), flags: 0 };
    assert_eq!(operation("rename"), plain);
    let no_replace = Operation::Rename { name: text("a"), new_parent: NodeId(1), new_name: text("a2"), flags: 1 };
    assert_eq!(operation("rename2"), no_replace);
}

#[test]
fn forgets_count_lookups() {
    assert_eq!((request("forget").node, operation("forget")), (NodeId(307), Operation::Forget { lookups: 1 }));
    let forgets = vec![Forget { node: NodeId(7), lookups: 2 }, Forget { node: NodeId(8), lookups: 2 }];
    assert_eq!(operation("batch_forget"), Operation::BatchForget { forgets });
}

#[test]
fn creating_tells_mode_and_umask_apart() {
    let create = Create { name: text("a"), open_flags: 0o100102, mode: 0o100640, umask: 0o22 };
    assert_eq!(operation("create"), Operation::Create(create));
    let tmpfile = Create { name: text("/"), open_flags: 0o20300002, mode: 0o100777, umask: 0o22 };
    assert_eq!(operation("tmpfile"), Operation::Tmpfile(tmpfile));
}

#[test]
fn the_group_that_decides_about_set_group_id_comes_with_every_creation() {
    for name in ["create_with_group", "mkdir_with_group", "mknod_with_group", "symlink_with_group"] {
        assert_eq!(request(name).extensions.groups, [77], "{name}");
    }
    assert_eq!(request("create").extensions, Extensions::default());
    assert_eq!(operation("symlink_with_group"), Operation::Symlink { name: text("s"), target: text("x") });
}

#[test]
fn attributes_change_only_where_a_flag_says_so() {
    assert_eq!(operation("getattr"), Operation::Getattr { handle: None });
    let chmod = SetAttributes { mode: Some(0o100600), ..SetAttributes::default() };
    assert_eq!(operation("setattr"), Operation::Setattr(chmod));
    assert_eq!(operation("statx"), Operation::Statx { handle: None, flags: 0, mask: 0xfff });
}

#[test]
fn a_payload_is_a_slice_of_its_request() {
    let (_, raw) = captured::requests().into_iter().find(|(name, _)| *name == "write").expect("captured");
    let Operation::Write(write) = Request::parse(raw.clone(), EXTENDED).expect("the kernel's own").operation else {
        panic!("not a write");
    };
    assert_eq!(write.data.as_ptr(), raw[fuse::device::PAYLOAD_OFFSET..].as_ptr(), "copied");
    let expected = Write {
        handle: FILE,
        offset: 0,
        data: text("hello world"),
        lock_owner: None,
        open_flags: 0o100002,
        from_page_cache: false,
        kill_suidgid: false,
    };
    assert_eq!(write, expected);
}

#[test]
fn reading_and_listing() {
    let big = Read { handle: Handle(1003), offset: 0, size: 131_072, lock_owner: None, open_flags: 0o100000 };
    assert_eq!(operation("read"), Operation::Read(big));
    let list = Read { handle: ROOT, offset: 0, size: 32_768, lock_owner: None, open_flags: 0o304000 };
    assert_eq!(operation("readdirplus"), Operation::Readdirplus(list));
    assert_eq!(operation("readdir"), Operation::Readdir(Read { offset: 7, ..list }));
}

#[test]
fn opening_and_closing() {
    assert_eq!(operation("open"), Operation::Open { open_flags: 0o100000 });
    assert_eq!(operation("opendir"), Operation::Opendir { open_flags: 0o304000 });
    assert_eq!(operation("flush"), Operation::Flush { handle: FILE, lock_owner: OWNER });
    assert_eq!(operation("fsync"), Operation::Fsync { handle: FILE, data_only: false });
    assert_eq!(operation("fsyncdir"), Operation::Fsyncdir { handle: ROOT, data_only: false });
    let release = Release { handle: FILE, open_flags: 0o100002, flush: false, unlock_flock: None };
    assert_eq!(operation("release"), Operation::Release(release));
    let directory = Release { handle: ROOT, open_flags: 0o304000, ..release };
    assert_eq!(operation("releasedir"), Operation::Releasedir(directory));
    assert_eq!(operation("statfs"), Operation::Statfs);
}

#[test]
fn extended_attributes_in_both_lengths() {
    let set = Operation::Setxattr { name: text("user.k"), value: text("value"), flags: 0, kill_sgid: false };
    assert_eq!(operation("setxattr"), set);
    // The structure before 7.33 ends after the flags.
    let short = bytes(
        "3c000000 15000000 0100000000000000 0200000000000000 00000000 00000000 00000000 0000 0000 \
         05000000 01000000 757365722e6b00 76616c7565",
    );
    let short = Request::parse(short, Dialect::default()).expect("a well-formed request").operation;
    let create = Operation::Setxattr { name: text("user.k"), value: text("value"), flags: 1, kill_sgid: false };
    assert_eq!(short, create);
    assert_eq!(operation("getxattr"), Operation::Getxattr { name: text("security.capability"), size: 0 });
    assert_eq!(operation("listxattr"), Operation::Listxattr { size: 256 });
    assert_eq!(operation("removexattr"), Operation::Removexattr { name: text("user.k") });
}

#[test]
fn locks_of_both_families() {
    let whole = Lock { start: 0, end: i64::MAX as u64, kind: LockKind::Write, pid: 0 };
    let ask = LockRequest { handle: FILE, owner: OWNER, lock: whole, family: LockFamily::Posix };
    assert_eq!(operation("getlk"), Operation::Getlk(ask));
    let range = Lock { start: 3, end: 7, kind: LockKind::Write, pid: 0x10c1 };
    assert_eq!(operation("setlk"), Operation::Setlk(LockRequest { lock: range, ..ask }));
    let shared = Lock { kind: LockKind::Read, pid: 0x10c1, ..whole };
    let owner = LockOwner(0x013f_a6cc_bbdd_7a11);
    let flock = LockRequest { owner, lock: shared, family: LockFamily::Flock, ..ask };
    assert_eq!(operation("setlkw"), Operation::Setlkw(flock));
    assert_eq!(operation("interrupt"), Operation::Interrupt { target: Unique(0xcc2) });
}

#[test]
fn the_rarer_operations() {
    let zero = Operation::Fallocate { handle: FILE, offset: 0, length: 8192, mode: 0 };
    assert_eq!(operation("fallocate"), zero);
    assert_eq!(operation("lseek"), Operation::Lseek { handle: FILE, offset: 3, whence: 3 });
    let copy = CopyFileRange {
        source: FILE,
        source_offset: 0,
        target_node: NodeId(308),
        target: Handle(1308),
        target_offset: 0,
        length: 100,
        flags: 0,
        reply: CopyReply::Wide,
    };
    assert_eq!(operation("copy_file_range_64"), Operation::CopyFileRange(copy));
    let poll = Operation::Poll { handle: FILE, kernel_handle: 309, events: 0x1f, schedule_notify: true };
    assert_eq!(operation("poll"), poll);
    assert_eq!(operation("notify_reply"), Operation::NotifyReply { offset: 0, data: text("STORED!!") });
    let Operation::Ioctl(ioctl) = operation("ioctl") else { panic!("not an ioctl") };
    assert_eq!((ioctl.handle, ioctl.command, ioctl.data.len(), ioctl.output_size), (Handle(1003), 0x5401, 0, 0));
}

#[test]
fn an_opcode_of_the_future_is_unknown_and_dax_is_refused() {
    let with_opcode = |opcode: u8| {
        let mut bytes =
            bytes("28000000 00000000 0100000000000000 0200000000000000 00000000 00000000 00000000 0000 0000").to_vec();
        bytes[4] = opcode;
        Request::parse(bytes.into(), EXTENDED).map(|request| request.operation)
    };
    assert_eq!(with_opcode(54), Ok(Operation::Unknown { opcode: 54 }));
    assert_eq!(with_opcode(48), Ok(Operation::Mapping));
    assert_eq!(with_opcode(50), Ok(Operation::Syncfs));
    assert_eq!(with_opcode(38), Ok(Operation::Destroy));
}

#[test]
fn security_labels_are_read_and_unknown_extensions_skipped() {
    // A mkdir of "d"; then an extension of type 200; one security context, padded; no security contexts.
    let raw = bytes(
        "72000000 09000000 0100000000000000 0100000000000000 00000000 00000000 00000000 0800 0000 \
         ff010000 12000000 6400 \
         10000000 c8000000 0102030405060708 \
         20000000 01000000 03000000 00000000 73656375726974792e7800 616263 0000 \
         10000000 00000000 0000000000000000",
    );
    let request = Request::parse(raw, EXTENDED).expect("well-formed");
    assert_eq!(request.operation, Operation::Mkdir { name: text("d"), mode: 0o777, umask: 0o22 });
    assert_eq!(request.extensions.security.len(), 1);
    assert_eq!(request.extensions.security[0].name, "security.x");
    assert_eq!(request.extensions.security[0].value, "abc");
}

#[test]
fn a_request_in_parts_means_the_same_as_in_one_piece() {
    // The io_uring transport: header, room of 128 bytes for the structure, payload. Here for a WRITE.
    let (_, raw) = captured::requests().into_iter().find(|(name, _)| *name == "write").expect("captured");
    let mut structure = raw[40..80].to_vec();
    structure.resize(128, 0);
    let parts = Request::parse_parts(&raw[..40], structure.into(), raw.slice(80..), EXTENDED);
    assert_eq!(parts, Request::parse(raw, EXTENDED));
}

#[test]
fn what_is_malformed_is_answered_with_eio_unless_nobody_waits() {
    let (_, lookup) = captured::requests().swap_remove(0);
    let short = Request::parse(lookup.slice(..41), EXTENDED).expect_err("shorter than its header says");
    assert_eq!(short.reason, Reason::Length { stated: 42, read: 41 });
    assert_eq!(short.reply().expect("someone waits").to_bytes()[..], bytes("10000000 fbffffff 0800000000000000"));
    let slash =
        bytes("2c000000 01000000 0800000000000000 0100000000000000 00000000 00000000 00000000 0000 0000 2f2e2e00");
    assert_eq!(Request::parse(slash, EXTENDED).expect_err("a path").reason, Reason::Slash);
    let forget = bytes("28000000 02000000 0800000000000000 0100000000000000 00000000 00000000 00000000 0000 0000");
    let forget = Request::parse(forget, EXTENDED).expect_err("no count");
    assert_eq!((forget.reason, forget.reply()), (Reason::Short, None));
    assert_eq!(Request::parse(Bytes::new(), EXTENDED).expect_err("nothing").reply(), None);
}
