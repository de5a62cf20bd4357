//! A client: `client::pins`, `client::call_backs`, `client::claims` and `client::forgotten`, step by step. It decides by
//! `client::tokens` itself.

use client::tokens::{Demand, Kept, Pinned, SlotTokens as Holding, Turn};
use manager::tokens::What;
use protocol::token::{Grant, Token, TokenMode, TokenVersion};

use crate::model::{Action, Handover};
use crate::rules::Breach;
use crate::state::{Calling, Claim, Client, Content, Place, Question, Stage, State, Wish, client, file};

pub(crate) fn actions(model: &Handover, state: &State, actions: &mut Vec<Action>) {
    for (client, own) in state.clients.iter().enumerate() {
        let modes =
            [TokenMode::Read, TokenMode::Write].into_iter().filter(|mode| may_begin(model, state, client, *mode));
        actions.extend(modes.map(|mode| Action::Begin { client, mode }));
        let may_end = |mode| mode == TokenMode::Write || own.content.is_some() || state.manager.hears();
        if own.works.is_some_and(may_end) {
            actions.push(Action::End { client });
        }
        let makes = |question: &Question| question.client == client && question.wish == Wish::Make;
        if !state.is_made && own.asked < model.asks && !state.questions.iter().any(makes) {
            actions.push(Action::Make { client });
        }
        if own.content.is_some_and(|content| content.place == Place::Memory) {
            actions.push(Action::Record { client });
        }
        if own.logged.is_some() && state.manager.hears() {
            actions.push(Action::Apply { client });
        }
        let is_unused = own.is_settled() && !own.held.is_busy(file());
        if state.forgets < model.forgets && is_unused && state.token(client).is_some() {
            actions.push(Action::Forget { client });
        }
        if state.manager.claims[client] == Claim::Unasked {
            actions.push(Action::Claim { client });
        }
        if state.clients.iter().map(|client| client.life - 1).sum::<u8>() < model.deaths {
            actions.push(Action::Die { client });
        }
    }
    for (question, asked) in state.questions.iter().enumerate().filter(|(_, asked)| asked.is_awaited) {
        if asked.answer.is_some() {
            actions.push(Action::Hear { question });
        }
        if state.is_lost(asked) || state.faults < model.faults {
            actions.push(Action::Abandon { question });
        }
    }
    for (calling, sent) in state.callings.iter().enumerate() {
        call_back_actions(model, state, (calling, sent), actions);
    }
}

fn may_begin(model: &Handover, state: &State, client: usize, mode: TokenMode) -> bool {
    let own = &state.clients[client];
    if mode == TokenMode::Write && state.writes >= model.writes {
        return false;
    }
    match own.held.clone().pin(file(), mode) {
        _ if !state.is_made => false,
        Pinned::Yes => own.works.is_none(),
        Pinned::Ask => own.asked < model.asks,
        Pinned::Wait => false,
    }
}

fn call_back_actions(model: &Handover, state: &State, (calling, sent): (usize, &Calling), actions: &mut Vec<Action>) {
    let own = &state.clients[client(sent.begun.call.holder)];
    match (&sent.stage, sent.begun.call.what) {
        (Stage::Sent, _) if sent.life < own.life && model.breach != Breach::EarlierLifeIsAnswered => {}
        (Stage::Sent, What::Slot) => actions.push(Action::Obey { calling }),
        (Stage::Sent, What::Inode(..)) => match own.held.clone().demand(file(), version(model, state, sent)) {
            Demand::Nothing | Demand::GiveUp => actions.push(Action::Obey { calling }),
            Demand::Wait => actions.push(Action::Spoil { calling }),
            Demand::Follow => {}
        },
        (Stage::Called, _) => actions.push(Action::Close { calling }),
        (Stage::Closed, _) => {
            let is_free = !own.held.is_pinned(file()) || model.breach == Breach::GivenUpPinned;
            if is_free && (own.is_settled() || model.breach == Breach::GivenUpUnstored) {
                actions.push(Action::GiveUp { calling });
            }
        }
        (Stage::Answered(_), _) => {}
    }
}

/// Which grant a call-back means.
fn version(model: &Handover, state: &State, calling: &Calling) -> TokenVersion {
    match model.breach {
        Breach::CallBackWithoutVersion => {
            state.token(client(calling.begun.call.holder)).map(|token| token.version).unwrap_or_default()
        }
        _ => calling.begun.version,
    }
}

