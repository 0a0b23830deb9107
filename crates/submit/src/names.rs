//! Names of jobs and targets, which are also names of folders and words of commands.

use crate::error::SubmitError;

/// The maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 64;

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

#[cfg(test)]
mod tests {
    use super::*;

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
