//! [`KeySource`]: the location of a master key, as written in a run file.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{MasterKey, StoreError};

/// The location of a master key: `file:PATH` or `variable:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A file; a relative path starts at the run file's folder.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
}

impl FromStr for KeySource {
    type Err = String;

    /// The error completes a sentence that begins with the key of the run file.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("variable", name)) if !name.is_empty() => Ok(Self::Variable(name.to_owned())),
            _ => Err(format!(
                "is {text:?}, but must be \"file:PATH\" or \"variable:NAME\""
            )),
        }
    }
}

impl KeySource {
    /// Reads the key. Relative paths start at `base`; `variable` returns the contents of
    /// environment variables.
    ///
    /// # Errors
    /// [`StoreError::Key`] when the key is missing or not valid.
    pub fn read(
        &self,
        base: &Path,
        variable: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<MasterKey, StoreError> {
        let contents = match self {
            Self::File(path) => {
                let path = base.join(path);
                std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
            }
            Self::Variable(name) => {
                variable(name).ok_or_else(|| format!("the environment variable {name} is not set"))
            }
        };
        let contents = contents.map_err(|problem| StoreError::Key { problem })?;
        MasterKey::parse(&contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_files_and_variables() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), "ab".repeat(32)).unwrap();
        let file: KeySource = "file:key".parse().unwrap();
        assert!(file.read(folder.path(), |_| None).is_ok());
        let variable: KeySource = "variable:MINE".parse().unwrap();
        let read = |name: &str| (name == "MINE").then(|| b"cd".repeat(32));
        assert!(variable.read(folder.path(), read).is_ok());
        let error = variable.read(folder.path(), |_| None).unwrap_err();
        assert!(error.to_string().contains("MINE is not set"), "{error}");
        for text in ["", "key", "file:", "variable:", "other:x"] {
            let error = text.parse::<KeySource>().unwrap_err();
            assert!(error.contains("must be \"file:PATH\""), "{error}");
        }
    }
}
