//! [`AdviseError`]: the reason why a forecast cannot be made.

use ronde_core::units::bytes;
use ronde_schedule::ScheduleError;

/// The reason why a forecast cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdviseError {
    /// A description of the machines cannot be read.
    #[error("invalid {setting} `{}`: expected {expected}", value.escape_debug())]
    Setting {
        /// The name of the setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// A description of valid values, with an example.
        expected: &'static str,
    },
    /// No layout fits into the memory of the hosts.
    #[error(
        "no layout fits: the smallest of {layouts}, {smallest}, needs {} on a host of {}, {} more than there is\n  \
         help: use hosts with more memory or more of them, raise workers.logical_shards (smaller shards; changes the trained \
         bits), or set train.recompute_activations = true",
        bytes(*needed_bytes), bytes(*memory_bytes), bytes(needed_bytes.saturating_sub(*memory_bytes))
    )]
    NothingFits {
        /// The number of layouts that were tried.
        layouts: usize,
        /// A description of the layout that needs the least memory.
        smallest: String,
        /// The bytes that its workers need on one host.
        needed_bytes: u64,
        /// The bytes of a host.
        memory_bytes: u64,
    },
    /// The hosts have no room for a single worker.
    #[error(
        "a worker computes with {threads} threads, but a host has {cores} cores\n  \
         help: set workers.threads to {cores} or less, or describe larger hosts: --cores"
    )]
    NoCores {
        /// The computing threads of a worker.
        threads: u32,
        /// The cores of a host.
        cores: u32,
    },
    /// A layout cannot be interpreted: a bug.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}
