//! Compares the data formats with files that TensorFlow, pyarrow, webdataset and numpy write and read.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::root;
use crate::steps::{self, Outcome};

/// The program that writes, compares and reads.
const CHECK: &str = "crates/data/tests/python/check.py";
/// The packages that it needs, with versions.
const PACKAGES: &str = "crates/data/tests/python/requirements.txt";

/// Runs the comparison with the command and the example that were built in `target`. Skipped where there is no Python
/// or where its packages cannot be installed.
pub(crate) fn test(target: &Path) -> Result<Outcome> {
    let environment = target.join("python-formats");
    let python = environment.join("bin/python3");
    if !is_complete(&python)? {
        println!("installing TensorFlow, pyarrow, webdataset and numpy, once");
        if let Err(error) = make(&environment, &python) {
            return steps::skip_or_fail(format!("cannot install the Python packages: {error:#}"));
        }
    }
    let status = Command::new(&python)
        .arg(root().join(CHECK))
        .arg(target.join("release/ronde"))
        .arg(target.join("release/examples/records"))
        .status()
        .context("starting Python")?;
    match status.success() {
        true => Ok(Outcome::Passed),
        false => bail!("the files read differ from those that Python's libraries wrote ({status})"),
    }
}

/// Returns the path of the list of packages as they were last installed in the environment.
fn installed(python: &Path) -> Option<std::path::PathBuf> {
    Some(python.parent()?.parent()?.join("installed.txt"))
}

fn is_complete(python: &Path) -> Result<bool> {
    let packages =
        std::fs::read(root().join(PACKAGES)).context("cannot read the list of packages")?;
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
    std::fs::copy(packages, installed).context("cannot record the installed packages")?;
    Ok(())
}
