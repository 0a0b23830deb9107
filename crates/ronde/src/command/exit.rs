//! Exit codes of the command.

use ronde_cluster::{Cause, Outcome};
use ronde_core::Event;

/// All went well.
pub(crate) const DONE: i32 = 0;
/// What the user asked for cannot be.
pub(crate) const USER_ERROR: i32 = 2;
/// A worker, a disk or a network failed.
pub(crate) const GAVE_UP: i32 = 3;
/// ronde is wrong.
pub(crate) const BUG: i32 = 4;

/// Exit code of a worker that panicked.
const PANIC: i32 = 101;

/// The exit code that tells whose fault the first failure of a job was.
pub(crate) fn of_failure(outcome: &Outcome) -> i32 {
    match outcome.first_failure().map(|failure| &failure.cause) {
        Some(Cause::Reported(Event::WorkerFailed {
            user_error: true, ..
        })) => USER_ERROR,
        Some(Cause::ExitCode(PANIC)) => BUG,
        _ => GAVE_UP,
    }
}
