//! [`InputFolder`]: the run file and the files beside it that the run names, as they are copied to other machines.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::SubmitError;
use crate::secrets;
use crate::target::SubmitRequest;

/// The maximum number of files.
const FILES_MAX: usize = 100_000;
/// The maximum size of all files.
const BYTES_MAX: u64 = 16 << 30;
/// The files of a run, relative to the folder of its run file: the run file, and those that it names. None of them looks like a
/// credential or leads out of the folder.
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

/// The facts of the system about a file, which change with its contents.
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
    /// Reads the files of a request; `None` for the embedded example. Costs one read of all files.
    ///
    /// # Errors
    /// A file is missing, looks like a credential or leads out of the folder, or the run file, an override or the address of
    /// the results has a secret inside.
    pub(crate) fn of(request: &SubmitRequest) -> Result<Option<Self>, SubmitError> {
        request.check_secrets()?;
        let Some(run_file) = &request.run_file else {
            return Ok(None);
        };
        Self::read(run_file, request.inputs.find()?).map(Some)
    }

    fn read(run_file: &Path, mut files: Vec<PathBuf>) -> Result<Self, SubmitError> {
        let base = run_file.parent().unwrap_or(Path::new("/")).to_owned();
        let name = run_file.file_name().unwrap_or_default();
        files.push(PathBuf::from(name));
        files.sort();
        files.dedup();
        let mut folder = Self {
            files,
            bytes: 0,
            hash: String::new(),
            run_file: PathBuf::from(name),
            base,
            stamps: Vec::new(),
        };
        folder.check_files()?;
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

    fn check_files(&mut self) -> Result<(), SubmitError> {
        for file in &self.files {
            let path = self.base.join(file);
            secrets::check_inside(&self.base, &path)?;
            let found = std::fs::metadata(&path).map_err(SubmitError::file("read", &path))?;
            if !found.is_file() {
                return Err(SubmitError::invalid(
                    format!("cannot send {}: it is not a file", path.display()),
                    "name files, or folders of files in `job.files`",
                ));
            }
            secrets::check_file(&self.base, file, &secrets::head(&path)?)?;
            self.bytes = self.bytes.saturating_add(found.len());
        }
        self.check_size()
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
            "name larger data by addresses or by absolute paths that exist on all hosts",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_files_are_copied_and_changes_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("run.toml", "");
        write("data/a.csv", "1,2");
        write("kubeconfig", "secret");
        let run_file = dir.path().join("run.toml");
        let read = || InputFolder::read(&run_file, vec![PathBuf::from("data/a.csv")]).unwrap();
        let folder = read();
        assert_eq!(folder.files, ["data/a.csv", "run.toml"].map(PathBuf::from));
        assert_eq!(folder.bytes, 3);
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
    }

    #[test]
    fn credentials_links_out_of_the_folder_and_missing_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        std::fs::create_dir(&folder).unwrap();
        for (name, text) in [
            ("run.toml", ""),
            ("a.csv", "1"),
            ("kubeconfig", "x"),
            (
                "config",
                "apiVersion: v1\nkind: Config\nusers:\n- name: admin\n",
            ),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        std::fs::write(dir.path().join("outside.csv"), "1").unwrap();
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, folder.join(name)).unwrap();
        };
        link("../outside.csv", "out.csv");
        link("a.csv", "in.csv");
        link("missing.csv", "nowhere.csv");
        let read = |file: &str| {
            let read = InputFolder::read(&folder.join("run.toml"), vec![PathBuf::from(file)]);
            read.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(read("in.csv"), Ok(()), "a link within the folder");
        for (file, problem) in [
            ("kubeconfig", "looks like a file with credentials"),
            ("config", "looks like a kubeconfig file"),
            ("out.csv", "leads out of the folder"),
            ("../outside.csv", "leads out of the folder"),
            ("nowhere.csv", "nowhere.csv"),
        ] {
            let refused = read(file).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
