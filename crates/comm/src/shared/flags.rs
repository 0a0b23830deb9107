//! [`Flag`]: a word by which a member tells the others how far it is, and the waiting for it.
//!
//! This file knows no processes, mappings or clocks: the loom tests compile it as it is, with loom's
//! atomics in place of [`super::atomics`], and try all interleavings.
//!
//! *No read before the write*: a value is stored with release and looked at with acquire, so whoever
//! sees it also sees the bytes that were written before. *No lost wake-up*: one that waits counts
//! itself, then looks at the word once more, then sleeps; one that raises stores the word, then looks
//! at the count. Between the two steps of each is a fence, so that either the word is seen or the
//! count. *Slots are used again only after all have read them*: see [`turn`].

use std::time::Duration;

use super::atomics::{AtomicU32, Ordering, fence, sleep, spin_loop, wake, yield_now};

/// Slots in which operations are posted.
pub(super) const TURNS: u32 = 2;

/// Which of the slots an operation is posted in.
///
/// A rank that posts operation `s + 2` has ended `s + 1`, for which it has seen the posts of all
/// others; whoever has posted `s + 1` has ended `s` and with it all reading of the slot.
pub(super) fn turn(sequence: u32) -> u32 {
    sequence % TURNS
}

/// Whether a counter that only rises has reached a value; both wrap.
pub(super) fn reached(now: u32, value: u32) -> bool {
    now.wrapping_sub(value).cast_signed() >= 0
}

/// A word of a member, and the count of those that sleep for any of its words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flag<'a> {
    pub(super) word: &'a AtomicU32,
    pub(super) waiters: &'a AtomicU32,
}

/// How a wait goes about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitPace {
    /// Looks before the core is offered to others.
    pub(super) spins: u32,
    /// Looks between which the core is offered to others.
    pub(super) yields: u32,
    /// Longest sleep before the state of the group is looked at again.
    pub(super) nap: Duration,
}

/// How a wait ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// After so many looks in vain, without offering the core to others.
    Spinning(u32),
    /// After offering it.
    Later,
}

/// Looks in a row before the first pause: it takes longer than the news from another core.
const EAGER: u32 = 64;

impl<'a> Flag<'a> {
    /// The value; all that its owner wrote before it can be read now.
    pub(super) fn value(self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Tells the others a new value, and wakes those that sleep.
    pub(super) fn raise(self, value: u32) {
        self.word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            wake(self.word);
        }
    }

    /// Waits until the value satisfies `is_there`: spins shortly, then yields, then sleeps.
    ///
    /// `news` is asked while spinning whether the wait may be in vain, `stop` between sleeps whether
    /// it is. What came before the stop counts.
    ///
    /// # Errors
    /// What `stop` says.
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
            self.nap(pace.nap, &is_there);
            let stop = stop();
            if is_there(self.value()) {
                return Ok(WaitOutcome::Later);
            }
            if let Some(stop) = stop {
                return Err(stop);
            }
        }
    }

    /// Sleeps until the value changes, or a little while.
    fn nap(self, limit: Duration, is_there: impl Fn(u32) -> bool) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let now = self.word.load(Ordering::Relaxed);
        if !is_there(now) {
            sleep(self.word, now, limit);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}
