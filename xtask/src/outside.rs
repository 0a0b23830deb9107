//! Packages beside the workspace, which would change its builds: models of locks, the use from Python;
//! and what tests need of the system.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::{cargo, root};

/// The locks of `Work` under a model checker.
const SCHEDULES: &str = "crates/comm/tests/schedules/Cargo.toml";
/// Process groups as a Python module.
const PYTHON: &str = "crates/comm/tests/python";
/// Makes a Python with torch.
const PREPARE: &str = "benchmarks/prepare_torch.py";
/// It ends so where nothing can be fetched.
const UNREACHABLE: i32 = 3;
/// The oldest Python that loads the module: `abi3-py310`.
const PYTHON_MIN: (u32, u32) = (3, 10);

/// All manifests that the workspace's commands do not reach.
pub(crate) const MANIFESTS: [&str; 3] = [
    SCHEDULES,
    "crates/comm/tests/python/Cargo.toml",
    "fuzz/Cargo.toml",
];

/// Where cargo builds.
pub(crate) fn target() -> Result<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root())
        .output()
        .context("cargo metadata could not be started")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("reading what cargo metadata says")?;
    let folder = metadata["target_directory"].as_str();
    Ok(PathBuf::from(
        folder.context("cargo metadata names no target folder")?,
    ))
}

/// Tests all of them. What needs Python is skipped with a word where there is none.
pub(crate) fn test() -> Result<()> {
    let target = target()?;
    let folder = target
        .to_str()
        .context("the target folder's name is text")?;
    let shared = ["--release", "--target-dir", folder, "--manifest-path"];
    let with = |command: &'static str, manifest: &'static str| {
        let mut arguments = vec![command];
        arguments.extend(shared);
        arguments.push(manifest);
        cargo(&arguments)
    };
    with("test", SCHEDULES)?;
    let Some(python) = python_with_torch(&target)? else {
        return Ok(());
    };
    with("build", MANIFESTS[1])?;
    let modules = target.join("python-modules");
    std::fs::create_dir_all(&modules)?;
    std::fs::copy(
        target.join("release/libronde_spike.so"),
        modules.join("ronde_spike.abi3.so"),
    )
    .context("placing the module")?;
    let status = python
        .command()
        .arg(root().join(PYTHON).join("check.py"))
        .env("PYTHONPATH", modules)
        .status()
        .context("starting Python")?;
    if !status.success() {
        bail!("the use from Python failed ({status})");
    }
    Ok(())
}

/// Makes sure of `ip` and `nft`, by which tests put members into network namespaces and cut them off; an
/// error says why there is none, and those tests then skip themselves.
pub(crate) fn network_namespaces() -> Result<()> {
    let has_both = || {
        run(Command::new("ip").arg("-Version"))?;
        run(Command::new("nft").arg("--version")).map(drop)
    };
    if has_both().is_ok() {
        return Ok(());
    }
    let who = run(Command::new("id").arg("-u"))?;
    if who.stdout.trim_ascii() != b"0" {
        bail!("no ip or nft, and not root to install them");
    }
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(["-qq", "-o", "Acquire::Retries=1"])
            .args(arguments);
        run(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = ["install", "-y", "--no-install-recommends"];
    let install = [&install[..], &["iproute2", "nftables"]].concat();
    if apt(&install).is_err() {
        let not_here = "no ip or nft, and their packages are not to be had";
        apt(&["update"]).context(not_here)?;
        apt(&install).context(not_here)?;
    }
    has_both()
}

/// A Python environment of this build's own that has numpy; an error says why there is none.
/// It has torch as well, and is made once. `None`, with a word, where there is no Python to make it with,
/// or where nothing can be fetched.
fn python_with_torch(target: &Path) -> Result<Option<Python>> {
    let version = "import sys; print(sys.version_info[0], sys.version_info[1])";
    let Ok(found) = run(Command::new("python3").args(["-c", version])) else {
        println!("python: skipped, there is no python3");
        return Ok(None);
    };
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let mut numbers = found.split_whitespace().map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= PYTHON_MIN => {}
        _ => bail!("python3 is {}, older than 3.10", found.trim()),
    }
    let environment = target.join("python-environment");
    let python = Python {
        program: environment.join("bin/python3"),
        libraries: environment.join("stand-ins"),
    };
    if python.is_complete() {
        return Ok(Some(python));
    }
    println!("python: fetching numpy and torch, once");
    let status = Command::new("python3")
        .arg(root().join(PREPARE))
        .arg(&environment)
        .status()
        .context("starting Python")?;
    match status.code() {
        Some(0) => Ok(Some(python)),
        Some(UNREACHABLE) => {
            println!("python: skipped, numpy and torch are not here and PyPI cannot be reached");
            Ok(None)
        }
        _ => bail!("{PREPARE} failed ({status})"),
    }
}

/// A Python with numpy and torch.
struct Python {
    program: PathBuf,
    /// Stand-ins for the libraries that torch expects.
    libraries: PathBuf,
}

impl Python {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command
    }

    fn is_complete(&self) -> bool {
        run(self.command().args(["-c", "import numpy, torch"])).is_ok()
    }
}

/// What a program answers; an error when it cannot be started or fails, with its last words.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .output()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("{}", words.lines().last().unwrap_or("it failed"));
    }
    Ok(output)
}
