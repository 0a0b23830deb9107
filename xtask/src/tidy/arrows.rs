//! Which crate may use which: `cargo metadata` against the table of ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Crate, and the crates of ours that it may use. Tests may use more.
const ALLOWED: &[(&str, &[&str])] = &[
    ("ronde-core", &[]),
    ("ronde-testing", &[]),
    ("ronde-clock", &[]),
    ("ronde-report", &[]),
    (
        "ronde-wire",
        &["ronde-core", "ronde-clock", "ronde-identity"],
    ),
    ("ronde-schedule", &["ronde-core"]),
    ("ronde-identity", &["ronde-core"]),
    ("ronde-store", &["ronde-core", "ronde-clock"]),
    (
        "ronde-checkpoint",
        &["ronde-core", "ronde-clock", "ronde-store"],
    ),
    ("ronde-peer-memory", &[]),
    (
        "ronde-comm",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-schedule",
            "ronde-identity",
            "ronde-peer-memory",
            "ronde-wire",
        ],
    ),
    ("ronde-protocol", &["ronde-core"]),
    ("ronde-kernels", &[]),
    ("ronde-engine", &["ronde-core", "ronde-kernels"]),
    ("ronde-data", &["ronde-core", "ronde-clock", "ronde-store"]),
    ("ronde-saved-model", &["ronde-core", "ronde-engine"]),
    (
        "ronde-serve",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-engine",
            "ronde-data",
            "ronde-identity",
            "ronde-saved-model",
        ],
    ),
    (
        "ronde-parallel",
        &[
            "ronde-core",
            "ronde-schedule",
            "ronde-engine",
            "ronde-protocol",
        ],
    ),
    (
        "ronde-train",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-schedule",
            "ronde-comm",
            "ronde-engine",
            "ronde-data",
            "ronde-saved-model",
            "ronde-parallel",
            "ronde-store",
            "ronde-checkpoint",
            "ronde-protocol",
        ],
    ),
    (
        "ronde-cluster",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-protocol",
            "ronde-identity",
            "ronde-report",
            "ronde-store",
            "ronde-wire",
        ],
    ),
    (
        "ronde-submit",
        &["ronde-core", "ronde-clock", "ronde-identity"],
    ),
    ("ronde-python", &["ronde"]),
    ("ronde-sweep", &["ronde-core", "ronde-report"]),
    (
        "ronde-planner",
        &[
            "ronde-core",
            "ronde-report",
            "ronde-schedule",
            "ronde-protocol",
        ],
    ),
    (
        "ronde-tracking",
        &["ronde-core", "ronde-clock", "ronde-report"],
    ),
    (
        "ronde-dashboard",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-identity",
            "ronde-tracking",
        ],
    ),
    (
        "ronde-rpc",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-identity",
            "ronde-engine",
            "ronde-peer-memory",
            "ronde-wire",
        ],
    ),
    (
        "ronde-bench",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-schedule",
            "ronde-identity",
            "ronde-comm",
            "ronde-kernels",
            "ronde-protocol",
            "ronde-report",
        ],
    ),
    (
        "ronde",
        &[
            "ronde-core",
            "ronde-clock",
            "ronde-schedule",
            "ronde-identity",
            "ronde-store",
            "ronde-comm",
            "ronde-engine",
            "ronde-data",
            "ronde-saved-model",
            "ronde-serve",
            "ronde-parallel",
            "ronde-checkpoint",
            "ronde-train",
            "ronde-cluster",
            "ronde-submit",
            "ronde-sweep",
            "ronde-planner",
            "ronde-report",
            "ronde-tracking",
            "ronde-bench",
            "ronde-burn",
            "ronde-dashboard",
            "ronde-rpc",
            "ronde-protocol",
        ],
    ),
    ("ronde-burn", &["ronde-core", "ronde-engine"]),
    ("ronde-sim", &["ronde-core", "ronde-protocol"]),
    ("xtask", &["ronde-clock"]),
];

/// Crates that only one of ours may depend on, tests included.
const OWNED: &[(&str, &str)] = &[("burn", "ronde-burn")];

/// What is wrong with the arrows, one sentence each.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("cargo metadata could not be started")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    Ok(compare(&metadata))
}

fn compare(metadata: &Value) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut problems = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(may_use) = allowed.get(name) else {
            problems.push(format!(
                "crate {name} is not in the table of xtask/src/tidy/arrows.rs"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            let is_normal = dependency["kind"].is_null();
            if is_normal && allowed.contains_key(used) && !may_use.contains(&used) {
                problems.push(format!("{name} must not use {used}"));
            }
            if let Some((_, owner)) = OWNED
                .iter()
                .find(|(owned, owner)| *owned == used && *owner != name)
            {
                problems.push(format!("{name} must not use {used}: it belongs to {owner}"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_forbidden_arrow_is_named() {
        let metadata = json!({"packages": [
            {"name": "ronde-comm", "dependencies": [
                {"name": "ronde-core", "kind": null}, {"name": "ronde-engine", "kind": null},
                {"name": "burn", "kind": null}, {"name": "serde", "kind": null},
            ]},
            {"name": "ronde-schedule", "dependencies": [{"name": "ronde-comm", "kind": "dev"}]},
            {"name": "ronde-new", "dependencies": []},
        ]});
        let problems = compare(&metadata);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("ronde-comm must not use ronde-engine"));
        assert!(problems[1].contains("burn: it belongs to ronde-burn"));
        assert!(problems[2].contains("ronde-new is not in the table"));
    }
}
