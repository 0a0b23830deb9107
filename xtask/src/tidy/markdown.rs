//! Documentation names only what exists: links, paths, types, functions, run-file keys and flags in Markdown are
//! looked up in the repository.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

use super::Source;

/// Names that documentation may use although no source of the repository defines them, with their owner.
const FOREIGN: &[(&str, &[&str])] = &[
    ("Linux", &["CLOCK_BOOTTIME", "MSG_ZEROCOPY", "SIGHUP"]),
    (
        "the clients of object stores",
        &[
            "AZURE_STORAGE_SAS_TOKEN",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_SERVICE_ACCOUNT",
        ],
    ),
    ("cargo", &["locked"]),
];

/// Pages that describe earlier versions.
const HISTORY: &[&str] = &["CHANGELOG.md"];

/// Returns one sentence for each name or link in Markdown that does not exist.
pub(crate) fn problems(root: &Path, files: &[Source]) -> Vec<String> {
    let known = Known::of(files);
    let pages = files
        .iter()
        .filter(|file| file.name.ends_with(".md") && !HISTORY.contains(&file.name.as_str()));
    let mut problems = Vec::new();
    for page in pages {
        for (line, text) in text_lines(&page.text) {
            for stale in stale_links(root, page, files, text) {
                problems.push(format!(
                    "{}:{line}: the link {stale} leads nowhere",
                    page.name
                ));
            }
            for stale in code_spans(text).filter(|span| !known.has(span)) {
                problems.push(format!("{}:{line}: `{stale}` does not exist", page.name));
            }
        }
    }
    problems
}

/// Returns the numbered lines outside code blocks.
fn text_lines(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the targets of links to files or headings that do not exist.
fn stale_links(root: &Path, page: &Source, files: &[Source], line: &str) -> Vec<String> {
    let link = Regex::new(r"\]\(([^)\s]+)\)").expect("a valid expression");
    let folder = root.join(&page.name);
    let folder = folder.parent().unwrap_or(root);
    let mut stale = Vec::new();
    for target in link.captures_iter(line).map(|found| found[1].to_owned()) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, heading) = target.split_once('#').unwrap_or((&target, ""));
        let file = match path.is_empty() {
            true => root.join(&page.name),
            false => folder.join(path),
        };
        let text = || {
            let wanted = file.canonicalize().ok()?;
            let same = |source: &&Source| {
                root.join(&source.name).canonicalize().ok() == Some(wanted.clone())
            };
            files.iter().find(same).map(|source| source.text.as_str())
        };
        let has_heading =
            || heading.is_empty() || text().is_some_and(|text| anchors(text).contains(heading));
        if !file.exists() || !has_heading() {
            stale.push(target);
        }
    }
    stale
}

/// Returns the anchors of a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = text_lines(page).filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// The names that the repository's sources define or use.
struct Known {
    words: BTreeSet<String>,
    paths: BTreeSet<String>,
    tops: BTreeSet<String>,
    item: Regex,
    key: Regex,
}

impl Known {
    fn of(files: &[Source]) -> Self {
        let word = Regex::new(r"[A-Za-z_][A-Za-z0-9_]*").expect("a valid expression");
        let mut words: BTreeSet<String> = BTreeSet::new();
        for names in FOREIGN.iter().map(|(_, names)| *names) {
            words.extend(names.iter().map(|name| (*name).to_owned()));
        }
        let (mut paths, mut tops) = (BTreeSet::new(), BTreeSet::new());
        for file in files {
            let mut path = String::new();
            for part in file.name.split('/') {
                path += part;
                paths.insert(path.clone());
                path.push('/');
            }
            if let Some((top, _)) = file.name.split_once('/') {
                tops.insert(top.to_owned());
            }
            let is_source = [".rs", ".py", ".toml", ".c", ".lock", ".json"]
                .iter()
                .any(|extension| file.name.ends_with(extension));
            if is_source {
                let code = file
                    .text
                    .lines()
                    .map(|line| line.split("//").next().unwrap_or(line));
                for line in code {
                    words.extend(word.find_iter(line).map(|found| found.as_str().to_owned()));
                }
            }
        }
        let item = r"^[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)*(?:\(\))?$";
        let key = r"^[a-z][a-z_0-9]*(?:\.[a-z][a-z_0-9]*)+$";
        Self {
            words,
            paths,
            tops,
            item: Regex::new(item).expect("a valid expression"),
            key: Regex::new(key).expect("a valid expression"),
        }
    }

