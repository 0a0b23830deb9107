//! [`Steps`]: the parts of the test command, of which all run even when one fails.

use std::time::Duration;

use anyhow::{Result, bail};

/// The outcomes of the parts so far.
#[derive(Default)]
pub(crate) struct Steps {
    failures: Vec<Failure>,
    times: Vec<(&'static str, Duration)>,
    skips: Vec<String>,
}

struct Failure {
    step: &'static str,
    problem: String,
    /// The command that runs this part again.
    repeat: String,
}

/// The outcome of a part that did not fail.
pub(crate) enum Outcome {
    Passed,
    /// It could not run, for this reason.
    Skipped(String),
}

impl Steps {
    /// Runs one part and records its outcome. `repeat` is the command that runs the part alone.
    pub(crate) fn run(
        &mut self,
        step: &'static str,
        repeat: &str,
        action: impl FnOnce() -> Result<Outcome>,
    ) {
        println!("\n== {step}");
        let start = ronde_clock::now();
        let result = action();
        self.times.push((step, start.elapsed()));
        match result {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Skipped(reason)) => self.skip(step, &reason),
            Err(error) => self.fail(step, format!("{error:#}"), repeat.to_owned()),
        }
    }

    /// Records a failure.
    pub(crate) fn fail(&mut self, step: &'static str, problem: String, repeat: String) {
        let title = problem.lines().next().unwrap_or_default();
        println!("{step}: failed: {title}");
        self.failures.push(Failure {
            step,
            problem,
            repeat,
        });
    }

    /// Adds the failures that another list recorded.
    pub(crate) fn add_failures(&mut self, other: Self) {
        self.failures.extend(other.failures);
    }

    fn skip(&mut self, step: &'static str, reason: &str) {
        println!("{step}: skipped: {reason}");
        self.skips.push(format!("{step}: {reason}"));
    }

    /// Prints times, skips and failures.
    ///
    /// # Errors
    ///
    /// At least one part failed.
    pub(crate) fn finish(self) -> Result<()> {
        println!("\n== summary");
        for (step, time) in &self.times {
            println!("{:>6.0} s  {step}", time.as_secs_f64());
        }
        for skip in &self.skips {
            println!("skipped  {skip}");
        }
        for failure in &self.failures {
            let problem = failure.problem.trim_end().replace('\n', "\n         ");
            println!("FAILED   {}: {problem}", failure.step);
            println!("         repeat: {}", failure.repeat);
        }
        if self.failures.is_empty() {
            println!("all parts passed");
            return Ok(());
        }
        bail!("failures: {}", self.failures.len())
    }
}

/// Returns whether the command runs in continuous integration, where nothing may be skipped because an
/// installation failed.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// Returns a skip with this reason, or in continuous integration an error.
pub(crate) fn skip_or_fail(reason: String) -> Result<Outcome> {
    if is_ci() {
        bail!("{reason} (not skipped, because CI is set)");
    }
    Ok(Outcome::Skipped(reason))
}
