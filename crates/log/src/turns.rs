//! Whose turn it is to be asked for, of pieces that will be wanted soon. Decides; what awaits is [`Turns::wait`] alone.
//!
//! Who asks for all of them at once has them in the order in which links and targets give them, and whichever is slowest holds
//! up a program that reads in order. So a target is asked for little ahead, and what waits can still be had another way.
//!
//! Rules
//! 1. A target is asked ahead for at most [`ASKED_MAX`] bytes, but for the last piece. What is more waits, and goes in the
//!    order in which it came.
//! 2. A target that has answered, and for which nothing waits, gives a parity in place of the first that waits for another
//!    one.
//! 3. What somebody waits for has its turn at once, by whichever way has room.
//! 4. Of a stripe one fragment at most is gone around, for the others are needed for it. If somebody waits they have their
//!    turn with it.
//! 5. A turn ends with the target's answer: whoever has one waits for nobody who has none.
//!
//! Invariants
//! 1. Nothing waits for a target that has room, where that is its first choice.
//! 2. So where something waits, something else is being asked for, and its end gives the next one its turn.
//! 3. What waits is in the line of each of its ways, and nothing else is. A line is kept only while it says something.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use protocol::address::LogAddress;
use protocol::id::{LogId, StripeNumber, TargetId};

use crate::detour::{Detour, Way, Ways};

/// How much a target is asked for ahead, in bytes: one fragment on its way, and one that is asked for.
const ASKED_MAX: u64 = 1 << 20;

/// All that waits, and all whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<State>);

/// In the order in which they came.
type Number = u64;

#[derive(Debug, Default)]
struct State {
    lines: BTreeMap<TargetId, Line>,
    waiting: BTreeMap<Number, Waiting>,
    /// Where in its stripe each of them lies.
    places: BTreeSet<(LogId, StripeNumber, u32, Number)>,
    /// Those whose turn has come, until they know it.
    granted: BTreeMap<Number, Granted>,
    /// Of those whose turn has come since anybody was woken.
    woken: Vec<Waker>,
    last: Number,
}

/// A target that is asked, or waited for.
#[derive(Debug, Default)]
struct Line {
    /// Bytes asked for by those whose turn it is.
    asked: u64,
    /// Those for whom it is the first choice.
    first: BTreeSet<Number>,
    /// Those who would go around another one by it.
    other: BTreeSet<Number>,
}

#[derive(Debug)]
struct Waiting {
    ways: Ways,
    waker: Option<Waker>,
}

#[derive(Clone, Debug)]
struct Granted {
    way: Way,
    length: u32,
}

/// A turn: while it lasts a target is being asked.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    granted: Granted,
}

/// A place in lines, which is given up when this is dropped.
struct Place<'a> {
    turns: &'a Turns,
    number: Number,
}

impl Turn {
    /// The way around that is to be gone, if one is.
    pub fn detour(&self) -> Option<&Detour> {
        self.granted.way.detour.as_ref()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.change(|state| state.end(&self.granted));
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.turns.change(|state| state.leave(self.number));
    }
}

impl Turns {
    /// Waits for the turn of a piece.
    pub(crate) async fn wait(self: &Arc<Turns>, ways: Ways) -> Turn {
        let place = Place { turns: self, number: self.change(|state| state.enter(ways)) };
        let granted = std::future::poll_fn(|context| self.lock().poll(place.number, context.waker())).await;
        Turn { turns: self.clone(), granted }
    }

    /// Somebody waits for what lies at `address`.
    pub(crate) fn hurry(&self, address: LogAddress) {
        self.change(|state| state.hurry(address));
    }

    /// How many bytes each target is asked for, and will be if whatever waits goes its first way.
    pub(crate) fn loads(&self) -> BTreeMap<TargetId, u64> {
        let state = self.lock();
        let mut loads: BTreeMap<_, _> = state.lines.iter().map(|(&target, line)| (target, line.asked)).collect();
        for Waiting { ways, .. } in state.waiting.values() {
            *loads.entry(ways.first.target).or_default() += u64::from(ways.address.length);
        }
        loads
    }

