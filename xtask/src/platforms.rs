//! Checks the job documents for other platforms with the Python packages of these platforms.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{self, Outcome};
use crate::{python, root};

/// The folder of the program that checks, and of the packages that it needs.
const CHECKS: &str = "crates/submit/tests/python";

/// Runs the check with the command that was built in `target`. Skipped where there is no Python or where the packages cannot
/// be installed.
pub(crate) fn test(target: &Path) -> Result<Outcome> {
    let packages = format!("{CHECKS}/requirements.txt");
    let python = match python::environment(&target.join("python-platforms"), &packages) {
        Ok(python) => python,
        Err(error) => {
            return steps::skip_or_fail(format!(
                "cannot install the packages of platforms: {error:#}"
            ));
        }
    };
    let status = Command::new(python)
        .arg(root().join(CHECKS).join("check_documents.py"))
        .arg(target.join("release/ronde"))
        .status()
        .context("starting Python")?;
    match status.success() {
        true => Ok(Outcome::Passed),
        false => bail!("a platform refuses a document ({status})"),
    }
}
