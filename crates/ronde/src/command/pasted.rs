//! [`path_word`]: paths in the commands that messages advise.

use std::path::Path;

use ronde_submit::shell_word;

/// Returns a path as one word of a shell, so that a user can paste the command that contains it.
pub(crate) fn path_word(path: &Path) -> String {
    let path = path.to_string_lossy();
    // A name that starts with a dash is not an option.
    let at = if path.starts_with('-') { "./" } else { "" };
    shell_word(&format!("{at}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_words_and_never_options() {
        for (path, word) in [
            ("runs/digits", "runs/digits"),
            ("my runs/a", "'my runs/a'"),
            ("-x.toml", "./-x.toml"),
        ] {
            assert_eq!(path_word(Path::new(path)), word);
        }
    }
}
