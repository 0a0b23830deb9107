//! Bugs inside the state machines of `ronde-protocol`: each patch of `mutants/` is applied to a copy of the sources in a temporary
//! folder and built there. The mutant must violate an invariant, or fail a test of the crate if the simulated world cannot show the
//! difference.
//!
//! Takes some minutes and needs `patch`: `cargo test --release -p ronde-sim --test mutants -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of seeds after which a mutant counts as not detected.
const SEEDS: &str = "0..40000";

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Creates a workspace with the crates that the simulator needs.
fn workspace(root: &Path, folder: &Path) {
    for part in ["core", "protocol", "sim"] {
        copy(
            &root.join("crates").join(part),
            &folder.join("crates").join(part),
        );
    }
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let manifest = manifest
        .replace(r#""crates/*", "xtask""#, r#""crates/*""#)
        .replace(r#""crates/ronde""#, r#""crates/sim""#);
    std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
}

fn patch(folder: &Path, patch: &Path, arguments: &[&str]) {
    let mut command = Command::new("patch");
    command.args(["-p1", "-s", "-i"]).arg(patch).args(arguments);
    assert!(
        command.current_dir(folder).status().unwrap().success(),
        "{}",
        patch.display()
    );
}

/// Returns the violation that the simulator reports with the sources in `folder`; `None` if all seeds pass.
fn violation(folder: &Path) -> Option<String> {
    let target = folder.join("target");
    let build = ["build", "--release", "--offline", "-q", "-p", "ronde-sim"];
    let mut command = Command::new(env!("CARGO"));
    command
        .args(build)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", &target);
    assert!(command.status().unwrap().success(), "a mutant must compile");
    let simulator = target.join("release/ronde-sim");
    let output = Command::new(simulator)
        .args(["--seeds", SEEDS])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    (!output.status.success()).then(|| told.lines().next().unwrap_or("a panic").to_owned())
}

/// Returns whether the tests of the state machines fail with the sources in `folder`.
fn fails_tests(folder: &Path) -> bool {
    let test = "test --release --offline -q --lib -p ronde-protocol".split(' ');
    let mut command = Command::new(env!("CARGO"));
    command
        .args(test)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"));
    !command.output().unwrap().status.success()
}

/// Returns the patches, in the order of their names.
fn patches(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("crates/sim/mutants")).unwrap();
    let mut patches: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    patches.sort();
    assert!(patches.len() >= 30);
    patches
}

/// Returns the lines of a patch before or after its change, of one hunk after another.
fn hunks(patch: &str, of_the_source: bool) -> Vec<String> {
    let skipped = if of_the_source { '+' } else { '-' };
    let mut hunks = Vec::new();
    for line in patch.lines() {
        match line.chars().next() {
            Some('@') => hunks.push(String::new()),
            Some(kind @ (' ' | '+' | '-')) if kind != skipped => {
                if let Some(hunk) = hunks.last_mut() {
                    hunk.push_str(&line[1..]);
                    hunk.push('\n');
                }
            }
            _ => {}
        }
    }
    hunks
}

#[test]
fn every_patch_fits_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in patches(&root) {
        let patch = std::fs::read_to_string(&file).unwrap();
        let name = patch.lines().find_map(|line| line.strip_prefix("--- a/"));
        let source = std::fs::read_to_string(root.join(name.unwrap())).unwrap();
        let (before, after) = (hunks(&patch, true), hunks(&patch, false));
        assert!(!before.is_empty() && before != after, "{}", file.display());
        for hunk in before {
            assert!(source.contains(&hunk), "{} does not fit", file.display());
        }
    }
}

#[test]
#[ignore = "builds the simulator once for every mutant"]
fn every_mutant_is_detected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    let _ = std::fs::remove_dir_all(folder.join("crates"));
    workspace(&root, &folder);
    assert_eq!(violation(&folder), None, "the unchanged sources");
    let mut alive = Vec::new();
    for file in patches(&root) {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        patch(&folder, &file, &[]);
        match violation(&folder) {
            Some(told) => println!("{name}: {told}"),
            None if fails_tests(&folder) => {
                println!("{name}: detected by the tests of its crate")
            }
            None => alive.push(name),
        }
        patch(&folder, &file, &["-R"]);
    }
    assert!(
        alive.is_empty(),
        "these mutants were not detected: {alive:?}"
    );
}
