//! [`TokenizedText`]: text files whose tokens are stored in another file, which is read instead.

use std::sync::Arc;

use ronde_store::StoredObject;

use super::tokens::TokenFile;
use super::{Extent, Format, NumberType, RecordFile, Records, ScanItem, SharedBytes, Tokens};
use crate::error::DataError;
use crate::tokenized::{DocumentLayout, TokenFileFooter};

/// The format of text files, read through the tokens that [`crate::tokenized::tokenize`] stored.
#[derive(Debug)]
pub(crate) struct TokenizedText {
    tokens: Tokens,
    how: String,
}

impl TokenizedText {
    /// Creates the format for tokens of type `dtype` in records of `context` tokens plus one. `how` identifies the
    /// tokenization.
    ///
    /// # Errors
    /// Returns the errors of [`Tokens::new`].
    pub(crate) fn new(dtype: NumberType, context: usize, how: String) -> Result<Self, DataError> {
        let tokens = Tokens::new(dtype, context)?;
        Ok(Self { tokens, how })
    }
}

impl Format for TokenizedText {
    fn identity(&self) -> String {
        format!("{}, {}", self.how, self.tokens.identity())
    }

    fn takes(&self, location: &str) -> bool {
        DocumentLayout::of(location).is_some()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let footer = TokenFileFooter::read(&*file).ok_or_else(|| {
            DataError::format(
                file.location(),
                "the stored tokens are damaged; remove the file, and the text is tokenized again",
            )
        })?;
        Ok(Box::new(TextFile {
            tokens: TokenFile::new(file, self.tokens.clone()),
            footer,
        }))
    }
}

struct TextFile {
    tokens: TokenFile,
    footer: TokenFileFooter,
}

impl RecordFile for TextFile {
    /// The hash covers all tokens.
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        for bad in self.footer.bad() {
            // The size of a document in tokens is not stored.
            found(ScanItem::Bad {
                record: bad,
                bytes: 0,
            })?;
        }
        found(ScanItem::Even(self.tokens.even(self.footer.bytes)))?;
        Ok(self.footer.hash)
    }

    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        self.tokens.parse(extent, pieces)
    }
}
