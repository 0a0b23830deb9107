//! Encodes small JSON files as one JSON object with a header, the blake3 digest of the body's exact bytes, and the body.
//!
//! ```text
//! {"header":{"format":"ronde.checkpoint","version":1},"blake3":"..","manifest":
//! {..}
//! }
//! ```
//!
//! The reader rebuilds all bytes before and after the body and compares them, so it detects any changed byte.

use ronde_core::{FormatHeader, HeaderError};
use serde::{Deserialize, Serialize};

/// The type of a file: format, version, and the key of the body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFormat {
    pub(crate) format: (&'static str, u32),
    pub(crate) key: &'static str,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvelopeHeader {
    header: FormatHeader,
    blake3: String,
}

/// The reason why a file cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeProblem {
    #[error("the file does not start with a valid header")]
    NoHeader,
    #[error("cannot parse its header: {0}")]
    Header(serde_json::Error),
    #[error(transparent)]
    Format(#[from] HeaderError),
    #[error("its format version is {found}, and this ronde supports version {supported}")]
    OtherVersion { found: u32, supported: u32 },
    #[error("the end of the file is missing")]
    NoEnd,
    #[error("its blake3 is {found}, but its header states {stated}")]
    Hash { found: String, stated: String },
    #[error("cannot parse its body: {0}")]
    Body(serde_json::Error),
}

const END: &[u8] = b"\n}\n";

/// Encodes `body` as a file.
pub(crate) fn encode<T: Serialize>(
    kind: FileFormat,
    body: &T,
) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec_pretty(body)?;
    let mut bytes = before(kind, &blake3::hash(&body).to_hex())?;
    bytes.extend(body);
    bytes.extend(END);
    Ok(bytes)
}

/// Decodes and verifies the body of a file.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(
    kind: FileFormat,
    bytes: &[u8],
) -> Result<T, DecodeProblem> {
    let separator = format!(",\"{}\":\n", kind.key);
    let at = bytes
        .windows(separator.len())
        .take(512)
        .position(|window| window == separator.as_bytes())
        .ok_or(DecodeProblem::NoHeader)?;
    let head = [&bytes[..at], b"}"].concat();
    let head: EnvelopeHeader = serde_json::from_slice(&head).map_err(DecodeProblem::Header)?;
    let (format, supported) = kind.format;
    if head.header.format == format && head.header.version != supported {
        return Err(DecodeProblem::OtherVersion {
            found: head.header.version,
            supported,
        });
    }
    head.header.check(kind.format)?;
    let body = bytes[at + separator.len()..]
        .strip_suffix(END)
        .ok_or(DecodeProblem::NoEnd)?;
    let digest = blake3::hash(body).to_hex();
    if before(kind, &digest).ok().as_deref() != Some(&bytes[..at + separator.len()]) {
        return Err(DecodeProblem::Hash {
            found: digest.to_string(),
            stated: head.blake3,
        });
    }
    serde_json::from_slice(body).map_err(DecodeProblem::Body)
}

fn before(kind: FileFormat, digest: &str) -> Result<Vec<u8>, serde_json::Error> {
    let head = EnvelopeHeader {
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

    const KIND: FileFormat = FileFormat {
        format: ("ronde.test", 1),
        key: "body",
    };

    #[test]
    fn every_changed_byte_is_found_and_the_file_is_json() {
        let bytes = encode(KIND, &vec![1, 2, 3]).unwrap();
        assert_eq!(decode::<Vec<u8>>(KIND, &bytes).unwrap(), [1, 2, 3]);
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
        let newer = FileFormat {
            format: ("ronde.test", 2),
            ..KIND
        };
        let bytes = encode(newer, &1).unwrap();
        let error = decode::<u8>(KIND, &bytes).unwrap_err();
        let is_named = matches!(
            error,
            DecodeProblem::OtherVersion {
                found: 2,
                supported: 1
            }
        );
        assert!(is_named, "{error}");
    }
}
