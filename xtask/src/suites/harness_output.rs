//! The output of a test program, as far as Rust's test harness writes it.

/// The mark of a line of `ronde_testing::skip`.
const SKIP_MARK: &str = "skipped test ";

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestEnd {
    Passed,
    Failed,
    Ignored,
}

/// Parses `ok`, `FAILED`, `ignored` or `ignored, reason`.
fn end(text: &str) -> Option<TestEnd> {
    match text.split(',').next().unwrap_or_default() {
        "ok" => Some(TestEnd::Passed),
        "FAILED" => Some(TestEnd::Failed),
        "ignored" => Some(TestEnd::Ignored),
        _ => None,
    }
}

/// Finds the ends of tests in the lines of an output, in their order.
#[derive(Debug, Default)]
pub(crate) struct TestEnds {
    /// The test whose end is on a line of its own, because something was printed after its name.
    open: Option<String>,
}

impl TestEnds {
    /// Returns the test that ends with this line.
    pub(crate) fn line(&mut self, line: &str) -> Option<(String, TestEnd)> {
        let started = line.strip_prefix("test ");
        match started.and_then(|rest| rest.split_once(" ... ")) {
            Some((name, text)) => {
                let name = name.split(" - ").next().unwrap_or(name).to_owned();
                match end(text) {
                    Some(end) => Some((name, end)),
                    None => {
                        self.open = Some(name);
                        None
                    }
                }
            }
            None => {
                let end = end(line)?;
                Some((self.open.take()?, end))
            }
        }
    }
}

/// A test, or a part of it, that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestSkip {
    pub(crate) test: String,
    pub(crate) reason: String,
}

/// Returns the skips that tests have reported.
pub(crate) fn skips(output: &str) -> Vec<TestSkip> {
    let skip = |line: &str| {
        let (before, rest) = line.split_once(SKIP_MARK)?;
        let (test, reason) = rest.split_once(": ")?;
        // With one thread, the harness writes the name first and runs the test in its main thread.
        let started = before.strip_prefix("test ");
        let started = started.and_then(|before| before.strip_suffix(" ... "));
        (before.is_empty() || started.is_some()).then(|| TestSkip {
            test: started.unwrap_or(test).to_owned(),
            reason: reason.to_owned(),
        })
    };
    output.lines().filter_map(skip).collect()
}

/// Returns whether a passed suite's line is shown: the number of tests, the result, and reasons for skips.
pub(crate) fn is_result(line: &str) -> bool {
    let is_skip = line.contains(SKIP_MARK);
    is_skip || line.starts_with("running ") || line.starts_with("test result:")
}

/// Names the tests that the harness reports as slow and that have no result.
pub(crate) fn unfinished_test(output: &str) -> Option<String> {
    let slow = output.lines().filter_map(|line| {
        let rest = line.strip_prefix("test ")?;
        rest.split_once(" has been running for over")
            .map(|(test, _)| test)
    });
    let has_result = |test: &&str| output.contains(&format!("test {test} ... "));
    let tests: Vec<&str> = slow.filter(|test| !has_result(test)).collect();
    (!tests.is_empty()).then(|| format!("; still running: {}", tests.join(", ")))
}

/// The most lines of a failed test's output that the summary repeats.
const MESSAGE_LINES: usize = 40;

/// Returns the end of a failed test's output.
pub(crate) fn message(output: &str, test: &str) -> String {
    let head = format!("---- {test} stdout ----");
    let lines = output.lines().skip_while(|line| *line != head).skip(1);
    let is_other = |line: &&str| {
        *line == "failures:" || (line.starts_with("---- ") && line.ends_with(" stdout ----"))
    };
    let lines: Vec<&str> = lines
        .take_while(|line| !is_other(line))
        .filter(|line| !line.is_empty() && !line.starts_with("note: run with `RUST_BACKTRACE"))
        .collect();
    lines[lines.len().saturating_sub(MESSAGE_LINES)..].join("\n")
}

/// Returns the names that a program prints with `--list`, in the order in which it runs the tests.
pub(crate) fn listed(output: &str) -> Vec<String> {
    let tests = output
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    tests
        .map(|name| name.split(" - ").next().unwrap_or(name).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(output: &str) -> Vec<(String, TestEnd)> {
        let mut ends = TestEnds::default();
        output.lines().filter_map(|line| ends.line(line)).collect()
    }

    #[test]
    fn the_ends_of_tests_are_found_also_after_their_output() {
        let output = "running 4 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest d - should panic ... FAILED\n\
                      test e ... ignored, by hand\ntest f ... noise\nmore\nok\nok\n";
        let found = ends(output);
        let found: Vec<(&str, TestEnd)> = found.iter().map(|(name, end)| (&**name, *end)).collect();
        let expected = [
            ("a::b", TestEnd::Passed),
            ("a::c", TestEnd::Failed),
            ("d", TestEnd::Failed),
            ("e", TestEnd::Ignored),
            ("f", TestEnd::Passed),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn skips_are_found_beside_other_output() {
        let output = "skipped test a::b: no disk: none\ntest a::b ... ok\ntest c ... skipped test main: no net\nok\n\
                      ring: skipped test x: by a program\nskipped: y\n";
        let found = skips(output);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|skip| (&*skip.test, &*skip.reason))
            .collect();
        assert_eq!(found, [("a::b", "no disk: none"), ("c", "no net")]);
    }

    #[test]
    fn tests_that_have_no_result_are_named() {
        let output = "test a::b has been running for over 60 seconds\ntest a::c has been running for over 60 seconds\ntest a::b ... ok\n";
        let running = unfinished_test(output);
        assert_eq!(running.as_deref(), Some("; still running: a::c"));
        assert_eq!(unfinished_test("test a::b ... ok\n"), None);
    }

    #[test]
    fn the_message_of_a_failed_test_is_found() {
        let output = "test a ... FAILED\ntest b ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nthread 'a' panicked\n\
                      no: 3\nnote: run with `RUST_BACKTRACE=1`\n\n\n---- b stdout ----\nb fails\n\nfailures:\n    a\n    b\n";
        assert_eq!(message(output, "a"), "thread 'a' panicked\nno: 3");
        assert_eq!(message(output, "b"), "b fails");
        assert_eq!(message(output, "c"), "");
    }

    #[test]
    fn tests_are_listed_in_the_order_in_which_they_run() {
        let output =
            "a::b: test\na::speed: benchmark\nc - should panic: test\n\n2 tests, 1 benchmark\n";
        assert_eq!(listed(output), ["a::b", "c"]);
    }
}
