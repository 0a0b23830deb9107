//! [`skip`]: reports a test, or a part of it, that cannot run on this machine.

use std::io::Write;

/// Reports that the running test, or the rest of it, is skipped for a reason, such as a program that is not installed. The test
/// then returns, and `cargo xtask test` counts it as skipped instead of passed.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = line(thread.name().unwrap_or("main"), reason);
    // Not by a macro: the harness hides the output of a test that passes.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Returns the line that `cargo xtask test` counts.
fn line(test: &str, reason: &str) -> String {
    let words: Vec<&str> = reason.split_whitespace().collect();
    format!("skipped test {test}: {}\n", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_one_line_with_the_name_of_the_test() {
        let found = line("disk::full", "cannot mount:\n  no permission\n");
        assert_eq!(
            found,
            "skipped test disk::full: cannot mount: no permission\n"
        );
    }
}
