//! Scratch memory of kernels, reused by the next call of the thread to avoid allocations.

use std::cell::RefCell;

/// The number of floats of a cache line, to which buffers are aligned.
const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine(
    #[expect(dead_code, reason = "read as floats, see `ScratchBuffer::take`")] [f32; LINE],
);

/// A growing buffer, with the contents of its last use.
#[derive(Default)]
pub(crate) struct ScratchBuffer(Vec<CacheLine>);

impl ScratchBuffer {
    /// Returns `elements` floats, aligned to a cache line, with old contents.
    #[expect(
        unsafe_code,
        reason = "aligned cache lines are reinterpreted as floats"
    )]
    pub(crate) fn take(&mut self, elements: usize) -> &mut [f32] {
        const { assert!(size_of::<CacheLine>() == LINE * size_of::<f32>()) };
        let lines = elements.div_ceil(LINE);
        if self.0.len() < lines {
            // The old memory is freed first, and the new one is not longer than needed.
            self.0 = Vec::new();
            self.0 = vec![CacheLine([0.0; LINE]); lines];
        }
        let start = self.0.as_mut_ptr().cast::<f32>();
        // SAFETY: a line is exactly `LINE` initialised floats, as asserted, and there are enough lines.
        unsafe { std::slice::from_raw_parts_mut(start, elements) }
    }
}

/// The buffers of one kernel call.
#[derive(Default)]
pub(crate) struct KernelBuffers {
    /// The packed rows.
    pub(crate) left: ScratchBuffer,
    /// The packed columns.
    pub(crate) right: ScratchBuffer,
    /// An image with its border, or a sum that is transposed at the end.
    pub(crate) image: ScratchBuffer,
}

impl KernelBuffers {
    fn bytes(&self) -> usize {
        let all = [&self.left, &self.right, &self.image];
        all.iter()
            .map(|buffer| buffer.0.capacity() * size_of::<CacheLine>())
            .sum()
    }
}

/// Returns the bytes that the kernels of the calling thread have taken for intermediate values. They depend on the shapes
/// of the operations, and hardly on the number of samples.
#[must_use]
pub fn buffer_bytes() -> usize {
    BUFFERS.with_borrow(KernelBuffers::bytes)
}

thread_local! {
    /// The thread's buffers. Kernels never read them before writing, so previous calls have no influence.
    static BUFFERS: RefCell<KernelBuffers> = RefCell::default();
}

/// The thread's buffers while a kernel runs; dropping this returns them. A closure instead would be compiled without
/// the instructions of the kernel's level.
pub(crate) struct LentBuffers(KernelBuffers);

/// Takes the thread's buffers. A nested call gets new buffers.
pub(crate) fn lend() -> LentBuffers {
    LentBuffers(BUFFERS.take())
}

impl Drop for LentBuffers {
    fn drop(&mut self) {
        BUFFERS.set(std::mem::take(&mut self.0));
    }
}

impl std::ops::Deref for LentBuffers {
    type Target = KernelBuffers;

    fn deref(&self) -> &KernelBuffers {
        &self.0
    }
}

impl std::ops::DerefMut for LentBuffers {
    fn deref_mut(&mut self) -> &mut KernelBuffers {
        &mut self.0
    }
}
