//! `ronde autoscale`: changes the number of workers of a running job by a policy, and logs each decision with its reason.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use ronde_cluster::{Status, StopFlag, StopLevel};
use ronde_submit::{
    AutoscaleObservation, AutoscalePolicy, JobState, ScaleDecision, SubmitError, TargetSettings,
};

use crate::command::console::{info, message};
use crate::command::job::host_script::{HostScript, output_within};
use crate::command::job::submitted::SubmittedJobs;
use crate::command::job::{cancel, open};
use crate::command::{exit, signals};

/// Time for a last checkpoint when the budget is used up.
const GRACE: Duration = Duration::from_secs(120);
/// Time limit for the status of a job.
const STATUS_MAX: Duration = Duration::from_secs(60);
/// The number of steps whose time is measured together: one more or less changes it by a tenth at most.
const MEASURED_STEPS: u64 = 10;
/// Interval at which a stop request is looked for.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Seconds in an hour.
const HOUR_S: f64 = 3600.0;

/// Arguments of `ronde autoscale`.
#[derive(Args)]
pub(crate) struct AutoscaleArguments {
    /// Name of the submitted job.
    job: String,
    /// Smallest number of workers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    min_workers: u32,
    /// Largest number of workers, at most `elastic.max_workers` of the run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_workers: u32,
    /// Keep the time of a step near this many milliseconds [default: use all slots of the hosts].
    #[arg(long, value_name = "MS")]
    step_ms: Option<f64>,
    /// End the job after a checkpoint when its workers have used this many hours together from now on.
    #[arg(long, value_name = "WORKER_HOURS")]
    budget: Option<f64>,
    /// Program that prints the hosts of the job, a line `HOST:SLOTS` for each, as for `horovodrun`: an agent is started on a
    /// host that appears, and the workers of one that disappears leave. For jobs on hosts over SSH.
    #[arg(long, value_name = "PROGRAM")]
    host_discovery_script: Option<PathBuf>,
    /// Slots of a host that the program names without a number.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "host_discovery_script",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    slots: u32,
    /// Interval between two decisions in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    every: f64,
    /// Time after a change before the next one, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    settle: f64,
    /// Time for requested workers to start, in seconds; then their number is reduced to those that train.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    patience: f64,
}

impl AutoscaleArguments {
    /// Returns the policy. The error is a message.
    fn policy(&self) -> Result<AutoscalePolicy, String> {
        let numbers = [
            ("--step-ms", self.step_ms),
            ("--budget", self.budget),
            ("--every", Some(self.every)),
            ("--settle", Some(self.settle)),
            ("--patience", Some(self.patience)),
        ];
        for (name, value) in numbers {
            if let Some(value) =
                value.filter(|value| !(value.is_finite() && *value > 0.0 && *value < 1e9))
            {
                return Err(format!(
                    "error: invalid `{name} {value}`: expected a number above 0"
                ));
            }
        }
        if self.min_workers > self.max_workers {
            return Err("error: `--min-workers` is larger than `--max-workers`".to_owned());
        }
        Ok(AutoscalePolicy {
            workers_min: self.min_workers,
            workers_max: self.max_workers,
            target_step_s: self.step_ms.map(|ms| ms / 1e3),
            budget_worker_s: self.budget.map(|hours| hours * HOUR_S),
            settle_s: self.settle,
            patience_s: self.patience,
        })
    }
}

pub(crate) fn autoscale(arguments: &AutoscaleArguments, stop: &StopFlag) -> i32 {
    let policy = match arguments.policy() {
        Ok(policy) => policy,
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    signals::begin_supervision();
    let mut scaling = JobScaling {
        job: &arguments.job,
        policy,
        watch: JobWatch::new(),
        hosts: arguments
            .host_discovery_script
            .as_ref()
            .map(|script| HostScript::new(script, arguments.slots)),
        shown: String::new(),
    };
    match scaling.run(Duration::from_secs_f64(arguments.every), stop) {
        Ok(code) => code,
        Err(error) => crate::command::failure::submit_failure(&error),
    }
}

/// A job whose number of workers is changed.
struct JobScaling<'a> {
    job: &'a str,
    policy: AutoscalePolicy,
    watch: JobWatch,
    /// The program that names the hosts.
    hosts: Option<HostScript>,
    /// The last line that was shown.
    shown: String,
}

