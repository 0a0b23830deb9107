//! Sessions of two ranks over a group whose second rank is scripted.

use std::sync::Mutex;

use super::vote::Vote;
use super::*;
use crate::{Buffer, DType, GroupRank, Operation, Recovery, Work, WorldSize};

/// A group of two where the peer's contribution to every all-gather is scripted.
struct Scripted {
    peer: Mutex<Option<Vec<u8>>>,
}

struct FinishedWork(Buffer);

impl Work for FinishedWork {
    fn is_finished(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Buffer, CollectiveError> {
        Ok(self.0)
    }
}

impl Collectives for Scripted {
    fn rank(&self) -> GroupRank {
        GroupRank(0)
    }

    fn size(&self) -> usize {
        2
    }

    fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer, CollectiveError> {
        Ok(Buffer::host(dtype, len))
    }

    fn start(
        &self,
        operation: Operation,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        assert_eq!(operation, Operation::AllGather);
        match self.peer.lock().unwrap().take() {
            Some(theirs) => Ok(Box::new(FinishedWork(Buffer::copy_of(
                &[buffer.bytes(), &theirs].concat(),
            )))),
            None => Err(CollectiveError::Aborted {
                by: "test".into(),
                reason: "the script ended".into(),
            }),
        }
    }

    fn abort(&self, _reason: &str) {}

    fn bytes_sent(&self) -> u64 {
        0
    }
}

struct Two {
    session: Session,
    script: Arc<Scripted>,
}

fn two() -> Two {
    let script = Arc::new(Scripted {
        peer: Mutex::new(None),
    });
    let batches = BatchPlan::new(8, 8, false, false, 1).unwrap();
    let shards = ShardPlan::new(2, WorldSize::new(2).unwrap()).unwrap();
    Two {
        session: Session::new(script.clone(), Generation(3), batches, shards),
        script,
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
    fn commit(&mut self, theirs: Vote) -> Result<CommittedStep, SessionError> {
        let mut open = self.session.begin_step();
        open.record(report(0, 1.0), &[0, 1, 2, 3]);
        *self.script.peer.lock().unwrap() = Some(theirs.encode());
        self.session.commit(open)
    }
}

#[test]
fn a_commit_moves_cursor_and_ledger_together() {
    let mut two = two();
    let committed = two.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    assert_eq!(committed.samples, 8);
    assert_eq!(committed.loss, 0.5);
    assert!(committed.epoch_verdict.unwrap().is_exact());
    assert_eq!(two.session.next_step(), Step(1));
}

#[test]
fn a_failed_or_aborted_step_changes_nothing() {
    let mut two = two();
    let open = two.session.begin_step();
    two.session.abort(open);
    let open = two.session.begin_step();
    let error = two.session.commit(open).unwrap_err();
    assert_eq!(error.recovery(), Recovery::Rejoin);
    assert_eq!(two.session.next_step(), Step(0));
    assert_eq!(two.session.ledger().verdict().missing, 8);
    two.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
}

#[test]
fn errors_name_the_rank_shard_or_sample_that_disagrees() {
    let check = |theirs: Vote, is_expected: fn(&SessionError) -> bool, fragment: &str| {
        let mut two = two();
        let error = two.commit(theirs).unwrap_err();
        assert!(is_expected(&error), "{error:?}");
        assert!(error.to_string().contains(fragment), "{error}");
        assert_eq!(two.session.next_step(), Step(0));
        assert_eq!(two.session.ledger().verdict().missing, 8);
    };
    check(
        peer(1, None, 1, &[4, 5, 6, 7]),
        |error| {
            matches!(
                error,
                SessionError::OtherStep {
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
                SessionError::SampleIds {
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
        |error| matches!(error, SessionError::UnknownSample { sample: 99, .. }),
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

fn problem(error: &SessionError) -> Option<ShardProblem> {
    match error {
        SessionError::Shards { problem, .. } => Some(*problem),
        _ => None,
    }
}

#[test]
fn diverged_weights_stop_the_next_commit() {
    let mut two = two();
    two.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    two.session.set_digest(0xabc);
    let error = two
        .commit(peer(1, Some(0xabd), 1, &[4, 5, 6, 7]))
        .unwrap_err();
    assert!(
        matches!(&error, SessionError::Diverged { step: Step(0), digests } if digests == &[0xabc, 0xabd])
    );
    assert_eq!(error.recovery(), Recovery::Abort);
    two.commit(peer(1, Some(0xabc), 1, &[4, 5, 6, 7])).unwrap();
}

#[test]
fn weights_of_a_rank_that_copies_the_state_are_not_compared() {
    let mut two = two();
    two.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    two.session.set_digest(0xabc);
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
    two.session.request(save);
    two.session.attach(vec![1, 2]);
    let open = two.session.begin_step();
    two.session.commit(open).unwrap_err();
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
    assert_eq!(two.session.last_requests(), committed.requests);
    assert_eq!(committed.notes, [vec![1, 2], vec![3]]);
    let committed = two.commit(peer(1, None, 1, &[4, 5, 6, 7])).unwrap();
    assert_eq!(committed.requests, VoteRequests::default());
    assert_eq!(committed.notes, [Vec::<u8>::new(), Vec::new()]);
}

#[test]
fn a_session_resumes_from_its_own_cursor_only() {
    let mut first = two();
    first.commit(peer(0, None, 1, &[4, 5, 6, 7])).unwrap();
    let cursor = first.session.cursor();
    let mut second = two();
    assert!(second.session.is_fresh());
    assert!(second.session.resume(&cursor, 7));
    assert!(!second.session.is_fresh());
    assert_eq!(second.session.next_step(), Step(1));
    assert_eq!(second.session.samples(), 8);
    assert_eq!(second.session.ledger(), first.session.ledger());
    assert_eq!(second.session.cursor(), cursor);
    let mut third = two();
    assert!(!third.session.resume(&cursor[1..], 7));
    assert!(third.session.is_fresh());
}
