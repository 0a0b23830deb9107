//! [`SharedExecutor`]: one operation after the other over shared memory, on the thread that asks.
//!
//! Every rank posts its call and where its bytes are, then waits until all others have posted the
//! same call. Short bytes are behind the call: everybody reads all of them and is done. Otherwise
//! each rank reduces its slice straight out of the others' memory, and all wait until all are done.
//!
//! Slots for posts are used in turns, see [`super::flags::turn`].

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

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
use crate::stream_executor::Mailbox;

/// Shared memory of one other member.
#[derive(Debug)]
pub(super) struct LocalPeer {
    pub(super) pid: u32,
    pub(super) control: Arc<ControlMemory>,
    pub(super) segments: Vec<Option<Arc<Mapping>>>,
}

/// How the recorder knows an operation whose turn has come, and when that was, on the host's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct OperationStart {
    pub(super) ticket: RecordId,
    pub(super) ns: u64,
}

/// What became of an operation.
pub(super) enum OperationOutcome {
    /// It is complete, since a moment on the host's clock where that is known without a look at it.
    Result(Buffer, Option<u64>),
    /// All have called it; it is to be run over the streams.
    Over(Buffer),
}

/// One member's end of the shared memory of a group.
#[derive(Debug)]
pub(crate) struct SharedExecutor {
    pub(super) me: usize,
    /// By rank; this member's own control memory is in its place.
    pub(super) neighbours: Vec<LocalPeer>,
    pub(super) pool: Arc<MemoryPool>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) limit: Duration,
    pub(super) generation: Generation,
    /// Operations that were begun.
    pub(super) begun: u64,
    /// Pieces of all operations before this one.
    pub(super) base: u32,
    pub(super) chain: Arc<ReductionTree>,
    pub(super) exact: Option<(ExactSum, Arc<ReductionTree>)>,
    pub(super) scratch: Buffer,
    /// Kept open: others map the control memory through it.
    pub(super) _file: std::os::fd::OwnedFd,
    pub(super) failed: Option<CollectiveError>,
}

/// The operation under way.
pub(super) struct CurrentOperation<'a> {
    /// As it is in the slots.
    pub(super) sequence: u32,
    pub(super) call: [u64; 3],
    pub(super) begun: OperationStart,
    /// When the last rank came.
    pub(super) complete_ns: Cell<u64>,
    pub(super) watch: DeadlineWaiter<'a>,
}

