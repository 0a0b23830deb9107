//! The subcommands, one file each.

pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod exit;
pub(crate) mod flight;
mod front;
pub(crate) mod init;
mod last;
pub(crate) mod output;
mod resume;
pub(crate) mod run;
pub(crate) mod signals;
pub(crate) mod train;
pub(crate) mod watchdog;
pub(crate) mod worker;
