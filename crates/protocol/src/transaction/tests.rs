//! The log of the first of two ranks; the votes of the second are scripted.

use ronde_core::{Recovery, WorldSize};

use super::*;

struct Two {
    log: Transaction,
}

fn two() -> Two {
    let batches = BatchPlan::new(8, 8, false, false, 1).unwrap();
    let shards = ShardPlan::new(2, WorldSize::new(2).unwrap()).unwrap();
    let place = RankInGroup {
        rank: GroupRank(0),
        ranks: 2,
    };
    Two {
        log: Transaction::new(place, Generation(3), batches, shards),
    }
}

fn report(shard: u32, loss_sum: f64) -> ShardReport {
    ShardReport {
        shard: Shard(shard),
        samples: 4,
        targets: 4,
        skipped: 0,
        loss_sum,
    }
}

fn peer(step: u64, digest: Option<u64>, shard: u32, ids: &[u64]) -> Vote {
    Vote {
        step: Step(step),
        digest,
        digest_of: 0,
        newest: Generation(3),
        reports: vec![report(shard, 3.0)],
        sample_ids: ids.to_vec(),
        requests: VoteRequests::default(),
        busy_s: 0.5,
        sums: Vec::new(),
        note: Vec::new(),
    }
}

impl Two {
    fn commit(&mut self, theirs: Vote) -> Result<CommittedStep, TransactionError> {
        let mut open = self.log.begin_step();
        open.record(report(0, 1.0), &[0, 1, 2, 3]);
        let votes = [self.log.vote(&open), theirs.encode()].concat();
        self.log.commit(&open, votes)
    }
}

#[test]
fn a_commit_moves_cursor_and_ledger_together() {
    let mut two = two();
    let committed = two.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    assert_eq!(committed.samples, 8);
    assert_eq!(committed.loss, 0.5);
    assert!(committed.epoch_verdict.unwrap().is_exact());
    assert_eq!(two.log.next_step(), Step(1));
}

#[test]
fn errors_name_the_rank_shard_or_sample_that_disagrees() {
    let check = |theirs: Vote, is_expected: fn(&TransactionError) -> bool, fragment: &str| {
        let mut two = two();
        let error = two.commit(theirs).unwrap_err();
        assert!(is_expected(&error), "{error:?}");
        assert!(error.to_string().contains(fragment), "{error}");
        assert_eq!(two.log.next_step(), Step(0));
        assert_eq!(two.log.ledger().verdict().missing, 8);
    };
    check(
        peer(1, None, 1, &[4, 5, 6, 7]),
        |error| {
            matches!(
                error,
                TransactionError::OtherStep {
                    theirs: Step(1),
                    ..
                }
            )
        },
        "rank 1 votes on step 1",
    );
    check(
        peer(0, None, 0, &[4, 5, 6, 7]),
        |error| problem(error) == Some(ShardProblem::Repeated),
        "shard 0 was computed twice",
    );
    check(
        peer(0, None, 9, &[4, 5, 6, 7]),
        |error| problem(error) == Some(ShardProblem::Unknown { shards: 2 }),
        "shard 9 does not exist",
    );
    check(
        peer(0, None, 1, &[4, 5, 6]),
        |error| {
            matches!(
                error,
                TransactionError::SampleIds {
                    recorded: 7,
                    expected: 8,
                    ..
                }
            )
        },
        "7 sample ids",
    );
    check(
        peer(0, None, 1, &[4, 5, 6, 99]),
        |error| matches!(error, TransactionError::UnknownSample { sample: 99, .. }),
        "sample 99",
    );
    check(
        Vote {
            reports: vec![],
            ..peer(0, None, 1, &[4, 5, 6, 7])
        },
        |error| problem(error) == Some(ShardProblem::Missing),
        "shard 1 was not computed by any rank",
    );
}

fn problem(error: &TransactionError) -> Option<ShardProblem> {
    match error {
        TransactionError::Shards { problem, .. } => Some(*problem),
        _ => None,
    }
}

#[test]
fn diverged_weights_stop_the_next_commit() {
    let mut two = two();
    two.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    two.log.set_digest(0xabc);
    let error = two
        .commit(peer(1, Some(0xabd), 1, &[4, 5, 6, 7]))
        .unwrap_err();
    assert!(
        matches!(&error, TransactionError::Diverged { step: Step(0), digests } if digests == &[0xabc, 0xabd])
    );
    assert_eq!(error.recovery(), Recovery::Abort);
    two.commit(peer(1, Some(0xabc), 1, &[4, 5, 6, 7])).unwrap();
}

#[test]
fn weights_of_a_rank_that_copies_the_state_are_not_compared() {
    let mut two = two();
    two.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    two.log.set_digest(0xabc);
    let mut theirs = peer(1, None, 1, &[4, 5, 6, 7]);
    theirs.requests.heals = true;
    let committed = two.commit(theirs).unwrap();
    assert!(committed.requests.heals);
}

#[test]
fn requests_and_notes_of_any_rank_reach_all_ranks_once() {
    let mut two = two();
    let save = VoteRequests {
        save: true,
        ..VoteRequests::default()
    };
    two.log.request(save);
    two.log.attach(vec![1, 2]);
    let stop = VoteRequests {
        stop: true,
        complete: true,
        ..VoteRequests::default()
    };
    let theirs = Vote {
        requests: stop,
        note: vec![3],
        ..peer(0, None, 1, &[4, 5, 6, 7])
    };
    let committed = two.commit(theirs).unwrap();
    assert!(committed.requests.save && committed.requests.stop);
    assert_eq!(two.log.last_requests(), committed.requests);
    assert_eq!(committed.notes, [vec![1, 2], vec![3]]);
    let committed = two.commit(peer(1, None, 1, &[4, 5, 6, 7])).unwrap();
    assert_eq!(committed.requests, VoteRequests::default());
    assert_eq!(committed.notes, [Vec::<u8>::new(), Vec::new()]);
}

#[test]
fn a_log_resumes_from_its_own_cursor_only() {
    let mut first = two();
    first.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    let cursor = first.log.cursor();
    let mut second = two();
    assert!(second.log.resume(&cursor, 7));
    assert_eq!(second.log.next_step(), Step(1));
    assert_eq!(second.log.samples(), 8);
    assert_eq!(second.log.ledger(), first.log.ledger());
    assert_eq!(second.log.cursor(), cursor);
    let mut third = two();
    assert!(!third.log.resume(&cursor[1..], 7));
    assert_eq!(third.log.next_step(), Step(0));
}
