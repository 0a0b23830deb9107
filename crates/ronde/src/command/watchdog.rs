//! `ronde __watchdog`: ends what a killed launcher leaves behind.

use super::exit;

/// Reads from the launcher until it is done or dead.
pub(crate) fn watch() -> i32 {
    ronde_cluster::watchdog::run(std::io::stdin());
    exit::DONE
}
