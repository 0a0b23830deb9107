//! Compares the data formats with files that TensorFlow, pyarrow, webdataset, numpy and Pillow write and read.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{self, Outcome};
use crate::{python, root};

/// The program that writes, compares and reads.
const CHECK: &str = "crates/data/tests/python/check.py";
/// The packages that it needs, with versions.
const PACKAGES: &str = "crates/data/tests/python/requirements.txt";

/// Runs the comparison with the command and the examples that were built in `target`. Skipped where there is no Python
/// or where its packages cannot be installed.
pub(crate) fn test(target: &Path) -> Result<Outcome> {
    let python = match python::environment(&target.join("python-formats"), PACKAGES) {
        Ok(python) => python,
        Err(error) => {
            return steps::skip_or_fail(format!("cannot install the Python packages: {error:#}"));
        }
    };
    let status = Command::new(&python)
        .arg(root().join(CHECK))
        .arg(target.join("release/ronde"))
        .arg(target.join("release/examples/records"))
        .arg(target.join("release/examples/images"))
        .status()
        .context("starting Python")?;
    match status.success() {
        true => Ok(Outcome::Passed),
        false => bail!("the files read differ from those that Python's libraries wrote ({status})"),
    }
}
