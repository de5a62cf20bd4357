//! Flipped bits, foreign disks and full disks.
//!
//! The danger: a panic or a loop over rubbish; a damaged list that forgets fragments or fences without a word; a disk
//! without room that loses what was there.

use std::cell::Cell;
use std::sync::Arc;

use host::Host;
use host::sim::{self, DiskOptions, SimDisk};
use protocol::fragment::Part;
use protocol::id::{FenceEpoch, LogId, StripeNumber, TargetId};
use protocol::storage::{Durability, Room, StorageError, StorageReply, StorageRequest, TargetStat};
use storage::{FormatError, OpenError, Opening, Target, TargetOptions, format};

use crate::model::{self, CLUSTER, ID, OPTIONS, append, fragment_id, fragments, read};

async fn open(host: &Host, disk: &SimDisk) -> Result<Arc<Target>, OpenError> {
    Target::open(host.clone(), disk.plug(), CLUSTER, ID, OPTIONS).await
}

async fn look(host: &Host, disk: &SimDisk) -> Opening {
    Opening::look(host.clone(), disk.plug(), CLUSTER, ID, OPTIONS).await.expect("it can be looked through")
}

async fn stat(target: &Arc<Target>) -> TargetStat {
    match target.serve(StorageRequest::Stat).await {
        Ok(StorageReply::Stat(stat)) => stat,
        other => panic!("{other:?}"),
    }
}

/// Thirty fragments and a fence, all durable.
async fn fill(target: &Arc<Target>) {
    target.serve(StorageRequest::Fence { log: LogId(9), epoch: FenceEpoch(4) }).await.unwrap();
    for stripe in 0..30 {
        let id = fragment_id(LogId(1), stripe, Part::Data(0));
        target.serve(StorageRequest::Append(append(id, 0, 0, 8_000, Durability::Disk))).await.unwrap();
        target.serve(StorageRequest::Append(append(id, 0, 8_000, 9_000, Durability::Disk))).await.unwrap();
    }
}

#[test]
fn a_target_of_others_is_refused_and_unchanged() {
    sim::run(1, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions::default());
        assert_eq!(open(&host, &disk).await.unwrap_err(), OpenError::Unformatted);
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        assert_eq!(format(&disk.plug(), CLUSTER, ID, OPTIONS).await, Err(FormatError::NotEmpty("target")));
        let before = disk.peek("target", 0, 8192);
        let foreign = Target::open(host.clone(), disk.plug(), 43, ID, OPTIONS).await;
        assert_eq!(foreign.unwrap_err(), OpenError::OtherCluster { found: CLUSTER });
        let other = Target::open(host.clone(), disk.plug(), CLUSTER, TargetId(8), OPTIONS).await;
        assert_eq!(other.unwrap_err(), OpenError::OtherTarget { found: ID });
        assert_eq!(disk.peek("target", 0, 8192), before);
        let first = stat(&open(&host, &disk).await.unwrap()).await;
        let again = open(&host, &disk).await.unwrap();
        assert_eq!((first.incarnation, stat(&again).await.incarnation), (1, 2));
        let synced = again.serve(StorageRequest::Sync).await;
        assert!(matches!(synced, Ok(StorageReply::Synced { incarnation: 2 })), "{synced:?}");
    });
}

#[test]
fn a_damaged_list_is_made_anew_from_the_heads() {
    let damaged = Cell::new(0);
    sim::explore(0..40, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 4 << 20, ..DiskOptions::default() });
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let target = open(&host, &disk).await.unwrap();
        fill(&target).await;
        drop(target);
        let mut dice = world.dice();
        for list in ["list.0", "list.1"] {
            let size = disk.plug().open(list).unwrap().size().unwrap();
            for _ in 0..size.min(3) {
                disk.corrupt(list, dice.below(size));
            }
        }
        let opening = look(&host, &disk).await;
        damaged.set(damaged.get() + u32::from(opening.may_have_forgotten()));
        let target = opening.begin().await.unwrap();
        assert_eq!(fragments(&target).await.len(), 30);
        for stripe in 0..30 {
            let id = fragment_id(LogId(1), stripe, Part::Data(0));
            assert_eq!(read(&target, id, 0, 9_000).await.unwrap().len(), 9_000);
        }
    });
    assert!(damaged.get() > 0, "what the list alone knew may be lost, and it says so");
}

