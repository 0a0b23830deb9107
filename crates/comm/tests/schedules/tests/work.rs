//! `Work` under thousands of thread schedules: no wait is endless, every outcome arrives once.
//!
//! Compiles the source of `Work` with the locks of shuttle, a scheduler that runs one thread at a
//! time and picks the next one at random at every lock and wait. It reports a deadlock and prints the
//! schedule that led to it. These bugs were put into `src/work.rs` to check that they are detected:
//!
//! - `set` without `notify_all`, or with it before the outcome is stored: a deadlock in every test in
//!   which a thread waits before the end;
//! - `wait` that checks once and then waits without checking again: the same;
//! - `Completion` without its `Drop`: `a_progress_thread_that_ends_or_panics_fails_what_is_pending` and two
//!   others;
//! - the recorder notified after the caller: `the_recorder_is_notified_of_the_end_before_the_caller`.

#[path = "../../../src/work.rs"]
#[expect(dead_code, reason = "the group uses what is not used here")]
mod work;

/// The items that the source uses from its crate, here those of the model.
mod sync {
    pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}

/// A recorder that counts.
mod flight {
    use crate::sync::Mutex;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct RecordId(pub(crate) u64);

    #[derive(Default)]
    pub(crate) struct FlightRecorder(pub(crate) Mutex<Vec<(RecordId, bool)>>);

    impl FlightRecorder {
        pub(crate) fn ended(&self, ticket: RecordId, failed: bool) {
            self.0.lock().unwrap().push((ticket, failed));
        }
    }
}

use std::panic::{AssertUnwindSafe, catch_unwind};

use ronde_core::{Buffer, CollectiveError, DType, Work};
use shuttle::thread;

use flight::{FlightRecorder, RecordId};
use sync::Arc;
use work::{Completion, PendingOperation, pending};

/// Number of random schedules of each test.
const SCHEDULES: usize = 10_000;

fn under_all(schedule: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(schedule, SCHEDULES);
}

fn buffer(value: u32) -> Buffer {
    Buffer::copy_of(&[value])
}

fn wait(work: PendingOperation) -> Result<u32, CollectiveError> {
    let work: Box<dyn Work> = Box::new(work);
    Ok(work.wait()?.as_slice::<u32>()[0])
}

fn is_aborted(outcome: &Result<u32, CollectiveError>) -> bool {
    matches!(outcome, Err(CollectiveError::Aborted { .. }))
}

#[test]
fn every_wait_gets_its_own_outcome_in_whatever_order() {
    under_all(|| {
        let (completions, works): (Vec<Completion>, Vec<PendingOperation>) =
            (0..3).map(|_| pending()).unzip();
        let progress = thread::spawn(move || {
            for (value, completion) in (0..).zip(completions) {
                completion.complete(Ok(buffer(value)));
            }
        });
        let mut waits: Vec<_> = (0..).zip(works).collect();
        // One waits on another thread, the others here, the last one first.
        let (value, first) = waits.remove(0);
        let elsewhere = thread::spawn(move || assert_eq!(wait(first).unwrap(), value));
        for (value, work) in waits.into_iter().rev() {
            assert_eq!(wait(work).unwrap(), value);
        }
        progress.join().unwrap();
        elsewhere.join().unwrap();
    });
}

#[test]
fn what_is_finished_is_handed_back_at_once_and_stays_so() {
    under_all(|| {
        let (completion, work) = pending();
        let progress = thread::spawn(move || completion.complete(Ok(buffer(7))));
        let mut seen = false;
        for _ in 0..3 {
            let now = work.is_finished();
            assert!(now || !seen, "finished once, finished for good");
            seen = now;
            thread::yield_now();
        }
        if !seen {
            progress.join().unwrap();
            assert!(work.is_finished());
        }
        assert_eq!(wait(work).unwrap(), 7);
    });
}

