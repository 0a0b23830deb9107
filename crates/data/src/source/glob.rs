//! [`Glob`]: matches paths against a pattern with wildcards.
//!
//! The `glob` crate matches the name of a file or folder. The path is ours, because a listing must also know which folders can
//! contain matches. The crate `globset` answers only for whole paths, and costs a regular expression engine.

use super::pattern_error::PatternError;

/// The segments of a path pattern with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob(Vec<GlobSegment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobSegment {
    /// `**`: any number of segments, including none.
    Deep,
    Name(glob::Pattern),
}

impl Glob {
    /// Parses the part of a pattern after its fixed folder.
    ///
    /// # Errors
    /// Returns an error for unclosed brackets and for `**` beside other letters.
    pub(super) fn new(text: &str) -> Result<Self, PatternError> {
        let segments = text.split('/').map(|segment| match segment {
            "**" => Ok(GlobSegment::Deep),
            _ => name(segment).map(GlobSegment::Name),
        });
        segments.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether a text contains wildcards.
    pub(super) fn is_needed_for(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    /// Returns whether it matches a path.
    pub(super) fn matches(&self, path: &str) -> bool {
        let path: Vec<&str> = path.split('/').collect();
        matches(&self.0, &path)
    }

    /// Returns whether it can match a path in this folder or below.
    pub(super) fn may_match_in(&self, folder: &str) -> bool {
        let mut rest = self.0.as_slice();
        for name in folder.split('/') {
            match rest {
                [GlobSegment::Deep, ..] => return true,
                // The last segment matches files, not folders.
                [GlobSegment::Name(pattern), after @ ..]
                    if !after.is_empty() && pattern.matches(name) =>
                {
                    rest = after;
                }
                _ => return false,
            }
        }
        true
    }
}

fn matches(segments: &[GlobSegment], path: &[&str]) -> bool {
    match (segments, path) {
        ([], []) => true,
        // A trailing `**` matches all files below.
        ([GlobSegment::Deep], _) => !path.is_empty(),
        ([GlobSegment::Deep, rest @ ..], _) => {
            (0..=path.len()).any(|skipped| matches(rest, &path[skipped..]))
        }
        ([GlobSegment::Name(pattern), rest @ ..], [name, below @ ..]) => {
            pattern.matches(name) && matches(rest, below)
        }
        _ => false,
    }
}

/// Parses a segment.
fn name(segment: &str) -> Result<glob::Pattern, PatternError> {
    if segment.contains("**") {
        return Err(PatternError::DeepInSegment);
    }
    if segment.contains("[^") {
        return Err(PatternError::Caret);
    }
    glob::Pattern::new(segment).map_err(|_| PatternError::NoClosingBracket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wildcards_match_paths() {
        for (glob, good, bad) in [
            (
                "*.csv",
                &["a.csv", ".csv", "a.b.csv"][..],
                &["a.csvx", "d/a.csv", "a"][..],
            ),
            (
                "a*b*c",
                &["abc", "aXbYc", "abbcc", "abcbc"],
                &["ab", "acb", "abcd"],
            ),
            ("?.x", &["a.x", "\u{e4}.x"], &[".x", "ab.x"]),
            ("[a-c!]x", &["ax", "cx", "!x"], &["dx", "x"]),
            ("[!a-c]", &["d", "-"], &["a", ""]),
            ("[]x]", &["]", "x"], &["a"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[[]1]", &["[1]"], &["1"]),
            ("**/*.t", &["a.t", "x/a.t", "x/y/a.t"], &["a.u", "x/a.u"]),
            ("x/**", &["x/a", "x/y/a"], &["x", "y/a"]),
            ("**/x/**/a", &["x/a", "y/x/z/a"], &["y/a", "x"]),
            ("*/a", &["x/a"], &["a", "x/y/a"]),
            // A pattern that backtracks as often as possible.
            (&"*a".repeat(40), &[&"a".repeat(200)], &[&"ab".repeat(100)]),
        ] {
            let parsed = Glob::new(glob).unwrap();
            for path in good {
                assert!(parsed.matches(path), "{glob} {path}");
            }
            for path in bad {
                assert!(!parsed.matches(path), "{glob} {path}");
            }
        }
        for (glob, expected) in [
            ("[ab", "not closed"),
            ("a**", "whole path segment"),
            ("[^a]", "write `[!`"),
            ("a[", "not closed"),
            ("[]", "not closed"),
        ] {
            let problem = Glob::new(glob).unwrap_err().to_string();
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn only_folders_that_can_contain_matches_are_entered() {
        for (glob, folder, enters) in [
            ("*.csv", "a", false),
            ("*/x.csv", "a", true),
            ("*/x.csv", "a/b", false),
            ("a*/**/x", "ab/c/d", true),
            ("a*/**/x", "b", false),
            ("**", "a/b", true),
        ] {
            assert_eq!(
                Glob::new(glob).unwrap().may_match_in(folder),
                enters,
                "{glob} {folder}"
            );
        }
    }

    proptest! {
        #[test]
        fn matching_paths_are_in_entered_folders(
            glob in prop::collection::vec("(\\*\\*|[ab*?]{1,3})", 1..4),
            path in prop::collection::vec("[ab]{1,3}", 1..5),
        ) {
            let Ok(glob) = Glob::new(&glob.join("/")) else { return Ok(()) };
            if glob.matches(&path.join("/")) {
                for folders in 1..path.len() {
                    prop_assert!(glob.may_match_in(&path[..folders].join("/")));
                }
            }
        }

        #[test]
        fn stars_match_the_text_that_they_replace(path in "[ab]{0,8}", cuts in prop::collection::vec((0_usize..9, 0_usize..9), 0..3)) {
            let mut glob: Vec<char> = path.chars().collect();
            for (from, to) in cuts {
                let (from, to) = (from.min(glob.len()), to.min(glob.len()));
                if from <= to && !glob[from..to].contains(&'*') {
                    glob.splice(from..to, ['*']);
                }
            }
            let glob: String = glob.into_iter().collect();
            if !glob.contains("**") {
                prop_assert!(Glob::new(&glob).unwrap().matches(&path), "{} {}", glob, path);
            }
        }
    }
}
