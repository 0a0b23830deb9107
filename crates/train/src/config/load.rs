//! [`RunConfig::load`]: reads a run file for a user's own program.

use std::path::Path;

use super::text::TEXT_BYTES_MAX;
use super::{ConfigError, ConfigProblem, Document, Override, RunConfig};

impl RunConfig {
    /// Reads the run file at `path`. Environment variables are not read; see [`RunConfig::load_with`].
    ///
    /// # Errors
    /// The file cannot be read, or its contents are invalid: all problems, as for [`Document::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Ok(Self::load_with(path, &[], &[])?.0)
    }

    /// Reads the run file at `path` and applies values of environment variables and overrides, such as
    /// `Override::Set("train.epochs=3".into())`. The [`Document`] has the origin of each value.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn load_with(
        path: impl AsRef<Path>,
        environment: &[(String, String)],
        overrides: &[Override],
    ) -> Result<(Self, Document), ConfigError> {
        let path = path.as_ref();
        let text = read(path).map_err(|cause| {
            let message = format!("cannot read run file {}: {cause}", path.display());
            ConfigError::without_source(vec![ConfigProblem::error("", message)])
        })?;
        Document::load(&text, &path.display().to_string(), environment, overrides)
    }
}

/// Reads a regular file of limited size.
fn read(path: &Path) -> std::io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    if metadata.len() > TEXT_BYTES_MAX as u64 {
        let problem = format!(
            "it has {} bytes, expected at most {TEXT_BYTES_MAX}",
            metadata.len()
        );
        return Err(std::io::Error::other(problem));
    }
    std::fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULT_RUN_FILE;

    #[test]
    fn a_run_file_is_loaded_with_overrides() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, DEFAULT_RUN_FILE).unwrap();
        assert_eq!(RunConfig::load(&path).unwrap().train.epochs, Some(25));
        let environment = [("RONDE_SET_RUN__SEED".to_owned(), "7".to_owned())];
        let set = [Override::Set("train.epochs=3".to_owned())];
        let (config, document) = RunConfig::load_with(&path, &environment, &set).unwrap();
        assert_eq!((config.train.epochs, config.run.seed), (Some(3), 7));
        assert_eq!(
            document.origin("train.epochs").to_string(),
            "--set train.epochs=3"
        );
    }

    #[test]
    fn missing_and_special_and_large_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let large = folder.path().join("large.toml");
        std::fs::File::create(&large)
            .and_then(|file| file.set_len(1 << 30))
            .unwrap();
        for (path, part) in [
            (folder.path().join("none.toml"), "No such file"),
            ("/dev/zero".into(), "not a regular file"),
            (folder.path().to_owned(), "not a regular file"),
            (large, "it has 1073741824 bytes"),
        ] {
            let error = RunConfig::load(&path).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
