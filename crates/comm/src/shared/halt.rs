//! [`HaltReason`]: why an operation over shared memory did not complete.

use ronde_core::CollectiveError;
use ronde_core::buffer::AllocationError;

use super::wait::WaitError;

/// Why an operation did not complete.
pub(super) enum HaltReason {
    /// Waiting for a peer ended.
    Stopped {
        peer: usize,
        stop: WaitError,
        received: usize,
    },
    /// A peer has announced another call.
    Mismatch { peer: usize },
    /// This rank cannot allocate memory.
    OutOfMemory(AllocationError),
    /// It is not possible.
    Error(CollectiveError),
}