    /// Changes something, and wakes those whose turn has come by it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, woken) = {
            let mut state = self.lock();
            let result = change(&mut state);
            (result, std::mem::take(&mut state.woken))
        };
        woken.into_iter().for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes in a piece, and gives it its turn if its first choice has room.
    fn enter(&mut self, ways: Ways) -> Number {
        self.last += 1;
        let (number, address) = (self.last, ways.address);
        let free = Some(&ways.first).filter(|way| self.has_room(way)).cloned();
        self.lines.entry(ways.first.target).or_default().first.insert(number);
        for way in &ways.other {
            self.lines.entry(way.target).or_default().other.insert(number);
        }
        self.places.insert((address.log, address.stripe, address.offset, number));
        self.waiting.insert(number, Waiting { ways, waker: None });
        if let Some(way) = free {
            self.grant(number, way);
        }
        number
    }

    fn poll(&mut self, number: Number, waker: &Waker) -> Poll<Granted> {
        if let Some(granted) = self.granted.remove(&number) {
            return Poll::Ready(granted);
        }
        self.waiting.get_mut(&number).expect("whoever polls waits").waker = Some(waker.clone());
        Poll::Pending
    }

    /// Nobody polls any more: it has its turn, or gives up.
    fn leave(&mut self, number: Number) {
        if let Some(granted) = self.granted.remove(&number) {
            self.end(&granted);
        } else if self.waiting.contains_key(&number) {
            self.step_out(number);
        }
    }

    /// A target has answered, or nobody wants its answer any more.
    fn end(&mut self, granted: &Granted) {
        let target = granted.way.target;
        if granted.way.is_here {
            return;
        }
        self.lines.get_mut(&target).expect("a target that is asked has a line").asked -= u64::from(granted.length);
        while let Some((number, way)) = self.next(target) {
            self.grant(number, way);
        }
        self.tidy(target);
    }

    /// Whose turn it is at a target, if it has room.
    fn next(&self, target: TargetId) -> Option<(Number, Way)> {
        let line = self.lines.get(&target).filter(|line| line.has_room())?;
        let number = *line.first.first().or(line.other.first())?;
        let way = self.waiting[&number].ways.all().find(|way| way.target == target);
        Some((number, way.expect("what is in a line has a way by its target").clone()))
    }

    fn hurry(&mut self, address: LogAddress) {
        let end = address.offset + address.length;
        for number in self.of_stripe(address.log, address.stripe) {
            // Its turn may have come with that of another one.
            let Some(Waiting { ways, .. }) = self.waiting.get(&number) else { continue };
            let (start, length) = (ways.address.offset, ways.address.length);
            if start < end && start + length > address.offset {
                let way = ways.all().find(|way| self.has_room(way)).unwrap_or(&ways.first).clone();
                let is_around = way.detour.is_some();
                self.grant(number, way);
                if is_around {
                    self.hurry_all(address);
                }
            }
        }
    }

    /// Whatever waits of a stripe of which something that somebody waits for is gone around.
    fn hurry_all(&mut self, address: LogAddress) {
        for number in self.of_stripe(address.log, address.stripe) {
            let way = self.waiting[&number].ways.first.clone();
            self.grant(number, way);
        }
    }

    fn grant(&mut self, number: Number, way: Way) {
        let address = self.step_out(number);
        if !way.is_here {
            self.lines.entry(way.target).or_default().asked += u64::from(address.length);
        }
        if let Some(detour) = &way.detour {
            self.keep_to(address, detour.wanted());
        }
        self.granted.insert(number, Granted { way, length: address.length });
    }

    /// One fragment of a stripe is gone around: the others are not.
    fn keep_to(&mut self, address: LogAddress, gone_around: u8) {
        for number in self.of_stripe(address.log, address.stripe) {
            let ways = &mut self.waiting.get_mut(&number).expect("what has a place waits").ways;
            let is_same = |way: &Way| way.detour.as_ref().is_some_and(|detour| detour.wanted() == gone_around);
            let (kept, left): (_, Vec<Way>) = std::mem::take(&mut ways.other).into_iter().partition(is_same);
            ways.other = kept;
            for way in left {
                self.lines.get_mut(&way.target).expect("what waits is in lines").other.remove(&number);
                self.tidy(way.target);
            }
        }
    }

    /// Takes something out of all lines, and tells whoever waits for that; where it lies.
    fn step_out(&mut self, number: Number) -> LogAddress {
        let Waiting { ways, waker } = self.waiting.remove(&number).expect("what steps out waits");
        let address = ways.address;
        self.places.remove(&(address.log, address.stripe, address.offset, number));
        for way in ways.all() {
            let line = self.lines.get_mut(&way.target).expect("what waits is in lines");
            line.first.remove(&number);
            line.other.remove(&number);
            self.tidy(way.target);
        }
        self.woken.extend(waker);
        address
    }

    /// What waits of a stripe.
    fn of_stripe(&self, log: LogId, stripe: StripeNumber) -> Vec<Number> {
        let all = self.places.range((log, stripe, 0, 0)..=(log, stripe, u32::MAX, Number::MAX));
        all.map(|&(.., number)| number).collect()
    }

    fn has_room(&self, way: &Way) -> bool {
        way.is_here || self.lines.get(&way.target).is_none_or(Line::has_room)
    }

    fn tidy(&mut self, target: TargetId) {
        if self.lines.get(&target).is_some_and(Line::says_nothing) {
            self.lines.remove(&target);
        }
    }
}

