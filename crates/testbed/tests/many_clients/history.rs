//! What programs did and saw, and whether one file system can have answered so.
//!
//! A cell of a file is a register in which every write leaves another value. Such a history is linearizable exactly when the
//! zones of its values allow an order (Gibbons and Korach, Testing Shared Memories, 1997): a value's zone lies between the
//! first end and the last beginning of all that wrote or read it. Zones whose end comes first last at least that long, and
//! never overlap; the others are moments, and none lies within such a zone.

use std::collections::BTreeMap;
use std::ops::Range;

/// Nobody wrote this: what is there at the beginning.
pub const NOTHING: u64 = 0;

/// Everything that happened to one register.
#[derive(Default)]
pub struct Register {
    writes: BTreeMap<u64, Write>,
    reads: Vec<(u64, Range<u64>, u32)>,
}

struct Write {
    begin: u64,
    end: u64,
    by: u32,
}

impl Register {
    /// Begins a write: until it is known to have ended it may take effect at any time.
    pub fn begin(&mut self, value: u64, by: u32, now: u64) {
        assert!(self.writes.insert(value, Write { begin: now, end: u64::MAX, by }).is_none(), "values are unique");
    }

    /// A write has ended, and lasts.
    pub fn end(&mut self, value: u64, now: u64) {
        self.writes.get_mut(&value).expect("it began").end = now;
    }

    /// A read has ended.
    pub fn read(&mut self, value: u64, by: u32, time: Range<u64>) {
        self.reads.push((value, time, by));
    }

    /// The writer died: what it wrote and did not fsync may be gone, unless somebody else has seen it.
    pub fn lose(&mut self, by: u32, lasting: &dyn Fn(u64) -> bool) {
        let seen = |value: u64| self.reads.iter().any(|(read, _, reader)| *read == value && *reader != by);
        let lost: Vec<u64> = self
            .writes
            .iter()
            .filter(|(value, write)| write.by == by && !lasting(**value) && !seen(**value))
            .map(|(value, _)| *value)
            .collect();
        self.reads.retain(|(value, _, reader)| *reader != by || !lost.contains(value));
        for value in lost {
            self.writes.get_mut(&value).expect("it was found").end = u64::MAX;
        }
    }

    /// Why this cannot have happened, if so.
    pub fn contradiction(&self) -> Option<String> {
        let mut zones = Vec::new();
        for (&value, write) in self.writes.iter().chain([(&NOTHING, &Write { begin: 0, end: 0, by: 0 })]) {
            let reads: Vec<_> = self.reads.iter().filter(|(read, ..)| *read == value).collect();
            if let Some((_, time, by)) = reads.iter().find(|(_, time, _)| time.end < write.begin) {
                return Some(format!("{by} read {value} in {time:?} before it was written at {}", write.begin));
            }
            let first_end = reads.iter().map(|(_, time, _)| time.end).chain([write.end]).min().expect("one");
            let last_begin = reads.iter().map(|(_, time, _)| time.start).chain([write.begin]).max().expect("one");
            zones.push((value, first_end, last_begin));
        }
        let known = |value: &u64| *value == NOTHING || self.writes.contains_key(value);
        if let Some((value, ..)) = self.reads.iter().find(|(value, ..)| !known(value)) {
            return Some(format!("{value} was read, and written by nobody"));
        }
        for (at, &(one, one_end, one_begin)) in zones.iter().enumerate() {
            for &(other, other_end, other_begin) in &zones[at + 1..] {
                let (one_lasts, other_lasts) = (one_end < one_begin, other_end < other_begin);
                let is_wrong = match (one_lasts, other_lasts) {
                    (true, true) => one_end < other_begin && other_end < one_begin,
                    (true, false) => one_end < other_begin && other_end < one_begin,
                    (false, true) => other_end < one_begin && one_end < other_begin,
                    (false, false) => false,
                };
                if is_wrong {
                    return Some(format!(
                        "{one} lasted {one_end}..{one_begin}, {other} {other_end}..{other_begin}: {}{}",
                        self.story(one),
                        self.story(other)
                    ));
                }
            }
        }
        None
    }

    fn story(&self, value: u64) -> String {
        let write = self.writes.get(&value);
        let written = write.map(|write| format!("\n  {} wrote {value} in {}..{}", write.by, write.begin, write.end));
        let read = self.reads.iter().filter(|(read, ..)| *read == value);
        written.unwrap_or_default()
            + &read.map(|(_, time, by)| format!("\n  {by} read {value} in {time:?}")).collect::<String>()
    }
}

#[test]
fn what_cannot_have_happened_is_found() {
    let mut register = Register::default();
    register.begin(1, 1, 10);
    register.end(1, 20);
    register.begin(2, 2, 30);
    register.end(2, 40);
    register.read(1, 3, 35..45);
    assert_eq!(register.contradiction(), None, "the read may have come first");
    register.read(2, 3, 50..60);
    assert_eq!(register.contradiction(), None);
    register.read(1, 3, 70..80);
    assert!(register.contradiction().is_some(), "the first value came back");
    let mut register = Register::default();
    register.begin(1, 1, 10);
    register.end(1, 20);
    register.read(NOTHING, 2, 30..40);
    assert!(register.contradiction().is_some(), "a completed write was not seen");
    register.lose(1, &|_| false);
    assert_eq!(register.contradiction(), None, "its writer died");
}
