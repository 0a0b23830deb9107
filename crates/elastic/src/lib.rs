//! Who belongs to a job, and what happens when that changes: state machines without I/O.
//!
//! [`CoordinatorMachine`] and [`WorkerMachine`] take `(now, event)` and give commands. They know no
//! clock, no sockets, no threads, no randomness and no logs: all of it arrives as an argument or
//! leaves as a command. A shell feeds them what its connections, its processes and its timer see, and
//! does what they say. The protocol, its invariants and what happens in each failure are told in
//! `docs/elastic.md`.
//!
//! Read [`membership`] first, then [`message`], [`recovery`], [`worker`], [`lease`], [`coordinator`].

#![forbid(unsafe_code)]

pub mod coordinator;
pub mod detector;
pub mod error;
pub mod journal;
pub mod lease;
pub mod membership;
pub mod message;
pub mod reason;
pub mod recovery;
pub mod restart;
pub mod settings;
pub mod time;
pub mod worker;

pub use coordinator::{Command, CoordinatorMachine, Ending, Event, PlaceState};
pub use error::ElasticError;
pub use journal::{JobPhase, OpenGeneration, Record, StoreReply, StoreRequest};
pub use membership::{Assignment, CoordinatorId, Member, Place, StartFrom, Term, When, WorkerId};
pub use message::{Phase, Report, ToWorker, Trouble};
pub use reason::{Loss, LossCause, Reason};
pub use recovery::{Course, Position, RecoveryPlan};
pub use settings::{RestartLimits, Settings, Succession};
pub use time::Time;
pub use worker::{WorkerCommand, WorkerEvent, WorkerMachine};
