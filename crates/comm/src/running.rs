//! [`RunningCollective`]: one collective in progress through its schedule.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_core::{Buffer, CollectiveError, DType, Operation, ReduceOp};
use ronde_schedule::{Algorithm, Hosts, LocalAction, Schedule};

use crate::frame::{Call, CallKind};
use crate::kernels;
use crate::memory::{MemoryRange, ScheduleMemory};
use crate::program::{self, GroupMember};
use crate::rounds::{ExpectedMessage, RoundMessages, Rounds};
use crate::work::Completion;

/// How long a rank waits before it sends its call to peers from which it has received nothing.
const NOTIFY_AFTER: Duration = Duration::from_millis(10);

/// A collective that the caller has started.
pub(crate) struct CollectiveRequest {
    pub(crate) operation: Operation,
    pub(crate) call: Call,
    pub(crate) buffer: Buffer,
    pub(crate) completion: Completion,
    pub(crate) hosts: Arc<Hosts>,
}

impl CollectiveRequest {
    /// Ends the collective with a result, which is in its own buffer for `None`, or with an error.
    pub(crate) fn complete(self, outcome: Result<Option<Buffer>, CollectiveError>) {
        let Self {
            buffer, completion, ..
        } = self;
        completion.complete(outcome.map(|result| result.unwrap_or(buffer)));
    }
}

/// The collective that is running.
pub(crate) struct RunningCollective {
    pub(crate) call: Call,
    pub(crate) sequence: u64,
    pub(crate) schedule: Schedule,
    pub(crate) memory: ScheduleMemory,
    pub(crate) completion: Completion,
    pub(crate) rounds: Rounds,
    /// Messages that the open rounds wait for, by peer, except those being received.
    pub(crate) expected: Vec<VecDeque<ExpectedMessage>>,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    /// When this rank's call is sent to the peers, first to those that have sent nothing; `None` when all
    /// of them have it.
    pub(crate) notify_at: Option<Instant>,
    /// Whether the peers that had sent nothing were notified.
    pub(crate) has_notified: bool,
    /// Bytes received so far, by peer.
    pub(crate) received: Vec<usize>,
    /// Bytes expected so far, by peer.
    pub(crate) due: Vec<usize>,
    operation: Operation,
    member: GroupMember,
    hosts: Arc<Hosts>,
    /// The caller's buffer while the ranks exchange their lengths.
    held: Option<Buffer>,
}

impl RunningCollective {
    /// Starts a collective. `scratch` is that of an earlier one.
    pub(crate) fn new(
        request: CollectiveRequest,
        sequence: u64,
        member: GroupMember,
        limit: Duration,
        scratch: Buffer,
    ) -> Result<Self, (Completion, CollectiveError)> {
        let CollectiveRequest {
            operation,
            call,
            buffer,
            completion,
            hosts,
        } = request;
        let lens_first = program::needs_lens(&call);
        let made = if is_token(&call) {
            Ok(ronde_schedule::barrier(member.rank.index(), member.size))
        } else if lens_first {
            Ok(program::exchange_lens(&operation, member))
        } else {
            program::schedule(&operation, &call, member, &hosts, &[])
        };
        let schedule = match made {
            Ok(schedule) => schedule,
            Err(error) => return Err((completion, error)),
        };
        let (dtype, operand, held) = if lens_first {
            let own = program::own_len(&operation, &buffer, member);
            (DType::I64, Buffer::copy_of(&[own as i64]), Some(buffer))
        } else {
            let dtype = if is_token(&call) {
                DType::U8
            } else {
                call.dtype
            };
            (dtype, buffer, None)
        };
        let memory = match ScheduleMemory::new(&schedule, dtype, operand, scratch) {
            Ok(memory) => memory,
            Err(error) => {
                let error = program::out_of_memory(call.kind, member.rank, error);
                return Err((completion, error));
            }
        };
        Ok(Self {
            call,
            sequence,
            schedule,
            memory,
            completion,
            rounds: Rounds::default(),
            expected: vec![VecDeque::new(); member.size],
            started: ronde_clock::now(),
            deadline: ronde_clock::deadline(limit),
            notify_at: Some(ronde_clock::deadline(NOTIFY_AFTER.min(limit / 4))),
            has_notified: false,
            received: vec![0; member.size],
            due: vec![0; member.size],
            operation,
            member,
            hosts,
            held,
        })
    }

    /// Returns whether a message is expected from a peer that has sent nothing of it.
    pub(crate) fn is_waiting_for(&self, peer: usize) -> bool {
        !self.expected[peer].is_empty()
    }

    /// Returns the bytes of a message that are still to be received.
    pub(crate) fn bytes_missing(&self, awaited: &ExpectedMessage) -> usize {
        awaited.place.len() - self.rounds.bytes_received(awaited)
    }

    /// Returns the range of the next `count` bytes of a message.
    pub(crate) fn next_range(&self, awaited: &ExpectedMessage, count: usize) -> MemoryRange {
        let from = self.rounds.bytes_received(awaited);
        awaited.place.part(from..from + count)
    }

