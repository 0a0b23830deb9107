//! Waiting for something slow on some ranks while the group stays alive on all.

use std::time::Duration;

use ronde_core::{CollectiveError, CollectivesExt, Group};

/// Longest time between two signs of life.
const PACE_MAX: Duration = Duration::from_secs(2);

/// How long one turn may wait in a group whose waits have this limit.
pub(crate) fn pace(timeout: Duration) -> Duration {
    (timeout / 4).min(PACE_MAX)
}

/// Returns on all ranks when `wait` has given something on each; `wait` may block for the time that it
/// is given. Called by all ranks. Cost: one byte from each rank to all, every `pace`.
///
/// # Errors
/// A peer was lost.
pub(crate) fn together<T>(
    group: &dyn Group,
    pace: Duration,
    mut wait: impl FnMut(Duration) -> Option<T>,
) -> Result<T, CollectiveError> {
    let mut mine = None;
    loop {
        if mine.is_none() {
            mine = wait(pace);
        }
        let told = group.all_gather(&[u8::from(mine.is_some())])?;
        if told.iter().all(|done| *done == 1)
            && let Some(mine) = mine.take()
        {
            return Ok(mine);
        }
    }
}
