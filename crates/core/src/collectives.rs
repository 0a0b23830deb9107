//! The interface to other ranks: [`Collectives`], [`PointToPoint`], [`Group`] for both, and [`Work`].
//!
//! Implemented by `ronde_comm::ProcessGroup`; strategies see only these traits.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::dtype::{DType, ReduceOp};
use crate::error::CollectiveError;
use crate::exact::ExactSum;
use crate::rank::GroupRank;

/// A pending operation. It owns the buffer and returns it at the end.
pub trait Work: Send {
    /// Returns whether [`Work::wait`] would return at once.
    fn is_finished(&self) -> bool;

    /// Waits for the end of the operation, at most until the group's deadline.
    ///
    /// # Errors
    /// The error that stopped the operation; the buffer is then dropped.
    fn wait(self: Box<Self>) -> Result<Buffer, CollectiveError>;
}

/// A collective operation on a buffer. `n` is the group size.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Operation {
    /// Every rank receives the element-wise reduction of all buffers; same length on all ranks.
    AllReduce(ReduceOp),
    /// Every rank receives the sum over logical shards in tree order: its bits do not depend on which rank
    /// holds which shard. The buffer holds this rank's [`ExactSum::nodes`] subtrees in shard order, all of the
    /// same length; the returned buffer has that length.
    ExactSum(ExactSum),
    /// Like [`Operation::ExactSum`], but rank `r` receives only `lens[r]` elements of the sum, in rank order.
    ExactSumScatter {
        /// The assignment of shards to ranks.
        sum: ExactSum,
        /// The number of elements that each rank receives, by rank; together the length of a subtree.
        lens: Vec<usize>,
    },
    /// The root receives the element-wise reduction of all buffers; same length on all ranks. The buffers of
    /// the other ranks serve as scratch memory and return empty.
    Reduce {
        /// The reduction operator.
        op: ReduceOp,
        /// The rank that receives the result.
        root: GroupRank,
    },
    /// Input: `n * k` elements. Output: this rank's `k` elements, reduced over all ranks.
    ReduceScatter(ReduceOp),
    /// Input: `k` elements, any `k` per rank. Output: all ranks' elements in rank order.
    AllGather,
    /// Input: `k` elements, any `k` per rank. Output: all ranks' elements in rank order on the root; the input
    /// on all other ranks.
    Gather {
        /// The rank that receives the elements.
        root: GroupRank,
    },
    /// Input: `n * k` elements on the root, `k` of any value on all other ranks. Output: this rank's `k`
    /// elements of the root's input.
    Scatter {
        /// The rank whose elements are distributed.
        root: GroupRank,
    },
    /// Input: `n * k` elements, `k` for each rank. Output: `n * k` elements, `k` from each rank.
    AllToAll,
    /// Input: elements for each rank, in rank order. Output: the elements that each rank sent to this rank, in
    /// rank order.
    AllToAllUnequal {
        /// The number of elements to send to each rank, by rank.
        send_lens: Vec<usize>,
        /// The number of elements to receive from each rank, by rank. A different number on the sender is a
        /// [`CollectiveError::Mismatch`].
        receive_lens: Vec<usize>,
    },
    /// Every rank receives the root's buffer; same length on all ranks.
    Broadcast {
        /// The rank whose buffer is sent.
        root: GroupRank,
    },
    /// No rank continues before all ranks have called this. The buffer, which may be empty, is returned unchanged.
    Barrier,
}

/// A group of connected ranks. All ranks start the same operations in the same order.
pub trait Collectives: Send + Sync {
    /// Returns this process's index in the group.
    fn rank(&self) -> GroupRank;

    /// Returns the number of members of the group.
    fn size(&self) -> usize;

    /// Allocates a zeroed buffer, if possible in memory that the group can send without a copy.
    ///
    /// # Errors
    /// [`CollectiveError::OutOfMemory`], which ends the group on all ranks.
    fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer, CollectiveError>;

    /// Returns the memory of dropped buffers to the system, before buffers of other lengths are allocated. Cost: buffers of the same
    /// lengths take longer the next time. By default nothing is returned.
    fn release_free_memory(&self) {}

    /// Starts an operation, which runs while the caller continues to compute.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] for invalid arguments. [`Work::wait`] returns later errors.
    fn start(&self, operation: Operation, buffer: Buffer)
    -> Result<Box<dyn Work>, CollectiveError>;

    /// Starts an operation and waits for it. Groups that need no other thread run it on the caller's thread.
    ///
    /// # Errors
    /// Those of the operation.
    fn start_and_wait(
        &self,
        operation: Operation,
        buffer: Buffer,
    ) -> Result<Buffer, CollectiveError> {
        self.start(operation, buffer)?.wait()
    }

    /// Ends all waits on all ranks immediately with [`CollectiveError::Aborted`]. A rank that already has the parts of all
    /// others completes its current operation; its next one fails.
    fn abort(&self, reason: &str);

    /// Returns the number of bytes that this rank has sent so far, including headers. Bytes that a member has received are
    /// counted. Reports about the group itself (a rank that waits, a failure) are not, because their number depends on time.
    fn bytes_sent(&self) -> u64;

    /// Returns the error with which the group has ended, if this rank knows of one, without waiting. A rank that computes for
    /// long between two operations calls it to leave a failed group early. `None` if the group does not know.
    fn failure(&self) -> Option<CollectiveError> {
        None
    }

    /// Returns the host of each rank, as an index from 0 in the order of first appearance. Ranks of one host are lost
    /// together when it fails. One host if the group does not know.
    fn hosts(&self) -> Vec<usize> {
        vec![0; self.size()]
    }

    /// Returns the summed duration of all finished operations in seconds, including the wait for slower ranks. 0 if
    /// the group does not measure it.
    fn under_way_s(&self) -> f64 {
        0.0
    }

    /// Returns when this rank called its latest collective, in nanoseconds of the host's monotonic clock. `None` if the
    /// group does not record it.
    fn called_at_ns(&self) -> Option<u64> {
        None
    }
}

/// The tag of a message between two ranks. Messages with the same tag arrive in the order in which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// A group that supports collectives and messages, and can be divided into others.
pub trait Group: Collectives + PointToPoint {
    /// Returns the sub-group of the members that give the same colour, ordered by key and, for equal keys, by their ranks
    /// here; `None` for members that give no colour. All members call it, in the same order relative to their collectives.
    ///
    /// A sub-group has its own order of operations and its own failures: it does not end with this group.
    ///
    /// # Errors
    /// Those of an operation and of connecting.
    fn sub_group(
        &self,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Arc<dyn Group>>, CollectiveError>;
}

/// Messages between two members of a group.
pub trait PointToPoint: Send + Sync {
    /// Sends a buffer, which is returned once it may be reused.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] for a rank that is not in the group or is the caller.
    fn send(
        &self,
        to: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError>;

    /// Receives into a buffer of exactly the sender's length and type.
    ///
    /// # Errors
    /// As for [`PointToPoint::send`].
    fn receive(
        &self,
        from: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError>;
}
