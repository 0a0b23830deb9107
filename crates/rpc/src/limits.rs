//! [`RpcLimits`]: the bounds of a node.

use std::time::Duration;

/// The bounds of a node: calls, bytes and times. A call beyond a bound fails with
/// [`RpcError::Overloaded`](crate::RpcError::Overloaded), or waits for room where it may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcLimits {
    /// The number of calls to one peer that have no answer yet.
    pub calls_in_flight_max: usize,
    /// The bytes of these calls, which are kept until the answer arrives.
    pub bytes_in_flight_max: usize,
    /// The bytes of the values of one message.
    pub message_bytes_max: usize,
    /// The number of received calls that wait for a thread.
    pub queued_calls_max: usize,
    /// The bytes of received calls and of unsent answers, beyond which this node reads no further calls.
    pub queued_bytes_max: usize,
    /// The bytes of answers that are kept for a caller that may have missed them.
    pub kept_answer_bytes_max: usize,
    /// The number of threads that run functions.
    pub threads: usize,
    /// The number of connections that other workers have opened, including those that have not authenticated yet.
    pub connections_max: usize,
    /// How long a new connection may take until it is authenticated.
    pub handshake: Duration,
    /// How long a lost connection is dialled again before calls fail.
    pub reconnect: Duration,
    /// How long the answers for a caller without a connection are kept.
    pub session_keep: Duration,
    /// How long an object stays shared after the last message of a holder.
    pub lease: Duration,
}

impl Default for RpcLimits {
    fn default() -> Self {
        Self {
            calls_in_flight_max: 8_192,
            bytes_in_flight_max: 1 << 30,
            message_bytes_max: 512 << 20,
            queued_calls_max: 16_384,
            queued_bytes_max: 1 << 30,
            kept_answer_bytes_max: 256 << 20,
            threads: 4,
            connections_max: 1_024,
            handshake: Duration::from_secs(5),
            reconnect: Duration::from_secs(5),
            session_keep: Duration::from_secs(30),
            lease: Duration::from_secs(30),
        }
    }
}
