//! [`RingSide`]: how far the two ends of a ring are, and which of them sleeps.
//!
//! This file knows no mapping and no bytes: the loom tests compile it as it is, with loom's atomics in
//! place of [`super::atomics`], and try all interleavings.
//!
//! *No read before the write*: a side publishes its count with release after it has copied, and looks at
//! the other's with acquire. *No lost wake-up*: a side that goes to sleep says so in a word of its own and
//! looks at the other's count once more; the other one looks at that word after it has published its
//! count. Between the two steps of each is a fence, so that either the count is seen or the word. *Nobody
//! is woken twice*: who finds the word set takes it back.

use super::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// One end of a ring, with the words of both.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingSide<'a> {
    /// Bytes that have passed this end, and the other one.
    pub(super) mine: &'a AtomicU64,
    pub(super) theirs: &'a AtomicU64,
    /// Whether this end sleeps, and the other one.
    pub(super) i_sleep: &'a AtomicU32,
    pub(super) they_sleep: &'a AtomicU32,
}

impl RingSide<'_> {
    /// What the other side has counted; what it did to those bytes can be seen now.
    pub(super) fn theirs(self) -> u64 {
        self.theirs.load(Ordering::Acquire)
    }

    /// Tells the other side a new count.
    pub(super) fn publish(self, count: u64) {
        self.mine.store(count, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Says that this side sleeps, before it looks for the last time.
    pub(super) fn lie_down(self) {
        // Taken back by a swap too: which of the two came last is then never in doubt.
        self.i_sleep.swap(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// After a sleep, or in place of one.
    pub(super) fn get_up(self) {
        self.i_sleep.store(0, Ordering::Relaxed);
    }

    /// Whether the other side sleeps and is to be woken now, by this side alone. After
    /// [`RingSide::publish`].
    pub(super) fn must_wake(self) -> bool {
        self.they_sleep.load(Ordering::Relaxed) != 0
            && self.they_sleep.swap(0, Ordering::AcqRel) != 0
    }
}
