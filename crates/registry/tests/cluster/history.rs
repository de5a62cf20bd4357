//! What was asked and answered, in the order of the world's time, and whether one registry could have answered so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use host::Moment;
use protocol::id::LogId;
use protocol::maps::Maps;
use protocol::registry::{RegistryAnswer, RegistryError, RegistryReply};

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A new log.
    Open,
    /// A log's claim: a compare-and-swap of its version.
    Claim(LogId, u64),
}

/// One request.
#[derive(Clone, Debug)]
struct Op {
    asked: Asked,
    begun: Moment,
    /// When it was answered, and how; nothing where its outcome is unknown.
    done: Option<(Moment, Result<RegistryReply, RegistryError>)>,
}

/// All requests of one world. Clones are the same.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    ops: Vec<Op>,
    /// The maps of each epoch, as whoever saw them first had them.
    maps: BTreeMap<u64, Arc<Maps>>,
}

impl History {
    /// A request leaves; returns its number.
    pub fn begin(&self, asked: Asked, now: Moment) -> usize {
        let mut inner = self.0.lock().unwrap();
        inner.ops.push(Op { asked, begun: now, done: None });
        inner.ops.len() - 1
    }

    /// Its answer came. Whether a change that was not possible took effect nobody knows.
    pub fn end(&self, op: usize, answer: RegistryAnswer, now: Moment) {
        if let Some(maps) = answer.as_ref().ok().and_then(RegistryReply::maps) {
            self.saw(maps);
        }
        if !matches!(answer, Err(RegistryError::Unavailable(_))) {
            self.0.lock().unwrap().ops[op].done = Some((now, answer));
        }
    }

    /// Somebody saw these maps: whoever sees that epoch sees the same.
    pub fn saw(&self, maps: &Arc<Maps>) {
        let mut inner = self.0.lock().unwrap();
        let first = inner.maps.entry(maps.epoch.0).or_insert_with(|| maps.clone());
        assert_eq!(**first, **maps, "two maps of one epoch");
    }

    /// How many requests were answered as asked.
    pub fn acknowledged(&self) -> usize {
        self.0.lock().unwrap().ops.iter().filter(|op| matches!(op.done, Some((_, Ok(_))))).count()
    }

    /// Whether the whole history is that of one registry, which ends with `maps`.
    ///
    /// # Panics
    /// When not.
    pub fn check(&self, maps: &Maps) {
        let inner = self.0.lock().unwrap();
        let ops = &inner.ops;
        self.check_logs(ops, maps);
        check_claims(ops, maps);
        check_order(ops);
    }

    fn check_logs(&self, ops: &[Op], maps: &Maps) {
        let mut opened = BTreeMap::new();
        for op in ops {
            let Some((_, Ok(RegistryReply::Log(log, ..)))) = &op.done else { continue };
            if op.asked == Asked::Open {
                assert!(maps.logs.contains_key(log), "{log:?} was acknowledged and is forgotten");
                assert!(opened.insert(*log, op.begun).is_none(), "{log:?} was opened twice");
            }
        }
        let unknown = ops.iter().filter(|op| op.asked == Asked::Open && op.done.is_none()).count();
        assert!(maps.logs.len() <= opened.len() + unknown, "what was asked once took effect once");
    }
}

/// Every version of a log was swapped for the next by one claim, and claims were lost only to others.
fn check_claims(ops: &[Op], maps: &Maps) {
    for (&log, entry) in &maps.logs {
        let mut winners: BTreeMap<u64, &Op> = BTreeMap::new();
        let of_log = || {
            ops.iter().filter_map(|op| match op.asked {
                Asked::Claim(of, version) if of == log => Some((version, op)),
                _ => None,
            })
        };
        for (version, op) in of_log() {
            if let Some((_, Ok(_))) = op.done {
                let before = winners.insert(version, op);
                assert!(before.is_none(), "version {version} of {log:?} was claimed twice");
                assert!(version < entry.version, "a claim of {log:?} that was acknowledged is lost");
            }
        }
        for version in 1..entry.version {
            let possible =
                winners.contains_key(&version) || of_log().any(|(of, op)| of == version && op.done.is_none());
            assert!(possible, "nobody claimed version {version} of {log:?}");
        }
        for (version, op) in of_log() {
            let Some((end, Err(RegistryError::Lost))) = &op.done else { continue };
            assert!(entry.version > version, "a claim of {log:?} was lost to nobody");
            if let Some(winner) = winners.get(&version) {
                assert!(winner.begun < *end, "a claim of {log:?} was lost to a later one");
            }
        }
    }
}

/// Whatever begins after something was answered has later maps.
fn check_order(ops: &[Op]) {
    let mut changes: Vec<(Moment, Moment, u64)> = Vec::new();
    for op in ops {
        if let Some((end, Ok(RegistryReply::Log(.., maps)))) = &op.done {
            changes.push((op.begun, *end, maps.epoch.0));
        }
    }
    for &(begun, _, epoch) in &changes {
        let before = changes.iter().filter(|(_, end, _)| *end < begun).map(|(.., epoch)| *epoch).max();
        assert!(before.is_none_or(|before| before < epoch), "epoch {epoch} came after {before:?}");
    }
}
