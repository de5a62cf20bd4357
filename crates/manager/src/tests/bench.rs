//! A manager's deciding core with its log in plain vectors: what the async driver does, without waiting.

use std::collections::BTreeMap;

use host::Moment;
use protocol::address::LogAddress;
use protocol::id::{LogId, SlotId, StripeNumber};
use protocol::intention::{Admission, IntentionId, Keep, Outcome, Prepare, Purpose, Settle};
use protocol::manager::{Answer, ManagerError, ManagerRequest};
use protocol::once::{CallId, OnceName, needs_once};

use super::{Dice, context};
use crate::attempt::{Attempt, Sketch, SlotTable};
use crate::journal;
use crate::key::Key;
use crate::ops::{self, Call, Decide, Done, Operation, Told};
use crate::page::Page;
use crate::slot::{PageId, Slot};
use crate::snapshot::{self, Snapshots};
use crate::state::SlotState;
use crate::transaction::Effect;

pub(crate) const SLOTS: [SlotId; 5] = [SlotId(0), SlotId(7), SlotId(8), SlotId(900), SlotId(4095)];
/// Three names or so.
const PART_BYTES_MAX: u64 = 100;
const IMAGES: LogId = LogId(900);
const CLIENT: LogId = LogId(901);
/// One operation of so many is carried out as if the slots were several managers'.
const SPANNING: i64 = 3;

/// A slot's image: how much of the journal it covers, and its index.
type Image = (usize, Vec<(Key, LogAddress)>);

