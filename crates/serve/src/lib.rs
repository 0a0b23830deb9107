//! Predictions of saved models.
//!
//! A [`Predictor`] holds a model and the [`PredictionForm`] of its outputs, and returns a [`Prediction`] for each
//! sample. The same code serves files and requests, so both have the same bits.

#![forbid(unsafe_code)]

mod error;
mod prediction;
mod prediction_form;
mod predictor;

pub use error::ServeError;
pub use prediction::{ClassProbability, FoundBox, Prediction};
pub use prediction_form::{ClassDetail, PredictionForm};
pub use predictor::Predictor;
