//! [`Helpers`]: threads that wait for calls, first by spinning and then asleep.
#![expect(
    unsafe_code,
    reason = "helpers call a closure of the calling thread, which waits for them"
)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// The number of checks before a waiting thread sleeps: tens of microseconds, which is longer than most pauses between two
/// operations of a model, and as long as it takes to wake a thread.
const SPINS: u32 = 1_000;

/// A call that helpers run together with the calling thread, on whose stack it is.
struct ParallelCall<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The connection of the calling thread to a helper. Two helpers share no cache line.
#[derive(Default)]
#[repr(align(128))]
struct HelperSlot {
    /// The call to run; null when the helper has finished it.
    call: AtomicPtr<ParallelCall<'static>>,
    stops: AtomicBool,
}

impl HelperSlot {
    /// Runs calls as the part `index` until the helper is stopped.
    fn serve(&self, index: usize) {
        while !self.stops.load(Ordering::Relaxed) {
            let call = self.call.load(Ordering::Acquire);
            if call.is_null() {
                wait_until(|| {
                    !self.call.load(Ordering::Acquire).is_null()
                        || self.stops.load(Ordering::Relaxed)
                });
                continue;
            }
            // SAFETY: the caller stored the pointer, and keeps the call until the slot is null again.
            let call = unsafe { &*call };
            let caller = call.caller.clone();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (call.work)(index))) {
                *call.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            // The call may end from here on.
            self.call.store(std::ptr::null_mut(), Ordering::Release);
            caller.unpark();
        }
    }
}

/// Waits for a condition, whose change is followed by waking this thread.
fn wait_until(is_true: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if is_true() {
            return;
        }
        std::hint::spin_loop();
    }
    while !is_true() {
        std::thread::park();
    }
}

/// Threads that run parts of calls. They are stopped when this is dropped.
pub(super) struct Helpers {
    threads: Vec<(Arc<HelperSlot>, JoinHandle<()>)>,
    /// Locked by the thread whose call is in progress.
    is_busy: Mutex<()>,
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Helpers({})", self.threads.len())
    }
}

impl Helpers {
    /// Starts a number of threads, which inherit the cores of the calling one.
    pub(super) fn start(count: usize) -> std::io::Result<Self> {
        let mut helpers = Self {
            threads: Vec::with_capacity(count),
            is_busy: Mutex::default(),
        };
        for index in 1..=count {
            let slot = Arc::<HelperSlot>::default();
            let (own, name) = (Arc::clone(&slot), format!("ronde-compute-{index}"));
            let thread = std::thread::Builder::new().name(name);
            let thread = thread.spawn(move || own.serve(index))?;
            helpers.threads.push((slot, thread));
        }
        Ok(helpers)
    }

    /// Returns the number of threads.
    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Calls `work` with each of `0..parts`, which are at most one more than the threads. The calling thread computes the
    /// first part; it computes all of them while another call is in progress.
    ///
    /// # Panics
    /// If `work` does, after all parts have ended.
    pub(super) fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        let lock = match self.is_busy.try_lock() {
            Ok(lock) => Some(lock),
            Err(std::sync::TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        };
        if lock.is_none() || parts <= 1 {
            return (0..parts).for_each(work);
        }
        assert!(parts <= self.count() + 1, "a thread for each part");
        let call = ParallelCall {
            work,
            caller: std::thread::current(),
            panic: Mutex::default(),
        };
        let active = &self.threads[..parts - 1];
        for (slot, thread) in active {
            let call = std::ptr::from_ref(&call).cast_mut();
            slot.call.store(call.cast(), Ordering::Release);
            thread.thread().unpark();
        }
        // Nothing below unwinds before all slots are null, because helpers use the call until then.
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        for (slot, _) in active {
            wait_until(|| slot.call.load(Ordering::Acquire).is_null());
        }
        let panic = call.panic.into_inner();
        if let Some(panic) = panic.unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
        own.unwrap_or_else(|panic| resume_unwind(panic));
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        for (slot, thread) in &self.threads {
            slot.stops.store(true, Ordering::Relaxed);
            thread.thread().unpark();
        }
        for (_, thread) in self.threads.drain(..) {
            // A helper catches the panics of its calls.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Returns how often each of `parts` parts ran.
    fn counts(helpers: &Helpers, parts: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        helpers.run(parts, &|part| {
            counts[part].fetch_add(1, Ordering::Relaxed);
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn each_part_of_each_call_runs_once() {
        let helpers = Helpers::start(3).unwrap();
        assert_eq!(helpers.count(), 3);
        for call in 0..2_000 {
            let parts = call % 5;
            assert_eq!(counts(&helpers, parts), vec![1; parts]);
            if call % 500 == 0 {
                // Longer than a helper spins.
                std::thread::yield_now();
                wait_until_asleep();
            }
        }
    }

    /// Computes for longer than a helper spins.
    fn wait_until_asleep() {
        for _ in 0..20 * SPINS {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn callers_at_the_same_time_and_calls_inside_calls_end() {
        let helpers = Helpers::start(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        assert_eq!(counts(&helpers, 3), [1; 3]);
                    }
                });
            }
        });
        helpers.run(3, &|_| assert_eq!(counts(&helpers, 2), [1; 2]));
    }

    #[test]
    fn a_panic_of_any_part_reaches_the_caller_after_all_parts_have_ended() {
        let helpers = Helpers::start(2).unwrap();
        for bad in 0..3 {
            let ended = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                helpers.run(3, &|part| {
                    ended.fetch_add(1, Ordering::Relaxed);
                    assert!(part != bad, "part {part}");
                });
            }));
            let message = *outcome.unwrap_err().downcast::<String>().unwrap();
            assert_eq!((message, ended.into_inner()), (format!("part {bad}"), 3));
            assert_eq!(counts(&helpers, 3), [1; 3]);
        }
    }
}
