//! The manager of the slot: `manager::calls` and `manager::takeover`, step by step. It decides by `manager::tokens` itself.

use client::tokens::SlotTokens as Holding;
use host::Moment;
use manager::tokens::{Call, Refusal, SlotTokens as Granting};
use protocol::id::MapEpoch;
use protocol::token::{Grant, Token, TokenMode};

use crate::model::{Action, Handover};
use crate::rules::Breach;
use crate::state::{Calling, Claim, Manager, Question, SLOT, Stage, State, Wish, client, file, node};

/// When everything happens: only directories rest.
const NOW: Moment = Moment(0);

pub(crate) fn actions(model: &Handover, state: &State, actions: &mut Vec<Action>) {
    let manager = &state.manager;
    for (question, asked) in state.questions.iter().enumerate().filter(|(_, asked)| asked.answer.is_none()) {
        let (life, known) = (asked.life, manager.lives[asked.client]);
        if asked.epoch != manager.epoch || !manager.hears() {
            continue;
        }
        if life > known {
            actions.push(Action::Greet { client: asked.client });
            continue;
        }
        if life < known || is_moved(manager, asked) {
            actions.push(Action::Serve { question });
        }
        if state.faults < model.faults {
            actions.push(Action::Leave { question });
        }
    }
    for (calling, sent) in state.callings.iter().enumerate().filter(|(_, sent)| sent.is_awaited) {
        if let Stage::Answered(_) = sent.stage {
            actions.push(Action::HearGivenUp { calling });
        }
        if sent.life < state.clients[client(sent.begun.call.holder)].life {
            actions.push(Action::Void { calling });
        }
        if state.faults < model.faults {
            actions.extend([Action::CallAgain { calling }, Action::CallOff { calling }]);
        }
    }
    let told = manager.claims.iter().enumerate().filter(|(_, claim)| matches!(claim, Claim::Told { .. }));
    actions.extend(told.map(|(client, _)| Action::HearClaim { client }));
    actions.extend((0..state.forgotten.len()).map(|at| Action::HearForgotten { at }));
    if manager.epoch < model.epochs {
        actions.push(Action::TakeOver);
    }
}

/// Whether anything comes of looking at a question once more.
fn is_moved(manager: &Manager, asked: &Question) -> bool {
    let mut granted = manager.granted.clone();
    let tried = match asked.wish {
        Wish::Token(mode) => granted.grant(SLOT, node(asked.client), file(), mode).map(drop),
        Wish::Make => granted.admit(SLOT, node(asked.client)).map_err(Refusal::Call),
    };
    match tried {
        Ok(()) => return true,
        Err(Refusal::Call(call)) => drop(granted.begin(call, NOW)),
        Err(Refusal::Wait) => {}
    }
    granted != manager.granted
}

/// `Manager::grant`, one round of it; or a file is made.
pub(crate) fn serve(state: &mut State, question: usize) {
    let Question { client, life, wish, .. } = state.questions[question];
    let manager = &mut state.manager;
    if life < manager.lives[client] {
        return answer(state, question, None);
    }
    let granted = match wish {
        Wish::Token(mode) => manager.granted.grant(SLOT, node(client), file(), mode).map(Some),
        Wish::Make => manager.granted.admit(SLOT, node(client)).map_err(Refusal::Call).map(|()| made(state, client)),
    };
    match granted {
        Ok(granted) => answer(state, question, granted),
        Err(Refusal::Call(call)) => call_back(state, call),
        Err(Refusal::Wait) => {}
    }
}

/// `Manager::keep_made`. Made twice is made once (`ops::once`), and granted with the first answer.
fn made(state: &mut State, client: usize) -> Option<Grant> {
    let is_first = !std::mem::replace(&mut state.is_made, true);
    let granted = &mut state.manager.granted;
    if granted.is_whole_of(node(client)) {
        return Some(Grant::Slot(SLOT));
    }
    let beside = is_first.then(|| granted.grant_beside(node(client), file(), TokenMode::Write, NOW)).flatten();
    beside.map(|beside| Grant::Inode(beside.token))
}

fn answer(state: &mut State, question: usize, granted: Option<Grant>) {
    if state.questions[question].is_awaited {
        state.questions[question].answer = Some(granted);
    } else {
        state.questions.remove(question);
    }
}

/// `Manager::call_back`.
fn call_back(state: &mut State, call: Call) {
    let Manager { epoch, granted, lives, .. } = &mut state.manager;
    let life = lives[client(call.holder)];
    let begun = granted.begin(call, NOW);
    let calling = |begun| Calling { begun, epoch: *epoch, life, is_awaited: true, stage: Stage::Sent };
    state.callings.extend(begun.map(calling));
}

/// The manager has let it wait for too long.
pub(crate) fn leave(state: &mut State, question: usize) {
    state.faults += 1;
    state.manager.granted.leave(node(state.questions[question].client), file());
    answer(state, question, None);
}

