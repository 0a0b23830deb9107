//! [`SuiteReport`]: what a suite has run and how long it took, and the summary of all suites.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use super::harness_output::{TestEnd, TestSkip};

/// Number of tests in the list of the slowest ones.
const SLOWEST: usize = 10;

/// What one suite has run.
#[derive(Debug, Default)]
pub(crate) struct SuiteReport {
    pub(crate) package: String,
    pub(crate) target: String,
    pub(crate) duration: Duration,
    /// The tests with their ends and durations, in the order in which they ended.
    pub(crate) tests: Vec<(String, TestEnd, Duration)>,
    pub(crate) skips: Vec<TestSkip>,
}

/// Returns how long each test took, in the order of `ended`: the names of tests with the times at which they ended. `order`: the
/// order in which `threads` threads start them. The harness does not report durations, but each thread starts the next test
/// when one ends.
pub(crate) fn durations(
    order: &[String],
    threads: usize,
    ended: &[(String, Duration)],
) -> Vec<Duration> {
    let position: BTreeMap<&str, usize> = order
        .iter()
        .enumerate()
        .map(|(position, name)| (&**name, position))
        .collect();
    let start = |name: &str| match position.get(name).map(|at| at.checked_sub(threads)) {
        Some(Some(freed_by)) => ended.get(freed_by).map_or(Duration::ZERO, |(_, at)| *at),
        _ => Duration::ZERO,
    };
    ended
        .iter()
        .map(|(name, at)| at.saturating_sub(start(name)))
        .collect()
}

/// Returns the summary of suites: the number of tests, those that were skipped, the seconds of each crate and the slowest
/// tests.
pub(crate) fn summary(reports: &[SuiteReport]) -> String {
    let ends = |end: TestEnd| {
        let tests = reports.iter().flat_map(|report| &report.tests);
        tests.filter(|(_, found, _)| *found == end).count()
    };
    let skipped: BTreeSet<(&str, &str, &str)> = reports
        .iter()
        .flat_map(|report| {
            let of_suite = |skip| (&*report.package, &*report.target, skip);
            let names = report.skips.iter().map(|skip| &*skip.test);
            names.map(of_suite)
        })
        .collect();
    let mut text = format!(
        "tests: {} passed, {} failed, {} skipped, {} ignored\n",
        ends(TestEnd::Passed).saturating_sub(skipped.len()),
        ends(TestEnd::Failed),
        skipped.len(),
        ends(TestEnd::Ignored)
    );
    for report in reports {
        for skip in &report.skips {
            let (suite, test) = (format!("{} {}", report.package, report.target), &skip.test);
            let _ = writeln!(text, "skipped  {suite}: {test}: {}", skip.reason);
        }
    }
    let mut crates: BTreeMap<&str, Duration> = BTreeMap::new();
    for report in reports {
        *crates.entry(&report.package).or_default() += report.duration;
    }
    let mut crates: Vec<(&str, Duration)> = crates.into_iter().collect();
    crates.sort_by_key(|(_, duration)| std::cmp::Reverse(*duration));
    text.push_str("seconds of the suites of each crate:\n");
    for (package, duration) in crates {
        let _ = writeln!(text, "{:>8.1} s  {package}", duration.as_secs_f64());
    }
    let mut tests: Vec<(Duration, String)> = reports
        .iter()
        .flat_map(|report| {
            report.tests.iter().map(|(name, _, duration)| {
                let suite = format!("{} {}", report.package, report.target);
                (*duration, format!("{suite}: {name}"))
            })
        })
        .collect();
    tests.sort_by(|a, b| b.cmp(a));
    text.push_str("the slowest tests:\n");
    for (duration, name) in tests.into_iter().take(SLOWEST) {
        let _ = writeln!(text, "{:>8.1} s  {name}", duration.as_secs_f64());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn durations_follow_from_the_order_of_starts_and_ends() {
        let order = ["a", "b", "c", "d"].map(str::to_owned);
        let ended = [("b", s(2)), ("c", s(3)), ("a", s(7)), ("d", s(8))];
        let ended = ended.map(|(name, at)| (name.to_owned(), at));
        // Two threads: c starts when b ends, d when c ends.
        assert_eq!(durations(&order, 2, &ended), [s(2), s(1), s(7), s(5)]);
        let ended = [("a", s(2)), ("b", s(5))].map(|(name, at)| (name.to_owned(), at));
        assert_eq!(durations(&order, 1, &ended), [s(2), s(3)]);
        assert_eq!(durations(&order, 8, &ended), [s(2), s(5)]);
    }

    #[test]
    fn the_summary_counts_skipped_tests_once_and_not_as_passed() {
        let skip = |reason: &str| TestSkip {
            test: "disk".to_owned(),
            reason: reason.to_owned(),
        };
        let report = |package: &str, seconds| SuiteReport {
            package: package.to_owned(),
            target: "--lib".to_owned(),
            duration: s(seconds),
            tests: (0..8)
                .map(|n| (format!("t{n}"), TestEnd::Passed, s(seconds + n)))
                .chain([("disk".to_owned(), TestEnd::Passed, s(0))])
                .chain([("bad".to_owned(), TestEnd::Failed, s(1))])
                .chain([("hand".to_owned(), TestEnd::Ignored, s(0))])
                .collect(),
            skips: Vec::new(),
        };
        let mut slow = report("slow", 30);
        slow.skips = vec![skip("no mount"), skip("no root")];
        let text = summary(&[report("quick", 1), slow, report("quick", 2)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "tests: 26 passed, 3 failed, 1 skipped, 3 ignored");
        assert_eq!(lines[1], "skipped  slow --lib: disk: no mount");
        assert_eq!(lines[2], "skipped  slow --lib: disk: no root");
        assert_eq!(lines[4..6], ["    30.0 s  slow", "     3.0 s  quick"]);
        let slowest = &lines[lines.len() - SLOWEST..];
        assert_eq!(slowest[0], "    37.0 s  slow --lib: t7");
        assert_eq!(slowest[9], "     8.0 s  quick --lib: t7");
    }
}
