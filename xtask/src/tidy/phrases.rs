//! A budget for turns of phrase that make comments, messages and documentation hard to read.
//!
//! The patterns are in `phrases.txt`. A few uses of each are natural English; hundreds are not. So the check limits
//! how often they occur for each 10,000 words, in the whole repository and in each file.

use regex::Regex;

use super::Source;

const PATTERNS: &str = include_str!("phrases.txt");

/// Uses for each 10,000 words in the whole repository.
const BUDGET: usize = 15;
/// Uses for each 10,000 words in one file that has more than `FILE_USES_MIN` of them.
const FILE_BUDGET: usize = 60;
const FILE_USES_MIN: usize = 5;

/// Returns one sentence for each file, and one for the repository, whose budget is exceeded.
pub(crate) fn problems(files: &[Source]) -> Vec<String> {
    let patterns = patterns();
    let mut problems = Vec::new();
    let (mut uses, mut words) = (0, 0);
    for file in files {
        let Some(prose) = prose(file) else { continue };
        let (file_uses, file_words) = count(&patterns, &prose);
        uses += file_uses;
        words += file_words;
        if file_uses > FILE_USES_MIN && file_uses * 10_000 > FILE_BUDGET * file_words {
            problems.push(format!(
                "{}: {file_uses} phrases of xtask/src/tidy/phrases.txt in {file_words} words: {}; at most \
                 {FILE_BUDGET} for 10,000 words",
                file.name,
                examples(&patterns, &prose)
            ));
        }
    }
    if uses * 10_000 > BUDGET * words {
        problems.push(format!(
            "the repository has {uses} phrases of xtask/src/tidy/phrases.txt in {words} words; at most {BUDGET} for \
             10,000 words"
        ));
    }
    problems
}

fn patterns() -> Vec<Regex> {
    PATTERNS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('\t'))
        .map(|(_, expression)| Regex::new(expression).expect("phrases.txt holds valid expressions"))
        .collect()
}

/// Returns the comments and string literals of code, and the text of Markdown outside code blocks; `None` for
/// other files.
fn prose(file: &Source) -> Option<String> {
    let expression = match file.name.rsplit('.').next()? {
        "md" => {
            let block = Regex::new(r"(?s)```.*?```").expect("a valid expression");
            return Some(block.replace_all(&file.text, "").into_owned());
        }
        "rs" => r#"//[/!]?\s?(.*)|"((?:[^"\\]|\\.)*)""#,
        "toml" | "py" => r"#\s?(.*)",
        _ => return None,
    };
    let expression = Regex::new(expression).expect("a valid expression");
    // Serialized names keep their spelling.
    let renamed = Regex::new(r#"rename = "[^"]*""#).expect("a valid expression");
    let text = renamed.replace_all(&file.text, "");
    let parts = expression.captures_iter(&text).map(|found| {
        found
            .get(1)
            .or_else(|| found.get(2))
            .map_or("", |part| part.as_str())
    });
    Some(parts.collect::<Vec<_>>().join("\n"))
}

/// Returns the number of uses and the number of words.
fn count(patterns: &[Regex], prose: &str) -> (usize, usize) {
    let uses = patterns
        .iter()
        .map(|pattern| pattern.find_iter(prose).count())
        .sum();
    let words = prose
        .split(|c: char| !c.is_ascii_alphabetic() && c != '\'')
        .filter(|word| !word.is_empty())
        .count();
    (uses, words)
}

/// Returns the first few phrases found, in quotes.
fn examples(patterns: &[Regex], prose: &str) -> String {
    let found = patterns.iter().flat_map(|pattern| pattern.find_iter(prose));
    let quoted = found.take(4).map(|found| format!("\"{}\"", found.as_str()));
    quoted.collect::<Vec<_>>().join(", ")
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
    fn comments_and_strings_count_and_code_does_not() {
        let text = "//! Doc.\n// It goe\u{73} on.\nlet come = \"a tex\u{74} it tell\u{73}\";\n";
        let prose = prose(&file("a.rs", text)).unwrap_or_default();
        assert_eq!(count(&patterns(), &prose), (2, 8));
        let page = prose_of_page();
        assert_eq!(count(&patterns(), &page).0, 0);
    }

    fn prose_of_page() -> String {
        let text = "Text.\n```\nit co\u{6d}es\n```\nMore text.\n";
        prose(&file("a.md", text)).unwrap_or_default()
    }

    #[test]
    fn a_file_above_its_budget_is_named() {
        let text = format!("{} {}", "plain words ".repeat(10), "te\u{6c}ls ".repeat(6));
        let problems = problems(&[file("docs/a.md", &text)]);
        assert!(
            problems[0].starts_with("docs/a.md: 6 phrases"),
            "{problems:?}"
        );
    }
}
