//! The Rust test suites: built once, run side by side where they may, all of them even when one fails.

mod harness_output;
mod report;

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use harness_output::{TestEnd, TestEnds, is_result, listed, message, skips, unfinished_test};
use report::{SuiteReport, durations, summary};
use serde_json::Value;

use crate::steps::Steps;
use crate::{FULL, cargo_with, root};

const STEP: &str = "test suites";
/// A suite in which no test ends for this long hangs. The time of a whole suite depends on the machine.
const SILENCE_MAX: Duration = Duration::from_secs(20 * 60);

/// Packages whose integration tests run alone: they start many processes, or make network namespaces with fixed
/// names, and would disturb each other.
const ALONE: &[&str] = &["ronde", "ronde-cluster", "ronde-comm"];

/// One test program.
struct Suite {
    package: String,
    /// The `cargo test` option that selects it, such as `--lib` or `--test jobs`.
    target: String,
    program: PathBuf,
    /// The package's folder, in which cargo runs its tests.
    folder: PathBuf,
    is_alone: bool,
}

/// Builds all suites and runs them with `variables` in their environment. Failures are added to `steps`.
pub(crate) fn run(variables: &[(String, String)], steps: &mut Steps) -> Result<()> {
    let suites = build()?;
    let (alone, shared): (Vec<_>, Vec<_>) = suites.into_iter().partition(|suite| suite.is_alone);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut reports = Vec::new();
    for (suites, threads) in [(shared, cores), (alone, 1)] {
        for (report, failures) in run_all(suites, variables, threads) {
            reports.push(report);
            for SuiteFailure { problem, repeat } in failures {
                steps.fail(STEP, problem, repeat);
            }
        }
    }
    let doc = [
        "test",
        "--doc",
        "--no-fail-fast",
        "--release",
        "--workspace",
    ];
    let doc = [&doc[..], &["--features", FULL]].concat();
    if let Err(error) = cargo_with(&doc, variables) {
        let repeat = format!("cargo {}", doc.join(" "));
        steps.fail("documentation tests", format!("{error:#}"), repeat);
    }
    print!("{}", summary(&reports));
    Ok(())
}

/// Builds the workspace's tests and returns them.
fn build() -> Result<Vec<Suite>> {
    let arguments = [
        "test",
        "--no-run",
        "--release",
        "--workspace",
        "--features",
        FULL,
    ];
    println!("$ cargo {}", arguments.join(" "));
    let mut child = Command::new(env!("CARGO"))
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stdout = child.stdout.take().context("the output is a pipe")?;
    let mut suites = Vec::new();
    for line in std::io::BufReader::new(stdout).lines() {
        let message: Value =
            serde_json::from_str(&line?).context("cannot read cargo's messages")?;
        suites.extend(suite(&message));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the tests do not build ({status})");
    }
    suites.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
    Ok(suites)
}

/// Returns the test program that one of cargo's messages announces.
fn suite(message: &Value) -> Option<Suite> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let program = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = message["package_id"].as_str()?;
    // path+file:///folder/name#0.1.0, or path+file:///folder#name@0.1.0 where the folder has another name.
    let (path, version) = package.rsplit_once('#')?;
    let package = match version.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    let name = message["target"]["name"].as_str()?;
    let target = match message["target"]["kind"][0].as_str()? {
        "test" => format!("--test {name}"),
        "bin" => format!("--bin {name}"),
        "example" => format!("--example {name}"),
        "bench" => format!("--bench {name}"),
        _ => "--lib".to_owned(),
    };
    Some(Suite {
        is_alone: ALONE.contains(&package) && target.starts_with("--test"),
        package: package.to_owned(),
        target,
        program,
        folder: folder.to_owned(),
    })
}

/// A failed test or suite.
struct SuiteFailure {
    problem: String,
    /// The command that repeats it.
    repeat: String,
}

