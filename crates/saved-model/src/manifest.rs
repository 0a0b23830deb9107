//! [`ModelManifest`]: the description of a saved model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ronde_core::{DataSignature, FormatHeader, TokenTexts};
use ronde_engine::{ModelConfig, Precision, ValueLoss};
use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::image_input::ImageInput;

/// The file name of the weights in the folder of a saved model.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The file name of the manifest in the folder of a saved model.
pub const MANIFEST_FILE: &str = "model.json";
/// The file name of the tokenizer in the folder of a saved model, in the format of the library `tokenizers`.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The largest manifest that is read, in bytes.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// The contents of a saved model's manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// The format and its version.
    pub header: FormatHeader,
    /// The name of the run.
    pub run: String,
    /// The configuration of the model; absent for a user's own model.
    pub model: Option<ModelConfig>,
    /// The shape of one sample.
    pub input_shape: Vec<usize>,
    /// The number of classes.
    pub classes: u32,
    /// How encoded images become inputs; absent if the model was not trained on encoded images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageInput>,
    /// The kind of the targets, which decides the meaning of the outputs; absent in the models of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetKind>,
    /// The names and the units of inputs and outputs. In a manifest of an earlier release they are those of its settings.
    #[serde(default, skip_serializing_if = "DataSignature::is_empty")]
    pub signature: DataSignature,
    /// The text of the tokens; absent if the data had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<TokenTexts>,
    /// The number of steps that the model was trained on.
    pub steps: u64,
    /// The hash of the plan.
    pub plan: String,
    /// All settings that the trained bits depend on.
    pub identity: Vec<(String, String)>,
    /// Why another run with the same settings has other weights; absent: it has the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrepeatable: Option<String>,
    /// The BLAKE3 hash of the weights file, 64 hexadecimal digits.
    pub blake3: String,
    /// The evaluation of the saved weights, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<ModelEvaluation>,
    /// The choice of the model among those that the run has evaluated; absent: it is that of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestEvaluation>,
}

/// The kind of the targets of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Class numbers.
    Classes,
    /// Values.
    Values,
    /// Boxes of objects in an image.
    Boxes,
}

/// The evaluation that chose a model among those of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestEvaluation {
    /// The metric, or `loss`, that was best.
    pub metric: String,
    /// The last step that the model was trained on.
    pub step: u64,
    /// The number of steps of the whole run; absent in the models of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_steps: Option<u64>,
}

/// The results of an evaluation on samples that were not trained on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelEvaluation {
    /// The number of steps that the evaluated weights were trained on; absent in the models of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The number of samples.
    pub samples: u64,
    /// The identity of the samples; absent in the models of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The mean loss as `loss`, and the metrics by name. Values that are not finite are left out.
    pub values: BTreeMap<String, f64>,
    /// For each true class, how often each class was predicted, if the run measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confusion: Option<Vec<Vec<u64>>>,
}

