//! [`RunRequest`]: a run for forecasts.

use serde::Serialize;

use crate::advice::BatchSettings;
use crate::step_request::StepRequest;

/// A run for forecasts.
#[derive(Debug, Clone)]
pub struct RunRequest<'a> {
    /// What all layouts have in common.
    pub step: StepRequest<'a>,
    /// The length of the run.
    pub length: RunLength,
    /// The batch and the learning rate.
    pub batch: BatchSettings,
    /// The number of configurations that are to be trained; 1 if there is only this one.
    pub configurations: u32,
    /// The measured costs of short forms of gradients.
    pub codecs: &'a [CodecCosts],
}

/// The length of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunLength {
    /// The number of steps.
    pub steps: u64,
    /// The seconds in which one worker computes all evaluations of the run.
    pub evaluations_s: f64,
}

/// The cost of a short form of gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct CodecCosts {
    /// The value of `compression.codec`.
    pub codec: &'static str,
    /// Its bytes, divided by those of the gradient.
    pub bytes_share: f64,
    /// The measured seconds in which a worker encodes a gradient.
    pub encode_s: f64,
    /// The measured effect on the accuracy.
    pub accuracy: &'static str,
}
