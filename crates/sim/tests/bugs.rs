//! Every injected bug is detected by an invariant within few seeds.

use ronde_sim::{InjectedBug, simulate};

/// The number of seeds after which a bug counts as not detected.
const SEEDS: u64 = 600;

fn caught(bug: InjectedBug) -> Option<&'static str> {
    (0..SEEDS)
        .find_map(|seed| simulate(seed, None, Some(bug), false).violation)
        .map(|v| v.invariant)
}

#[test]
fn every_bug_is_detected() {
    let missed: Vec<&str> = InjectedBug::ALL
        .iter()
        .filter(|(_, bug)| caught(*bug).is_none())
        .map(|(name, _)| *name)
        .collect();
    assert!(
        missed.is_empty(),
        "not detected within {SEEDS} seeds: {missed:?}"
    );
}

#[test]
fn bugs_of_different_kinds_are_detected_by_different_invariants() {
    let check = |bug, invariant| assert_eq!(caught(bug), Some(invariant), "{bug:?}");
    check(
        InjectedBug::SumInOrderOfArrival,
        "states have the bits of an undisturbed run",
    );
    check(
        InjectedBug::VoteWithoutSamples,
        "no sample is lost or repeated",
    );
    check(
        InjectedBug::SurvivorsRestart,
        "survivors continue and only the step in flight is recomputed",
    );
    check(
        InjectedBug::StoreComparesNothing,
        "at most one coordinator leads",
    );
    check(
        InjectedBug::DeadAreHeard,
        "the job finishes after the last fault",
    );
    check(
        InjectedBug::CheckpointCountsEarly,
        "only complete checkpoints are reported",
    );
    check(InjectedBug::RanksDiffer, "generations and terms increase");
    // The votes detect a changed weight of a rank, unless the digests leave it out.
    check(InjectedBug::WeightFlips, "no sample is lost or repeated");
    check(
        InjectedBug::DigestSkipsASlice,
        "states have the bits of an undisturbed run",
    );
}
