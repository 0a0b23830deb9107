//! Waits for a slow operation of some ranks while all ranks keep the group alive.

use std::time::Duration;

use ronde_core::{CollectiveError, CollectivesExt, Group};

/// The longest interval between two messages.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(2);

/// Returns the polling interval for a group with this timeout.
pub(crate) fn poll_interval(timeout: Duration) -> Duration {
    (timeout / 4).min(POLL_INTERVAL_MAX)
}

/// Returns on all ranks after `wait` has returned a value on each of them. All ranks call it; `wait` may block
/// for the interval that it is passed. Cost: one byte from each rank to all ranks per interval.
///
/// # Errors
/// A peer was lost.
pub(crate) fn wait_for_all<T>(
    group: &dyn Group,
    interval: Duration,
    mut wait: impl FnMut(Duration) -> Option<T>,
) -> Result<T, CollectiveError> {
    let mut mine = None;
    loop {
        if mine.is_none() {
            mine = wait(interval);
        }
        let finished = group.all_gather(&[u8::from(mine.is_some())])?;
        if finished.iter().all(|done| *done == 1)
            && let Some(mine) = mine.take()
        {
            return Ok(mine);
        }
    }
}
