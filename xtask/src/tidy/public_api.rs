//! The public interface of the library is frozen in `xtask/public-api.txt`, so that no change of it goes unnoticed.
//!
//! The compiler's lint `unreachable_pub` is on, so every `pub` item is a part of the interface and the sources' text
//! lists it completely.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Source;

/// The crates that the facade `ronde` exports, and the one that serves models to other programs.
const CRATES: &[&str] = &[
    "comm",
    "core",
    "data",
    "engine",
    "saved-model",
    "tracking",
    "parallel",
    "protocol",
    "ronde",
    "serve",
    "train",
];
/// Files of the command, which are no library.
const COMMAND: &[&str] = &["crates/ronde/src/command/", "crates/ronde/src/main.rs"];
const ITEMS: &[&str] = &[
    "pub async fn ",
    "pub const ",
    "pub enum ",
    "pub fn ",
    "pub macro ",
    "pub mod ",
    "pub static ",
    "pub struct ",
    "pub trait ",
    "pub type ",
    "pub unsafe ",
    "pub use ",
];
const DIFFERENCES_SHOWN_MAX: usize = 12;

fn snapshot(root: &Path) -> PathBuf {
    root.join("xtask/public-api.txt")
}

/// Returns a sentence for each item that was added to or removed from the interface since it was last accepted.
pub(crate) fn problems(root: &Path, files: &[Source]) -> Vec<String> {
    let accepted = std::fs::read_to_string(snapshot(root)).unwrap_or_default();
    differences(&accepted, &list(files))
}

/// Accepts the present interface.
pub(crate) fn accept(root: &Path, files: &[Source]) -> Result<()> {
    std::fs::write(snapshot(root), list(files)).context("cannot write xtask/public-api.txt")
}

fn differences(accepted: &str, present: &str) -> Vec<String> {
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let (accepted, present) = (sorted(accepted), sorted(present));
    let missing = |from: &[String], of: &[String]| -> Vec<String> {
        let absent = |line: &&String| of.binary_search(line).is_err();
        from.iter().filter(absent).cloned().collect()
    };
    let removed = missing(&accepted, &present);
    let added = missing(&present, &accepted);
    let number = removed.len() + added.len();
    let removed = removed
        .iter()
        .map(|line| format!("removed from the public interface: {line}"));
    let added = added
        .iter()
        .map(|line| format!("added to the public interface: {line}"));
    let mut problems: Vec<String> = removed.chain(added).take(DIFFERENCES_SHOWN_MAX).collect();
    if number > 0 {
        problems.push(format!(
            "the public interface differs in {number} items; `cargo xtask accept` accepts it, CHANGELOG.md describes it"
        ));
    }
    problems
}

/// Returns one line for each public item: the file, then the item without its body.
fn list(files: &[Source]) -> String {
    let mut lines = Vec::new();
    for file in files {
        let is_listed = CRATES
            .iter()
            .any(|name| file.name.starts_with(&format!("crates/{name}/src/")));
        let is_command = COMMAND.iter().any(|prefix| file.name.starts_with(prefix));
        if is_listed
            && !is_command
            && file.name.ends_with(".rs")
            && !file.name.ends_with("tests.rs")
        {
            lines.extend(
                items(&file.text)
                    .into_iter()
                    .map(|item| format!("{}: {item}", file.name)),
            );
        }
    }
    lines.sort();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn items(text: &str) -> Vec<String> {
    let code = text
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    let mut found = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let start = line.trim_start();
        if is_field(start) {
            found.push(start.trim_end_matches(',').to_owned());
            continue;
        }
        if !ITEMS.iter().any(|item| start.starts_with(item)) {
            continue;
        }
        let mut item = start.to_owned();
        // A `use` ends with its semicolon; anything else with its body or its semicolon.
        let ends = |item: &str| {
            let has_body = !item.starts_with("pub use ") && item.contains('{');
            has_body || item.ends_with(';')
        };
        while !ends(&item) {
            let Some(line) = lines.next() else { break };
            item.push(' ');
            item.push_str(line.trim());
        }
        let end = match item.starts_with("pub use ") {
            true => item.len(),
            false => item.find('{').unwrap_or(item.len()),
        };
        let item = item[..end].trim_end_matches([';', ' ']);
        // The value of a constant is not a part of its interface.
        let item = item
            .split(" = ")
            .next()
            .filter(|_| item.starts_with("pub const "))
            .unwrap_or(item);
        found.push(
            item.replace("( ", "(")
                .replace(", )", ")")
                .replace(" .", "."),
        );
    }
    found
}

/// Returns whether the line declares a public field on one line.
fn is_field(line: &str) -> bool {
    let name = line
        .strip_prefix("pub ")
        .and_then(|rest| rest.split_once(": "));
    let is_name = |name: &str| {
        name.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    line.ends_with(',') && name.is_some_and(|(name, _)| is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_listed_without_bodies() {
        let text = "//! Doc.\npub use a::{B, C};\npub struct P {\n    pub x: u8,\n}\nimpl P {\n    pub fn new(\n        x: u8,\n    \
                    ) -> Self {\n        P { x }\n    }\n    pub(crate) fn hidden() {}\n}\npub const N: usize = 3;\n\
                    #[cfg(test)]\nmod tests {\n    pub fn t() {}\n}\n";
        let expected = [
            "pub use a::{B, C}",
            "pub struct P",
            "pub x: u8",
            "pub fn new(x: u8) -> Self",
            "pub const N: usize",
        ];
        assert_eq!(items(text), expected);
    }

    #[test]
    fn a_difference_is_reported_by_item() {
        let problems = differences(
            "a: pub fn x()\na: pub fn y()\n",
            "a: pub fn y()\na: pub fn z()\n",
        );
        assert_eq!(
            problems[0],
            "removed from the public interface: a: pub fn x()"
        );
        assert_eq!(problems[1], "added to the public interface: a: pub fn z()");
        assert_eq!(problems.len(), 3);
        assert!(differences("a\nb\n", "b\na\n").is_empty());
    }
}
