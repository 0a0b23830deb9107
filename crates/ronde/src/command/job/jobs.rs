//! `ronde jobs`: lists the submitted jobs.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use ronde_report::TextTable;
use ronde_submit::{JobListing, JobState, SubmitError, SubmittedJob, Target, TargetSettings};
use ronde_tracking::render;
use serde_json::json;

use crate::command::console::{Printable, info};
use crate::command::exit;
use crate::command::job::cancel;
use crate::command::job::hang_up;
use crate::command::job::submitted;
use crate::command::job::submitted::SubmittedJobs;

/// Interval between two looks at the jobs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the answers of targets are waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Arguments of `ronde jobs`.
#[derive(Args)]
pub(crate) struct JobsArguments {
    /// Print a line of JSON for each job.
    #[arg(long)]
    json: bool,
    /// Print the list again when it changes, until all jobs are over.
    #[arg(long, conflicts_with = "remove")]
    watch: bool,
    /// Remove a job that is over: its record, its results and its logs on this machine.
    #[arg(long, value_name = "JOB")]
    remove: Option<String>,
    /// Remove the record also when a host of the job cannot be reached.
    #[arg(long, requires = "remove")]
    force: bool,
}

/// One row of the list.
struct JobRow {
    name: String,
    target: String,
    state: String,
    workers: String,
    age: String,
}

pub(crate) fn jobs(arguments: &JobsArguments) -> i32 {
    let result = match &arguments.remove {
        Some(name) => remove(name, arguments.force),
        None if arguments.watch => watch(arguments.json),
        None => list(arguments.json),
    };
    match result {
        Ok(()) => exit::DONE,
        Err(error) => crate::command::failure::submit_failure(&error),
    }
}

fn remove(name: &str, is_forced: bool) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let found = match jobs.find(name) {
        // Nothing is known about the processes of a job with a damaged record.
        Err(error) if is_forced && jobs.registry.has(name) => {
            info!("warning: something of job {name} may be left: {error}");
            None
        }
        found => Some(found?),
    };
    if let Some((job, target)) = found {
        let state = match jobs.state(&job, &*target) {
            Err(_) if is_forced => JobState::Lost,
            state => state?,
        };
        if !state.is_over() {
            return Err(SubmitError::Invalid {
                problem: format!("cannot remove job `{name}`: it is {state}"),
                help: format!("`ronde cancel {name}` ends it"),
            });
        }
        // A launcher that was killed may have left its coordinator.
        let ended = match state {
            JobState::Lost => target.cancel(&job, Duration::ZERO, cancel::report),
            _ => Ok(()),
        };
        let removed = ended
            .and_then(|()| target.remove(&job))
            .and_then(|()| target.remove_unused(&job));
        match removed {
            Err(error) if is_forced => {
                info!("warning: something of job {name} may be left: {error}")
            }
            removed => removed?,
        }
    }
    jobs.registry.remove(name)?;
    info!("removed job {name}");
    Ok(())
}

fn list(is_json: bool) -> Result<(), SubmitError> {
    let jobs = SubmittedJobs::open()?;
    let listed = listed(&jobs)?;
    let states = states(&jobs, &listed);
    print(&listed, &states, is_json);
    Ok(())
}

/// Prints the list whenever it has changed, until all jobs are over.
fn watch(is_json: bool) -> Result<(), SubmitError> {
    hang_up::end_with_reader();
    let jobs = SubmittedJobs::open()?;
    let mut printed = None;
    loop {
        let listed = listed(&jobs)?;
        let states = states(&jobs, &listed);
        let names: Vec<String> = listed.iter().map(|(name, _)| name.clone()).collect();
        let is_over = states.iter().all(JobState::is_over);
        let found = Some((names, states));
        if found != printed {
            if let Some((_, states)) = &found {
                print(&listed, states, is_json);
            }
            printed = found;
        }
        if is_over {
            return Ok(());
        }
        ronde_clock::pause(LOOK_EVERY);
    }
}

/// Returns the jobs, with complete records as far as their targets answer.
fn listed(jobs: &SubmittedJobs) -> Result<Vec<JobListing>, SubmitError> {
    let mut listed = jobs.registry.list()?;
    for (_, listing) in &mut listed {
        let Ok(job) = listing else { continue };
        let target = jobs.target(&job.settings);
        if let Err(error) = jobs.complete(job, &*target) {
            *listing = Err(error);
        }
    }
    Ok(listed)
}

fn print(listed: &[JobListing], states: &[JobState], is_json: bool) {
    let mut out = Printable(std::io::stdout());
    if is_json {
        for ((name, job), state) in listed.iter().zip(states) {
            let job = job.as_ref().ok();
            let line = json!({
                "job": name,
                "target": job.map(|job| &job.target),
                "state": state,
                "workers": job.map(|job| job.workers),
                "submitted_ms": job.map(|job| job.submitted_ms),
                "run_file": job.and_then(|job| job.run_file.as_ref()),
                "folder": job.and_then(submitted::folder),
            });
            // The reader may have closed the pipe, such as `head`.
            let _ = writeln!(out, "{line}");
        }
        return;
    }
    if listed.is_empty() {
        info!("no jobs; `ronde submit` starts one");
        return;
    }
    let now_ms = ronde_clock::unix_s() * 1e3;
    let rows = listed.iter().zip(states).map(|((name, job), state)| {
        let job = job.as_ref().ok();
        JobRow {
            name: name.clone(),
            target: job.map_or_else(String::new, |job| job.target.clone()),
            state: state.to_string(),
            workers: job.map_or_else(String::new, |job| job.workers.to_string()),
            age: job.map_or_else(String::new, |job| {
                let seconds = (now_ms - job.submitted_ms as f64).max(0.0) / 1e3;
                format!("{} ago", render::duration(seconds))
            }),
        }
    });
    let _ = write!(out, "{}", table(&rows.collect::<Vec<_>>()));
}

