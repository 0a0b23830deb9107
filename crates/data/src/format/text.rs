//! [`Text`]: files of text, of which the tokens are kept and read.

use std::sync::Arc;

use ronde_store::StoredObject;

use super::tokens::TokenFile;
use super::{Extent, Format, Found, NumberType, Piece, RecordFile, Records, Tokens};
use crate::DataError;
use crate::tokenized::{Form, Told};

/// Files of text, through the tokens that [`crate::tokenized::tokenize`] made of them.
#[derive(Debug)]
pub(crate) struct Text {
    tokens: Tokens,
    how: String,
}

impl Text {
    /// Tokens of such numbers, in records of `context` and one; `how` tells how they were made.
    ///
    /// # Errors
    /// As [`Tokens::new`].
    pub(crate) fn new(dtype: NumberType, context: usize, how: String) -> Result<Self, DataError> {
        let tokens = Tokens::new(dtype, context)?;
        Ok(Self { tokens, how })
    }
}

impl Format for Text {
    fn identity(&self) -> String {
        format!("{}, {}", self.how, self.tokens.identity())
    }

    fn takes(&self, location: &str) -> bool {
        Form::of(location).is_some()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let told = Told::read(&*file).ok_or_else(|| DataError::Format {
            file: file.location().to_owned(),
            problem: "it is damaged; remove it, and the text is encoded again".to_owned(),
        })?;
        Ok(Box::new(TextFile {
            tokens: TokenFile::new(file, self.tokens.clone()),
            told,
        }))
    }
}

struct TextFile {
    tokens: TokenFile,
    told: Told,
}

impl RecordFile for TextFile {
    /// The hash covers all tokens.
    fn scan(
        &self,
        found: &mut dyn FnMut(Found) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        for bad in self.told.bad() {
            found(Found::Bad(bad))?;
        }
        found(Found::Even(self.tokens.even(self.told.bytes)))?;
        Ok(self.told.hash)
    }

    fn parse(&self, extent: &Extent, pieces: Vec<Piece>) -> Result<Box<dyn Records>, DataError> {
        self.tokens.parse(extent, pieces)
    }
}
