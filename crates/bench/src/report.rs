//! [`MeasurementRow`] and [`CollectivesReport`]: the results, as they are stored in a file.

use std::path::Path;

use ronde_core::FormatHeader;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::machine::Machine;
use crate::operation::OperationKind;
use crate::settings::{BenchTransport, BufferMemory, Competitor, Settings};
use crate::statistics::Statistics;

/// The name and version of the result file's format.
pub const FORMAT: (&str, u32) = ("ronde.bench", 1);

/// The measured implementation and its configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Implementation {
    /// ronde's implementation.
    Ronde {
        /// The requested transport.
        transport: BenchTransport,
        /// The transport that was used.
        over: BenchTransport,
        /// The memory of the buffers.
        memory: BufferMemory,
        /// The requested algorithm.
        preference: String,
        /// The algorithm that was used.
        algorithm: String,
        /// The reason for it.
        reason: String,
        /// The time predicted by the cost model, in microseconds.
        predicted_us: Option<f64>,
    },
    /// A competitor, measured in the same run.
    Other {
        /// The competitor.
        name: Competitor,
    },
}

impl Implementation {
    /// Returns a short name for a legend: `shared memory, group buffers`, `tcp, ring`, `Gloo`.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Ronde {
                transport,
                over,
                memory,
                preference,
                algorithm,
                ..
            } => {
                let by_itself = match transport {
                    BenchTransport::Auto => "auto: ",
                    _ => "",
                };
                let chosen = match &**preference {
                    "auto" => String::new(),
                    _ => format!(", {algorithm}"),
                };
                match over {
                    BenchTransport::SharedMemory => {
                        format!("{by_itself}shared memory, {memory} buffers{chosen}")
                    }
                    _ => format!("{by_itself}{over}{chosen}"),
                }
            }
            Self::Other { name } => match name {
                Competitor::Gloo => "Gloo".to_owned(),
                Competitor::Mpi => "MPI".to_owned(),
                Competitor::Loop => "plain loop, the bound".to_owned(),
            },
        }
    }
}

/// The measurement of one case at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasurementRow {
    /// The operation.
    pub operation: OperationKind,
    /// The size of the whole buffer in bytes.
    pub bytes: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The implementation.
    #[serde(flatten)]
    pub way: Implementation,
    /// The time of one blocking operation on rank 0.
    #[serde(flatten)]
    pub times: Statistics,
    /// The number of buffers used in rotation on each rank.
    pub buffers: usize,
    /// The total size of all ranks' buffers in bytes.
    pub working_set_bytes: u64,
    /// Whether these fit twice into the largest cache, so that the result does not reflect memory
    /// bandwidth.
    pub in_cache: bool,
}

impl MeasurementRow {
    /// Returns the bytes of the buffer per time, in GB/s; `None` without bytes.
    #[must_use]
    pub fn algorithm_bandwidth(&self) -> Option<f64> {
        let moved = self.bytes > 0 && self.times.median_us > 0.0;
        moved.then(|| self.bytes as f64 / self.times.median_us / 1e3)
    }

    /// Returns the bus bandwidth of nccl-tests in GB/s: [`OperationKind::bus_factor`].
    #[must_use]
    pub fn bus_bandwidth(&self) -> Option<f64> {
        let factor = self.operation.bus_factor(self.ranks);
        self.algorithm_bandwidth().map(|rate| rate * factor)
    }
}

