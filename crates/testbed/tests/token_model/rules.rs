//! One rule broken at a time: each breach must let the checker find a counterexample, or the model proves nothing.

/// A rule of `docs/tokens.md` that somebody breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// Nobody breaks any.
    None,
    /// A client obeys call-backs without asking which grant is meant.
    CallBackWithoutVersion,
    /// A client answers that it holds nothing though a grant may be on its way, and takes that when it comes.
    LateGrantIsTaken,
    /// A client gives a token up before what it changed is stored.
    GivenUpUnstored,
    /// A client gives a token up while a call works under it.
    GivenUpPinned,
    /// A client takes a grant that it asked for before it claimed.
    GrantBehindClaim,
    /// A client takes a file that it made though that may have been called back before the answer came.
    MadeIsTaken,
    /// A client takes a file that it made for empty though others may have written it before the answer came.
    MadeIsNew,
    /// A client answers for an earlier life of its node.
    EarlierLifeIsAnswered,
    /// What a client has forgotten names no grant: a manager takes it for the newest.
    ForgottenWithoutVersion,
    /// Versions of a manager that takes over begin where they began before.
    VersionWithoutEpoch,
    /// A manager that takes over grants before all have claimed.
    GrantedUnheard,
    /// A manager voids what a dead client held before it replayed that one's log.
    VoidedUnreplayed,
}
