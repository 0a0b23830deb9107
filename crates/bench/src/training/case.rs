//! [`TrainingCase`]: the measured models, with data, batch and optimizer.

use std::borrow::Cow;

use serde::Serialize;

use crate::error::BenchError;

/// A model to train, as in `benchmarks/pytorch_ddp.py`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainingCase {
    /// The name, which the script uses as well.
    pub model: &'static str,
    /// The number of samples per worker and step.
    pub batch: u64,
    /// The unit in which a sample is counted.
    pub unit: &'static str,
    /// The number of units of a sample.
    pub units_per_sample: u64,
    /// The multiply-adds of one sample, forward and backward.
    pub multiply_adds: f64,
    /// The multiply-adds of one sample, forward.
    pub forward_multiply_adds: f64,
    /// The section of the run file that describes the data.
    #[serde(skip)]
    data: Cow<'static, str>,
    /// Whether samples are images of 224 x 224 in a thousand classes.
    #[serde(skip)]
    is_imagenet: bool,
    /// The sections of the run file that describe the model and the optimizer.
    #[serde(skip)]
    sections: &'static str,
    /// The learning rate of the optimizer.
    #[serde(skip)]
    learning_rate: f64,
    /// The name of the loss; `None` for that of the data.
    #[serde(skip)]
    loss: Option<&'static str>,
    /// Whether the script supports it.
    #[serde(skip)]
    pub in_pytorch: bool,
}

/// The multiply-adds of a forward pass count three times: backward computes them for inputs and for
/// weights.
const PASSES: f64 = 3.0;