impl JobScaling<'_> {
    /// Decides again and again until the job is over or a signal ends this command.
    fn run(&mut self, every: Duration, stop: &StopFlag) -> Result<i32, SubmitError> {
        loop {
            let jobs = SubmittedJobs::open()?;
            let found = jobs.find(self.job).and_then(|(job, target)| {
                let state = jobs.state(&job, &*target)?;
                Ok((job, target, state))
            });
            match found {
                Ok((_, _, state)) if state.is_over() => {
                    info!("job {}: {state}", self.job);
                    return Ok(exit::DONE);
                }
                Ok((mut job, target, JobState::Running { .. })) => {
                    let adds_hosts = matches!(job.settings, TargetSettings::Kubernetes(_));
                    match status(self.job, stop) {
                        Some(status) => {
                            if let Some(hosts) = &mut self.hosts {
                                hosts.follow(&jobs.registry, &mut job, &*target, &status, stop)?;
                            }
                            let seen = self.watch.observe(&status, adds_hosts);
                            let decision = self.policy.decide(&seen);
                            let acted = self.act(decision, &|workers| target.scale(&job, workers));
                            self.tolerate(acted)?;
                        }
                        None => self.show("no change: the coordinator does not answer".to_owned()),
                    }
                }
                Ok((_, _, state)) => {
                    // Its workers are not paid for while it waits.
                    self.watch.pause();
                    self.show(format!("no change: the job is {state}"));
                }
                Err(error) => self.tolerate(Err(error))?,
            }
            let until = ronde_clock::now() + every;
            while ronde_clock::now() < until {
                if stop.level() != StopLevel::Run {
                    return Ok(128 + stop.signal());
                }
                ronde_clock::pause(LOOK_EVERY);
            }
        }
    }

    /// Logs an error of a target that may answer later, and returns any other one.
    fn tolerate(&mut self, result: Result<(), SubmitError>) -> Result<(), SubmitError> {
        match result {
            Err(error) if error.recovery() == ronde_core::Recovery::Retry => {
                self.show(format!("no change: {error}"));
                Ok(())
            }
            result => result,
        }
    }

    /// Logs a decision and carries it out.
    fn act(
        &mut self,
        decision: ScaleDecision,
        scale: &dyn Fn(u32) -> Result<i32, SubmitError>,
    ) -> Result<(), SubmitError> {
        self.show(decision.to_string());
        match decision {
            ScaleDecision::Keep { .. } => {}
            ScaleDecision::Scale { workers, .. } => match scale(workers)? {
                0 => self.watch.changed(),
                code if code != exit::USER_ERROR => {
                    self.show(format!(
                        "no change: the coordinator does not answer (exit code {code})"
                    ));
                }
                code => {
                    return Err(SubmitError::Invalid {
                        problem: format!("the coordinator does not accept {workers} workers (exit code {code})"),
                        help: "keep `--min-workers` and `--max-workers` inside of elastic.min_workers and \
                               elastic.max_workers of the run"
                            .to_owned(),
                    });
                }
            },
            ScaleDecision::End { .. } => {
                cancel::end(self.job, GRACE)?;
            }
        }
        Ok(())
    }

    /// Prints a line unless it is the same as the last one, up to its numbers.
    fn show(&mut self, line: String) {
        let kind: String = line
            .chars()
            .filter(|letter| !letter.is_ascii_digit())
            .collect();
        if line.starts_with("no change") && kind == self.shown {
            return;
        }
        info!("{}: {line}", self.job);
        self.shown = kind;
    }
}