/// How a test program ended.
struct ProgramEnd {
    /// `None`: it did not end in time.
    status: Option<ExitStatus>,
    /// Its standard output and error.
    text: String,
    /// The tests in the order in which they ended, and when.
    tests: Vec<(String, TestEnd, Duration)>,
}

/// Runs suites by several threads.
fn run_all(
    suites: Vec<Suite>,
    variables: &[(String, String)],
    threads: usize,
) -> Vec<(SuiteReport, Vec<SuiteFailure>)> {
    let queue = Mutex::new(VecDeque::from(suites));
    let results = Mutex::new(Vec::new());
    let next = || queue.lock().ok()?.pop_front();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(suite) = next() {
                    let result = suite.run(variables);
                    if let Ok(mut results) = results.lock() {
                        results.push(result);
                    }
                }
            });
        }
    });
    results.into_inner().unwrap_or_default()
}

impl Suite {
    /// Runs the suite and prints its output when it has ended: all of it after a failure, else the test harness's
    /// result. Returns what it has run, and its failures.
    fn run(&self, variables: &[(String, String)]) -> (SuiteReport, Vec<SuiteFailure>) {
        let name = format!("{} {}", self.package, self.target);
        let mut report = SuiteReport {
            package: self.package.clone(),
            target: self.target.clone(),
            ..SuiteReport::default()
        };
        let start = ronde_clock::now();
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let order = self.order(variables);
        let ended = match self.output(variables, threads) {
            Ok(ended) => ended,
            Err(error) => {
                let failure = SuiteFailure {
                    problem: format!("{name}: {error:#}"),
                    repeat: self.repeat(None),
                };
                return (report, vec![failure]);
            }
        };
        report.duration = start.elapsed();
        let times: Vec<(String, Duration)> = ended
            .tests
            .iter()
            .map(|(name, _, at)| (name.clone(), *at))
            .collect();
        let durations = durations(&order, threads, &times);
        report.tests = ended.tests;
        for (test, duration) in report.tests.iter_mut().zip(durations) {
            test.2 = duration;
        }
        report.skips = skips(&ended.text);
        let failures = self.conclude(ended.status, &ended.text, &report);
        (report, failures)
    }

    /// Prints the output of the suite, and returns its failures.
    fn conclude(
        &self,
        status: Option<ExitStatus>,
        text: &str,
        report: &SuiteReport,
    ) -> Vec<SuiteFailure> {
        let name = format!("{} {}", self.package, self.target);
        let failed = |problem: String| SuiteFailure {
            problem,
            repeat: self.repeat(None),
        };
        let Some(status) = status else {
            print!("   {name}\n{text}");
            let minutes = SILENCE_MAX.as_secs() / 60;
            let running = unfinished_test(text).unwrap_or_default();
            return vec![failed(format!(
                "{name}: no test has ended within {minutes} minutes{running}"
            ))];
        };
        if status.success() {
            let shown: String = text
                .lines()
                .filter(|line| is_result(line))
                .map(|line| format!("{line}\n"))
                .collect();
            print!("   {name} ({} s)\n{shown}", report.duration.as_secs());
            return Vec::new();
        }
        print!("   {name}\n{text}");
        let tests = report.tests.iter();
        let failures: Vec<SuiteFailure> = tests
            .filter(|(_, end, _)| *end == TestEnd::Failed)
            .map(|(test, ..)| SuiteFailure {
                problem: format!("{name}: {test}\n{}", message(text, test)),
                repeat: self.repeat(Some(test)),
            })
            .collect();
        match failures.is_empty() {
            true => vec![failed(format!("{name}: {status}"))],
            false => failures,
        }
    }

