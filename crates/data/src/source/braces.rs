//! Expands the braces of a pattern: `{a,b}` and `{000..127}`.
//!
//! The crates `glob` and `globset` have no ranges, and match names instead of listing them; the names are needed to report the
//! files that are missing.

use super::pattern_error::PatternError;

/// The maximum number of texts that one pattern may expand to.
pub(super) const TEXTS_MAX: usize = 1 << 20;

/// Expands the braces of `pattern`, in their order; returns the pattern itself when it has none. Braces may be nested. If a
/// number of a range begins with 0, all numbers of the range are padded to its width.
///
/// # Errors
/// Returns an error for unbalanced braces, invalid contents, and too many texts.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, PatternError> {
    let Some(open) = pattern.find('{') else {
        return match pattern.contains('}') {
            true => Err(PatternError::NoOpeningBrace),
            false => Ok(vec![pattern.to_owned()]),
        };
    };
    let before = &pattern[..open];
    if before.contains('}') {
        return Err(PatternError::NoOpeningBrace);
    }
    let (inside, after) = matching(&pattern[open + 1..]).ok_or(PatternError::NoClosingBrace)?;
    let mut choices = Vec::new();
    match range(inside)? {
        Some(numbers) => choices = numbers,
        None => {
            let parts = at_commas(inside);
            if parts.len() < 2 {
                return Err(PatternError::Braces {
                    inside: inside.to_owned(),
                });
            }
            for part in parts {
                choices.append(&mut expand(part)?);
            }
        }
    }
    let rests = expand(after)?;
    if choices.len().saturating_mul(rests.len()) > TEXTS_MAX {
        return Err(PatternError::TooManyFiles);
    }
    let texts = choices.iter().flat_map(|choice| {
        rests
            .iter()
            .map(move |rest| format!("{before}{choice}{rest}"))
    });
    Ok(texts.collect())
}

/// Splits `text` at the `}` that closes a `{` before it.
fn matching(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some((&text[..at], &text[at + 1..])),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Splits at commas that are not inside braces.
fn at_commas(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Expands a range such as `000..127`, ascending or descending.
fn range(text: &str) -> Result<Option<Vec<String>>, PatternError> {
    let Some((first, last)) = text.split_once("..") else {
        return Ok(None);
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(first) || !is_number(last) {
        return Ok(None);
    }
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| PatternError::Number {
            text: text.to_owned(),
        })
    };
    let (from, to) = (number(first)?, number(last)?);
    if from.abs_diff(to) >= TEXTS_MAX as u64 {
        return Err(PatternError::TooManyFiles);
    }
    let is_padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let width = match is_padded(first) || is_padded(last) {
        true => first.len().max(last.len()),
        false => 0,
    };
    let text = |number: u64| format!("{number:0width$}");
    Ok(Some(match from <= to {
        true => (from..=to).map(text).collect(),
        false => (to..=from).rev().map(text).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn braces_expand_as_in_shells() {
        let check = |pattern: &str, expected: &[&str]| {
            assert_eq!(expand(pattern).unwrap(), expected, "{pattern}");
        };
        check("plain.tar", &["plain.tar"]);
        check("a{b,c}d", &["abd", "acd"]);
        check("{a,b}{1,2}", &["a1", "a2", "b1", "b2"]);
        check("x{a,{b,c}d}", &["xa", "xbd", "xcd"]);
        check("x{,y}", &["x", "xy"]);
        check("{8..11}", &["8", "9", "10", "11"]);
        check("{08..11}", &["08", "09", "10", "11"]);
        check("{2..0}", &["2", "1", "0"]);
        check("s-{000..002}.tar", &["s-000.tar", "s-001.tar", "s-002.tar"]);
        check("{a..b,c}", &["a..b", "c"]);
    }

    #[test]
    fn invalid_braces_are_reported() {
        for (pattern, expected) in [
            ("a{b", "not closed"),
            ("a}b", "has no `{`"),
            ("a}{b,c}", "has no `{`"),
            ("a{b}", "neither a list"),
            ("a{}", "neither a list"),
            ("{a..c}", "neither a list"),
            ("{0..99999999}", "more than"),
            ("{0..9999}{0..9999}", "more than"),
            ("{1..99999999999999999999}", "too large"),
        ] {
            let problem = expand(pattern).unwrap_err().to_string();
            assert!(problem.contains(expected), "{pattern}: {problem}");
        }
    }

    proptest! {
        #[test]
        fn ranges_have_every_number_once(from in 0_u64..3000, count in 1_u64..500, width in 1_usize..8) {
            let to = from + count - 1;
            let pattern = format!("x{{{from:0width$}..{to:0width$}}}y");
            let texts = expand(&pattern).unwrap();
            prop_assert_eq!(texts.len() as u64, count);
            for (number, text) in (from..).zip(&texts) {
                let inside = text.strip_prefix('x').unwrap().strip_suffix('y').unwrap();
                prop_assert_eq!(inside.parse::<u64>().unwrap(), number);
                prop_assert!(inside.len() >= width);
            }
        }

        #[test]
        fn any_text_is_expanded_or_rejected(pattern in "[a-c{},.0-9]{0,24}") {
            if let Ok(texts) = expand(&pattern) {
                prop_assert!(!texts.is_empty());
                let has_brace = |text: &String| text.contains(['{', '}']);
                prop_assert!(!texts.iter().any(has_brace));
            }
        }
    }
}
