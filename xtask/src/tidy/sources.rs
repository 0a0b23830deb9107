//! Sizes of files and functions, module documentation, and the contents of `lib.rs`.

use super::{Source, is_workspace_code};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// Functions that may be longer, as (file, function). The list can only shrink.
const LONG_FUNCTIONS: &[(&str, &str)] = &[];

/// Returns one sentence for each problem found in the Rust files.
pub(crate) fn problems(files: &[Source]) -> Vec<String> {
    files
        .iter()
        .filter(|file| is_workspace_code(&file.name))
        .flat_map(|file| check(&file.name, &file.text))
        .collect()
}

/// Returns the problems of one file.
fn check(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.starts_with("//! ") {
        problems.push(format!("{name}: does not open with a //! sentence"));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        problems.push(format!("{name}: {lines} lines, at most {FILE_LINES_MAX}"));
    }
    for (function, line, length) in functions(text) {
        let excepted = LONG_FUNCTIONS
            .iter()
            .any(|(file, long)| *file == name && *long == function);
        if length > FUNCTION_LINES_MAX && !excepted {
            problems.push(format!(
                "{name}:{line}: {function} has {length} lines, at most {FUNCTION_LINES_MAX}"
            ));
        }
    }
    if name.ends_with("src/lib.rs") {
        problems.extend(functions(text).into_iter().map(|(function, line, _)| {
            format!("{name}:{line}: {function} is defined in lib.rs, which may only hold documentation, `mod` and `use`")
        }));
    }
    problems
}

/// Name, first line and length of each function. Relies on the format: a function ends with a brace
/// at the indentation of its `fn`.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let Some(at) = code
            .find("fn ")
            .filter(|_| !code.starts_with("//") && !code.contains('"'))
        else {
            continue;
        };
        let before_is_keywords = without_scope(&code[..at])
            .split_whitespace()
            .all(|word| matches!(word, "pub" | "const" | "async" | "unsafe"));
        if !before_is_keywords {
            continue;
        }
        let name: String = code[at + 3..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let closing = format!("{}}}", " ".repeat(indent));
        let ends = |line: &&str| {
            // A body's end, a body on one line, or a signature without a body.
            let outermost = line.len() - line.trim_start().len() == indent;
            **line == closing || outermost && (line.ends_with(';') || line.ends_with(" }"))
        };
        let end = lines[start..].iter().position(ends);
        if let Some(length) = end {
            found.push((name, start + 1, length + 1));
        }
    }
    found
}

/// Removes the parentheses of `pub(crate)` or `pub(in path)`.
fn without_scope(keywords: &str) -> String {
    match (keywords.split_once("pub("), keywords.split_once(')')) {
        (Some((before, _)), Some((_, after))) => format!("{before}pub{after}"),
        _ => keywords.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_missing_docs_and_code_in_lib_are_found() {
        let long = format!("//! Doc.\nfn long() {{\n{}}}\n", "    x();\n".repeat(80));
        assert!(check("crates/a/src/b.rs", &long)[0].contains("long has 82 lines"));
        assert!(check("crates/a/src/b.rs", "fn short() {\n}\n")[0].contains("//!"));
        assert!(check("crates/a/src/lib.rs", "//! Doc.\nfn short() {\n}\n")[0].contains("lib.rs"));
        assert!(check("crates/a/src/b.rs", "//! Doc.\npub fn short() {\n}\n").is_empty());
    }

    #[test]
    fn trait_methods_without_a_body_end_at_their_semicolon() {
        let text =
            "//! Doc.\ntrait T {\n    fn a(&self);\n    fn b(&self) {\n        x();\n    }\n}\n";
        assert_eq!(
            functions(text),
            [("a".to_owned(), 3, 1), ("b".to_owned(), 4, 3)]
        );
    }

    #[test]
    fn functions_for_a_part_of_the_crate_are_found() {
        let text = "//! Doc.\npub(in crate::a) const fn a() {\n}\npub(super) fn b() {\n}\n";
        let names: Vec<String> = functions(text).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
