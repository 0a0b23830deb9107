//! Exit codes of the command.

use ronde_cluster::{FailureCause, JobOutcome};
use ronde_core::Event;

/// Success.
pub(crate) const DONE: i32 = 0;
/// The request or a file of the user is invalid.
pub(crate) const USER_ERROR: i32 = 2;
/// A worker, a disk or a network failed.
pub(crate) const GAVE_UP: i32 = 3;
/// A bug in ronde.
pub(crate) const BUG: i32 = 4;

/// Exit code of a worker that panicked.
const PANIC: i32 = 101;

/// Returns the exit code for the cause of a job's first failure.
pub(crate) fn of_failure(outcome: &JobOutcome) -> i32 {
    match outcome.first_failure().map(|failure| &failure.cause) {
        Some(FailureCause::Reported(Event::WorkerFailed {
            user_error: true, ..
        })) => USER_ERROR,
        Some(FailureCause::ExitCode(PANIC)) => BUG,
        _ => GAVE_UP,
    }
}
