//! The table for people: a head, a line for each row, and footnotes.

use std::fmt::Write;

use crate::report::{CollectivesReport, Implementation, MeasurementRow, times_as_fast};
use crate::settings::Competitor;
use crate::sizes::show_bytes;

/// The optional columns of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The competitors with which the rows are compared.
    pub against: Vec<Competitor>,
    /// Whether the reason for the algorithm is shown.
    pub reasons: bool,
}

impl Columns {
    /// Returns the head of the table, with units.
    #[must_use]
    pub fn head(&self) -> String {
        let mut line = format!(
            "{:<18} {:>11} {:>5}  {:<13} {:<6} {:<16} {:>10} {:>10} {:>10} {:>8} {:>8} {:>10}",
            "operation",
            "bytes",
            "ranks",
            "transport",
            "memory",
            "algorithm",
            "time us",
            "p10 us",
            "min us",
            "alg GB/s",
            "bus GB/s",
            "predicted"
        );
        for other in &self.against {
            let _ = write!(line, " {:>7}", format!("x {other}"));
        }
        if self.reasons {
            line += "  reason";
        }
        line
    }

    /// Formats a row; `rows` are those that were measured in turns with it.
    #[must_use]
    pub fn line(&self, row: &MeasurementRow, rows: &[MeasurementRow]) -> String {
        let (transport, memory, algorithm, predicted, reason) = match &row.way {
            Implementation::Ronde {
                over,
                memory,
                algorithm,
                reason,
                predicted_us,
                ..
            } => (
                over.name(),
                memory.name(),
                &**algorithm,
                *predicted_us,
                &**reason,
            ),
            Implementation::Other { name } => (name.name(), "any", "-", None, ""),
        };
        let bytes = format!("{}{}", row.bytes, if row.in_cache { "*" } else { " " });
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), digits);
        let mut line = format!(
            "{:<18} {bytes:>11} {:>5}  {transport:<13} {memory:<6} {algorithm:<16} {:>10} {:>10} {:>10} {:>8} {:>8} {:>10}",
            row.operation.name(),
            row.ranks,
            digits(row.times.median_us),
            digits(row.times.p10_us),
            digits(row.times.min_us),
            number(row.algorithm_bandwidth()),
            number(row.bus_bandwidth()),
            number(predicted),
        );
        for &other in &self.against {
            let is_other = matches!(row.way, Implementation::Other { .. });
            let ratio = times_as_fast(row, other, rows).filter(|_| !is_other);
            let _ = write!(
                line,
                " {:>7}",
                ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"))
            );
        }
        if self.reasons {
            let _ = write!(line, "  {reason}");
        }
        line.trim_end().to_owned()
    }
}

/// Returns the footnotes.
#[must_use]
pub fn footnotes(report: &CollectivesReport) -> Vec<String> {
    let mut notes = vec![
        "time: one blocking operation as rank 0 sees it, median of all rounds; GB/s: 10^9 bytes of the \
         whole buffer a second (alg), and times nccl-tests' factor (bus)"
            .to_owned(),
    ];
    let cache = report.machine.cache_bytes();
    if report.rows.iter().any(|row| row.in_cache) {
        let most = report.rows.iter().filter(|row| row.in_cache);
        let most = most.map(|row| row.working_set_bytes).max().unwrap_or(0);
        notes.push(format!(
            "*: in cache: the buffers of all ranks that go round have at most {} together, less than twice \
             the last-level cache of {}, so these rows say nothing about memory",
            show_bytes(most as usize),
            show_bytes(cache as usize)
        ));
    }
    if report.settings.hosts > 1 {
        notes.push(format!(
            "the ranks simulate {} hosts, but are on one",
            report.settings.hosts
        ));
    }
    let busy = report
        .worlds
        .iter()
        .filter(|&&ranks| ranks > report.machine.cores);
    let busy: Vec<String> = busy.map(ToString::to_string).collect();
    let machine = &report.machine;
    if machine.is_bound {
        notes.push(format!("rank 0 is bound to {} cores", machine.cores));
    } else if !busy.is_empty() {
        let cores = machine.cores;
        notes.push(format!("{} ranks share {cores} cores", busy.join(" and ")));
    }
    notes.extend(report.notes.iter().cloned());
    notes
}

/// Formats a number with four digits and no exponent.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        0.0..1.0 => 3,
        1.0..10.0 => 2,
        10.0..1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{CpuCache, Machine};
    use crate::report::samples::{gloo, row};
    use crate::settings::small;

    #[test]
    fn columns_are_aligned_with_their_heads() {
        let columns = Columns {
            against: vec![Competitor::Gloo],
            reasons: true,
        };
        let rows = [row(1 << 20, 500.0, "ring"), gloo(1 << 20, 1250.0)];
        let (head, line) = (columns.head(), columns.line(&rows[0], &rows));
        for (title, value) in [
            ("bytes", "1048576 "),
            ("time us", "500.0"),
            ("bus GB/s", "3.15"),
            ("predicted", "550.0"),
            ("x gloo", "2.50"),
        ] {
            let end = head.find(title).unwrap() + title.len();
            let found = line[..end].trim_end();
            assert!(found.ends_with(value.trim()), "{title}:\n{head}\n{line}");
        }
        assert!(line.ends_with("  requested"), "{line}");
        let theirs = columns.line(&rows[1], &rows);
        assert!(theirs.contains(" gloo "), "{theirs}");
        assert!(theirs.ends_with('-'), "{theirs}");
    }

    #[test]
    fn footnotes_mention_cached_buffers_and_shared_cores() {
        let machine = Machine {
            cpu: String::new(),
            cores: 2,
            is_bound: false,
            caches: vec![CpuCache {
                level: 3,
                kind: "Unified".to_owned(),
                bytes: 480 << 20,
            }],
            kernel: String::new(),
        };
        let mut report = CollectivesReport::new(machine, small(), vec![2, 4]);
        report.rows = vec![row(4096, 3.0, "tree")];
        report.notes.push("a note".to_owned());
        let notes = footnotes(&report).join("\n");
        for words in [
            "at most 32 KiB together, less than twice the last-level cache of 480 MiB",
            "4 ranks share 2 cores",
            "a note",
        ] {
            assert!(notes.contains(words), "{words} in {notes}");
        }
        report.machine.is_bound = true;
        let bound = "rank 0 is bound to 2 cores".to_owned();
        assert!(footnotes(&report).contains(&bound));
        report.rows = vec![row(64 << 20, 3.0, "tree")];
        assert!(!footnotes(&report).join("\n").contains("in cache"));
    }

    #[test]
    fn four_digits() {
        let shown = [0.1234, 1.234, 12.34, 123.4, 1234.5].map(digits);
        assert_eq!(shown, ["0.123", "1.23", "12.3", "123.4", "1234"]);
    }
}