impl ModelManifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// The file cannot be read, is not a manifest, or was written by a newer release.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let bytes = read_limited(path, (MANIFEST_BYTES_MAX, "a manifest"))?;
        Self::parse(&bytes, path)
    }

    /// Parses the contents of a manifest; `path` is for messages.
    ///
    /// # Errors
    /// As [`ModelManifest::read`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, ModelError> {
        let unreadable = |error: serde_json::Error| {
            ModelError::damaged(path, format!("it is not the manifest of a model: {error}"))
        };
        // The header is read first, because a newer version may have other fields.
        let HeaderOnly { header } = serde_json::from_slice(bytes).map_err(unreadable)?;
        check_header(&header, path)?;
        let mut manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        if manifest.signature.is_empty() {
            manifest.signature = manifest.signature_of_settings();
        }
        Ok(manifest)
    }

    /// Returns the names and the units in the settings of the run, for a manifest that has no others. Columns are left out:
    /// only the data shows whether they have names.
    fn signature_of_settings(&self) -> DataSignature {
        // Numbers and lists of texts are written as in JSON, but for rare escapes.
        fn parsed<T: serde::de::DeserializeOwned>(setting: Option<&str>) -> Option<T> {
            serde_json::from_str(setting?).ok()
        }
        let divisor = |key: &str| {
            let scale = parsed(self.setting(key));
            scale.filter(|scale: &f32| *scale != 1.0)
        };
        let names: Option<Vec<String>> = parsed(self.setting("data.label.names"));
        let names = names.unwrap_or_default();
        DataSignature {
            feature_scale: divisor("data.features.scale"),
            class_names: names.iter().map(|name| name.trim().to_owned()).collect(),
            first_class: parsed(self.setting("data.label.first")).unwrap_or_default(),
            value_scale: divisor("data.label.scale"),
            ..DataSignature::default()
        }
    }

    /// Returns the factor for the outputs of the model to be in the units of the data; `None` if they are,
    /// or if they have no unit, as classes and the logits of masks.
    #[must_use]
    pub fn output_scale(&self) -> Option<f32> {
        let loss = self.setting("train.loss").unwrap_or_default();
        let loss = serde_json::Value::from(loss.trim_matches('"'));
        let loss: Option<ValueLoss> = serde_json::from_value(loss).ok();
        let are_logits = loss.is_some_and(ValueLoss::is_of_masks);
        self.signature.value_scale.filter(|_| !are_logits)
    }

    /// Checks the format version of the manifest beside a file of weights. A file without a manifest of ronde, such as one of
    /// another library, passes: its tensors have all that is needed to start from it.
    ///
    /// # Errors
    /// The manifest has a version that this release does not support.
    pub fn check_version_beside(weights: &Path) -> Result<(), ModelError> {
        let path = weights.with_file_name(MANIFEST_FILE);
        if weights.file_name() != Some(WEIGHTS_FILE.as_ref()) {
            return Ok(());
        }
        let bytes = read_limited(&path, (MANIFEST_BYTES_MAX, "a manifest"));
        let found = bytes.map(|bytes| serde_json::from_slice(&bytes).ok());
        match found {
            Ok(Some(HeaderOnly { header })) if header.format == FormatHeader::MODEL.0 => {
                check_header(&header, &path)
            }
            _ => Ok(()),
        }
    }

    /// Returns a setting of the run by its dotted key, such as `train.precision`, as it is written in a run file.
    /// `None`: the run had the default value, or the program set it.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        let mut settings = self.identity.iter();
        settings
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the format of the values in which the model was trained.
    #[must_use]
    pub fn precision(&self) -> Precision {
        let name = self.setting("train.precision").unwrap_or_default();
        let name = name.trim_matches('"');
        let short = [Precision::Bf16, Precision::F16];
        let found = short.into_iter().find(|precision| precision.name() == name);
        found.unwrap_or(Precision::F32)
    }
}

/// Checks that a manifest is one of a version that this release reads.
fn check_header(header: &FormatHeader, path: &Path) -> Result<(), ModelError> {
    let (format, supported) = FormatHeader::MODEL;
    if header.format == format && header.version > supported {
        return Err(ModelError::Newer {
            path: path.to_owned(),
            found: header.version,
            supported,
        });
    }
    header
        .check(FormatHeader::MODEL)
        .map_err(|error| ModelError::damaged(path, error.to_string()))
}

/// Reads a file of a model of at most as many bytes as files of its kind have.
pub(crate) fn read_limited(
    path: &Path,
    (bytes_max, kind): (u64, &str),
) -> Result<Vec<u8>, ModelError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|source| ModelError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    if bytes.len() as u64 > bytes_max {
        let problem = format!("it has more than {bytes_max} bytes, the limit of {kind}");
        return Err(ModelError::damaged(path, problem));
    }
    Ok(bytes)
}

/// The part of a manifest that every version has.
#[derive(Deserialize)]
struct HeaderOnly {
    header: FormatHeader,
}