#[test]
fn flipped_bits_never_panic() {
    sim::explore(0..150, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 4 << 20, ..DiskOptions::default() });
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let target = open(&host, &disk).await.unwrap();
        fill(&target).await;
        drop(target);
        let mut dice = world.dice();
        for _ in 0..dice.below(60) {
            let space = ["target", "list.0", "list.1", "data", "data", "intake"][dice.below(6) as usize];
            let size = disk.plug().open(space).unwrap().size().unwrap();
            if size > 0 {
                disk.corrupt(space, dice.below(size));
            }
        }
        let Ok(target) = open(&host, &disk).await else { return };
        for fragment in fragments(&target).await {
            let id = fragment.header.id;
            let _ = target.serve(StorageRequest::Read { id, offset: 0, length: 9_000 }).await;
        }
        target.scrub(None, 1000).await.unwrap();
        for stripe in 0..30 {
            let stripes = vec![(LogId(1), StripeNumber(stripe))];
            target.serve(StorageRequest::Delete { stripes }).await.unwrap();
        }
        fill(&target).await;
    });
}

#[test]
fn scrub_names_the_block_that_rotted() {
    sim::run(4, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions::default());
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let target = open(&host, &disk).await.unwrap();
        fill(&target).await;
        // The first fragment lies in the first cell.
        disk.corrupt("data", 8192 + 5000);
        let (damages, last) = target.scrub(None, 1000).await.unwrap();
        assert_eq!(damages.len(), 1);
        assert_eq!((damages[0].blocks.clone(), damages[0].head), (vec![1], false));
        assert_eq!(last, Some(fragment_id(LogId(1), 29, Part::Data(0))));
    });
}

/// Begins fragments of the stripes from `stripe` on, in each kind of room until that is full: the stripes thereafter.
async fn begin_until_full(target: &Arc<Target>, mut stripe: u64) -> Vec<u64> {
    let mut taken = Vec::new();
    for room in [Room::Data, Room::Journal, Room::Clean] {
        loop {
            let id = fragment_id(LogId(1), stripe, Part::Data(0));
            let request = append(id, 0, 0, 100, Durability::Replicated);
            match target.serve(StorageRequest::Append(protocol::storage::Append { room, ..request })).await {
                Ok(_) => stripe += 1,
                Err(StorageError::Full) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        taken.push(stripe);
    }
    taken
}

#[test]
fn a_full_disk_refuses_in_order_and_loses_nothing() {
    sim::run(5, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 5 << 20, ..DiskOptions::default() });
        let options = TargetOptions { journal_permille: 50, clean_permille: 50, ..OPTIONS };
        format(&disk.plug(), CLUSTER, ID, options).await.unwrap();
        let target = Target::open(host.clone(), disk.plug(), CLUSTER, ID, options).await.unwrap();
        let taken = begin_until_full(&target, 0).await;
        let stripe = taken[2];
        assert!(taken[0] < taken[1] && taken[1] < taken[2], "{taken:?}");
        assert_eq!(stat(&target).await.bytes_free, 0);
        // What is there still grows, and what is deleted makes room.
        let id = fragment_id(LogId(1), 0, Part::Data(0));
        target.serve(StorageRequest::Append(append(id, 0, 100, 9_000, Durability::Disk))).await.unwrap();
        let stripes = vec![(LogId(1), StripeNumber(1))];
        target.serve(StorageRequest::Delete { stripes }).await.unwrap();
        let id = fragment_id(LogId(1), stripe, Part::Data(0));
        target.serve(StorageRequest::Append(append(id, 0, 0, 9_000, Durability::Disk))).await.unwrap();
        assert_eq!(read(&target, id, 0, 9_000).await.unwrap().len(), 9_000);
    });
}

