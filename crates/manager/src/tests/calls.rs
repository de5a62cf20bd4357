//! Calls that take effect once: what is kept of them, and for how long.

use std::collections::BTreeSet;

use host::Moment;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::{InodeId, LogId};
use protocol::manager::{Answer, ManagerError, ManagerRequest};
use protocol::once::{CallId, OnceName};

use super::bench::Bench;
use crate::key::{self, Subject};
use crate::ops::{Call, Done, Operation};

const CLIENT: LogId = LogId(77);

fn make(bench: &mut Bench, number: u64, below: u64) -> Result<InodeId, ManagerError> {
    let name = OnceName { call: CallId { client: CLIENT, number }, below, slot: InodeId::ROOT.slot() };
    let new = NewInode {
        kind: Kind::File,
        mode: 0o644,
        mask: 0,
        device: 0,
        target: Default::default(),
        caller: Caller::default(),
    };
    let name_new = format!("{number}").into();
    let create = ManagerRequest::Create { directory: InodeId::ROOT, name: name_new, new, open: false };
    match bench.run(Operation::Once(Call { name, until: Moment(u64::MAX) }, create))? {
        Done::Answer(Answer::Entry(made, _)) => Ok(made.inode),
        other => panic!("made, not {other:?}"),
    }
}

fn kept(bench: &Bench) -> usize {
    bench.records().keys().filter(|(_, key)| key::subject(key) == Some(Subject::Calls(CLIENT))).count()
}

#[test]
fn a_call_that_takes_long_is_in_no_other_ones_way() {
    let mut bench = Bench::new();
    // The first call of this client is about another slot, and still under way.
    let made: Vec<InodeId> = (1..=5000).map(|number| make(&mut bench, number, 0).expect("the name is new")).collect();
    assert_eq!(kept(&bench), 5000, "each may yet be asked for again");
    for number in [1, 2500, 5000] {
        assert_eq!(make(&mut bench, number, 0), Ok(made[number as usize - 1]));
    }
    let mut dead = Bench::new();
    for number in 1..=500 {
        make(&mut dead, number, 0).expect("the name is new");
    }
    dead.run(Operation::Forget(InodeId::ROOT.slot(), LogId(CLIENT.0 + 1), BTreeSet::new()))
        .expect("in as many steps as it takes");
    assert_eq!(kept(&dead), 0, "its log is no more");
    for number in 5001..7000 {
        make(&mut bench, number, number).expect("the name is new");
    }
    let kept = kept(&bench);
    assert!((2..9).contains(&kept), "{kept}: the last ones, and before which all are given up");
    assert!(matches!(make(&mut bench, 3, 0), Err(ManagerError::Invalid(_))));
}
