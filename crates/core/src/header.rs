//! The versioned header that opens every event file, run file and manifest.

use serde::{Deserialize, Serialize};

/// Name and version of a format. A reader refuses what it does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatHeader {
    /// Which format: `ronde.events`, `ronde.run`, `ronde.model`.
    pub format: String,
    /// Version of the format; grows when an old reader would misread it.
    pub version: u32,
}

impl FormatHeader {
    /// Events, one JSON object a line.
    pub const EVENTS: (&'static str, u32) = ("ronde.events", 1);
    /// Run files.
    pub const RUN: (&'static str, u32) = ("ronde.run", 1);
    /// A trained model's configuration beside its weights.
    pub const MODEL: (&'static str, u32) = ("ronde.model", 1);

    /// The header of a format of this version of ronde.
    #[must_use]
    pub fn of((format, version): (&str, u32)) -> Self {
        Self {
            format: format.to_owned(),
            version,
        }
    }

    /// Whether this is `expected`, else a sentence that says what is wrong.
    ///
    /// # Errors
    /// Another format, or a version that this ronde does not know.
    pub fn check(&self, expected: (&str, u32)) -> Result<(), String> {
        if self.format != expected.0 {
            return Err(format!("this is {:?}, not {:?}", self.format, expected.0));
        }
        if self.version != expected.1 {
            return Err(format!(
                "{} version {} is not known; this ronde reads version {}",
                self.format, self.version, expected.1
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_formats_and_versions_are_refused_by_name() {
        let header = FormatHeader::of(FormatHeader::EVENTS);
        assert!(header.check(FormatHeader::EVENTS).is_ok());
        assert!(
            header
                .check(FormatHeader::RUN)
                .unwrap_err()
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
                .contains("version 9")
        );
    }
}
