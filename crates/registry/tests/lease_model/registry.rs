//! The registry: who leads, confirms, grants and expires. `Registry::renew`, `look_at_leases` and `leader::lead`, step by
//! step; of the consensus library only that a quorum elects, that nobody confirms an earlier leader than it voted for, and that
//! what two voters have is agreed on.

use std::time::Duration;

use protocol::registry::LEASE;
use registry::leases::{Leases, RETURN};
use registry::witness::Witness;

use crate::model::{Action, OneLease};
use crate::rules::Breach;
use crate::state::{HOLDER, Part, Renewal, Stage, State, VOTERS};

pub(crate) fn actions(model: &OneLease, state: &State, actions: &mut Vec<Action>) {
    for &renewal in &state.renewals {
        match renewal.stage {
            Stage::Sent => {
                let leaders = (0..VOTERS).filter(|&voter| state.leads(voter).is_some());
                actions.extend(leaders.map(|at| Action::Arrive { renewal, at }));
            }
            Stage::Arrived { at, term, confirmed } => {
                let others = (0..VOTERS).filter(|&by| by != at && confirmed & (1 << by) == 0);
                let confirm = others.filter(|&by| confirms(model, state, by, term));
                actions.extend(confirm.map(|by| Action::Confirm { renewal, by }));
                let is_confirmed = confirmed != 0 || model.breach == Breach::GrantedAlone;
                if is_confirmed && state.leads(at) == Some(term) {
                    actions.push(Action::Grant { renewal });
                }
            }
            Stage::Answered { .. } => {}
        }
    }
    for voter in 0..VOTERS {
        leader_actions(model, state, voter, actions);
        election_actions(model, state, voter, actions);
        if state.restarts < model.restarts {
            actions.push(Action::Restart { voter });
        }
    }
}

fn leader_actions(model: &OneLease, state: &State, leader: usize, actions: &mut Vec<Action>) {
    let (Part::Leads { leases, .. }, term) = (&state.voters[leader].part, state.voters[leader].voted) else { return };
    let mut looked = leases.clone();
    looked.look(model.maps(state), None, state.now_at(leader));
    if looked != *leases {
        actions.push(Action::Look { leader });
    }
    if !leases.may_grant(HOLDER) && !state.expired {
        let others = (0..VOTERS).filter(|&by| by != leader && confirms(model, state, by, term));
        actions.extend(others.map(|by| Action::Expire { leader, by }));
    }
}

fn election_actions(model: &OneLease, state: &State, voter: usize, actions: &mut Vec<Action>) {
    let term = state.voters[voter].voted;
    if let Part::Stands { vote } = &state.voters[voter].part {
        match vote {
            Some(_) => actions.push(Action::Elect { leader: voter }),
            None => {
                let others = (0..VOTERS).filter(|&by| state.voters[by].voted < term);
                actions.extend(others.map(|by| Action::Vote { candidate: voter, by }));
            }
        }
    }
    if term < model.terms && state.leads(voter).is_none() {
        actions.push(Action::Stand { voter });
    }
}

/// A second goes by, in which leaders hear whoever still follows them.
pub(crate) fn go_on(model: &OneLease, state: &mut State) {
    state.ticks += 1;
    if model.outages > 0 {
        state.unheard += 1;
    }
    listen(model, state);
}

/// A second goes by, in which leaders hear nobody. Whom they waited for in vain before that they may give up yet; anybody else
/// may come back behind it.
pub(crate) fn hear_nothing(model: &OneLease, state: &mut State) {
    state.ticks += 1;
    state.outages += 1;
    let is_heard_out = Duration::from_secs(state.unheard.into()) >= LEASE;
    state.unheard = if is_heard_out { RETURN.as_secs() as u8 } else { 0 };
    if model.breach == Breach::DeafIsSilent {
        listen(model, state);
    }
}

/// Others have answered what leaders say all the time.
fn listen(model: &OneLease, state: &mut State) {
    for leader in 0..VOTERS {
        let Some(term) = state.leads(leader) else { continue };
        if (0..VOTERS).any(|by| by != leader && confirms(model, state, by, term)) {
            let moments = [state.lately_at(leader), state.now_at(leader)];
            moments.into_iter().for_each(|then| state.leases(leader).confirmed(then));
        }
    }
}

/// Whether a voter still follows the leader of a term.
fn confirms(model: &OneLease, state: &State, by: usize, term: u8) -> bool {
    state.voters[by].voted <= term || model.breach == Breach::ConfirmedAfterVote
}

