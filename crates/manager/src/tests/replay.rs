//! What a crash leaves: the journal and images give back every record, deltas are applied once whoever sends them again,
//! and orphans that nobody holds open any more are freed.

use bytes::Bytes;
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Kind, NewInode, SetAttributes, Time};
use protocol::id::{InodeId, LogId, StripeNumber};
use protocol::manager::{Answer, CloneRange, Deltas, ManagerError, ManagerRequest, Moved};

use super::Dice;
use super::bench::{Bench, SLOTS};
use super::truth;
use crate::ops::{Done, Operation, Told};

fn file(bench: &mut Bench, name: &'static [u8]) -> InodeId {
    let new =
        NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target: Bytes::new(), caller: Caller::default() };
    let request = ManagerRequest::Create { directory: InodeId::ROOT, name: Bytes::from_static(name), new, open: true };
    match bench.ask(request) {
        Ok(Answer::Entry(attributes, _)) => attributes.inode,
        other => panic!("{other:?}"),
    }
}

fn deltas(inode: InodeId, position: u32, count: u32) -> Deltas {
    let extent = |index: u32| {
        let address =
            LogAddress { log: LogId(5), stripe: StripeNumber(u64::from(position)), offset: index * 40, length: 8 };
        Delta { inode, change: Change::Extent { offset: u64::from(index % 60) * 8, address } }
    };
    Deltas { log: LogId(5), position: Position::new(StripeNumber(9), position), list: (0..count).map(extent).collect() }
}

fn stored(bench: &mut Bench, inode: InodeId) -> u64 {
    match bench.ask(ManagerRequest::Attributes(inode)) {
        Ok(Answer::Attributes(attributes)) => attributes.stored,
        other => panic!("{other:?}"),
    }
}

#[test]
fn deltas_count_once_however_often_they_come() {
    let mut bench = Bench::new();
    let inode = file(&mut bench, b"file");
    // More than one step takes.
    bench.ask(ManagerRequest::Deltas(deltas(inode, 1, 200))).unwrap();
    assert_eq!(stored(&mut bench, inode), 480);
    let set = SetAttributes { size: Some(80), ..SetAttributes::default() };
    bench.ask(ManagerRequest::SetAttributes(inode, set)).unwrap();
    let before = bench.records();
    bench.crash();
    bench.ask(ManagerRequest::Deltas(deltas(inode, 1, 200))).unwrap();
    assert_eq!(bench.records(), before, "the truncation came after these deltas");
    bench.ask(ManagerRequest::Deltas(deltas(inode, 2, 3))).unwrap();
    bench.ask(ManagerRequest::Deltas(deltas(inode, 1, 200))).unwrap();
    assert_eq!(stored(&mut bench, inode), 80);
    truth::check(&bench);
    let known = [LogId(5)].into();
    let before = bench.records();
    bench.run(Operation::Forget(inode.slot(), LogId(9), known)).unwrap();
    assert_eq!(bench.records(), before);
    bench.run(Operation::Forget(inode.slot(), LogId(9), Default::default())).unwrap();
    assert_eq!(bench.records().len(), before.len() - 1);
}

#[test]
fn an_orphan_is_found_and_freed_after_a_crash() {
    let mut bench = Bench::new();
    let inode = file(&mut bench, b"file");
    bench.ask(ManagerRequest::Deltas(deltas(inode, 1, 200))).unwrap();
    bench.ask(ManagerRequest::Unlink { directory: InodeId::ROOT, name: Bytes::from_static(b"file") }).unwrap();
    assert_eq!(stored(&mut bench, inode), 480, "it is open");
    let mut dice = Dice::new(1);
    bench.image_some(&mut dice);
    bench.crash();
    for slot in SLOTS {
        let Ok(Done::Told(Told::Orphans(orphans))) = bench.run(Operation::Orphans(slot)) else { panic!("told") };
        for orphan in orphans {
            bench.run(Operation::Reap(orphan)).unwrap();
        }
    }
    assert!(bench.ask(ManagerRequest::Attributes(inode)).is_err());
    truth::check(&bench);
    let Ok(Done::Answer(Answer::Census(inodes, bytes))) = bench.run(Operation::Census(SLOTS[0])) else {
        panic!("counted")
    };
    assert_eq!((inodes, bytes), (1, 0));
}