/// Whoever deletes must be able to note that, though others' files filled the disk before any writer heard of it.
#[test]
fn of_what_others_leave_on_a_disk_some_is_kept_for_journals_and_cleaners() {
    sim::run(8, async |world, host| {
        let roomy = DiskOptions { capacity_bytes: 20 << 20, ..DiskOptions::default() };
        let disk = world.add_disk(host.node(), "d", roomy);
        let options = TargetOptions { window_cells: 16, ..OPTIONS };
        format(&disk.plug(), CLUSTER, ID, options).await.unwrap();
        let target = Target::open(host.clone(), disk.plug(), CLUSTER, ID, options).await.unwrap();
        let id = fragment_id(LogId(1), 0, Part::Data(0));
        target.serve(StorageRequest::Append(append(id, 0, 0, 100, Durability::Disk))).await.unwrap();
        disk.set_options(DiskOptions { capacity_bytes: 0, ..roomy });
        let taken = begin_until_full(&target, 1).await;
        assert!(0 < taken[0] && taken[0] < taken[1] && taken[1] < taken[2], "{taken:?}");
        disk.set_options(roomy);
        assert!(begin_until_full(&target, taken[2]).await[0] > taken[2], "room that is there again is not used");
    });
}

#[test]
fn a_failed_sync_is_never_forgotten() {
    sim::run(6, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions::default());
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        // A sync of the data, and one of the intake.
        for stored in [0, 100] {
            let target = open(&host, &disk).await.unwrap();
            let id = fragment_id(LogId(1), stored, Part::Data(0));
            let stored = stored as u32;
            target.serve(StorageRequest::Append(append(id, 0, 0, stored, Durability::Disk))).await.unwrap();
            disk.set_faults(host::sim::DiskFaults { syncs: true, ..Default::default() });
            let answer = target.serve(StorageRequest::Append(append(id, 0, stored, 200, Durability::Disk))).await;
            assert!(matches!(answer, Err(StorageError::Failed(_))), "{answer:?}");
            disk.heal();
            let answer = target.serve(StorageRequest::Stat).await;
            assert!(matches!(answer, Err(StorageError::Failed(_))), "{answer:?}");
        }
    });
}

#[test]
fn an_append_that_contradicts_what_is_stored_harms_nothing() {
    sim::run(7, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions::default());
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let target = open(&host, &disk).await.unwrap();
        let [id, other] = [0, 1].map(|stripe| fragment_id(LogId(1), stripe, Part::Data(0)));
        target.serve(StorageRequest::Append(append(id, 0, 0, 7_000, Durability::Disk))).await.unwrap();
        // Over the stored bytes, behind them, and up to a block's end: bytes of another fragment each time.
        for (offset, end) in [(0, 8_000), (7_000, 8_000), (5_000, 8_192), (7_000, 9_000)] {
            let strange = append(other, 0, offset, end, Durability::Disk);
            let strange = protocol::storage::Append { header: model::header(id), ..strange };
            let answer = target.serve(StorageRequest::Append(strange)).await;
            assert!(matches!(answer, Err(StorageError::Refused(_))), "{offset}..{end}: {answer:?}");
        }
        assert_eq!(
            read(&target, id, 0, 7_000).await.unwrap(),
            model::content((id.log, id.stripe), id.part, 0, 0, 7_000)
        );
        drop(target);
        world.crash(host.node(), sim::Stop::Kill);
        let host = world.restart(host.node());
        let target = open(&host, &disk).await.unwrap();
        assert_eq!(fragments(&target).await[0].length, 7_000);
        target.serve(StorageRequest::Append(append(id, 0, 6_000, 9_000, Durability::Disk))).await.unwrap();
        assert_eq!(read(&target, id, 0, 9_000).await.unwrap().len(), 9_000);
    });
}

/// Others' files may have filled the disk when its machine starts, and go later.
#[test]
fn a_target_that_was_opened_on_a_full_disk_takes_the_room_that_comes_later() {
    sim::explore(0..4, async |world, host| {
        let roomy = DiskOptions { capacity_bytes: 8 << 20, ..DiskOptions::default() };
        let disk = world.add_disk(host.node(), "d", roomy);
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        drop(open(&host, &disk).await.unwrap());
        world.crash(host.node(), sim::Stop::Kill);
        let host = world.restart(host.node());
        disk.set_options(DiskOptions { capacity_bytes: 0, ..roomy });
        let target = open(&host, &disk).await.unwrap();
        let ids = [0, 1].map(|stripe| fragment_id(LogId(1), stripe, Part::Data(0)));
        let put = |id| StorageRequest::Append(append(id, 0, 0, 9_000, Durability::Disk));
        assert_eq!(target.serve(put(ids[0])).await.err(), Some(StorageError::Full));
        disk.set_options(roomy);
        target.serve(put(ids[0])).await.unwrap();
        assert_eq!(read(&target, ids[0], 0, 9_000).await.unwrap().len(), 9_000);
        disk.set_options(DiskOptions { capacity_bytes: 16 << 20, ..roomy });
        let Ok(StorageReply::Stat(stat)) = target.serve(StorageRequest::Stat).await else { panic!("it tells") };
        assert!(stat.bytes_total > 8 << 20, "{stat:?}");
        drop(target);
        world.crash(host.node(), sim::Stop::PowerLoss);
        let host = world.restart(host.node());
        let target = open(&host, &disk).await.unwrap();
        target.serve(put(ids[1])).await.unwrap();
        for id in ids {
            assert_eq!(read(&target, id, 0, 9_000).await.unwrap().len(), 9_000);
        }
    });
}

