//! [`ChoiceComparison`]: the algorithm that a group chose, compared with the fastest one that can
//! be requested.

use std::collections::BTreeMap;

use ronde_report::TextTable;
use ronde_schedule::Algorithm;
use serde::Serialize;

use crate::operation::OperationKind;
use crate::report::{Implementation, MeasurementRow};
use crate::settings::{BenchTransport, BufferMemory, Preference};

/// The ratio to the best time up to which a choice counts as good.
const GOOD: f64 = 1.1;

/// The algorithm chosen for an operation of a size, and the fastest one.
///
/// Both times were measured with the algorithm requested explicitly; they are medians of
/// alternating turns. Where the fastest one was chosen they are the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChoiceComparison {
    /// The operation.
    pub operation: OperationKind,
    /// The size of the whole buffer in bytes.
    pub bytes: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The transport.
    pub over: BenchTransport,
    /// The memory of the buffers.
    pub memory: BufferMemory,
    /// The algorithm that the group chose.
    pub algorithm: String,
    /// Its time in microseconds.
    pub median_us: f64,
    /// Its time in the turns in which the group chose the algorithm; the difference shows the noise
    /// of this run.
    pub again_us: f64,
    /// The fastest algorithm.
    pub best: String,
    /// Its time in microseconds.
    pub best_us: f64,
    /// The reason for the group's choice.
    pub reason: String,
}

impl ChoiceComparison {
    /// Returns the time of the chosen algorithm as a multiple of the best time.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.median_us / self.best_us
    }

    /// Returns the ratio of the two times of the chosen algorithm, the longer over the shorter one.
    #[must_use]
    pub fn noise(&self) -> f64 {
        self.median_us.max(self.again_us) / self.median_us.min(self.again_us)
    }

    /// Returns whether the chosen algorithm is within 10 % of the best, or no farther from it than
    /// the noise.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.ratio() <= GOOD.max(self.noise())
    }
}

/// Returns the algorithms that a run must request for [`chosen`]: the automatic choice, and every
/// algorithm.
#[must_use]
pub fn every_algorithm(hosts: usize) -> Vec<Preference> {
    let able = |algorithm: &Algorithm| hosts > 1 || *algorithm != Algorithm::Hierarchical;
    let all = Algorithm::ALL.into_iter().filter(able);
    let named = all.map(|algorithm| Preference(Some(algorithm)));
    std::iter::once(Preference(None)).chain(named).collect()
}

/// Returns the choices among rows, in their order; cells without alternatives are left out.
#[must_use]
pub fn chosen(rows: &[MeasurementRow]) -> Vec<ChoiceComparison> {
    let of = |row: &MeasurementRow| {
        let (over, memory, algorithm, reason) = by_itself(row)?;
        let asked: Vec<(&str, f64)> = rows
            .iter()
            .filter(|other| is_same_cell(row, other))
            .filter_map(|other| Some((by_name(other)?, other.times.median_us)))
            .collect();
        let (best, best_us) = asked.iter().min_by(|a, b| a.1.total_cmp(&b.1)).copied()?;
        let (_, median_us) = asked.iter().find(|one| one.0 == algorithm).copied()?;
        Some(ChoiceComparison {
            operation: row.operation,
            bytes: row.bytes,
            ranks: row.ranks,
            over,
            memory,
            algorithm: algorithm.to_owned(),
            median_us,
            again_us: row.times.median_us,
            best: best.to_owned(),
            best_us,
            reason: reason.to_owned(),
        })
    };
    rows.iter().filter_map(of).collect()
}

/// Returns the configuration of a row whose algorithm the group chose.
fn by_itself(row: &MeasurementRow) -> Option<(BenchTransport, BufferMemory, &str, &str)> {
    match &row.way {
        Implementation::Ronde {
            preference,
            over,
            memory,
            algorithm,
            reason,
            ..
        } if preference == "auto" => Some((*over, *memory, algorithm, reason)),
        _ => None,
    }
}

/// Returns the requested algorithm of a row.
fn by_name(row: &MeasurementRow) -> Option<&str> {
    match &row.way {
        Implementation::Ronde {
            preference,
            algorithm,
            ..
        } if preference != "auto" => Some(algorithm),
        _ => None,
    }
}

fn is_same_cell(one: &MeasurementRow, other: &MeasurementRow) -> bool {
    let cell = |row: &MeasurementRow| match &row.way {
        Implementation::Ronde {
            transport, memory, ..
        } => Some((row.operation, row.bytes, row.ranks, *transport, *memory)),
        Implementation::Other { .. } => None,
    };
    cell(one).is_some() && cell(one) == cell(other)
}

