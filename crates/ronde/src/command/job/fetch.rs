//! `ronde fetch`: copies the results and logs of a submitted job.

use std::path::{Path, PathBuf};

use clap::Args;
use ronde::created_folders::CreatedFolders;
use ronde_submit::SubmitError;

use crate::command::console::info;
use crate::command::exit;
use crate::command::job::stored_results;
use crate::command::job::submitted::SubmittedJobs;
use crate::command::run::run_folder::RUNS;

/// Name of the file in a folder of fetched results that names their job.
const MARKER_FILE: &str = ".ronde-job";

/// Arguments of `ronde fetch`.
#[derive(Args)]
pub(crate) struct FetchArguments {
    /// Name of the job, or the address of its results.
    job: String,
    /// Folder for the results; an earlier copy of the same job is updated [default: runs/JOB].
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

pub(crate) fn fetch(arguments: &FetchArguments) -> i32 {
    let job = &arguments.job;
    let is_address = stored_results::is_address(job);
    let name = match is_address {
        true => job
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or_default(),
        false => job.as_str(),
    };
    let default = || Path::new(RUNS).join(name);
    let to = arguments.to.clone().unwrap_or_else(default);
    let copied = match is_address {
        true => claim(&to, job)
            .and_then(|claimed| claimed.keep_if(stored_results::copy(job, &to).map(|_| ()))),
        false => copy(job, &to),
    };
    match copied {
        Ok(()) => {
            info!("results of job {job} in {}", to.display());
            exit::DONE
        }
        Err(error) => crate::command::failure::submit_failure(&error),
    }
}

/// Removes a copy of the results of an earlier job of this name, also an incomplete one. Other folders stay.
pub(crate) fn remove_copy(name: &str, to: &Path) -> Result<(), SubmitError> {
    let mark = std::fs::read_to_string(to.join(MARKER_FILE)).unwrap_or_default();
    if mark.split(' ').next() != Some(name) {
        return Ok(());
    }
    std::fs::remove_dir_all(to).map_err(|cause| SubmitError::File {
        action: "remove",
        path: to.to_owned(),
        cause,
    })
}

/// Copies the results of a job to a folder that is empty or has an earlier copy.
pub(crate) fn copy(name: &str, to: &Path) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let (job, target) = jobs.find(name)?;
    let claimed = claim(to, &format!("{name} {}", job.submitted_ms))?;
    claimed.keep_if(match &job.output {
        Some(address) => stored_results::copy(address, to).map(|_| ()),
        None => target.fetch(&job, to),
    })
}

/// Creates the folder for the results of a job that is about to start. The error's help is `help`.
pub(crate) fn reserve(to: &Path, help: &str) -> Result<CreatedFolders, SubmitError> {
    if !is_empty(to) {
        return Err(SubmitError::Invalid {
            problem: format!("cannot write {}: it is not empty", to.display()),
            help: help.to_owned(),
        });
    }
    CreatedFolders::create(to).map_err(|cause| SubmitError::File {
        action: "create",
        path: to.to_owned(),
        cause,
    })
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

/// The folder of a copy that has a mark and nothing else, or an earlier copy.
struct ClaimedCopy {
    marker: PathBuf,
    created: CreatedFolders,
}

impl ClaimedCopy {
    /// Removes the mark and the new folders if nothing was copied. Returns the result of copying.
    fn keep_if(self, copied: Result<(), SubmitError>) -> Result<(), SubmitError> {
        let folder = self.marker.parent();
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let has_mark_only = entries.is_some_and(|entries| entries.count() == 1);
        if copied.is_err() && has_mark_only {
            let _ = std::fs::remove_file(&self.marker);
            self.created.remove_empty();
        }
        copied
    }
}

/// Creates a folder for a copy with this mark; it is empty or has an earlier copy.
fn claim(to: &Path, mark: &str) -> Result<ClaimedCopy, SubmitError> {
    let marker = to.join(MARKER_FILE);
    let is_copy = std::fs::read_to_string(&marker).is_ok_and(|text| text == mark);
    if !is_empty(to) && !is_copy {
        return Err(SubmitError::Invalid {
            problem: format!("cannot write {}: it is not empty", to.display()),
            help: "choose another folder with `--to`".to_owned(),
        });
    }
    let failed = |cause| SubmitError::File {
        action: "write",
        path: marker.clone(),
        cause,
    };
    let created = CreatedFolders::create(to).map_err(failed)?;
    std::fs::write(&marker, mark).map_err(failed)?;
    Ok(ClaimedCopy { marker, created })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_copy_of_a_job_of_the_same_name_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("copy");
        claim(&to, "lr-0000 17").unwrap();
        assert!(claim(&to, "lr-0000 18").is_err(), "of another job");
        remove_copy("lr-0001", &to).unwrap();
        remove_copy("lr", &to).unwrap();
        assert!(to.exists());
        remove_copy("lr-0000", &to).unwrap();
        assert!(!to.exists());
        claim(&to, "lr-0000 18").unwrap();
        remove_copy("lr-0000", dir.path()).unwrap();
        assert!(to.exists(), "a folder without a mark stays");
    }
}
