//! The Rust test suites: built once, run side by side where they may, all of them even when one fails.

use std::collections::VecDeque;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps::Steps;
use crate::{FULL, cargo_with, clock, root};

const STEP: &str = "test suites";
/// A suite that runs for longer hangs.
const SUITE_TIME_MAX: Duration = Duration::from_secs(20 * 60);

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
    for (suites, threads) in [(shared, cores), (alone, 1)] {
        for (step, problem, repeat) in run_all(suites, variables, threads) {
            steps.fail(step, problem, repeat);
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

/// Runs suites by several threads and returns (step, problem, command that repeats it) of each failure.
fn run_all(
    suites: Vec<Suite>,
    variables: &[(String, String)],
    threads: usize,
) -> Vec<(&'static str, String, String)> {
    let queue = Mutex::new(VecDeque::from(suites));
    let failures = Mutex::new(Vec::new());
    let next = || queue.lock().ok()?.pop_front();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(suite) = next() {
                    let failed = suite.run(variables);
                    if let (Err(failed), Ok(mut failures)) = (failed, failures.lock()) {
                        failures.extend(failed);
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap_or_default()
}

impl Suite {
    /// Runs the suite and prints its output when it has ended: all of it after a failure, else the test harness's
    /// result.
    fn run(
        &self,
        variables: &[(String, String)],
    ) -> Result<(), Vec<(&'static str, String, String)>> {
        let name = format!("{} {}", self.package, self.target);
        let failed = |problem: String, repeat: String| Err(vec![(STEP, problem, repeat)]);
        let start = clock::now();
        let (status, output) = match self.output(variables) {
            Ok(ended) => ended,
            Err(error) => return failed(format!("{name}: {error:#}"), self.repeat(None)),
        };
        let text = String::from_utf8_lossy(&output);
        let Some(status) = status else {
            print!("   {name}\n{text}");
            let minutes = SUITE_TIME_MAX.as_secs() / 60;
            let running = unfinished_test(&text).unwrap_or_default();
            let problem = format!("{name}: did not end within {minutes} minutes{running}");
            return failed(problem, self.repeat(None));
        };
        if status.success() {
            let shown: String = text
                .lines()
                .filter(|line| is_result(line))
                .map(|line| format!("{line}\n"))
                .collect();
            print!("   {name} ({} s)\n{shown}", start.elapsed().as_secs());
            return Ok(());
        }
        print!("   {name}\n{text}");
        let tests = failed_tests(&text);
        if tests.is_empty() {
            return failed(format!("{name}: {status}"), self.repeat(None));
        }
        let failures = tests
            .iter()
            .map(|test| (STEP, format!("{name}: {test}"), self.repeat(Some(test))));
        Err(failures.collect())
    }

    /// Runs the program; returns how it ended (`None`: it did not end in time) and its standard output and error.
    fn output(&self, variables: &[(String, String)]) -> Result<(Option<ExitStatus>, Vec<u8>)> {
        // A file, not a pipe: a process that a test leaves behind must not keep the suite open.
        let mut file = tempfile::tempfile().context("cannot make a file for the output")?;
        let mut child = Command::new(&self.program)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO", env!("CARGO"))
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let start = clock::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > SUITE_TIME_MAX {
                child.kill()?;
                child.wait()?;
                break None;
            }
            clock::pause(Duration::from_millis(20));
        };
        let mut output = Vec::new();
        std::io::Seek::rewind(&mut file)?;
        std::io::Read::read_to_end(&mut file, &mut output)?;
        Ok((status, output))
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

/// Returns whether a passed suite's line is shown: the number of tests, the result, and reasons for skips.
fn is_result(line: &str) -> bool {
    let is_skip = line.contains("skipped") && !line.starts_with("test ");
    is_skip || line.starts_with("running ") || line.starts_with("test result:")
}

/// Names the tests that the harness reports as slow and that have no result.
fn unfinished_test(output: &str) -> Option<String> {
    let slow = output.lines().filter_map(|line| {
        let rest = line.strip_prefix("test ")?;
        rest.split_once(" has been running for over")
            .map(|(test, _)| test)
    });
    let has_result = |test: &&str| output.contains(&format!("test {test} ... "));
    let tests: Vec<&str> = slow.filter(|test| !has_result(test)).collect();
    (!tests.is_empty()).then(|| format!("; still running: {}", tests.join(", ")))
}

/// Returns the names of the tests that the harness lists as failed.
fn failed_tests(output: &str) -> Vec<String> {
    let mut tests = Vec::new();
    for line in output.lines() {
        let name = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"));
        tests.extend(name.map(|name| name.split(" - ").next().unwrap_or(name).to_owned()));
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_with_the_command_that_repeats_them() {
        let output = "running 2 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest d - should panic ... FAILED\n";
        assert_eq!(failed_tests(output), ["a::c", "d"]);
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
    fn tests_that_have_no_result_are_named() {
        let output = "test a::b has been running for over 60 seconds\ntest a::c has been running for over 60 seconds\ntest a::b ... ok\n";
        let running = unfinished_test(output);
        assert_eq!(running.as_deref(), Some("; still running: a::c"));
        assert_eq!(unfinished_test("test a::b ... ok\n"), None);
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
