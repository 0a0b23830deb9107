//! [`TextGenerator`]: continues or translates texts.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use ronde_data::{Batch, Vocabulary};
use ronde_engine::{Activation, Chain, KeptText, ModelConfig};
use ronde_saved_model::ModelManifest;

use crate::error::ServeError;
use crate::prediction::Prediction;
use crate::prompts::Prompts;
use crate::scoring::Scorer;
use crate::text_task::{TextTask, last_scores, translation_scores};
use crate::token_sampling::TokenSampling;

/// The settings of generated texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerationSettings {
    /// The largest number of tokens of a text; `None`: as many as the model has positions.
    pub tokens_max: Option<NonZeroUsize>,
    /// How each token is chosen.
    pub sampling: TokenSampling,
}

/// A model that continues or translates texts. A text does not depend on the texts that are generated with it.
pub struct TextGenerator {
    chain: Chain,
    task: TextTask,
    /// The number of tokens.
    classes: usize,
    vocabulary: Option<Arc<Vocabulary>>,
    /// The prompts of a file; `None`: the samples of the data set have the source texts.
    prompts: Option<Arc<Prompts>>,
    settings: GenerationSettings,
}

/// A text in progress.
struct OpenText {
    /// The number of the sample.
    number: u64,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    has_ended: bool,
}

impl TextGenerator {
    /// Combines a model, the prompts and the settings. Without prompts, the samples of the data set are used, which only
    /// translation can.
    ///
    /// # Errors
    /// The model does not generate texts, or it continues texts and prompts are missing.
    pub fn new(
        chain: Chain,
        manifest: &ModelManifest,
        (vocabulary, prompts): (Option<Arc<Vocabulary>>, Option<Arc<Prompts>>),
        settings: GenerationSettings,
    ) -> Result<Self, ServeError> {
        let task = TextTask::of(manifest, vocabulary.as_deref());
        let task = task.filter(|task| prompts.is_some() || task.is_translation());
        Ok(Self {
            chain,
            task: task.ok_or_else(|| ServeError::NoText {
                kind: manifest.model.as_ref().map_or("own", ModelConfig::kind),
            })?,
            classes: manifest.classes as usize,
            vocabulary,
            prompts,
            settings,
        })
    }

    /// Returns the largest number of tokens of a prompt for a model; `None` if the model does not generate texts.
    #[must_use]
    pub fn prompt_tokens_max(manifest: &ModelManifest) -> Option<usize> {
        TextTask::of(manifest, None).map(TextTask::prompt_tokens_max)
    }

    /// Returns whether a model translates, so that the samples of a data set have source texts.
    #[must_use]
    pub fn translates(manifest: &ModelManifest) -> bool {
        TextTask::of(manifest, None).is_some_and(TextTask::is_translation)
    }

    /// Returns the texts to begin with, of the samples of a batch.
    fn begin(&self, batch: &Batch, numbers: &[u64]) -> Result<Vec<OpenText>, ServeError> {
        let each = batch.features.len() / numbers.len().max(1);
        let texts = numbers.iter().enumerate().map(|(index, &number)| {
            let prompt = match &self.prompts {
                Some(prompts) => self.prompt(prompts, number)?,
                None => {
                    let row = &batch.features[index * each..(index + 1) * each];
                    row.iter().map(|token| *token as u32).collect()
                }
            };
            Ok(OpenText {
                number,
                prompt,
                tokens: Vec::new(),
                has_ended: false,
            })
        });
        texts.collect()
    }

    /// Returns the tokens that the model is given for a prompt: those of the prompt, and for translation the padding and the
    /// token with which a translation begins.
    fn prompt(&self, prompts: &Prompts, number: u64) -> Result<Vec<u32>, ServeError> {
        let prompt = prompts.get(number);
        let tokens = prompt.map_or_else(Vec::new, |prompt| prompt.tokens.clone());
        let vocabulary = self.vocabulary.as_ref();
        let start = vocabulary.and_then(|vocabulary| vocabulary.start());
        self.task.prompt(tokens, start)
    }

