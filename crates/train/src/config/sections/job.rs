//! `[job]`: what a run needs where it is submitted to.

use serde::{Deserialize, Serialize};

use crate::config::ConfigProblem;

/// The units of amounts of memory.
const UNITS: [&str; 9] = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];

/// `[job]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct JobSection {
    /// Further files that are copied with the run file: paths relative to its folder, folders, and patterns as in `data.train`. The data,
    /// tokenizer and initial weights that the run file names are always copied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The memory of each worker, such as `8Gi` or `500M`; default: that of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The processors of each worker; default: those of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The GPUs of each worker; default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

impl JobSection {
    /// Returns whether no key is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the memory of each worker in bytes; `None` if it is not set or not valid.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        bytes(self.memory.as_deref()?)
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        if let Some(memory) = &self.memory
            && bytes(memory).is_none_or(|bytes| bytes == 0)
        {
            let message = format!("invalid `job.memory` {memory:?}: expected an amount above zero");
            let hint = "write a whole number with a unit: 500M, 8Gi";
            problems.push(ConfigProblem::error("job.memory", message).hint(hint));
        }
        if self.cpus == Some(0) {
            let message = "`job.cpus` must be at least 1";
            problems.push(ConfigProblem::error("job.cpus", message));
        }
    }
}

/// Returns the bytes of an amount such as `8Gi`.
fn bytes(text: &str) -> Option<u64> {
    let letters = text.find(|letter: char| !letter.is_ascii_digit());
    let (number, unit) = text.split_at(letters.unwrap_or(text.len()));
    let position = UNITS.iter().position(|known| *known == unit)?;
    let factor: u64 = match position {
        0..5 => 1000_u64.pow(u32::try_from(position).ok()?),
        position => 1024_u64.pow(u32::try_from(position - 4).ok()?),
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory_have_units() {
        for (text, expected) in [
            ("5", Some(5)),
            ("5k", Some(5_000)),
            ("500M", Some(500_000_000)),
            ("8Gi", Some(8 << 30)),
            ("1T", Some(1_000_000_000_000)),
            ("8 Gi", None),
            ("Gi", None),
            ("8GiB", None),
            ("-1", None),
            ("99999999999Ti", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
