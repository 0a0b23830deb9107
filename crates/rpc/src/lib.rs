//! Remote calls between the workers of a job, references to objects of other workers, and gradients across workers.
//!
//! A worker opens an [`RpcNode`] with the functions that others may call ([`FunctionRegistry`]) and the list of its peers.
//! A [`RemoteFunction`] is the name, version and types of a function, known to both sides; no code travels. f32 values
//! travel beside the arguments without needless copies ([`CallValues`]).
//!
//! ```
//! use std::net::TcpListener;
//! use std::time::Duration;
//! use ronde_rpc::*;
//!
//! const SCALE: RemoteFunction<f32, usize> = RemoteFunction::new("example.scale", 1);
//! let limit = Duration::from_secs(10);
//! let token = RpcToken::new("a secret of the job");
//! let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
//! let peer = |name: &str, at: &TcpListener| {
//!     let (name, role) = (name.to_owned(), "worker".to_owned());
//!     Ok::<_, std::io::Error>(RpcPeer { name, role, address: at.local_addr()?, member: None })
//! };
//! let [one, two] = [peer("one", &listeners[0])?, peer("two", &listeners[1])?];
//! let [at_one, at_two] = listeners;
//!
//! let mut functions = FunctionRegistry::new();
//! functions.register(&SCALE, |_, factor, values| {
//!     let scaled: Vec<f32> = values.iter().map(|value| factor * value).collect();
//!     Ok((scaled.len(), scaled.into()))
//! });
//! let config = |name: &str| RpcConfig::new("job-7", name, RpcSecurity::Token(token.clone()));
//! let callee = RpcNode::open(config("two"), at_two, vec![one], functions)?;
//! let caller = RpcNode::open(config("one"), at_one, vec![two], FunctionRegistry::new())?;
//! let target = CallTarget::Worker("two");
//! let (count, scaled) = caller.call(target, &SCALE, &2.0, vec![1.0, 3.0], limit)?;
//! assert_eq!((count, &scaled[..]), (2, &[2.0, 6.0][..]));
//! # drop((callee, caller));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! State machines without I/O decide (`caller.rs`, `callee.rs`, `lease.rs`); one thread moves bytes.

mod callee;
mod caller;
mod calls;
mod connection;
#[doc(hidden)]
pub mod decoders;
mod error;
mod frame;
mod frame_reader;
mod function;
mod gradients;
mod handlers;
mod hello;
mod io_thread;
mod lease;
mod limits;
mod node;
mod peers;
mod references;
mod security;
mod stream;
mod values;

pub use calls::PendingCall;
pub use error::{FunctionError, GradientProblem, RpcError, StartProblem};
pub use function::{FunctionRegistry, RemoteFunction};
pub use gradients::{
    GradientContext, ModelStage, RemoteStage, ShardPass, StageOutput, register_stage_functions,
};
pub use limits::RpcLimits;
pub use node::{CallContext, RpcConfig, RpcNode};
pub use peers::{CallTarget, RpcPeer};
pub use references::{ReferenceTicket, RemoteRef};
pub use security::{RpcSecurity, RpcToken};
pub use values::CallValues;
