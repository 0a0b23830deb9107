//! The state machines of a job, without I/O: its members and their failures, a training step as a transaction, the ranks that
//! hold a divided state, and the updates of asynchronous training.
//!
//! [`CoordinatorMachine`] and [`WorkerMachine`] take `(now, event)` and return commands. They use
//! no clock, sockets, threads, randomness or logs: every input arrives as an argument and every
//! effect leaves as a command. A shell feeds them the events of its connections, processes and
//! timers, and executes the commands. `docs/elastic.md` describes the protocol, its invariants and
//! its behaviour under each failure.
//!
//! For the members of a job, read [`membership`] first, then [`message`], [`worker`], [`lease`], [`coordinator`]. For a training step,
//! read [`transaction`] and [`holdings`].

#![forbid(unsafe_code)]

pub mod assignment;
pub mod coordinator;
pub mod detector;
pub mod error;
pub mod gossip;
pub mod holdings;
pub mod job_member;
pub mod journal;
pub mod lease;
pub mod ledger;
pub mod membership;
pub mod message;
pub mod reason;
pub mod rejoin;
pub mod restart_history;
pub mod served;
pub mod settings;
pub mod time;
pub mod transaction;
pub mod worker;

pub use assignment::{Assignment, GenerationPurpose, MembershipPolicy};
pub use coordinator::{
    CoordinatorCommand, CoordinatorEvent, CoordinatorMachine, JobEnding, SlotStatus,
};
pub use error::ElasticError;
pub use job_member::{Departure, JobMember, LoneMember, MembershipError, Milestone};
pub use journal::{JobPhase, JobRecord, OpenGeneration, StoreReply, StoreRequest};
pub use membership::{
    CoordinatorId, GenerationAssignment, MemberInfo, StartFrom, SwitchTiming, Term, WorkerId,
    WorkerSlot,
};
pub use message::{GroupFailure, ToWorker, WorkerPhase, WorkerReport};
pub use reason::{LossCause, Reason, WaitEnd, WorkerLoss};
pub use rejoin::{Rejoin, RejoinAnswer, RejoinAsk, RejoinError};
pub use settings::{RestartLimits, Settings, SuccessionPolicy};
pub use time::Time;
pub use worker::{WorkerCommand, WorkerEvent, WorkerMachine};
