//! The bodies of requests: [`PredictSamples`] and [`GenerateRequest`], checked against the model.

use std::num::NonZeroUsize;

use ronde_data::Vocabulary;
use serde::Deserialize;

use super::encoded_image::EncodedImage;
use super::named_row::NamedRow;
use super::number_array::NumberArray;
use super::request_error::RequestError;
use crate::text_task::TextTask;
use crate::token_sampling::TokenSampling;

/// The largest number of samples of a request.
pub(super) const SAMPLES_MAX: usize = 4096;

/// Samples to predict.
#[derive(Debug, PartialEq)]
pub(crate) struct PredictRequest {
    /// The number of samples, at least 1.
    pub(crate) samples: usize,
    /// Their features, row-major; finite.
    pub(crate) features: Vec<f32>,
}

/// A text to continue or to translate.
#[derive(Debug)]
pub(crate) struct GenerateRequest {
    /// The tokens that the model is given first, at least one: for translation with padding and the token that begins it.
    pub(crate) prompt: Vec<u32>,
    /// The largest number of new tokens, at least 1.
    pub(crate) tokens_max: usize,
    /// How tokens are chosen.
    pub(crate) sampling: TokenSampling,
    /// Whether each token is sent as soon as it is chosen.
    pub(crate) streams: bool,
}

