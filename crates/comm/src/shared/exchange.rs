//! [`Exchange`]: one operation after the other over shared memory, on the thread that asks.
//!
//! Every rank posts its call and where its bytes are, then waits until all others have posted the
//! same call. Short bytes are behind the call: everybody reads all of them and is done. Otherwise
//! each rank reduces its slice straight out of the others' memory, and all wait until all are done.
//!
//! Slots for posts are used in turns. A rank that posts operation `s + 2` has seen all others post
//! `s + 1`, so they have read what was in that slot for `s`: two slots are enough.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ronde_core::exact::ExactSum;
use ronde_core::{Buffer, CollectiveError, Generation, GroupRank, Operation, ReduceOp};

use super::control::{CALL_BYTES, Control, INLINE_MAX, Place, Post, publish};
use super::mapping::{Mapping, Span};
use super::pool::{self, Pool};
use super::tree::{Kernel, Tree};
use super::wait::{Patience, Stop, Watch};
use crate::engine::{Command, Mailbox};
use crate::frame::{ANY_LEN, Call};
use crate::notice::Notice;

/// Shared memory of one other member.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) pid: u32,
    pub(super) control: Arc<Control>,
    pub(super) segments: Vec<Option<Arc<Mapping>>>,
}

/// What became of an operation.
pub(super) enum Done {
    /// It is complete.
    Result(Buffer),
    /// All have called it; it is to be run over the streams.
    Over(Buffer),
}

/// Why an operation did not complete.
pub(super) enum Halt {
    /// Waiting for a peer ended.
    Stopped {
        peer: usize,
        stop: Stop,
        received: usize,
    },
    /// A peer has posted another call.
    Mismatch { peer: usize },
    /// It cannot be done.
    Error(CollectiveError),
}

/// One member's end of the shared memory of a group.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) me: usize,
    /// By rank; this member's own control memory is in its place.
    pub(super) neighbours: Vec<Neighbour>,
    pub(super) pool: Arc<Pool>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) limit: Duration,
    pub(super) generation: Generation,
    /// Operations that were begun.
    pub(super) begun: u64,
    /// Pieces of all operations before this one.
    pub(super) base: u32,
    pub(super) chain: Arc<Tree>,
    pub(super) exact: Option<(ExactSum, Arc<Tree>)>,
    pub(super) scratch: Buffer,
    /// Kept open: others map the control memory through it.
    pub(super) _file: std::os::fd::OwnedFd,
    pub(super) failed: Option<CollectiveError>,
}

/// The operation under way.
pub(super) struct Current<'a> {
    /// As it is in the slots.
    pub(super) sequence: u32,
    pub(super) call: [u8; CALL_BYTES],
    pub(super) watch: Watch<'a>,
}