/// Formats the choices as a table with a summary per operation and transport.
#[must_use]
pub fn choice_table(rows: &[MeasurementRow]) -> Vec<String> {
    let all = chosen(rows);
    let mut table = TextTable::new([
        "operation",
        "bytes",
        "ranks",
        "transport",
        "chosen",
        "time us",
        "again us",
        "best",
        "time us",
        "ratio",
    ])
    .right([1, 2, 5, 6, 8, 9]);
    let mut cells: BTreeMap<(&str, &str), Vec<&ChoiceComparison>> = BTreeMap::new();
    for one in &all {
        let note = match (one.ratio() > GOOD, one.is_good()) {
            (false, _) => String::new(),
            (true, true) => format!("noise; {}", one.reason),
            (true, false) => one.reason.clone(),
        };
        table.row([
            one.operation.name().to_owned(),
            one.bytes.to_string(),
            one.ranks.to_string(),
            one.over.name().to_owned(),
            one.algorithm.clone(),
            format!("{:.1}", one.median_us),
            format!("{:.1}", one.again_us),
            one.best.clone(),
            format!("{:.1}", one.best_us),
            format!("{:.2}", one.ratio()),
            note,
        ]);
        let key = (one.operation.name(), one.over.name());
        cells.entry(key).or_default().push(one);
    }
    let mut lines: Vec<String> = table.lines().collect();
    for ((operation, over), cells) in cells {
        let mut ratios: Vec<f64> = cells.iter().map(|one| one.ratio()).collect();
        ratios.sort_by(f64::total_cmp);
        let (count, most) = (ratios.len(), ratios[ratios.len() - 1]);
        let good = ratios.iter().filter(|ratio| **ratio <= GOOD).count();
        let noisy = cells.iter().filter(|one| one.is_good()).count() - good;
        lines.push(format!(
            "{operation} over {over}: {good} of {count} choices within 10 % of the best, {noisy} more no farther from it \
             than from themselves; median {:.2}, most {most:.2}",
            ratios[count / 2]
        ));
    }
    let autos = rows.iter().filter(|row| by_itself(row).is_some()).count();
    if autos > all.len() {
        let one_way = autos - all.len();
        lines.push(format!("no alternatives: {one_way} of {autos}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::{gloo, row};

    /// A row whose algorithm the group chose.
    fn auto(bytes: usize, algorithm: &str) -> MeasurementRow {
        let mut row = row(bytes, 77.0, algorithm);
        if let Implementation::Ronde { preference, .. } = &mut row.way {
            "auto".clone_into(preference);
        }
        row
    }

    #[test]
    fn a_choice_is_compared_with_the_alternatives_of_its_turns() {
        let mut elsewhere = row(8, 0.1, "driver");
        elsewhere.ranks = 2;
        let rows = [
            auto(8, "tree"),
            row(8, 10.0, "ring"),
            row(8, 12.0, "tree"),
            gloo(8, 1.0),
            auto(64, "ring"),
            row(64, 5.0, "ring"),
            row(64, 6.0, "tree"),
            elsewhere,
            auto(512, "tree"),
        ];
        let found = chosen(&rows);
        let told: Vec<_> = found
            .iter()
            .map(|one| (one.bytes, &*one.algorithm, &*one.best, one.ratio()))
            .collect();
        assert_eq!(told, [(8, "tree", "ring", 1.2), (64, "ring", "ring", 1.0)]);
        let lines = choice_table(&rows);
        // The same algorithm took 77 us when it was chosen automatically.
        assert!(lines[1].ends_with("1.20  noise; requested"), "{lines:?}");
        assert!(lines[2].ends_with("1.00"), "{lines:?}");
        assert_eq!(
            lines[3],
            "all_reduce over tcp: 1 of 2 choices within 10 % of the best, 1 more no farther from it than from \
             themselves; median 1.20, most 1.20"
        );
        let steady = ChoiceComparison {
            again_us: 12.5,
            ..found[0].clone()
        };
        assert!(found[0].is_good() && !steady.is_good());
        assert_eq!(lines[4], "no alternatives: 1 of 3");
    }

    #[test]
    fn all_algorithms_possible_on_the_hosts_are_requested() {
        let names = |hosts| -> Vec<String> {
            let all = every_algorithm(hosts);
            all.iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(1).len(), Algorithm::ALL.len());
        assert!(!names(1).contains(&"hierarchical".to_owned()));
        assert_eq!(names(2).len(), 1 + Algorithm::ALL.len());
        assert_eq!(names(2)[0], "auto");
    }
}
