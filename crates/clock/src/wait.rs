//! Waits for something that does not notify.

use std::time::Duration;

use crate::monotonic::{deadline, now};

/// Sleeps: a pause between two looks at something that does not notify, within a deadline of the caller.
#[expect(clippy::disallowed_methods, reason = "the owner of the clocks")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `is_done` returns true, and returns false if it does not within `limit`. Looks every 10 ms.
pub fn wait_until(limit: Duration, is_done: impl FnMut() -> bool) -> bool {
    wait_until_every(limit, Duration::from_millis(10), is_done)
}

/// Does the same, and looks once in each interval.
pub fn wait_until_every(
    limit: Duration,
    every: Duration,
    mut is_done: impl FnMut() -> bool,
) -> bool {
    let deadline = deadline(limit);
    loop {
        if is_done() {
            return true;
        }
        if now() >= deadline {
            return false;
        }
        pause(every);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_looks_once_more_at_its_limit() {
        let mut looks = 0;
        let is_done = wait_until(Duration::ZERO, || {
            looks += 1;
            false
        });
        assert!(!is_done);
        assert_eq!(looks, 1);
        assert!(wait_until(Duration::ZERO, || true));
    }
}
