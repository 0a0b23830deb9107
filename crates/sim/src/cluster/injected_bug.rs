//! [`InjectedBug`]: known bugs between the state machines and the simulated world, which invariants must detect.
//!
//! Each bug changes the inputs of a state machine or the effects of its commands; the state machines are unchanged.
//! Bugs inside the state machines are patches in `mutants/`.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedBug {
    /// Frames of an older generation are accepted as frames of the current one.
    OldFramesPass,
    /// A step is final as soon as this worker has voted.
    OwnVoteIsEnough,
    /// A vote that is missing when a peer's connection closes counts as given.
    DeadVoteCounts,
    /// The smallest committed step wins.
    SmallestStepWins,
    /// A worker that heals reports immediately that it is complete.
    HealIsSkipped,
    /// A worker without the gradient reports that it holds it.
    GradientIsClaimed,
    /// Shard gradients are added in the order of arrival.
    SumInOrderOfArrival,
    /// A step and its samples are skipped when a member is lost.
    LostStepIsSkipped,
    /// Survivors are restarted when a member is lost.
    SurvivorsRestart,
    /// A new generation begins from the initial weights although survivors hold the state.
    StateIsForgotten,
    /// Every worker receives the members in a different order.
    RanksDiffer,
    /// The store confirms a change and forgets it.
    StoreForgets,
    /// The store ignores the conditions of writes.
    StoreComparesNothing,
    /// The coordinator is not notified of exited workers and keeps receiving their messages.
    DeadAreHeard,
    /// Members use the number of an earlier generation for their own.
    GenerationIsReused,
    /// A checkpoint is reported before it is complete.
    CheckpointCountsEarly,
    /// Sample ids are missing in the vote.
    VoteWithoutSamples,
    /// A second copy that follows after a step counts before it has arrived.
    CopyCountsEarly,
    /// A rank votes before it holds the gradient of the elements whose second copy it has.
    CopyIsNotAwaited,
    /// The weights that other ranks hold are not gathered.
    WeightsAreNotGathered,
    /// A bit of a weight changes on one rank.
    WeightFlips,
    /// As [`InjectedBug::WeightFlips`], in a slice that the digests leave out.
    DigestSkipsASlice,
    /// A checkpoint is published when the part of one rank is written.
    PartIsMissing,
}

impl InjectedBug {
    /// All bugs, with their names on the command line.
    pub const ALL: [(&'static str, Self); 23] = [
        ("old-frames-pass", Self::OldFramesPass),
        ("own-vote-is-enough", Self::OwnVoteIsEnough),
        ("dead-vote-counts", Self::DeadVoteCounts),
        ("smallest-step-wins", Self::SmallestStepWins),
        ("heal-is-skipped", Self::HealIsSkipped),
        ("gradient-is-claimed", Self::GradientIsClaimed),
        ("sum-in-order-of-arrival", Self::SumInOrderOfArrival),
        ("lost-step-is-skipped", Self::LostStepIsSkipped),
        ("survivors-restart", Self::SurvivorsRestart),
        ("state-is-forgotten", Self::StateIsForgotten),
        ("ranks-differ", Self::RanksDiffer),
        ("store-forgets", Self::StoreForgets),
        ("store-compares-nothing", Self::StoreComparesNothing),
        ("dead-are-heard", Self::DeadAreHeard),
        ("generation-is-reused", Self::GenerationIsReused),
        ("checkpoint-counts-early", Self::CheckpointCountsEarly),
        ("vote-without-samples", Self::VoteWithoutSamples),
        ("copy-counts-early", Self::CopyCountsEarly),
        ("copy-is-not-awaited", Self::CopyIsNotAwaited),
        ("weights-are-not-gathered", Self::WeightsAreNotGathered),
        ("weight-flips", Self::WeightFlips),
        ("digest-skips-a-slice", Self::DigestSkipsASlice),
        ("part-is-missing", Self::PartIsMissing),
    ];
}
