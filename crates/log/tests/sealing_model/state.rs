//! What there is in the model: a registry entry, four targets, one writer's answers, two recoverers.
//!
//! Everything is small and `Copy`, because the checker keeps some million of these. A record is one number, its place in the
//! log counted from 1; 0 is "nothing there". One data fragment holds one record, so k = 2 makes two records a stripe.

/// k: data fragments of a stripe.
pub(crate) const DATA: usize = 2;
/// Members of a group: k + m with m = 1.
pub(crate) const WIDTH: usize = DATA + 1;
/// Stripes of the log.
pub(crate) const STRIPES: usize = 2;
/// The most runs a layout gets in the model: two of the writer, one of each recoverer.
pub(crate) const RUNS: usize = 4;
/// Targets in the cluster: one more than a group needs.
pub(crate) const TARGETS: usize = 4;
/// The groups: the first, and those in which the spare target stands in for one of its members, in other orders too.
pub(crate) const GROUPS: [[usize; WIDTH]; 4] = [[0, 1, 2], [3, 1, 2], [2, 3, 0], [1, 3, 0]];
/// The end of a run that goes on.
pub(crate) const UNFINISHED: u8 = u8::MAX;

/// The epoch of a claim that nobody made.
const VOID: u8 = u8::MAX;

/// What the writer will append. All of it may be on its way at once: the network delivers any part at any time or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Plan {
    /// Records of each stripe; fewer than `DATA` ends it short.
    pub(crate) lengths: [u8; STRIPES],
    /// A stripe is begun only when the one before is complete, and its headers say so (*complete below*).
    pub(crate) ordered: bool,
}

impl Plan {
    /// The record at an address, if the plan puts one there.
    pub(crate) fn record(&self, stripe: usize, index: usize) -> u8 {
        if index >= self.lengths[stripe] as usize {
            return 0;
        }
        1 + self.lengths[..stripe].iter().sum::<u8>() + index as u8
    }

    /// All addresses, in log order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..STRIPES).flat_map(|stripe| (0..self.lengths[stripe] as usize).map(move |index| (stripe, index)))
    }
}

/// What lies on the parity target of a stripe: copies or parity, never a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parity {
    /// Tail copies.
    Copies([u8; DATA]),
    /// Parity over these records; the zeros are data fragments of length zero.
    Ended([u8; DATA]),
}

/// One stripe as one run's targets hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stripe {
    pub(crate) data: [u8; DATA],
    pub(crate) parity: Parity,
}

impl Stripe {
    pub(crate) const EMPTY: Stripe = Stripe { data: [0; DATA], parity: Parity::Copies([0; DATA]) };

    /// Whether any fragment of it is stored, and thus a header that tells where its predecessor ended.
    pub(crate) fn begun(&self) -> bool {
        *self != Stripe::EMPTY
    }
}

/// All fragments of the log, by run and stripe.
pub(crate) type Fragments = [[Stripe; STRIPES]; RUNS];

/// A fragment of a stripe, or one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Data(usize),
    Copy(usize),
    Parity,
}

impl Part {
    /// A bit for sets of parts.
    pub(crate) fn bit(self) -> u8 {
        match self {
            Part::Data(index) => 1 << index,
            Part::Copy(index) => 1 << (DATA + index),
            Part::Parity => 1 << (2 * DATA),
        }
    }
}

/// An element of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    /// First stripe.
    pub(crate) from: u8,
    /// One past the last stripe, once later ones are complete elsewhere.
    pub(crate) end: u8,
    /// Index into [`GROUPS`].
    pub(crate) group: u8,
    /// Whether it was the writer that finished it; from then on the writer counts none of its answers.
    pub(crate) dropped: bool,
    /// Added by the writer, not by a recoverer.
    pub(crate) of_writer: bool,
    /// Whether the registry knows it. Only a broken writer has a run that is not.
    pub(crate) named: bool,
}

