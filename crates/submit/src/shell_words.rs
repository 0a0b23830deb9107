//! Words of a command line as text for a POSIX shell.

/// Returns the words as a command line; a shell reads each as one word, whatever characters it has.
pub(crate) fn join<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(shell_word).collect();
    quoted.join(" ")
}

/// Returns `word` so that a shell reads it as one word.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let is_plain = |sign: char| {
        sign.is_ascii_alphanumeric()
            || matches!(
                sign,
                '-' | '_' | '.' | '/' | '=' | ':' | ',' | '+' | '@' | '%'
            )
    };
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        let words = ["plain", "", "two words", "it's", "$HOME", "a\nb", "*", "~"];
        let script = format!(
            "for word in {}; do printf '%s|' \"$word\"; done",
            join(words)
        );
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(script)
            .output()
            .unwrap();
        let read = String::from_utf8(output.stdout).unwrap();
        assert_eq!(read, format!("{}|", words.join("|")));
    }
}
