//! [`Tokens`]: files of raw little-endian token numbers.
//!
//! A record is `context` tokens and the next one, which is also the first of the next record. Trailing tokens that do
//! not fill a record are ignored. The scan reads the file once for its content hash, which covers all bytes.

use std::sync::Arc;

use ronde_store::StoredObject;

use super::content::ContentHasher;
use super::{
    EvenLayout, Extent, Format, NumberType, Record, RecordFile, Records, ScanItem, SharedBytes,
    Value,
};
use crate::error::DataError;

/// Approximate size of an extent, in bytes.
const EXTENT_BYTES: u64 = 64 << 10;
/// The largest number of tokens of a record.
const CONTEXT_MAX: usize = 1 << 24;

/// The format of files of token numbers.
#[derive(Debug, Clone)]
pub struct Tokens {
    dtype: NumberType,
    context: usize,
}

impl Tokens {
    /// Creates the format for tokens of type `dtype` in records of `context` tokens plus one.
    ///
    /// # Errors
    /// Returns an error if `dtype` is not an unsigned integer of 1, 2 or 4 bytes, or if `context` is out of range.
    pub fn new(dtype: NumberType, context: usize) -> Result<Self, DataError> {
        let invalid = |key: &str, problem: String| DataError::schema(key, problem);
        if !matches!(dtype, NumberType::U8 | NumberType::U16 | NumberType::U32) {
            let problem = format!(
                "invalid token type `{}`: tokens are u8, u16 or u32",
                dtype.name()
            );
            return Err(invalid("format.dtype", problem));
        }
        if !(1..=CONTEXT_MAX).contains(&context) {
            let problem = format!("invalid context {context}: expected 1 to {CONTEXT_MAX} tokens");
            return Err(invalid("features.context", problem));
        }
        Ok(Self { dtype, context })
    }
}

impl Format for Tokens {
    fn identity(&self) -> String {
        format!(
            "tokens version 2, {}, context {}",
            self.dtype.name(),
            self.context
        )
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let format = self.clone();
        Ok(Box::new(TokenFile::new(file, format)))
    }
}

/// An open file of tokens, or one that starts with them.
pub(super) struct TokenFile {
    file: Arc<dyn StoredObject>,
    format: Tokens,
}

impl TokenFile {
    pub(super) fn new(file: Arc<dyn StoredObject>, format: Tokens) -> Self {
        Self { file, format }
    }

    /// Returns the layout of the records in `bytes` bytes of tokens.
    pub(super) fn even(&self, bytes: u64) -> EvenLayout {
        let (width, context) = (self.format.dtype.bytes() as u64, self.format.context as u64);
        let records = (bytes / width).saturating_sub(1) / context;
        EvenLayout::new(0, context * width, width, records, EXTENT_BYTES)
    }
}

impl RecordFile for TokenFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        let width = self.format.dtype.bytes() as u64;
        let bytes = self.file.bytes();
        if !bytes.is_multiple_of(width) {
            return Err(DataError::format(
                self.file.location(),
                format_args!("{bytes} bytes are not a whole number of {width}-byte tokens"),
            ));
        }
        let mut hasher = ContentHasher::new(&*self.file, "ronde token content, version 2");
        hasher.add_range(0..bytes, found)?;
        found(ScanItem::Even(self.even(bytes)))?;
        Ok(hasher.finish())
    }

    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        let piece = pieces.into_iter().next();
        let whole = piece.filter(|piece| piece.as_ref().len() as u64 == extent.bytes);
        match whole {
            Some(piece) => Ok(Box::new(TokenRecords {
                dtype: self.format.dtype,
                context: self.format.context,
                piece,
            })),
            None => Err(super::record_file::changed(
                self.file.location(),
                extent,
                "an unexpected number of bytes was passed",
            )),
        }
    }
}

struct TokenRecords {
    dtype: NumberType,
    context: usize,
    piece: SharedBytes,
}

impl Records for TokenRecords {
    fn record(&self, number: u32) -> Result<Record<'_>, DataError> {
        let width = self.dtype.bytes();
        let start = number as usize * self.context * width;
        let bytes = self
            .piece
            .as_ref()
            .get(start..start + (self.context + 1) * width);
        let bytes = bytes.ok_or_else(|| {
            DataError::format(
                "a token file",
                format_args!("the extent has no record {number}"),
            )
        })?;
        let dtype = self.dtype;
        let value = Value::Numbers {
            dtype,
            bytes: bytes.into(),
        };
        Ok(Record {
            fields: vec![("tokens".into(), value)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::{read_all, scanned};

    fn numbers(records: &[Record<'_>]) -> Vec<Vec<i64>> {
        let all = records.iter().map(|record| match record.get("tokens") {
            Some(Value::Numbers { dtype, bytes }) => (0..bytes.len() / dtype.bytes())
                .map(|at| dtype.integer(bytes, at).unwrap())
                .collect(),
            other => panic!("{other:?}"),
        });
        all.collect()
    }

    #[test]
    fn records_share_their_last_token_with_the_next_one() {
        let tokens: Vec<u16> = (1000..1012).collect();
        let file: Vec<u8> = tokens
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect();
        let format = Tokens::new(NumberType::U16, 3).unwrap();
        let read = numbers(&read_all(&format, &file).unwrap());
        assert_eq!(
            read,
            [
                [1000, 1001, 1002, 1003],
                [1003, 1004, 1005, 1006],
                [1006, 1007, 1008, 1009]
            ]
        );
        let read = numbers(&read_all(&Tokens::new(NumberType::U32, 2).unwrap(), &file).unwrap());
        assert_eq!(read.len(), 2);
        assert_eq!(read[1][2], 1008 + 1009 * 65536);
        let few = |bytes: usize| read_all(&format, &file[..bytes]).unwrap().len();
        assert_eq!([few(0), few(6), few(8), few(12), few(14)], [0, 0, 1, 1, 2]);
        assert!(scanned(&format, &file[..7]).is_err());
    }

    #[test]
    fn large_files_are_many_extents_that_overlap_by_a_token() {
        let file: Vec<u8> = (0..1_000_001_u32).map(|n| (n % 251) as u8).collect();
        let format = Tokens::new(NumberType::U8, 100).unwrap();
        let found = scanned(&format, &file).unwrap();
        assert!(found.extents.len() > 10);
        let read = numbers(&read_all(&format, &file).unwrap());
        assert_eq!(read.len(), 10_000);
        assert!(
            read.iter()
                .enumerate()
                .all(|(n, record)| record.len() == 101
                    && record[100] == ((n as i64 + 1) * 100) % 251)
        );
    }

    #[test]
    fn other_numbers_and_contexts_are_refused() {
        assert!(Tokens::new(NumberType::I64, 8).is_err());
        assert!(Tokens::new(NumberType::U8, 0).is_err());
        assert!(Tokens::new(NumberType::U8, usize::MAX).is_err());
    }
}
