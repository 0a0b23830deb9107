//! The tools of those who change ronde: `cargo xtask verify | fix | tidy | test | outside | soak`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool talks to its user"
)]

mod formats;
mod outside;
mod soak;
mod stores;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use stores::Stores;

/// Checkpoints and records in object stores.
const FULL: &str = "ronde/full";

const USAGE: &str = "\
cargo xtask <command>

  test     runs tidy and all tests (everything that CI runs)
  verify   test, and: format, clippy with warnings as errors, documentation; never writes
  fix      formats, and lets clippy mend what it can
  outside  the tests of the packages beside the workspace alone: models of locks, the use from Python
  soak     trains while workers are killed and stopped, and compares with an undisturbed run
  tidy     crate arrows, sizes of files and functions, module documentation";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let result = match command.as_str() {
        "test" => test(),
        "verify" => verify(),
        "fix" => fix(),
        "tidy" => tidy::run(&root()),
        "outside" => outside::test(),
        "soak" => soak::soak(&arguments.collect::<Vec<_>>()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(arguments, &[])
}

/// Cargo, with variables for what it starts.
fn cargo_with(arguments: &[&str], variables: &[(String, String)]) -> Result<()> {
    println!("$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .env("RUSTDOCFLAGS", "-D warnings")
        .envs(variables.iter().cloned())
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("cargo {} failed ({status})", arguments.join(" "));
    }
    Ok(())
}

fn test() -> Result<()> {
    tidy::run(&root())?;
    if let Err(reason) = outside::network_namespaces() {
        println!("network namespaces: tests in them skip, {reason:#}");
    }
    let mut stores = Stores::start()?;
    // The command itself is built first: tests start it as users do. With object stores; without them the one
    // crate is another.
    let full = ["--release", "--workspace", "--features", FULL];
    cargo(&[&["build", "--all-targets"], &full[..]].concat())?;
    cargo_with(&[&["test"], &full[..]].concat(), &stores.variables()?)?;
    drop(stores);
    cargo(&[
        "check",
        "--release",
        "-p",
        "ronde-store",
        "-p",
        "ronde-data",
    ])?;
    soak::short()?;
    formats::test(&outside::target()?)?;
    outside::test()
}

fn verify() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    for features in [&[][..], &["--features", FULL]] {
        let all = ["clippy", "--release", "--workspace", "--all-targets"];
        cargo(&[&all[..], features, &["--", "-D", "warnings"]].concat())?;
    }
    for manifest in outside::MANIFESTS {
        cargo(&["fmt", "--check", "--manifest-path", manifest])?;
        let warnings = ["--all-targets", "--", "-D", "warnings"];
        let clippy = ["clippy", "--release", "--manifest-path", manifest];
        cargo(&[&clippy[..], &warnings].concat())?;
    }
    test()?;
    cargo(&["doc", "--release", "--workspace", "--no-deps"])
}

fn fix() -> Result<()> {
    cargo(&[
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--fix",
        "--allow-dirty",
        "--allow-staged",
    ])?;
    cargo(&["fmt", "--all"])
}
