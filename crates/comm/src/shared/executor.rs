//! [`SharedExecutor`]: runs one operation after another over shared memory, on the calling thread.
//!
//! Every rank announces its call and the location of its operand, then waits until all ranks have announced
//! the same call. Short operands are stored with the call: every rank reads all of them and is done. Otherwise
//! each rank reduces its slice directly from the memory of all ranks, and all wait until all are done.
//!
//! Slots for announcements are used in turns, see [`super::flags::turn`].

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ronde_core::buffer::AllocationError;
use ronde_core::exact::ExactSum;
use ronde_core::{Buffer, CollectiveError, Generation, GroupRank, Operation, ReduceOp};

use super::control::{Announcement, ControlMemory, INLINE_MAX, OperandLocation, RIDE_MAX};
use super::halt::HaltReason;
use super::mapping::{Mapping, Span};
use super::pool::{self, MemoryPool};
use super::tree::{ReduceKernel, ReductionTree};
use super::wait::{DeadlineWaiter, SpinBudget, WaitError};
use crate::flight::RecordId;
use crate::frame::{ANY_LEN, Call};
use crate::program::contributes_nothing;
use crate::stream_executor::Mailbox;

/// Shared memory of one other member.
#[derive(Debug)]
pub(super) struct LocalPeer {
    pub(super) pid: u32,
    pub(super) control: Arc<ControlMemory>,
    pub(super) segments: Vec<Option<Arc<Mapping>>>,
}

/// The recorder's identifier of an operation, and its start on the host's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct OperationStart {
    pub(super) ticket: RecordId,
    pub(super) ns: u64,
}

/// The outcome of an operation.
pub(super) enum OperationOutcome {
    /// The result is in the operand's buffer.
    InPlace {
        /// The end on the host's clock, if it is known without reading the clock.
        end_ns: Option<u64>,
    },
    /// The result is in a new buffer.
    Result(Buffer),
    /// All ranks have called it, but it must run over the streams.
    NeedsStreams,
}

/// One member's side of a group's shared memory.
#[derive(Debug)]
pub(crate) struct SharedExecutor {
    pub(super) me: usize,
    /// By rank; includes this member's own control memory.
    pub(super) local_peers: Vec<LocalPeer>,
    pub(super) pool: Arc<MemoryPool>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) limit: Duration,
    pub(super) generation: Generation,
    /// Number of operations started.
    pub(super) begun: u64,
    /// Number of pieces of all earlier operations.
    pub(super) base: u32,
    pub(super) chain: Arc<ReductionTree>,
    pub(super) exact: Option<(ExactSum, Arc<ReductionTree>)>,
    pub(super) scratch: Buffer,
    /// Kept open because peers map the control memory through it.
    pub(super) _file: std::os::fd::OwnedFd,
    /// Whether an operation has failed, after which the members no longer run the same ones.
    pub(super) has_failed: bool,
}

/// The operation in progress.
pub(super) struct CurrentOperation<'a> {
    /// The sequence number as stored in the slots.
    pub(super) sequence: u32,
    pub(super) call: [u64; 3],
    pub(super) begun: OperationStart,
    /// When the last rank entered the operation.
    pub(super) complete_ns: Cell<u64>,
    pub(super) watch: DeadlineWaiter<'a>,
}