/// The samples of a body.
#[derive(Debug, PartialEq)]
pub(crate) enum PredictSamples {
    /// Features.
    Features(PredictRequest),
    /// Encoded images, at least one, which the model can use.
    Images(Vec<EncodedImage>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PredictBody {
    inputs: Option<NumberArray>,
    rows: Option<Vec<NamedRow>>,
    images: Option<Vec<EncodedImage>>,
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

/// The samples that a model accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleForm<'a> {
    /// The shape of a sample.
    pub(crate) shape: &'a [usize],
    /// The largest number of images of a request; absent if the model was not trained on encoded images.
    pub(crate) images_max: Option<usize>,
    /// The names of its columns in their order; empty if they have none.
    pub(crate) columns: &'a [String],
    /// The divisor of the numbers of the data.
    pub(crate) divisor: Option<f32>,
}

impl PredictSamples {
    /// Parses a body: `{"inputs": [..]}` with an array for each sample, of the shape of the model's input or flat;
    /// `{"rows": [..]}` with an object for each sample, of its columns in any order and in the units of the data; or
    /// `{"images": ["..", ..]}` with a base64 text for each sample.
    ///
    /// # Errors
    /// Returns an error if it is not JSON of this form, or the samples do not fit the model.
    pub(crate) fn parse(body: &[u8], form: &SampleForm<'_>) -> Result<Self, RequestError> {
        let body: PredictBody = serde_json::from_slice(body)?;
        match (body.inputs, body.rows, body.images) {
            (Some(inputs), None, None) => {
                PredictRequest::of(inputs, form.shape).map(Self::Features)
            }
            (None, Some(rows), None) => PredictRequest::of_rows(rows, form).map(Self::Features),
            (None, None, Some(images)) => match form.images_max {
                None => Err(RequestError::NoImages),
                Some(most) if images.is_empty() || images.len() > most => {
                    let images = images.len();
                    Err(RequestError::ImageCount { images, most })
                }
                Some(_) => Ok(Self::Images(images)),
            },
            (None, None, None) => Err(RequestError::NoSamples),
            _ => Err(RequestError::Combined),
        }
    }
}

impl PredictRequest {
    /// Checks an array with an element for each sample.
    fn of(inputs: NumberArray, input_shape: &[usize]) -> Result<Self, RequestError> {
        let NumberArray { shape, values } = inputs;
        let (samples, sample) = shape.split_first().unwrap_or((&0, &[]));
        check_number("inputs", *samples)?;
        let features: usize = input_shape.iter().product();
        if sample != input_shape && sample != [features] {
            return Err(RequestError::Shape {
                found: sample.to_vec(),
                expected: input_shape.to_vec(),
                features,
            });
        }
        Ok(Self {
            samples: *samples,
            features: values,
        })
    }
}

impl PredictRequest {
    /// Puts the columns of samples into the order of a model.
    fn of_rows(rows: Vec<NamedRow>, form: &SampleForm<'_>) -> Result<Self, RequestError> {
        check_number("rows", rows.len())?;
        if form.columns.len() != form.shape.iter().product::<usize>() {
            return Err(RequestError::NoColumns);
        }
        let samples = rows.len();
        let mut features = Vec::with_capacity(samples * form.columns.len());
        for row in rows {
            row.append_to(form.columns, form.divisor, &mut features)?;
        }
        Ok(Self { samples, features })
    }
}

/// Checks the number of samples of a request.
fn check_number(key: &'static str, samples: usize) -> Result<(), RequestError> {
    match samples {
        1..=SAMPLES_MAX => Ok(()),
        _ => Err(RequestError::SampleCount { key, samples }),
    }
}

impl GenerateRequest {
    /// Parses a body for a model that generates texts of `classes` different tokens: `prompt`, a text or token numbers, and the settings of [`GenerationSettings`](crate::GenerationSettings).
    ///
    /// # Errors
    /// Returns an error if it is not JSON of this form, or the prompt does not fit the model.
    pub(crate) fn parse(
        body: &[u8],
        task: Option<TextTask>,
        vocabulary: Option<&Vocabulary>,
        classes: u32,
    ) -> Result<Self, RequestError> {
        let task = task.ok_or(RequestError::NoText)?;
        let body: GenerateBody = serde_json::from_slice(body)?;
        let prompt = match body.prompt {
            PromptBody::Tokens(tokens) => tokens,
            PromptBody::Text(text) => {
                let vocabulary = vocabulary.ok_or(RequestError::NoVocabulary)?;
                vocabulary.encode(&text)?
            }
        };
        if let Some(&token) = prompt.iter().find(|token| **token >= classes) {
            return Err(RequestError::Token { token, classes });
        }
        let length_max = task.prompt_tokens_max();
        if prompt.is_empty() || prompt.len() > length_max {
            return Err(RequestError::PromptLength {
                tokens: prompt.len(),
                most: length_max,
            });
        }
        let room = task.room_after(prompt.len());
        let tokens_max = body.max_tokens.map_or(room, |most| room.min(most.get()));
        let start = vocabulary.and_then(Vocabulary::start);
        let prompt = task
            .prompt(prompt, start)
            .map_err(|_| RequestError::NoStart)?;
        let sampling = TokenSampling::new(body.temperature, body.top_k, body.seed);
        Ok(Self {
            prompt,
            tokens_max,
            sampling: sampling?,
            streams: body.stream,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SQUARE: SampleForm<'_> = SampleForm {
        shape: &[2, 2],
        images_max: None,
        columns: &[],
        divisor: None,
    };

    #[test]
    fn rows_are_matched_by_the_names_of_their_columns() {
        let columns = ["height", "caf\u{e9}"].map(str::to_owned);
        let form = SampleForm {
            shape: &[2],
            columns: &columns,
            divisor: Some(10.0),
            ..SQUARE
        };
        let parse = |body: &str| PredictSamples::parse(body.as_bytes(), &form);
        let body = r#"{"rows":[{"height":1,"caf\u00e9":2.5},{"cafe\u0301 ":-30,"height":4}]}"#;
        let expected = PredictRequest {
            samples: 2,
            features: vec![0.1, 0.25, 0.4, -3.0],
        };
        assert_eq!(parse(body).unwrap(), PredictSamples::Features(expected));
        for (body, problem) in [
            (
                r#"{"rows":[{"height":1,"width":2}]}"#,
                "a sample has the columns `height`, `width`, expected `height`, `caf\u{e9}`",
            ),
            (r#"{"rows":[{"height":1}]}"#, "the columns `height`,"),
            (
                r#"{"rows":[{"height":1,"height":2}]}"#,
                "`height`, `height`",
            ),
            (r#"{"rows":[{"height":"1","b":2}]}"#, "invalid type: string"),
            (r#"{"rows":[{"height":1e99,"b":2}]}"#, "range of f32"),
            (r#"{"rows":[]}"#, "0 samples"),
        ] {
            let error = parse(body).unwrap_err().to_string();
            assert!(error.contains(problem), "{body}: {error}");
        }
        let error = PredictSamples::parse(br#"{"rows":[{"a":1}]}"#, &SQUARE)
            .unwrap_err()
            .to_string();
        assert!(error.contains("columns with names"), "{error}");
    }

    #[test]
    fn samples_have_the_shape_of_the_model_or_are_flat() {
        for body in [r#"{"inputs":[[[1,2],[3,4]]]}"#, r#"{"inputs":[[1,2,3,4]]}"#] {
            let request = PredictSamples::parse(body.as_bytes(), &SQUARE).unwrap();
            let expected = PredictRequest {
                samples: 1,
                features: vec![1.0, 2.0, 3.0, 4.0],
            };
            assert_eq!(request, PredictSamples::Features(expected));
        }
        for (body, problem) in [
            ("", "EOF"),
            ("[]", "invalid length 0"),
            ("{}", "missing field `inputs`, `rows` or `images`"),
            (r#"{"images":["AAAA"]}"#, "not trained on encoded images"),
            (r#"{"inputs":[],"more":1}"#, "unknown field `more`"),
            (r#"{"inputs":[]}"#, "0 samples"),
            (r#"{"inputs":[[1,2]]}"#, "shape [2], expected [2, 2] or [4]"),
            (r#"{"inputs":[1,2,3,4]}"#, "shape []"),
            (r#"{"inputs":[[1,2,3,"4"]]}"#, "invalid type: string"),
        ] {
            let parsed = PredictSamples::parse(body.as_bytes(), &SQUARE);
            let error = parsed.unwrap_err().to_string();
            assert!(error.contains(problem), "{body}: {error}");
        }
    }

    #[test]
    fn the_number_of_images_is_limited() {
        let form = SampleForm {
            images_max: Some(2),
            ..SQUARE
        };
        let parse = |body: &str| PredictSamples::parse(body.as_bytes(), &form);
        let images = parse(r#"{"images":["AAAA","AAAB"]}"#).unwrap();
        let expected = [EncodedImage(vec![0; 3]), EncodedImage(vec![0, 0, 1])];
        assert_eq!(images, PredictSamples::Images(expected.into()));
        for (body, problem) in [
            (
                r#"{"images":["AAAA","AAAA","AAAA"]}"#,
                "3 images, expected 1 to 2",
            ),
            (r#"{"images":[]}"#, "0 images"),
            (
                r#"{"images":["AAAA"],"inputs":[[1,2,3,4]]}"#,
                "cannot be combined",
            ),
        ] {
            let error = parse(body).unwrap_err().to_string();
            assert!(error.contains(problem), "{body}: {error}");
        }
    }
}
