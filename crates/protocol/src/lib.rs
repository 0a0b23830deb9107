//! Job membership and failure handling as state machines without I/O.
//!
//! [`CoordinatorMachine`] and [`WorkerMachine`] take `(now, event)` and return commands. They use
//! no clock, sockets, threads, randomness or logs: every input arrives as an argument and every
//! effect leaves as a command. A shell feeds them the events of its connections, processes and
//! timers, and executes the commands. `docs/elastic.md` describes the protocol, its invariants and
//! its behaviour under each failure.
//!
//! Read [`membership`] first, then [`message`], [`worker`], [`lease`], [`coordinator`].

#![forbid(unsafe_code)]

pub mod coordinator;
pub mod detector;
pub mod error;
pub mod journal;
pub mod lease;
pub mod membership;
pub mod message;
pub mod reason;
pub mod restart_history;
pub mod settings;
pub mod time;
pub mod worker;

pub use coordinator::{
    CoordinatorCommand, CoordinatorEvent, CoordinatorMachine, JobEnding, SlotStatus,
};
pub use error::ElasticError;
pub use journal::{JobPhase, JobRecord, OpenGeneration, StoreReply, StoreRequest};
pub use membership::{
    CoordinatorId, GenerationAssignment, MemberInfo, StartFrom, SwitchTiming, Term, WorkerId,
    WorkerSlot,
};
pub use message::{GroupFailure, ToWorker, WorkerPhase, WorkerReport};
pub use reason::{LossCause, Reason, WaitEnd, WorkerLoss};
pub use ronde_core::SuccessionPolicy;
pub use settings::{RestartLimits, Settings};
pub use time::Time;
pub use worker::{WorkerCommand, WorkerEvent, WorkerMachine};