/// Returns the speed of `other` in relation to a row that was measured in turns with it.
#[must_use]
pub fn times_as_fast(
    row: &MeasurementRow,
    other: Competitor,
    rows: &[MeasurementRow],
) -> Option<f64> {
    let theirs = rows.iter().find(|theirs| {
        theirs.way == Implementation::Other { name: other }
            && (theirs.operation, theirs.bytes, theirs.ranks)
                == (row.operation, row.bytes, row.ranks)
    })?;
    Some(theirs.times.median_us / row.times.median_us)
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectivesReport {
    /// [`FORMAT`].
    #[serde(flatten)]
    pub header: FormatHeader,
    /// The start time in seconds since 1970.
    pub at: u64,
    /// The version of ronde.
    pub ronde: String,
    /// The machine of the measurements.
    pub machine: Machine,
    /// The settings.
    pub settings: Settings,
    /// The numbers of ranks, in order.
    pub worlds: Vec<usize>,
    /// Skipped cases and other notes.
    pub notes: Vec<String>,
    /// The measurements.
    pub rows: Vec<MeasurementRow>,
}

impl CollectivesReport {
    /// Creates an empty report of this moment and machine.
    #[must_use]
    pub fn new(machine: Machine, settings: Settings, worlds: Vec<usize>) -> Self {
        let at = ronde_clock::date().duration_since(std::time::UNIX_EPOCH);
        Self {
            header: FormatHeader::of(FORMAT),
            at: at.map_or(0, |since| since.as_secs()),
            ronde: env!("CARGO_PKG_VERSION").to_owned(),
            machine,
            settings,
            worlds,
            notes: Vec::new(),
            rows: Vec::new(),
        }
    }
}

/// Writes a file of results.
///
/// # Errors
/// [`BenchError::File`].
pub fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|source| BenchError::File {
        path: path.display().to_string(),
        source,
    })
}

/// Rows for tests of tables.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn row(bytes: usize, median_us: f64, algorithm: &str) -> MeasurementRow {
        MeasurementRow {
            operation: OperationKind::AllReduce,
            bytes,
            ranks: 4,
            way: Implementation::Ronde {
                transport: BenchTransport::Tcp,
                over: BenchTransport::Tcp,
                memory: BufferMemory::Any,
                preference: algorithm.to_owned(),
                algorithm: algorithm.to_owned(),
                reason: "requested".to_owned(),
                predicted_us: Some(median_us * 1.1),
            },
            times: Statistics {
                samples: 10,
                median_us,
                p10_us: median_us * 0.9,
                min_us: median_us * 0.8,
            },
            buffers: 2,
            working_set_bytes: 8 * bytes as u64,
            in_cache: bytes < 1 << 20,
        }
    }

    pub(crate) fn gloo(bytes: usize, median_us: f64) -> MeasurementRow {
        let name = Competitor::Gloo;
        MeasurementRow {
            way: Implementation::Other { name },
            ..row(bytes, median_us, "ring")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{gloo, row};
    use super::*;
    use crate::settings::small;

    #[test]
    fn bandwidths_are_bytes_per_time() {
        let row = row(1_000_000, 1000.0, "ring");
        assert_eq!(row.algorithm_bandwidth(), Some(1.0));
        assert_eq!(row.bus_bandwidth(), Some(1.5));
        let rows = [row.clone(), gloo(1_000_000, 2000.0), gloo(8, 1.0)];
        assert_eq!(times_as_fast(&row, Competitor::Gloo, &rows), Some(2.0));
        assert_eq!(times_as_fast(&row, Competitor::Mpi, &rows), None);
    }

    #[test]
    fn a_report_is_read_back_and_names_its_format() {
        let mut report = CollectivesReport::new(Machine::here(), small(), vec![2, 4]);
        report.rows = vec![row(8, 3.0, "tree"), gloo(8, 4.0)];
        let json = report.to_json().unwrap();
        assert_eq!(
            serde_json::from_str::<CollectivesReport>(&json).unwrap(),
            report
        );
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["format"], "ronde.bench");
        assert_eq!(value["version"], 1);
        assert_eq!(value["rows"][0]["by"], "ronde");
        assert_eq!(value["rows"][0]["samples"], 10);
        assert!(value["rows"][0]["busbw_gb_s"].as_f64().unwrap() > 0.0);
        assert_eq!(value["rows"][1]["name"], "gloo");
    }
}
