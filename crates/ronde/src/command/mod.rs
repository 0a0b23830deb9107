//! The subcommands, one file each.

pub(crate) mod bench;
pub(crate) mod exit;
pub(crate) mod flight;
pub(crate) mod init;
pub(crate) mod output;
pub(crate) mod run;
pub(crate) mod signals;
pub(crate) mod train;
pub(crate) mod watchdog;
pub(crate) mod worker;
