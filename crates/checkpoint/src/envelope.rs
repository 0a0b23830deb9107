//! The envelope of small JSON files: header, blake3 of the exact bytes of the body, body; still one JSON object.
//!
//! ```text
//! {"header":{"format":"ronde.checkpoint","version":1},"blake3":"..","manifest":
//! {..}
//! }
//! ```
//!
//! Reading rebuilds all bytes before and after the body and compares them, so that no changed byte goes unnoticed.

use ronde_core::FormatHeader;
use serde::{Deserialize, Serialize};

/// Which file: its format, version, and the body's key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) format: (&'static str, u32),
    pub(crate) key: &'static str,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    header: FormatHeader,
    blake3: String,
}

const END: &[u8] = b"\n}\n";

/// The file of `body`.
pub(crate) fn encode<T: Serialize>(kind: Kind, body: &T) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec_pretty(body)?;
    let mut bytes = before(kind, &blake3::hash(&body).to_hex())?;
    bytes.extend(body);
    bytes.extend(END);
    Ok(bytes)
}

/// The body of a file, or what is wrong with it.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(kind: Kind, bytes: &[u8]) -> Result<T, String> {
    let separator = format!(",\"{}\":\n", kind.key);
    let at = bytes
        .windows(separator.len())
        .take(512)
        .position(|window| window == separator.as_bytes())
        .ok_or("it does not start as it should")?;
    let head = [&bytes[..at], b"}"].concat();
    let head: Head = serde_json::from_slice(&head)
        .map_err(|error| format!("its header cannot be read: {error}"))?;
    head.header.check(kind.format)?;
    let body = bytes[at + separator.len()..]
        .strip_suffix(END)
        .ok_or("its end is missing")?;
    let digest = blake3::hash(body).to_hex();
    if before(kind, &digest).ok().as_deref() != Some(&bytes[..at + separator.len()]) {
        return Err(format!(
            "its blake3 is {digest}, not {}, as it says",
            head.blake3
        ));
    }
    serde_json::from_slice(body).map_err(|error| format!("it cannot be read: {error}"))
}

fn before(kind: Kind, digest: &str) -> Result<Vec<u8>, serde_json::Error> {
    let head = Head {
        header: FormatHeader::of(kind.format),
        blake3: digest.to_owned(),
    };
    let mut bytes = serde_json::to_vec(&head)?;
    bytes.pop();
    bytes.extend(format!(",\"{}\":\n", kind.key).into_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        format: ("ronde.test", 1),
        key: "body",
    };

    #[test]
    fn every_changed_byte_is_found_and_the_file_is_json() {
        let bytes = encode(KIND, &vec![1, 2, 3]).unwrap();
        assert_eq!(decode::<Vec<u8>>(KIND, &bytes), Ok(vec![1, 2, 3]));
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["body"][2], 3);
        for at in 0..bytes.len() {
            for change in [1, 0x20, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                assert!(decode::<Vec<u8>>(KIND, &changed).is_err(), "byte {at}");
            }
            assert!(decode::<Vec<u8>>(KIND, &bytes[..at]).is_err(), "cut {at}");
        }
        let longer = [&bytes[..], b"\n"].concat();
        assert!(decode::<Vec<u8>>(KIND, &longer).is_err());
    }

    #[test]
    fn another_version_is_named() {
        let newer = Kind {
            format: ("ronde.test", 2),
            ..KIND
        };
        let bytes = encode(newer, &1).unwrap();
        let problem = decode::<u8>(KIND, &bytes).unwrap_err();
        assert!(problem.contains("version 2"), "{problem}");
    }
}
