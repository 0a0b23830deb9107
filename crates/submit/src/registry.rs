//! [`JobRegistry`]: the folder with the records of all jobs of the submitting machine.
//!
//! The folder of a job is created with its contents by one rename, which makes names unique.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ronde_core::FormatHeader;

use crate::copying::publish_json;
use crate::error::SubmitError;
use crate::job::{FORMAT, JobPlacement, SubmittedJob};
use crate::names;
use crate::process_folder::{create_private, read_json, remove_if_exists};
use crate::process_identity::ProcessIdentity;
use crate::state::JobState;
use crate::target_file::TargetSettings;

const RECORD_FILE: &str = "job.json";
/// The same record again: without it, no command could end the processes of a job with a damaged record.
const COPY_FILE: &str = "job.copy.json";
/// Exists once the job was cancelled.
const CANCELLED_FILE: &str = "cancelled.json";
/// The final state of a job, so that no further request to its target is needed.
const ENDED_FILE: &str = "ended.json";
/// The maximum number of jobs whose names begin alike.
const NUMBERED_MAX: u32 = 10_000;

/// The folder of all records: a folder for each job, with its name.
#[derive(Debug, Clone)]
pub struct JobRegistry {
    path: PathBuf,
}

/// A name in the registry, with its record or the reason that it cannot be read.
pub type JobListing = (String, Result<SubmittedJob, SubmitError>);

impl JobRegistry {
    /// Names the folder, which need not exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the folder of a job's record.
    #[must_use]
    pub fn folder(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates the record of a new job. Without a name, the job gets that of its run, with a number if it is in use. Two
    /// processes never create the same job.
    ///
    /// # Errors
    /// The name is not valid or in use, or the record cannot be written.
    pub fn create(
        &self,
        name: Option<&str>,
        run: &str,
        describe: impl Fn(String) -> Result<NewJob, SubmitError>,
    ) -> Result<SubmittedJob, SubmitError> {
        create_private(&self.path)?;
        if let Some(name) = name {
            names::check("job", name)?;
            return self
                .claim(describe(name.to_owned())?, None)?
                .ok_or_else(|| in_use(name));
        }
        let run = names::cleaned(run);
        for number in 1..=NUMBERED_MAX {
            let name = match number {
                1 => run.clone(),
                number => format!("{run}-{number}"),
            };
            if !self.folder(&name).exists()
                && let Some(job) = self.claim(describe(name)?, None)?
            {
                return Ok(job);
            }
        }
        Err(SubmitError::invalid(
            format!("there are {NUMBERED_MAX} jobs `{run}` already"),
            "choose another name with `--name`",
        ))
    }

    /// Creates the record of a run of a sweep with this identity, with the name in its description.
    ///
    /// # Errors
    /// The name is not valid or in use, or the record cannot be written.
    pub fn create_in_sweep(
        &self,
        sweep: Option<&str>,
        new: NewJob,
    ) -> Result<SubmittedJob, SubmitError> {
        create_private(&self.path)?;
        names::check("job", &new.name)?;
        let name = new.name.clone();
        self.claim(new, sweep)?.ok_or_else(|| in_use(&name))
    }

    /// Creates the folder of a job with its record in one step, or returns `None` if the name is in use.
    fn claim(&self, new: NewJob, sweep: Option<&str>) -> Result<Option<SubmittedJob>, SubmitError> {
        let folder = self.folder(&new.name);
        let job = SubmittedJob {
            header: FormatHeader::of(FORMAT),
            submitter: ProcessIdentity::of_this_process()
                .map_err(SubmitError::file("read", Path::new("/proc/self/stat")))?,
            submitted_ms: ronde_clock::unix_ms(),
            name: new.name,
            target: new.target,
            settings: new.settings,
            run_file: new.run_file,
            workers: new.workers,
            output: new.output,
            sweep: sweep.map(str::to_owned),
            placement: None,
        };
        let prepared = tempfile::Builder::new()
            .prefix(".new-")
            .tempdir_in(&self.path)
            .map_err(SubmitError::file("create", &self.path))?;
        publish_record(prepared.path(), &job)?;
        // A folder replaces an empty one only, and the folder of a job never is.
        match std::fs::rename(prepared.path(), &folder) {
            Ok(()) => {
                // The folder is not temporary any more.
                let _ = prepared.keep();
                Ok(Some(job))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::DirectoryNotEmpty
                        | ErrorKind::AlreadyExists
                        | ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(SubmitError::file("create", &folder)(error)),
        }
    }

    /// Writes where a job was placed.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn place(
        &self,
        job: &mut SubmittedJob,
        placement: JobPlacement,
    ) -> Result<(), SubmitError> {
        job.placement = Some(placement);
        publish_record(&self.folder(&job.name), job)
    }

    /// Finds a job by its name.
    ///
    /// # Errors
    /// No job has this name, or its record is damaged.
    pub fn find(&self, name: &str) -> Result<SubmittedJob, SubmitError> {
        names::check("job", name)?;
        self.read(name)?.ok_or_else(|| {
            SubmitError::invalid(format!("there is no job `{name}`"), self.suggestion(name))
        })
    }

    /// Returns the help for the name of a job that does not exist: similar names, and the command with all names.
    #[must_use]
    pub fn suggestion(&self, name: &str) -> String {
        let entries = std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let similar = names::similar(name, names.filter(|name| self.has(name)));
        let listed = "`ronde jobs` lists the jobs of this machine";
        match similar.as_slice() {
            [] => listed.to_owned(),
            similar => format!("is it `{}`? {listed}", similar.join("`, `")),
        }
    }

    /// Returns whether there is a job of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        names::check("job", name).is_ok() && self.folder(name).join(RECORD_FILE).is_file()
    }

