//! The addresses where a cloud announces the end of a host, `drain_on` of a target.

use std::path::Path;

const OPTION: &str = "--drain-on=";

/// Returns the words of a launcher or an agent that drains at a notice.
pub(crate) fn words(sources: &[String]) -> Vec<String> {
    let words = sources.iter();
    words.map(|source| format!("{OPTION}{source}")).collect()
}

/// Returns whether a word is one of [`words`].
pub(crate) fn is_word(word: &str) -> bool {
    word.starts_with(OPTION)
}

/// Checks that each source means the same on each host: an absolute path or an address. The error is a message.
pub(crate) fn check(sources: &[String]) -> Result<(), String> {
    let is_valid = |source: &&String| {
        let host = source.strip_prefix("http://");
        let has_host = host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'));
        let is_plain = |letter: char| !letter.is_control() && letter != ' ';
        Path::new(source).is_absolute() || has_host && source.chars().all(is_plain)
    };
    match sources.iter().find(|source| !is_valid(source)) {
        None => Ok(()),
        Some(source) => Err(format!(
            "invalid `drain_on` `{}`: expected an absolute path on the hosts, or an address that begins with http://",
            source.escape_debug()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_absolute_paths_or_addresses() {
        let sources = ["/run/notice", "http://169.254.169.254/x?y=1"].map(str::to_owned);
        assert_eq!(check(&sources), Ok(()));
        assert_eq!(
            words(&sources),
            [
                "--drain-on=/run/notice",
                "--drain-on=http://169.254.169.254/x?y=1"
            ]
        );
        for source in [
            "",
            "notice",
            "https://x/",
            "http://",
            "http:///x",
            "http://x/a b",
        ] {
            let problem = check(&[source.to_owned()]).unwrap_err();
            assert!(problem.contains(&format!("`{source}`")), "{problem}");
        }
    }
}
