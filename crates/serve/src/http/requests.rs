//! The bodies of requests: [`PredictRequest`] and [`GenerateRequest`], checked against the model.

use std::num::NonZeroUsize;

use ronde_data::Vocabulary;
use serde::Deserialize;

use super::number_array::NumberArray;
use super::served_model::ServedModel;
use crate::TokenSampling;

/// The largest number of samples of a request.
const SAMPLES_MAX: usize = 4096;

/// Samples to predict.
#[derive(Debug, PartialEq)]
pub(super) struct PredictRequest {
    /// The number of samples, at least 1.
    pub(super) samples: usize,
    /// Their features, row-major; finite.
    pub(super) features: Vec<f32>,
}

/// A text to continue or to translate.
#[derive(Debug)]
pub(super) struct GenerateRequest {
    /// The tokens that the model is given first, at least one: for translation with padding and the token that begins it.
    pub(super) prompt: Vec<u32>,
    /// The largest number of new tokens, at least 1.
    pub(super) tokens_max: usize,
    /// How tokens are chosen.
    pub(super) sampling: TokenSampling,
    /// Whether each token is sent as soon as it is chosen.
    pub(super) streams: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PredictBody {
    inputs: NumberArray,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GenerateBody {
    prompt: PromptBody,
    max_tokens: Option<NonZeroUsize>,
    #[serde(default)]
    temperature: f32,
    top_k: Option<NonZeroUsize>,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    stream: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or an array of token numbers")]
enum PromptBody {
    Text(String),
    Tokens(Vec<u32>),
}

fn invalid(error: &serde_json::Error) -> String {
    format!("invalid body: {error}")
}

impl PredictRequest {
    /// Parses a body: `{"inputs": [..]}` with an array for each sample, of the shape of the model's input or flat.
    ///
    /// # Errors
    /// A message if it is not JSON of this form, or the samples do not fit the model.
    pub(super) fn parse(body: &[u8], input_shape: &[usize]) -> Result<Self, String> {
        let body: PredictBody = serde_json::from_slice(body).map_err(|error| invalid(&error))?;
        let NumberArray { shape, values } = body.inputs;
        let (samples, sample) = shape.split_first().unwrap_or((&0, &[]));
        if *samples == 0 || *samples > SAMPLES_MAX {
            return Err(format!(
                "invalid `inputs`: {samples} samples, expected 1 to {SAMPLES_MAX}"
            ));
        }
        let features: usize = input_shape.iter().product();
        if sample != input_shape && sample != [features] {
            return Err(format!(
                "invalid `inputs`: samples of shape {sample:?}, expected {input_shape:?} or [{features}]"
            ));
        }
        Ok(Self {
            samples: *samples,
            features: values,
        })
    }
}

impl GenerateRequest {
    /// Parses a body: `prompt`, a text or token numbers, and the settings of [`GenerationSettings`](crate::GenerationSettings).
    ///
    /// # Errors
    /// A message if it is not JSON of this form, or the prompt does not fit the model.
    pub(super) fn parse(body: &[u8], model: &ServedModel) -> Result<Self, String> {
        let task = model.text_task().ok_or_else(|| {
            "cannot generate text: the model is not of kind `gpt` or `transformer`; use /v1/predict"
                .to_owned()
        })?;
        let body: GenerateBody = serde_json::from_slice(body).map_err(|error| invalid(&error))?;
        let prompt = match body.prompt {
            PromptBody::Tokens(tokens) => tokens,
            PromptBody::Text(text) => {
                let vocabulary = model.vocabulary().ok_or_else(|| {
                    "invalid `prompt`: the data of the model has no text; send token numbers"
                        .to_owned()
                })?;
                let tokens = vocabulary.encode(&text);
                tokens.map_err(|problem| format!("invalid `prompt`: {problem}"))?
            }
        };
        let classes = model.manifest().classes;
        if let Some(token) = prompt.iter().find(|token| **token >= classes) {
            return Err(format!(
                "invalid `prompt`: token `{token}`, expected numbers below {classes}"
            ));
        }
        let length_max = task.prompt_tokens_max();
        if prompt.is_empty() || prompt.len() > length_max {
            return Err(format!(
                "invalid `prompt`: {} tokens, expected 1 to {length_max}",
                prompt.len()
            ));
        }
        let room = task.room_after(prompt.len());
        let tokens_max = body.max_tokens.map_or(room, |most| room.min(most.get()));
        let start = model.vocabulary().and_then(Vocabulary::start);
        let prompt = task.prompt(prompt, start).map_err(|_| {
            "cannot translate: the data of the model does not define the token that begins a translation"
                .to_owned()
        })?;
        let sampling = TokenSampling::new(body.temperature, body.top_k, body.seed);
        Ok(Self {
            prompt,
            tokens_max,
            sampling: sampling.map_err(|error| error.to_string())?,
            streams: body.stream,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_shape_of_the_model_or_are_flat() {
        for body in [r#"{"inputs":[[[1,2],[3,4]]]}"#, r#"{"inputs":[[1,2,3,4]]}"#] {
            let request = PredictRequest::parse(body.as_bytes(), &[2, 2]).unwrap();
            assert_eq!(
                request,
                PredictRequest {
                    samples: 1,
                    features: vec![1.0, 2.0, 3.0, 4.0]
                }
            );
        }
        for (body, problem) in [
            ("", "EOF"),
            ("[]", "invalid length 0"),
            ("{}", "missing field `inputs`"),
            (r#"{"inputs":[],"more":1}"#, "unknown field `more`"),
            (r#"{"inputs":[]}"#, "0 samples"),
            (r#"{"inputs":[[1,2]]}"#, "shape [2], expected [2, 2] or [4]"),
            (r#"{"inputs":[1,2,3,4]}"#, "shape []"),
            (r#"{"inputs":[[1,2,3,"4"]]}"#, "invalid type: string"),
        ] {
            let error = PredictRequest::parse(body.as_bytes(), &[2, 2]).unwrap_err();
            assert!(error.contains(problem), "{body}: {error}");
        }
    }
}
