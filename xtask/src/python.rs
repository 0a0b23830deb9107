//! [`environment`]: Python environments with the packages of a list, made once.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::outside::run;
use crate::root;

/// Returns the Python of an environment with the packages of a list, such as `requirements.txt`. It is made again when
/// the list changes.
///
/// # Errors
/// There is no Python, or the packages cannot be installed.
pub(crate) fn environment(folder: &Path, packages: &str) -> Result<PathBuf> {
    let python = folder.join("bin/python3");
    let installed = folder.join("installed.txt");
    let packages = root().join(packages);
    let wanted = std::fs::read(&packages).context("cannot read the list of packages")?;
    if python.exists() && std::fs::read(&installed).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    println!("installing the packages of {}, once", packages.display());
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    install(&python, &["--requirement"], &packages)?;
    std::fs::write(installed, wanted).context("cannot record the installed packages")?;
    Ok(python)
}

/// Installs packages of a list with options, the last of which precedes the list.
///
/// # Errors
/// They cannot be installed.
pub(crate) fn install(python: &Path, options: &[&str], packages: &Path) -> Result<()> {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "install", "--quiet", "--retries", "1"]);
    run(command.args(options).arg(packages)).map(drop)
}
