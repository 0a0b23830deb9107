//! A slot whose update was interrupted is not served any more.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};

use ronde_core::BatchCounts;
use ronde_core::{Collectives, DType, Operation, PointToPoint, Step, Tag};
use ronde_protocol::served::{PushHeader, SlotLog};

use super::super::slice::{StateSlice, UpdateScale};
use super::*;

const ROUND: ServedRound = ServedRound {
    step: Step(0),
    start: 1,
    updates: 2,
    slots: 1,
};

/// A group of two ranks whose third message panics.
struct PanicsAtThirdSend {
    sends: AtomicU32,
}

struct SentMessage(Buffer);

impl Work for SentMessage {
    fn is_finished(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Buffer, CollectiveError> {
        Ok(self.0)
    }
}

impl Collectives for PanicsAtThirdSend {
    fn rank(&self) -> GroupRank {
        GroupRank(0)
    }

    fn size(&self) -> usize {
        2
    }

    fn allocate(&self, _: DType, _: usize) -> Result<Buffer, CollectiveError> {
        unreachable!("a push allocates nothing")
    }

    fn start(&self, _: Operation, _: Buffer) -> Result<Box<dyn Work>, CollectiveError> {
        unreachable!("a push is no collective operation")
    }

    fn abort(&self, _: &str) {}

    fn bytes_sent(&self) -> u64 {
        0
    }
}

impl PointToPoint for PanicsAtThirdSend {
    fn send(&self, _: GroupRank, _: Tag, buffer: Buffer) -> Result<Box<dyn Work>, CollectiveError> {
        if self.sends.fetch_add(1, Ordering::SeqCst) == 2 {
            std::panic::resume_unwind(Box::new("dies"));
        }
        Ok(Box::new(SentMessage(buffer)))
    }

    fn receive(&self, _: GroupRank, _: Tag, _: Buffer) -> Result<Box<dyn Work>, CollectiveError> {
        unreachable!("a push of the own rank receives nothing")
    }
}

impl Group for PanicsAtThirdSend {
    fn sub_group(&self, _: Option<u32>, _: u32) -> Result<Option<Arc<dyn Group>>, CollectiveError> {
        unreachable!("a push makes no group")
    }
}

/// Returns the push of an update whose samples are the numbers from `10 * update` on.
fn push(server: &RoundServer, update: u32) -> Result<ServerAnswer, ParallelError> {
    let ids: Vec<u64> = (0..3).map(|id| u64::from(10 * update) + id).collect();
    let push = SlotPush {
        slot: 0,
        push: PushHeader {
            round: ROUND,
            attempt: 0,
            update,
            base: 0,
            worker: 1,
        },
        scale: UpdateScale {
            counts: BatchCounts {
                samples: ids.len() as u64,
                targets: ids.len() as u64,
            },
            clip_factor: 1.0,
            learning_rate: 0.1,
        },
        skipped: 0,
        loss_sum: 0.0,
        ids: ids.len() as u64,
        sparse: None,
    };
    server.push(&push, Buffer::copy_of(&[1.0_f32; 4]), ids)
}

#[test]
fn an_update_that_reached_its_copy_in_part_is_the_last_one() {
    let slot = ServedSlot {
        log: SlotLog::new(ROUND, None),
        slice: StateSlice {
            elements: 0..4,
            weights: vec![0.0; 4],
            states: Vec::new(),
        },
    };
    let sends = AtomicU32::new(0);
    let group = Arc::new(PanicsAtThirdSend { sends });
    let server = RoundServer::new(RoundServerParts {
        group: group.clone(),
        round: ROUND,
        first: 0,
        rules: Arc::new(SliceRules::without_tensors()),
        slots: BTreeMap::from([(0, (slot, Some(GroupRank(1))))]),
        copies: BTreeMap::new(),
        leases: None,
        clock: || 0.0,
        workers: Vec::new(),
    });
    // The request and the gradient were sent, the samples were not: the copy would take those of the next update.
    let dies = std::panic::catch_unwind(AssertUnwindSafe(|| push(&server, 0)));
    assert!(dies.is_err());
    let next = push(&server, 1);
    assert!(matches!(next, Err(ParallelError::OutOfOrder { .. })));
    assert_eq!(group.sends.load(Ordering::SeqCst), 3);
    assert!(server.pull(0).is_err());
}
