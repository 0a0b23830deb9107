//! The primitives of the flags: atomic words, fences, and sleeping on a word shared by processes.
//! The loom tests replace this module.

use std::time::Duration;

use rustix::thread::futex;
use rustix::thread::futex::Timespec;

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicU32, Ordering, fence};
pub(super) use std::thread::yield_now;

/// Sleeps while `word` is `now`: until woken, or for `limit` (less than a second).
pub(super) fn sleep(word: &AtomicU32, now: u32, limit: Duration) {
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // Woken, changed meanwhile, interrupted or timed out: the caller checks the word in any case.
    let _slept = futex::wait(word, futex::Flags::empty(), now, Some(&limit));
}

/// Wakes all threads that sleep on a word.
pub(super) fn wake(word: &AtomicU32) {
    // An error can be ignored: sleeping threads check the word again by themselves.
    let _woken = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
