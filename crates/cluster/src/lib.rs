//! Starting, rendezvous and supervision of worker processes.
//!
//! A supervisor starts one process per rank through a [`Launcher`], assigns their ranks over a
//! control socket, and watches them: the first failure ends all of them (or, in an elastic job,
//! leads to a new generation), and no process outlives the job. Start reading at
//! [`supervise`](supervise()); a worker's side is [`WorkerLink`].
//!
//! Connections are blocking sockets with deadlines, and a thread reads each of them. An async runtime would not pay: there is one
//! connection per worker on its host, and one per agent at the coordinator. The messages would not change.

mod activity;
mod agent;
mod child;
mod control;
mod coordinator;
mod coordinator_client;
#[doc(hidden)]
pub mod decoders;
mod descendants;
mod environment;
mod error;
mod fixed_member;
mod groups;
mod job;
mod job_history;
mod journal;
mod launcher;
mod lines;
mod link;
mod liveness_lock;
mod local;
mod local_coordinator;
mod long_wait;
mod membership_client;
mod messages;
mod outcome;
mod output_pump;
mod peer_address;
mod process_groups;
mod queue;
mod rank_table;
mod record_writer;
mod remote_coordinator;
mod report;
mod requests;
mod secure;
mod spec;
mod starter;
mod status;
mod stop;
mod straggler;
mod supervise;
mod token;
pub mod variables;
pub mod watchdog;
mod wire;

pub use agent::{Agent, Invitation};
pub use coordinator::{CoordinatorOutcome, coordinate};
pub use error::ClusterError;
pub use fixed_member::{FixedMember, FixedRank};
pub use job::{JobCredentials, JobFolder, JobSpec};
pub use journal::EventLines;
pub use launcher::{Launcher, LogSink, OutputStream, ProcessSpec, StartedProcess, StopSignal};
pub use lines::LINE_BYTES_MAX;
pub use link::{OnLoss, Peers, StopNotice, WorkerLink};
pub use local::LocalLauncher;
pub use long_wait::WaitSettings;
pub use outcome::{FailureCause, JobExit, JobOutcome, ProcessExit, WorkerFailure, signal_name};
pub use peer_address::PeerAddress;
pub use requests::{event_lines, scale, status, status_of_folder};
pub use ronde_protocol::{JobEnding, RestartLimits, Settings as ElasticSettings, SuccessionPolicy};
pub use spec::LaunchSpec;
pub use starter::{
    LAUNCHER_PROCESS, PMI_FD, RONDE_RENDEZVOUS, RONDE_STARTED_BY, StartDecision, StartFinding,
    exchange_by_pmi, launcher_process, pmi_socket,
};
pub use status::{HostStatus, MemberStatus, Status};
pub use stop::{StopFlag, StopLevel};
pub use supervise::supervise;
