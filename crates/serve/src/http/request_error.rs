//! [`RequestError`]: why the body of a request is refused.

use ronde_core::NameList;
use ronde_data::EncodeError;

use super::requests::SAMPLES_MAX;
use crate::error::ServeError;

/// The reason why the body of a request is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("invalid body: {0}")]
    Json(#[from] serde_json::Error),
    #[error("invalid body: missing field `inputs`, `rows` or `images`")]
    NoSamples,
    #[error("invalid body: `inputs`, `rows` and `images` cannot be combined")]
    Combined,
    #[error(
        "cannot use `images`: the model was not trained on encoded images; send its features as `inputs`"
    )]
    NoImages,
    #[error("invalid `images`: {images} images, expected 1 to {most}")]
    ImageCount { images: usize, most: usize },
    #[error("invalid `{key}`: {samples} samples, expected 1 to {SAMPLES_MAX}")]
    SampleCount { key: &'static str, samples: usize },
    #[error("invalid `inputs`: samples of shape {found:?}, expected {expected:?} or [{features}]")]
    Shape {
        found: Vec<usize>,
        expected: Vec<usize>,
        features: usize,
    },
    #[error(
        "cannot use `rows`: the model was not trained on columns with names; send its features as `inputs`"
    )]
    NoColumns,
    #[error(
        "invalid `rows`: a sample has the columns {}, expected {}",
        NameList(found),
        NameList(expected)
    )]
    Columns {
        found: Vec<String>,
        expected: Vec<String>,
    },
    #[error(
        "cannot generate text: the model is not of kind `gpt` or `transformer`; use /v1/predict"
    )]
    NoText,
    #[error("invalid `prompt`: the data of the model has no text; send token numbers")]
    NoVocabulary,
    #[error("invalid `prompt`: {0}")]
    Prompt(#[from] EncodeError),
    #[error("invalid `prompt`: token `{token}`, expected numbers below {classes}")]
    Token { token: u32, classes: u32 },
    #[error("invalid `prompt`: {tokens} tokens, expected 1 to {most}")]
    PromptLength { tokens: usize, most: usize },
    #[error(
        "cannot translate: the data of the model does not define the token that begins a translation"
    )]
    NoStart,
    #[error(transparent)]
    Sampling(#[from] ServeError),
}
