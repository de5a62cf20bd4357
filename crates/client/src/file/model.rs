//! A file against a plain array of bytes: random writes, flushes that fail half-way, late acknowledgements, late answers,
//! truncations, punches and forgotten maps, with a naive manager that knows only what deltas and operations told it.

use proptest::prelude::*;
use protocol::file::{Extent, Kind};
use protocol::id::{LogId, StripeNumber};

use super::*;

/// What a test may do to a file. Numbers are folded into what is possible.
#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, length: u64 },
    AppendRun,
    Flush { appends_max: usize },
    Acknowledge { batches: usize },
    Truncate(u64),
    Punch { offset: u64, length: u64 },
    Grow(u64),
    Forget,
    Ask { offset: u64, length: u64 },
    Deliver,
}

/// The log: a body a record, and a failure after so many.
struct Log {
    bodies: Vec<Vec<u8>>,
    /// How many bytes were given to be kept as they are.
    kept: usize,
    appends_left: usize,
    length_max: u64,
}

impl Appender for Log {
    fn append(&mut self, _offset: u64, parts: &[BodyPart<'_>]) -> Result<(LogAddress, Position), LogError> {
        self.appends_left = self.appends_left.checked_sub(1).ok_or(LogError::Full)?;
        let kept = parts.iter().filter(|part| matches!(part, BodyPart::Kept(_)));
        self.kept += kept.map(|part| part.bytes().len()).sum::<usize>();
        self.bodies.push(parts.iter().flat_map(|part| part.bytes().to_vec()).collect());
        let length = self.bodies.last().expect("just pushed").len() as u32;
        let stripe = StripeNumber(self.bodies.len() as u64 - 1);
        Ok((LogAddress { log: LogId(1), stripe, offset: 0, length }, Position::new(stripe, 0)))
    }

    fn length_max(&self) -> u64 {
        self.length_max
    }
}

impl Log {
    fn read(&self, address: LogAddress) -> &[u8] {
        &self.bodies[address.stripe.0 as usize][address.offset as usize..][..address.length as usize]
    }
}

/// The manager's file: inline or extents, never both.
#[derive(Default)]
struct Manager {
    size: u64,
    inline: Option<Bytes>,
    extents: Ranges<Source>,
}

impl Manager {
    fn apply(&mut self, delta: &Delta) {
        match &delta.change {
            Change::Extent { offset, address } => {
                self.inline = None;
                let end = offset + u64::from(address.length);
                self.extents.insert(*offset..end, Source::Stored(*address));
            }
            Change::Inline { bytes } => {
                self.extents = Ranges::default();
                self.inline = Some(bytes.clone());
            }
            Change::Wrote { size, .. } => self.size = self.size.max(*size),
            Change::Read { .. } => {}
        }
    }

    fn truncate(&mut self, size: u64) {
        self.size = size;
        self.extents.remove(size..u64::MAX);
        self.inline = self.inline.take().map(|bytes| bytes.slice(..bytes.len().min(size as usize)));
    }

    fn punch(&mut self, range: Range<u64>) {
        self.extents.remove(range.clone());
        self.inline = self.inline.take().map(|bytes| {
            let mut bytes = bytes.to_vec();
            let end = bytes.len().min(range.end as usize);
            if (range.start as usize) < end {
                bytes[range.start as usize..end].fill(0);
            }
            bytes.into()
        });
    }

    /// Answers by halves, so that the file has to ask on.
    fn content(&self, range: &Range<u64>) -> Content {
        if let Some(bytes) = &self.inline {
            return Content::Inline(bytes.clone());
        }
        let through = range.start + (range.end - range.start).div_ceil(2);
        let extent = |(range, source): (Range<u64>, &Source)| match source {
            Source::Stored(address) => Extent { offset: range.start, address: *address },
            _ => unreachable!("managers keep addresses"),
        };
        Content::Extents { list: self.extents.whole(range.start..through).map(extent).collect(), through }
    }

    fn bytes(&self, log: &Log) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        if let Some(inline) = &self.inline {
            let end = inline.len().min(bytes.len());
            bytes[..end].copy_from_slice(&inline[..end]);
        }
        for (range, source) in self.extents.over(0..self.size) {
            let Source::Stored(address) = source else { unreachable!("managers keep addresses") };
            bytes[range.start as usize..range.end as usize].copy_from_slice(log.read(address));
        }
        bytes
    }
}

struct World {
    file: File,
    model: Vec<u8>,
    log: Log,
    manager: Manager,
    batches: Vec<(Position, Vec<Delta>)>,
    recorded: u32,
    acknowledged: Position,
    asked: Option<(Asked, Range<u64>, Content)>,
    clock: u64,
    size_max: u64,
}