fn images(
    model: &'static str,
    batch: u64,
    forward: f64,
    [data, sections]: [&'static str; 2],
) -> TrainingCase {
    TrainingCase {
        data: Cow::Borrowed(data),
        is_imagenet: data == IMAGENET,
        model,
        batch,
        unit: "images",
        units_per_sample: 1,
        multiply_adds: PASSES * forward,
        forward_multiply_adds: forward,
        sections,
        learning_rate: 0.01,
        loss: None,
        in_pytorch: true,
    }
}

/// Returns a model with the data and the settings of its example, in batches of 32, without a counterpart in PyTorch.
fn example(
    model: &'static str,
    unit: &'static str,
    forward: f64,
    sections: [&'static str; 2],
) -> TrainingCase {
    TrainingCase {
        unit,
        in_pytorch: false,
        ..images(model, 32, forward, sections)
    }
}

fn examples() -> Vec<TrainingCase> {
    // The products of a forward pass, as `ronde bench kernels --forward` counts them.
    vec![
        TrainingCase {
            loss: Some("binary_cross_entropy"),
            ..example("unet", "images", 7.160e6, [UNET_DATA, UNET])
        },
        example("detector", "images", 3.931e6, [DETECTOR_DATA, DETECTOR]),
        example("inception_v3", "images", 2.476e6, [DIGITS_DATA, INCEPTION]),
        example("bert", "texts", 3.561e6, [BERT_DATA, BERT]),
        example(
            "transformer",
            "texts",
            2.891e6,
            [TRANSFORMER_DATA, TRANSFORMER],
        ),
    ]
}

fn cases() -> Vec<TrainingCase> {
    // The first layer of an mlp has no gradient of the input: 784 x 1,024 counts twice.
    let last_layers = 1024.0 * 1024.0 + 1024.0 * 10.0;
    let perceptron = 784.0 * 1024.0 * 2.0 / 3.0 + last_layers;
    // Four blocks of 12 matrices of 256 x 256, scores and values of 128 positions, scores of 4,096
    // tokens.
    let gpt_token = 4.0 * (12.0 * 256.0 * 256.0 + 2.0 * 128.0 * 256.0) + 256.0 * 4096.0;
    let mut cases = vec![
        TrainingCase {
            forward_multiply_adds: 784.0 * 1024.0 + last_layers,
            ..images("mlp", 256, perceptron, [MLP_DATA, MLP])
        },
        images("resnet18", 32, 555.4e6, [RESNET18_DATA, RESNET18]),
        images("resnet50", 4, 4.09e9, [IMAGENET, RESNET50]),
        images("vgg16", 4, 15.47e9, [IMAGENET, VGG16]),
        TrainingCase {
            unit: "tokens",
            units_per_sample: 128,
            learning_rate: 3e-4,
            ..images("gpt", 8, 128.0 * gpt_token, [GPT_DATA, GPT])
        },
        TrainingCase {
            in_pytorch: false,
            ..images("digits_cnn", 64, 445e3, [DIGITS_DATA, DIGITS])
        },
    ];
    cases.extend(examples());
    cases
}

const MLP_DATA: &str = r#"
[data]
source = "synthetic_images"
samples = 65536
shape = [1, 28, 28]
classes = 10
"#;

const MLP: &str = r#"
[model]
kind = "mlp"
hidden = [1024, 1024]
[optimizer]
kind = "sgd"
"#;

const RESNET18_DATA: &str = r#"
[data]
source = "synthetic_images"
samples = 8192
shape = [3, 32, 32]
classes = 10
"#;

const RESNET18: &str = r#"
[model]
kind = "resnet18"
small_input = true
[optimizer]
kind = "sgd"
momentum = 0.9
"#;

/// Synthetic images in the shape of ImageNet's.
const IMAGENET: &str = r#"
[data]
source = "synthetic_images"
samples = 4096
shape = [3, 224, 224]
classes = 1000
"#;

/// The fields of ImageNet's records.
const RECORD_FIELDS: &str = r#"
label = { field = "image/class/label", classes = 1000, first = 1 }
[data.features]
decode = "image"
field = "image/encoded"
shape = [3, 224, 224]
resize = 256
crop = "random_resized"
flip = true
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
"#;

const RESNET50: &str = r#"
[model]
kind = "resnet50"
[optimizer]
kind = "sgd"
momentum = 0.9
"#;

const VGG16: &str = r#"
[model]
kind = "vgg16"
[optimizer]
kind = "sgd"
momentum = 0.9
"#;

const GPT_DATA: &str = r#"
[data]
source = "synthetic_text"
samples = 8192
context = 128
tokens = 4096
"#;

const GPT: &str = r#"
[model]
kind = "gpt"
layers = 4
width = 256
heads = 4
[optimizer]
kind = "adamw"
"#;

const DIGITS_DATA: &str = r#"
[data]
source = "digits"
"#;

const DIGITS: &str = r#"
[model]
kind = "digits_cnn"
[optimizer]
kind = "adam"
"#;

const UNET_DATA: &str = r#"
[data]
source = "synthetic_shapes"
samples = 768
side = 32
"#;

const UNET: &str = r#"
[model]
kind = "unet"
channels = 8
levels = 2
[optimizer]
kind = "adamw"
"#;

const DETECTOR_DATA: &str = r#"
[data]
source = "synthetic_objects"
samples = 2048
side = 48
"#;

const DETECTOR: &str = r#"
[model]
kind = "detector"
channels = 12
levels = 3
[optimizer]
kind = "adamw"
"#;

const INCEPTION: &str = r#"
[model]
kind = "inception_v3"
small_input = true
width_divisor = 8
[optimizer]
kind = "adamw"
"#;

const BERT_DATA: &str = r#"
[data]
source = "text"
context = 32
masked = 0.15
"#;

const BERT: &str = r#"
[model]
kind = "bert"
layers = 2
width = 64
heads = 4
[optimizer]
kind = "adamw"
"#;

const TRANSFORMER_DATA: &str = r#"
[data]
source = "number_words"
samples = 8192
"#;

const TRANSFORMER: &str = r#"
[model]
kind = "transformer"
source = 9
padding = 0
layers = 2
width = 64
heads = 4
[optimizer]
kind = "adamw"
"#;

impl TrainingCase {
    /// Returns the case of a model.
    ///
    /// # Errors
    /// For an unknown model, with the list of known ones.
    pub fn of(model: &str) -> Result<Self, BenchError> {
        let names: Vec<&str> = cases().iter().map(|case| case.model).collect();
        let found = cases().into_iter().find(|case| case.model == model);
        found.ok_or_else(|| BenchError::Setting {
            what: "--model",
            problem: format!("unknown model `{model}`: expected {}", names.join(", ")),
        })
    }

    /// Returns the case with files of records instead of synthetic images: TFRecords in the layout of ImageNet, as
    /// TensorFlow's tools write it. `files` is a pattern of their names.
    ///
    /// # Errors
    /// For a model of other samples.
    pub fn with_records(mut self, files: &str) -> Result<Self, BenchError> {
        if !self.is_imagenet {
            return Err(BenchError::Setting {
                what: "--records",
                problem: format!(
                    "{} does not train on images of 224 x 224; use resnet50 or vgg16",
                    self.model
                ),
            });
        }
        let files = toml::Value::from(files);
        self.data = Cow::Owned(format!(
            "[data]\nsource = \"records\"\nformat = \"tfrecord\"\ntrain = {files}\n{RECORD_FIELDS}"
        ));
        Ok(self)
    }

    /// Returns the text of the run file of a run with `workers` workers. `bucket` is `comm.bucket_bytes_max`.
    #[must_use]
    pub fn run_file(&self, workers: u32, shards: u32, steps: u64, bucket: Option<u64>) -> String {
        let comm = bucket.map_or(String::new(), |bytes| {
            format!("[comm]\nbucket_bytes_max = {bytes}\n")
        });
        let loss = self
            .loss
            .map_or(String::new(), |loss| format!("loss = \"{loss}\"\n"));
        format!(
            "version = 1\n[run]\nname = \"bench\"\n[workers]\ncount = {workers}\nlogical_shards = {shards}\n\
             [train]\nsteps = {steps}\nglobal_batch_size = {}\nlearning_rate = {}\n{loss}\
             [schedule]\nkind = \"constant\"\n[checkpoint]\nat_end = false\n{comm}{}{}",
            self.batch * u64::from(workers),
            self.learning_rate,
            self.data,
            self.sections
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_replace_synthetic_images_of_the_same_shape() {
        let case = TrainingCase::of("resnet50").unwrap();
        let text = case.with_records("a\"b/train-*").unwrap();
        let text = text.run_file(2, 2, 5, None);
        let run: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(run["data"]["train"].as_str(), Some("a\"b/train-*"));
        assert_eq!(run["data"]["features"]["resize"].as_integer(), Some(256));
        assert_eq!(run["model"]["kind"].as_str(), Some("resnet50"));
        let refused = TrainingCase::of("resnet18").unwrap().with_records("a");
        assert!(refused.unwrap_err().to_string().contains("use resnet50"));
    }

    #[test]
    fn an_unknown_model_is_reported_with_the_known_ones() {
        assert_eq!(TrainingCase::of("resnet18").unwrap().batch, 32);
        let error = TrainingCase::of("resnet19").unwrap_err().to_string();
        assert!(
            error.contains("unknown model `resnet19`: expected mlp, resnet18"),
            "{error}"
        );
    }
}
