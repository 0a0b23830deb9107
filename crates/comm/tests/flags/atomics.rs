//! Loom's atomics, and a futex made of loom's locks, which replace `src/shared/atomics.rs`; with bugs that
//! can be injected.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loom::sync::{Condvar, Mutex, atomic};

pub(super) use loom::hint::spin_loop;
pub(super) use loom::sync::atomic::Ordering;
pub(super) use loom::thread::yield_now;

/// Possible bugs of the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// A value is loaded without acquire.
    NoAcquire,
    /// A value is stored without release.
    NoRelease,
    /// No fence between storing and loading the waiters, and between counting and loading.
    NoFence,
    /// Sleeping does not compare the word first.
    SleepsBlindly,
    /// No thread is woken.
    NoWake,
}

impl Bug {
    pub(super) const ALL: [Self; 5] = [
        Self::NoAcquire,
        Self::NoRelease,
        Self::NoFence,
        Self::SleepsBlindly,
        Self::NoWake,
    ];

    /// Returns whether this bug is injected.
    fn is_in(self) -> bool {
        BUG.get() == Some(self)
    }
}

thread_local! {
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Runs `f` with a bug. All of loom's threads run on the thread of the test.
pub(super) fn with_bug<T>(bug: Bug, f: impl FnOnce() -> T) -> T {
    BUG.set(Some(bug));
    let outcome = f();
    BUG.set(None);
    outcome
}

/// A 32-bit word.
#[derive(Debug, Default)]
pub(super) struct AtomicU32(atomic::AtomicU32);

impl AtomicU32 {
    pub(super) fn load(&self, order: Ordering) -> u32 {
        match order {
            Ordering::Acquire if Bug::NoAcquire.is_in() => self.0.load(Ordering::Relaxed),
            order => self.0.load(order),
        }
    }

    pub(super) fn store(&self, value: u32, order: Ordering) {
        match order {
            Ordering::Release if Bug::NoRelease.is_in() => self.0.store(value, Ordering::Relaxed),
            order => self.0.store(value, order),
        }
    }

    /// Sets the value before there are threads.
    pub(super) fn preset(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }

    pub(super) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_sub(value, order)
    }
}

pub(super) fn fence(order: Ordering) {
    if !Bug::NoFence.is_in() {
        atomic::fence(order);
    }
}

/// The threads that sleep on one word.
#[derive(Default)]
struct Bed {
    lock: Mutex<()>,
    bell: Condvar,
}

loom::lazy_static! {
    static ref BEDS: std::sync::Mutex<BTreeMap<usize, Arc<Bed>>> = std::sync::Mutex::default();
}

fn bed(word: &AtomicU32) -> Arc<Bed> {
    let at = std::ptr::from_ref(word) as usize;
    Arc::clone(BEDS.lock().unwrap().entry(at).or_default())
}

/// Sleeps like the system call: compares and sleeps in one step, as seen by waking threads. Without a
/// limit, so that a lost wake-up is not hidden.
pub(super) fn sleep(word: &AtomicU32, now: u32, _limit: Duration) {
    let bed = bed(word);
    let guard = bed.lock.lock().unwrap();
    if word.0.load(Ordering::Relaxed) == now || Bug::SleepsBlindly.is_in() {
        drop(bed.bell.wait(guard));
    }
}

pub(super) fn wake(word: &AtomicU32) {
    if Bug::NoWake.is_in() {
        return;
    }
    let bed = bed(word);
    let _guard = bed.lock.lock().unwrap();
    bed.bell.notify_all();
}