/// `Registry::renew` notes, and tells the leases.
pub(crate) fn arrive(model: &OneLease, state: &mut State, renewal: Renewal, at: usize) {
    let (now, term) = (state.now_at(at), state.voters[at].voted);
    note(model, state, at);
    let in_time = state.leases(at).renewed(HOLDER, Duration::ZERO, now);
    if in_time {
        state.unheard = 0;
    }
    let ever = match &state.voters[at].part {
        Part::Leads { confirmed, .. } => *confirmed,
        Part::Follows | Part::Stands { .. } => 0,
    };
    let stage = match in_time || model.breach == Breach::DoomedIsGranted {
        true => Stage::Arrived { at, term, confirmed: ever },
        false => Stage::Answered { granted: false },
    };
    state.remove(renewal);
    state.put(Renewal { stage, ..renewal });
}

/// A voter hears from a leader that asks since the renewal arrived, and does not deny it. It notes before it answers.
pub(crate) fn confirm(model: &OneLease, state: &mut State, renewal: Renewal, by: usize) {
    let Stage::Arrived { at, term, confirmed } = renewal.stage else { unreachable!("what arrived is confirmed") };
    note(model, state, by);
    state.remove(renewal);
    state.put(Renewal { stage: Stage::Arrived { at, term, confirmed: confirmed | 1 << by }, ..renewal });
    if let (Part::Leads { confirmed, .. }, Breach::ConfirmedBefore) = (&mut state.voters[at].part, model.breach) {
        *confirmed |= 1 << by;
    }
}

/// `Registry::renew`, behind the round.
pub(crate) fn grant(model: &OneLease, state: &mut State, renewal: Renewal) {
    let Stage::Arrived { at, term, .. } = renewal.stage else { unreachable!("what arrived is granted") };
    let may_grant = state.leases(at).may_grant(HOLDER) || model.breach == Breach::DoomedIsGranted;
    // With the round this leader has heard of all that was agreed on before.
    let granted = may_grant && !state.expired;
    state.granted_later |= granted && term > 1;
    state.remove(renewal);
    state.put(Renewal { stage: Stage::Answered { granted }, ..renewal });
}

/// `leader::lead` looks.
pub(crate) fn look(model: &OneLease, state: &mut State, leader: usize) {
    let (maps, now) = (model.maps(state), state.now_at(leader));
    let leases = state.leases(leader);
    let lived = leases.may_grant(HOLDER);
    leases.look(maps, None, now);
    let is_given_up = lived && !leases.may_grant(HOLDER);
    let patience = if state.outages == 0 { LEASE } else { RETURN };
    state.misjudged |= model.outages > 0 && is_given_up && Duration::from_secs(state.unheard.into()) < patience;
}

/// `leader::lead` has it agreed on, in its term, that the session is over.
pub(crate) fn expire(model: &OneLease, state: &mut State, by: usize) {
    note(model, state, by);
    state.expired = true;
}

fn note(model: &OneLease, state: &mut State, voter: usize) {
    let now = state.now_at(voter);
    // Where nobody is elected nobody is asked what was noted.
    if model.breach != Breach::NotNoted && model.terms > 1 {
        state.voters[voter].witness.note(now);
    }
}

/// A voter votes for itself, and asks the others (`Peer::vote`).
pub(crate) fn stand(state: &mut State, voter: usize) {
    let voter = &mut state.voters[voter];
    voter.voted += 1;
    voter.part = Part::Stands { vote: None };
    voter.witness.stand(u64::from(voter.voted));
}

/// Another votes for it, and tells how long ago it noted.
pub(crate) fn vote(state: &mut State, candidate: usize, by: usize) {
    let (term, now) = (state.voters[candidate].voted, state.now_at(by));
    let voter = &mut state.voters[by];
    (voter.voted, voter.part) = (term, Part::Follows);
    let vote = Some(voter.witness.ago(now));
    state.voters[candidate].part = Part::Stands { vote };
}

/// The vote arrives, and two are a quorum (`Peer::vote`, `Registry::look_at_leases`).
pub(crate) fn elect(model: &OneLease, state: &mut State, leader: usize) {
    let (now, begun) = (state.now_at(leader), state.begun_at(leader));
    let voter = &mut state.voters[leader];
    let Part::Stands { vote: Some(ago) } = voter.part else { unreachable!("who is elected has a vote") };
    let term = u64::from(voter.voted);
    if model.breach != Breach::VotersAreNotHeard {
        voter.witness.hear(term, now - ago);
    }
    let begun = match model.breach {
        Breach::CountedFromBeginning => begun,
        _ => voter.witness.last(term).unwrap_or(now),
    };
    let mut leases = Leases::new(begun);
    // Whoever voted for it follows it.
    leases.confirmed(now);
    voter.part = Part::Leads { leases, confirmed: 0 };
}

/// The process of a voter is another from now on: it knows for whom it voted, and not what it noted.
pub(crate) fn restart(model: &OneLease, state: &mut State, voter: usize) {
    let now = state.now_at(voter);
    let life = if model.breach == Breach::LifeIsNoNote { host::Moment(0) } else { now };
    state.restarts += 1;
    let voter = &mut state.voters[voter];
    (voter.witness, voter.part) = (Witness::new(life), Part::Follows);
}