pub(crate) struct Bench {
    pub(crate) table: SlotTable,
    pub(crate) now: i64,
    journal: Vec<Vec<u8>>,
    pages: BTreeMap<u32, Vec<u8>>,
    images: BTreeMap<SlotId, Image>,
    /// Splits that were asked for, or are under way.
    splits: Vec<Operation>,
    intentions: u64,
    calls: u64,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let states = SLOTS.map(|slot| SlotState::new(slot, Slot::empty(slot)));
        let mut bench = Bench {
            table: SlotTable::new(states.into(), PART_BYTES_MAX),
            now: 1_000_000,
            journal: Vec::new(),
            pages: BTreeMap::new(),
            images: BTreeMap::new(),
            splits: Vec::new(),
            intentions: 0,
            calls: 0,
        };
        bench.run(Operation::MakeRoot { uid: 0, gid: 0 }).unwrap();
        bench
    }

    pub(crate) fn ask(&mut self, request: ManagerRequest) -> Result<Answer, ManagerError> {
        if self.now % 2 == 0 && needs_once(&request) {
            return self.ask_twice(request);
        }
        match self.run(Operation::Asked(request))? {
            Done::Answer(answer) => Ok(answer),
            other => panic!("an asked operation ends with an answer, not {other:?}"),
        }
    }

    /// As a client on another node asks that does not get the first answer.
    fn ask_twice(&mut self, request: ManagerRequest) -> Result<Answer, ManagerError> {
        let slot = ops::slots(&Operation::Asked(request.clone()))[0];
        self.calls += 1;
        let name = OnceName { call: CallId { client: CLIENT, number: self.calls }, below: self.calls, slot };
        let call = Call { name, until: Moment(u64::MAX) };
        let first = self.run(Operation::Once(call, request.clone()))?;
        let records = self.records();
        let second = self.run(Operation::Once(call, request))?;
        assert_eq!(self.records(), records, "it takes effect once");
        match (first, second) {
            (Done::Answer(first), Done::Answer(second)) => {
                assert_eq!(format!("{first:?}"), format!("{second:?}"));
                Ok(second)
            }
            other => panic!("an asked operation ends with an answer, not {other:?}"),
        }
    }

    /// Runs an operation to its end, then reaps what it left. Splits are left for [`Bench::split_some`].
    pub(crate) fn run(&mut self, mut operation: Operation) -> Result<Done, ManagerError> {
        self.now += 1;
        let mut later = Vec::new();
        let done = loop {
            let (done, effects) = self.step(&operation)?;
            later.extend(effects.into_iter().filter_map(Effect::later));
            match done {
                Done::Again => {}
                Done::Then(next) => operation = next,
                done => break done,
            }
        };
        for operation in later {
            match operation {
                Operation::Split { .. } => self.splits.push(operation),
                _ => drop(self.run(operation)?),
            }
        }
        Ok(done)
    }

    /// Goes a step of a split, so that other operations come in between.
    pub(crate) fn split_some(&mut self, dice: &mut Dice) {
        if self.splits.is_empty() {
            return;
        }
        let split = self.splits.swap_remove(dice.below(self.splits.len() as u64) as usize);
        match self.step(&split) {
            Ok((Done::Then(next), _)) => self.splits.push(next),
            done => drop(done.expect("a split is never refused")),
        }
    }

    /// Goes one step, and leaves what comes later undone.
    pub(crate) fn step(&mut self, operation: &Operation) -> Result<(Done, Vec<Effect>), ManagerError> {
        let spans = ops::coordinator(operation, |_| true).is_some();
        if spans && self.now % SPANNING == 0 { self.span(operation) } else { self.alone(operation) }
    }

    /// As if the slots were several managers'.
    fn span(&mut self, operation: &Operation) -> Result<(Done, Vec<Effect>), ManagerError> {
        let mut snapshots = Snapshots::default();
        let (done, parts) = loop {
            match self.table.sketch(operation, context(self.now), &snapshots) {
                Sketch::Whole(done, parts) => break (done?, parts),
                Sketch::Lacking(wishes) => {
                    for fetch in snapshot::requests(&wishes, Purpose::Asked) {
                        let (slot, fetch) = (fetch.slot, Operation::Asked(ManagerRequest::Fetch(fetch)));
                        let Done::Answer(Answer::Fetched(fetched)) = self.alone(&fetch)?.0 else { panic!("fetched") };
                        assert!(snapshots.take_in(slot, fetched));
                    }
                }
            }
        };
        self.intentions += 1;
        let intention = IntentionId { log: IMAGES, number: self.intentions };
        let (own, others): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.slot <= SLOTS[1]);
        let (slots, coordinator) = (others.iter().map(|part| part.slot).collect::<Vec<_>>(), SLOTS[0]);
        let (keep, purpose) = (Keep::Journal, Purpose::Asked);
        let admission = Admission::default();
        let prepare = Prepare { intention, coordinator, keep, purpose, admission, parts: others };
        let (held, _) = self.alone(&Operation::Asked(ManagerRequest::Prepare(prepare)))?;
        assert!(matches!(held, Done::Answer(Answer::Held(true))), "nobody came in between");
        let admission = Admission::default();
        let stay = self.table.lock(coordinator).expect("a slot of the bench").stay;
        let decide =
            Decide { intention, coordinator, stay, parts: own, others: slots.clone(), admission, premise: None };
        let (decided, mut effects) = self.alone(&Operation::Decide(decide))?;
        assert!(matches!(decided, Done::Told(Told::Decided(true))));
        let settle = Settle { intention, slots, outcome: Outcome::Done };
        effects.extend(self.alone(&Operation::Asked(ManagerRequest::Settle(settle)))?.1);
        self.alone(&Operation::ForgetIntention(coordinator, intention))?;
        Ok((done, effects))
    }

    fn alone(&mut self, operation: &Operation) -> Result<(Done, Vec<Effect>), ManagerError> {
        loop {
            let journal = &mut self.journal;
            let attempt = self.table.attempt((operation, &mut ops::slots(operation)), context(self.now), |changes| {
                journal.push(journal::encode(changes));
                Ok(())
            });
            match attempt {
                Attempt::Load(page) => self.load(&page),
                Attempt::Call(call) => panic!("only one node asks here, and {call:?} is to be called back"),
                Attempt::Refused(error) => return Err(error),
                Attempt::Done(done, _, effects) => return Ok((done, effects)),
                Attempt::Held(_) | Attempt::Spans => panic!("one after the other, and all slots are here"),
            }
        }
    }

    /// Writes images of some slots, and drops clean pages.
    pub(crate) fn image_some(&mut self, dice: &mut Dice) {
        for slot in SLOTS {
            if dice.one_in(2) {
                continue;
            }
            let (covered, pages) = (self.journal.len(), &mut self.pages);
            let image = self.table.with(slot, |state| {
                let mut index = Vec::new();
                for copy in state.records.copies() {
                    let mut stored = copy.stored;
                    if let Some((page, version)) = copy.changed {
                        let address = page_address(pages.len() as u32);
                        pages.insert(address.offset, page.encode());
                        state.records.stored(&copy.low, version, address);
                        stored = Some(address);
                    }
                    index.extend(stored.map(|stored| (copy.low, stored)));
                }
                state.records.evict();
                state.records.evict();
                index
            });
            self.images.insert(slot, (covered, image.unwrap()));
        }
    }

    /// All records of all slots, from memory and images.
    pub(crate) fn records(&self) -> BTreeMap<(SlotId, Key), Vec<u8>> {
        self.records_of(&self.table)
    }

    /// All records of all slots, as a new manager would find them: images, and the journal beyond them.
    pub(crate) fn recovered(&self) -> BTreeMap<(SlotId, Key), Vec<u8>> {
        let states = SLOTS.map(|slot| {
            let (covered, index) = self.images.get(&slot).cloned().unwrap_or_default();
            let mut records = Slot::from_index(slot, index);
            for body in &self.journal[covered..] {
                for change in journal::decode(body).unwrap().into_iter().filter(|change| change.slot == slot) {
                    records.roll(change.key, change.value);
                }
            }
            SlotState::new(slot, records)
        });
        self.records_of(&SlotTable::new(states.into(), PART_BYTES_MAX))
    }

    /// Forgets everything in memory, open files included, and recovers.
    pub(crate) fn crash(&mut self) {
        let records = self.recovered();
        let states = SLOTS.map(|slot| {
            let mut recovered = Slot::empty(slot);
            for ((_, key), value) in records.range((slot, vec![])..=(slot, vec![0xff; 20])) {
                recovered.apply(key, Some(value));
            }
            SlotState::new(slot, recovered)
        });
        self.table = SlotTable::new(states.into(), PART_BYTES_MAX);
        self.images.clear();
        self.splits.clear();
        // Slots come back as they were without their images: the whole journal replays to the same.
    }

    fn records_of(&self, table: &SlotTable) -> BTreeMap<(SlotId, Key), Vec<u8>> {
        let mut all = BTreeMap::new();
        for slot in SLOTS {
            let mut from = vec![0];
            loop {
                let state = table.lock(slot).unwrap();
                let (key, value) = match state.records.next(&from, &[0xff; 20]) {
                    Ok(None) => break,
                    Ok(Some((key, value))) => (key.to_vec(), value.to_vec()),
                    Err(page) => {
                        drop(state);
                        table.fill(&page, Page::decode(&self.pages[&page.address.offset]).unwrap());
                        continue;
                    }
                };
                from = crate::transaction::behind(&key);
                all.insert((slot, key), value);
            }
        }
        all
    }

    fn load(&self, page: &PageId) {
        self.table.fill(page, Page::decode(&self.pages[&page.address.offset]).unwrap());
    }
}

fn page_address(number: u32) -> LogAddress {
    LogAddress { log: IMAGES, stripe: StripeNumber(0), offset: number, length: 1 }
}
