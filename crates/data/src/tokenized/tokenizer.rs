//! [`Tokenizer`]: encodes text as token numbers, as specified by a `tokenizer.json` of Hugging Face's library.

use std::path::Path;

use super::cuts::CharacterPairs;
#[cfg(feature = "full")]
use super::cuts::CutRule;
use crate::error::DataError;

/// The maximum length of a `tokenizer.json`.
#[cfg(feature = "full")]
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// The maximum number of successive characters of white space. The engine of `tokenizers` for regular expressions stops
/// without an error after 1,000,000 of them, and would leave the rest of the text in one piece.
#[cfg(feature = "full")]
const WHITE_SPACE_MAX: usize = 500_000;

/// A tokenizer described by a `tokenizer.json`: normalisation, splitting into words, a vocabulary and a merge model.
pub(crate) struct Tokenizer {
    #[cfg(feature = "full")]
    inner: tokenizers::Tokenizer,
    /// Where texts may be cut; `None` if nowhere.
    #[cfg(feature = "full")]
    cut_rule: Option<CutRule>,
    identity: String,
    tokens: u32,
}

#[cfg(feature = "full")]
fn invalid(problem: String) -> DataError {
    DataError::schema("format.tokenizer", problem)
}

#[cfg(feature = "full")]
impl Tokenizer {
    /// Reads a `tokenizer.json`. Ignores its padding and truncation settings.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let shown = path.display();
        let bytes = ronde_store::read_regular(path, TOKENIZER_BYTES_MAX)
            .map_err(|error| invalid(format!("cannot read {shown}: {error}")))?;
        Self::parse(&bytes, &shown.to_string())
    }

    /// Reads the contents of a `tokenizer.json`; `shown` names it in messages.
    pub(crate) fn parse(bytes: &[u8], shown: &str) -> Result<Self, DataError> {
        let read = tokenizers::Tokenizer::from_bytes(bytes);
        let mut inner = read.map_err(|error| {
            invalid(format!(
                "{shown} is not a valid tokenizer.json of the library `tokenizers`: {error}"
            ))
        })?;
        inner.with_padding(None);
        let cut = inner.with_truncation(None);
        cut.map_err(|error| invalid(format!("{shown}: {error}")))?;
        let last = inner.get_vocab(true).into_values().max();
        let tokens = last.map_or(0, |last| last.saturating_add(1));
        if tokens == 0 {
            return Err(invalid(format!("{shown} has no tokens")));
        }
        Ok(Self {
            cut_rule: CutRule::new(&inner),
            inner,
            identity: format!("blake3:{}", blake3::hash(bytes).to_hex()),
            tokens,
        })
    }

    /// Returns the contents of a `tokenizer.json`, without padding and truncation.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, DataError> {
        let text = self.inner.to_string(false);
        let text = text.map_err(|error| invalid(format!("cannot write the tokenizer: {error}")));
        text.map(String::into_bytes)
    }

    /// Returns the number of a token; `None` for an unknown token.
    pub(crate) fn token(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns the text of tokens.
    pub(crate) fn decode(&self, tokens: &[u32]) -> String {
        self.inner.decode(tokens, true).unwrap_or_default()
    }

    /// Returns the tokens of a text, without special tokens for its beginning or end.
    /// The time and memory grow with the length of the text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let spaces = longest_white_space(text);
        if spaces > WHITE_SPACE_MAX {
            return Err(invalid(format!(
                "cannot encode a text with {spaces} characters of white space in a row: the limit is {WHITE_SPACE_MAX}"
            )));
        }
        let encoded = self.inner.encode_fast(text, false);
        let encoded = encoded.map_err(|error| invalid(format!("cannot encode a text: {error}")))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Returns the last position at which a text can be cut so that the tokens of both parts are those of the whole text;
    /// `None` if there is none. The text starts its document or follows a cut; more text follows it. `pairs` is memory for
    /// searches with the same tokenizer.
    pub(super) fn last_cut(&self, text: &str, pairs: &mut CharacterPairs) -> Option<usize> {
        self.cut_rule.as_ref()?.cuts(text, false, pairs).next()
    }

    /// Returns whether texts can be cut at all.
    pub(super) fn has_cuts(&self) -> bool {
        self.cut_rule.is_some()
    }
}

#[cfg(not(feature = "full"))]
impl Tokenizer {
    /// Returns an error, because this build has no tokenizers.
    pub(crate) fn open(_: &Path) -> Result<Self, DataError> {
        Self::parse(&[], "")
    }

    /// Returns an error, because this build has no tokenizers.
    pub(crate) fn parse(_: &[u8], _: &str) -> Result<Self, DataError> {
        let what = "reading text with a tokenizer (data.format = \"text\")".to_owned();
        Err(DataError::NotBuilt { what })
    }

    /// Returns an error, because this build has no tokenizers.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, DataError> {
        Self::parse(&[], "").map(|_| Vec::new())
    }

    /// Returns `None`.
    pub(crate) fn token(&self, _: &str) -> Option<u32> {
        None
    }

    /// Returns no text.
    pub(crate) fn decode(&self, _: &[u32]) -> String {
        String::new()
    }

    /// Returns no tokens.
    pub(crate) fn encode(&self, _: &str) -> Result<Vec<u32>, DataError> {
        Ok(Vec::new())
    }

    /// Returns `None`.
    pub(super) fn last_cut(&self, _: &str, _: &mut CharacterPairs) -> Option<usize> {
        None
    }

    /// Returns `false`.
    pub(super) fn has_cuts(&self) -> bool {
        false
    }
}

/// Returns the length of the longest run of white space, or 0 for a text that is too short for a long one.
#[cfg(feature = "full")]
fn longest_white_space(text: &str) -> usize {
    if text.len() <= WHITE_SPACE_MAX {
        return 0;
    }
    let runs = text.split(|character: char| !character.is_whitespace());
    runs.map(|run| run.chars().count()).max().unwrap_or(0)
}

impl Tokenizer {
    /// Returns the number of tokens; all token numbers are below it.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Returns a hash of the file.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("identity", &self.identity)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}
