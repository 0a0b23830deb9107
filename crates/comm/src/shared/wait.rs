//! [`DeadlineWaiter`]: the waits of one operation, with one deadline, and a budget for spinning.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::flags::{Flag, WaitOutcome, WaitPace};
use crate::stream_executor::{Mailbox, PeerHealth};

/// Loads of a word while spinning if there is a core for every rank: about 50 µs.
const SPINS_MAX: u32 = 1500;
/// Loads of a word while spinning if spinning has failed before.
const SPINS_MIN: u32 = 20;
/// Number of failed spins after which a long one is tried again: cores may be free by now.
const TRY_AGAIN: u32 = 32;
/// Loads with a yield between them: with more ranks than cores, an operation takes
/// that long, and waking costs more than yielding.
const YIELDS: u32 = 400;
/// Longest sleep before the state of the group is checked again.
const SLEEP_MAX: Duration = Duration::from_millis(2);

/// Why a wait failed.
pub(super) enum WaitError {
    /// The group has failed, here or elsewhere; the mailbox has the error.
    Failed,
    /// The peer has left in good order.
    Left,
    /// Its memory no longer exists: it has ended, or has left after a failure.
    Gone,
    /// The deadline has passed.
    Late { waited: Duration },
    /// The problem that the caller requested from [`DeadlineWaiter::wait`].
    Looked,
}

/// The waits of one operation, with one deadline.
pub(super) struct DeadlineWaiter<'a> {
    pub(super) mailbox: &'a Mailbox,
    pub(super) limit: Duration,
    pub(super) spin_budget: &'a SpinBudget,
    pub(super) began: Cell<Option<Instant>>,
    /// Whether some wait took longer than spinning.
    pub(super) was_long: Cell<bool>,
}

/// How long spinning is worthwhile: long while spins succeed, short while they fail because a peer
/// has no separate core.
#[derive(Debug)]
pub(super) struct SpinBudget {
    spins: AtomicU32,
    most: u32,
    /// Number of spins that failed.
    failed_spins: AtomicU32,
}

impl SpinBudget {
    /// Returns the budget for a number of ranks on this host.
    pub(super) fn new(ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = if ranks <= cores { SPINS_MAX } else { 0 };
        Self {
            spins: AtomicU32::new(most),
            most,
            failed_spins: AtomicU32::new(0),
        }
    }

    fn pace(&self) -> WaitPace {
        WaitPace {
            spins: self.spins.load(Ordering::Relaxed),
            yields: YIELDS,
            sleep_max: SLEEP_MAX,
        }
    }

    fn record_success(&self, spins: u32, of: u32) {
        if 2 * spins > of {
            self.spins.store((2 * of).min(self.most), Ordering::Relaxed);
        }
    }

    fn record_failure(&self, spins: u32) {
        let failed_spins = self.failed_spins.load(Ordering::Relaxed).wrapping_add(1);
        self.failed_spins.store(failed_spins, Ordering::Relaxed);
        let less = match failed_spins % TRY_AGAIN {
            0 => self.most,
            _ => spins / 4,
        };
        let least = SPINS_MIN.min(self.most);
        self.spins.store(less.max(least), Ordering::Relaxed);
    }
}

impl DeadlineWaiter<'_> {
    /// Waits until the `flag` of `peer` satisfies `is_there`.
    ///
    /// `look` is called now and then, and returns whether the wait has become pointless.
    pub(super) fn wait(
        &self,
        peer: usize,
        flag: Flag<'_>,
        is_there: impl Fn(u32) -> bool,
        look: impl Fn() -> bool,
    ) -> Result<(), WaitError> {
        let pace = self.spin_budget.pace();
        let news = || self.mailbox.has_news();
        let found = flag.wait(pace, is_there, news, || self.state(peer, &look));
        if let Ok(WaitOutcome::Spinning(spins)) = found {
            self.spin_budget.record_success(spins, pace.spins);
            return Ok(());
        }
        self.was_long.set(true);
        self.spin_budget.record_failure(pace.spins);
        found.map(|_| ())
    }

    fn state(&self, peer: usize, look: impl Fn() -> bool) -> Option<WaitError> {
        if look() {
            return Some(WaitError::Looked);
        }
        match self.mailbox.verdict(peer) {
            PeerHealth::Failed => return Some(WaitError::Failed),
            PeerHealth::Left => return Some(WaitError::Left),
            PeerHealth::Fine => {}
        }
        let now = ronde_clock::now();
        let began = self.began.get().unwrap_or(now);
        self.began.set(Some(began));
        let waited = now.duration_since(began);
        (waited >= self.limit).then_some(WaitError::Late { waited })
    }
}
