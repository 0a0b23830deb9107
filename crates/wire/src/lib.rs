//! Connections between the processes of a job: what all of them have in common below the meaning of their messages.
//!
//! [`TlsSession`] is TLS 1.3 without a socket. [`TlsSocket`] drives it over a socket and blocks exactly when the socket does, so it
//! serves threads that poll. [`TlsStream`] drives it with a deadline for every call. [`WireStream`] is such a stream or a plain
//! one, [`LineStream`] sends lines of JSON over it, and [`HelloFormat`] is the start of a first message.
//!
//! Authentication is that of the configurations of `ronde-identity`: both ends show certificates of the job's authority.

#![forbid(unsafe_code)]

mod error;
mod hello;
mod line_stream;
mod tls_session;
mod tls_socket;
mod tls_stream;
mod wire_stream;

pub use error::{TlsRefusal, WireError, retry_interrupted};
pub use hello::{HelloFormat, HelloProblem, PREFIX_BYTES};
pub use line_stream::LineStream;
pub use tls_session::{ChooseConfig, TlsSession};
pub use tls_socket::TlsSocket;
pub use tls_stream::TlsStream;
pub use wire_stream::WireStream;
