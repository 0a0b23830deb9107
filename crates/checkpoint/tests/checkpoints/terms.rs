//! Tests of claims, terms, and concurrent publishers in other processes.

use std::sync::Arc;

use ronde_checkpoint::{
    CheckpointError, CheckpointStatus, Fence, Lineage, PublishOutcome, last_good, list,
};
use ronde_core::{Generation, Recovery, Step};
use ronde_store::Store;

use crate::child::Child;
use crate::state::{State, local, plan};

fn newest(store: &Arc<dyn Store>) -> (u64, u64) {
    let found = last_good(store, &plan(), 1).unwrap().unwrap();
    (
        found.checkpoint.step().0,
        found.checkpoint.manifest().fence.term,
    )
}

fn fence(term: u64, generation: u64) -> Fence {
    Fence {
        term,
        generation: Generation(generation),
    }
}

#[test]
fn a_fenced_worker_that_wakes_up_cannot_publish() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let old = fence(1, 4);
    Lineage::claim(&*store, old, Step(0), "run `test`").unwrap();
    State::small(10).save(&store, old, 2).unwrap();
    let asleep = State::small(14).write(&store, old, 2).unwrap();
    let new = fence(2, 5);
    Lineage::claim(&*store, new, Step(10), "run `test`").unwrap();
    let error = State::small(14)
        .publish(&store, old, &plan(), &asleep)
        .unwrap_err();
    assert!(
        matches!(error, CheckpointError::Superseded { theirs, .. } if theirs == new),
        "{error}"
    );
    assert!(
        error.to_string().contains("of run `test` has taken over"),
        "{error}"
    );
    assert_eq!(error.recovery(), Recovery::Rejoin);
    assert_eq!(newest(&store), (10, 1));
    State::small(12).save(&store, new, 3).unwrap();
    assert_eq!(newest(&store), (12, 2));
    // It may still publish a step up to the one that the new fence resumed from.
    State::small(9).save(&store, old, 2).unwrap();
    assert_eq!(newest(&store), (12, 2));
}

#[test]
fn a_checkpoint_published_before_a_claim_from_an_earlier_step_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let old = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    State::small(10).save(&store, old, 2).unwrap();
    // Published after other workers decided to resume from step 10.
    State::small(14).save(&store, old, 2).unwrap();
    let new = Lineage::claim_next(&*store, Generation(0), Step(10), "run `test`").unwrap();
    let found = last_good(&store, &plan(), 1).unwrap().unwrap();
    assert_eq!(found.checkpoint.step(), Step(10));
    assert!(found.skipped[0].reason.contains("had resumed"));
    assert!(matches!(
        list(&*store).unwrap()[0].status,
        CheckpointStatus::CutOff(_)
    ));
    let published = State::small(14).save(&store, new, 3).unwrap();
    assert_eq!(published, PublishOutcome::Replaced);
    assert_eq!(newest(&store), (14, 2));
    let error = State::small(14).save(&store, old, 2).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Superseded { .. }),
        "{error}"
    );
    assert_eq!(newest(&store), (14, 2));
}

#[test]
fn publishing_again_succeeds_and_other_contents_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let mine = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    let state = State::small(3);
    let parts = state.write(&store, mine, 2).unwrap();
    let publish = |parts: &[_]| state.publish(&store, mine, &plan(), parts);
    assert_eq!(publish(&parts).unwrap(), PublishOutcome::New);
    assert_eq!(publish(&parts).unwrap(), PublishOutcome::Already);
    let error = state.save(&store, mine, 3).unwrap_err();
    assert!(
        matches!(error, CheckpointError::OtherContents { .. }),
        "{error}"
    );
    let mut other = State::small(3);
    other.values[0][5] ^= 1;
    let error = other.save(&store, mine, 2).unwrap_err();
    assert!(error.to_string().contains("slices of rank 0"), "{error}");
    let error = state.save(&store, fence(7, 0), 2).unwrap_err();
    assert!(matches!(error, CheckpointError::Claim { .. }), "{error}");
    state.assert_is(&last_good(&store, &plan(), 1).unwrap().unwrap().checkpoint);
}

#[test]
fn claims_only_rise_and_name_one_step() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    Lineage::claim(&*store, fence(2, 1), Step(5), "run `test`").unwrap();
    Lineage::claim(&*store, fence(2, 1), Step(5), "run `test`").unwrap();
    let error = Lineage::claim(&*store, fence(2, 1), Step(6), "run `test`").unwrap_err();
    assert!(
        error.to_string().contains("already claimed from step 5"),
        "{error}"
    );
    let error = Lineage::claim(&*store, fence(1, 9), Step(5), "run `test`").unwrap_err();
    assert!(matches!(error, CheckpointError::Superseded { .. }));
    Lineage::claim(&*store, fence(2, 2), Step(3), "run `test`").unwrap();
    let lineage = Lineage::read(&*store).unwrap();
    assert_eq!(lineage.claims().len(), 2);
    assert_eq!(lineage.cut_off_by(fence(1, 0), Step(3)), None);
    let newer = lineage.cut_off_by(fence(1, 0), Step(4)).unwrap();
    assert_eq!(newer.to_string(), "term 2 generation 2 of run `test`");
    assert_eq!(lineage.cut_off_by(fence(2, 2), Step(100)), None);
}

#[test]
fn no_two_claims_get_the_same_term() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let mut terms: Vec<u64> = std::thread::scope(|scope| {
        let claimers: Vec<_> = (0..6)
            .map(|_| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let claim = || {
                        Lineage::claim_next(&*store, Generation(0), Step(1), "run `test`").unwrap()
                    };
                    [claim().term, claim().term]
                })
            })
            .collect();
        claimers
            .into_iter()
            .flat_map(|claimer| claimer.join().unwrap())
            .collect()
    });
    terms.sort_unstable();
    assert_eq!(terms, (1..=12).collect::<Vec<_>>());
}

#[test]
fn concurrent_publishers_leave_one_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    for step in 1..=6_u64 {
        // Odd steps: publishers share one term. Even steps: each process claims a term, and lower terms may lose.
        let shared = (step % 2 == 1).then(|| {
            Lineage::claim_next(&*store, Generation(0), Step(step), "run `test`").unwrap()
        });
        let rivals: Vec<Child> = (0..3)
            .map(|_| Child::publish(folder.path(), step, shared.map(|fence| fence.term)))
            .collect();
        let outcomes: Vec<String> = rivals.into_iter().map(Child::finish).collect();
        assert!(
            outcomes.iter().any(|outcome| outcome.contains("published")),
            "{outcomes:?}"
        );
        for outcome in &outcomes {
            let lost = outcome.contains("has taken over") && shared.is_none();
            assert!(outcome.contains("published") || lost, "{outcomes:?}");
        }
        let found = last_good(&store, &plan(), 1).unwrap().unwrap();
        State::small(step).assert_is(&found.checkpoint);
    }
}
