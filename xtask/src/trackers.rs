//! Reads the files and metrics of trackers with TensorBoard, Python's csv and promtool.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{self, Outcome};
use crate::{python, root};

/// The folder of the program that trains and reads, and of the packages that it needs.
const CHECKS: &str = "crates/monitor/tests/python";

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
    match status.success() {
        true => Ok(Outcome::Passed),
        false => bail!("the tools read other numbers than those of the events ({status})"),
    }
}