/// The jobs that one thread asks a target for, with their positions in the list.
struct StateRequest {
    positions: Vec<usize>,
    /// Each job, and whether it was cancelled.
    jobs: Vec<(SubmittedJob, bool)>,
    target: Box<dyn Target>,
    /// The name of the target.
    name: String,
}

impl StateRequest {
    /// Returns the states of the jobs. One request answers for all of them where the target has such a request; otherwise it is
    /// asked for each of them at the same time.
    fn answer(&self) -> Vec<JobState> {
        let asked = self
            .jobs
            .iter()
            .map(|(job, is_cancelled)| (job, *is_cancelled));
        let asked: Vec<(&SubmittedJob, bool)> = asked.collect();
        if let Some(states) = self.target.states(&asked) {
            return states;
        }
        let target = &*self.target;
        std::thread::scope(|scope| {
            let threads: Vec<_> = asked
                .iter()
                .map(|(job, is_cancelled)| scope.spawn(move || target.state(job, *is_cancelled)))
                .collect();
            let states = threads.into_iter().map(|thread| match thread.join() {
                Ok(state) => state.unwrap_or_else(|error| JobState::unknown(&error)),
                Err(_) => JobState::Unknown {
                    problem: "a bug in ronde".to_owned(),
                },
            });
            states.collect()
        })
    }
}

/// Returns the questions about the jobs on other machines that are not over, one for each target.
fn questions(jobs: &SubmittedJobs, listed: &[JobListing]) -> Vec<StateRequest> {
    let mut questions: Vec<(&TargetSettings, StateRequest)> = Vec::new();
    for (position, (name, job)) in listed.iter().enumerate() {
        let Ok(job) = job else { continue };
        if !job.settings.is_remote() || jobs.registry.ended(name).is_some() {
            continue;
        }
        let asked = (job.clone(), jobs.registry.is_cancelled(name));
        let mut known = questions.iter_mut();
        match known.find(|(settings, _)| **settings == job.settings) {
            Some((_, question)) => {
                question.positions.push(position);
                question.jobs.push(asked);
            }
            None => {
                let question = StateRequest {
                    positions: vec![position],
                    jobs: vec![asked],
                    target: jobs.target(&job.settings),
                    name: job.target.clone(),
                };
                questions.push((&job.settings, question));
            }
        }
    }
    questions
        .into_iter()
        .map(|(_, question)| question)
        .collect()
}

/// Returns the state of each job. Targets are asked at the same time; one that does not answer soon delays no other one.
fn states(jobs: &SubmittedJobs, listed: &[JobListing]) -> Vec<JobState> {
    let questions = questions(jobs, listed);
    let mut found: BTreeMap<usize, JobState> = BTreeMap::new();
    for question in &questions {
        let no_answer = JobState::Unknown {
            problem: format!(
                "target `{}` does not answer within {} s",
                question.name,
                ANSWER_WITHIN.as_secs()
            ),
        };
        found.extend(
            question
                .positions
                .iter()
                .map(|position| (*position, no_answer.clone())),
        );
    }
    let mut waiting = questions.len();
    let (sender, answers) = mpsc::channel();
    for question in questions {
        let sender = sender.clone();
        // It is not waited for: this process ends before a target that does not answer.
        std::thread::spawn(move || {
            let states = question.answer();
            let asked = question.positions.into_iter().zip(question.jobs);
            let asked = asked.map(|(position, (_, was_cancelled))| (position, was_cancelled));
            // The receiver may have gone on.
            let _ = sender.send(asked.zip(states).collect::<Vec<_>>());
        });
    }
    let state = |(_, job): &JobListing| match job {
        Ok(job) => {
            let state = jobs.state(job, &*jobs.target(&job.settings));
            state.unwrap_or_else(|error| JobState::unknown(&error))
        }
        Err(error) => JobState::unknown(error),
    };
    let deadline = ronde_clock::now() + ANSWER_WITHIN;
    for (position, listing) in listed.iter().enumerate() {
        found.entry(position).or_insert_with(|| state(listing));
    }
    while waiting > 0 {
        let Ok(answered) =
            answers.recv_timeout(deadline.saturating_duration_since(ronde_clock::now()))
        else {
            break;
        };
        waiting -= 1;
        for ((position, was_cancelled), answer) in answered {
            let listing = &listed[position];
            let is_current = (jobs.registry).keep_end(&listing.0, &answer, was_cancelled);
            found.insert(position, if is_current { answer } else { state(listing) });
        }
    }
    found.into_values().collect()
}

/// Returns the rows as a table.
fn table(rows: &[JobRow]) -> String {
    let mut table = TextTable::new(["JOB", "TARGET", "STATE", "WORKERS", "SUBMITTED"]);
    for row in rows {
        table.row([&row.name, &row.target, &row.state, &row.workers, &row.age]);
    }
    format!("{table}\n")
}
