//! Predictions of saved models.
//!
//! A [`Predictor`] holds a model and the [`PredictionForm`] of its outputs, and returns a [`Prediction`] for each
//! sample. The same code serves files and requests, so both have the same bits. A [`TextGenerator`] continues or translates
//! texts, token by token.
//!
//! With the feature `http`, `serve` answers requests over HTTP.
//!
//! A data set is predicted in the chunks of a [`ChunkPlan`]. [`Scoring`] computes them in any number of processes and
//! publishes each in a [`PartFolder`], which joins them into the output.

#![forbid(unsafe_code)]

mod chunks;
mod class_labels;
mod columns;
mod data_form;
#[cfg(feature = "http")]
pub mod decoders;
mod error;
#[cfg(feature = "http")]
mod http;
mod image_features;
mod output;
mod part_folder;
mod predicted_sample;
mod prediction;
mod prediction_form;
mod predictor;
mod prompts;
mod scoring;
mod table_file;
mod text_generator;
mod text_task;
mod token_sampling;

pub use chunks::{ChunkPlan, ChunkQueue};
pub use class_labels::ClassLabels;
pub use data_form::DataForm;
pub use error::ServeError;
#[cfg(feature = "http")]
pub use http::{HttpSettings, ModelSource, ServedModel, serve};
pub use image_features::image_features;
pub use output::OutputFormat;
pub use part_folder::{ChunkRecord, JoinedOutput, PartFolder, ScoringIdentity};
pub use predicted_sample::PredictedSample;
pub use prediction::{ClassProbability, FoundBox, Prediction};
pub use prediction_form::{ClassDetail, PredictionForm};
pub use predictor::Predictor;
pub use prompts::{Prompt, Prompts};
pub use scoring::{Scorer, Scoring};
pub use text_generator::{GenerationSettings, TextGenerator};
pub use token_sampling::TokenSampling;