impl Run {
    pub(crate) fn covers(&self, stripe: usize) -> bool {
        self.named && (self.from as usize) <= stripe && stripe < self.end as usize
    }

    /// The target that holds a part; parity rotates with the stripe number.
    pub(crate) fn target(&self, stripe: usize, part: Part) -> usize {
        let index = match part {
            Part::Data(index) => index,
            Part::Copy(_) | Part::Parity => DATA,
        };
        GROUPS[self.group as usize][(index + stripe) % WIDTH]
    }
}

/// A position in the log: all stripes before `stripe`, and `records` of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Length {
    pub(crate) stripe: u8,
    pub(crate) records: u8,
}

impl Length {
    pub(crate) fn contains(&self, stripe: usize, index: usize) -> bool {
        (stripe as u8, index as u8) < (self.stripe, self.records)
    }
}

/// The log's entry in the registry, but for its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Registry {
    Open,
    Sealing(u8),
    /// The length, and where the tail began that the sealer made redundant.
    Sealed {
        length: Length,
        start: u8,
    },
}

/// One recoverer. It may stop for ever or for a while in every state: its steps are never forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Recoverer {
    Idle,
    Reading(Reading),
    Ending(Ending),
    Done,
}

/// Fencing, and reading what each target holds at the moment of its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub(crate) epoch: u8,
    /// How many runs the layout had at the claim.
    pub(crate) known: u8,
    /// Set of the runs whose groups must be fenced.
    pub(crate) unfinished: u8,
    /// The target that has an empty disk, and the set of runs of which it knows nothing, as the claim's answer said.
    pub(crate) exchanged: Option<(u8, u8)>,
    /// Set of targets fenced and read.
    pub(crate) seen: u8,
    pub(crate) view: Fragments,
}

/// The length is chosen; the tail is being made redundant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ending {
    pub(crate) epoch: u8,
    /// How many runs it knows of.
    pub(crate) known: u8,
    /// The first stripe of the tail.
    pub(crate) start: u8,
    pub(crate) length: Length,
    pub(crate) records: [[u8; DATA]; STRIPES],
    /// The run in which it ends the stripes.
    pub(crate) run: u8,
    /// Whether it added that run.
    pub(crate) added: bool,
    /// For each stripe the parts that are stored under its own fence.
    pub(crate) done: [u8; STRIPES],
}

impl Ending {
    /// Parts of `stripe` that must be stored before the seal.
    pub(crate) fn wanted(&self, stripe: usize) -> impl Iterator<Item = Part> + '_ {
        let data = (0..DATA).filter(move |&index| self.records[stripe][index] != 0).map(Part::Data);
        let parity = (self.records[stripe] != [0; DATA]).then_some(Part::Parity);
        data.chain(parity)
    }

    pub(crate) fn complete(&self) -> bool {
        (0..STRIPES).all(|stripe| self.wanted(stripe).all(|part| self.done[stripe] & part.bit() != 0))
    }
}

/// The whole world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) plan: Plan,
    pub(crate) registry: Registry,
    pub(crate) runs: [Option<Run>; RUNS],
    pub(crate) fragments: Fragments,
    /// The durable fence of each target.
    pub(crate) fence: [u8; TARGETS],
    /// A target whose contents are gone.
    pub(crate) lost: Option<u8>,
    /// One that has an empty disk since, and the set of runs that were being written before.
    pub(crate) exchanged: Option<(u8, u8)>,
    /// What the writer's requests stored, by run and stripe: the answers it holds or may still get.
    pub(crate) answers: [[u8; STRIPES]; RUNS],
    pub(crate) recoverers: [Recoverer; 2],
    /// History: a second, different length was recorded.
    pub(crate) length_changed: bool,
    /// History: somebody relied on the log being at least this long.
    pub(crate) acted: Option<Length>,
}

