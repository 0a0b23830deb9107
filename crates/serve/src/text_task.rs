//! [`TextTask`]: the texts that a model generates, and the scores of their next tokens.

use ronde_data::Vocabulary;
use ronde_engine::{Activation, Chain, ModelConfig};
use ronde_saved_model::ModelManifest;

use crate::error::ServeError;

/// The kind of the texts that a model generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextTask {
    /// The tokens after a prompt, up to a number of positions of prompt and new tokens.
    Continue { positions: usize },
    /// The translation of a source text.
    Translate {
        /// The number of positions of the source.
        source: usize,
        /// The number of positions of the translation.
        target: usize,
        /// The token that pads a short source.
        padding: u32,
    },
}

impl TextTask {
    /// Returns the task of a model; `None` if it does not generate texts.
    pub(crate) fn of(manifest: &ModelManifest, vocabulary: Option<&Vocabulary>) -> Option<Self> {
        let [positions] = *manifest.input_shape else {
            return None;
        };
        match *manifest.model.as_ref()? {
            ModelConfig::Gpt { .. } => Some(Self::Continue { positions }),
            ModelConfig::Transformer {
                source, padding, ..
            } => Some(Self::Translate {
                source,
                target: positions.checked_sub(source)?,
                padding: padding
                    .or_else(|| vocabulary.and_then(|vocabulary| vocabulary.padding()))
                    .unwrap_or_default(),
            }),
            _ => None,
        }
    }

    /// Returns whether the model translates.
    pub(crate) fn is_translation(self) -> bool {
        matches!(self, Self::Translate { .. })
    }

    /// Returns the largest number of new tokens.
    pub(crate) fn new_tokens(self) -> usize {
        match self {
            Self::Continue { positions } => positions,
            Self::Translate { target, .. } => target,
        }
    }

    /// Returns the source text of a prompt, without padding.
    pub(crate) fn source_of(self, prompt: &[u32]) -> &[u32] {
        match self {
            Self::Continue { .. } => prompt,
            Self::Translate {
                source, padding, ..
            } => {
                let text = &prompt[..source.min(prompt.len())];
                let used = text.iter().rposition(|token| *token != padding);
                &text[..used.map_or(0, |last| last + 1)]
            }
        }
    }

    /// Returns the largest number of new tokens after a prompt of `length` tokens.
    #[cfg(feature = "http")]
    pub(crate) fn room_after(self, length: usize) -> usize {
        match self {
            // The last token needs no position: nothing is computed from it.
            Self::Continue { positions } => (positions + 1).saturating_sub(length),
            Self::Translate { target, .. } => target,
        }
    }

    /// Returns the largest number of tokens of a prompt.
    pub(crate) fn prompt_tokens_max(self) -> usize {
        match self {
            Self::Continue { positions } => positions,
            Self::Translate { source, .. } => source,
        }
    }

    /// Returns the tokens that the model is given for a prompt: those of the prompt, and for translation the padding and
    /// `start`, the token with which a translation begins.
    ///
    /// # Errors
    /// [`ServeError::NoStart`].
    pub(crate) fn prompt(
        self,
        mut tokens: Vec<u32>,
        start: Option<u32>,
    ) -> Result<Vec<u32>, ServeError> {
        if let Self::Translate {
            source, padding, ..
        } = self
        {
            tokens.resize(source, padding);
            tokens.push(start.ok_or(ServeError::NoStart)?);
        }
        Ok(tokens)
    }
}

/// Returns the scores of the next token of each translation, `classes` for each: the prompts and the tokens so far are computed
/// together as texts of `length` positions.
pub(crate) fn translation_scores(
    chain: &mut Chain,
    texts: &[(&[u32], &[u32])],
    (length, classes): (usize, usize),
) -> Result<Vec<f32>, ServeError> {
    let mut rows = Vec::with_capacity(texts.len() * length);
    for (prompt, tokens) in texts {
        let start = rows.len();
        rows.extend(prompt.iter().chain(*tokens).map(|token| *token as f32));
        // No position attends to later ones.
        rows.resize(start + length, 0.0);
    }
    let output = chain.evaluate(Activation::from_host(&[texts.len(), length], rows))?;
    let next = |text: usize| texts[text].1.len();
    last_scores(output.as_slice(), (texts.len(), classes), next)
}

/// Returns the scores of one position of each text, of the scores of all positions.
pub(crate) fn last_scores(
    all: &[f32],
    (texts, classes): (usize, usize),
    position: impl Fn(usize) -> usize,
) -> Result<Vec<f32>, ServeError> {
    let each = all.len() / texts.max(1);
    let mut scores = Vec::with_capacity(texts * classes);
    for text in 0..texts {
        let start = text * each + position(text) * classes;
        let of_text = all.get(start..start + classes);
        scores.extend(of_text.ok_or_else(|| ServeError::OutputCount {
            found: each,
            expected: format!("{classes} for each position"),
        })?);
    }
    Ok(scores)
}