impl SharedExecutor {
    pub(super) fn size(&self) -> usize {
        self.neighbours.len()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.size()).filter(move |&peer| peer != me)
    }

    pub(super) fn control(&self, rank: usize) -> &ControlMemory {
        &self.neighbours[rank].control
    }

    /// Runs an operation to its end.
    pub(super) fn run(
        &mut self,
        (mailbox, patience, begun): (&Mailbox, &SpinBudget, OperationStart),
        operation: &Operation,
        call: &Call,
        mut buffer: Buffer,
    ) -> Result<OperationOutcome, CollectiveError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
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
                patience,
                began: Cell::new(None),
                was_long: Cell::new(false),
            },
        };
        let outcome = if mailbox.has_news() && mailbox.error().is_some() {
            Err(self.halt(&current))
        } else {
            self.perform(&current, operation, call, &mut buffer)
        };
        match outcome {
            Ok(Some(result)) => Ok(OperationOutcome::Result(result, None)),
            Ok(None) if is_direct(operation, call) => {
                let is_short = call.len == 0 || buffer.bytes().len() <= RIDE_MAX;
                let told = is_short && !current.watch.was_long.get();
                Ok(OperationOutcome::Result(
                    buffer,
                    told.then(|| current.complete_ns.get()),
                ))
            }
            Ok(None) => Ok(OperationOutcome::Over(buffer)),
            Err(halt) => {
                let expected = buffer.bytes().len();
                let error = self.fail(&current, halt, at, call, expected);
                // Before the buffer goes: others may still write to where it was.
                self.pool.spoil();
                drop(buffer);
                Err(error)
            }
        }
    }

    /// The result where it is not in `buffer`.
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

    /// Tells the others this rank's call, with `bytes` behind it.
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

    /// Waits until all others have posted the same call; tells `each` what.
    pub(super) fn meet(
        &self,
        current: &CurrentOperation<'_>,
        mut each: impl FnMut(usize, &Announcement),
    ) -> Result<(), HaltReason> {
        let sequence = current.sequence;
        for peer in self.others() {
            let control = self.control(peer);
            let flag = control.arrived(sequence);
            let look = || self.odd(current).is_some();
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

    /// A peer that has posted another call. Notes who has come, also behind one that is waited for.
    pub(super) fn odd(&self, current: &CurrentOperation<'_>) -> Option<usize> {
        let sequence = current.sequence;
        let mut odd = None;
        for peer in self.others() {
            let control = self.control(peer);
            if control.arrived(sequence).value() == sequence {
                let post = control.read_post(sequence);
                self.note_arrival(current, peer, &post);
                if post.call != current.call {
                    odd = odd.or(Some(peer));
                }
            }
        }
        odd
    }

    /// The memory of a peer that it posted.
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
        let neighbour = &mut self.neighbours[rank];
        let (fd, len) = neighbour
            .control
            .segment(id)
            .ok_or_else(|| broken(format!("its segment {id} is none")))?;
        let place = id as usize;
        if neighbour.segments.len() <= place {
            neighbour.segments.resize(place + 1, None);
        }
        let mapping = match &neighbour.segments[place] {
            Some(mapping) => Arc::clone(mapping),
            None => {
                let mapping =
                    Mapping::open(neighbour.pid, fd, len).map_err(|error| match error.kind() {
                        // It was killed, or has closed what it had, between its post and now.
                        io::ErrorKind::NotFound => HaltReason::Stopped {
                            peer: rank,
                            stop: WaitError::Gone,
                            received: 0,
                        },
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

    /// Where the bytes of a buffer are told to be.
    pub(super) fn place(&self, buffer: &Buffer) -> OperandLocation {
        match self.pool.find(buffer) {
            Some(lot) => OperandLocation::Segment {
                id: lot.id,
                offset: lot.offset as u64,
            },
            None => OperandLocation::Staged,
        }
    }

    /// Scratch of at least so many bytes.
    pub(super) fn with_scratch<T>(
        &mut self,
        bytes: usize,
        f: impl FnOnce(&Self, Span<'_>) -> T,
    ) -> T {
        let empty = Buffer::host(ronde_core::DType::U8, 0);
        let mut scratch = std::mem::replace(&mut self.scratch, empty);
        if scratch.len() < bytes {
            scratch = Buffer::host(ronde_core::DType::U8, bytes);
        }
        let outcome = f(self, Span::of(scratch.bytes_mut()));
        self.scratch = scratch;
        outcome
    }

    /// Most bytes that are worth being read by everybody instead of being reduced by one.
    pub(super) fn inline_max(&self) -> usize {
        match self.size() {
            ..=4 => INLINE_MAX,
            _ => INLINE_MAX / 2,
        }
    }
}

/// Whether an operation is run here; the same on all ranks that call the same.
pub(crate) fn is_direct(operation: &Operation, call: &Call) -> bool {
    let known = |op: &ReduceOp| {
        matches!(
            op,
            ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max | ReduceOp::Product
        )
    };
    match operation {
        Operation::AllReduce(op) | Operation::ReduceScatter(op) => known(op),
        // Where a rank brings nothing it cannot know the length: over the streams it is told.
        Operation::ExactSum(_) => call.len != ANY_LEN,
        Operation::AllGather | Operation::Broadcast { .. } | Operation::Barrier => true,
        _ => false,
    }
}
