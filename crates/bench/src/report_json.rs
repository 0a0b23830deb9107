//! The JSON form of a [`CollectivesReport`], with values derived from its rows.

use serde::Serialize;

use crate::choice_comparison::chosen;
use crate::error::BenchError;
use crate::report::CollectivesReport;
use crate::report::MeasurementRow;

/// A row in a file, with derived values.
#[derive(Serialize)]
struct DerivedRow<'a> {
    #[serde(flatten)]
    row: &'a MeasurementRow,
    #[serde(rename = "algbw_gb_s")]
    algorithm_bandwidth: Option<f64>,
    #[serde(rename = "busbw_gb_s")]
    bus_bandwidth: Option<f64>,
}

impl CollectivesReport {
    /// Returns the report as JSON, each row with its bandwidths, and the choices that can be
    /// assessed ([`chosen`]).
    ///
    /// # Errors
    /// [`BenchError::Channel`] for a number that JSON cannot represent.
    pub fn to_json(&self) -> Result<String, BenchError> {
        let failed = |error: serde_json::Error| BenchError::channel("encode the report", error);
        let mut value = serde_json::to_value(self).map_err(failed)?;
        let rows: Vec<DerivedRow<'_>> = self
            .rows
            .iter()
            .map(|row| DerivedRow {
                row,
                algorithm_bandwidth: row.algorithm_bandwidth(),
                bus_bandwidth: row.bus_bandwidth(),
            })
            .collect();
        value["rows"] = serde_json::to_value(rows).map_err(failed)?;
        let choices = chosen(&self.rows);
        if !choices.is_empty() {
            value["choices"] = serde_json::to_value(choices).map_err(failed)?;
        }
        serde_json::to_string_pretty(&value).map_err(failed)
    }
}