impl State {
    pub(crate) fn new(plan: Plan) -> Self {
        let first = Run { from: 0, end: UNFINISHED, group: 0, dropped: false, of_writer: true, named: true };
        State {
            plan,
            registry: Registry::Open,
            runs: [Some(first), None, None, None],
            fragments: [[Stripe::EMPTY; STRIPES]; RUNS],
            fence: [0; TARGETS],
            lost: None,
            exchanged: None,
            answers: [[0; STRIPES]; RUNS],
            recoverers: [Recoverer::Idle; 2],
            length_changed: false,
            acted: None,
        }
    }

    /// The runs with their numbers.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, Run)> + '_ {
        self.runs.iter().enumerate().filter_map(|(number, run)| run.map(|run| (number, run)))
    }

    pub(crate) fn run(&self, number: usize) -> Run {
        self.runs[number].expect("actions name only runs that exist")
    }

    pub(crate) fn run_count(&self) -> usize {
        self.runs().count()
    }

    /// The newest run of the writer.
    pub(crate) fn writer_run(&self) -> usize {
        self.runs().filter(|(_, run)| run.of_writer).map(|(number, _)| number).last().expect("the log was opened")
    }

    pub(crate) fn is_lost(&self, target: usize) -> bool {
        self.lost == Some(target as u8)
    }

    /// An empty disk takes the place of a lost one. A claim that was made before is void.
    pub(crate) fn exchange(&mut self, target: usize, voids: bool) {
        let unfinished = self.runs().filter(|(_, run)| run.named && run.end == UNFINISHED);
        let runs = unfinished.fold(0, |set, (number, _)| set | 1 << number);
        for (number, run) in self.runs.into_iter().enumerate().filter_map(|(number, run)| run.map(|run| (number, run)))
        {
            for (stripe, stored) in self.fragments[number].iter_mut().enumerate() {
                for index in (0..DATA).filter(|&index| run.target(stripe, Part::Data(index)) == target) {
                    stored.data[index] = 0;
                }
                if run.target(stripe, Part::Parity) == target {
                    stored.parity = Stripe::EMPTY.parity;
                }
            }
        }
        (self.lost, self.exchanged) = (None, Some((target as u8, runs)));
        if matches!(self.registry, Registry::Sealing(_)) && voids {
            self.registry = Registry::Sealing(VOID);
        }
    }

    /// Whether the writer has all answers for a stripe in a run.
    pub(crate) fn complete(&self, run: usize, stripe: usize) -> bool {
        let answers = self.answers[run][stripe];
        let data = (0..self.plan.lengths[stripe] as usize).all(|index| answers & Part::Data(index).bit() != 0);
        // A stripe that the plan leaves empty is never begun.
        self.plan.lengths[stripe] == 0 || (data && answers & Part::Parity.bit() != 0)
    }

    pub(crate) fn complete_anywhere(&self, stripe: usize) -> bool {
        (0..RUNS).any(|run| self.complete(run, stripe))
    }

    /// The fragments without those on the targets outside of `visible`, a set.
    pub(crate) fn visible(&self, visible: u8) -> Fragments {
        let mut fragments = [[Stripe::EMPTY; STRIPES]; RUNS];
        for target in (0..TARGETS).filter(|target| visible & (1 << target) != 0) {
            self.copy_target(target, &mut fragments);
        }
        fragments
    }

    /// Adds to `view` what `target` holds.
    pub(crate) fn copy_target(&self, target: usize, view: &mut Fragments) {
        if self.is_lost(target) {
            return;
        }
        for (number, run) in self.runs() {
            for (stripe, stored) in self.fragments[number].iter().enumerate() {
                for index in (0..DATA).filter(|&index| run.target(stripe, Part::Data(index)) == target) {
                    view[number][stripe].data[index] = stored.data[index];
                }
                if run.target(stripe, Part::Parity) == target {
                    view[number][stripe].parity = stored.parity;
                }
            }
        }
    }
}
