//! The first message in each direction of a connection: which worker of which job calls which one.

use ronde_peer_memory::LendingOffer;
use serde::{Deserialize, Serialize};

const MAGIC: [u8; 8] = *b"ronderpc";
const PREFIX_BYTES: usize = 16;
/// The version of the protocol.
const PROTOCOL_VERSION: u32 = 2;
/// The maximum size in bytes, for a peer that has not authenticated.
pub(crate) const HELLO_BYTES_MAX: usize = 4 << 10;

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

/// Encodes a first message: magic, version, length, JSON.
pub(crate) fn encode(hello: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(hello).unwrap_or_default();
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes
}

/// Returns how many bytes are missing for a complete first message; 0 if it is complete.
pub(crate) fn missing(bytes: &[u8]) -> Result<usize, String> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err("it is not a worker of ronde".to_owned());
    }
    let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(PREFIX_BYTES - bytes.len());
    };
    let number = |at: usize| {
        u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]])
    };
    if number(8) != PROTOCOL_VERSION {
        let version = number(8);
        return Err(format!(
            "it uses version {version} of the protocol, expected {PROTOCOL_VERSION}"
        ));
    }
    let len = number(12) as usize;
    if len > HELLO_BYTES_MAX {
        return Err(format!(
            "its first message has {len} bytes, limit {HELLO_BYTES_MAX}"
        ));
    }
    Ok((PREFIX_BYTES + len).saturating_sub(bytes.len()))
}

/// Decodes a complete first message.
pub(crate) fn decode<'a, H: Deserialize<'a>>(bytes: &'a [u8]) -> Result<H, String> {
    let json = bytes.get(PREFIX_BYTES..).unwrap_or_default();
    serde_json::from_slice(json).map_err(|error| format!("invalid first message: {error}"))
}
