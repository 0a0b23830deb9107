//! Every injected bug is detected by an invariant within few seeds.

use ronde_sim::cluster::{ClusterWorld, InjectedBug};
use ronde_sim::gossip::GossipWorld;
use ronde_sim::harness::{first_violation, missed_bugs};
use ronde_sim::served::ServedWorld;

/// The number of seeds after which a bug of a cluster counts as not detected.
const SEEDS: u64 = 600;

const NONE: [&str; 0] = [];

#[test]
fn every_bug_of_a_cluster_is_detected() {
    assert_eq!(missed_bugs::<ClusterWorld>(0..SEEDS), NONE);
}

#[test]
fn every_bug_of_served_rounds_is_detected() {
    assert_eq!(missed_bugs::<ServedWorld>(0..2_000), NONE);
}

#[test]
fn every_bug_of_gossip_rounds_is_detected() {
    assert_eq!(missed_bugs::<GossipWorld>(0..4_000), NONE);
}

#[test]
fn bugs_of_different_kinds_are_detected_by_different_invariants() {
    let check = |bug, invariant| {
        let found = first_violation::<ClusterWorld>(bug, 0..SEEDS);
        assert_eq!(
            found.map(|violation| violation.broken.invariant),
            Some(invariant),
            "{bug:?}"
        );
    };
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
