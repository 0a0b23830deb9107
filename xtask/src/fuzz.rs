//! `cargo xtask fuzz`: every fuzz target for a limited time, guided by coverage, with the installed compiler.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::outside;
use crate::root;
use crate::steps::Outcome;

pub(crate) const USAGE: &str = "\
cargo xtask fuzz [--seconds S] [TARGET..]

  runs each fuzz target, or those named, for S seconds (default 60); needs g++";

/// The coverage counters that libFuzzer reads, as cargo-fuzz requests them; without sanitizers no nightly compiler is
/// needed.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";
const MEMORY_MIB_MAX: u32 = 512;
const INPUT_BYTES_MAX: u32 = 70_000;

/// Runs the command line's request.
pub(crate) fn command(arguments: &[String]) -> Result<()> {
    let mut seconds = 60;
    let mut targets = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => {
                let value = arguments
                    .next()
                    .with_context(|| format!("--seconds needs a value\n\n{USAGE}"))?;
                let invalid = || {
                    format!("invalid value `{value}` for --seconds: expected a number\n\n{USAGE}")
                };
                seconds = value.parse().with_context(invalid)?;
            }
            option if option.starts_with('-') => bail!("unknown option `{option}`\n\n{USAGE}"),
            target => targets.push(target.to_owned()),
        }
    }
    if let Outcome::Skipped(reason) = run(seconds, &targets)? {
        bail!("cannot fuzz: {reason}");
    }
    Ok(())
}

/// Builds all targets and runs `only`, or all, for `seconds` each. Skipped where there is no C++ compiler.
///
/// # Errors
///
/// A target crashed, used too much memory, or took too long; the message names the input.
pub(crate) fn run(seconds: u32, only: &[String]) -> Result<Outcome> {
    if outside::run(Command::new("c++").arg("--version")).is_err() {
        return Ok(Outcome::Skipped(
            "there is no C++ compiler (g++)".to_owned(),
        ));
    }
    let folder = root().join("fuzz");
    let names = names(&folder)?;
    if let Some(unknown) = only.iter().find(|name| !names.contains(name)) {
        bail!(
            "unknown fuzz target `{unknown}`: expected one of {}",
            names.join(", ")
        );
    }
    let target = outside::target()?.join("fuzz");
    let build = |arguments: &[&str], flags: &str| {
        println!("$ cargo {} (in fuzz/)", arguments.join(" "));
        let status = Command::new(env!("CARGO"))
            .args(arguments)
            .arg("--target-dir")
            .arg(&target)
            .current_dir(&folder)
            .env("RUSTFLAGS", flags)
            .status()
            .context("cannot start cargo")?;
        if status.success() {
            Ok(())
        } else {
            bail!("cargo failed ({status})")
        }
    };
    // The corpus is written by an ordinary program: an instrumented one needs libFuzzer's main function.
    build(&["build", "--release", "--bin", "samples"], "")?;
    outside::run(Command::new(target.join("release/samples")).current_dir(&folder))?;
    let selected: Vec<&String> = names
        .iter()
        .filter(|name| only.is_empty() || only.contains(name))
        .collect();
    let mut arguments = vec!["build", "--release", "--target", TRIPLE];
    for name in &selected {
        arguments.extend(["--bin", name.as_str()]);
    }
    build(&arguments, COVERAGE)?;
    let mut crashed = Vec::new();
    for name in selected {
        let program = target.join(TRIPLE).join("release").join(name);
        if !fuzz(&program, &folder, name, seconds)? {
            crashed.push(name.as_str());
        }
    }
    if !crashed.is_empty() {
        bail!(
            "crashes in {}; their inputs are in fuzz/artifacts",
            crashed.join(", ")
        );
    }
    Ok(Outcome::Passed)
}

/// With `--target`, the flags apply to the targets and not to build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Returns the names of the targets: one file each.
fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in
        std::fs::read_dir(folder.join("fuzz_targets")).context("cannot read fuzz/fuzz_targets")?
    {
        let path = entry?.path();
        names.extend(
            path.file_stem()
                .map(|stem| stem.to_string_lossy().into_owned()),
        );
    }
    names.sort();
    Ok(names)
}

/// Runs one target; returns whether it found nothing.
fn fuzz(program: &Path, folder: &Path, name: &str, seconds: u32) -> Result<bool> {
    let corpus = folder.join("corpus").join(name);
    let artifacts = folder.join("artifacts").join(name);
    std::fs::create_dir_all(&corpus).context("cannot make the corpus folder")?;
    std::fs::create_dir_all(&artifacts).context("cannot make the artifacts folder")?;
    let output = Command::new(program)
        .arg(&corpus)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let log = String::from_utf8_lossy(&output.stderr);
    let done = log
        .lines()
        .rev()
        .find(|line| line.starts_with("Done "))
        .unwrap_or("stopped");
    println!("{name:16} {done}");
    if !output.status.success() {
        let end: Vec<&str> = log.lines().rev().take(30).collect();
        for line in end.iter().rev() {
            println!("  {line}");
        }
    }
    Ok(output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_declared_in_the_manifest() {
        let folder = root().join("fuzz");
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for name in names(&folder).unwrap() {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
    }

    #[test]
    fn a_bad_command_line_is_refused() {
        for arguments in [
            &["--seconds"][..],
            &["--seconds", "soon"],
            &["--minutes", "1"],
        ] {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            assert!(command(&arguments).is_err());
        }
    }
}
