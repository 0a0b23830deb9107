//! Memory that kernels work in: reused by the next call of the thread, so that it is not asked for again.

use std::cell::RefCell;

/// Floats on a cache line, which buffers start on.
const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read as floats, see `Scratch::take`")] [f32; LINE]);

/// A buffer that grows; contents are what the last use left.
#[derive(Default)]
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    /// `elements` floats from the start of a cache line on, with old contents.
    #[expect(
        unsafe_code,
        reason = "aligned lines are seen as the floats that they are"
    )]
    pub(crate) fn take(&mut self, elements: usize) -> &mut [f32] {
        const { assert!(size_of::<Line>() == LINE * size_of::<f32>()) };
        let lines = elements.div_ceil(LINE);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; LINE]));
        }
        let start = self.0.as_mut_ptr().cast::<f32>();
        // SAFETY: a line is exactly `LINE` initialised floats, as asserted, and there are enough lines.
        unsafe { std::slice::from_raw_parts_mut(start, elements) }
    }
}

/// The buffers of one kernel call.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Packed rows.
    pub(crate) left: Scratch,
    /// Packed columns.
    pub(crate) right: Scratch,
    /// An image with its border, or a sum that is turned at the end.
    pub(crate) image: Scratch,
}

thread_local! {
    /// Never read before it is written: which call came before cannot be seen.
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// The thread's buffers while a kernel runs; they go back when it is done. Not through a closure,
/// which would be compiled without the instructions of the kernel's level.
pub(crate) struct Lent(Buffers);

/// Takes the thread's buffers. Who takes them while they are lent gets new ones.
pub(crate) fn lend() -> Lent {
    Lent(BUFFERS.take())
}

impl Drop for Lent {
    fn drop(&mut self) {
        BUFFERS.set(std::mem::take(&mut self.0));
    }
}

impl std::ops::Deref for Lent {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        &self.0
    }
}

impl std::ops::DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Buffers {
        &mut self.0
    }
}