/// Returns the status of a job; `None` if its coordinator does not answer in time, or a signal ends this command.
fn status(job: &str, stop: &StopFlag) -> Option<Status> {
    let mut command = Command::new(open::this_program());
    command
        .args(["status", "--json", job])
        .stderr(Stdio::null());
    let text = output_within(command, STATUS_MAX, stop).ok()?;
    serde_json::from_str(&text).ok()
}

/// What was seen of a job.
struct JobWatch {
    /// When the number of workers was changed last.
    changed: Instant,
    /// Since when fewer workers train than were requested; `None` if none is missing.
    missing: Option<Instant>,
    /// The last look: when, and the workers that trained.
    last: Option<(Instant, u32)>,
    /// The beginning of the measured steps: when, the next step, and the workers that trained.
    measured_from: Option<(Instant, u64, u32)>,
    /// The time of a step of the workers that train now, in seconds.
    step_s: Option<f64>,
    used_worker_s: f64,
}

impl JobWatch {
    fn new() -> Self {
        Self {
            changed: ronde_clock::now(),
            missing: None,
            last: None,
            measured_from: None,
            step_s: None,
            used_worker_s: 0.0,
        }
    }

    /// Begins to measure again, because the number of workers has changed.
    fn changed(&mut self) {
        self.changed = ronde_clock::now();
        self.missing = None;
        (self.measured_from, self.step_s) = (None, None);
    }

    /// Notes that no worker trains until the next look.
    fn pause(&mut self) {
        (self.last, self.missing) = (None, None);
        (self.measured_from, self.step_s) = (None, None);
    }

    fn observe(&mut self, status: &Status, adds_hosts: bool) -> AutoscaleObservation {
        let at = ronde_clock::now();
        let active = status.members.iter().filter(|member| member.lost.is_none());
        let running = u32::try_from(active.count()).unwrap_or(u32::MAX);
        let step = status.step.map_or(0, |step| step.0);
        if let Some((before, workers)) = self.last {
            self.used_worker_s += (at - before).as_secs_f64() * f64::from(workers);
        }
        self.last = Some((at, running));
        self.measure(at, step, running);
        let slots: u32 = status.hosts.iter().map(|host| host.slots).sum();
        AutoscaleObservation {
            requested: status.wanted,
            running,
            slots: (!adds_hosts).then_some(slots),
            step_s: self.step_s,
            steps_left: status.steps.map(|steps| steps.saturating_sub(step)),
            used_worker_s: self.used_worker_s,
            since_change_s: (at - self.changed).as_secs_f64(),
            missing_s: self.missing_s(at, running < status.wanted),
        }
    }

    /// Returns for how many seconds workers have been missing.
    fn missing_s(&mut self, at: Instant, is_missing: bool) -> f64 {
        self.missing = is_missing.then(|| self.missing.unwrap_or(at));
        self.missing.map_or(0.0, |since| (at - since).as_secs_f64())
    }

    /// Measures the time of a step over several steps of the same workers.
    fn measure(&mut self, at: Instant, step: u64, running: u32) {
        match self.measured_from {
            // Steps of a group with other members do not count, nor do those that are computed again.
            Some((_, from, workers)) if workers != running || step < from => self.step_s = None,
            Some((before, from, _)) if step - from >= MEASURED_STEPS => {
                self.step_s = Some((at - before).as_secs_f64() / (step - from) as f64);
            }
            Some(_) => return,
            None => {}
        }
        self.measured_from = Some((at, step, running));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_begins_when_workers_go_missing() {
        let mut watch = JobWatch::new();
        let start = ronde_clock::now();
        let mut seen = |after_s: u64, is_missing: bool| {
            watch.missing_s(start + Duration::from_secs(after_s), is_missing)
        };
        assert_eq!(seen(1000, false), 0.0);
        assert_eq!(seen(1010, true), 0.0);
        assert_eq!(seen(1030, true), 20.0);
        assert_eq!(seen(1040, false), 0.0);
        assert_eq!(seen(1050, true), 0.0);
        assert_eq!(seen(1055, true), 5.0);
    }
}
