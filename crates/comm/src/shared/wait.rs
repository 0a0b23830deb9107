//! Waiting for a word of another process: spin shortly, then yield, then sleep on a futex.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::thread::futex::Timespec;

use super::control::Control;
use crate::clock;
use crate::engine::{Mailbox, Verdict};

/// Looks at a word while spinning, where there is a core for every rank: some 50 microseconds.
const SPINS_MAX: u32 = 1500;
/// Looks at a word while spinning, where that was in vain before.
const SPINS_MIN: u32 = 20;
/// After so many spins in vain a long one is tried again: cores may be free by now.
const TRY_AGAIN: u32 = 32;
/// Looks between which the core is offered to others.
const YIELDS: u32 = 40;
/// Longest sleep before the state of the group is looked at again.
const NAP: Duration = Duration::from_millis(2);

/// Wakes all that sleep on a word.
pub(super) fn wake(word: &AtomicU32) {
    // There is nobody to tell if the system refuses; sleepers look again by themselves.
    let _woken = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Why a wait ended without what it waited for.
pub(super) enum Stop {
    /// The group has failed, here or elsewhere; the mailbox says how.
    Failed,
    /// The peer has left in good order.
    Left,
    /// The deadline has passed.
    Late { waited: Duration },
    /// Something else is wrong: what [`Watch::look`] was asked to look for.
    Looked,
}

/// The waits of one operation, with one deadline.
pub(super) struct Watch<'a> {
    pub(super) mailbox: &'a Mailbox,
    pub(super) limit: Duration,
    pub(super) patience: &'a Patience,
    pub(super) began: Cell<Option<Instant>>,
}

/// How long it is worth to spin: long while a spin finds what it waits for, short where it does not,
/// because a peer has no core of its own.
#[derive(Debug)]
pub(super) struct Patience {
    spins: AtomicU32,
    most: u32,
    /// Spins that were in vain.
    vain: AtomicU32,
}

impl Patience {
    /// For so many ranks on this host.
    pub(super) fn new(ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = if ranks <= cores { SPINS_MAX } else { 0 };
        Self {
            spins: AtomicU32::new(most),
            most,
            vain: AtomicU32::new(0),
        }
    }

    fn was_enough(&self, spins: u32) {
        if 2 * spins > self.spins.load(Ordering::Relaxed) {
            let more = (2 * self.spins.load(Ordering::Relaxed)).min(self.most);
            self.spins.store(more, Ordering::Relaxed);
        }
    }

    fn was_in_vain(&self) {
        let vain = self.vain.load(Ordering::Relaxed).wrapping_add(1);
        self.vain.store(vain, Ordering::Relaxed);
        let less = match vain % TRY_AGAIN {
            0 => self.most,
            _ => self.spins.load(Ordering::Relaxed) / 4,
        };
        let least = SPINS_MIN.min(self.most);
        self.spins.store(less.max(least), Ordering::Relaxed);
    }
}

/// Whether a counter that only rises has reached a value; both wrap.
pub(super) fn reached(now: u32, value: u32) -> bool {
    now.wrapping_sub(value).cast_signed() >= 0
}

impl Watch<'_> {
    /// Waits until `word` of `peer`, whose control memory is `control`, satisfies `is_there`.
    ///
    /// `look` is asked now and then whether the wait is in vain.
    pub(super) fn wait(
        &self,
        peer: usize,
        control: &Control,
        word: &AtomicU32,
        is_there: impl Fn(u32) -> bool,
        look: impl Fn() -> bool,
    ) -> Result<(), Stop> {
        for spins in 0..self.patience.spins.load(Ordering::Relaxed) {
            if is_there(word.load(Ordering::Acquire)) {
                self.patience.was_enough(spins);
                return Ok(());
            }
            if self.mailbox.has_news() {
                break;
            }
            std::hint::spin_loop();
        }
        if is_there(word.load(Ordering::Acquire)) {
            return Ok(());
        }
        self.patience.was_in_vain();
        for _ in 0..YIELDS {
            if is_there(word.load(Ordering::Acquire)) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        loop {
            nap(control, word, &is_there);
            let stop = self.state(peer, &look);
            // What was there before the group ended counts.
            if is_there(word.load(Ordering::Acquire)) {
                return Ok(());
            }
            if let Some(stop) = stop {
                return Err(stop);
            }
        }
    }

    fn state(&self, peer: usize, look: impl Fn() -> bool) -> Option<Stop> {
        if look() {
            return Some(Stop::Looked);
        }
        match self.mailbox.verdict(peer) {
            Verdict::Failed => return Some(Stop::Failed),
            Verdict::Left => return Some(Stop::Left),
            Verdict::Fine => {}
        }
        let now = clock::now();
        let began = self.began.get().unwrap_or(now);
        self.began.set(Some(began));
        let waited = now.duration_since(began);
        (waited >= self.limit).then_some(Stop::Late { waited })
    }
}

/// Sleeps until the word changes, or a little while.
fn nap(control: &Control, word: &AtomicU32, is_there: impl Fn(u32) -> bool) {
    // In one order with the word: either the owner sees this waiter, or the word is seen here.
    control.waiters().fetch_add(1, Ordering::SeqCst);
    let now = word.load(Ordering::SeqCst);
    if !is_there(now) {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(NAP.subsec_nanos()),
        };
        // Woken, changed meanwhile, interrupted or timed out: the caller looks in any case.
        let _slept = futex::wait(word, futex::Flags::empty(), now, Some(&limit));
    }
    control.waiters().fetch_sub(1, Ordering::SeqCst);
}