#[test]
fn a_target_without_room_for_an_intake_works_without() {
    sim::run(8, async |world, host| {
        let small = DiskOptions { capacity_bytes: 400 << 10, ..DiskOptions::default() };
        let disk = world.add_disk(host.node(), "d", small);
        let options = TargetOptions { intake_size: 4 << 20, ..OPTIONS };
        format(&disk.plug(), CLUSTER, ID, options).await.unwrap();
        let target = Target::open(host.clone(), disk.plug(), CLUSTER, ID, options).await.unwrap();
        assert_eq!(fragments(&target).await.len(), 0);
        drop(target);
        // A larger disk later has room for one.
        disk.set_options(DiskOptions { capacity_bytes: 10 << 20, ..DiskOptions::default() });
        let target = Target::open(host.clone(), disk.plug(), CLUSTER, ID, options).await.unwrap();
        assert_eq!(disk.plug().open("intake").unwrap().size().unwrap(), 4 << 20);
        let id = fragment_id(LogId(1), 0, Part::Data(0));
        for (offset, end) in [(0, 1_000), (1_000, 1_500)] {
            target.serve(StorageRequest::Append(append(id, 0, offset, end, Durability::Disk))).await.unwrap();
        }
        assert_eq!(disk.peek("intake", 0, 8)[..], b"DzTakeIn"[..]);
        drop(target);
        world.crash(host.node(), sim::Stop::PowerLoss);
        let host = world.restart(host.node());
        let target = Target::open(host, disk.plug(), CLUSTER, ID, options).await.unwrap();
        assert_eq!(read(&target, id, 0, 9_000).await.unwrap().len(), 1_500);
    });
}

/// What frees room must be noted, however long the target has run when others' files fill its disk.
#[test]
fn deletions_are_noted_on_a_disk_that_others_filled_after_many_lists() {
    sim::run(9, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 8 << 20, ..DiskOptions::default() });
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let target = open(&host, &disk).await.unwrap();
        let size = |list| disk.plug().open(list).unwrap().size().unwrap();
        let mut stripe = 0;
        for lists in [["list.0", "list.1"], ["list.1", "list.0"]] {
            while size(lists[0]) == 0 || disk.peek(lists[1], 0, 4).iter().any(|&byte| byte != 0) {
                let id = fragment_id(LogId(1), stripe, Part::Data(0));
                target.serve(StorageRequest::Append(append(id, 0, 0, 9_000, Durability::Disk))).await.unwrap();
                if stripe >= 30 {
                    let stripes = vec![(LogId(1), StripeNumber(stripe - 30))];
                    target.serve(StorageRequest::Delete { stripes }).await.unwrap();
                }
                stripe += 1;
            }
            let left = disk.plug().usage().unwrap().bytes_free;
            disk.plug().open("others").unwrap().reserve(0, left).await.unwrap();
            for log in 2..60 {
                target.serve(StorageRequest::Fence { log: LogId(log + stripe), epoch: FenceEpoch(1) }).await.unwrap();
            }
            let stripes = vec![(LogId(1), StripeNumber(stripe - 1))];
            target.serve(StorageRequest::Delete { stripes }).await.unwrap();
            disk.plug().open("others").unwrap().discard(0, left).await.unwrap();
        }
    });
}