#[test]
fn a_progress_thread_that_ends_or_panics_fails_what_is_pending() {
    for panics in [false, true] {
        under_all(move || {
            let ((first, one), (second, other)) = (pending(), pending());
            let progress = thread::spawn(move || {
                first.complete(Ok(buffer(1)));
                let ended = catch_unwind(AssertUnwindSafe(move || {
                    let _held = second;
                    if panics {
                        // Without printing the panic ten thousand times.
                        std::panic::resume_unwind(Box::new("a bug"));
                    }
                }));
                assert_eq!(ended.is_err(), panics);
            });
            assert!(is_aborted(&wait(other)));
            assert_eq!(wait(one).unwrap(), 1);
            progress.join().unwrap();
        });
    }
}

#[test]
fn one_of_abort_and_completion_wins_and_the_wait_ends() {
    under_all(|| {
        let (completion, work) = pending();
        // As the mailbox does it: the first that takes the completion decides.
        let held = Arc::new(sync::Mutex::new(Some(completion)));
        let takers = [Ok(buffer(1)), Err(())].map(|outcome| {
            let held = Arc::clone(&held);
            thread::spawn(move || {
                let taken = held.lock().unwrap().take();
                match (taken, outcome) {
                    (Some(completion), Ok(buffer)) => completion.complete(Ok(buffer)),
                    (taken, _) => drop(taken),
                }
            })
        });
        let outcome = wait(work);
        assert!(
            is_aborted(&outcome) || matches!(outcome, Ok(1)),
            "{outcome:?}"
        );
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
}

#[test]
fn the_recorder_is_notified_of_the_end_before_the_caller() {
    under_all(|| {
        let flight = Arc::new(FlightRecorder::default());
        let works = [(1, true), (2, false)].map(|(ticket, is_good)| {
            let (mut completion, work) = pending();
            completion.recorded_by(&flight, RecordId(ticket));
            let progress = thread::spawn(move || {
                assert_eq!(completion.ticket(), Some(RecordId(ticket)));
                if is_good {
                    completion.complete(Ok(Buffer::host(DType::U32, 1)));
                }
            });
            (work, progress, RecordId(ticket), is_good)
        });
        for (work, progress, ticket, is_good) in works {
            assert_eq!(wait(work).is_ok(), is_good);
            let heard = flight.0.lock().unwrap().clone();
            let of_it: Vec<_> = heard.iter().filter(|(of, _)| *of == ticket).collect();
            assert_eq!(of_it, [&(ticket, !is_good)], "notified once, in time");
            progress.join().unwrap();
        }
    });
}

#[test]
fn a_caller_that_does_not_wait_harms_nobody_and_the_memory_is_given_back() {
    /// Reports when it is dropped.
    struct Memory(Arc<sync::Mutex<u32>>, Vec<u8>);

    impl ronde_core::buffer::Memory for Memory {
        fn kind(&self) -> ronde_core::MemoryKind {
            ronde_core::MemoryKind::Host
        }
        fn owner(&self) -> &'static str {
            "test"
        }
        fn bytes(&self) -> &[u8] {
            &self.1
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.1
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }

    under_all(|| {
        let gone = Arc::new(sync::Mutex::new(0));
        let memory = Memory(Arc::clone(&gone), vec![0; 4]);
        let buffer = Buffer::from_memory(DType::U32, 1, Box::new(memory));
        let (completion, work) = pending();
        let progress = thread::spawn(move || completion.complete(Ok(buffer)));
        drop(work);
        progress.join().unwrap();
        assert_eq!(*gone.lock().unwrap(), 1);
    });
}

/// Tests the harness: a wait that checks outside of the lock misses the notification in some schedule.
#[test]
fn a_lost_wakeup_is_found() {
    let found = catch_unwind(|| {
        under_all(|| {
            let cell = Arc::new((sync::Mutex::new(false), sync::Condvar::new()));
            let its = Arc::clone(&cell);
            let progress = thread::spawn(move || {
                *its.0.lock().unwrap() = true;
                its.1.notify_all();
            });
            let is_done = *cell.0.lock().unwrap();
            if !is_done {
                // The bug: the condition may have become true meanwhile.
                let done = cell.0.lock().unwrap();
                let _done = cell.1.wait(done).unwrap();
            }
            progress.join().unwrap();
        });
    });
    let told = found.expect_err("one of the schedules ends in a deadlock");
    let told = told.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(told.contains("deadlock"), "{told}");
}
