//! The model as the checker sees it: steps and properties.

use protocol::id::MapEpoch;
use protocol::token::{Grant, TokenMode, TokenVersion};
use stateright::{Model, Property};

use crate::rules::Breach;
use crate::state::{Claim, Client, State, Wish, file};
use crate::{granter, holder};

/// A question to the checker: how large, and who breaks which rule.
#[derive(Clone, Debug)]
pub(crate) struct Handover {
    pub(crate) clients: usize,
    /// Several used the slot before; else nobody did.
    pub(crate) is_shared: bool,
    /// The file is there; else a client makes it.
    pub(crate) is_made: bool,
    /// How often each client may ask for the file.
    pub(crate) asks: u8,
    /// How often it may be written.
    pub(crate) writes: u8,
    /// How many messages, or their answers, nobody waits for any more: they are lost, or late, and are asked again.
    pub(crate) faults: u8,
    /// How often it may be forgotten.
    pub(crate) forgets: u8,
    /// How many clients may die.
    pub(crate) deaths: u8,
    /// How many managers the slot has, one after the other.
    pub(crate) epochs: u8,
    pub(crate) breach: Breach,
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Begin { client: usize, mode: TokenMode },
    End { client: usize },
    Make { client: usize },
    Record { client: usize },
    Apply { client: usize },
    Forget { client: usize },
    Die { client: usize },
    Hear { question: usize },
    Abandon { question: usize },
    Obey { calling: usize },
    Spoil { calling: usize },
    Close { calling: usize },
    GiveUp { calling: usize },
    Claim { client: usize },
    Greet { client: usize },
    Serve { question: usize },
    Leave { question: usize },
    HearGivenUp { calling: usize },
    CallAgain { calling: usize },
    CallOff { calling: usize },
    Void { calling: usize },
    TakeOver,
    HearClaim { client: usize },
    HearForgotten { at: usize },
}

pub(crate) const ONE_WRITES: &str = "one client writes, or many read";
pub(crate) const ALL_IS_KNOWN: &str = "what a client believes to hold its manager knows";
pub(crate) const NOTHING_STALE: &str = "a read returns what was written last";
pub(crate) const NO_DEAD_END: &str = "who waits is served in the end";

impl Model for Handover {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.clients, self.is_shared, self.is_made)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        holder::actions(self, state, actions);
        granter::actions(self, state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Begin { client, mode } => holder::begin(&mut next, client, mode),
            Action::End { client } => holder::end(&mut next, client),
            Action::Make { client } => holder::make(&mut next, client),
            Action::Record { client } => holder::record(&mut next, client),
            Action::Apply { client } => holder::apply(&mut next, client),
            Action::Forget { client } => holder::forget(&mut next, client),
            Action::Die { client } => holder::die(&mut next, client),
            Action::Hear { question } => holder::hear(self, &mut next, question),
            Action::Abandon { question } => holder::abandon(&mut next, question),
            Action::Obey { calling } => holder::obey(self, &mut next, calling),
            Action::Spoil { calling } => holder::spoil(self, &mut next, calling),
            Action::Close { calling } => holder::close(&mut next, calling),
            Action::GiveUp { calling } => holder::give_up(&mut next, calling),
            Action::Claim { client } => holder::claim(&mut next, client),
            Action::Greet { client } => granter::greet(self, &mut next, client),
            Action::Serve { question } => granter::serve(&mut next, question),
            Action::Leave { question } => granter::leave(&mut next, question),
            Action::HearGivenUp { calling } => granter::hear_given_up(&mut next, calling),
            Action::CallAgain { calling } => granter::call_again(&mut next, calling),
            Action::CallOff { calling } => granter::call_off(&mut next, calling),
            Action::Void { calling } => granter::void(self, &mut next, calling),
            Action::TakeOver => granter::take_over(self, &mut next),
            Action::HearClaim { client } => granter::hear_claim(self, &mut next, client),
            Action::HearForgotten { at } => granter::hear_forgotten(self, &mut next, at),
        }
        next.sort();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_WRITES, one_writes),
            Property::always(ALL_IS_KNOWN, all_is_known),
            Property::always(NOTHING_STALE, |_, state: &State| !state.is_stale),
            Property::always(NO_DEAD_END, no_dead_end),
            // Without these the model might hold because nothing happens in it.
            Property::sometimes("the first client writes what others use", |_, state: &State| writes_shared(state, 0)),
            Property::sometimes("the last client writes what others use", |model: &Handover, state: &State| {
                writes_shared(state, model.clients - 1)
            }),
            Property::sometimes("all keep what one of them wrote", |_, state: &State| {
                let mut contents = state.clients.iter().map(|client| client.content);
                contents
                    .all(|content| content.is_some_and(|content| content.number > 0 && content.number == state.written))
            }),
        ];
        if self.faults > 0 {
            properties.push(Property::sometimes("a grant comes too late to be taken", comes_too_late));
        }
        if self.forgets > 0 {
            properties
                .push(Property::sometimes("who forgot is granted it anew before that is heard", |_, state: &State| {
                    state.forgotten.iter().any(|&(client, _)| state.token(client).is_some())
                }));
        }
        if !self.is_made {
            properties.extend([
                Property::sometimes("who makes a file is granted it", |_, state: &State| made(state) == Some(true)),
                Property::sometimes("a new file is written before its maker hears of it", |_, state: &State| {
                    made(state).is_some() && state.written > 0
                }),
            ]);
        }
        if self.epochs > 1 {
            properties.extend([
                Property::sometimes("who takes over grants", |model: &Handover, state: &State| {
                    (0..model.clients).any(|client| is_granted_later(state, client) == Some(true))
                }),
                Property::sometimes("what was claimed is kept beside it", |model: &Handover, state: &State| {
                    let later =
                        |expected| (0..model.clients).any(|client| is_granted_later(state, client) == Some(expected));
                    later(false) && later(true)
                }),
            ]);
        }
        if self.deaths > 0 {
            properties.push(Property::sometimes("what a dead client had recorded is read", |_, state: &State| {
                let read =
                    |number| move |client: &Client| client.content.is_some_and(|content| content.number == number);
                state.replayed.is_some_and(|number| state.clients.iter().any(read(number)))
            }));
        }
        properties
    }
}

