//! Names of the environment variables that a supervisor sets for every rank.

/// Global index of the process.
pub const RANK: &str = "RANK";
/// Processes in all.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Index among the processes of this host.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Processes on this host.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Address of rank 0, for programs that meet there.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// A port of that address that was free a moment before the start.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// Where the supervisor listens for workers, `127.0.0.1:port`.
pub const RONDE_CONTROL: &str = "RONDE_CONTROL";
/// The secret of this job, with which a worker shows that it belongs to it.
pub const RONDE_TOKEN: &str = "RONDE_TOKEN";
/// The same as [`RANK`].
pub const RONDE_RANK: &str = "RONDE_RANK";
/// The same as [`WORLD_SIZE`].
pub const RONDE_WORLD_SIZE: &str = "RONDE_WORLD_SIZE";
/// Name of the process, in a job that goes on when workers die.
pub const RONDE_WORKER: &str = "RONDE_WORKER";
/// Name of the job.
pub const RONDE_JOB: &str = "RONDE_JOB";