/// A program reads or writes (`Inner::pin`): under a token that is held, or behind a question for it.
pub(crate) fn begin(state: &mut State, client: usize, mode: TokenMode) {
    let own = &mut state.clients[client];
    match own.held.pin(file(), mode) {
        Pinned::Yes => own.works = Some(mode),
        Pinned::Wait => unreachable!("who waits does nothing"),
        Pinned::Ask => ask(state, client, Wish::Token(mode)),
    }
}

fn ask(state: &mut State, client: usize, wish: Wish) {
    let own = &mut state.clients[client];
    own.asked += 1;
    let (life, turn, epoch) = (own.life, Turn(own.turn), state.manager.epoch);
    let question = Question { client, life, wish, asked: turn, sent: turn, epoch, is_awaited: true, answer: None };
    state.questions.push(question);
}

/// A program makes the file (`Inner::try_make_open`).
pub(crate) fn make(state: &mut State, client: usize) {
    ask(state, client, Wish::Make);
}

/// The call does its work. What is not in memory it reads where managers say that it is.
pub(crate) fn end(state: &mut State, client: usize) {
    let stored = state.stored;
    let own = &mut state.clients[client];
    let mode = own.works.take().expect("a call works");
    if mode == TokenMode::Write {
        state.writes += 1;
        state.written = state.writes;
        own.content = Some(Content { number: state.writes, place: Place::Memory });
    } else {
        let read = own.content.get_or_insert(Content { number: stored, place: Place::Manager });
        state.is_stale |= read.number != state.written;
    }
    own.held.unpin(file(), mode);
}

/// What was changed is in the client's log.
pub(crate) fn record(state: &mut State, client: usize) {
    let own = &mut state.clients[client];
    let content = own.content.as_mut().expect("something was changed");
    content.place = Place::Log;
    own.logged = Some(content.number);
}

/// A delta reaches the manager, and is acknowledged.
pub(crate) fn apply(state: &mut State, client: usize) {
    let own = &mut state.clients[client];
    state.stored = own.logged.take().expect("something was recorded");
    if let Some(content) = own.content.as_mut().filter(|content| content.place == Place::Log) {
        content.place = Place::Manager;
    }
}

/// What nobody uses is forgotten, and managers are told in time.
pub(crate) fn forget(state: &mut State, client: usize) {
    let own = &mut state.clients[client];
    own.content = None;
    let token = own.held.forget(file()).expect("a token is held");
    state.forgets += 1;
    state.forgotten.push((client, token));
}

/// `Inner::ask_node`, and what follows: an answer comes.
pub(crate) fn hear(model: &Handover, state: &mut State, question: usize) {
    let Question { client, wish, asked, sent, answer, .. } = state.questions.remove(question);
    let is_bold = model.breach == Breach::GrantBehindClaim;
    let [asked, sent] = [asked, sent].map(|turn| if is_bold { Turn(u64::MAX) } else { turn });
    let own = &mut state.clients[client];
    let token = match answer.expect("an answer is heard") {
        Some(Grant::Inode(token)) => Some(token),
        Some(Grant::Slot(_)) => {
            own.held.take_whole(sent);
            None
        }
        None => None,
    };
    match wish {
        Wish::Token(_) => drop(own.held.end_ask(file(), asked, token)),
        Wish::Make => hear_made(model, own, asked, token),
    }
}

/// `Inner::opened_new`: where nobody else can have touched the new file, it is empty.
fn hear_made(model: &Handover, own: &mut Client, asked: Turn, token: Option<Token>) {
    let token = match model.breach {
        Breach::MadeIsTaken => token.map(|token| Token { version: TokenVersion(u64::MAX), ..token }),
        _ => token,
    };
    let is_untouched = own.held.take_made(file(), token, asked) || model.breach == Breach::MadeIsNew;
    if is_untouched && own.held.clone().pin_held(file()) == Some(Pinned::Yes) {
        own.content.get_or_insert(Content { number: 0, place: Place::Manager });
    }
}

/// The client takes its question for lost. Perhaps it is. That a file be made it asks again.
pub(crate) fn abandon(state: &mut State, question: usize) {
    let given_up = state.questions[question];
    let is_lost = state.is_lost(&given_up);
    state.faults += u8::from(!is_lost);
    if is_lost || given_up.answer.is_some() {
        state.questions.remove(question);
    } else {
        state.questions[question].is_awaited = false;
    }
    let own = &mut state.clients[given_up.client];
    match given_up.wish {
        Wish::Token(_) => drop(own.held.end_ask(file(), given_up.asked, None)),
        Wish::Make => {
            let (sent, epoch) = (Turn(own.turn), state.manager.epoch);
            state.questions.push(Question { sent, epoch, answer: None, ..given_up });
        }
    }
}

