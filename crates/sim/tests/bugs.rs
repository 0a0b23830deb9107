//! Every known bug that is put in is caught by an invariant, within few seeds.

use ronde_sim::{Sabotage, simulate};

/// Seeds that are tried before a bug counts as not caught.
const SEEDS: u64 = 600;

fn caught(bug: Sabotage) -> Option<&'static str> {
    (0..SEEDS)
        .find_map(|seed| simulate(seed, None, Some(bug), false).violation)
        .map(|v| v.invariant)
}

#[test]
fn every_bug_is_caught() {
    let missed: Vec<&str> = Sabotage::ALL
        .iter()
        .filter(|(_, bug)| caught(*bug).is_none())
        .map(|(name, _)| *name)
        .collect();
    assert!(
        missed.is_empty(),
        "not caught within {SEEDS} seeds: {missed:?}"
    );
}

#[test]
fn bugs_of_different_kinds_are_caught_by_different_invariants() {
    let check = |bug, invariant| assert_eq!(caught(bug), Some(invariant), "{bug:?}");
    check(
        Sabotage::SumInOrderOfArrival,
        "the bits of an undisturbed run",
    );
    check(
        Sabotage::VoteWithoutSamples,
        "no sample is lost or repeated",
    );
    check(
        Sabotage::SurvivorsRestart,
        "survivors stay, and only the step in flight is redone",
    );
    check(Sabotage::StoreComparesNothing, "one coordinator leads");
    check(
        Sabotage::DeadAreHeard,
        "steps advance once nothing goes wrong",
    );
    check(
        Sabotage::CheckpointCountsEarly,
        "a checkpoint counts once it is complete",
    );
    check(Sabotage::RanksDiffer, "generations and terms grow");
}
