//! [`RpcError`], the error of this crate, and [`FunctionError`], the error of a function.

use std::fmt;
use std::net::SocketAddr;

use ronde_core::Recovery;

/// The reason why a remote call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The connection was lost and the peer's process did not return with its memory of this caller. Calls that were
    /// sent may have been executed, each at most once.
    #[error("cannot call `{function}` of {peer}: lost the peer: {cause}")]
    PeerLost {
        /// The name of the peer.
        peer: String,
        /// The name of the function.
        function: String,
        /// The error of the connection.
        cause: String,
    },
    /// No answer arrived in time. The function may have been executed, at most once.
    #[error("cannot call `{function}` of {peer}: no answer within {limit_s:.3} s")]
    DeadlinePassed {
        /// The name of the peer.
        peer: String,
        /// The name of the function.
        function: String,
        /// The limit in seconds.
        limit_s: f64,
    },
    /// The peer has no function of this name and version.
    #[error(
        "cannot call `{function}` version {version} of {peer}: {cause}; help: register the same functions on all workers"
    )]
    UnknownFunction {
        /// The name of the peer.
        peer: String,
        /// The name of the function.
        function: String,
        /// The version of the caller.
        version: u32,
        /// The peer's values.
        cause: String,
    },
    /// The function returned an error or panicked.
    #[error("`{function}` of {peer} failed: {message}")]
    FunctionFailed {
        /// The name of the peer.
        peer: String,
        /// The name of the function.
        function: String,
        /// The function's error.
        message: String,
    },
    /// A bound was reached; the function was not executed.
    #[error(
        "cannot call `{function}` of {peer}: {cause}; help: wait for earlier calls, or raise the limit"
    )]
    Overloaded {
        /// The name of the peer.
        peer: String,
        /// The name of the function.
        function: String,
        /// The bound and its limit.
        cause: String,
    },
    /// A message is longer than a bound.
    #[error("cannot send {bytes} bytes to `{function}`: limit {limit} bytes")]
    TooLarge {
        /// The name of the function.
        function: String,
        /// The bytes of the message.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// No worker has this name or role.
    #[error("cannot call `{function}`: no worker has the {target}")]
    NoSuchWorker {
        /// The name of the function.
        function: String,
        /// The name or role.
        target: String,
    },
    /// The peer and this node do not accept each other: another job, no certificate, another token.
    #[error("cannot call `{function}` of {peer}: refused: {cause}")]
    Refused {
        /// The name of the peer.
        peer: String,
        /// The name of the function.
        function: String,
        /// The reason.
        cause: String,
    },
    /// Arguments or a result cannot be converted.
    #[error("cannot convert the {what} of `{function}`: {cause}")]
    Conversion {
        /// `"arguments"` or `"result"`.
        what: &'static str,
        /// The name of the function.
        function: String,
        /// The error of the conversion.
        cause: String,
    },
    /// The node cannot start.
    #[error("cannot start remote calls: {cause}")]
    Start {
        /// The cause.
        cause: StartProblem,
    },
    /// The object of a remote reference no longer exists at its owner.
    #[error("cannot use object {object} of {owner}: {cause}")]
    ReferenceLost {
        /// The name of the owner.
        owner: String,
        /// The number of the object.
        object: u64,
        /// The cause.
        cause: String,
    },
    /// The engine failed in a remote layer's caller.
    #[error("cannot compute gradients across workers: {cause}")]
    Gradients {
        /// The cause.
        cause: GradientProblem,
    },
    /// The node was closed while the call waited.
    #[error("cannot call `{function}`: this node is closing")]
    Closing {
        /// The name of the function.
        function: String,
    },
}

/// The reason why a node cannot start, or cannot add a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartProblem {
    /// Connections without TLS would leave the host.
    #[error(
        "plain connections on {address}, which is not a loopback address; help: give the node an identity, for TLS"
    )]
    Plain {
        /// The address.
        address: SocketAddr,
    },
    /// A peer has the name of the node.
    #[error("the peer `{name}` has the name of this worker")]
    OwnName {
        /// The name.
        name: String,
    },
    /// The role of a worker is too long to be announced.
    #[error("the role has {bytes} bytes, limit {limit}")]
    Role {
        /// The length of the role.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The system refuses an operation, or another worker's announcement is damaged.
    #[error("cannot {operation}: {cause}")]
    System {
        /// The operation.
        operation: &'static str,
        /// The error.
        cause: String,
    },
}

impl StartProblem {
    /// Returns the conversion of an error of the system or of a library.
    pub fn system<E: fmt::Display>(operation: &'static str) -> impl FnOnce(E) -> RpcError {
        move |error| RpcError::Start {
            cause: Self::System {
                operation,
                cause: error.to_string(),
            },
        }
    }
}

/// The reason why gradients across workers cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GradientProblem {
    /// The index of a stage is too large.
    #[error("stage {stage} of a context with {stages} stages")]
    NoSuchStage {
        /// The index.
        stage: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A stage was called twice for a shard.
    #[error("stage {stage} was called for this shard before")]
    CalledBefore {
        /// The stage.
        stage: usize,
    },
    /// The input of a stage is an output of another pass.
    #[error("the input is an output of another pass")]
    OtherPass,
    /// A gradient is of an output of another pass.
    #[error("a gradient belongs to no output of this pass")]
    OtherOutput,
    /// A gradient has another shape than its output.
    #[error("a gradient has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The shape of the gradient.
        found: Vec<usize>,
        /// The shape of the output.
        expected: Vec<usize>,
    },
    /// An output was not used.
    #[error("the output of stage {stage} has no use and no gradient")]
    Unused {
        /// The stage.
        stage: usize,
    },
    /// The number of values does not fit a shape.
    #[error("{values} values for shape {shape:?}")]
    ValueCount {
        /// The number of values.
        values: usize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The layers of a stage need all shards together.
    #[error(
        "a stage with batch normalisation or clusters, which need all shards together, is not supported"
    )]
    NeedsAllShards,
}

impl From<GradientProblem> for RpcError {
    fn from(cause: GradientProblem) -> Self {
        Self::Gradients { cause }
    }
}

impl RpcError {
    /// Returns the action that a caller should take.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Overloaded { .. } => Recovery::Retry,
            Self::PeerLost { .. } | Self::DeadlinePassed { .. } | Self::ReferenceLost { .. } => {
                Recovery::Rejoin
            }
            _ => Recovery::Abort,
        }
    }
}

/// The error of a function, as text; every error converts to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionError(String);

impl FunctionError {
    /// Creates an error with a message for the caller.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for FunctionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for FunctionError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}
