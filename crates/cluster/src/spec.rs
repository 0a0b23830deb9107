//! [`LaunchSpec`]: what to start, how often, and how long to wait for it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ronde_core::WorldSize;
use ronde_elastic::Settings as ElasticSettings;

/// A job of worker processes that all run the same program.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    /// The program of every rank; looked up in `PATH` when it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Count of ranks.
    pub world_size: WorldSize,
    /// Names the job, in the assignment and in `RONDE_JOB`.
    pub job: String,
    /// Handed to the workers in their assignment, not looked at.
    pub task: String,
    /// Variables set for every rank beside the ones of [`crate::variables`]; all others are
    /// inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the ranks start; here when `None`.
    pub working_directory: Option<PathBuf>,
    /// Whether every rank must meet the others: true for workers of ronde. When false, the
    /// deadline starts with the first worker that says hello, and a program that never does is
    /// only watched as a process.
    pub rendezvous_required: bool,
    /// How long all ranks together may take until the last one is ready.
    pub rendezvous_timeout: Duration,
    /// How long a rank may take to end after SIGTERM before it gets SIGKILL.
    pub stop_grace: Duration,
    /// SIGTERM lets the workers end by themselves, after a last checkpoint; they may take so long. `None`:
    /// it ends them at once, as other signals do.
    pub finish_limit: Option<Duration>,
    /// How the job goes on when workers die; `None`: the first failure ends all.
    pub elastic: Option<ElasticSettings>,
    /// Program and arguments of the process that runs [`crate::watchdog::run`]. `None`: a launcher
    /// killed with SIGKILL can leave grandchildren behind.
    pub watchdog: Option<(OsString, Vec<OsString>)>,
}

impl LaunchSpec {
    /// A job of a program that need not know ronde, with a grace of ten seconds and a minute for
    /// the rendezvous, without a watchdog.
    #[must_use]
    pub fn new(
        program: impl Into<OsString>,
        arguments: Vec<OsString>,
        world_size: WorldSize,
    ) -> Self {
        Self {
            program: program.into(),
            arguments,
            world_size,
            job: "job".to_owned(),
            task: String::new(),
            environment: Vec::new(),
            working_directory: None,
            rendezvous_required: false,
            rendezvous_timeout: Duration::from_secs(60),
            stop_grace: Duration::from_secs(10),
            finish_limit: None,
            elastic: None,
            watchdog: None,
        }
    }
}