impl Exchange {
    pub(super) fn size(&self) -> usize {
        self.neighbours.len()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.size()).filter(move |&peer| peer != me)
    }

    pub(super) fn control(&self, rank: usize) -> &Control {
        &self.neighbours[rank].control
    }

    /// Runs an operation to its end.
    pub(super) fn run(
        &mut self,
        (mailbox, patience): (&Mailbox, &Patience),
        operation: &Operation,
        call: &Call,
        mut buffer: Buffer,
    ) -> Result<Done, CollectiveError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let at = self.begun;
        self.begun += 1;
        let current = Current {
            sequence: (at as u32).wrapping_add(1),
            call: call.encode(),
            watch: Watch {
                mailbox,
                limit: self.limit,
                patience,
                began: Cell::new(None),
            },
        };
        let outcome = if mailbox.has_news() && mailbox.error().is_some() {
            Err(self.halt(&current))
        } else {
            self.perform(&current, operation, call, &mut buffer)
        };
        match outcome {
            Ok(Some(result)) => Ok(Done::Result(result)),
            Ok(None) if is_direct(operation, call) => Ok(Done::Result(buffer)),
            Ok(None) => Ok(Done::Over(buffer)),
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
        current: &Current<'_>,
        operation: &Operation,
        call: &Call,
        buffer: &mut Buffer,
    ) -> Result<Option<Buffer>, Halt> {
        if !is_direct(operation, call) || call.len == 0 {
            self.post(current, Place::Nothing, 0, &[]);
            self.meet(current, |_, _| ())?;
            return Ok(None);
        }
        let kernel = |op| Kernel {
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
                self.post(current, Place::Nothing, 0, &[]);
                self.meet(current, |_, _| ())?;
            }
        }
        Ok(None)
    }

    fn exact_tree(&mut self, sum: &ExactSum) -> Arc<Tree> {
        if let Some((of, tree)) = &self.exact
            && of == sum
        {
            return Arc::clone(tree);
        }
        let tree = Arc::new(Tree::exact(sum));
        self.exact = Some((sum.clone(), Arc::clone(&tree)));
        tree
    }

    /// Tells the others this rank's call, with `bytes` behind it.
    pub(super) fn post(&self, current: &Current<'_>, place: Place, own_len: u64, bytes: &[u8]) {
        let control = self.control(self.me);
        let post = Post {
            call: current.call,
            place,
            own_len,
        };
        control.write_post(current.sequence, &post);
        if !bytes.is_empty() {
            control.inline(current.sequence, bytes.len()).write(bytes);
        }
        let word = control.arrived(current.sequence);
        publish(control, word, current.sequence);
        let sent = bytes.len() as u64 * (self.size() as u64 - 1);
        self.mailbox
            .count(64 * (self.size() as u64 - 1) + sent, sent);
    }

    /// Waits until all others have posted the same call; tells `each` what.
    pub(super) fn meet(
        &self,
        current: &Current<'_>,
        mut each: impl FnMut(usize, &Post),
    ) -> Result<(), Halt> {
        let sequence = current.sequence;
        for peer in self.others() {
            let control = self.control(peer);
            let word = control.arrived(sequence);
            let look = || self.odd(current).is_some();
            let waited = current
                .watch
                .wait(peer, control, word, |now| now == sequence, look);
            waited.map_err(|stop| Halt::Stopped {
                peer,
                stop,
                received: 0,
            })?;
            let post = control.read_post(sequence);
            if post.call != current.call {
                return Err(Halt::Mismatch { peer });
            }
            each(peer, &post);
        }
        Ok(())
    }

    /// A peer that has posted another call.
    fn odd(&self, current: &Current<'_>) -> Option<usize> {
        let sequence = current.sequence;
        self.others().find(|&peer| {
            let control = self.control(peer);
            control.arrived(sequence).load(Ordering::Acquire) == sequence
                && control.read_post(sequence).call != current.call
        })
    }

    fn halt(&self, current: &Current<'_>) -> Halt {
        let mismatch = self.odd(current).map(|peer| Halt::Mismatch { peer });
        let peer = self.me;
        mismatch.unwrap_or(Halt::Stopped {
            peer,
            stop: Stop::Failed,
            received: 0,
        })
    }

    /// The memory of a peer that it posted.
    pub(super) fn region(
        &mut self,
        rank: usize,
        place: Place,
        bytes: usize,
    ) -> Result<Option<(Arc<Mapping>, u64)>, Halt> {
        let Place::Segment { id, offset } = place else {
            return Ok(None);
        };
        if rank == self.me {
            return Ok(Some((self.pool.mapping(id), offset)));
        }
        let broken = |problem: String| {
            Halt::Error(CollectiveError::Protocol {
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
                let mapping = Mapping::open(neighbour.pid, fd, len)
                    .map_err(|error| broken(format!("its segment {id}: {error}")))?;
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
    pub(super) fn place(&self, buffer: &Buffer) -> Place {
        match self.pool.find(buffer) {
            Some(lot) => Place::Segment {
                id: lot.id,
                offset: lot.offset as u64,
            },
            None => Place::Staged,
        }
    }

    /// Turns a halt into the error of all ranks, and tells the others.
    fn fail(
        &mut self,
        current: &Current<'_>,
        mut halt: Halt,
        sequence: u64,
        call: &Call,
        expected: usize,
    ) -> CollectiveError {
        if let Halt::Stopped {
            stop: Stop::Looked | Stop::Failed,
            ..
        } = halt
            && let Some(peer) = self.odd(current)
        {
            halt = Halt::Mismatch { peer };
        }
        let (error, notice) = match halt {
            Halt::Error(error) => (error, None),
            Halt::Mismatch { peer } => self.mismatch(current, peer, sequence, call),
            Halt::Stopped {
                peer,
                stop,
                received,
            } => {
                let bytes = (received, expected);
                (self.stopped(peer, &stop, bytes, sequence, call), None)
            }
        };
        self.failed = Some(error.clone());
        // It fails when the group has failed already, which is what is wanted.
        let _told = self.mailbox.post(Command::Fail {
            error: error.clone(),
            notice,
        });
        error
    }

    fn mismatch(
        &self,
        current: &Current<'_>,
        peer: usize,
        sequence: u64,
        call: &Call,
    ) -> (CollectiveError, Option<Notice>) {
        let theirs = self.control(peer).read_post(current.sequence);
        let notice = Call::decode(&theirs.call).map(|peer_call| Notice::Mismatch {
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

    /// The error of a wait for a peer; `bytes` are those that came and those that were expected.
    fn stopped(
        &self,
        peer: usize,
        stop: &Stop,
        (received, expected): (usize, usize),
        sequence: u64,
        call: &Call,
    ) -> CollectiveError {
        let operation = call.kind.name().to_owned();
        let generation = self.generation;
        let (peer, cause) = match (stop, self.mailbox.error()) {
            (Stop::Left, _) => (GroupRank(peer as u32), "it has left the group".to_owned()),
            (Stop::Late { waited }, _) => {
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
