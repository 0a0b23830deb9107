//! [`TrainingCursor`]: the position of a run in its data, as stored in a checkpoint.
//!
//! Format: length of the header (u64, little-endian), the header as JSON, the session's cursor.

use std::path::PathBuf;

use ronde_core::FormatHeader;
use serde::{Deserialize, Serialize};

/// Format of the header.
const FORMAT: (&str, u32) = ("ronde.cursor", 1);

/// The position of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrainingCursor {
    pub(crate) header: CursorHeader,
    /// [`crate::session::Session::cursor`].
    pub(crate) session: Vec<u8>,
}

/// The header of a cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CursorHeader {
    header: FormatHeader,
    /// The resolved run file; empty for a user's own program.
    pub(crate) run: String,
    /// The folder that relative paths of the run file are resolved against.
    pub(crate) base: PathBuf,
    /// Hash of all weights and buffers, 16 hexadecimal digits; empty if no rank had all of them.
    pub(crate) weights: String,
    /// The progress of the run; absent in checkpoints of earlier releases.
    #[serde(default)]
    pub(crate) progress: Option<String>,
}

impl TrainingCursor {
    pub(crate) fn new(
        (run, base): (&str, &std::path::Path),
        weights: Option<u64>,
        progress: String,
        session: Vec<u8>,
    ) -> Self {
        Self {
            header: CursorHeader {
                header: FormatHeader::of(FORMAT),
                run: run.to_owned(),
                base: base.to_owned(),
                weights: weights.map_or_else(String::new, |weights| format!("{weights:016x}")),
                progress: Some(progress),
            },
            session,
        }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let header = serde_json::to_vec(&self.header).map_err(|error| error.to_string())?;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(&self.session);
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let short = || "the cursor is truncated".to_owned();
        let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| short())?;
        let (header, session) = rest.split_at_checked(len).ok_or_else(short)?;
        let header: CursorHeader =
            serde_json::from_slice(header).map_err(|error| error.to_string())?;
        let checked = header.header.check(FORMAT);
        checked.map_err(|error| error.to_string())?;
        Ok(Self {
            header,
            session: session.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_invalid_bytes_are_rejected() {
        let cursor = TrainingCursor::new(
            ("[run]\n", "/a".as_ref()),
            Some(7),
            "{}".to_owned(),
            vec![1, 2, 3],
        );
        let bytes = cursor.encode().unwrap();
        assert_eq!(TrainingCursor::decode(&bytes), Ok(cursor));
        for bad in [
            &bytes[..4],
            &bytes[..20],
            &[255; 40][..],
            &[&[2_u8, 0, 0, 0, 0, 0, 0, 0][..], b"{}"].concat(),
        ] {
            assert!(TrainingCursor::decode(bad).is_err(), "{bad:?}");
        }
    }
}