    fn read(&self, name: &str) -> Result<Option<SubmittedJob>, SubmitError> {
        let path = self.folder(name).join(RECORD_FILE);
        match read_record(&path) {
            Err(SubmitError::Damaged { path, problem }) => {
                let copy = read_record(&self.folder(name).join(COPY_FILE));
                if let Ok(Some(job)) = copy {
                    return Ok(Some(job));
                }
                let help = format!(
                    "`ronde jobs --remove {name} --force` removes the record; end processes of the job on its target first"
                );
                Err(SubmitError::damaged(
                    &path,
                    format!("{problem}\n  help: {help}"),
                ))
            }
            read => read,
        }
    }

    /// Returns all jobs, the newest last.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> Result<Vec<JobListing>, SubmitError> {
        let entries = match std::fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(SubmitError::file("read", &self.path))?,
        };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| names::check("job", name).is_ok());
        let mut jobs: Vec<JobListing> = names
            .filter_map(|name| {
                let job = self.read(&name).transpose()?;
                Some((name, job))
            })
            .collect();
        let key = |(name, job): &JobListing| {
            let since = job.as_ref().map_or(0, |job| job.submitted_ms);
            (since, name.clone())
        };
        jobs.sort_by_key(key);
        Ok(jobs)
    }

    /// Notes that a job was cancelled.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn mark_cancelled(&self, name: &str) -> Result<(), SubmitError> {
        publish_json(
            &self.folder(name).join(CANCELLED_FILE),
            &ronde_clock::unix_ms(),
        )
    }

    /// Removes the note that a job was cancelled: its target has not ended it.
    ///
    /// # Errors
    /// The note cannot be removed.
    pub fn unmark_cancelled(&self, name: &str) -> Result<(), SubmitError> {
        remove_if_exists(&self.folder(name).join(CANCELLED_FILE))
    }

    /// Returns whether a job was cancelled.
    #[must_use]
    pub fn is_cancelled(&self, name: &str) -> bool {
        self.folder(name).join(CANCELLED_FILE).exists()
    }

    /// Returns the final state of a job, if it is known.
    #[must_use]
    pub fn ended(&self, name: &str) -> Option<JobState> {
        read_json(&self.folder(name).join(ENDED_FILE))
            .ok()
            .flatten()
    }

    /// Keeps the state that a target has reported, if it is final. `was_cancelled` is whether the job was cancelled when
    /// the target was queried. Returns `false` if that has changed since: query the target again.
    ///
    /// A state that cannot be written is requested from the target again.
    #[must_use]
    pub fn keep_end(&self, name: &str, state: &JobState, was_cancelled: bool) -> bool {
        if !state.is_over() {
            return true;
        }
        if self.is_cancelled(name) != was_cancelled {
            return false;
        }
        if *state != JobState::Lost {
            let _ = publish_json(&self.folder(name).join(ENDED_FILE), state);
        }
        true
    }

    /// Removes the record of a job, and everything in its folder.
    ///
    /// # Errors
    /// The folder cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), SubmitError> {
        let folder = self.folder(name);
        // In one step, so that no command that writes to the folder at the same time leaves a part of it.
        let removed = self
            .path
            .join(format!(".removed-{name}-{}", std::process::id()));
        let renamed = std::fs::rename(&folder, &removed);
        let gone = match renamed {
            Ok(()) => removed,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // A disk that is mounted there cannot be renamed.
            Err(_) => folder,
        };
        std::fs::remove_dir_all(&gone).map_err(SubmitError::file("remove", &gone))
    }
}

