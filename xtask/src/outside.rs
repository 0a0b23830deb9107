//! Packages outside the workspace, whose dependencies would change its build: models of locks;
//! and the system programs that tests need.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::steps::Outcome;
use crate::{cargo, python, root};

/// The locks of `Work` under a model checker.
const SCHEDULES: &str = "crates/comm/tests/schedules/Cargo.toml";
/// The program that installs numpy and torch.
const PREPARE: &str = "benchmarks/prepare_torch.py";
/// Its exit code where nothing can be downloaded.
const UNREACHABLE: i32 = 3;
/// The oldest Python for which there is a torch.
const PYTHON_MIN: (u32, u32) = (3, 10);

/// All manifests that the workspace's commands do not reach.
pub(crate) const MANIFESTS: [&str; 2] = [SCHEDULES, "fuzz/Cargo.toml"];

/// Returns cargo's target folder.
pub(crate) fn target() -> Result<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root())
        .output()
        .context("cannot start cargo metadata")?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .context("cannot read the output of cargo metadata")?;
    let folder = metadata["target_directory"].as_str();
    Ok(PathBuf::from(folder.context(
        "the output of cargo metadata has no target folder",
    )?))
}

/// Tests the models of locks.
pub(crate) fn test() -> Result<Outcome> {
    let target = target()?;
    let folder = target
        .to_str()
        .context("the target folder's name is text")?;
    let options = ["--release", "--target-dir", folder, "--manifest-path"];
    cargo(&[&["test"], &options[..], &[SCHEDULES]].concat())?;
    Ok(Outcome::Passed)
}

/// Installs `ip` and `nft` where they are missing. Tests use them to put members into network namespaces and to cut
/// links; without them those tests skip themselves.
///
/// # Errors
///
/// The programs are not installed and cannot be.
pub(crate) fn network_namespaces() -> Result<()> {
    let has_both = || {
        run(Command::new("ip").arg("-Version"))?;
        run(Command::new("nft").arg("--version")).map(drop)
    };
    if has_both().is_ok() {
        return Ok(());
    }
    install_packages(&["iproute2", "nftables"]).context("no ip or nft")?;
    has_both()
}

/// Installs an SSH server where it is missing: the hosts of jobs in the tests.
pub(crate) fn ssh_server() -> Result<()> {
    if Path::new("/usr/sbin/sshd").exists() {
        return Ok(());
    }
    install_packages(&["openssh-server", "openssh-client"]).context("no sshd")
}

/// Installs Slurm where it is missing, with which tests start a cluster; without it they skip themselves.
pub(crate) fn slurm() -> Result<()> {
    let programs = ["slurmctld", "slurmd", "munged"].map(|name| Path::new("/usr/sbin").join(name));
    if programs.iter().all(|path| path.exists()) {
        return Ok(());
    }
    install_packages(&["slurm-client", "slurmd", "slurmctld", "munge"]).context("no Slurm")
}

/// Installs two implementations of MPI where they are missing, whose `mpirun` starts runs in the tests; without it these
/// tests skip themselves.
pub(crate) fn mpi() -> Result<()> {
    let programs = ["mpirun.openmpi", "mpirun.mpich"].map(|name| Path::new("/usr/bin").join(name));
    if programs.iter().all(|path| path.exists()) {
        return Ok(());
    }
    install_packages(&["openmpi-bin", "mpich"]).context("no MPI")
}

/// Makes the Python environment with torch, whose `torchrun` starts a run in a test; without it that test skips itself.
pub(crate) fn torchrun() -> Result<()> {
    let python = python_with_torch(&target()?)?;
    python.map(drop).map_err(anyhow::Error::msg)
}

/// Installs Ray, about 400 MB in a minute, in an environment of its own; without it the tests of jobs on Ray skip themselves.
///
/// # Errors
///
/// There is no Python, or nothing can be downloaded.
pub(crate) fn ray() -> Result<()> {
    let folder = target()?.join("python-ray");
    python::environment(&folder, "crates/submit/tests/ray_requirements.txt").map(drop)
}

