//! The first message in each direction of a connection: the worker and the job that call, and the called worker.

use ronde_peer_memory::LendingOffer;
use ronde_wire::{HelloFormat, PREFIX_BYTES};
use serde::{Deserialize, Serialize};

/// The first message in each direction; its body is JSON. The limit is for a peer that has not authenticated.
pub(crate) const HELLO: HelloFormat = HelloFormat {
    magic: *b"ronderpc",
    version: 2,
    bytes_max: 4 << 10,
};

/// The first message of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallerHello {
    pub(crate) job: String,
    pub(crate) from: String,
    /// A number that differs after a restart of the caller.
    pub(crate) process: u64,
    pub(crate) to: String,
    pub(crate) token: Option<String>,
    /// On a plain connection of one host: how the callee may read the values of calls.
    pub(crate) lends: Option<LendingOffer>,
}

/// The first message of a callee.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalleeHello {
    /// A number that differs after a restart of the callee.
    pub(crate) process: u64,
    /// The callee still has the caller's earlier calls and their answers.
    pub(crate) is_resumed: bool,
    pub(crate) token: Option<String>,
    /// On a plain connection of one host: how the caller may read the values of answers.
    pub(crate) lends: Option<LendingOffer>,
    /// The reason why the caller is refused.
    pub(crate) refused: Option<String>,
}

/// Encodes a first message.
pub(crate) fn encode(hello: &impl Serialize) -> Vec<u8> {
    HELLO.encode(&serde_json::to_vec(hello).unwrap_or_default())
}

/// A first message that is not of the expected form.
#[derive(Debug, thiserror::Error)]
#[error("invalid first message: {0}")]
pub(crate) struct FirstMessageError(serde_json::Error);

/// Decodes a complete first message.
pub(crate) fn decode<'a, H: Deserialize<'a>>(bytes: &'a [u8]) -> Result<H, FirstMessageError> {
    let json = bytes.get(PREFIX_BYTES..).unwrap_or_default();
    serde_json::from_slice(json).map_err(FirstMessageError)
}
