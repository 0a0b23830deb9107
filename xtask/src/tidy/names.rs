//! One meaning for each type name, and names that say what a type holds.

use std::collections::BTreeMap;

use regex::Regex;

use super::{Source, is_workspace_code};

/// Names that may be defined in several modules, because the module qualifies them.
const QUALIFIED: &[&str] = &["Error", "Config", "Settings", "Builder"];

/// Names that are defined more than once for another reason, as (name, reason). The list can only shrink.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Participles, auxiliaries and words with a private meaning. A type is named after the thing that it holds.
const BANNED: &[&str] = &[
    "Asked", "Asks", "Begun", "Came", "Chore", "Chosen", "Course", "Courses", "Crew", "Crowd",
    "Done", "Found", "Greeted", "Heard", "Held", "Kept", "Lot", "Made", "Opened", "Over",
    "Patience", "Place", "Places", "Read", "Seat", "Seen", "Standing", "Told", "Wanted", "Way",
    "Whole", "Wish", "Wishes", "Word", "Words",
];

/// Returns one sentence for each name that is defined more than once or banned. Test code does not count.
pub(crate) fn problems(files: &[Source]) -> Vec<String> {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_production(&file.name)) {
        for (name, line) in types(&file.text) {
            let position = format!("{}:{line}", file.name);
            definitions.entry(name).or_default().push(position);
        }
    }
    let mut problems = Vec::new();
    for (name, positions) in definitions {
        let is_excepted = QUALIFIED.contains(&name.as_str())
            || EXCEPTIONS.iter().any(|(excepted, _)| *excepted == name);
        if positions.len() > 1 && !is_excepted {
            let positions = positions.join(", ");
            problems.push(format!(
                "the type name {name} has several meanings: {positions}"
            ));
        } else if BANNED.contains(&name.as_str()) {
            let position = &positions[0];
            problems.push(format!("{position}: name the thing that {name} holds"));
        }
    }
    problems
}

fn is_production(name: &str) -> bool {
    let is_test = name.split('/').any(|part| {
        matches!(
            part,
            "tests" | "testing" | "examples" | "tests.rs" | "testing.rs"
        ) || part.ends_with("_tests.rs")
    });
    // Classes of the Python package have the names of what they wrap.
    is_workspace_code(name) && !name.starts_with("python/") && !is_test
}

/// Returns name and line of each type that the file defines before its tests.
fn types(text: &str) -> Vec<(String, usize)> {
    let definition = Regex::new(
        r"^(?:\s*(?:pub(?:\([a-z: ]+\))? )?(?:unsafe )?(?:struct|enum|trait|union)|(?:pub(?:\([a-z: ]+\))? )?type) ([A-Z][A-Za-z0-9]*)",
    )
    .expect("a valid expression");
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    let end = tests.unwrap_or(lines.len());
    let mut found = Vec::new();
    for (index, line) in lines[..end].iter().enumerate() {
        let is_for_tests = index > 0 && lines[index - 1].trim() == "#[cfg(test)]";
        if let Some(name) = definition.captures(line).filter(|_| !is_for_tests) {
            found.push((name[1].to_owned(), index + 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> Source {
        Source {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_name_with_two_definitions_and_a_banned_name_are_found() {
        let files = [
            file(
                "crates/a/src/x.rs",
                "pub struct Page;\npub(crate) enum Told { A }\n",
            ),
            file(
                "crates/b/src/y.rs",
                "    trait Page {}\nstruct Error;\ntype Row = u8;\n",
            ),
            file(
                "crates/c/src/z.rs",
                "struct Error;\nimpl A { type Row = u8; }\n",
            ),
        ];
        let problems = problems(&files);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0]
                .contains("Page has several meanings: crates/a/src/x.rs:1, crates/b/src/y.rs:1")
        );
        assert!(problems[1].starts_with("crates/a/src/x.rs:2: name the thing that Told holds"));
    }

    #[test]
    fn test_code_is_left_out() {
        let unit = "struct A;\n#[cfg(test)]\nmod tests {\n    struct B;\n}\n";
        assert_eq!(types(unit), [("A".to_owned(), 1)]);
        assert!(!is_production("crates/a/tests/jobs/x.rs"));
        assert!(!is_production("crates/a/src/b/tests.rs"));
        assert!(is_production("crates/a/src/b.rs"));
    }
}