/// Installs two programs that read container images where they are missing; without them a test skips a part.
pub(crate) fn image_tools() -> Result<()> {
    let programs = ["skopeo", "umoci"].map(|name| Path::new("/usr/bin").join(name));
    if programs.iter().all(|path| path.exists()) {
        return Ok(());
    }
    install_packages(&["skopeo", "umoci"]).context("no tools for images")
}

/// Installs Chromium where it is missing, in which a test opens the page of the dashboard; without it that test skips itself.
///
/// # Errors
///
/// Chromium is not installed and cannot be.
pub(crate) fn browser() -> Result<()> {
    let version = || run(Command::new("chromium").arg("--version")).map(drop);
    if version().is_ok() {
        return Ok(());
    }
    install_packages(&["chromium"]).context("no chromium")?;
    version()
}

/// Installs oneDNN where it is missing, under the name that it has in this version of Debian. The tests of
/// `train.engine = "onednn"` skip themselves without it.
///
/// # Errors
///
/// The library is not installed and cannot be.
pub(crate) fn one_dnn() -> Result<()> {
    let libraries = run(Command::new("ldconfig").arg("-p"))?;
    let libraries = String::from_utf8_lossy(&libraries.stdout);
    let is_installed = ["libdnnl.so.3", "libdnnl.so.2"].map(|file| libraries.contains(file));
    if is_installed.contains(&true) {
        return Ok(());
    }
    let newest = install_packages(&["libdnnl3"]);
    newest
        .or_else(|_| install_packages(&["libdnnl2"]))
        .context("no oneDNN")
}

/// Installs Debian packages.
fn install_packages(packages: &[&str]) -> Result<()> {
    let user = run(Command::new("id").arg("-u"))?;
    if user.stdout.trim_ascii() != b"0" {
        bail!("not root to install {}", packages.join(" and "));
    }
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(["-qq", "-o", "Acquire::Retries=1"])
            .args(arguments);
        run(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = ["install", "-y", "--no-install-recommends"];
    let install = [&install[..], packages].concat();
    if apt(&install).is_err() {
        let not_here = "the packages cannot be installed";
        apt(&["update"]).context(not_here)?;
        apt(&install).context(not_here)?;
    }
    Ok(())
}

/// Returns a Python environment with numpy and torch in the target folder, which is made once; the inner error is
/// the reason for which there is none here.
pub(crate) fn python_with_torch(target: &Path) -> Result<Result<Python, String>> {
    let version = "import sys; print(sys.version_info[0], sys.version_info[1])";
    let Ok(found) = run(Command::new("python3").args(["-c", version])) else {
        return Ok(Err("there is no python3".to_owned()));
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
        return Ok(Ok(python));
    }
    println!("installing numpy and torch, once");
    let status = Command::new("python3")
        .arg(root().join(PREPARE))
        .arg(&environment)
        .status()
        .context("starting Python")?;
    match status.code() {
        Some(0) => Ok(Ok(python)),
        Some(UNREACHABLE) => Ok(Err(
            "numpy and torch cannot be installed from PyPI".to_owned()
        )),
        _ => bail!("{PREPARE} failed ({status})"),
    }
}

/// A Python with numpy and torch.
pub(crate) struct Python {
    pub(crate) program: PathBuf,
    /// Stand-ins for the libraries that torch expects.
    libraries: PathBuf,
}

impl Python {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command
    }

    fn is_complete(&self) -> bool {
        run(self.command().args(["-c", "import numpy, torch"])).is_ok()
    }
}

/// Runs a program and returns its output.
///
/// # Errors
///
/// It cannot be started, or it failed; with the last line of its standard error.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}",
            messages
                .lines()
                .last()
                .unwrap_or("failed without a message")
        );
    }
    Ok(output)
}
