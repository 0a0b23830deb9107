//! Copies the results of a job to a folder of the user.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use crate::error::SubmitError;
use crate::job_paths::{JOB_FOLDER, JobPaths};
use crate::ray::text_archive::TextArchiveWriter;

/// The name of the launcher's output among the fetched logs.
pub(crate) const LAUNCHER_LOG: &str = "launcher.log";
/// The folder of the checkpoints among the results of a run.
pub(crate) const CHECKPOINT_FOLDER: &str = "checkpoints";
/// The largest depth of folders that is copied.
const DEPTH_MAX: u32 = 32;

/// Copies results and logs whose files are on this machine. The folder with the job's secrets is left out.
pub(crate) fn copy_results(paths: &JobPaths, to: &Path) -> Result<(), SubmitError> {
    let results = paths.results();
    create(to)?;
    if results.is_dir() {
        copy_folder(&results, to, &|name| name == JOB_FOLDER, DEPTH_MAX)?;
    }
    let log = paths.process(0).output();
    if log.is_file() {
        let logs = to.join("logs");
        create(&logs)?;
        copy_file(&log, &logs.join(LAUNCHER_LOG))?;
    }
    Ok(())
}

/// Writes the results in a folder as an archive, without the job's secrets. A file that grows or shrinks meanwhile has the
/// size that it had when its entry began.
///
/// # Errors
/// The folder cannot be read, or `out` cannot be written.
pub fn send_results(results: &Path, out: &mut dyn Write) -> Result<(), SubmitError> {
    let mut archive = tar::Builder::new(out);
    if results.is_dir() {
        send_folder(&mut archive, results, Path::new(""), DEPTH_MAX)?;
    }
    let finished = archive.into_inner().and_then(|out| out.flush());
    finished.map_err(SubmitError::file("write", Path::new("the standard output")))
}

/// Writes the archive of [`send_results`] as lines of text, for targets whose output is text in which others write too.
///
/// # Errors
/// As [`send_results`].
pub fn send_results_as_text(results: &Path, out: &mut dyn Write) -> Result<(), SubmitError> {
    let mut lines = TextArchiveWriter::new(out);
    send_results(results, &mut lines)?;
    let finished = lines.finish();
    finished.map_err(SubmitError::file("write", Path::new("the standard output")))
}

fn send_folder(
    archive: &mut tar::Builder<&mut dyn Write>,
    base: &Path,
    below: &Path,
    depth: u32,
) -> Result<(), SubmitError> {
    let folder = base.join(below);
    let entries = std::fs::read_dir(&folder).map_err(SubmitError::file("read", &folder))?;
    for entry in entries {
        let entry = entry.map_err(SubmitError::file("read", &folder))?;
        let (name, path) = (below.join(entry.file_name()), entry.path());
        let kind = entry.file_type();
        let kind = kind.map_err(SubmitError::file("read", &path))?;
        if name == Path::new(JOB_FOLDER) {
            continue;
        }
        if kind.is_dir() && depth > 0 {
            send_folder(archive, base, &name, depth - 1)?;
        } else if kind.is_file() {
            // A run that is under way replaces and removes files.
            let Ok(file) = File::open(&path) else {
                continue;
            };
            let sent = append(archive, &name, file);
            sent.map_err(SubmitError::file("read", &path))?;
        }
    }
    Ok(())
}

/// Appends a file with the length that it has now: files of a run that is under way grow.
fn append(
    archive: &mut tar::Builder<&mut dyn Write>,
    name: &Path,
    file: File,
) -> std::io::Result<()> {
    let metadata = file.metadata()?;
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&metadata);
    let contents = FileStart {
        file,
        left: metadata.len(),
    };
    archive.append_data(&mut header, name, contents)
}

/// The first bytes of a file. Reading fails if the file has fewer.
struct FileStart {
    file: File,
    left: u64,
}

impl Read for FileStart {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = (&self.file).take(self.left).read(buffer)?;
        self.left -= read as u64;
        match read == 0 && self.left > 0 && !buffer.is_empty() {
            true => Err(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                "it became shorter while it was read; run the command again",
            )),
            false => Ok(read),
        }
    }
}

/// Writes the files of an archive below a folder. Only ordinary files inside of it are written.
pub(crate) fn unpack(mut archive: File, to: &Path) -> Result<(), SubmitError> {
    let name = Path::new("the archive of the results");
    let read = |error| SubmitError::file("read", name)(error);
    if !is_complete(&mut archive).map_err(read)? {
        let problem = "its end is missing; run the command again";
        return Err(SubmitError::damaged(name, problem));
    }
    archive.rewind().map_err(read)?;
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().map_err(read)? {
        let mut entry = entry.map_err(read)?;
        let name = entry.path().map_err(read)?.into_owned();
        let is_inside = name
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !is_inside || !entry.header().entry_type().is_file() {
            continue;
        }
        let path = to.join(&name);
        if let Some(folder) = path.parent() {
            create(folder)?;
        }
        let mut file = File::create(&path).map_err(SubmitError::file("write", &path))?;
        std::io::copy(&mut entry, &mut file).map_err(SubmitError::file("write", &path))?;
    }
    Ok(())
}

/// Returns whether an archive has its end, two blocks of zeros: a connection that was cut off may have ended without an error.
fn is_complete(archive: &mut File) -> std::io::Result<bool> {
    let mut end = [1; 1024];
    let len = archive.seek(SeekFrom::End(0))?;
    let Some(start) = len.checked_sub(end.len() as u64) else {
        return Ok(false);
    };
    archive.seek(SeekFrom::Start(start))?;
    archive.read_exact(&mut end)?;
    Ok(end.iter().all(|byte| *byte == 0))
}