/// A sector that cannot be read is worth no more, and no less, than one with other bytes in it.
#[test]
fn a_target_with_a_sector_that_cannot_be_read_is_opened() {
    for (space, lost) in [("list", 0), ("intake", 0), ("data", 2)] {
        sim::explore(0..20, async |world, host| {
            let options = DiskOptions { capacity_bytes: 4 << 20, ..DiskOptions::default() };
            let disk = world.add_disk(host.node(), "d", options);
            format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
            let target = open(&host, &disk).await.unwrap();
            fill(&target).await;
            drop(target);
            world.crash(host.node(), sim::Stop::Kill);
            let host = world.restart(host.node());
            let mut dice = world.dice();
            let spaces: &[&'static str] = if space == "list" { &["list.0", "list.1"] } else { &[space] };
            for &space in spaces {
                let size = disk.plug().open(space).unwrap().size().unwrap();
                if size > 0 {
                    let sector = dice.below(size) / 512 * 512;
                    disk.fail_reads(space, sector..sector + 512);
                }
            }
            let opening = look(&host, &disk).await;
            let may_have_forgotten = opening.may_have_forgotten();
            let target = opening.begin().await.unwrap();
            let there = fragments(&target).await.len();
            assert!((30 - lost..=30).contains(&there), "{there} of 30 fragments");
            assert!(there == 30 || may_have_forgotten, "it says so");
            for fragment in fragments(&target).await {
                let id = fragment.header.id;
                let answer = target.serve(StorageRequest::Read { id, offset: 0, length: 9_000 }).await;
                assert!(answer.is_ok() || space == "data", "{answer:?}");
            }
            fill(&target).await;
        });
    }
}

/// Whoever must be told may not be there when a target's machine starts: it is told at the next start then, or a later one.
#[test]
fn a_target_may_have_forgotten_until_it_begins() {
    sim::explore(0..20, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 4 << 20, ..DiskOptions::default() });
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let target = open(&host, &disk).await.unwrap();
        fill(&target).await;
        drop(target);
        world.crash(host.node(), sim::Stop::PowerLoss);
        let newest = newest_head(&disk);
        disk.fail_reads("data", newest..newest + 512);
        for stop in [sim::Stop::Kill, sim::Stop::PowerLoss, sim::Stop::Kill] {
            let opening = look(&world.restart(host.node()), &disk).await;
            assert!(opening.may_have_forgotten(), "it says so each time");
            drop(opening);
            world.crash(host.node(), stop);
        }
        let target = look(&world.restart(host.node()), &disk).await.begin().await.unwrap();
        assert_eq!(fragments(&target).await.len(), 29);
    });
}

/// Where the fragment begins that was begun last.
fn newest_head(disk: &SimDisk) -> u64 {
    let (cell, size) = (8192 + u64::from(OPTIONS.cell_data), disk.plug().open("data").unwrap().size().unwrap());
    let generation = |place| {
        let head = disk.peek("data", place, 16);
        (head[..8] == *b"DzFrag\0\x01").then(|| u64::from_le_bytes(head[8..].try_into().unwrap()))
    };
    let heads = (0..size / cell).map(|number| number * cell);
    heads.max_by_key(|place| generation(*place)).expect("there are cells")
}

/// What a list lacks at its end looks as if it had never been written: what was told there must be looked for in the heads.
#[test]
fn a_list_of_which_the_end_cannot_be_read_is_damaged() {
    sim::explore(0..20, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 4 << 20, ..DiskOptions::default() });
        format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let target = open(&host, &disk).await.unwrap();
        fill(&target).await;
        // It is settled by now, and the list is told that it is open again.
        let id = fragment_id(LogId(1), 0, Part::Data(0));
        target.serve(StorageRequest::Append(append(id, 0, 9_000, 9_500, Durability::Disk))).await.unwrap();
        drop(target);
        world.crash(host.node(), sim::Stop::PowerLoss);
        for list in ["list.0", "list.1"] {
            let sectors = (0..disk.plug().open(list).unwrap().size().unwrap()).step_by(512);
            if let Some(last) = sectors.filter(|place| disk.peek(list, *place, 4)[..] == b"DzLs"[..]).max() {
                disk.fail_reads(list, last..last + 512);
            }
        }
        let opening = look(&world.restart(host.node()), &disk).await;
        assert!(opening.may_have_forgotten(), "a fence may have stood there");
        let target = opening.begin().await.unwrap();
        assert_eq!(fragments(&target).await.len(), 30);
        assert_eq!(read(&target, id, 0, 9_500).await.unwrap().len(), 9_500);
    });
}
