//! [`Lent`]: memory of Python used by an operation, and [`Loan`], which notifies its owner of the end.

use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ronde_core::{Buffer, Element, Memory, MemoryKind};

/// Memory that belongs to a Python object.
struct Lent {
    start: NonNull<u8>,
    bytes: usize,
    /// Dropped with the memory.
    _back: Sender<()>,
}

#[expect(
    unsafe_code,
    reason = "a pointer may go to the thread that runs the operation"
)]
// SAFETY: the memory is plain bytes, and nothing else accesses it while it is lent, see `lend`.
unsafe impl Send for Lent {}
#[expect(unsafe_code, reason = "a reference may be read by another thread")]
// SAFETY: as above, and a shared reference only reads.
unsafe impl Sync for Lent {}

impl Memory for Lent {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn owner(&self) -> &'static str {
        "python"
    }

    #[expect(unsafe_code, reason = "foreign memory")]
    fn bytes(&self) -> &[u8] {
        // SAFETY: `lend` guarantees that these bytes exist and are used by nothing else until the loan ends.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    #[expect(unsafe_code, reason = "foreign memory")]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is the only access to them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// Notifies the owner when lent memory is released.
pub(crate) struct Loan(Receiver<()>);

impl Loan {
    /// Waits until the memory is released; returns `false` if it is not after `limit`.
    pub(crate) fn ended_within(self, limit: Duration) -> bool {
        // Nothing is ever sent: the sender is dropped with the memory.
        self.0.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    }
}

/// Returns a buffer over borrowed memory.
///
/// # Safety
/// `values` stays in place, and nothing else reads or writes it, until the [`Loan`] has ended.
#[expect(unsafe_code, reason = "the caller makes promises")]
pub(crate) unsafe fn lend<T: Element>(values: &mut [T]) -> (Buffer, Loan) {
    let (back, loan) = channel();
    let memory = Lent {
        bytes: size_of_val(values),
        start: NonNull::from(&mut *values).cast(),
        _back: back,
    };
    let buffer = Buffer::from_memory(T::DTYPE, values.len(), Box::new(memory));
    (buffer, Loan(loan))
}
