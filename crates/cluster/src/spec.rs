//! [`LaunchSpec`]: the program to start, the number of its processes, and the time limits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ronde_core::{Rank, WorldSize};
use ronde_protocol::Settings as ElasticSettings;

/// A job of worker processes that all run the same program.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    /// The program of every rank; looked up in `PATH` when it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Number of ranks.
    pub world_size: WorldSize,
    /// The job's name, in the assignment and in `RONDE_JOB`.
    pub job: String,
    /// Opaque text passed to the workers in their assignment.
    pub task: String,
    /// The roles of the ranks, each with the number of ranks that have it, in their order; ranks beyond them have
    /// none.
    pub roles: Vec<(String, u32)>,
    /// Variables set for every rank in addition to those of [`crate::variables`]; all others are
    /// inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// The ranks' working directory; the current one if `None`.
    pub working_directory: Option<PathBuf>,
    /// Whether every rank must take part in the rendezvous: true for workers of ronde. If false,
    /// the time limit of the rendezvous starts with the first worker that connects, and a program
    /// that never connects is only watched as a process.
    pub rendezvous_required: bool,
    /// Time that a rank may take to end after SIGTERM before it gets SIGKILL.
    pub stop_grace: Duration,
    /// Time that workers may take to end by themselves, after a last checkpoint, when SIGHUP, SIGINT
    /// or SIGTERM is received. `None`: these signals end them immediately, as other signals do.
    pub finish_limit: Option<Duration>,
    /// Settings of the membership. With [`ElasticSettings::fixed`] the first failure ends the job.
    pub settings: ElasticSettings,
    /// Program and arguments of the process that runs [`crate::watchdog::run`]. `None`: a launcher
    /// killed with SIGKILL may leave grandchildren behind.
    pub watchdog: Option<(OsString, Vec<OsString>)>,
}

impl LaunchSpec {
    /// Returns a job of any program with fixed members, a grace of ten seconds and a minute for the
    /// rendezvous, without a watchdog.
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
            roles: Vec::new(),
            environment: Vec::new(),
            working_directory: None,
            rendezvous_required: false,
            stop_grace: Duration::from_secs(10),
            finish_limit: None,
            settings: ElasticSettings::fixed(world_size.get()),
            watchdog: None,
        }
    }

    /// Returns the role of a rank.
    #[must_use]
    pub fn role(&self, rank: Rank) -> Option<&str> {
        let mut end = 0;
        let mut roles = self.roles.iter();
        let found = roles.find(|(_, count)| {
            end += count;
            rank.0 < end
        });
        found.map(|(role, _)| role.as_str())
    }
}
