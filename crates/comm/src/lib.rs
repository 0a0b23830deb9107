//! Process groups: connected ranks that run collectives and exchange messages, with a deadline on every wait.
//!
//! A [`ProcessGroup`] handles bytes, element types and reduction operators, never tensors. It has two
//! executors. The stream executor runs the rounds of a [`ronde_schedule::Schedule`] over any
//! [`Transport`]; the group's progress thread drives it, or a caller that waits. It also carries
//! messages. The shared-memory executor has its own implementation of each collective, for groups whose
//! members are all on one host; it runs on the caller's thread, or on a worker for operations that were
//! started and not waited for. An operation that it does not support is run by the stream executor.

mod calibrate;
mod choice;
mod config;
mod connect;
#[doc(hidden)]
pub mod decoders;
mod flight;
mod frame;
mod group;
mod hello;
mod host;
mod kernels;
mod memory;
mod messages;
mod notice;
mod program;
mod rounds;
mod running;
mod security;
mod shared;
mod split;
mod stream_executor;
mod streaming;
mod sync;
pub mod testing;
pub mod transport;
mod work;

pub use choice::{AlgorithmChoice, RecordedChoice};
pub use config::{Calibration, GroupConfig, JoinCancellation, TransportChoice};
pub use connect::{ConnectionPool, bind};
pub use flight::{FailureHook, FirstArrival, FlightRecord, OperationRecord, merge_report};
pub use group::ProcessGroup;
pub use kernels::reduce_local;
pub use security::{Security, TlsMembers};
pub use transport::{Interest, Transport, Waker};
