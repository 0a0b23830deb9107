//! The parsers of requests, one by one, for fuzzing; not a stable interface.

use std::error::Error;
use std::path::Path;
use std::sync::LazyLock;

use ronde_data::decode::{DecodeScratch, ImageDecoder, ImageFeatures};
use ronde_data::{DataConfig, DataError, OpenContext, Vocabulary};
use serde_json::json;

use crate::http::requests::{GenerateRequest, PredictSamples, SampleForm};
use crate::text_task::TextTask;

/// The shape of the images of the model in fuzzed requests.
const SHAPE: [usize; 3] = [3, 2, 2];
/// The largest number of images of a request.
const IMAGES_MAX: usize = 2;
/// The largest number of pixels of an image.
const PIXELS_MAX: u64 = 1 << 20;
/// A PNG image of one pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGMQUDAAAACkAGE0Zn1yAAAAAElFTkSuQmCC";

/// The body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FuzzedRequest {
    /// Samples to predict, as numbers or as images, which are decoded.
    Predict,
    /// A text to continue or to translate.
    Generate,
}

impl FuzzedRequest {
    /// Returns valid bodies, to start with.
    #[must_use]
    pub fn samples(self) -> Vec<Vec<u8>> {
        let columns = (0..SHAPE.iter().product::<usize>()).map(|at| (format!("c{at}"), at.into()));
        let row: serde_json::Map<String, serde_json::Value> = columns.collect();
        let bodies = match self {
            Self::Predict => vec![
                json!({ "inputs": [[[[1.5, -2.0], [0.0, 1e-3]], [[1, 2], [3, 4]], [[0, 0], [0, 0]]]] }),
                json!({ "inputs": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]] }),
                json!({ "rows": [row] }),
                json!({ "images": [PIXEL] }),
            ],
            Self::Generate => vec![
                json!({ "prompt": [1, 2], "max_tokens": 3, "temperature": 0.5, "top_k": 4, "seed": 7, "stream": true }),
                json!({ "prompt": "one two" }),
            ],
        };
        bodies.iter().map(|body| body.to_string().into()).collect()
    }

    /// Parses a body as the server does, or returns why it is refused.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(self, body: &[u8]) -> Result<(), Box<dyn Error>> {
        let columns: Vec<String> = (0..SHAPE.iter().product::<usize>())
            .map(|column| format!("c{column}"))
            .collect();
        let form = SampleForm {
            shape: &SHAPE,
            images_max: Some(IMAGES_MAX),
            columns: &columns,
            divisor: Some(2.0),
        };
        match self {
            Self::Predict => match PredictSamples::parse(body, &form)? {
                PredictSamples::Features(_) => Ok(()),
                PredictSamples::Images(images) => {
                    let decoder = decoder()?;
                    let mut features = vec![0.0; decoder.elements()];
                    let mut scratch = DecodeScratch::new();
                    for image in images {
                        decoder.decode_for_evaluation(&image.0, &mut scratch, &mut features)?;
                    }
                    Ok(())
                }
            },
            Self::Generate => {
                let continued = TextTask::Continue { positions: 6 };
                let translated = TextTask::Translate {
                    source: 4,
                    target: 4,
                    padding: 0,
                };
                let vocabulary = VOCABULARY.as_ref().map_err(String::clone)?;
                let translation =
                    GenerateRequest::parse(body, Some(translated), Some(vocabulary), 10);
                let continuation = GenerateRequest::parse(body, Some(continued), None, 10);
                continuation.or(translation)?;
                Ok(())
            }
        }
    }
}

fn decoder() -> Result<ImageDecoder, DataError> {
    let features = ImageFeatures {
        field: "image".to_owned(),
        shape: SHAPE.to_vec(),
        resize: Some(3),
        crop: None,
        flip: false,
        area: [1.0, 1.0],
        mean: None,
        std: None,
    };
    Ok(ImageDecoder::new(&features)?.with_pixels_max(PIXELS_MAX))
}

/// The words of a data set of the program.
static VOCABULARY: LazyLock<Result<std::sync::Arc<Vocabulary>, String>> = LazyLock::new(|| {
    let config = DataConfig::NumberWords {
        samples: 1,
        test_samples: 0,
    };
    let opened = ronde_data::open(&config, &OpenContext::new(Path::new("."), 0));
    let opened = opened.map_err(|error| error.to_string())?;
    let vocabulary = opened.train.description().vocabulary.clone();
    vocabulary.ok_or_else(|| "the words are missing".to_owned())
});
