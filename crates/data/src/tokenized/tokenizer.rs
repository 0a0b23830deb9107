//! [`Tokenizer`]: text to numbers of tokens, as a `tokenizer.json` of Hugging Face's library says.

use std::path::Path;

use crate::DataError;

/// What a `tokenizer.json` describes: normalisation, cutting into words, a vocabulary and how words are put together.
pub(crate) struct Tokenizer {
    #[cfg(feature = "full")]
    inner: tokenizers::Tokenizer,
    identity: String,
    tokens: u32,
}

#[cfg(feature = "full")]
fn wrong(problem: String) -> DataError {
    DataError::Schema {
        key: "format.tokenizer".to_owned(),
        problem,
    }
}

#[cfg(feature = "full")]
impl Tokenizer {
    /// Reads a `tokenizer.json`. Padding and cutting that it may ask for are left out.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let shown = path.display();
        let bytes =
            std::fs::read(path).map_err(|error| wrong(format!("cannot read {shown}: {error}")))?;
        let read = tokenizers::Tokenizer::from_bytes(&bytes);
        let mut inner = read.map_err(|error| {
            wrong(format!(
                "{shown} is no tokenizer.json as the library `tokenizers` writes it: {error}"
            ))
        })?;
        inner.with_padding(None);
        let cut = inner.with_truncation(None);
        cut.map_err(|error| wrong(format!("{shown}: {error}")))?;
        let last = inner.get_vocab(true).into_values().max();
        let tokens = last.map_or(0, |last| last.saturating_add(1));
        if tokens == 0 {
            return Err(wrong(format!("{shown} has no tokens")));
        }
        Ok(Self {
            inner,
            identity: format!("blake3:{}", blake3::hash(&bytes).to_hex()),
            tokens,
        })
    }

    /// The number of a token; `None` where there is no such token.
    pub(crate) fn token(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of tokens.
    #[cfg(test)]
    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        self.inner.decode(tokens, true).unwrap_or_default()
    }

    /// The tokens of a text, without any that would mark its beginning or end.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoded = self.inner.encode_fast(text, false);
        let encoded =
            encoded.map_err(|error| wrong(format!("it cannot encode a text: {error}")))?;
        Ok(encoded.get_ids().to_vec())
    }
}

#[cfg(not(feature = "full"))]
impl Tokenizer {
    /// Tells that this build has none.
    pub(crate) fn open(_: &Path) -> Result<Self, DataError> {
        let what = "reading text with a tokenizer (data.format = \"text\")".to_owned();
        Err(DataError::NotBuilt { what })
    }

    /// There is none.
    pub(crate) fn token(&self, _: &str) -> Option<u32> {
        None
    }

    /// There is none.
    pub(crate) fn encode(&self, _: &str) -> Result<Vec<u32>, DataError> {
        Ok(Vec::new())
    }
}

impl Tokenizer {
    /// All tokens are below it.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tells tokenizers apart.
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
