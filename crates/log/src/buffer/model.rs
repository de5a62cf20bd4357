//! Against naive ones: the bytes of a stripe against an array, and a writer that keeps parts of bodies as they came
//! against one that copies them all, which must send the same.

use proptest::prelude::*;
use protocol::checksum::block_checksums;
use protocol::fragment::Geometry;
use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, TargetId};
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Append, Durability, Room, StorageReply, StorageRequest};

use super::*;
use crate::due::{Ticket, Work};
use crate::lay::Group;
use crate::state::{Opened, State};
use crate::writer::Record;

const FRAGMENT_SIZE: u32 = 256 << 10;

/// `length` bytes that tell where they came from.
fn content(seed: usize, length: usize) -> Bytes {
    (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// Lengths of parts: mostly around what is worth keeping.
fn part_length() -> impl Strategy<Value = usize> {
    prop_oneof![
        1_usize..5_000,
        KEEP_SIZE_MIN - 3..KEEP_SIZE_MIN + 5_000,
        Just(KEEP_SIZE_MIN),
        Just(2 * KEEP_SIZE_MIN),
        1_usize..200_000
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stripe_holds_what_an_array_holds(
        steps in prop::collection::vec((part_length(), any::<bool>(), any::<[u32; 2]>()), 1..20)
    ) {
        let mut pool = Pool::new(FRAGMENT_SIZE as usize);
        let (mut bytes, mut model) = (StripeBytes::default(), Vec::new());
        let mut given = Vec::new();
        for (step, (length, is_kept, at)) in steps.into_iter().enumerate() {
            let part = content(step, length);
            let body = if is_kept { BodyPart::Kept(part.clone()) } else { BodyPart::Copied(&part) };
            bytes.append_part(&mut pool, &body);
            drop(body);
            model.extend_from_slice(&part);
            given.extend(is_kept.then_some(part));
            bytes.sum(bytes.length());
            prop_assert_eq!(bytes.length() as usize, model.len());
            // What is sent begins on a block.
            let mut range = at.map(|at| at as usize % (model.len() + 1));
            range.sort_unstable();
            let range = range[0] / BLOCK_SIZE * BLOCK_SIZE..range[1];
            let asked = range.start as u32..range.end as u32;
            prop_assert_eq!(&bytes.parts(asked.clone()).concat(), &model[range.clone()]);
            prop_assert_eq!(&bytes.read(asked.clone())[..], &model[range.clone()]);
            prop_assert_eq!(bytes.checksums(asked.clone()), block_checksums(&model[range.clone()]));
            let mut seen = Vec::new();
            bytes.slices(asked, |slice| seen.extend_from_slice(slice));
            prop_assert_eq!(&seen, &model[range]);
        }
        bytes.retire(&mut pool);
        prop_assert!(given.iter().all(Bytes::is_unique), "nothing is kept beyond the stripe");
    }

    #[test]
    fn whoever_keeps_parts_sends_what_a_copier_sends(
        records in prop::collection::vec((prop::collection::vec(part_length(), 1..4), 0_u8..8), 1..30),
        parity in 0_u8..3,
    ) {
        let (mut keeper, mut copier) = (writer(parity), writer(parity));
        let mut given = Vec::new();
        for (number, (lengths, then)) in records.into_iter().enumerate() {
            let parts: Vec<_> = lengths.into_iter().map(|length| content(number, length)).collect();
            let kept: Vec<_> = parts.iter().map(|part| BodyPart::Kept(part.clone())).collect();
            let copied: Vec<_> = parts.iter().map(|part| BodyPart::Copied(part)).collect();
            let aligned = number % 3 > 0;
            let kind = if number % 5 == 0 { RecordKind::Journal } else { RecordKind::Data };
            let record = |parts| Record { kind, owner: Owner::default(), parts, aligned };
            let (first, second) = (keeper.append(&record(&kept)), copier.append(&record(&copied)));
            prop_assert_eq!(first.ok(), second.ok());
            let due = |state: &mut State| match then {
                0..3 => Vec::new(),
                3..6 => state.due_bulk(),
                6 => state.due_commit(state.end(), Durability::Replicated),
                _ => {
                    state.end_stripe();
                    state.due_bulk()
                }
            };
            exchange(&mut keeper, &mut copier, due)?;
            drop(kept);
            given.extend(parts);
        }
        for state in [&mut keeper, &mut copier] {
            state.end_stripe();
        }
        for _ in 0..100 {
            exchange(&mut keeper, &mut copier, State::due_bulk)?;
        }
        prop_assert!(keeper.incomplete().next().is_none() && copier.incomplete().next().is_none());
        prop_assert_eq!(keeper.end(), copier.end());
        prop_assert!(given.iter().all(Bytes::is_unique), "nothing is kept of what is complete");
    }
}

fn writer(parity: u8) -> State {
    let geometry = Geometry { data: 3, parity, fragment_size: FRAGMENT_SIZE };
    let targets = (0..u32::from(3 + parity)).map(TargetId).collect();
    let groups = vec![Group { id: GroupId(0), geometry, targets }];
    let (log, epoch, run) = (LogId(7), FenceEpoch(1), RunNumber(0));
    State::new(Opened { log, epoch, room: Room::Data, run, groups }, parity)
}

/// What is due for both must be the same; the targets take it.
fn exchange(
    keeper: &mut State,
    copier: &mut State,
    mut due: impl FnMut(&mut State) -> Vec<Work>,
) -> Result<(), TestCaseError> {
    let (first, second) = (sends(due(keeper)), sends(due(copier)));
    prop_assert!(first.len() == second.len());
    for ((ticket, sent), (other_ticket, other)) in first.into_iter().zip(second) {
        prop_assert_eq!(ticket, other_ticket);
        prop_assert!(sent.parts.concat() == other.parts.concat(), "the bytes differ");
        let [sent, other] = [sent, other].map(|append| format!("{:?}", Append { parts: Vec::new(), ..append }));
        prop_assert_eq!(sent, other);
        for state in [&mut *keeper, &mut *copier] {
            state.answered(&ticket, Ok(StorageReply::Done { length: ticket.to }));
        }
    }
    Ok(())
}

fn sends(works: Vec<Work>) -> Vec<(Ticket, Append)> {
    let send = |work| match work {
        Work::Send(ticket, StorageRequest::Append(append) | StorageRequest::Replace(append)) => (ticket, append),
        other => panic!("nothing is to be synced: {other:?}"),
    };
    works.into_iter().map(send).collect()
}
