//! Failure: the error of all ranks when an operation over shared memory did not complete.

use ronde_core::{CollectiveError, GroupRank};

use super::executor::{CurrentOperation, SharedExecutor};
use super::halt::HaltReason;
use super::wait::WaitError;
use crate::frame::Call;
use crate::notice::Notice;
use crate::program::out_of_memory;

impl SharedExecutor {
    /// Returns why an operation cannot start in a group that has failed.
    pub(super) fn halt(&self, current: &CurrentOperation<'_>) -> HaltReason {
        let mismatch = self
            .mismatched_peer(current)
            .map(|peer| HaltReason::Mismatch { peer });
        let peer = self.me;
        mismatch.unwrap_or(HaltReason::Stopped {
            peer,
            stop: WaitError::Failed,
            received: 0,
        })
    }

    /// Converts the reason to the error of all ranks, and notifies the peers.
    pub(super) fn fail(
        &mut self,
        current: &CurrentOperation<'_>,
        mut halt: HaltReason,
        sequence: u64,
        call: &Call,
        expected: usize,
    ) -> CollectiveError {
        if let HaltReason::Stopped {
            stop: WaitError::Looked | WaitError::Failed,
            ..
        } = halt
            && let Some(peer) = self.mismatched_peer(current)
        {
            halt = HaltReason::Mismatch { peer };
        }
        let (error, notice) = match halt {
            HaltReason::Error(error) => (error, None),
            HaltReason::OutOfMemory(error) => {
                let rank = GroupRank(self.me as u32);
                let notice = Notice::OutOfMemory {
                    call: *call,
                    bytes: error.bytes as u64,
                };
                (out_of_memory(call.kind, rank, error), Some(notice))
            }
            HaltReason::Mismatch { peer } => self.mismatch(current, peer, sequence, call),
            HaltReason::Stopped {
                peer,
                stop,
                received,
            } => {
                let bytes = (received, expected);
                (self.stopped(peer, &stop, bytes, sequence, call), None)
            }
        };
        self.has_failed = true;
        self.mailbox.fail(error.clone(), notice);
        error
    }

    fn mismatch(
        &self,
        current: &CurrentOperation<'_>,
        peer: usize,
        sequence: u64,
        call: &Call,
    ) -> (CollectiveError, Option<Notice>) {
        let theirs = self.control(peer).read_post(current.sequence);
        let notice = Call::from_words(theirs.call).map(|peer_call| Notice::Mismatch {
            sequence,
            sender_call: *call,
            peer: peer as u32,
            peer_call,
        });
        let error = CollectiveError::Mismatch {
            sequence,
            peer: GroupRank(peer as u32),
            mine: call.describe(),
            theirs: theirs.describe(),
        };
        (error, notice)
    }

    /// Returns the error of a wait for a peer; `bytes` are those received and those expected.
    fn stopped(
        &self,
        peer: usize,
        stop: &WaitError,
        (received, expected): (usize, usize),
        sequence: u64,
        call: &Call,
    ) -> CollectiveError {
        let operation = call.kind.name().to_owned();
        let generation = self.generation;
        let (peer, cause) = match (stop, self.mailbox.error()) {
            (WaitError::Left, _) => (GroupRank(peer as u32), "it has left the group".to_owned()),
            (WaitError::Late { waited }, _) => {
                return CollectiveError::Timeout {
                    operation,
                    sequence,
                    generation,
                    peer: GroupRank(peer as u32),
                    received,
                    expected,
                    waited_s: waited.as_secs_f64(),
                    limit_s: self.limit.as_secs_f64(),
                };
            }
            (_, Some(CollectiveError::PeerLost { peer, cause, .. })) => (peer, cause),
            (_, Some(error)) => return error,
            (WaitError::Gone, None) => (
                GroupRank(peer as u32),
                "its shared memory no longer exists".to_owned(),
            ),
            (_, None) => {
                return CollectiveError::Aborted {
                    by: "this rank".to_owned(),
                    reason: "the group has ended".to_owned(),
                };
            }
        };
        CollectiveError::PeerLost {
            operation,
            sequence,
            generation,
            peer,
            cause,
        }
    }
}
