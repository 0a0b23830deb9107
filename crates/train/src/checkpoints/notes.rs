//! [`SaveNote`]: a message about a save that a rank sends to all ranks with its votes.

use ronde_checkpoint::{CheckpointError, SavedPart};
use ronde_core::Step;
use serde::{Deserialize, Serialize};

/// A message about a save.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SaveNote {
    /// This run has claimed the term.
    Term(u64),
    /// This rank's share has been written.
    Saved { part: SavedPart, held_up_s: f64 },
    /// This rank could not write or publish its part.
    Failed {
        step: Step,
        #[serde(flatten)]
        failure: SaveFailure,
    },
    /// The checkpoint has been published.
    Published { step: Step },
}

/// Why a save failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SaveFailure {
    /// The error, as text.
    pub(crate) problem: String,
    /// [`CheckpointError::may_pass`].
    pub(crate) may_pass: bool,
}

impl From<&CheckpointError> for SaveFailure {
    fn from(error: &CheckpointError) -> Self {
        Self {
            problem: error.to_string(),
            may_pass: error.may_pass(),
        }
    }
}

impl SaveFailure {
    /// Returns a failure that another attempt would repeat.
    pub(crate) fn lasting(problem: String) -> Self {
        Self {
            problem,
            may_pass: false,
        }
    }
}

/// Encodes notes as JSON; returns no bytes if there are none.
pub(crate) fn encode(notes: &[SaveNote]) -> Vec<u8> {
    if notes.is_empty() {
        return Vec::new();
    }
    // The fields are numbers and text, which always serialise.
    serde_json::to_vec(notes).unwrap_or_default()
}

/// Decodes notes; returns none if the bytes are invalid.
pub(crate) fn decode(note: &[u8]) -> Vec<SaveNote> {
    serde_json::from_slice(note).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_round_trip() {
        let notes = vec![
            SaveNote::Term(3),
            SaveNote::Failed {
                step: Step(7),
                failure: SaveFailure::lasting("disk full".to_owned()),
            },
            SaveNote::Published { step: Step(8) },
        ];
        assert_eq!(decode(&encode(&notes)), notes);
        assert!(encode(&[]).is_empty());
        assert!(decode(b"").is_empty() && decode(b"[{}").is_empty());
    }
}
