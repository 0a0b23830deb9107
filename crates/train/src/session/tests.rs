//! Sessions of two ranks over a group whose second rank is scripted.

use std::sync::Mutex;

use ronde_core::{Buffer, DType, GroupRank, Operation, Recovery, Shard, Work, WorldSize};
use ronde_protocol::transaction::ShardReport;

use super::*;

/// A group of two where the peer's contribution to every all-gather is scripted.
#[derive(Default)]
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

fn plans() -> (BatchPlan, ShardPlan) {
    let batches = BatchPlan::new(8, 8, false, false, 1).unwrap();
    let shards = ShardPlan::new(2, WorldSize::new(2).unwrap()).unwrap();
    (batches, shards)
}

fn record(open: &mut OpenStep, shard: u32, samples: &[u64]) {
    let report = ShardReport {
        samples: samples.len() as u64,
        targets: samples.len() as u64,
        loss_sum: 2.0,
        ..ShardReport::empty(Shard(shard))
    };
    open.record(report, samples);
}

/// The vote of rank 1 on the first step.
fn vote_of_peer() -> Vec<u8> {
    let (batches, shards) = plans();
    let place = RankInGroup {
        rank: GroupRank(1),
        ranks: 2,
    };
    let peer = Transaction::new(place, Generation(3), batches, shards);
    let mut open = peer.begin_step();
    record(&mut open, 1, &[4, 5, 6, 7]);
    peer.vote(&open)
}

#[test]
fn a_step_without_the_vote_of_all_ranks_changes_nothing() {
    let group = Arc::new(Scripted::default());
    let (batches, shards) = plans();
    let mut session = Session::new(group.clone(), Generation(3), batches, shards);
    let note = vec![1, 2];
    session.attach(note.clone());
    let open = session.begin_step();
    session.abort(open);
    let open = session.begin_step();
    let error = session.commit(open).unwrap_err();
    assert_eq!(error.recovery(), Recovery::Rejoin);
    assert!(session.is_fresh());
    assert_eq!(session.ledger().verdict().missing, 8);

    let mut open = session.begin_step();
    record(&mut open, 0, &[0, 1, 2, 3]);
    *group.peer.lock().unwrap() = Some(vote_of_peer());
    let committed = session.commit(open).unwrap();
    assert_eq!((committed.samples, committed.loss), (8, 0.5));
    assert_eq!(committed.notes, [note, Vec::new()]);
    assert!(committed.epoch_verdict.unwrap().is_exact());
    assert_eq!(session.next_step(), Step(1));
}
