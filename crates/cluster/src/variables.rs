//! Names of the environment variables that a supervisor sets for every rank.

/// Global index of the process.
pub const RANK: &str = "RANK";
/// Number of processes.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Index among the processes of this host.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Number of processes on this host.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Address of rank 0, for programs with their own rendezvous.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// A port of that address that was free shortly before the start.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// The address at which the supervisor listens for workers, `127.0.0.1:port`.
pub const RONDE_CONTROL: &str = "RONDE_CONTROL";
/// The job's secret token, with which a worker authenticates.
pub const RONDE_TOKEN: &str = "RONDE_TOKEN";
/// The same as [`RANK`].
pub const RONDE_RANK: &str = "RONDE_RANK";
/// The same as [`WORLD_SIZE`].
pub const RONDE_WORLD_SIZE: &str = "RONDE_WORLD_SIZE";
/// Id of the worker process.
pub const RONDE_WORKER: &str = "RONDE_WORKER";
/// The role of the process, if the job has roles.
pub const RONDE_ROLE: &str = "RONDE_ROLE";
/// The job's name.
pub const RONDE_JOB: &str = "RONDE_JOB";