/// `Inner::give_up_slot`, or how `Inner::give_up` begins.
pub(crate) fn obey(model: &Handover, state: &mut State, calling: usize) {
    let sent = state.callings[calling].clone();
    let version = version(model, state, &sent);
    let own = &mut state.clients[client(sent.begun.call.holder)];
    let tokens = match sent.begun.call.what {
        What::Slot => {
            own.turn += 1;
            let turn = Turn(own.turn);
            let needed = if own.is_settled() { TokenMode::Read } else { TokenMode::Write };
            own.held.narrow(turn, version, own.content.map(|_| (file(), needed)).into_iter())
        }
        What::Inode(..) => match own.held.demand(file(), version) {
            Demand::GiveUp => {
                state.callings[calling].stage = Stage::Called;
                return;
            }
            Demand::Nothing => Vec::new(),
            Demand::Wait | Demand::Follow => unreachable!("who waits does nothing"),
        },
    };
    state.answer_call(calling, tokens);
}

/// The call-back has waited for a grant that may be on its way for long enough.
pub(crate) fn spoil(model: &Handover, state: &mut State, calling: usize) {
    let begun = state.callings[calling].begun;
    if model.breach == Breach::LateGrantIsTaken {
        return state.answer_call(calling, Vec::new());
    }
    state.clients[client(begun.call.holder)].held.spoil(file(), begun.version);
}

/// `Inner::shut`.
pub(crate) fn close(state: &mut State, calling: usize) {
    let sent = &mut state.callings[calling];
    sent.stage = Stage::Closed;
    state.clients[client(sent.begun.call.holder)].held.close(file());
}

/// `Inner::give_up`, when no call works and everything is stored.
pub(crate) fn give_up(state: &mut State, calling: usize) {
    let call = state.callings[calling].begun.call;
    let What::Inode(_, keep) = call.what else { unreachable!("a slot is given up at once") };
    let own = &mut state.clients[client(call.holder)];
    if keep.is_none() {
        own.content = None;
    }
    own.held.reopen(file(), keep.map_or(Kept::Nothing, Kept::Part));
    state.answer_call(calling, Vec::new());
}

/// `Inner::claim`.
pub(crate) fn claim(state: &mut State, client: usize) {
    let own = &mut state.clients[client];
    own.turn += 1;
    let tokens = own.held.claim(Turn(own.turn));
    state.manager.claims[client] = Claim::Told { life: own.life, is_whole: own.held.is_whole(), tokens };
}

/// A client's process ends, its log is sealed, and another one begins. What was in memory alone is lost.
pub(crate) fn die(state: &mut State, client: usize) {
    let own = &mut state.clients[client];
    if own.content.is_some_and(|content| content.place == Place::Memory) {
        state.written = own.logged.unwrap_or(state.stored);
    }
    state.left[client] = own.logged;
    *own = Client { life: own.life + 1, asked: own.asked, ..Client::new() };
    let life = own.life;
    let of_another = |question: &Question| question.client != client || question.life == life;
    state.questions.retain(|question| of_another(question) || question.answer.is_none());
    state
        .questions
        .iter_mut()
        .filter(|question| !of_another(question))
        .for_each(|question| question.is_awaited = false);
    let node = crate::state::node(client);
    state.callings.retain(|calling| calling.begun.call.holder != node || calling.is_awaited);
    for calling in state.callings.iter_mut().filter(|calling| calling.begun.call.holder == node) {
        if matches!(calling.stage, Stage::Called | Stage::Closed) {
            calling.stage = Stage::Sent;
        }
    }
    // Whoever takes over hears all anew (`Manager::hear_claims`).
    if !state.manager.hears() {
        state.manager.claims.fill(Claim::Unasked);
    }
}

impl Client {
    pub(crate) fn new() -> Client {
        let held = Holding::default();
        Client { life: 1, held, turn: 0, content: None, works: None, logged: None, asked: 0 }
    }

    /// Managers know all of what is in memory.
    fn is_settled(&self) -> bool {
        self.content.is_none_or(|content| content.place == Place::Manager)
    }
}

impl State {
    /// Nobody will answer the question.
    pub(crate) fn is_lost(&self, question: &Question) -> bool {
        question.answer.is_none() && question.epoch != self.manager.epoch
    }

    /// A call-back is answered, if somebody waits for that.
    fn answer_call(&mut self, calling: usize, tokens: Vec<Token>) {
        if self.callings[calling].is_awaited {
            self.callings[calling].stage = Stage::Answered(tokens);
        } else {
            self.callings.remove(calling);
        }
    }
}