    /// Opens the next round if possible; the caller must post its messages.
    pub(crate) fn open_next(&mut self) -> Option<RoundMessages> {
        let answers = matches!(self.call.kind, CallKind::AllReduce | CallKind::ExactSum)
            && matches!(
                self.call.algorithm,
                Some(Algorithm::Direct | Algorithm::Hierarchical)
            );
        self.rounds
            .open_next(&mut self.schedule.rounds, &self.memory, answers)
    }

    /// Records that `count` more bytes of a message were received, and acts on complete pieces. False if
    /// the peer cannot have sent them yet.
    pub(crate) fn came(&mut self, awaited: &ExpectedMessage, count: usize) -> bool {
        let may_be = self.rounds.came(awaited, count);
        self.act_on_due();
        may_be
    }

    fn act_on_due(&mut self) {
        if let Some(due) = self.rounds.due() {
            self.act_on(due.start, Some(due.end));
        }
    }

    /// Ends the current round if its messages are complete; returns whether it did.
    pub(crate) fn advance(&mut self) -> bool {
        if !self.rounds.current_is_over() {
            return false;
        }
        self.act_on(self.rounds.acted(), None);
        self.rounds.close_current();
        self.act_on_due();
        true
    }

    /// Runs all actions of the current round in order, on some bytes of each.
    fn act_on(&mut self, from: usize, to: Option<usize>) {
        let round = self.rounds.current();
        let actions = std::mem::take(&mut self.schedule.rounds[round].actions);
        let part = |place: MemoryRange| place.part(from..to.unwrap_or(place.len()));
        for action in &actions {
            match action {
                LocalAction::Reduce { into, left, right } => {
                    let into_is_left = into == left;
                    let other = if into_is_left { right } else { left };
                    let (into, other) = (self.memory.place(into), self.memory.place(other));
                    let (into, other) = self.memory.pair(&part(into), &part(other));
                    // The sum of the kernels equals that of `ronde_core::exact`: both write canonical NaNs.
                    kernels::reduce(self.call.dtype, self.call.op, into, other, into_is_left);
                }
                LocalAction::Copy { into, from } => {
                    let (into, from) = (self.memory.place(into), self.memory.place(from));
                    let (into, from) = self.memory.pair(&part(into), &part(from));
                    into.copy_from_slice(from);
                }
            }
        }
        self.schedule.rounds[round].actions = actions;
    }

    /// Ends the schedule: returns [`FinishedSchedule::Lens`] if only the lengths are known now and the real
    /// schedule follows, or else the result, with the scratch.
    pub(crate) fn finish(self) -> Result<FinishedSchedule, (Completion, CollectiveError)> {
        let Some(buffer) = self.held else {
            if is_token(&self.call) {
                let (buffer, scratch) = self.memory.into_parts();
                return Ok(FinishedSchedule::Result(self.completion, buffer, scratch));
            }
            let made = self
                .memory
                .into_result(&self.schedule.result, self.call.dtype);
            let (mut buffer, scratch) = match made {
                Ok(made) => made,
                Err(error) => {
                    let error = program::out_of_memory(self.call.kind, self.member.rank, error);
                    return Err((self.completion, error));
                }
            };
            if self.call.op == ReduceOp::Mean {
                kernels::divide(self.call.dtype, buffer.bytes_mut(), self.member.size);
            }
            return Ok(FinishedSchedule::Result(self.completion, buffer, scratch));
        };
        let (kind, rank) = (self.call.kind, self.member.rank);
        let failed = |error| program::out_of_memory(kind, rank, error);
        let made = self.memory.into_result(&self.schedule.result, DType::I64);
        let (lens, scratch) = match made.map_err(failed) {
            Ok(made) => made,
            Err(error) => return Err((self.completion, error)),
        };
        let lens: Vec<u64> = lens.as_slice::<i64>().iter().map(|&l| l as u64).collect();
        let made = program::schedule(&self.operation, &self.call, self.member, &self.hosts, &lens);
        let schedule = match made {
            Ok(schedule) => schedule,
            Err(CollectiveError::Mismatch {
                peer, mine, theirs, ..
            }) => {
                let sequence = self.sequence;
                let error = CollectiveError::Mismatch {
                    sequence,
                    peer,
                    mine,
                    theirs,
                };
                return Err((self.completion, error));
            }
            Err(error) => return Err((self.completion, error)),
        };
        let memory = ScheduleMemory::new(&schedule, self.call.dtype, buffer, scratch);
        let memory = match memory.map_err(failed) {
            Ok(memory) => memory,
            Err(error) => return Err((self.completion, error)),
        };
        Ok(FinishedSchedule::Lens(Box::new(Self {
            memory,
            schedule,
            rounds: Rounds::default(),
            held: None,
            ..self
        })))
    }
}

/// Returns whether only tokens are exchanged: also for empty buffers, so that a rank whose buffer is
/// not empty gets a mismatch and does not wait.
fn is_token(call: &Call) -> bool {
    call.kind == CallKind::Barrier || call.len == 0
}

/// The outcome of the last round of a schedule.
pub(crate) enum FinishedSchedule {
    /// The result, and the scratch for the next operation.
    Result(Completion, Buffer, Buffer),
    /// The lengths are known; the same operation continues with its real schedule.
    Lens(Box<RunningCollective>),
}
