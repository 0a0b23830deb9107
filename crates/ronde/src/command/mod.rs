//! The subcommands, one file each.

pub(crate) mod console;
pub(crate) mod data;
pub(crate) mod exit;
mod failure;
pub(crate) mod job;
pub(crate) mod model;
mod pasted;
pub(crate) mod run;
pub(crate) mod signals;
pub(crate) mod tools;
pub(crate) mod usage;