/// Writes the record of a job and its copy to its folder.
fn publish_record(folder: &Path, job: &SubmittedJob) -> Result<(), SubmitError> {
    publish_json(&folder.join(COPY_FILE), job)?;
    publish_json(&folder.join(RECORD_FILE), job)
}

/// Reads a record; `None` if there is none.
fn read_record(path: &Path) -> Result<Option<SubmittedJob>, SubmitError> {
    let job: Option<SubmittedJob> = read_json(path)?;
    if let Some(job) = &job {
        let checked = job.header.check(FORMAT);
        checked.map_err(|problem| SubmitError::damaged(path, problem.to_string()))?;
    }
    Ok(job)
}

/// Returns the error for a name that another job has.
fn in_use(name: &str) -> SubmitError {
    SubmitError::invalid(
        format!("there is a job `{name}` already"),
        format!(
            "choose another name with `--name`, or remove that job with `ronde jobs --remove {name}`; if it runs, \
             `ronde cancel {name}` ends it first"
        ),
    )
}

/// The description of a job before it is placed.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Its name.
    pub name: String,
    /// The name of its target.
    pub target: String,
    /// The target.
    pub settings: TargetSettings,
    /// The run file as it was named.
    pub run_file: Option<PathBuf>,
    /// The number of workers.
    pub workers: u32,
    /// The address to which its results are sent; `None`: they stay in its folder.
    pub output: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::LocalSettings;

    fn new_job(name: String) -> Result<NewJob, SubmitError> {
        Ok(NewJob {
            name,
            target: "local".to_owned(),
            settings: TargetSettings::Local(LocalSettings::default()),
            run_file: None,
            workers: 2,
            output: None,
        })
    }

    fn registry() -> (tempfile::TempDir, JobRegistry) {
        let dir = tempfile::tempdir().unwrap();
        let registry = JobRegistry::new(dir.path().join("jobs"));
        assert!(registry.list().unwrap().is_empty());
        (dir, registry)
    }

    #[test]
    fn a_job_that_was_not_ended_is_not_cancelled() {
        let (_dir, registry) = registry();
        registry.create(Some("x"), "x", new_job).unwrap();
        registry.unmark_cancelled("x").unwrap();
        registry.mark_cancelled("x").unwrap();
        assert!(registry.is_cancelled("x"));
        registry.unmark_cancelled("x").unwrap();
        assert!(!registry.is_cancelled("x"));
    }

    #[test]
    fn an_answer_from_before_a_cancellation_is_not_kept() {
        let (_dir, registry) = registry();
        registry.create(Some("x"), "x", new_job).unwrap();
        registry.mark_cancelled("x").unwrap();
        assert!(!registry.keep_end("x", &JobState::failed(143), false));
        assert_eq!(registry.ended("x"), None);
        let running = JobState::Running { problem: None };
        assert!(registry.keep_end("x", &running, false));
        assert!(registry.keep_end("x", &JobState::Cancelled, true));
        assert_eq!(registry.ended("x"), Some(JobState::Cancelled));
    }

    #[test]
    fn a_damaged_record_is_replaced_by_its_copy() {
        let (_dir, registry) = registry();
        let mut job = registry.create(Some("one"), "x", new_job).unwrap();
        let folder = registry.folder("one");
        let placement = JobPlacement::Local {
            folder: folder.clone(),
        };
        registry.place(&mut job, placement).unwrap();
        std::fs::write(folder.join(RECORD_FILE), "{").unwrap();
        assert_eq!(registry.find("one").unwrap(), job);
        std::fs::write(folder.join(COPY_FILE), "").unwrap();
        let damaged = registry.find("one").unwrap_err().to_string();
        assert!(damaged.contains("--remove one --force"), "{damaged}");
        assert!(registry.has("one"));
    }

    #[test]
    fn names_are_unique_also_for_jobs_that_are_submitted_together() {
        let (_dir, registry) = registry();
        let create = || registry.create(None, "digits", new_job).unwrap().name;
        let mut names: Vec<String> = std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
            jobs.into_iter().map(|job| job.join().unwrap()).collect()
        });
        names.sort();
        let expected: Vec<String> = (1..=8)
            .map(|number| match number {
                1 => "digits".to_owned(),
                number => format!("digits-{number}"),
            })
            .collect();
        assert_eq!(names, expected);
        let again = registry.create(Some("digits"), "x", new_job).unwrap_err();
        assert!(
            again.to_string().contains("a job `digits` already"),
            "{again}"
        );
        assert!(again.to_string().contains("`ronde cancel digits`"));
        assert_eq!(
            registry.list().unwrap().len(),
            8,
            "no unfinished folder is listed"
        );
    }

    #[test]
    fn a_run_of_a_sweep_keeps_the_identity_of_its_sweep() {
        let (_dir, registry) = registry();
        let new = |name: &str| new_job(name.to_owned()).unwrap();
        let run = registry.create_in_sweep(Some("one"), new("lr-0000"));
        assert_eq!(run.unwrap().sweep.as_deref(), Some("one"));
        let found = registry.find("lr-0000").unwrap();
        assert_eq!(found.sweep.as_deref(), Some("one"));
        let taken = registry.create_in_sweep(Some("two"), new("lr-0000"));
        let taken = taken.unwrap_err().to_string();
        assert!(taken.contains("a job `lr-0000` already"), "{taken}");
        let other = registry.create(Some("plain"), "x", new_job).unwrap();
        assert_eq!(other.sweep, None);
    }

    #[test]
    fn a_damaged_record_is_listed_with_its_problem_and_a_removed_folder_is_not() {
        let (_dir, registry) = registry();
        for name in ["a", "b"] {
            registry.create(Some(name), "x", new_job).unwrap();
        }
        for file in [RECORD_FILE, COPY_FILE] {
            std::fs::write(registry.folder("a").join(file), "{}").unwrap();
        }
        std::fs::remove_dir_all(registry.folder("b")).unwrap();
        let jobs = registry.list().unwrap();
        assert_eq!(jobs.len(), 1);
        assert!(
            jobs[0]
                .1
                .as_ref()
                .unwrap_err()
                .to_string()
                .contains("job.json")
        );
        let gone = registry.find("b").unwrap_err().to_string();
        assert!(gone.contains("there is no job `b`"), "{gone}");
        let similar = registry.find("aa").unwrap_err().to_string();
        assert!(
            similar.contains("is it `a`? `ronde jobs` lists"),
            "{similar}"
        );
        assert!(registry.find("../x").is_err());
    }
}
