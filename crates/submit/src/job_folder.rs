//! The folder of a job outside of the records of this machine: one job has it at a time, also if several machines share it.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::create_private;

/// The file that names the job that has the folder.
const OWNER_FILE: &str = "owner";

/// Returns what tells a job from jobs of the same name that other machines or users submit. `records` is a folder of the
/// submitting user.
pub(crate) fn owner(records: &Path, name: &str) -> String {
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for part in [
        read("/etc/machine-id"),
        read("/proc/sys/kernel/hostname"),
        records.as_os_str().as_encoded_bytes().to_vec(),
        name.as_bytes().to_vec(),
    ] {
        hasher.update(&part);
        hasher.update(&[0]);
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Creates the folder of a job. One that was created for the same job, whose submitter was killed before anything started, is
/// used again.
///
/// # Errors
/// Another job has the folder, or it cannot be created.
pub(crate) fn claim(paths: &JobPaths, records: &Path, name: &str) -> Result<(), SubmitError> {
    let folder = paths.folder();
    if is_record(folder, records) {
        return create_private(folder);
    }
    if let Some(parent) = folder.parent() {
        create_private(parent).map_err(of_target)?;
    }
    let mark = owner(records, name);
    let file = folder.join(OWNER_FILE);
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => std::fs::write(&file, mark).map_err(SubmitError::file("write", &file)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            match is_owned(folder, &mark) && !paths.process(0).was_started() {
                true => Ok(()),
                false => Err(SubmitError::invalid(
                    format!(
                        "there is a folder {} of another job `{name}` already, which may be running",
                        folder.display()
                    ),
                    "choose another name with `--name`",
                )),
            }
        }
        Err(error) => Err(of_target(SubmitError::file("create", folder)(error))),
    }
}

/// Returns the error of a folder that the user has chosen. A full disk is not a mistake of the user.
fn of_target(error: SubmitError) -> SubmitError {
    match &error {
        SubmitError::File { cause, .. }
            if !matches!(
                cause.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded
            ) =>
        {
            SubmitError::invalid(
                format!("cannot use `folder` of the target: {error}"),
                "choose another `folder`, in which you may create folders",
            )
        }
        _ => error,
    }
}

/// Removes the folder of a job that is over, unless it is that of its record, which is removed later.
///
/// # Errors
/// The folder cannot be removed.
pub(crate) fn remove(paths: &JobPaths, records: &Path, name: &str) -> Result<(), SubmitError> {
    let folder = paths.folder();
    if is_record(folder, records) || !is_owned(folder, &owner(records, name)) {
        return Ok(());
    }
    std::fs::remove_dir_all(folder).map_err(SubmitError::file("remove", folder))
}

fn is_record(folder: &Path, records: &Path) -> bool {
    folder.parent() == Some(records)
}

fn is_owned(folder: &Path, mark: &str) -> bool {
    std::fs::read_to_string(folder.join(OWNER_FILE)).is_ok_and(|text| text == mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_created_is_named_as_that_of_the_target() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        for folder in [Path::new("/proc/jobs"), &dir.path().join("file/jobs")] {
            let paths = JobPaths::new(folder.join("a"));
            let problem = claim(&paths, dir.path(), "a").unwrap_err().to_string();
            let expected = format!(
                "cannot use `folder` of the target: cannot create {}: ",
                folder.display()
            );
            assert!(problem.starts_with(&expected), "{problem}");
            assert!(
                problem.contains("help: choose another `folder`"),
                "{problem}"
            );
        }
        let full = SubmitError::file("create", dir.path())(ErrorKind::StorageFull.into());
        assert!(matches!(of_target(full), SubmitError::File { .. }));
    }

    #[test]
    fn a_folder_that_machines_share_belongs_to_one_job() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, other) = (dir.path().join("mine"), dir.path().join("other"));
        let paths = JobPaths::new(dir.path().join("shared/a"));
        claim(&paths, &mine, "a").unwrap();
        claim(&paths, &mine, "a").unwrap();
        let problem = claim(&paths, &other, "a").unwrap_err().to_string();
        assert!(problem.contains("of another job `a` already"), "{problem}");
        assert!(!problem.contains("remove"), "{problem}");
        remove(&paths, &other, "a").unwrap();
        assert!(paths.folder().exists());
        std::fs::create_dir(paths.folder().join("launcher")).unwrap();
        std::fs::write(paths.folder().join("launcher/process.json"), "{}").unwrap();
        assert!(claim(&paths, &mine, "a").is_err(), "it has results");
        remove(&paths, &mine, "a").unwrap();
        assert!(!paths.folder().exists());
        let record = JobPaths::new(mine.join("b"));
        claim(&record, &mine, "b").unwrap();
        remove(&record, &mine, "b").unwrap();
        assert!(record.folder().exists());
    }
}