impl SharedExecutor {
    pub(super) fn size(&self) -> usize {
        self.local_peers.len()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.size()).filter(move |&peer| peer != me)
    }

    pub(super) fn control(&self, rank: usize) -> &ControlMemory {
        &self.local_peers[rank].control
    }

    /// Runs an operation to its end.
    pub(super) fn run(
        &mut self,
        (mailbox, spin_budget, begun): (&Mailbox, &SpinBudget, OperationStart),
        operation: &Operation,
        call: &Call,
        buffer: &mut Buffer,
    ) -> Result<OperationOutcome, CollectiveError> {
        if self.has_failed
            && let Some(error) = mailbox.error()
        {
            return Err(error);
        }
        let at = self.begun;
        self.begun += 1;
        let current = CurrentOperation {
            sequence: (at as u32).wrapping_add(1),
            call: call.words(),
            begun,
            complete_ns: Cell::new(begun.ns),
            watch: DeadlineWaiter {
                mailbox,
                limit: self.limit,
                spin_budget,
                began: Cell::new(None),
                was_long: Cell::new(false),
            },
        };
        let outcome = if mailbox.has_news() && mailbox.error().is_some() {
            Err(self.halt(&current))
        } else {
            self.perform(&current, operation, call, buffer)
        };
        match outcome {
            Ok(Some(result)) => Ok(OperationOutcome::Result(result)),
            Ok(None) if is_direct(operation, call) => {
                let is_short = call.len == 0 || buffer.bytes().len() <= RIDE_MAX;
                let end_is_known = is_short && !current.watch.was_long.get();
                let end_ns = end_is_known.then(|| current.complete_ns.get());
                Ok(OperationOutcome::InPlace { end_ns })
            }
            Ok(None) => Ok(OperationOutcome::NeedsStreams),
            Err(halt) => {
                let expected = buffer.bytes().len();
                let error = self.fail(&current, halt, at, call, expected);
                // Before the caller frees the buffer: peers may still write to it.
                self.pool.spoil();
                Err(error)
            }
        }
    }

    /// Performs the operation; returns the result if it is not in `buffer`.
    fn perform(
        &mut self,
        current: &CurrentOperation<'_>,
        operation: &Operation,
        call: &Call,
        buffer: &mut Buffer,
    ) -> Result<Option<Buffer>, HaltReason> {
        if !is_direct(operation, call) || call.len == 0 {
            self.post(current, OperandLocation::Nothing, 0, &[]);
            self.meet(current, |_, _| ())?;
            return Ok(None);
        }
        let kernel = |op| ReduceKernel {
            dtype: call.dtype,
            op,
        };
        match operation {
            Operation::AllReduce(op) if buffer.bytes().len() <= self.inline_max() => {
                self.reduce_short(current, kernel(Some(*op)), buffer)?;
            }
            Operation::AllReduce(op) => {
                let chain = Arc::clone(&self.chain);
                self.reduce_all(current, &chain, kernel(Some(*op)), buffer)?;
            }
            Operation::ExactSum(sum) => {
                let tree = self.exact_tree(sum);
                if tree.is_chain() && buffer.bytes().len() <= self.inline_max() {
                    self.reduce_short(current, kernel(None), buffer)?;
                    return Ok(None);
                }
                self.reduce_all(current, &tree, kernel(None), buffer)?;
                buffer.truncate(call.len as usize);
            }
            Operation::ExactSumScatter { sum, lens } => {
                let tree = self.exact_tree(sum);
                self.reduce_to_owners(current, &tree, kernel(None), buffer, lens)?;
            }
            Operation::ReduceScatter(op) => {
                self.reduce_scatter(current, kernel(Some(*op)), buffer)?
            }
            Operation::AllGather => return self.all_gather(current, buffer).map(Some),
            Operation::Broadcast { root } => self.broadcast(current, root.index(), buffer)?,
            _ => {
                self.post(current, OperandLocation::Nothing, 0, &[]);
                self.meet(current, |_, _| ())?;
            }
        }
        Ok(None)
    }

    fn exact_tree(&mut self, sum: &ExactSum) -> Arc<ReductionTree> {
        if let Some((of, tree)) = &self.exact
            && of == sum
        {
            return Arc::clone(tree);
        }
        let tree = Arc::new(ReductionTree::exact(sum));
        self.exact = Some((sum.clone(), Arc::clone(&tree)));
        tree
    }

    /// Announces this rank's call, with `bytes` stored after it.
    pub(super) fn post(
        &self,
        current: &CurrentOperation<'_>,
        place: OperandLocation,
        own_len: u64,
        bytes: &[u8],
    ) {
        let control = self.control(self.me);
        let mut ride = [0];
        if bytes.len() <= RIDE_MAX {
            bytemuck::bytes_of_mut(&mut ride)[..bytes.len()].copy_from_slice(bytes);
        } else {
            control.inline(current.sequence, bytes.len()).write(bytes);
        }
        let post = Announcement {
            call: current.call,
            place,
            own_len,
            moment: current.begun.ns,
            ride: ride[0],
        };
        control.write_post(current.sequence, &post);
        control.arrived(current.sequence).raise(current.sequence);
        let sent = bytes.len() as u64 * (self.size() as u64 - 1);
        self.mailbox
            .count(64 * (self.size() as u64 - 1) + sent, sent);
    }

    /// Waits until all peers have announced the same call, and passes their announcements to `each`.
    pub(super) fn meet(
        &self,
        current: &CurrentOperation<'_>,
        mut each: impl FnMut(usize, &Announcement),
    ) -> Result<(), HaltReason> {
        let sequence = current.sequence;
        for peer in self.others() {
            let control = self.control(peer);
            let flag = control.arrived(sequence);
            let look = || self.mismatched_peer(current).is_some();
            let is_there = |now| now == sequence;
            let waited = current.watch.wait(peer, flag, is_there, look);
            waited.map_err(|stop| HaltReason::Stopped {
                peer,
                stop,
                received: 0,
            })?;
            let post = control.read_post(sequence);
            if post.call != current.call {
                return Err(HaltReason::Mismatch { peer });
            }
            self.note_arrival(current, peer, &post);
            each(peer, &post);
        }
        Ok(())
    }

    fn note_arrival(&self, current: &CurrentOperation<'_>, peer: usize, post: &Announcement) {
        let flight = self.mailbox.flight();
        flight.came(current.begun.ticket, peer, post.moment);
        let latest = current.complete_ns.get().max(post.moment);
        current.complete_ns.set(latest);
    }

    /// Returns a peer that has announced another call. Records the arrivals of all peers on the way.
    pub(super) fn mismatched_peer(&self, current: &CurrentOperation<'_>) -> Option<usize> {
        let sequence = current.sequence;
        let mut mismatched_peer = None;
        for peer in self.others() {
            let control = self.control(peer);
            if control.arrived(sequence).value() == sequence {
                let post = control.read_post(sequence);
                self.note_arrival(current, peer, &post);
                if post.call != current.call {
                    mismatched_peer = mismatched_peer.or(Some(peer));
                }
            }
        }
        mismatched_peer
    }

    /// Returns the memory that a peer has announced.
    pub(super) fn region(
        &mut self,
        rank: usize,
        place: OperandLocation,
        bytes: usize,
    ) -> Result<Option<(Arc<Mapping>, u64)>, HaltReason> {
        let OperandLocation::Segment { id, offset } = place else {
            return Ok(None);
        };
        if rank == self.me {
            return Ok(Some((self.pool.mapping(id), offset)));
        }
        let broken = |problem: String| {
            HaltReason::Error(CollectiveError::Protocol {
                peer: GroupRank(rank as u32),
                problem,
            })
        };
        let neighbour = &mut self.local_peers[rank];
        let (fd, len) = neighbour
            .control
            .segment(id)
            .ok_or_else(|| broken(format!("its segment {id} does not exist")))?;
        let place = id as usize;
        if neighbour.segments.len() <= place {
            neighbour.segments.resize(place + 1, None);
        }
        let mapping = match &neighbour.segments[place] {
            Some(mapping) => Arc::clone(mapping),
            None => {
                let mapping =
                    Mapping::open(neighbour.pid, fd, len).map_err(|error| match error.kind() {
                        // The process was killed, or closed its files, between announcing and now.
                        io::ErrorKind::NotFound => HaltReason::Stopped {
                            peer: rank,
                            stop: WaitError::Gone,
                            received: 0,
                        },
                        io::ErrorKind::OutOfMemory => {
                            HaltReason::OutOfMemory(AllocationError { bytes: len })
                        }
                        // The system refused this rank, for example because it has too many open files.
                        _ if error.raw_os_error().is_some() => {
                            HaltReason::Error(CollectiveError::Connect {
                                what: format!("cannot map the memory of group rank {rank}"),
                                cause: error.to_string(),
                            })
                        }
                        _ => broken(format!("its segment {id}: {error}")),
                    })?;
                Arc::clone(neighbour.segments[place].insert(Arc::new(mapping)))
            }
        };
        if pool::span(&mapping, offset, bytes).is_none() {
            return Err(broken(format!(
                "{bytes} bytes at {offset} of its segment {id}"
            )));
        }
        Ok(Some((mapping, offset)))
    }

    /// Returns the location of a buffer's bytes as announced to peers.
    pub(super) fn place(&self, buffer: &Buffer) -> OperandLocation {
        match self.pool.find(buffer) {
            Some(location) => OperandLocation::Segment {
                id: location.id,
                offset: location.offset as u64,
            },
            None => OperandLocation::Staged,
        }
    }

    /// Runs `f` with scratch of at least the given size.
    pub(super) fn with_scratch<T>(
        &mut self,
        bytes: usize,
        f: impl FnOnce(&Self, Span<'_>) -> Result<T, HaltReason>,
    ) -> Result<T, HaltReason> {
        let empty = Buffer::host(ronde_core::DType::U8, 0);
        let mut scratch = std::mem::replace(&mut self.scratch, empty);
        if scratch.len() < bytes {
            scratch =
                Buffer::try_host(ronde_core::DType::U8, bytes).map_err(HaltReason::OutOfMemory)?;
        }
        let outcome = f(self, Span::of(scratch.bytes_mut()));
        self.scratch = scratch;
        outcome
    }

    /// Returns the size up to which it is faster that every rank reads all operands than that one reduces.
    pub(super) fn inline_max(&self) -> usize {
        match self.size() {
            ..=4 => INLINE_MAX,
            _ => INLINE_MAX / 2,
        }
    }
}

/// Returns whether an operation runs over shared memory; the same on all ranks that call the same.
pub(crate) fn is_direct(operation: &Operation, call: &Call) -> bool {
    let known = |op: &ReduceOp| {
        matches!(
            op,
            ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max | ReduceOp::Product
        )
    };
    match operation {
        Operation::AllReduce(op) | Operation::ReduceScatter(op) => known(op),
        // A rank that contributes nothing cannot know the length: over the streams it receives it.
        Operation::ExactSum(_) => call.len != ANY_LEN,
        // A rank that contributes nothing has no memory of the operands' length.
        Operation::ExactSumScatter { sum, .. } => !contributes_nothing(sum),
        Operation::AllGather | Operation::Broadcast { .. } | Operation::Barrier => true,
        _ => false,
    }
}
