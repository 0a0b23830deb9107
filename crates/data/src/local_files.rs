//! The files of this machine that a data section names by relative paths, for a copy of the run on another machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::DataConfig;
use crate::error::DataError;
use crate::format::{Format, FormatConfig};
use crate::open_context::OpenContext;
use crate::records::{Addresses, RecordsConfig};
use crate::source::{FolderNames, FoundFiles, SourceFile, expand};

impl DataConfig {
    /// Returns the files that it names by relative paths, relative to `base`, sorted: data, lists of data and tokenizers. Of a
    /// folder or a pattern, these are the files that a run reads. Absolute paths and addresses are left out. Cost: one listing
    /// of each folder.
    ///
    /// # Errors
    /// A path that leads out of `base`, and those of [`expand`].
    pub fn local_files(&self, base: &Path) -> Result<Vec<PathBuf>, DataError> {
        let mut files = Vec::new();
        for (_, path) in self.files() {
            if let Some(path) = path.to_str().filter(|path| is_relative(path)) {
                check_inside(path)?;
                files.push(PathBuf::from(path));
            }
        }
        if let Self::Records(records) = self {
            records.add_local_files(base, &mut files)?;
        }
        files.sort();
        files.dedup();
        Ok(files)
    }
}

/// Returns the files that patterns match, relative to `base`, sorted: all that are not hidden, of folders too. Patterns are
/// relative paths, as [`expand`] reads them.
///
/// # Errors
/// A path that is absolute or leads out of `base`, and those of [`expand`].
pub fn files_of_patterns(patterns: &[String], base: &Path) -> Result<Vec<PathBuf>, DataError> {
    for pattern in patterns {
        if !is_relative(pattern) {
            return Err(DataError::pattern(
                pattern.clone(),
                "expected a path relative to the folder of the run file",
            ));
        }
        check_inside(pattern)?;
    }
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let found = found(patterns, base, FolderNames::All)?;
    let mut files: Vec<PathBuf> = found
        .files
        .iter()
        .filter_map(|file| below(file, base))
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

impl RecordsConfig {
    fn add_local_files(&self, base: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
        let mut format = None;
        for addresses in [Some(&self.train), self.test.as_ref()]
            .into_iter()
            .flatten()
        {
            self.add_files(addresses, base, &mut format, files)?;
        }
        if let Some(FormatConfig::Table(table)) = &self.format
            && let Some(path) = table.tokenizer.as_ref().and_then(|path| path.to_str())
            && is_relative(path)
        {
            check_inside(path)?;
            files.push(PathBuf::from(path));
        }
        Ok(())
    }

    /// Adds the files of some addresses that have the format of the training files.
    fn add_files(
        &self,
        addresses: &Addresses,
        base: &Path,
        format: &mut Option<Arc<dyn Format>>,
        files: &mut Vec<PathBuf>,
    ) -> Result<(), DataError> {
        let mut local = Vec::new();
        for path in addresses.all().iter().filter(|path| is_relative(path)) {
            check_inside(path)?;
            match path.strip_prefix('@') {
                Some(list) => {
                    files.push(PathBuf::from(list));
                    local.extend(listed(list, base)?);
                }
                None => local.push(path.clone()),
            }
        }
        if local.is_empty() {
            return Ok(());
        }
        let names = match self.format {
            Some(_) => FolderNames::All,
            None => FolderNames::KnownFormats,
        };
        let mut found = found(&local, base, names)?;
        let known = match format {
            Some(known) => &*known,
            None => &*format.insert(self.format_of(&found, base)?),
        };
        found.retain(&local, known.file_kind(), |location| known.takes(location))?;
        files.extend(found.files.iter().filter_map(|file| below(file, base)));
        Ok(())
    }

    fn format_of(&self, found: &FoundFiles, base: &Path) -> Result<Arc<dyn Format>, DataError> {
        let locations: Vec<String> = found.files.iter().map(SourceFile::location).collect();
        let locations: Vec<&str> = locations.iter().map(String::as_str).collect();
        let config = self.format.as_ref();
        match FormatConfig::tokenization(config, &locations, base, None)? {
            Some((_, format)) => Ok(format),
            None => FormatConfig::format(config, &locations, None),
        }
    }
}

/// Returns the relative paths in a list of data, relative to `base`. Absolute ones may exist on the hosts of the run alone.
fn listed(list: &str, base: &Path) -> Result<Vec<String>, DataError> {
    let failed = |problem: String| DataError::pattern(list, problem);
    let text =
        std::fs::read_to_string(base.join(list)).map_err(|error| failed(error.to_string()))?;
    let folder = list
        .rsplit_once('/')
        .map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let lines = text.lines().map(str::trim);
    let lines =
        lines.filter(|line| !line.is_empty() && !line.starts_with('#') && is_relative(line));
    lines
        .map(|line| check_inside(line).map(|()| format!("{folder}{line}")))
        .collect()
}

fn found(patterns: &[String], base: &Path, names: FolderNames) -> Result<FoundFiles, DataError> {
    let opening = OpenContext::new(base, 0);
    expand(
        patterns,
        base,
        &opening.opener(opening.remote.clone()),
        names,
    )
}

/// Returns the path of a file below a folder; `None` if it is elsewhere: a list may name absolute paths and addresses.
fn below(file: &SourceFile, base: &Path) -> Option<PathBuf> {
    let location = (!file.is_remote()).then(|| PathBuf::from(file.location()))?;
    location.strip_prefix(base).ok().map(Path::to_owned)
}

fn is_relative(path: &str) -> bool {
    let path = path.strip_prefix('@').unwrap_or(path);
    !path.contains("://") && !path.starts_with('/')
}

fn check_inside(path: &str) -> Result<(), DataError> {
    match path.split('/').any(|part| part == "..") {
        false => Ok(()),
        true => Err(DataError::pattern(
            path,
            "`..` leads out of the folder of the run file, which is all that is copied; move the files into it, or name \
                      them by addresses, or by absolute paths that exist on the hosts",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_that_a_section_names_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "1,2\n").unwrap();
        };
        for name in [
            "kubeconfig",
            "a.csv",
            "b.csv",
            "notes.txt",
            "data/x.csv",
            "data/key.pem",
            "data/.env",
            "more/y.csv",
        ] {
            write(name);
        }
        std::fs::write(
            dir.path().join("more/list"),
            "# list\ny.csv\n/elsewhere/z.csv\n",
        )
        .unwrap();
        let files = |train: &str| {
            let text = format!(
                "source = \"records\"\ntrain = {train}\nfeatures = {{ decode = \"numbers\", field = \"0\", shape = [1] }}\n"
            );
            let config: DataConfig =
                toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
            config
                .local_files(dir.path())
                .map_err(|error| error.to_string())
        };
        let paths = |names: &[&str]| Ok(names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(files("\"*.csv\""), paths(&["a.csv", "b.csv"]));
        assert_eq!(files("\"data\""), paths(&["data/x.csv"]));
        assert_eq!(files("\"@more/list\""), paths(&["more/list", "more/y.csv"]));
        assert_eq!(files("[\"s3://b/x.csv\", \"/y.csv\"]"), paths(&[]));
        assert!(
            files("\"../x.csv\"")
                .unwrap_err()
                .contains("leads out of the folder")
        );
        assert!(files("\"gone.csv\"").unwrap_err().contains("gone.csv"));
        let csv =
            "source = \"csv\"\ntrain = \"a.csv\"\ntest = \"/b.csv\"\nshape = [1]\nclasses = 2\n";
        let csv: DataConfig = toml::from_str(csv).unwrap();
        assert_eq!(
            csv.local_files(dir.path()).unwrap(),
            [PathBuf::from("a.csv")]
        );
        let listed = |pattern: &str| files_of_patterns(&[pattern.to_owned()], dir.path());
        assert_eq!(
            listed("data").unwrap(),
            ["data/key.pem", "data/x.csv"].map(PathBuf::from)
        );
        assert_eq!(listed("notes.txt").unwrap(), [PathBuf::from("notes.txt")]);
        assert!(listed("/etc/passwd").is_err() && listed("../x").is_err());
    }
}