    /// Returns the command that runs the program as cargo does.
    fn command(&self, variables: &[(String, String)]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO", env!("CARGO"))
            .envs(variables.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    /// Returns the tests in the order in which the program runs them; nothing if it cannot list them.
    fn order(&self, variables: &[(String, String)]) -> Vec<String> {
        let output = self.command(variables).arg("--list").output();
        output.map_or_else(
            |_| Vec::new(),
            |output| listed(&String::from_utf8_lossy(&output.stdout)),
        )
    }

    /// Runs the program with a number of threads.
    fn output(&self, variables: &[(String, String)], threads: usize) -> Result<ProgramEnd> {
        // A file, not a pipe: a process that a test leaves behind must not keep the suite open.
        let file = tempfile::tempfile().context("cannot make a file for the output")?;
        let mut child = self
            .command(variables)
            .arg(format!("--test-threads={threads}"))
            .stdout(file.try_clone()?)
            .stderr(file.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let start = ronde_clock::now();
        let (mut output, mut lines) = (Vec::new(), 0);
        let (mut ends, mut tests) = (TestEnds::default(), Vec::new());
        let mut last = start;
        let mut look = |output: &mut Vec<u8>| -> Result<Duration> {
            let at = start.elapsed();
            read_more(&file, output)?;
            while let Some(end) = output[lines..].iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&output[lines..lines + end]);
                lines += end + 1;
                last = ronde_clock::now();
                tests.extend(ends.line(&line).map(|(name, end)| (name, end, at)));
            }
            Ok(last.elapsed())
        };
        let status = loop {
            let status = child.try_wait()?;
            let silence = look(&mut output)?;
            if status.is_some() {
                break status;
            }
            if silence > SILENCE_MAX {
                child.kill()?;
                child.wait()?;
                look(&mut output)?;
                break None;
            }
            ronde_clock::pause(Duration::from_millis(20));
        };
        Ok(ProgramEnd {
            status,
            text: String::from_utf8_lossy(&output).into_owned(),
            tests,
        })
    }

    /// Returns the command that runs the suite, or one of its tests, again with what has been built.
    fn repeat(&self, test: Option<&str>) -> String {
        let mut packages = format!("-p {}", self.package);
        if self.package != "ronde" {
            // The feature belongs to the command; without it the crate would be built again.
            packages.insert_str(0, "-p ronde ");
        }
        let filter = test.map_or(String::new(), |test| format!(" -- --exact {test}"));
        format!(
            "cargo test --release {packages} --features {FULL} {}{filter}",
            self.target
        )
    }
}

/// Reads what a program has appended to its output. The position of the file is the program's own, so it is not used.
fn read_more(file: &File, output: &mut Vec<u8>) -> std::io::Result<()> {
    let mut bytes = [0; 1 << 16];
    loop {
        match file.read_at(&mut bytes, output.len() as u64)? {
            0 => return Ok(()),
            length => output.extend_from_slice(&bytes[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_test_has_the_command_that_repeats_it() {
        let suite = Suite {
            package: "ronde-comm".to_owned(),
            target: "--test group".to_owned(),
            program: PathBuf::new(),
            folder: PathBuf::new(),
            is_alone: true,
        };
        assert_eq!(
            suite.repeat(Some("a::c")),
            format!(
                "cargo test --release -p ronde -p ronde-comm --features {FULL} --test group -- --exact a::c"
            )
        );
    }

    #[test]
    fn test_programs_are_read_from_cargos_messages() {
        let message = serde_json::json!({
            "reason": "compiler-artifact", "profile": { "test": true }, "executable": "/t/group-1",
            "manifest_path": "/w/crates/comm/Cargo.toml", "package_id": "path+file:///w/crates/comm#ronde-comm@0.1.0",
            "target": { "name": "group", "kind": ["test"] }
        });
        let found = suite(&message).map(|suite| (suite.package, suite.target, suite.is_alone));
        assert_eq!(
            found,
            Some(("ronde-comm".to_owned(), "--test group".to_owned(), true))
        );
        assert!(suite(&serde_json::json!({ "reason": "build-finished" })).is_none());
    }
}
