//! One rule broken at a time: each breach must let the checker find a counterexample, or the model proves nothing.

/// A rule of `registry::leases`, `registry::witness`, `registry::session` or `client::lease` that somebody breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// Nobody breaks any.
    None,
    /// Clocks differ by three times what is allowed for.
    ClocksDrift,
    /// The machine counts its lease from the answer to its renewal.
    CountedFromAnswer,
    /// The machine answers from memory as long as nobody has told it that its session is over.
    NotConfirmed,
    /// The leader grants a renewal that nobody confirmed.
    GrantedAlone,
    /// The leader counts a confirmation from before the renewal arrived.
    ConfirmedBefore,
    /// The leader takes it for silence of others when it could hear nobody.
    DeafIsSilent,
    /// The leader grants a renewal of whom it has found to have run out.
    DoomedIsGranted,
    /// A new leader counts from when it last noted something itself, not from what those tell who elected it.
    VotersAreNotHeard,
    /// A new leader counts leases from when they began, not from the last note.
    CountedFromBeginning,
    /// Who voted for a new leader still confirms the old one.
    ConfirmedAfterVote,
    /// A voter confirms without noting.
    NotNoted,
    /// A voter that was started anew has noted nothing.
    LifeIsNoNote,
}