fn one_writes(model: &Handover, state: &State) -> bool {
    let believed = (0..model.clients).filter_map(|client| state.believes(client));
    let (writers, all) =
        believed.fold((0, 0), |(writers, all), mode| (writers + u8::from(mode == TokenMode::Write), all + 1));
    writers == 0 || all == 1
}

fn all_is_known(model: &Handover, state: &State) -> bool {
    let pairs = (0..model.clients).flat_map(|holder| (0..model.clients).map(move |other| (holder, other)));
    let mut pairs = pairs.filter(|(holder, other)| holder != other);
    !state.manager.hears()
        || pairs
            .all(|(holder, other)| granter::knows(&state.manager.granted, &state.clients[holder].held, holder, other))
}

/// While somebody waits there is a step which brings that nearer, and which nothing but time is needed for. Those are few, for
/// each of them uses something up.
fn no_dead_end(model: &Handover, state: &State) -> bool {
    let is_awaited = state.questions.iter().any(|question| question.is_awaited)
        || state.callings.iter().any(|calling| calling.is_awaited)
        || state.manager.claims.iter().any(|claim| *claim != Claim::Heard);
    let mut actions = Vec::new();
    if is_awaited {
        model.actions(state, &mut actions);
    }
    !is_awaited || actions.iter().any(|action| brings_nearer(state, action))
}

fn brings_nearer(state: &State, action: &Action) -> bool {
    match *action {
        Action::Begin { .. } | Action::Make { .. } | Action::Forget { .. } | Action::Die { .. } | Action::TakeOver => {
            false
        }
        Action::Leave { .. } | Action::CallAgain { .. } | Action::CallOff { .. } => false,
        Action::Abandon { question } => state.is_lost(&state.questions[question]),
        _ => true,
    }
}

fn writes_shared(state: &State, client: usize) -> bool {
    let client = &state.clients[client];
    client.works == Some(TokenMode::Write) && !client.held.is_whole()
}

/// An answer is on its way that grants the file, and will not be taken.
fn comes_too_late(_: &Handover, state: &State) -> bool {
    state.questions.iter().filter(|question| question.is_awaited).any(|question| {
        let Some(Some(Grant::Inode(token))) = question.answer else { return false };
        !state.clients[question.client].held.clone().end_ask(file(), question.asked, Some(token))
    })
}

/// Whether who made the file is granted it, where that is on its way back.
fn made(state: &State) -> Option<bool> {
    let question = state.questions.iter().find(|question| question.wish == Wish::Make)?;
    question.answer.map(|granted| granted.is_some())
}

/// Of what a client holds when all have claimed: whether it was granted since.
fn is_granted_later(state: &State, client: usize) -> Option<bool> {
    let token = state.token(client).filter(|_| state.manager.hears() && state.manager.epoch > 1)?;
    Some(token.version > TokenVersion::behind(MapEpoch(2)))
}
