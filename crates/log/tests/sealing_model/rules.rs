//! One rule broken at a time: each breach must let the checker find a counterexample, or the model proves nothing.

/// A rule of `docs/decisions/0003-log-model.md` that somebody breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// Nobody breaks any.
    None,
    /// The recoverer fences fewer than k targets of a group.
    FenceTooFew,
    /// The recoverer acts on the tail before its length is recorded.
    ActBeforeSealed,
    /// The recoverer records its length though another has claimed since.
    SealWithoutClaim,
    /// The writer uses a run that the registry did not take.
    RunWithoutRegistry,
    /// The writer adds up answers of two runs.
    AnswersOfTwoRuns,
    /// The writer replaces copies by parity before all data fragments are stored.
    ParityBeforeData,
    /// The writer puts other records at the addresses that it lays anew.
    RepackedStripe,
    /// The writer drops the old run before the new one is complete.
    FinishedEarly,
    /// The writer adds a run that begins before its last one.
    RunGoesBack,
    /// The writer counts answers of a run that it has finished.
    LateAnswersCount,
    /// Fragments of two runs have one name on a target that both groups share.
    RunNotInName,
    /// A target takes a newer epoch's bytes without raising its fence.
    WriteDoesNotFence,
    /// The recoverer believes that *ended* parity tells where the writer ended the stripe.
    EndedIsBelieved,
    /// The recoverer takes a stripe for finished because a later one has records.
    HolesAreSkipped,
    /// Decoding takes more of a data fragment than the parity's header says.
    UncutDecoding,
    /// The sealer finishes older runs where its last run begins, not where its tail began.
    FinishedAtRun,
    /// The recoverer takes an ended stripe for complete without asking all its targets.
    EndedIsComplete,
    /// The recoverer counts an empty disk among those that know what was written.
    EmptyDiskCounts,
    /// A claim stays though a disk that it may count was exchanged since.
    ClaimOutlivesDisk,
    /// The recoverer writes without asking whether its claim stood when all were fenced.
    DecidesUnasked,
}
