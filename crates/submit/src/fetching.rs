//! Copies the results of a job to a folder of the user.

use std::path::Path;

use crate::error::SubmitError;
use crate::job_paths::{JOB_FOLDER, JobPaths};

/// The name of the launcher's output among the fetched logs.
pub(crate) const LAUNCHER_LOG: &str = "launcher.log";
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

fn copy_folder(
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