impl Line {
    fn has_room(&self) -> bool {
        self.asked < ASKED_MAX
    }

    fn says_nothing(&self) -> bool {
        self.asked == 0 && self.first.is_empty() && self.other.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::fragment::{FragmentId, Geometry, Part};
    use protocol::id::RunNumber;

    use super::*;

    const SIZE: u32 = (ASKED_MAX / 2) as u32;
    const GEOMETRY: Geometry = Geometry { data: 3, parity: 1, fragment_size: SIZE };
    const LOG: LogId = LogId(1);

    fn address(stripe: u64, index: u8) -> LogAddress {
        LogAddress { log: LOG, stripe: StripeNumber(stripe), offset: u32::from(index) * SIZE, length: SIZE }
    }

    fn straight(target: u32) -> Way {
        Way { target: TargetId(target), is_here: false, detour: None }
    }

    fn around(address: LogAddress, target: u32) -> Way {
        let parity = FragmentId { log: LOG, stripe: address.stripe, run: RunNumber(0), part: Part::Parity(0) };
        let detour = Detour { address, geometry: GEOMETRY, parity, target: TargetId(target) };
        Way { target: detour.target, is_here: false, detour: Some(detour) }
    }

    /// A fragment that lies on a target, in a stripe whose parity lies on another.
    fn piece(stripe: u64, index: u8, target: u32, parity: u32) -> Ways {
        let address = address(stripe, index);
        Ways { address, first: straight(target), other: vec![around(address, parity)] }
    }

    impl State {
        /// Asks a target for a piece of each of two stripes, which is all that it is asked for ahead.
        fn fill(&mut self, target: u32, stripes: std::ops::Range<u64>) {
            for stripe in stripes {
                self.enter(piece(stripe, 0, target, if target == 9 { 7 } else { 9 }));
            }
            assert!(!self.has_room(&straight(target)));
        }

        /// The target of what has its turn, and whether another one is gone around by it.
        fn turn(&self, number: Number) -> Option<(u32, bool)> {
            let granted = self.granted.get(&number)?;
            Some((granted.way.target.0, granted.way.detour.is_some()))
        }

        fn end_of(&mut self, number: Number) {
            let granted = self.granted.remove(&number).expect("its turn has come");
            self.end(&granted);
        }

        fn check(&self) {
            let mut lines: BTreeMap<TargetId, (u64, BTreeSet<Number>, BTreeSet<Number>)> = BTreeMap::new();
            for granted in self.granted.values().filter(|granted| !granted.way.is_here) {
                lines.entry(granted.way.target).or_default().0 += u64::from(granted.length);
            }
            for (&number, Waiting { ways, .. }) in &self.waiting {
                assert!(!self.has_room(&ways.first), "{number} waits for a target that has room");
                lines.entry(ways.first.target).or_default().1.insert(number);
                for way in &ways.other {
                    lines.entry(way.target).or_default().2.insert(number);
                }
            }
            let told: BTreeMap<_, _> =
                self.lines.iter().map(|(&at, it)| (at, (it.asked, it.first.clone(), it.other.clone()))).collect();
            assert_eq!(told, lines);
            assert_eq!(self.places.len(), self.waiting.len());
        }
    }

    #[test]
    fn a_target_is_asked_for_little_ahead_and_in_order() {
        let mut state = State::default();
        let [first, second, third, fourth] = [0, 1, 2, 3].map(|stripe| state.enter(piece(stripe, 0, 7, 8)));
        let turns = |state: &State| [first, second, third, fourth].map(|number| state.turn(number).is_some());
        assert_eq!(turns(&state), [true, true, false, false]);
        state.end_of(second);
        assert_eq!((state.turn(third), state.turn(fourth)), (Some((7, false)), None));
        state.leave(third);
        assert_eq!(state.turn(fourth), Some((7, false)), "whoever gives up makes room, too");
        state.check();
    }

    #[test]
    fn a_target_with_nothing_to_do_gives_a_parity_for_the_first_that_waits_for_another() {
        let mut state = State::default();
        state.fill(7, 0..2);
        let [third, fourth] = [2, 3].map(|stripe| state.enter(piece(stripe, 0, 7, 8)));
        let own = [4, 5, 6].map(|stripe| state.enter(piece(stripe, 1, 8, 9)));
        state.end_of(own[0]);
        assert_eq!((state.turn(own[2]), state.turn(third)), (Some((8, false)), None), "what waits for it goes first");
        state.end_of(own[1]);
        assert_eq!((state.turn(third), state.turn(fourth)), (Some((8, true)), None));
        state.check();
    }

    #[test]
    fn what_somebody_waits_for_has_its_turn_at_once() {
        let mut state = State::default();
        state.fill(7, 0..2);
        let around = state.enter(piece(2, 0, 7, 8));
        state.hurry(address(1, 0));
        assert_eq!(state.turn(around), None);
        state.hurry(address(2, 0).part(10, 10));
        assert_eq!(state.turn(around), Some((8, true)));
        let late = state.enter(piece(3, 0, 7, 9));
        state.fill(9, 4..6);
        state.hurry(address(3, 0));
        assert_eq!(state.turn(late), Some((7, false)), "where nothing has room it is asked for all the same");
        state.check();
    }

    #[test]
    fn one_fragment_of_a_stripe_is_gone_around_and_what_is_waited_for_takes_the_others_along() {
        let mut state = State::default();
        state.fill(7, 0..2);
        state.fill(6, 2..4);
        let [one, other] = [(0, 7), (1, 6)].map(|(index, target)| state.enter(piece(4, index, target, 8)));
        state.hurry(address(4, 0));
        assert_eq!((state.turn(one), state.turn(other)), (Some((8, true)), Some((6, false))));
        let [one, other] = [(0, 7), (1, 6)].map(|(index, target)| state.enter(piece(5, index, target, 8)));
        let last = state.enter(piece(6, 0, 8, 9));
        state.end_of(last);
        assert_eq!((state.turn(one), state.turn(other)), (Some((8, true)), None), "nobody waits for it");
        assert!(state.waiting[&other].ways.other.is_empty());
        state.check();
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u64),
        End(prop::sample::Index),
        Leave(prop::sample::Index),
        Hurry(u64, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..9_u64).prop_map(Step::Enter),
            any::<prop::sample::Index>().prop_map(Step::End),
            any::<prop::sample::Index>().prop_map(Step::End),
            any::<prop::sample::Index>().prop_map(Step::Leave),
            ((0..9_u64), (0..3_u8)).prop_map(|(stripe, index)| Step::Hurry(stripe, index)),
        ]
    }

    proptest! {
        #[test]
        fn everything_has_its_turn(steps in prop::collection::vec(step(), 1..80)) {
            let mut state = State::default();
            for step in steps {
                let granted: Vec<Number> = state.granted.keys().copied().collect();
                let all: Vec<Number> = state.granted.keys().chain(state.waiting.keys()).copied().collect();
                match step {
                    // All of a stripe, over five of six targets.
                    Step::Enter(stripe) => {
                        let target = |at: u64| ((stripe + at) % 6) as u32;
                        for at in 0..3 {
                            let mut ways = piece(stripe, at as u8, target(at), target(3));
                            ways.other.push(around(ways.address, target(4)));
                            state.enter(ways);
                        }
                    }
                    Step::End(which) if !granted.is_empty() => state.end_of(*which.get(&granted)),
                    Step::Leave(which) if !all.is_empty() => state.leave(*which.get(&all)),
                    Step::End(_) | Step::Leave(_) => {}
                    Step::Hurry(stripe, index) => {
                        state.hurry(address(stripe, index));
                        prop_assert!(state.waiting.values().all(|it| it.ways.address != address(stripe, index)));
                    }
                }
                state.check();
            }
            while let Some((&number, _)) = state.granted.first_key_value() {
                state.end_of(number);
                state.check();
            }
            prop_assert!(state.waiting.is_empty() && state.lines.is_empty());
        }
    }
}
