//! `cargo xtask dist`: a release binary that runs on old systems, with its checksum.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::outside::run as output_of;
use crate::{outside, root};

/// The compiler driver and the C toolchain that link against an old C library, from PyPI.
const TOOLS: &[&str] = &["cargo-zigbuild==0.24.0", "ziglang==0.15.2"];
/// The oldest glibc that the binary runs on: Debian 10, Ubuntu 20.04, RHEL 8.
const GLIBC: (u32, u32) = (2, 28);
const GNU: &str = "x86_64-unknown-linux-gnu";
const MUSL: &str = "x86_64-unknown-linux-musl";

/// Builds the command with all features for glibc, and for musl where that target is installed, into `target/dist`.
pub(crate) fn dist() -> Result<()> {
    let target = outside::target()?;
    let tools = tools(&target)?;
    let folder = target.join("dist");
    std::fs::create_dir_all(&folder).context("cannot make the folder target/dist")?;
    let glibc = format!("{GNU}.{}.{}", GLIBC.0, GLIBC.1);
    let binary = build(&tools, &target, GNU, &glibc)?;
    check_symbols(&binary)?;
    pack(&binary, &folder, GNU)?;
    if is_installed(MUSL)? {
        let binary = build(&tools, &target, MUSL, MUSL)?;
        pack(&binary, &folder, MUSL)?;
    } else {
        println!("musl: skipped: `rustup target add {MUSL}` installs the target");
    }
    Ok(())
}

/// Installs the tools, once, and returns the folder of their programs.
fn tools(target: &Path) -> Result<PathBuf> {
    let environment = target.join("dist-tools");
    let programs = environment.join("bin");
    let is_complete = Command::new(programs.join("cargo-zigbuild"))
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !is_complete {
        println!("installing {}", TOOLS.join(" and "));
        output_of(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment),
        )?;
        let mut pip = Command::new(programs.join("python3"));
        pip.args(["-m", "pip", "install", "--quiet", "--retries", "1"]);
        output_of(pip.args(TOOLS)).context("cannot install the tools from PyPI")?;
    }
    Ok(programs)
}

/// Builds for one target; `zig_target` may name the version of the C library. Returns the binary.
fn build(tools: &Path, target: &Path, rust_target: &str, zig_target: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(tools.to_owned()).chain(std::env::split_paths(&path));
    // Debug information, of which there is none, and symbols are removed: a third of the size.
    let arguments = [
        "zigbuild",
        "--release",
        "--locked",
        "--package",
        "ronde",
        "--features",
        "full",
        "--target",
        zig_target,
    ];
    println!("$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .env("PATH", std::env::join_paths(paths)?)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo zigbuild failed ({status})");
    }
    Ok(target.join(rust_target).join("release/ronde"))
}

/// Fails if the binary needs symbols of a newer glibc, and runs it once.
fn check_symbols(binary: &Path) -> Result<()> {
    let symbols = output_of(
        Command::new("readelf")
            .args(["-W", "--version-info"])
            .arg(binary),
    )?;
    let newest = newest_glibc(&String::from_utf8_lossy(&symbols.stdout));
    let newest = newest.context("readelf lists no symbols of glibc")?;
    if newest > GLIBC {
        bail!("{} needs glibc {}.{}", binary.display(), newest.0, newest.1);
    }
    output_of(Command::new(binary).arg("--version"))?;
    println!("needs glibc {}.{} or newer", newest.0, newest.1);
    Ok(())
}

/// Returns the newest version `GLIBC_x.y` that readelf's output mentions.
fn newest_glibc(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let mut numbers = rest[..end].split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

fn is_installed(rust_target: &str) -> Result<bool> {
    let mut rustc = Command::new("rustc");
    let folder = output_of(rustc.args(["--print", "target-libdir", "--target", rust_target]))?;
    Ok(Path::new(String::from_utf8_lossy(&folder.stdout).trim()).is_dir())
}

/// Writes an archive with binary, licences and README, and its SHA-256 in the format of `sha256sum`.
fn pack(binary: &Path, folder: &Path, rust_target: &str) -> Result<()> {
    let name = format!("ronde-{}-{rust_target}", env!("CARGO_PKG_VERSION"));
    let staged = folder.join(&name);
    std::fs::create_dir_all(&staged)?;
    std::fs::copy(binary, staged.join("ronde")).context("cannot copy the binary")?;
    for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"] {
        std::fs::copy(root().join(file), staged.join(file))
            .with_context(|| format!("cannot copy {file}"))?;
    }
    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.current_dir(folder).args([
        "--owner=0",
        "--group=0",
        "--sort=name",
        "-czf",
        &archive,
        &name,
    ]);
    output_of(&mut tar)?;
    let sum = output_of(Command::new("sha256sum").arg(&archive).current_dir(folder))?;
    std::fs::write(folder.join(format!("{archive}.sha256")), &sum.stdout)?;
    println!("{}", folder.join(&archive).display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_glibc_is_compared_by_number() {
        let symbols = "0x0: Name: GLIBC_2.9  Flags\n Name: GLIBC_2.28 Flags\n Name: GLIBC_2.17\n Name: GLIBC_PRIVATE";
        assert_eq!(newest_glibc(symbols), Some((2, 28)));
        assert_eq!(newest_glibc("none"), None);
    }
}
