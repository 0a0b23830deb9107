//! [`PredictedSample`]: a sample and its prediction.

use ronde_data::SampleOrigin;
use serde::Serialize;

use crate::prediction::Prediction;

/// A sample and its prediction: a row of the output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedSample {
    /// The number of the sample in its data set.
    pub sample: u64,
    /// The record of the sample, for data in files.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub origin: Option<SampleOrigin>,
    /// The prediction.
    #[serde(flatten)]
    pub prediction: Prediction,
}
