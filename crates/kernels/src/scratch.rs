//! Scratch memory of kernels, reused by the next call of the thread to avoid allocations.

use std::cell::RefCell;
use std::thread::LocalKey;

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
        bytes_of(&[&self.left, &self.right, &self.image])
    }
}

/// Strips of the matrices of an attention: some queries, and all keys of a sequence.
#[derive(Default)]
pub(crate) struct StripBuffers {
    /// The weights.
    pub(crate) weights: ScratchBuffer,
    /// The gradients of the weights.
    pub(crate) slopes: ScratchBuffer,
}

impl StripBuffers {
    fn bytes(&self) -> usize {
        bytes_of(&[&self.weights, &self.slopes])
    }
}

fn bytes_of(buffers: &[&ScratchBuffer]) -> usize {
    let each = buffers.iter();
    each.map(|buffer| buffer.0.capacity() * size_of::<CacheLine>())
        .sum()
}

/// Returns the bytes that the kernels of the calling thread have taken for intermediate values. They depend on the shapes
/// of the operations, and hardly on the number of samples.
#[must_use]
pub fn buffer_bytes() -> usize {
    BUFFERS.with_borrow(KernelBuffers::bytes) + STRIPS.with_borrow(StripBuffers::bytes)
}

thread_local! {
    /// The thread's buffers. Kernels never read them before writing, so previous calls have no influence.
    static BUFFERS: RefCell<KernelBuffers> = RefCell::default();
    /// The thread's strips, which are in use while products of them use [`BUFFERS`].
    static STRIPS: RefCell<StripBuffers> = RefCell::default();
}

/// The thread's buffers while a kernel runs; dropping this returns them. A closure instead would be compiled without
/// the instructions of the kernel's level.
pub(crate) struct LentBuffers<T: Default + 'static> {
    buffers: T,
    owner: &'static LocalKey<RefCell<T>>,
}

/// Takes the thread's buffers. A nested call gets new buffers.
pub(crate) fn lend() -> LentBuffers<KernelBuffers> {
    LentBuffers {
        buffers: BUFFERS.take(),
        owner: &BUFFERS,
    }
}

/// Takes the thread's strips, as [`lend`].
pub(crate) fn lend_strips() -> LentBuffers<StripBuffers> {
    LentBuffers {
        buffers: STRIPS.take(),
        owner: &STRIPS,
    }
}

impl<T: Default> Drop for LentBuffers<T> {
    fn drop(&mut self) {
        self.owner.set(std::mem::take(&mut self.buffers));
    }
}

impl<T: Default> std::ops::Deref for LentBuffers<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.buffers
    }
}

impl<T: Default> std::ops::DerefMut for LentBuffers<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.buffers
    }
}
