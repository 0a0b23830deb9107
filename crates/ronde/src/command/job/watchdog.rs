//! `ronde __watchdog`: ends the processes that a killed launcher leaves behind.

use crate::command::console::message;
use crate::command::exit;
use crate::command::job::launched;

/// Reads from the launcher until the launcher ends.
pub(crate) fn watch() -> i32 {
    if let Err(error) = launched::on_orphaned_signal(end_now) {
        message!("note: cannot install signal handlers, so a signal ends the watchdog: {error}");
    }
    ronde_cluster::watchdog::run(std::io::stdin());
    exit::DONE
}

#[expect(clippy::disallowed_methods, reason = "the command owns its process")]
fn end_now(signal: i32) {
    std::process::exit(128 + signal);
}
