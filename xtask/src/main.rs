//! Tools for contributors: `cargo xtask verify | fix | tidy | test | outside | hashes | soak | fuzz | dist | wheel`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool prints to its terminal"
)]

mod deny;
mod dist;
mod formats;
mod fuzz;
mod models;
mod outside;
mod platforms;
mod python;
mod soak;
mod steps;
mod stores;
mod suites;
mod tidy;
mod trackers;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use steps::{Outcome, Steps};
use stores::Stores;

/// The feature with object stores and all data formats.
const FULL: &str = "ronde/full,ronde/burn";

const USAGE: &str = "\
cargo xtask <command>

  test     run tidy and all tests (everything that continuous integration runs)
  verify   run the tests, check formatting, clippy (warnings are errors) and documentation; never writes
  fix      format the code, apply clippy's suggestions, accept the public interface of the library
  accept   accept the public interface of the library alone, in a second
  outside  run only the tests of the packages outside the workspace: models of locks
  hashes   train small models in every way, and compare their bits with the recorded ones (--accept records them)
  soak     train while workers are killed and stopped, and compare with an undisturbed run
  fuzz     run each fuzz target for a minute
  dist     build a release binary for glibc 2.28 and newer, with its checksum
  python   build the Python package and run only its tests
  wheel    build the Python package, with the command in it, into target/wheels
  tidy     check crate dependencies, sizes, names, language, and names used in the documentation;
           tidy COUNT lists the findings of a count that may only fall (xtask/src/tidy/limits.txt)";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let result = match command.as_str() {
        "test" => test(),
        "verify" => verify(),
        "fix" => fix(),
        "accept" => tidy::accept_public_api(&root()),
        "tidy" => match arguments.next() {
            None => tidy::run(&root()),
            Some(count) => tidy::list(&root(), &count),
        },
        "outside" => outside::test().map(drop),
        "dist" => dist::dist(),
        "wheel" => wheel::build_and_tell(),
        "python" => outside::target().and_then(|target| wheel::test(&target).map(drop)),
        "hashes" => hashes(&arguments.collect::<Vec<_>>()),
        "fuzz" => fuzz::command(&arguments.collect::<Vec<_>>()),
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

/// Compares the bits of small models with the recorded ones, or records them.
fn hashes(arguments: &[String]) -> Result<()> {
    let variables = match arguments {
        [] => Vec::new(),
        [one] if one == "--accept" => vec![("UPDATE_SNAPSHOTS".to_owned(), "1".to_owned())],
        _ => bail!("cargo xtask hashes takes no argument but --accept"),
    };
    let words =
        "test --release --workspace --features ronde/full,ronde/burn --test command recorded_bits";
    let words: Vec<&str> = words.split(' ').collect();
    cargo_with(&words, &variables)
}

/// Returns the workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(arguments, &[])
}

/// Runs cargo with additional environment variables.
fn cargo_with(arguments: &[&str], variables: &[(String, String)]) -> Result<()> {
    println!("$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .env("RUSTDOCFLAGS", "-D warnings")
        .envs(variables.iter().cloned())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo {} failed ({status})", arguments.join(" "));
    }
    Ok(())
}

/// Runs everything that continuous integration runs. One part that fails does not hide the others.
fn test() -> Result<()> {
    let mut steps = Steps::default();
    let target = outside::target()?;
    steps.run("tidy", "cargo xtask tidy", || {
        tidy::run(&root()).map(|()| Outcome::Passed)
    });
    install_programs(&mut steps);
    // The servers install while the programs build.
    let mut stores = Stores::start();
    // Tests start the command and examples, so these are built first: together with the tests, because another build would compile
    // all dependencies a second time with other features.
    run_cargo(
        &mut steps,
        "build",
        "test --release --workspace --features ronde/full,ronde/burn --no-run",
    );
    let mut variables = Vec::new();
    steps.run("servers of object stores", "cargo xtask test", || {
        variables = stores.variables()?;
        Ok(stores.outcome())
    });
    let mut failures = Steps::default();
    steps.run("test suites", "cargo xtask test", || {
        suites::run(&variables, &mut failures).map(|()| Outcome::Passed)
    });
    steps.add_failures(failures);
    drop(stores);
    let default = "check --release -p ronde-store -p ronde-data";
    run_cargo(&mut steps, "default features", default);
    let library = "check --release -p ronde --lib --no-default-features";
    run_cargo(&mut steps, "library without the command", library);
    steps.run("soak", "cargo xtask soak --minutes 1", || {
        soak::short().map(|()| Outcome::Passed)
    });
    steps.run("file formats against Python", "cargo xtask test", || {
        formats::test(&target)
    });
    steps.run("trackers against their tools", "cargo xtask test", || {
        trackers::test(&target)
    });
    steps.run("jobs of other platforms", "cargo xtask test", || {
        platforms::test(&target)
    });
    steps.run(
        "exported models in other programs",
        "cargo xtask test",
        || models::test(&target),
    );
    steps.run("Python package", "cargo xtask python", || {
        wheel::test(&target)
    });
    steps.run(
        "packages outside the workspace",
        "cargo xtask outside",
        outside::test,
    );
    let packages = "package --workspace --no-verify --offline --allow-dirty";
    run_cargo(&mut steps, "packages", packages);
    steps.run("dependencies", "cargo deny check", || deny::check(&target));
    steps.finish()
}

/// Installs the programs without which tests skip themselves.
fn install_programs(steps: &mut Steps) {
    type Install = fn() -> Result<()>;
    let parts: [(&'static str, Install); 9] = [
        ("network namespaces", outside::network_namespaces),
        ("SSH server", outside::ssh_server),
        ("Slurm", outside::slurm),
        ("MPI", outside::mpi),
        ("torchrun", outside::torchrun),
        ("Ray", outside::ray),
        ("image tools", outside::image_tools),
        ("browser", outside::browser),
        ("oneDNN", outside::one_dnn),
    ];
    for (part, install) in parts {
        steps.run(part, "cargo xtask test", || {
            install()
                .map(|()| Outcome::Passed)
                .or_else(|error| steps::skip_or_fail(format!("its tests skip: {error:#}")))
        });
    }
}

/// Runs cargo as one part of the tests; the arguments contain no spaces.
fn run_cargo(steps: &mut Steps, step: &'static str, arguments: &str) {
    let list: Vec<&str> = arguments.split(' ').collect();
    steps.run(step, &format!("cargo {arguments}"), || {
        cargo(&list).map(|()| Outcome::Passed)
    });
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
    tidy::accept_public_api(&root())?;
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
