//! Reads the files and metrics of trackers with TensorBoard, Python's csv and promtool.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{self, Outcome};
use crate::{python, root};

/// The folder of the program that trains and reads, and of the packages that it needs.
const CHECKS: &str = "crates/tracking/tests/python";
/// The variable that names a Python with the package mlflow.
const MLFLOW_PYTHON: &str = "RONDE_TEST_MLFLOW";

/// Runs the check with the command that was built in `target`. Skipped where there is no Python or where TensorBoard cannot
/// be installed.
pub(crate) fn test(target: &Path) -> Result<Outcome> {
    let packages = format!("{CHECKS}/requirements.txt");
    let python = match python::environment(&target.join("python-trackers"), &packages) {
        Ok(python) => python,
        Err(error) => {
            return steps::skip_or_fail(format!("cannot install TensorBoard: {error:#}"));
        }
    };
    let status = Command::new(python)
        .arg(root().join(CHECKS).join("check_trackers.py"))
        .arg(target.join("release/ronde"))
        .status()
        .context("starting Python")?;
    if !status.success() {
        bail!("the tools read other numbers than those of the events ({status})");
    }
    mlflow(target)
}

/// Reads a run with a real MLflow server. Its package has more than 800 MB, so it is not installed here.
fn mlflow(target: &Path) -> Result<Outcome> {
    let Some(python) = std::env::var_os(MLFLOW_PYTHON) else {
        println!(
            "trackers: MLflow is not checked: {MLFLOW_PYTHON} does not name a Python with mlflow"
        );
        return Ok(Outcome::Passed);
    };
    let status = Command::new(python)
        .arg(root().join(CHECKS).join("check_mlflow.py"))
        .arg(target.join("release/ronde"))
        .status()
        .context("starting Python")?;
    match status.success() {
        true => Ok(Outcome::Passed),
        false => bail!("MLflow has other numbers than those of the events ({status})"),
    }
}
