//! [`TrainingCase`]: the models that are measured, with data, batch and optimizer.

use serde::Serialize;

use crate::BenchError;

/// One thing to train, as `benchmarks/pytorch_ddp.py` trains it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainingCase {
    /// What the script calls it as well.
    pub model: &'static str,
    /// Samples of one worker and step.
    pub batch: u64,
    /// What a sample is counted in.
    pub unit: &'static str,
    /// How many of them a sample has.
    pub units_per_sample: u64,
    /// Multiply-adds of one sample, forward and backward.
    pub multiply_adds: f64,
    /// The sections that describe it in a run file.
    #[serde(skip)]
    sections: &'static str,
    /// Rate of the optimizer.
    #[serde(skip)]
    learning_rate: f64,
    /// Whether the script knows it.
    #[serde(skip)]
    pub in_pytorch: bool,
}

/// Multiply-adds of a forward pass count three times: backward does them for inputs and for weights.
const PASSES: f64 = 3.0;

fn images(model: &'static str, batch: u64, forward: f64, sections: &'static str) -> TrainingCase {
    TrainingCase {
        model,
        batch,
        unit: "images",
        units_per_sample: 1,
        multiply_adds: PASSES * forward,
        sections,
        learning_rate: 0.01,
        in_pytorch: true,
    }
}

fn cases() -> Vec<TrainingCase> {
    // The first layers of an mlp have no gradient of the input: 784 x 1,024 counts twice.
    let perceptron = 784.0 * 1024.0 * 2.0 / 3.0 + 1024.0 * 1024.0 + 1024.0 * 10.0;
    // Four blocks of 12 matrices of 256 x 256, scores and values of 128 places, scores of 4,096 tokens.
    let gpt_token = 4.0 * (12.0 * 256.0 * 256.0 + 2.0 * 128.0 * 256.0) + 256.0 * 4096.0;
    vec![
        images("mlp", 256, perceptron, MLP),
        images("resnet18", 32, 555.4e6, RESNET18),
        images("resnet50", 4, 4.09e9, RESNET50),
        images("vgg16", 4, 15.47e9, VGG16),
        TrainingCase {
            unit: "tokens",
            units_per_sample: 128,
            learning_rate: 3e-4,
            ..images("gpt", 8, 128.0 * gpt_token, GPT)
        },
        TrainingCase {
            in_pytorch: false,
            ..images("digits_cnn", 64, 445e3, DIGITS)
        },
    ]
}

const MLP: &str = r#"
[data]
source = "synthetic_images"
samples = 65536
shape = [1, 28, 28]
classes = 10
[model]
kind = "mlp"
hidden = [1024, 1024]
[optimizer]
kind = "sgd"
"#;

const RESNET18: &str = r#"
[data]
source = "synthetic_images"
samples = 8192
shape = [3, 32, 32]
classes = 10
[model]
kind = "resnet18"
small_input = true
[optimizer]
kind = "sgd"
momentum = 0.9
"#;

const RESNET50: &str = r#"
[data]
source = "synthetic_images"
samples = 4096
shape = [3, 224, 224]
classes = 1000
[model]
kind = "resnet50"
[optimizer]
kind = "sgd"
momentum = 0.9
"#;

const VGG16: &str = r#"
[data]
source = "synthetic_images"
samples = 4096
shape = [3, 224, 224]
classes = 1000
[model]
kind = "vgg16"
[optimizer]
kind = "sgd"
momentum = 0.9
"#;

const GPT: &str = r#"
[data]
source = "synthetic_text"
samples = 8192
context = 128
tokens = 4096
[model]
kind = "gpt"
layers = 4
width = 256
heads = 4
[optimizer]
kind = "adamw"
"#;

const DIGITS: &str = r#"
[data]
source = "digits"
[model]
kind = "digits_cnn"
[optimizer]
kind = "adam"
"#;

impl TrainingCase {
    /// The case of a model.
    ///
    /// # Errors
    /// When there is none, naming those that there are.
    pub fn of(model: &str) -> Result<Self, BenchError> {
        let names: Vec<&str> = cases().iter().map(|case| case.model).collect();
        let found = cases().into_iter().find(|case| case.model == model);
        found.ok_or_else(|| BenchError::Setting {
            what: "--model",
            problem: format!("`{model}` is none of {}", names.join(", ")),
        })
    }

    /// The run file of a run over so many workers.
    pub(super) fn run_file(
        &self,
        workers: u32,
        shards: u32,
        steps: u64,
        bucket: Option<u64>,
    ) -> String {
        let comm = bucket.map_or(String::new(), |bytes| {
            format!("[comm]\nbucket_bytes_max = {bytes}\n")
        });
        format!(
            "version = 1\n[run]\nname = \"bench\"\n[workers]\ncount = {workers}\nlogical_shards = {shards}\n\
             [train]\nsteps = {steps}\nglobal_batch_size = {}\nlearning_rate = {}\n\
             [schedule]\nkind = \"constant\"\n{comm}{}",
            self.batch * u64::from(workers),
            self.learning_rate,
            self.sections
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_not_there_is_told_with_those_that_are() {
        assert_eq!(TrainingCase::of("resnet18").unwrap().batch, 32);
        let error = TrainingCase::of("resnet19").unwrap_err().to_string();
        assert!(
            error.contains("`resnet19` is none of mlp, resnet18"),
            "{error}"
        );
    }
}
