//! [`CalleeSession`]: the callee's side of the calls of one caller process, as a state machine without I/O.
//!
//! A call is executed at most once, although the caller may send it again after a new connection. Numbers of calls that
//! arrive for the first time ascend, so a number that is neither larger than all before nor in the table was executed
//! and acknowledged, or refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::frame::{FailureCode, FrameBody, RpcFrameKind};
use crate::values::CallValues;

/// Answered calls that a caller may leave unacknowledged, beside its calls in progress.
const UNACKNOWLEDGED_MAX: usize = 1_024;

/// The state of a call that the caller has not acknowledged.
enum ReceivedCall {
    /// It waits for a thread or runs.
    Open,
    /// Its answer may not have arrived.
    Answered(Arc<FrameBody>),
    /// It was executed; its answer was too much to keep.
    Dropped,
}

/// What to do with a received call.
#[derive(Debug)]
pub(crate) enum CallReceipt {
    /// Execute it. A call without a result has an answer to transmit at once.
    Execute(Option<Arc<FrameBody>>),
    /// Transmit an earlier answer again.
    Repeat(Arc<FrameBody>),
    /// Transmit a failure; nothing is executed.
    Refuse(Arc<FrameBody>),
    /// Do nothing: the call runs, and its answer follows.
    Ignore,
}

/// The calls of one caller process.
#[derive(Default)]
pub(crate) struct CalleeSession {
    calls: BTreeMap<u64, ReceivedCall>,
    newest: u64,
    /// Calls with kept answers, oldest first; those that were acknowledged are skipped.
    kept: VecDeque<u64>,
    kept_bytes: usize,
}

impl CalleeSession {
    /// A call was received. `open_max` bounds the calls in progress.
    pub(crate) fn received(
        &mut self,
        kind: RpcFrameKind,
        call: u64,
        open_max: usize,
    ) -> CallReceipt {
        match self.calls.get(&call) {
            Some(ReceivedCall::Open) => return CallReceipt::Ignore,
            Some(ReceivedCall::Answered(answer)) => {
                return CallReceipt::Repeat(Arc::clone(answer));
            }
            Some(ReceivedCall::Dropped) => {
                let text = "it was executed, and its answer is no longer kept";
                return refuse(call, FailureCode::AnswerDropped, text);
            }
            None if call <= self.newest => {
                let text = "it was refused before";
                return refuse(call, FailureCode::Overloaded, text);
            }
            None => {}
        }
        self.newest = call;
        if self.calls.len() >= open_max.saturating_add(UNACKNOWLEDGED_MAX) {
            let text =
                format!("this caller has {open_max} calls in progress there, which is the limit");
            return refuse(call, FailureCode::Overloaded, &text);
        }
        self.calls.insert(call, ReceivedCall::Open);
        if kind != RpcFrameKind::Send {
            return CallReceipt::Execute(None);
        }
        let receipt = FrameBody {
            kind: RpcFrameKind::Answer,
            call,
            head: Vec::new(),
            values: CallValues::none(),
        };
        CallReceipt::Execute(self.finished(receipt, usize::MAX))
    }

    /// A call has a result. Returns the frame to transmit unless the caller no longer waits.
    pub(crate) fn finished(
        &mut self,
        answer: FrameBody,
        kept_bytes_max: usize,
    ) -> Option<Arc<FrameBody>> {
        let call = answer.call;
        let state = self.calls.get_mut(&call)?;
        if !matches!(state, ReceivedCall::Open) {
            return None;
        }
        let answer = Arc::new(answer);
        self.kept_bytes += answer.bytes();
        self.kept.push_back(call);
        *state = ReceivedCall::Answered(Arc::clone(&answer));
        while self.kept_bytes > kept_bytes_max {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            if let Some(state @ ReceivedCall::Answered(_)) = self.calls.get_mut(&oldest)
                && let ReceivedCall::Answered(answer) =
                    std::mem::replace(state, ReceivedCall::Dropped)
            {
                self.kept_bytes -= answer.bytes();
            }
        }
        Some(answer)
    }

    /// The caller has the answers of these calls.
    pub(crate) fn acknowledged(&mut self, calls: impl Iterator<Item = u64>) {
        for call in calls {
            match self.calls.get(&call) {
                Some(ReceivedCall::Open) | None => {}
                Some(_) => self.forget(call),
            }
        }
        // Numbers whose calls have been forgotten are removed once they are the majority.
        if self.kept.len() > 2 * self.calls.len() + 64 {
            let calls = &self.calls;
            self.kept.retain(|call| calls.contains_key(call));
        }
    }

    /// The caller has a new connection and waits for these calls only.
    pub(crate) fn resumed(&mut self, waiting: impl Iterator<Item = u64>) {
        let waiting: BTreeSet<u64> = waiting.collect();
        let ended = self.calls.keys().filter(|call| !waiting.contains(call));
        let ended: Vec<u64> = ended.copied().collect();
        ended.into_iter().for_each(|call| self.forget(call));
    }

    /// The caller no longer waits for a call. Its result is discarded.
    pub(crate) fn cancelled(&mut self, call: u64) {
        self.forget(call);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.kept_bytes == 0
    }

    fn forget(&mut self, call: u64) {
        if let Some(ReceivedCall::Answered(answer)) = self.calls.remove(&call) {
            self.kept_bytes -= answer.bytes();
        }
    }

    /// Returns whether a call was received and waits for its result.
    pub(crate) fn is_open(&self, call: u64) -> bool {
        matches!(self.calls.get(&call), Some(ReceivedCall::Open))
    }
}

fn refuse(call: u64, code: FailureCode, text: &str) -> CallReceipt {
    CallReceipt::Refuse(Arc::new(FrameBody::failure(call, code, text)))
}
