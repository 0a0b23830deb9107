//! `ronde __watchdog`: ends the processes that a killed launcher leaves behind.

use super::exit;

/// Reads from the launcher until the launcher ends.
pub(crate) fn watch() -> i32 {
    ronde_cluster::watchdog::run(std::io::stdin());
    exit::DONE
}
