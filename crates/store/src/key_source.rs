//! [`KeySource`]: the location of a master key, as written in a run file.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::StoreError;
use crate::key::MasterKey;

/// The size limit of a key file; a key has at most 64 characters.
const KEY_FILE_BYTES_MAX: u64 = 4096;

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
                crate::read_regular(&path, KEY_FILE_BYTES_MAX)
                    .map_err(|error| format!("{}: {error}", path.display()))
            }
            Self::Variable(name) => {
                variable(name).ok_or_else(|| format!("the environment variable {name} is not set"))
            }
        };
        let contents = contents.map_err(|problem| StoreError::Key { problem })?;
        MasterKey::parse(&contents)
    }
}

impl KeySource {
    /// Returns a warning if other users of this host can read the key file. Relative paths start at
    /// `base`.
    #[must_use]
    pub fn exposure(&self, base: &Path) -> Option<String> {
        use std::os::unix::fs::PermissionsExt;
        /// Any access by the group and by other users.
        const OTHERS: u32 = 0o077;
        let Self::File(path) = self else {
            return None;
        };
        let path = base.join(path);
        let mode = std::fs::metadata(&path).ok()?.permissions().mode() & 0o777;
        (mode & OTHERS != 0).then(|| {
            let path = path.display();
            format!(
                "other users can access the encryption key {path} (mode {mode:04o}); run `chmod 600 \
                 {path}`"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_that_others_can_read_are_reported() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "ab".repeat(32)).unwrap();
        let file: KeySource = "file:key".parse().unwrap();
        for (mode, is_exposed) in [(0o600, false), (0o400, false), (0o640, true), (0o644, true)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let warning = file.exposure(folder.path());
            assert_eq!(warning.is_some(), is_exposed, "{mode:o}: {warning:?}");
            if let Some(warning) = warning {
                assert!(warning.contains("chmod 600"), "{warning}");
            }
        }
        let variable: KeySource = "variable:MINE".parse().unwrap();
        assert_eq!(variable.exposure(folder.path()), None);
    }

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
