//! The seam to other ranks: [`Collectives`], [`PointToPoint`], both as [`Group`], and [`Work`].
//!
//! Implemented by `ronde_comm::ProcessGroup`; strategies see only these traits.

use crate::exact::ExactSum;
use crate::{Buffer, CollectiveError, DType, GroupRank, ReduceOp};

/// A pending operation. It owns the buffer and hands it back.
pub trait Work: Send {
    /// Whether [`Work::wait`] would return at once.
    fn is_finished(&self) -> bool;

    /// Waits for the end, at most until the group's deadline.
    ///
    /// # Errors
    /// Whatever stopped the operation; the buffer is then gone.
    fn wait(self: Box<Self>) -> Result<Buffer, CollectiveError>;
}

/// What a group is asked to do with a buffer. `n` is the group size.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Operation {
    /// Every rank gets the element-wise reduction of all buffers; same length on all ranks.
    AllReduce(ReduceOp),
    /// Every rank gets the sum over logical shards in tree order: the same bits whoever holds which
    /// shard. The buffer holds this rank's subtrees, [`ExactSum::nodes`] of them, one after the
    /// other in shard order, each of the same length; it comes back with that one length.
    ExactSum(ExactSum),
    /// The root gets the element-wise reduction of all buffers; same length on all ranks. The others
    /// get their buffer back empty: it served as scratch.
    Reduce {
        /// How elements become one.
        op: ReduceOp,
        /// Who gets the result.
        root: GroupRank,
    },
    /// In: `n * k` elements. Back: this rank's `k` elements, reduced over all ranks.
    ReduceScatter(ReduceOp),
    /// In: `k` elements, any `k` per rank. Back: all ranks' elements in rank order.
    AllGather,
    /// In: `k` elements, any `k` per rank. Back: all ranks' elements in rank order for the root, what
    /// they brought for the others.
    Gather {
        /// Who gets the elements.
        root: GroupRank,
    },
    /// In: `n * k` elements for the root, `k` of any value for the others. Back: the `k` elements of
    /// the root's that belong to this rank.
    Scatter {
        /// Whose elements they are.
        root: GroupRank,
    },
    /// In: `n * k` elements, `k` for each rank. Back: `n * k` elements, `k` of each rank's.
    AllToAll,
    /// In: elements for each rank, one run after the other. Back: what each rank had for this one,
    /// in rank order.
    AllToAllUnequal {
        /// How many elements are for each rank, by rank.
        send_lens: Vec<usize>,
        /// How many elements each rank has for this one, by rank. Another count is a
        /// [`CollectiveError::Mismatch`].
        receive_lens: Vec<usize>,
    },
    /// Every rank gets the root's buffer; same length on all ranks.
    Broadcast {
        /// Whose buffer is sent.
        root: GroupRank,
    },
    /// Nobody goes on before all have arrived. The buffer (may be empty) comes back untouched.
    Barrier,
}

/// A group of connected ranks. All ranks start the same operations in the same order.
pub trait Collectives: Send + Sync {
    /// This process's index in the group.
    fn rank(&self) -> GroupRank;

    /// Members of the group.
    fn size(&self) -> usize;

    /// A zeroed buffer in memory that the group can send without a copy, where it has such.
    fn allocate(&self, dtype: DType, len: usize) -> Buffer;

    /// Starts an operation; it runs while the caller goes on computing.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] at once for impossible arguments; later ones come from
    /// [`Work::wait`].
    fn start(&self, operation: Operation, buffer: Buffer)
    -> Result<Box<dyn Work>, CollectiveError>;

    /// Starts an operation and waits for it. Groups that need no other thread for it run it on the
    /// caller's.
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

    /// Ends every wait on all ranks at once with [`CollectiveError::Aborted`].
    fn abort(&self, reason: &str);

    /// Bytes that this rank has sent to others so far, headers included.
    fn bytes_sent(&self) -> u64;

    /// Seconds from turn to end of all operations that have ended, summed; waiting for slower ranks
    /// counts. 0 where the group does not know.
    fn under_way_s(&self) -> f64 {
        0.0
    }
}

/// Names a message between two ranks; messages of one tag arrive in the order sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// A group for collectives and for messages.
pub trait Group: Collectives + PointToPoint {}

impl<T: Collectives + PointToPoint + ?Sized> Group for T {}

/// Messages between two members of a group.
pub trait PointToPoint: Send + Sync {
    /// Sends a buffer; it comes back once it may be reused.
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
