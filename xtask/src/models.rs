//! Compares exported models with onnxruntime, PyTorch and torchvision.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::outside::{self, Python};
use crate::steps::{self, Outcome};
use crate::{python, root};

/// The folder of the programs that compare, and of the lists of packages that they need.
const CHECKS: &str = "crates/saved-model/tests/python";

/// Runs the comparison with the example that was built in `target`. Skipped where there is no Python or where its
/// packages cannot be installed.
pub(crate) fn test(target: &Path) -> Result<Outcome> {
    let folder = target.join("exported-models");
    let status = Command::new(target.join("release/examples/every_model"))
        .arg(&folder)
        .status()
        .context("starting the example every_model")?;
    if !status.success() {
        bail!("the models cannot be exported ({status})");
    }
    let packages = format!("{CHECKS}/requirements.txt");
    let runtime = match python::environment(&target.join("python-onnx"), &packages) {
        Ok(python) => python,
        Err(error) => {
            return steps::skip_or_fail(format!("cannot install onnxruntime: {error:#}"));
        }
    };
    check(&mut Command::new(runtime), "check_onnx.py", &folder)?;
    let torch = match outside::python_with_torch(target)? {
        Ok(torch) => torch,
        Err(reason) => return steps::skip_or_fail(format!("weights in PyTorch: {reason}")),
    };
    let mut command = torch.command();
    match torchvision(target, &torch) {
        Ok(folder) => {
            command.env("PYTHONPATH", folder);
        }
        Err(error) => {
            check(&mut command, "check_torch.py", &folder)?;
            return steps::skip_or_fail(format!("cannot install torchvision: {error:#}"));
        }
    }
    check(&mut command, "check_torch.py", &folder)?;
    Ok(Outcome::Passed)
}

/// Returns a folder with torchvision, which is installed once, without the packages that it depends on.
fn torchvision(target: &Path, torch: &Python) -> Result<String> {
    let folder = target.join("python-torchvision");
    let text = folder
        .to_str()
        .context("the target folder's name is text")?;
    let list = root().join(CHECKS).join("requirements-torch.txt");
    let installed = folder.join("installed.txt");
    let wanted = std::fs::read(&list).context("cannot read the list of packages")?;
    if std::fs::read(&installed).is_ok_and(|found| found == wanted) {
        return Ok(text.to_owned());
    }
    let options = ["--no-deps", "--upgrade", "--target", text, "--requirement"];
    python::install(&torch.program, &options, &list)?;
    std::fs::write(installed, wanted).context("cannot record the installed packages")?;
    Ok(text.to_owned())
}

fn check(command: &mut Command, program: &str, folder: &Path) -> Result<()> {
    let status = command
        .arg(root().join(CHECKS).join(program))
        .arg(folder)
        .status()
        .context("starting Python")?;
    if !status.success() {
        bail!("{program} found a difference ({status})");
    }
    Ok(())
}
