//! Names of jobs and targets, which are also names of folders and words of commands.

use crate::error::SubmitError;

/// The maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The maximum number of similar names in a message.
const SIMILAR_MAX: usize = 3;

/// Checks the name of a job or target.
///
/// # Errors
/// [`SubmitError::Invalid`] names the valid characters.
pub(crate) fn check(kind: &str, name: &str) -> Result<(), SubmitError> {
    let is_valid = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_' | '.');
    let begins_well = name.starts_with(|sign: char| sign.is_ascii_alphanumeric());
    if begins_well && name.len() <= NAME_BYTES_MAX && name.chars().all(is_valid) {
        return Ok(());
    }
    Err(SubmitError::invalid(
        format!("invalid name of a {kind} `{}`", name.escape_debug()),
        "use up to 64 letters, digits, `-`, `_` and `.`, and begin with a letter or a digit",
    ))
}

/// Returns a valid name close to `text`, for a job without an explicit name.
pub(crate) fn cleaned(text: &str) -> String {
    let sign = |sign: char| match sign {
        sign if sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_' | '.') => sign,
        _ => '-',
    };
    let cleaned: String = text.chars().take(NAME_BYTES_MAX - 8).map(sign).collect();
    match cleaned.trim_start_matches(|sign: char| !sign.is_ascii_alphanumeric()) {
        "" => "job".to_owned(),
        cleaned => cleaned.to_owned(),
    }
}

/// Returns those of the known names that may be meant by a name that is not known, the closest ones first.
pub(crate) fn similar(name: &str, known: impl Iterator<Item = String>) -> Vec<String> {
    let name = name.to_ascii_lowercase();
    let mut found: Vec<(usize, String)> = known
        .filter_map(|known| {
            let lower = known.to_ascii_lowercase();
            let edits = edit_distance(&name, &lower);
            let is_near = edits <= name.len().max(lower.len()).div_ceil(4);
            let begins = name.len() >= 2 && (lower.starts_with(&name) || name.starts_with(&lower));
            (is_near || begins).then_some((edits, known))
        })
        .collect();
    found.sort();
    found.truncate(SIMILAR_MAX);
    found.into_iter().map(|(_, known)| known).collect()
}

/// Returns the number of bytes to insert, remove or replace to get from one text to the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let to = to.as_bytes();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, sign) in from.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], line + 1);
        for (column, other) in to.iter().enumerate() {
            let replaced = before + usize::from(sign != *other);
            before = row[column + 1];
            row[column + 1] = replaced.min(before + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_typing_mistake_are_found() {
        let known = ["digits", "digits-2", "resnet", "ab"];
        let find = |name: &str| similar(name, known.iter().map(|name| (*name).to_owned()));
        assert_eq!(find("digts"), ["digits"]);
        assert_eq!(find("digits-3"), ["digits-2", "digits"]);
        assert_eq!(find("Resnet50"), ["resnet"]);
        assert_eq!(find("res"), ["resnet"]);
        assert_eq!(find("unrelated"), [""; 0]);
        assert_eq!(
            (edit_distance("", "abc"), edit_distance("kitten", "sitting")),
            (3, 3)
        );
    }

    #[test]
    fn names_are_words_of_commands_and_folders() {
        for name in ["digits", "a", "run-2.b_c", "0"] {
            assert!(check("job", name).is_ok(), "{name}");
        }
        let long = "x".repeat(65);
        for name in ["", "-n", ".hidden", "a/b", "..", "a b", "a\n", "ä", &long] {
            assert!(check("job", name).is_err(), "{name:?}");
            assert!(check("job", &cleaned(name)).is_ok(), "{name:?}");
        }
    }
}
