//! Counts that may only fall: habits of the code that are to disappear, each with the number of times that it still occurs.
//!
//! `limits.txt` has the limit of each count. A count above its limit is a problem, and so is one below it, until the limit is lowered.
//! `cargo xtask tidy COUNT` lists the findings.

mod files;
mod modules;
mod order;
mod shapes;
mod widths;

use std::collections::BTreeMap;

use super::Source;
use files::ParsedFile;

const LIMITS: &str = include_str!("limits.txt");

/// What each count has found.
pub(crate) type CountedFindings = BTreeMap<&'static str, Vec<String>>;

/// Returns a sentence for each count that is not at its limit, and for each file that cannot be parsed.
pub(crate) fn problems(files: &[Source]) -> Vec<String> {
    let (counted, mut problems) = count(files);
    let limits = limits();
    for (name, findings) in &counted {
        let Some(&limit) = limits.get(name) else {
            problems.push(format!("xtask/src/tidy/limits.txt has no limit for {name}"));
            continue;
        };
        let found = findings.len();
        if found > limit {
            problems.push(format!(
                "{name}: {found} findings, at most {limit}; `cargo xtask tidy {name}` lists them"
            ));
        }
        if found < limit {
            problems.push(format!(
                "{name}: {found} findings are left: lower its limit of {limit} in xtask/src/tidy/limits.txt"
            ));
        }
    }
    problems
}

/// Returns the findings of each count, and the files that cannot be parsed.
pub(crate) fn count(files: &[Source]) -> (CountedFindings, Vec<String>) {
    let mut problems = Vec::new();
    let mut parsed: Vec<ParsedFile> = Vec::new();
    for file in files.iter().filter(|file| files::is_counted(&file.name)) {
        match ParsedFile::parse(file) {
            Ok(file) => parsed.push(file),
            Err(error) => problems.push(format!("{}: {error}", file.name)),
        }
    }
    let mut counted = shapes::count(&parsed);
    widths::count(&parsed, &mut counted);
    let graphs = modules::graphs(&parsed);
    counted.insert("root_imports", modules::root_imports(&graphs));
    counted.insert("files_in_import_loops", modules::loops(&graphs));
    counted.insert("imports_against_the_order", order::upward(&graphs));
    (counted, problems)
}

fn limits() -> BTreeMap<&'static str, usize> {
    let lines = LIMITS.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(' '));
    let parsed = pairs.filter_map(|(name, limit)| Some((name, limit.trim().parse().ok()?)));
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: &str) -> Source {
        Source {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    fn findings(files: &[(&str, &str)], count: &str) -> Vec<String> {
        let files: Vec<Source> = files
            .iter()
            .map(|(name, text)| source(name, text))
            .collect();
        let (counted, problems) = super::count(&files);
        assert_eq!(problems, Vec::<String>::new());
        counted[count].clone()
    }

    #[test]
    fn every_count_has_a_limit() {
        let (counted, _) = count(&[]);
        let names: Vec<&str> = counted.keys().copied().collect();
        assert_eq!(names, limits().keys().copied().collect::<Vec<_>>());
    }

    #[test]
    fn errors_that_are_texts_are_found_outside_tests() {
        let text = "fn a() -> Result<u8, String> { x }\nimpl T { fn b() -> std::result::Result<(), String>; }\n\
                    #[cfg(test)]\nmod tests { fn c() -> Result<(), String> { y } }\nfn d() -> Result<String, E> { z }";
        let text = text.replace(
            "impl T { fn b() -> std::result::Result<(), String>; }",
            "trait T { fn b() -> std::result::Result<(), String>; }",
        );
        let found = findings(&[("crates/a/src/b.rs", &text)], "text_errors");
        assert_eq!(found, ["crates/a/src/b.rs:1: a", "crates/a/src/b.rs:2: b"]);
    }

    #[test]
    fn variants_that_have_a_sentence_alone_are_found() {
        let text = "enum XError { A { problem: String }, B { path: PathBuf, problem: String }, C(String), D }";
        let found = findings(&[("crates/a/src/b.rs", text)], "sentence_variants");
        assert_eq!(
            found,
            [
                "crates/a/src/b.rs:1: XError::A",
                "crates/a/src/b.rs:1: XError::C"
            ]
        );
    }

    #[test]
    fn elements_of_tuples_count_as_parameters() {
        let text = "fn a(&self, (a, b): (u8, u8), c: u8, d: u8, e: u8, f: u8) {}\n\
                    fn b((a, b): (u8, u8), c: u8, d: u8, e: u8, f: u8, g: u8, h: u8) {}";
        let found = findings(&[("crates/a/src/b.rs", text)], "parameters_above_seven");
        assert_eq!(found, ["crates/a/src/b.rs:2: b has 8"]);
    }

    #[test]
    fn wide_types_count_unless_they_are_data() {
        let (wide, most) = ("f: u8, ".repeat(16), "f: u8, ".repeat(15));
        let text = format!(
            "mod child;\nstruct A {{ {wide} }}\nimpl A {{ fn a(&self) {{}} }}\nstruct B {{ {most} }}\nimpl B {{ fn b(&self) {{}} }}\n\
             #[derive(Clone, serde::Serialize)] struct C {{ {wide} }} impl C {{ fn c(&self) {{}} }}\n\
             struct D {{ {wide} }} impl D {{ fn new() -> Self {{ x }} }}\ntrait E {{ {} }}\ntrait F {{ {} }}",
            "fn m(); ".repeat(9),
            "fn m(); ".repeat(8),
        );
        let files = [("crates/a/src/b.rs", text.as_str())];
        let found = findings(&files, "structs_above_fifteen_fields");
        assert_eq!(found, ["crates/a/src/b.rs:2: A has 16"]);
        let found = findings(&files, "traits_above_eight_methods");
        assert_eq!(found, ["crates/a/src/b.rs:8: E has 9"]);
        assert_eq!(
            findings(&files, "fields_shared_with_child_modules").len(),
            3
        );
    }

    #[test]
    fn imports_of_the_root_are_found_and_followed() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "mod low;\nmod high;\npub use high::Thing;\n",
            ),
            (
                "crates/a/src/low.rs",
                "use crate::Thing;\nfn f() -> crate::high::Other {}\n",
            ),
            ("crates/a/src/high.rs", "use crate::low::f;\n"),
        ];
        let found = findings(&files, "root_imports");
        assert_eq!(found, ["crates/a/src/low.rs: Thing"]);
        let loops = findings(&files, "files_in_import_loops");
        assert_eq!(
            loops,
            Vec::<String>::new(),
            "two files may import each other"
        );
    }

    #[test]
    fn three_files_that_import_each_other_in_a_circle_are_found() {
        let files = [
            ("crates/a/src/lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("crates/a/src/a.rs", "use crate::b::{self, X};\n"),
            ("crates/a/src/b.rs", "use super::c::Y;\n"),
            ("crates/a/src/c.rs", "use crate::a;\n"),
        ];
        let loops = findings(&files, "files_in_import_loops");
        assert_eq!(loops.len(), 3, "{loops:?}");
    }
}
