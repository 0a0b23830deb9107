//! Files of samples as TensorFlow, pyarrow, webdataset and numpy write and read them, against ours.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::root;

/// Writes, compares, reads.
const CHECK: &str = "crates/data/tests/python/check.py";
/// What it needs, with versions.
const PACKAGES: &str = "crates/data/tests/python/requirements.txt";

/// Runs the comparison with the command and the example that lie in `target`. Skipped with a word where there is no Python,
/// or the packages cannot be fetched.
pub(crate) fn test(target: &Path) -> Result<()> {
    let environment = target.join("python-formats");
    let python = environment.join("bin/python3");
    if !is_complete(&python)? {
        println!("formats: fetching TensorFlow, pyarrow, webdataset and numpy, once");
        if let Err(error) = make(&environment, &python) {
            println!("formats: the comparison with Python is skipped: {error:#}");
            return Ok(());
        }
    }
    let status = Command::new(&python)
        .arg(root().join(CHECK))
        .arg(target.join("release/ronde"))
        .arg(target.join("release/examples/records"))
        .status()
        .context("starting Python")?;
    match status.success() {
        true => Ok(()),
        false => bail!("files of samples are not what Python's libraries have ({status})"),
    }
}

/// The packages as they were last installed, in the environment.
fn installed(python: &Path) -> Option<std::path::PathBuf> {
    Some(python.parent()?.parent()?.join("installed.txt"))
}

fn is_complete(python: &Path) -> Result<bool> {
    let packages = std::fs::read(root().join(PACKAGES)).context("reading what Python needs")?;
    let there = installed(python).and_then(|path| std::fs::read(path).ok());
    Ok(python.exists() && there == Some(packages))
}

fn make(environment: &Path, python: &Path) -> Result<()> {
    crate::outside::run(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(environment),
    )?;
    let packages = root().join(PACKAGES);
    let mut install = Command::new(python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--retries",
        "1",
        "--requirement",
    ]);
    crate::outside::run(install.arg(&packages))?;
    let installed = installed(python).context("the environment has a folder")?;
    std::fs::copy(packages, installed).context("noting what was installed")?;
    Ok(())
}
