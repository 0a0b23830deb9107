//! [`Flag`]: a word with a member's progress, and waiting for it.
//!
//! This file uses no processes, mappings or clocks: the loom tests compile it unchanged, with loom's
//! atomics instead of [`super::atomics`], and try all interleavings.
//!
//! *No read before the write*: a value is stored with release and loaded with acquire, so a thread that
//! sees it also sees the bytes that were written before. *No lost wake-up*: a waiting thread increments
//! the number of waiters, then loads the word once more, then sleeps; a thread that raises the word
//! stores it, then loads the number of waiters. Between the two steps of each is a fence, so that at least
//! one of them sees the other's store. *Slots are reused only after all ranks have read them*: see [`turn`].

use std::time::Duration;

use super::atomics::{AtomicU32, Ordering, fence, sleep, spin_loop, wake, yield_now};

/// Number of slots for announcements.
pub(super) const TURNS: u32 = 2;

/// Returns the slot in which an operation is announced.
///
/// A rank that announces operation `s + 2` has ended `s + 1`, for which it has seen the announcements of
/// all others; a rank that has announced `s + 1` has ended `s`, and with it all reads of the slot.
pub(super) fn turn(sequence: u32) -> u32 {
    sequence % TURNS
}

/// Returns whether a counter that only increases has reached a value; both wrap.
pub(super) fn reached(now: u32, value: u32) -> bool {
    now.wrapping_sub(value).cast_signed() >= 0
}

/// A word of a member, and the number of threads that sleep on any of its words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flag<'a> {
    pub(super) word: &'a AtomicU32,
    pub(super) waiters: &'a AtomicU32,
}

/// How a wait spins, yields and sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitPace {
    /// Number of loads before the thread yields.
    pub(super) spins: u32,
    /// Number of loads with a yield between them.
    pub(super) yields: u32,
    /// Longest sleep before the state of the group is checked again.
    pub(super) sleep_max: Duration,
}

/// How a wait succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// After this many unsuccessful loads, without a yield.
    Spinning(u32),
    /// After a yield.
    Later,
}

/// Loads in a row before the first pause, which takes longer than an update from another core.
const EAGER: u32 = 64;

impl<'a> Flag<'a> {
    /// Returns the value; all that its owner wrote before it can be read now.
    pub(super) fn value(self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Publishes a new value, and wakes the threads that sleep.
    pub(super) fn raise(self, value: u32) {
        self.word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            wake(self.word);
        }
    }

    /// Waits until the value satisfies `is_there`: spins shortly, then yields, then sleeps.
    ///
    /// While spinning, `news` returns whether the wait may have become pointless; between sleeps, `stop`
    /// returns the error if it has. A value that was published before the stop still counts.
    ///
    /// # Errors
    /// The error that `stop` returns.
    pub(super) fn wait<E>(
        self,
        pace: WaitPace,
        is_there: impl Fn(u32) -> bool,
        news: impl Fn() -> bool,
        mut stop: impl FnMut() -> Option<E>,
    ) -> Result<WaitOutcome, E> {
        for spins in 0..pace.spins {
            if is_there(self.value()) {
                return Ok(WaitOutcome::Spinning(spins));
            }
            if spins >= EAGER {
                if news() {
                    break;
                }
                spin_loop();
            }
        }
        if is_there(self.value()) {
            return Ok(WaitOutcome::Spinning(pace.spins));
        }
        for _ in 0..pace.yields {
            yield_now();
            if is_there(self.value()) {
                return Ok(WaitOutcome::Later);
            }
        }
        loop {
            self.sleep_max(pace.sleep_max, &is_there);
            let stop = stop();
            if is_there(self.value()) {
                return Ok(WaitOutcome::Later);
            }
            if let Some(stop) = stop {
                return Err(stop);
            }
        }
    }

    /// Sleeps until the value changes, or for `limit`.
    fn sleep_max(self, limit: Duration, is_there: impl Fn(u32) -> bool) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let now = self.word.load(Ordering::Relaxed);
        if !is_there(now) {
            sleep(self.word, now, limit);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}
