//! Starting, rendezvous and supervision of worker processes.
//!
//! A supervisor starts one process per rank through a [`Launcher`], lets the workers meet over a
//! control socket, and stays with them: the first failure ends all, and no process outlives the
//! job. Start reading at [`supervise`](supervise()); a worker's side is [`WorkerLink`].

mod agent;
mod ask;
mod board;
mod child;
mod clock;
mod control;
mod coordination;
mod coordinator;
mod decider;
#[doc(hidden)]
pub mod decoders;
mod endings;
mod environment;
mod error;
mod groups;
mod job;
mod journal;
mod keeper;
mod launcher;
mod lines;
mod link;
mod local;
mod narration;
mod outcome;
mod placement;
mod presence;
mod pump;
mod queue;
mod remote;
mod report;
mod roster;
mod secure;
mod spec;
mod stop;
mod supervise;
mod talk;
mod token;
pub mod variables;
pub mod watchdog;
mod wire;

pub use agent::{Agent, Invitation};
pub use ask::{scale, status, status_of_folder};
pub use board::{HostStatus, MemberStatus, Status};
pub use coordinator::{Concluded, coordinate};
pub use error::ClusterError;
pub use job::{JobFolder, JobSpec};
pub use launcher::{Launcher, LogSink, OutputStream, ProcessSpec, Started, StopSignal};
pub use link::{JobEnd, OnLoss, Peers, WorkerLink};
pub use local::LocalLauncher;
pub use outcome::{Cause, End, Exit, Failure, Outcome, signal_name};
pub use ronde_elastic::{JobEnding, RestartLimits, Settings as ElasticSettings, SuccessionPolicy};
pub use spec::LaunchSpec;
pub use stop::{StopFlag, StopLevel};
pub use supervise::supervise;

/// Longest line of a rank's output that is handed on in one piece, in bytes.
pub const LINE_BYTES_MAX: usize = 16 << 10;