/// Copies the checkpoints among the results of an earlier run to the results of a run that continues it.
pub(crate) fn copy_checkpoints(from: &Path, to: &Path) -> Result<(), SubmitError> {
    let (from, to) = (from.join(CHECKPOINT_FOLDER), to.join(CHECKPOINT_FOLDER));
    copy_folder(&from, &to, &|_| false, DEPTH_MAX)
}

/// Returns the files of the checkpoints among results, relative to their folder.
pub(crate) fn checkpoint_files(results: &Path) -> Result<Vec<PathBuf>, SubmitError> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(CHECKPOINT_FOLDER)];
    while let Some(below) = folders.pop() {
        let folder = results.join(&below);
        for entry in std::fs::read_dir(&folder).map_err(SubmitError::file("read", &folder))? {
            let entry = entry.map_err(SubmitError::file("read", &folder))?;
            let name = below.join(entry.file_name());
            let kind = entry.file_type();
            let kind = kind.map_err(SubmitError::file("read", &folder))?;
            if kind.is_dir() {
                folders.push(name);
            } else if kind.is_file() {
                files.push(name);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Copies the files of a folder. A file that is removed meanwhile is left out.
pub(crate) fn copy_folder(
    from: &Path,
    to: &Path,
    is_left_out: &dyn Fn(&std::ffi::OsStr) -> bool,
    depth: u32,
) -> Result<(), SubmitError> {
    create(to)?;
    let entries = std::fs::read_dir(from).map_err(SubmitError::file("read", from))?;
    for entry in entries {
        let entry = entry.map_err(SubmitError::file("read", from))?;
        let (name, path) = (entry.file_name(), entry.path());
        let kind = entry
            .file_type()
            .map_err(SubmitError::file("read", &path))?;
        if is_left_out(&name) {
            continue;
        }
        if kind.is_dir() && depth > 0 {
            copy_folder(&path, &to.join(&name), &|_| false, depth - 1)?;
        } else if kind.is_file() {
            copy_file(&path, &to.join(&name))?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), SubmitError> {
    match std::fs::copy(from, to) {
        // A run that is under way replaces and removes files.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !from.exists() => Ok(()),
        copied => copied.map(|_| ()).map_err(SubmitError::file("write", to)),
    }
}

pub(crate) fn create(folder: &Path) -> Result<(), SubmitError> {
    std::fs::create_dir_all(folder).map_err(SubmitError::file("create", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive during whose writing a file of the results grows.
    struct WithRun<'a> {
        archive: &'a File,
        events: &'a File,
    }

    impl Write for WithRun<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            (&mut &*self.events).write_all(b"{\"event\":\"step_committed\"}\n")?;
            self.archive.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_that_grows_is_sent_with_the_length_that_it_had() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("results"), dir.path().join("copy"));
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("a"), "before it in the archive").unwrap();
        let events = File::create(from.join("events.jsonl")).unwrap();
        (&events).write_all(&[b'x'; 1000]).unwrap();
        let archive = tempfile::tempfile().unwrap();
        let mut out = WithRun {
            archive: &archive,
            events: &events,
        };
        send_results(&from, &mut out).unwrap();
        unpack(archive, &to).unwrap();
        let a = std::fs::read_to_string(to.join("a")).unwrap();
        assert_eq!(a, "before it in the archive");
        let fetched = std::fs::read(to.join("events.jsonl")).unwrap();
        let whole = std::fs::read(from.join("events.jsonl")).unwrap();
        assert!(fetched.len() >= 1000 && whole.len() > fetched.len());
        assert!(whole.starts_with(&fetched));
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"12").unwrap();
        file.rewind().unwrap();
        let mut contents = FileStart { file, left: 3 };
        let mut read = Vec::new();
        let error = contents.read_to_end(&mut read).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn results_are_sent_as_an_archive_without_secrets_and_unpacked_inside_of_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("results");
        std::fs::create_dir_all(from.join("checkpoints/a")).unwrap();
        std::fs::create_dir_all(from.join("job")).unwrap();
        std::fs::write(from.join("model.json"), "{}").unwrap();
        std::fs::write(from.join("checkpoints/a/part"), "bytes").unwrap();
        std::fs::write(from.join("job/token"), "secret").unwrap();
        let mut archive = tempfile::tempfile().unwrap();
        send_results(&from, &mut archive).unwrap();
        let to = dir.path().join("copy");
        let whole = archive.metadata().unwrap().len();
        for len in [0, 512, whole - 1024] {
            let mut part = tempfile::tempfile().unwrap();
            archive.rewind().unwrap();
            std::io::copy(&mut (&archive).take(len), &mut part).unwrap();
            let cut = unpack(part, &to).unwrap_err().to_string();
            assert!(cut.contains("its end is missing"), "{len}: {cut}");
        }
        unpack(archive, &to).unwrap();
        assert_eq!(
            std::fs::read_to_string(to.join("model.json")).unwrap(),
            "{}"
        );
        assert_eq!(
            std::fs::read_to_string(to.join("checkpoints/a/part")).unwrap(),
            "bytes"
        );
        assert!(!to.join("job").exists());
        // An entry that leads outside is left out.
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.as_gnu_mut().unwrap().name[..9].copy_from_slice(b"../escape");
        header.set_cksum();
        let mut hostile = tar::Builder::new(tempfile::tempfile().unwrap());
        hostile.append(&header, &b"x"[..]).unwrap();
        unpack(hostile.into_inner().unwrap(), &to).unwrap();
        assert!(!dir.path().join("escape").exists());
    }
}