impl World {
    fn new(size_max: u64, is_new: bool) -> World {
        let mut log = Log { bodies: Vec::new(), kept: 0, appends_left: usize::MAX, length_max: size_max / 3 + 1 };
        let mut manager = Manager::default();
        let mut model = Vec::new();
        let mut file = File::new_empty();
        if !is_new {
            model = (0..size_max / 2).map(|at| (at as u8) | 1).collect::<Vec<_>>();
            manager.size = model.len() as u64;
            if model.len() <= INLINE_MAX {
                manager.inline = Some(model.clone().into());
            } else {
                let (address, _) = log.append(0, &[BodyPart::Copied(&model)]).expect("there is room");
                manager.extents.insert(0..manager.size, Source::Stored(address));
            }
            file = File { size: manager.size, ..File::default() };
        }
        let (batches, acknowledged) = (Vec::new(), Position::START);
        World { file, model, log, manager, batches, recorded: 0, acknowledged, asked: None, clock: 0, size_max }
    }

    fn base(&mut self) {
        while !self.file.is_based() {
            let range = 0..self.size_max;
            assert!(self.file.learn(self.file.ask(), range.clone(), self.manager.content(&range)));
        }
    }

    fn flush(&mut self) {
        self.base();
        if self.file.append_all(&mut self.log).is_err() {
            return;
        }
        let mut deltas = Vec::new();
        let expected = self.file.unrecorded_from();
        let from = self.file.record(InodeId(9), &mut deltas);
        if deltas.is_empty() {
            return;
        }
        self.check_mark(&deltas, expected, from);
        assert_eq!(self.file.unrecorded_from(), expected, "it may come to nothing yet");
        if self.log.appends_left == 0 {
            self.file.recorded_at(None);
            return;
        }
        self.log.appends_left -= 1;
        self.recorded += 1;
        let end = Position::new(StripeNumber(0), self.recorded);
        self.file.recorded_at(Some(end));
        assert!(self.file.is_recorded());
        self.batches.push((end, deltas));
        // A crash now, and a replay of the log, give exactly what programs saw.
        let mut replayed = Manager { inline: self.manager.inline.clone(), ..Manager::default() };
        (replayed.size, replayed.extents) = (self.manager.size, self.manager.extents.clone());
        self.batches.iter().flat_map(|(_, deltas)| deltas).for_each(|delta| replayed.apply(delta));
        assert!(replayed.bytes(&self.log) == self.model, "the log holds everything");
    }

    /// No delta names bytes before the place that marks may not pass.
    fn check_mark(&self, deltas: &[Delta], expected: Option<Position>, from: Option<Position>) {
        assert_eq!(expected, from);
        for delta in deltas {
            if let Change::Extent { address, .. } = delta.change {
                assert!(from.is_some_and(|from| from <= address.position()));
            }
        }
    }

    fn acknowledge(&mut self, batches: usize) {
        for (end, deltas) in self.batches.drain(..batches.min(self.batches.len())) {
            deltas.iter().for_each(|delta| self.manager.apply(delta));
            self.acknowledged = end;
        }
        self.file.settle(self.acknowledged);
    }

    fn step(&mut self, step: Step) {
        self.clock += 1;
        let max = self.size_max;
        match step {
            Step::Write { offset, length } => {
                let (offset, length) = (offset % max, 1 + length % (max / 2));
                let end = (offset + length) as usize;
                let fill = self.clock as u8 | 1;
                let bytes: Vec<u8> = (0..length).map(|at| fill.wrapping_add((at / 7 * 2) as u8)).collect();
                self.model.resize(self.model.len().max(end), 0);
                self.model[offset as usize..end].copy_from_slice(&bytes);
                self.file.write(offset, bytes.into(), Time(self.clock as i64), Moment(self.clock));
            }
            Step::AppendRun => {
                self.base();
                if let Some(run) = self.file.dirty.next_run(0).and_then(|run| self.file.long_run(run.start)) {
                    self.file.append_run(run, &mut self.log).expect("there is room");
                }
            }
            Step::Flush { appends_max } => {
                self.log.appends_left = if appends_max < 6 { appends_max } else { usize::MAX };
                self.flush();
                self.log.appends_left = usize::MAX;
            }
            Step::Acknowledge { batches } => self.acknowledge(batches),
            Step::Truncate(size) => {
                self.acknowledge(usize::MAX);
                self.manager.truncate(size % max);
                self.file.truncated(size % max);
                self.model.resize((size % max) as usize, 0);
            }
            Step::Punch { offset, length } => {
                self.acknowledge(usize::MAX);
                let range = offset % max..offset % max + 1 + length % max;
                // The last bytes may be dirty: with them the only claim to the size would go.
                self.manager.size = self.manager.size.max(self.file.size());
                self.manager.punch(range.clone());
                self.file.punched(range.clone());
                let end = self.model.len().min(range.end as usize);
                if (range.start as usize) < end {
                    self.model[range.start as usize..end].fill(0);
                }
            }
            Step::Grow(size) => {
                let size = size % max;
                self.manager.size = self.manager.size.max(size);
                self.file.grown_to(size);
                self.model.resize(self.model.len().max(size as usize), 0);
            }
            Step::Forget => self.file.forget(),
            Step::Ask { offset, length } => {
                let range = offset % max..offset % max + 1 + length % max;
                self.asked = Some((self.file.ask(), range.clone(), self.manager.content(&range)));
            }
            Step::Deliver => {
                if let Some((asked, range, content)) = self.asked.take() {
                    let _ = self.file.learn(asked, range, content);
                }
            }
        }
        self.check();
    }