    /// Returns whether a code span names something that exists, or is none of the kinds that are looked up.
    fn has(&self, span: &str) -> bool {
        // Event names in files are the snake case of their variants in the sources.
        let is_word =
            |word: &str| self.words.contains(word) || self.words.contains(&camel_case(word));
        if let Some((top, _)) = span
            .split_once('/')
            .filter(|(top, _)| self.tops.contains(*top))
        {
            let path = span.split([':', ' ', '*', '<', '{']).next().unwrap_or(span);
            let is_pattern = path.len() < span.len() && !span[path.len()..].starts_with([':', ' ']);
            // A pattern such as `crates/*/src` is looked up as far as it is fixed.
            let fixed = match is_pattern {
                true => path.rsplit_once('/').map_or(top, |(fixed, _)| fixed),
                false => path.trim_end_matches('/'),
            };
            return self.paths.contains(fixed);
        }
        if let Some(flag) = span.strip_prefix("--") {
            let name = flag
                .split(['=', ' ', '['])
                .next()
                .unwrap_or(flag)
                .replace('-', "_");
            return name.is_empty() || is_word(&name);
        }
        if self.key.is_match(span) {
            let last = span.rsplit('.').next().unwrap_or(span);
            let is_file = matches!(
                last,
                "json"
                    | "jsonl"
                    | "toml"
                    | "md"
                    | "rs"
                    | "py"
                    | "txt"
                    | "csv"
                    | "safetensors"
                    | "svg"
                    | "so"
                    | "lock"
            );
            return is_file || span.split('.').all(is_word);
        }
        let is_name = span.contains("::")
            || span.contains('_')
            || span.chars().skip(1).any(|c| c.is_ascii_uppercase())
                && span.chars().any(|c| c.is_ascii_lowercase());
        // Prefixes, and environment variables that set any key of the run file.
        let is_prefix = span.ends_with('_') || span.starts_with("RONDE_SET_");
        if is_name && !is_prefix && self.item.is_match(span) {
            let name = span.trim_end_matches("()");
            return name.split("::").all(is_word);
        }
        true
    }
}

/// Returns `WorkerLost` for `worker_lost`.
fn camel_case(name: &str) -> String {
    let capitalised = name.split('_').map(|part| {
        let mut characters = part.chars();
        let first = characters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(characters).collect::<String>()
    });
    capitalised.collect()
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
    fn names_that_no_source_has_are_stale() {
        let files = [file(
            "crates/a/src/b.rs",
            "// Gone\nstruct ByteRange { silence_s: f64 }\nenum Event { WorkerLost }\nfn elastic() { workers(); }\n",
        )];
        let known = Known::of(&files);
        let exist = [
            "ByteRange",
            "elastic.silence_s",
            "crates/a/src/b.rs",
            "crates/a",
            "crates/*/src",
            "elastic()",
            "--workers 3",
            "--workers[=N]",
            "worker_lost",
            "model.json",
            "runs/x/y.rs",
            "plain words",
            "sum",
            "RUST",
        ];
        for span in exist {
            assert!(known.has(span), "{span}");
        }
        for span in [
            "FileRange",
            "elastic.silence",
            "crates/a/src/c.rs",
            "crates/z/*",
            "a_function",
            "--gone",
        ] {
            assert!(!known.has(span), "{span}");
        }
    }

    #[test]
    fn code_blocks_are_left_out_and_headings_have_anchors() {
        let page = "# A `b` c-d\ntext `x`\n```\n`y`\n```\n";
        assert_eq!(text_lines(page).count(), 2);
        assert!(anchors(page).contains("a-b-c-d"));
        assert_eq!(code_spans("a `b` c `d`").collect::<Vec<_>>(), ["b", "d"]);
    }
}
