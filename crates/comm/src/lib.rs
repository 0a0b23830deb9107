//! Process groups: connected ranks that run collectives and exchange messages, with a deadline on every wait.
//!
//! A [`ProcessGroup`] sees bytes, element types and reduction operators, never tensors. What it does
//! is data: a [`ronde_schedule::Schedule`] per operation, run by one executor on one progress thread
//! over any [`Transport`].

mod calibrate;
mod choice;
mod clock;
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
pub use connect::bind;
pub use flight::{FailureHook, FirstArrival, FlightRecord, OperationRecord, merge_report};
pub use group::ProcessGroup;
pub use kernels::reduce_local;
pub use security::{Security, TlsMembers};
pub use transport::{Interest, Transport, Waker};