    /// Reads everything and compares; looks for data and holes; compares attributes.
    fn check(&mut self) {
        let mut attributes = attributes(self.manager.size);
        self.file.overlay(&mut attributes, None);
        assert_eq!((self.file.size(), attributes.size), (self.model.len() as u64, self.model.len() as u64));
        let pieces = loop {
            match self.file.plan(0..u64::MAX) {
                Ok(pieces) => break pieces,
                Err(Missing(range)) => {
                    assert!(self.file.learn(self.file.ask(), range.clone(), self.manager.content(&range)));
                }
            }
        };
        let mut read = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => read.extend_from_slice(&bytes),
                Piece::Zeros(count) => read.resize(read.len() + count as usize, 0),
                Piece::Stored(address) => read.extend_from_slice(self.log.read(address)),
            }
        }
        assert!(read == self.model, "a read returns the last write");
        let hole = self.file.seek(0, SeekKind::Hole).expect("the map is known by now");
        let data = self.file.seek(0, SeekKind::Data).expect("the map is known by now");
        assert!(hole.is_some() != self.model.is_empty());
        let first = self.model.iter().position(|&byte| byte != 0).map(|at| at as u64);
        assert!(data.unwrap_or(u64::MAX) <= first.unwrap_or(u64::MAX), "no data hides in a hole");
    }
}

fn attributes(size: u64) -> Attributes {
    Attributes {
        inode: InodeId(9),
        kind: Kind::File,
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        device: 0,
        size,
        stored: 0,
        accessed: Time(0),
        modified: Time(0),
        changed: Time(0),
        created: Time(0),
        version: 0,
    }
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0_u64..1 << 40;
    prop_oneof![
        6 => (number(), prop_oneof![1_u64..40, number()]).prop_map(|(offset, length)| Step::Write { offset, length }),
        2 => Just(Step::AppendRun),
        3 => (0_usize..12).prop_map(|appends_max| Step::Flush { appends_max }),
        2 => (0_usize..4).prop_map(|batches| Step::Acknowledge { batches }),
        1 => prop_oneof![number(), 0_u64..600].prop_map(Step::Truncate),
        1 => (number(), number()).prop_map(|(offset, length)| Step::Punch { offset, length }),
        1 => number().prop_map(Step::Grow),
        1 => Just(Step::Forget),
        1 => (number(), number()).prop_map(|(offset, length)| Step::Ask { offset, length }),
        1 => Just(Step::Deliver),
    ]
}

fn run(size_max: u64, is_new: bool, steps: Vec<Step>) {
    let mut world = World::new(size_max, is_new);
    for step in steps {
        world.step(step);
    }
    world.flush();
    world.acknowledge(usize::MAX);
    assert!(world.file.is_settled());
    assert!(world.manager.bytes(&world.log) == world.model, "the manager knows everything");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_small_file_is_what_was_written(is_new: bool, steps in prop::collection::vec(step(), 1..40)) {
        run(900, is_new, steps);
    }

    #[test]
    fn a_middling_file_is_what_was_written(is_new: bool, steps in prop::collection::vec(step(), 1..40)) {
        run(200_000, is_new, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_large_file_is_what_was_written(is_new: bool, steps in prop::collection::vec(step(), 1..30)) {
        run(4 << 20, is_new, steps);
    }
}

#[test]
fn a_large_write_is_kept_as_it_came_and_a_small_rest_of_one_is_not() {
    for (left, kept) in [(1 << 20, 1 << 20), (3 << 18, 3 << 18), (1 << 18, 0)] {
        let mut log = Log { bodies: Vec::new(), kept: 0, appends_left: usize::MAX, length_max: 1 << 20 };
        let mut file = File::new_empty();
        file.write(0, Bytes::from(vec![7; 1 << 20]), Time(1), Moment(1));
        file.truncated(left);
        file.append_all(&mut log).expect("there is room");
        assert_eq!((log.bodies.concat().len(), log.kept), (left as usize, kept));
    }
}