/// A call-back has its answer.
pub(crate) fn hear_given_up(state: &mut State, calling: usize) {
    let Calling { begun, stage, .. } = state.callings.remove(calling);
    let Stage::Answered(tokens) = stage else { unreachable!("an answer is heard") };
    state.manager.granted.given_up(begun, &tokens);
}

/// A call-back is sent once more: it may be lost, or its answer, or late.
pub(crate) fn call_again(state: &mut State, calling: usize) {
    state.faults += 1;
    let again = Calling { stage: Stage::Sent, ..state.callings[calling].clone() };
    nobody_waits(state, calling);
    state.callings.push(again);
}

/// A call-back comes to nothing.
pub(crate) fn call_off(state: &mut State, calling: usize) {
    state.faults += 1;
    state.manager.granted.not_given_up(state.callings[calling].begun);
    nobody_waits(state, calling);
}

fn nobody_waits(state: &mut State, calling: usize) {
    state.callings[calling].is_awaited = false;
    if let Stage::Answered(_) = state.callings[calling].stage {
        state.callings.remove(calling);
    }
}

/// `Manager::is_over` and `Manager::void`: the log of the life that is called is sealed, and replayed.
pub(crate) fn void(model: &Handover, state: &mut State, calling: usize) {
    let Calling { begun, life, .. } = state.callings.remove(calling);
    let holder = begun.call.holder;
    replay(model, state);
    if state.manager.lives[client(holder)] == life {
        state.manager.granted.forget(holder);
    }
    state.manager.granted.not_given_up(begun);
}

/// `Manager::greet`: the first word of a life.
pub(crate) fn greet(model: &Handover, state: &mut State, client: usize) {
    replay(model, state);
    state.manager.granted.forget(node(client));
    state.manager.lives[client] = state.clients[client].life;
}

/// `Manager::replay_sealed`: what logs of dead clients have.
fn replay(model: &Handover, state: &mut State) {
    if model.breach == Breach::VoidedUnreplayed {
        return;
    }
    for left in state.left.iter_mut().filter_map(Option::take) {
        state.stored = left;
        state.replayed = Some(left);
    }
}

/// Another manager takes the slot over (`Manager::follow_map`). What the old one waited for nobody hears.
pub(crate) fn take_over(model: &Handover, state: &mut State) {
    let epoch = state.manager.epoch + 1;
    let begins = if model.breach == Breach::VersionWithoutEpoch { 0 } else { u64::from(epoch) };
    let count = state.clients.len();
    let (granted, claims) = (Granting::unheard(MapEpoch(begins)), vec![Claim::Unasked; count]);
    state.manager = Manager { epoch, granted, lives: vec![0; count], claims };
    state.questions.retain(|question| question.is_awaited);
    state.callings.retain(|calling| !matches!(calling.stage, Stage::Answered(_)));
    state.callings.iter_mut().for_each(|calling| calling.is_awaited = false);
    if model.breach == Breach::GrantedUnheard {
        state.manager.lives = state.clients.iter().map(|client| client.life).collect();
        state.manager.claims.fill(Claim::Heard);
        state.manager.granted.heard(false);
    }
}

/// `Manager::claims_of`, and what comes when all have claimed.
pub(crate) fn hear_claim(model: &Handover, state: &mut State, client: usize) {
    let claim = std::mem::replace(&mut state.manager.claims[client], Claim::Heard);
    let Claim::Told { life, is_whole, tokens } = claim else { unreachable!("a claim is heard") };
    // Another life may have claimed before.
    if (1..life).contains(&state.manager.lives[client]) {
        greet(model, state, client);
    }
    state.manager.lives[client] = life;
    if is_whole {
        state.manager.granted.claim_slot(node(client));
    }
    tokens.into_iter().for_each(|token| state.manager.granted.claim(node(client), token));
    if state.manager.claims.iter().all(|claim| *claim == Claim::Heard) {
        replay(model, state);
        state.manager.granted.heard(false);
    }
}

/// `Manager::forgotten`, perhaps not by the manager that granted it.
pub(crate) fn hear_forgotten(model: &Handover, state: &mut State, at: usize) {
    let (client, told) = state.forgotten.remove(at);
    let newest = match model.breach {
        Breach::ForgottenWithoutVersion => state.token(client),
        _ => None,
    };
    let token: Token = newest.unwrap_or(told);
    state.manager.granted.forgotten(node(client), token);
}

/// Whether the manager knows what a client believes to hold.
pub(crate) fn knows(granted: &Granting, held: &Holding, holder: usize, other: usize) -> bool {
    use protocol::token::TokenMode::{Read, Write};
    let is_kept = |mode| granted.admit_content(SLOT, node(other), file(), mode).is_err();
    let is_whole = granted.admit_look(SLOT, node(other)).is_err_and(|call| call.holder == node(holder));
    match held.mode(file()) {
        _ if is_whole => true,
        _ if held.is_whole() => false,
        Some(Write) => is_kept(Read),
        Some(_) => is_kept(Write),
        None => true,
    }
}

impl Manager {
    /// All have said what they hold.
    pub(crate) fn hears(&self) -> bool {
        !self.granted.is_unheard()
    }
}
