//! [`SavedPart`]: the description of one rank's file of a checkpoint.

use ronde_core::{Rank, Step, WorldSize};
use serde::{Deserialize, Serialize};

use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::manifest::SliceFile;

/// The description of one rank's written and durable file. It is small and is sent to the rank that publishes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPart {
    /// The number of committed steps.
    pub step: Step,
    /// The fence.
    pub fence: Fence,
    /// The rank that saved.
    pub rank: Rank,
    /// The number of ranks.
    pub world_size: WorldSize,
    /// The file and its contents.
    pub file: SliceFile,
    /// The seconds spent hashing.
    pub hashing_s: f64,
    /// The seconds spent writing, including encryption.
    pub writing_s: f64,
}

impl SavedPart {
    /// Encodes the part for other ranks: JSON, about 150 bytes for each part of a slice.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] when a number cannot be encoded.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        serde_json::to_vec(self)
            .map_err(|error| CheckpointError::invalid("saved part", error.to_string()))
    }

    /// Decodes another rank's part.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`], with the position of the error.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CheckpointError> {
        serde_json::from_slice(bytes)
            .map_err(|error| CheckpointError::invalid("saved part", error.to_string()))
    }
}