/// It may have lost a part of its bytes already, and its opener would read holes.
#[test]
fn what_is_being_freed_gets_no_new_user() {
    let mut bench = Bench::new();
    let inode = file(&mut bench, b"file");
    let (open, close) = (ManagerRequest::Open { inode, keep: None }, ManagerRequest::Close(inode));
    let link = ManagerRequest::Link { inode, directory: InodeId::ROOT, name: Bytes::from_static(b"again") };
    bench.ask(ManagerRequest::Deltas(deltas(inode, 1, 200))).unwrap();
    bench.ask(ManagerRequest::Unlink { directory: InodeId::ROOT, name: Bytes::from_static(b"file") }).unwrap();
    bench.ask(open.clone()).expect("it is open");
    bench.step(&Operation::Asked(close)).expect("it frees the first extents");
    assert!((1..480).contains(&stored(&mut bench, inode)), "and leaves more");
    assert!(matches!(bench.ask(open), Err(ManagerError::Stale)));
    assert!(matches!(bench.ask(link), Err(ManagerError::Stale)));
    bench.run(Operation::Reap(inode)).unwrap();
    assert!(bench.ask(ManagerRequest::Attributes(inode)).is_err());
    truth::check(&bench);
}

#[test]
fn times_of_deltas_only_go_forward() {
    let mut bench = Bench::new();
    let inode = file(&mut bench, b"file");
    let wrote = |size, time| Delta { inode, change: Change::Wrote { size, time: Time(time) } };
    let list = vec![wrote(100, 9_000_000_000), wrote(50, 7)];
    let position = Position::new(StripeNumber(0), 1);
    bench.ask(ManagerRequest::Deltas(Deltas { log: LogId(5), position, list })).unwrap();
    let Ok(Answer::Attributes(attributes)) = bench.ask(ManagerRequest::Attributes(inode)) else { panic!("gone") };
    assert_eq!((attributes.size, attributes.modified), (100, Time(9_000_000_000)));
}

/// Whoever sends it: an address without an end would be a panic, or wrap, wherever it is counted with later.
#[test]
fn an_address_that_has_no_end_is_never_kept() {
    let mut bench = Bench::new();
    let (inode, other) = (file(&mut bench, b"file"), file(&mut bench, b"other"));
    let good = deltas(inode, 1, 1);
    bench.ask(ManagerRequest::Deltas(good.clone())).unwrap();
    let before = stored(&mut bench, inode);
    let Change::Extent { offset, address: old } = good.list[0].change else { panic!("an extent") };
    let endless = LogAddress { offset: u32::MAX, ..old };
    let list = vec![Delta { inode, change: Change::Extent { offset: 1 << 20, address: endless } }];
    bench.ask(ManagerRequest::Deltas(Deltas { position: Position::new(StripeNumber(9), 9), list, ..good })).unwrap();
    let moved = Moved { inode, file_offset: offset, old, new: endless };
    bench.ask(ManagerRequest::Move(vec![moved])).unwrap();
    assert_eq!(stored(&mut bench, inode), before);
    // A shared piece, asked for as if it lay at the end of all files.
    let clone = CloneRange { source: inode, source_offset: 0, target: other, target_offset: 0, length: u64::MAX };
    let grow = SetAttributes { size: Some(offset + u64::from(old.length)), ..SetAttributes::default() };
    bench.ask(ManagerRequest::SetAttributes(inode, grow)).unwrap();
    bench.ask(ManagerRequest::CloneRange(clone)).unwrap();
    let whole = LogAddress { offset: 0, length: u32::MAX, ..old };
    bench.ask(ManagerRequest::Pieces { inode, file_offset: u64::MAX, address: whole }).unwrap();
    truth::check(&bench);
}
