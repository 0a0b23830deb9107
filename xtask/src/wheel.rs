//! `cargo xtask wheel`: the Python package with the command in it, and its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::outside::{self, Python, python_with_torch, run};
use crate::steps::{self, Outcome};
use crate::{FULL, cargo, python, root};

/// What builds the wheel and checks its types, from PyPI.
const TOOLS: &str = "python/tools.txt";
/// The oldest Python that loads the package: `abi3-py311`.
const PYTHON_MIN: (u32, u32) = (3, 11);
/// The place from which the wheel takes the command, in the folder of the package.
const COMMAND: &str = "ronde.data/scripts/ronde";

/// Builds the wheel into `target/wheels` and says how to install it.
pub(crate) fn build_and_tell() -> Result<()> {
    let wheel = build(&outside::target()?)?;
    println!("install it with: pip install {}", wheel.display());
    Ok(())
}

/// Builds the wheel. Returns its file.
fn build(target: &Path) -> Result<PathBuf> {
    let maturin = tool(target, "maturin")?;
    // Both with the features of the tests, for which most of it is built already.
    cargo(&["build", "--release", "-p", "ronde", "--features", FULL])?;
    let folder = root().join("python");
    let command = folder.join(COMMAND);
    let scripts = command.parent().context("the command is in a folder")?;
    std::fs::create_dir_all(scripts).context("cannot make the folder of the command")?;
    std::fs::copy(target.join("release/ronde"), &command).context("cannot copy the command")?;
    run(Command::new("strip").arg(&command)).context("cannot strip the command")?;
    let wheels = target.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("cannot remove earlier wheels")?;
    }
    let features = format!("ronde/cli,{FULL}");
    let mut build = Command::new(maturin);
    build.args(["build", "--release", "--quiet", "--locked", "--strip"]);
    build.args(["--compatibility", "linux", "--features", &features]);
    build.arg("--manifest-path").arg(folder.join("Cargo.toml"));
    build
        .arg("--out")
        .arg(&wheels)
        .arg("--target-dir")
        .arg(target);
    println!("$ maturin build");
    run(&mut build).context("cannot build the wheel")?;
    let found = std::fs::read_dir(&wheels).context("there is no wheel")?;
    let mut files = found.filter_map(|entry| Some(entry.ok()?.path()));
    files.next().context("there is no wheel")
}

/// Installs a tool, once, and returns its program.
fn tool(target: &Path, name: &str) -> Result<PathBuf> {
    let python = python::environment(&target.join("wheel-tools"), TOOLS)?;
    Ok(python.with_file_name(name))
}

/// Builds the wheel, installs it, and runs its tests. They are skipped, with the reason, where there is no Python for it.
pub(crate) fn test(target: &Path) -> Result<Outcome> {
    let python = match python_with_torch(target)? {
        Ok(python) => python,
        Err(reason) => return steps::skip_or_fail(format!("use from Python: {reason}")),
    };
    let (major, minor) = PYTHON_MIN;
    let version = format!("import sys; sys.exit(sys.version_info < ({major}, {minor}))");
    if run(python.command().args(["-c", &version])).is_err() {
        return steps::skip_or_fail(format!(
            "use from Python: python3 is older than {major}.{minor}"
        ));
    }
    let wheel = match tool(target, "maturin") {
        Ok(_) => build(target)?,
        Err(error) => return steps::skip_or_fail(format!("use from Python: {error:#}")),
    };
    let installed = target.join("python-wheel");
    let mut pip = python.command();
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]);
    run(pip.arg("--target").arg(&installed).arg(&wheel)).context("cannot install the wheel")?;
    check_types(target, &python)?;
    let command = installed.join("bin/ronde");
    let rounds = Path::new("2");
    let programs: [(&str, &[&Path]); 4] = [
        ("groups.py", &[]),
        ("same_bits.py", &[]),
        ("elastic.py", &[&command, rounds]),
        ("documentation.py", &[&command]),
    ];
    for (program, arguments) in programs {
        check(&python, &installed, program, arguments)?;
    }
    Ok(Outcome::Passed)
}

/// Checks the types of the package.
fn check_types(target: &Path, python: &Python) -> Result<()> {
    let mut mypy = Command::new(tool(target, "mypy")?);
    mypy.arg("--python-executable").arg(&python.program);
    mypy.args(["--no-error-summary", "--cache-dir"]);
    mypy.arg(target.join("mypy")).arg("ronde");
    let status = mypy.current_dir(root().join("python")).status();
    if !status.context("starting mypy")?.success() {
        bail!("the types of the Python package are wrong");
    }
    Ok(())
}

/// Runs a test program with the installed package.
fn check(python: &Python, installed: &Path, program: &str, arguments: &[&Path]) -> Result<()> {
    let status = python
        .command()
        .arg(root().join("python/tests").join(program))
        .args(arguments)
        .env("PYTHONPATH", installed)
        .status()
        .context("starting Python")?;
    if !status.success() {
        bail!("{program} failed ({status})");
    }
    Ok(())
}
