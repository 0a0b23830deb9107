//! Arguments of `ronde predict` about generated text.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use ronde_serve::{GenerationSettings, Prompts, TextGenerator, TokenSampling};

use crate::command::model::model_data::UsedModel;

/// The maximum number of bytes of a file of prompts.
const PROMPTS_BYTES_MAX: u64 = 1 << 30;

/// The prompts of a file, if there is one, and the settings of the texts.
type Generation = (Option<Arc<Prompts>>, GenerationSettings);

/// Arguments about generated text.
#[derive(Args)]
pub(super) struct GenerationArguments {
    /// Text file with a prompt per line, which gpt continues and transformer translates.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Largest number of tokens of a generated text [default: as many as the model has positions].
    #[arg(long, value_name = "N")]
    max_tokens: Option<NonZeroUsize>,
    /// Draw tokens with the probabilities of the scores divided by T; 0 takes the most probable one [default: 0].
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Draw from the K most probable tokens only.
    #[arg(long, value_name = "K")]
    top_k: Option<NonZeroUsize>,
    /// Seed of the drawn tokens [default: 0].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

impl GenerationArguments {
    /// Returns the prompts and the settings if the model generates text; `None` if its outputs are predicted.
    ///
    /// # Errors
    /// A message if the prompts or a setting cannot be used, or nothing would use them.
    pub(super) fn settings(&self, source: &UsedModel) -> Result<Option<Generation>, String> {
        let manifest = source.saved.manifest();
        let tokens_max = TextGenerator::prompt_tokens_max(manifest);
        if self.prompts.is_none() && !TextGenerator::translates(manifest) {
            return match (self.first_setting(), tokens_max) {
                (None, _) => Ok(None),
                (Some(option), Some(_)) => Err(format!(
                    "error: {option} has no effect without prompts\n  help: name a file of prompts with --prompts"
                )),
                (Some(option), None) => Err(refused(option, source)),
            };
        }
        let prompts = match (&self.prompts, tokens_max) {
            (None, _) => None,
            (Some(_), None) => return Err(refused("--prompts", source)),
            (Some(path), Some(tokens_max)) => {
                let bytes = ronde_store::read_regular(path, PROMPTS_BYTES_MAX);
                let bytes = bytes.map_err(|error| {
                    format!(
                        "error: cannot read the prompts in {}: {error}",
                        path.display()
                    )
                })?;
                let vocabulary = source.form.vocabulary.as_deref();
                let form = (manifest.classes, tokens_max);
                let prompts = Prompts::parse((path, &bytes), vocabulary, form);
                Some(Arc::new(
                    prompts.map_err(|error| format!("error: {error}"))?,
                ))
            }
        };
        let (temperature, seed) = (self.temperature.unwrap_or(0.0), self.seed.unwrap_or(0));
        let sampling = TokenSampling::new(temperature, self.top_k, seed);
        let settings = GenerationSettings {
            tokens_max: self.max_tokens,
            sampling: sampling.map_err(|error| format!("error: {error}"))?,
        };
        Ok(Some((prompts, settings)))
    }

    /// Returns whether there is a file of prompts.
    pub(super) fn has_prompts(&self) -> bool {
        self.prompts.is_some()
    }

    /// Returns the first setting that is given.
    fn first_setting(&self) -> Option<&'static str> {
        let given = [
            (self.max_tokens.is_some(), "--max-tokens"),
            (self.temperature.is_some(), "--temperature"),
            (self.top_k.is_some(), "--top-k"),
            (self.seed.is_some(), "--seed"),
        ];
        given
            .into_iter()
            .find(|(given, _)| *given)
            .map(|(_, option)| option)
    }

    /// Adds these arguments to the command line of a worker.
    pub(super) fn pass_to(&self, command: &mut Command) {
        if let Some(prompts) = &self.prompts {
            command.arg("--prompts").arg(prompts);
        }
        let values = [
            (
                "--max-tokens",
                self.max_tokens.map(|value| value.to_string()),
            ),
            (
                "--temperature",
                self.temperature.map(|value| value.to_string()),
            ),
            ("--top-k", self.top_k.map(|value| value.to_string())),
            ("--seed", self.seed.map(|value| value.to_string())),
        ];
        for (option, value) in values {
            if let Some(value) = value {
                command.arg(format!("{option}={value}"));
            }
        }
    }
}

fn refused(option: &str, source: &UsedModel) -> String {
    let model = source.saved.manifest().model.as_ref();
    let kind = model.map_or("own", |model| model.kind());
    format!(
        "error: cannot use {option}: a model of kind `{kind}` does not generate text\n  \
         help: leave it out, or name a model of kind `gpt` or `transformer`"
    )
}
