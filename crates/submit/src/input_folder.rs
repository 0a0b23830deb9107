//! [`InputFolder`]: the run file and the data beside it, as they are copied to other hosts.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::SubmitError;

/// The maximum number of files.
const FILES_MAX: usize = 100_000;
/// The maximum size of all files.
const BYTES_MAX: u64 = 16 << 30;
/// The maximum depth of folders.
const DEPTH_MAX: u32 = 32;
/// The files that the folder of a run's results, and that of a sweep, has.
const OUTPUT_FILES: [&str; 2] = ["events.jsonl", "sweep.json"];
/// The names of folders with the results of runs, and with those of sweeps.
const OUTPUT_FOLDERS: [&str; 2] = ["runs", "sweeps"];

/// The files of a run, relative to the folder of its run file. Hidden files and folders with the results of runs and
/// sweeps are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputFolder {
    pub(crate) base: PathBuf,
    /// Sorted.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) bytes: u64,
    /// The hash of all names and contents, in hexadecimal digits.
    pub(crate) hash: String,
    /// The name of the run file.
    pub(crate) run_file: PathBuf,
    /// The state of each file before its contents were read for the hash.
    stamps: Vec<FileStamp>,
}

/// What the system reports about a file and changes whenever its contents change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> std::io::Result<Self> {
        let found = std::fs::metadata(path)?;
        Ok(Self {
            file: (found.dev(), found.ino()),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

impl InputFolder {
    /// Reads the folder of a run file. Costs one read of all files.
    pub(crate) fn read(run_file: &Path) -> Result<Self, SubmitError> {
        let base = run_file.parent().unwrap_or(Path::new("/")).to_owned();
        let name = run_file.file_name().unwrap_or_default();
        let mut folder = Self {
            files: vec![PathBuf::from(name)],
            bytes: 0,
            hash: String::new(),
            run_file: PathBuf::from(name),
            base,
            stamps: Vec::new(),
        };
        folder.scan(Path::new(""), DEPTH_MAX)?;
        folder.files.sort();
        folder.files.dedup();
        let mut hasher = blake3::Hasher::new();
        for file in &folder.files {
            let path = folder.base.join(file);
            let stamp = FileStamp::of(&path).map_err(SubmitError::file("read", &path))?;
            folder.stamps.push(stamp);
            let mut content = blake3::Hasher::new();
            std::fs::File::open(&path)
                .and_then(|file| content.update_reader(file).map(|_| ()))
                .map_err(SubmitError::file("read", &path))?;
            hasher.update(file.as_os_str().as_encoded_bytes());
            hasher.update(&[0]);
            hasher.update(content.finalize().as_bytes());
        }
        folder.hash = hasher.finalize().to_hex().to_string();
        Ok(folder)
    }

    /// Checks that the files which were copied after they were read have the contents of the hash.
    pub(crate) fn check_unchanged(&self) -> Result<(), SubmitError> {
        for (file, stamp) in self.files.iter().zip(&self.stamps) {
            let path = self.base.join(file);
            if FileStamp::of(&path).ok().as_ref() != Some(stamp) {
                return Err(SubmitError::invalid(
                    format!("{} has changed while it was copied", path.display()),
                    format!(
                        "submit again when no program writes to {}, or move that file to another folder",
                        self.base.display()
                    ),
                ));
            }
        }
        Ok(())
    }

    fn scan(&mut self, below: &Path, depth: u32) -> Result<(), SubmitError> {
        let folder = self.base.join(below);
        let entries = std::fs::read_dir(&folder).map_err(SubmitError::file("read", &folder))?;
        for entry in entries {
            let entry = entry.map_err(SubmitError::file("read", &folder))?;
            let (name, path) = (entry.file_name(), entry.path());
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A link to a file is copied as a file. One that leads nowhere is an error: the file may be data.
            let found = std::fs::metadata(&path).map_err(SubmitError::file("read", &path))?;
            let inside = below.join(&name);
            if found.is_file() {
                self.bytes = self.bytes.saturating_add(found.len());
                self.files.push(inside);
                self.check_size()?;
            } else if found.is_dir() && !path.is_symlink() && depth > 0 && !is_output(&path) {
                self.scan(&inside, depth - 1)?;
            }
        }
        Ok(())
    }

    fn check_size(&self) -> Result<(), SubmitError> {
        if self.files.len() <= FILES_MAX && self.bytes <= BYTES_MAX {
            return Ok(());
        }
        Err(SubmitError::invalid(
            format!(
                "cannot copy {}: it has more than {FILES_MAX} files or {} GiB",
                self.base.display(),
                BYTES_MAX >> 30
            ),
            "move the run file to a folder that has only its data, and name larger data by addresses or by absolute paths \
             that exist on all hosts",
        ))
    }
}

/// Returns whether a folder has the results of a run or a sweep, or of several.
fn is_output(folder: &Path) -> bool {
    let is_named = |name: &&str| folder.file_name().is_some_and(|found| found == *name);
    OUTPUT_FOLDERS.iter().any(is_named)
        || OUTPUT_FILES.iter().any(|file| folder.join(file).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_copied_and_results_and_hidden_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("run.toml", "");
        write("data/a.csv", "1,2");
        write("runs/x/model.safetensors", "large");
        write("old/events.jsonl", "");
        write("old/model.safetensors", "large");
        write("sweeps/lr/trials/0000/model.safetensors", "large");
        write("search/sweep.json", "{}");
        write("search/trials/0000/model.safetensors", "large");
        write(".git/config", "secret");
        let read = || InputFolder::read(&dir.path().join("run.toml")).unwrap();
        let folder = read();
        assert_eq!(folder.files, ["data/a.csv", "run.toml"].map(PathBuf::from));
        assert_eq!(read().hash, folder.hash);
        folder.check_unchanged().unwrap();
        write("data/a.csv", "1,3");
        assert_ne!(read().hash, folder.hash);
        let changed = folder.check_unchanged().unwrap_err().to_string();
        assert!(
            changed.contains("data/a.csv has changed while"),
            "{changed}"
        );
        let folder = read();
        std::fs::remove_file(dir.path().join("data/a.csv")).unwrap();
        assert!(folder.check_unchanged().is_err());
        std::os::unix::fs::symlink("missing.csv", dir.path().join("data/b.csv")).unwrap();
        let error = InputFolder::read(&dir.path().join("run.toml"))
            .err()
            .unwrap();
        assert!(error.to_string().contains("data/b.csv"), "{error}");
    }
}
