//! [`Sabotage`]: known bugs, put between the machines and the simulated world, to see them caught.
//!
//! Each one changes what a machine is told or what becomes of what it commands; the machines
//! themselves stay as they are. Bugs inside the machines are patches, in `mutants/`.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Frames of an older generation are taken as if they were of this one.
    OldFramesPass,
    /// A step counts as voted as soon as this worker has voted.
    OwnVoteIsEnough,
    /// A vote that is missing when a peer's connection closes is counted as given.
    DeadVoteCounts,
    /// The smallest committed step wins.
    SmallestStepWins,
    /// A worker that heals says at once that it is done.
    HealIsSkipped,
    /// A worker without the gradient says that it holds it.
    GradientIsClaimed,
    /// Shard gradients are added in the order in which they come.
    SumInOrderOfArrival,
    /// A step is given up with its samples when a member is lost.
    LostStepIsSkipped,
    /// Survivors are started again when a member is lost.
    SurvivorsRestart,
    /// A new generation begins from the initial weights although survivors hold the state.
    StateIsForgotten,
    /// Every worker is told of the members in another order.
    RanksDiffer,
    /// The store answers that a change was done and forgets it.
    StoreForgets,
    /// The store writes whatever it is asked to.
    StoreComparesNothing,
    /// The coordinator is not told that workers end, and hears them for ever.
    DeadAreHeard,
    /// Members take another generation's number for their own, one that was used before.
    GenerationIsReused,
    /// A checkpoint counts before it is complete.
    CheckpointCountsEarly,
    /// Sample ids do not go into the vote.
    VoteWithoutSamples,
}

impl Sabotage {
    /// All of them, with the names that the command takes.
    pub const ALL: [(&'static str, Self); 17] = [
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
    ];

    /// The bug of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, bug)| *bug)
    }
}
