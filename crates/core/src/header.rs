//! The versioned header that opens every event file, run file and manifest.

use serde::{Deserialize, Serialize};

/// The name and version of a format. A reader rejects formats and versions that it does not support.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatHeader {
    /// The name of the format: `ronde.events`, `ronde.run`, `ronde.model`.
    pub format: String,
    /// The version of the format; increases when an old reader would misread it.
    pub version: u32,
}

/// A header of another format or version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file has another format.
    #[error("invalid format `{}`: expected `{expected}`", found.escape_debug())]
    Format {
        /// Its format.
        found: String,
        /// The expected format.
        expected: String,
    },
    /// The file has another version of the format.
    #[error("unsupported {format} version {found}: expected version {expected}")]
    Version {
        /// The format.
        format: String,
        /// Its version.
        found: u32,
        /// The supported version.
        expected: u32,
    },
}

impl FormatHeader {
    /// Events, one JSON object per line.
    pub const EVENTS: (&'static str, u32) = ("ronde.events", 1);
    /// Recordings of spans.
    pub const RECORDING: (&'static str, u32) = ("ronde.recording", 2);
    /// Run files.
    pub const RUN: (&'static str, u32) = ("ronde.run", 1);
    /// The configuration file of a trained model.
    pub const MODEL: (&'static str, u32) = ("ronde.model", 1);

    /// Returns the header of a format of this version of ronde.
    #[must_use]
    pub fn of((format, version): (&str, u32)) -> Self {
        Self {
            format: format.to_owned(),
            version,
        }
    }

    /// Checks that this header is `expected`.
    ///
    /// # Errors
    /// Returns an error with the other format, or the version that this ronde does not support.
    pub fn check(&self, expected: (&str, u32)) -> Result<(), HeaderError> {
        let (format, version) = expected;
        if self.format != format {
            return Err(HeaderError::Format {
                found: self.format.clone(),
                expected: format.to_owned(),
            });
        }
        if self.version != version {
            return Err(HeaderError::Version {
                format: self.format.clone(),
                found: self.version,
                expected: version,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_formats_and_versions_are_rejected_by_name() {
        let header = FormatHeader::of(FormatHeader::EVENTS);
        assert!(header.check(FormatHeader::EVENTS).is_ok());
        assert!(
            header
                .check(FormatHeader::RUN)
                .unwrap_err()
                .to_string()
                .contains("ronde.run")
        );
        let newer = FormatHeader {
            version: 9,
            ..header
        };
        assert!(
            newer
                .check(FormatHeader::EVENTS)
                .unwrap_err()
                .to_string()
                .contains("version 9")
        );
    }
}
