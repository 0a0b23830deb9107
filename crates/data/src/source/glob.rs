//! [`Glob`]: which paths a pattern with wildcards stands for.

/// Segments of a path with wildcards in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob(Vec<Segment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    /// `**`: any count of segments, none too.
    Deep,
    Parts(Vec<Part>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Star,
    Any,
    Set {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
    Letter(char),
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::Star | Self::Any => true,
            Self::Set { is_negated, ranges } => {
                let is_in = ranges.iter().any(|&(from, to)| (from..=to).contains(&c));
                is_in != *is_negated
            }
            Self::Letter(letter) => *letter == c,
        }
    }
}

impl Glob {
    /// Takes the part of a pattern behind its fixed folder apart.
    ///
    /// # Errors
    /// A sentence for brackets that do not close and ranges that are empty.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let segments = text.split('/').map(|segment| match segment {
            "**" => Ok(Segment::Deep),
            _ => parts(segment).map(Segment::Parts),
        });
        segments.collect::<Result<_, _>>().map(Self)
    }

    /// Whether a text has anything that a glob reads in another way than as itself.
    pub(super) fn is_needed_for(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    /// Whether it stands for this path.
    pub(super) fn matches(&self, path: &str) -> bool {
        let path: Vec<&str> = path.split('/').collect();
        matches(&self.0, &path)
    }

    /// Whether it may stand for something in this folder or below.
    pub(super) fn may_match_in(&self, folder: &str) -> bool {
        let mut rest = self.0.as_slice();
        for name in folder.split('/') {
            match rest {
                [Segment::Deep, ..] => return true,
                // The last one stands for files.
                [Segment::Parts(parts), after @ ..] if !after.is_empty() && fits(parts, name) => {
                    rest = after;
                }
                _ => return false,
            }
        }
        true
    }
}

fn matches(segments: &[Segment], path: &[&str]) -> bool {
    match (segments, path) {
        ([], []) => true,
        // At the end it stands for all files below.
        ([Segment::Deep], _) => !path.is_empty(),
        ([Segment::Deep, rest @ ..], _) => {
            (0..=path.len()).any(|skipped| matches(rest, &path[skipped..]))
        }
        ([Segment::Parts(parts), rest @ ..], [name, below @ ..]) => {
            fits(parts, name) && matches(rest, below)
        }
        _ => false,
    }
}

/// Whether a name is what the parts of a segment stand for: goes back to the last star where it does not fit.
fn fits(parts: &[Part], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut part, mut at) = (0, 0);
    let mut star = None;
    while at < name.len() {
        match parts.get(part) {
            Some(Part::Star) => {
                star = Some((part, at));
                part += 1;
            }
            Some(found) if found.takes(name[at]) => {
                part += 1;
                at += 1;
            }
            _ => {
                let Some((last, taken)) = star else {
                    return false;
                };
                star = Some((last, taken + 1));
                (part, at) = (last + 1, taken + 1);
            }
        }
    }
    parts[part..].iter().all(|rest| *rest == Part::Star)
}

fn parts(segment: &str) -> Result<Vec<Part>, String> {
    if segment.contains("**") {
        return Err("** stands alone between two /".to_owned());
    }
    let mut parts = Vec::new();
    let mut letters = segment.chars();
    while let Some(c) = letters.next() {
        parts.push(match c {
            '*' => Part::Star,
            '?' => Part::Any,
            '[' => set(&mut letters)?,
            letter => Part::Letter(letter),
        });
    }
    Ok(parts)
}

/// What follows a `[` up to its `]`, which may stand first as itself.
fn set(letters: &mut std::str::Chars<'_>) -> Result<Part, String> {
    let open = || "a [ is not closed by a ]".to_owned();
    let mut rest = letters.clone();
    let is_negated = rest.clone().next().is_some_and(|c| "!^".contains(c));
    if is_negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        let from = rest.next().ok_or_else(open)?;
        if from == ']' && !ranges.is_empty() {
            break;
        }
        let mut ahead = rest.clone();
        let to = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(to)) if to != ']' => {
                rest = ahead;
                to
            }
            _ => from,
        };
        if from > to {
            return Err(format!("[{from}-{to}] is an empty range"));
        }
        ranges.push((from, to));
    }
    *letters = rest;
    Ok(Part::Set { is_negated, ranges })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wildcards_stand_for_paths() {
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
        ] {
            let parsed = Glob::new(glob).unwrap();
            for path in good {
                assert!(parsed.matches(path), "{glob} {path}");
            }
            for path in bad {
                assert!(!parsed.matches(path), "{glob} {path}");
            }
        }
        for (glob, told) in [
            ("[ab", "not closed"),
            ("a**", "alone"),
            ("[z-a]", "empty range"),
        ] {
            let problem = Glob::new(glob).unwrap_err();
            assert!(problem.contains(told), "{problem}");
        }
    }

    #[test]
    fn only_folders_that_may_hold_something_are_entered() {
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
        fn what_matches_lies_in_a_folder_that_is_entered(
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
        fn stars_find_what_they_were_made_from(path in "[ab]{0,8}", cuts in prop::collection::vec((0_usize..9, 0_usize..9), 0..3)) {
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
