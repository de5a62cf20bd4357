//! The machine that holds something: `registry::session` and `client::lease`, step by step; and another that is given it.

use crate::model::{Action, OneLease};
use crate::rules::Breach;
use crate::state::{Call, Renewal, Stage, State};

pub(crate) fn actions(model: &OneLease, state: &State, actions: &mut Vec<Action>) {
    if state.machine.renewals < model.renewals && !state.machine.over {
        actions.push(Action::Renew);
    }
    let answered = |renewal: &&Renewal| matches!(renewal.stage, Stage::Answered { .. });
    actions.extend(state.renewals.iter().filter(answered).map(|&renewal| Action::HearAnswer { renewal }));
    match state.machine.call {
        None => actions.push(Action::BeginCall),
        Some(_) if may_answer(model, state) => actions.push(Action::AnswerCall),
        Some(_) => {}
    }
    if state.expired && !state.changed {
        actions.push(Action::OthersChange);
    }
}

/// `Inner::confirm`: the lease holds after the call looked at what is in memory. One that ran out is waited for.
fn may_answer(model: &OneLease, state: &State) -> bool {
    match model.breach {
        Breach::NotConfirmed => !state.machine.over,
        _ => state.holds(),
    }
}

/// `session::renew`: it counts from before it was asked for.
pub(crate) fn renew(state: &mut State) {
    state.machine.renewals += 1;
    state.renewals.push(Renewal { sent: state.now(), stage: Stage::Sent });
}

/// `session::renew`, behind its call.
pub(crate) fn hear_answer(model: &OneLease, state: &mut State, renewal: Renewal) {
    state.remove(renewal);
    match renewal.stage {
        Stage::Answered { granted: true } => {
            let counted = if model.breach == Breach::CountedFromAnswer { state.now() } else { renewal.sent };
            state.extend(counted);
        }
        _ => state.machine.over = true,
    }
}

/// A program asks for something, which is looked at in memory.
pub(crate) fn begin_call(state: &mut State) {
    state.machine.call = Some(Call { is_behind: state.changed });
}

pub(crate) fn answer_call(state: &mut State) {
    let call = state.machine.call.take().expect("only a call that is there is answered");
    state.stale |= call.is_behind;
}

impl State {
    /// Takes a renewal from the network.
    pub(crate) fn remove(&mut self, renewal: Renewal) {
        let at = self.renewals.iter().position(|&other| other == renewal).expect("it is on its way");
        self.renewals.remove(at);
    }

    /// Puts one there.
    pub(crate) fn put(&mut self, renewal: Renewal) {
        self.renewals.push(renewal);
        self.renewals.sort_unstable();
    }
}