    /// Chooses the next token of each text from the scores of its last position, `classes` for each text.
    fn choose(&self, texts: &mut [&mut OpenText], scores: &[f32]) -> Result<(), ServeError> {
        let limit = self.task.new_tokens();
        let limit = self
            .settings
            .tokens_max
            .map_or(limit, |most| limit.min(most.get()));
        let end = self
            .vocabulary
            .as_ref()
            .and_then(|vocabulary| vocabulary.end());
        for (text, scores) in texts.iter_mut().zip(scores.chunks_exact(self.classes)) {
            let number = text.tokens.len() as u64;
            let token = self.settings.sampling.choose(scores, text.number, number)?;
            if Some(token) == end {
                text.has_ended = true;
                continue;
            }
            text.tokens.push(token);
            let is_full = match self.task {
                TextTask::Continue { positions } => {
                    text.prompt.len() + text.tokens.len() > positions
                }
                TextTask::Translate { .. } => false,
            };
            text.has_ended = is_full || text.tokens.len() >= limit;
        }
        Ok(())
    }

    /// Continues texts token by token: first the prompts, those of equal length together.
    fn continue_texts(&mut self, texts: &mut [OpenText]) -> Result<(), ServeError> {
        let mut kept: Vec<KeptText> = texts.iter().map(|_| KeptText::new()).collect();
        let mut by_length: BTreeMap<usize, Vec<(&mut OpenText, &mut KeptText)>> = BTreeMap::new();
        for (text, kept) in texts.iter_mut().zip(&mut kept) {
            let length = text.prompt.len();
            by_length.entry(length).or_default().push((text, kept));
        }
        for (length, group) in by_length {
            let (mut texts, mut kept): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let tokens = texts.iter().flat_map(|text| text.prompt.clone());
            self.extend((tokens.collect(), length), &mut texts, &mut kept)?;
        }
        loop {
            let open = texts.iter_mut().zip(&mut kept);
            let open = open.filter(|(text, _)| !text.has_ended);
            let (mut texts, mut kept): (Vec<_>, Vec<_>) = open.unzip();
            if texts.is_empty() {
                return Ok(());
            }
            let tokens = texts.iter().filter_map(|text| text.tokens.last().copied());
            self.extend((tokens.collect(), 1), &mut texts, &mut kept)?;
        }
    }

    /// Computes the next `length` tokens of each text, and chooses the token after them.
    fn extend(
        &mut self,
        (tokens, length): (Vec<u32>, usize),
        texts: &mut [&mut OpenText],
        kept: &mut [&mut KeptText],
    ) -> Result<(), ServeError> {
        let tokens = tokens.into_iter().map(|token| token as f32).collect();
        let input = Activation::from_host(&[texts.len(), length], tokens);
        let output = self.chain.extend_texts(input, kept)?;
        let scores = last_scores(output.as_slice(), (texts.len(), self.classes), |_| {
            length - 1
        })?;
        self.choose(texts, &scores)
    }

    /// Translates texts: computes the model once for each token of the longest translation.
    fn translate_texts(&mut self, texts: &mut [OpenText], length: usize) -> Result<(), ServeError> {
        loop {
            let open = texts.iter_mut().filter(|text| !text.has_ended);
            let mut open: Vec<&mut OpenText> = open.collect();
            if open.is_empty() {
                return Ok(());
            }
            let parts = open.iter().map(|text| (&*text.prompt, &*text.tokens));
            let parts: Vec<(&[u32], &[u32])> = parts.collect();
            let scores = translation_scores(&mut self.chain, &parts, (length, self.classes))?;
            self.choose(&mut open, &scores)?;
        }
    }

    /// Returns the prediction of a finished text.
    fn prediction(&self, text: OpenText) -> Prediction {
        let vocabulary = self.vocabulary.as_ref();
        let prompt = match &self.prompts {
            Some(prompts) => prompts.get(text.number).map(|prompt| prompt.text.clone()),
            None => {
                vocabulary.map(|vocabulary| vocabulary.decode(self.task.source_of(&text.prompt)))
            }
        };
        Prediction::Text {
            prompt,
            text: vocabulary.map(|vocabulary| vocabulary.decode(&text.tokens)),
            tokens: text.tokens,
        }
    }
}

impl Scorer for TextGenerator {
    fn score(&mut self, batch: Batch, numbers: &[u64]) -> Result<Vec<Prediction>, ServeError> {
        let mut texts = self.begin(&batch, numbers)?;
        match self.task {
            TextTask::Continue { .. } => self.continue_texts(&mut texts)?,
            TextTask::Translate { source, target, .. } => {
                // A sample has the whole expected translation, whose first token the model gets.
                texts
                    .iter_mut()
                    .for_each(|text| text.prompt.truncate(source + 1));
                self.translate_texts(&mut texts, source + target)?;
            }
        }
        Ok(texts
            .into_iter()
            .map(|text| self.prediction(text))
            .collect())
    }
}

#[cfg(test)]
mod tests;
