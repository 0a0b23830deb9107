//! `cargo xtask tidy`: the checks that read the repository and build nothing.

mod arrows;
mod markdown;
mod names;
mod phrases;
mod public_api;
mod ratchets;
mod sources;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A text file of the repository.
pub(crate) struct Source {
    /// The path from the workspace's folder, with forward slashes.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Returns whether a file is Rust code of a package of the workspace.
fn is_workspace_code(name: &str) -> bool {
    let folders = ["crates/", "python/", "xtask/"];
    name.ends_with(".rs") && folders.iter().any(|folder| name.starts_with(folder))
}

/// Runs all checks and prints each problem on a line of its own.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = read_all(root)?;
    let mut problems = arrows::problems(root)?;
    problems.extend(sources::problems(&files));
    problems.extend(names::problems(&files));
    problems.extend(phrases::problems(&files));
    problems.extend(markdown::problems(root, &files));
    problems.extend(public_api::problems(root, &files));
    problems.extend(ratchets::problems(&files));
    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    if problems.is_empty() {
        println!("tidy: no problems found");
        return Ok(());
    }
    bail!("tidy found {} problems", problems.len())
}

/// Prints the findings of a count that may only fall.
pub(crate) fn list(root: &Path, count: &str) -> Result<()> {
    let (counted, _) = ratchets::count(&read_all(root)?);
    let Some(findings) = counted.get(count) else {
        let names: Vec<&str> = counted.keys().copied().collect();
        bail!("there is no count {count}; there are: {}", names.join(", "));
    };
    findings.iter().for_each(|place| println!("{place}"));
    println!("{count}: {} findings", findings.len());
    Ok(())
}

/// Accepts the present public interface of the library.
pub(crate) fn accept_public_api(root: &Path) -> Result<()> {
    public_api::accept(root, &read_all(root)?)
}

/// Returns all text files that git tracks or would add. Without git (a source archive), walks the folders.
fn read_all(root: &Path) -> Result<Vec<Source>> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .current_dir(root)
        .output();
    let mut paths: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(|name| root.join(name))
            .collect(),
        _ => {
            let mut paths = Vec::new();
            walk(root, &mut paths)?;
            paths
        }
    };
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        // A tracked file may have been deleted; a binary file is not UTF-8.
        let Ok(bytes) = std::fs::read(&path) else {
            continue;
        };
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        let name = path.strip_prefix(root).unwrap_or(&path);
        files.push(Source {
            name: name.to_string_lossy().replace('\\', "/"),
            text,
        });
    }
    Ok(files)
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_skipped = path
            .file_name()
            .is_some_and(|name| name == "target" || name == ".git");
        if path.is_dir() && !is_skipped {
            walk(&path, paths)?;
        } else if path.is_file() {
            paths.push(path);
        }
    }
    Ok(())
}
