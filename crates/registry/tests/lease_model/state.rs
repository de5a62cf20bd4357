//! What there is in the model: clocks, three voters of a registry, one machine that holds something, and what others do.
//!
//! Voters keep the product's own [`Leases`] and [`Witness`], and lengths of time are the product's. Time goes on in steps of a
//! second for all at once; each clock makes a little more or less of it, and began elsewhere.

use std::time::Duration;

use host::Moment;
use protocol::registry::{DRIFT, LEASE};
use registry::leases::{Holder, Leases};
use registry::witness::Witness;

use crate::rules::Breach;

/// Voters of the registry; two are a quorum.
pub(crate) const VOTERS: usize = 3;
/// The machine and its session.
pub(crate) const HOLDER: Holder = (1, 1);
/// What goes by between two steps of time, by a clock that is right.
const TICK: Duration = Duration::from_secs(1);

/// How fast a clock goes, in thousandths of the right speed.
pub(crate) type Rate = u16;

/// The clocks of the machine and of each voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rates {
    pub(crate) machine: Rate,
    pub(crate) voters: [Rate; VOTERS],
}

/// One voter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Voter {
    /// The latest term in which it voted: durable.
    pub(crate) voted: u8,
    pub(crate) witness: Witness,
    pub(crate) part: Part,
}

/// What a voter does in the term in which it voted last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// It follows.
    Follows,
    /// It stands for election. A vote is on its way, with how long ago who gave it noted last.
    Stands { vote: Option<Duration> },
    /// It leads. Of the others those that ever confirmed it: only a careless leader remembers.
    Leads { leases: Leases, confirmed: u8 },
}

/// A renewal on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Renewal {
    /// When it was sent, by the machine's clock.
    pub(crate) sent: Moment,
    pub(crate) stage: Stage,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// On its way there.
    Sent,
    /// At the leader of a term, confirmed by this set of the others since.
    Arrived { at: usize, term: u8, confirmed: u8 },
    /// On its way back.
    Answered { granted: bool },
}

/// A call that a program makes on the machine, and that is answered from memory: it looked there when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    /// What it looked at others had changed before it began.
    pub(crate) is_behind: bool,
}

/// The machine that holds something. It may stand still for ever or for a while at any time: its steps are never forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    /// The lease holds before this moment of its clock.
    pub(crate) until: Moment,
    /// The registry has told it that its session is over.
    pub(crate) over: bool,
    pub(crate) call: Option<Call>,
    /// How many renewals it sent.
    pub(crate) renewals: u8,
}

/// The whole world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) rates: Rates,
    pub(crate) ticks: u8,
    /// In how many of these seconds no leader could hear anybody.
    pub(crate) outages: u8,
    /// Seconds in a row in which the leader could have heard the machine and did not, where that is asked.
    pub(crate) unheard: u8,
    pub(crate) voters: [Voter; VOTERS],
    pub(crate) machine: Machine,
    /// In order, so that nothing is told apart by when it was sent alone.
    pub(crate) renewals: Vec<Renewal>,
    /// How many voters were started anew.
    pub(crate) restarts: u8,
    /// The maps say that the machine's session is over.
    pub(crate) expired: bool,
    /// Another machine was given what this one held, and has changed it.
    pub(crate) changed: bool,
    /// History: a call was answered with what others had changed before it began.
    pub(crate) stale: bool,
    /// History: a lease that had run out held again.
    pub(crate) held_again: bool,
    /// History: a leader of a later term granted a renewal.
    pub(crate) granted_later: bool,
    /// History: a leader gave the machine up that could not have heard it.
    pub(crate) misjudged: bool,
}

impl State {
    /// The first voter leads for a while already: the others confirmed it just now, and who is careless remembers.
    pub(crate) fn new(rates: Rates, breach: Breach) -> State {
        let now = std::array::from_fn(|voter| clock(rates.voters[voter], 1 + voter, 0));
        let follower = |now: Moment| Voter { voted: 1, witness: Witness::new(now), part: Part::Follows };
        let mut voters = now.map(follower);
        let confirmed = if breach == Breach::ConfirmedBefore { 0b110 } else { 0 };
        let mut leases = Leases::new(now[0]);
        leases.confirmed(now[0]);
        voters[0].part = Part::Leads { leases, confirmed };
        State {
            rates,
            ticks: 0,
            outages: 0,
            unheard: 0,
            voters,
            machine: Machine { until: Moment(0), over: false, call: None, renewals: 0 },
            renewals: Vec::new(),
            restarts: 0,
            expired: false,
            changed: false,
            stale: false,
            held_again: false,
            granted_later: false,
            misjudged: false,
        }
    }

    /// The machine's clock.
    pub(crate) fn now(&self) -> Moment {
        clock(self.rates.machine, 0, self.ticks)
    }

    /// A voter's clock.
    pub(crate) fn now_at(&self, voter: usize) -> Moment {
        clock(self.rates.voters[voter], 1 + voter, self.ticks)
    }

    /// A voter's clock when all began.
    pub(crate) fn begun_at(&self, voter: usize) -> Moment {
        clock(self.rates.voters[voter], 1 + voter, 0)
    }

    /// A voter's clock half a second ago.
    pub(crate) fn lately_at(&self, voter: usize) -> Moment {
        self.now_at(voter) - TICK * u32::from(self.rates.voters[voter]) / 2000
    }

    /// `Session::holds`.
    pub(crate) fn holds(&self) -> bool {
        !self.machine.over && self.now() < self.machine.until
    }

    /// `Shared::extend`, of a renewal sent at that moment.
    pub(crate) fn extend(&mut self, sent: Moment) {
        let held = self.holds() || self.machine.until == Moment(0);
        self.machine.until = self.machine.until.max(sent + (LEASE - DRIFT));
        self.held_again |= !held && self.holds();
    }

    /// The term that a voter leads.
    pub(crate) fn leads(&self, voter: usize) -> Option<u8> {
        let voter = &self.voters[voter];
        matches!(voter.part, Part::Leads { .. }).then_some(voter.voted)
    }

    /// The leases that the leader of a term knows.
    pub(crate) fn leases(&mut self, voter: usize) -> &mut Leases {
        match &mut self.voters[voter].part {
            Part::Leads { leases, .. } => leases,
            Part::Follows | Part::Stands { .. } => unreachable!("only leaders are asked about leases"),
        }
    }
}

/// A clock after so many steps. Each begins elsewhere: what is compared across machines shows.
fn clock(rate: Rate, begun: usize, ticks: u8) -> Moment {
    Moment(0) + TICK * (10 + 10 * begun as u32) + TICK * u32::from(ticks) * u32::from(rate) / 1000
}
