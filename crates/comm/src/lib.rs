//! Process groups: connected ranks that run collectives and exchange messages, with a deadline on every wait.
//!
//! A [`ProcessGroup`] sees bytes, element types and reduction operators, never tensors. What it does
//! is data: a [`ronde_schedule::Schedule`] per operation, run by one executor on one progress thread
//! over any [`Transport`].

mod clock;
mod config;
mod connect;
mod engine;
mod frame;
mod group;
mod hello;
mod kernels;
mod memory;
mod notice;
mod program;
mod running;
mod shared;
pub mod testing;
pub mod transport;
mod work;

pub use config::{GroupConfig, TransportChoice};
pub use connect::bind;
pub use group::ProcessGroup;
pub use transport::{Interest, Transport, Waker};
