//! [`DecodeError`]: why a record cannot be decoded.

use crate::format::npy::NpyError;

/// The reason why a record cannot be decoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The buffers have other lengths than a sample.
    #[error(
        "buffers of {features} and {targets} elements do not fit {features_needed} features and {targets_needed} targets"
    )]
    Buffers {
        /// The elements of the buffer for features.
        features: usize,
        /// The elements of the buffer for targets.
        targets: usize,
        /// The features of a sample.
        features_needed: usize,
        /// The targets of a sample.
        targets_needed: usize,
    },
    /// A record does not have a field.
    #[error("the record has no field `{field}`; of the requested fields it has {present:?}")]
    MissingField {
        /// The field.
        field: String,
        /// The first requested fields that it has.
        present: Vec<String>,
    },
    /// A field has a value of another kind.
    #[error("field `{field}` holds {found}, not {expected}")]
    Kind {
        /// The field.
        field: String,
        /// Its value, or its kind.
        found: String,
        /// The expected kind.
        expected: &'static str,
    },
    /// A text is not a finite number.
    #[error("field `{field}` holds {text:?}, which is not a finite number")]
    NumberText {
        /// The field.
        field: String,
        /// The start of the text.
        text: String,
    },
    /// A number is infinite or not a number.
    #[error("number {position} is not finite")]
    NotFinite {
        /// Its position among the features or targets.
        position: usize,
    },
    /// The fields have more numbers than the shape.
    #[error("the fields hold more than the {elements} numbers of the shape")]
    TooManyNumbers {
        /// The numbers of the shape.
        elements: usize,
    },
    /// The fields have fewer numbers than the shape.
    #[error("the fields hold {numbers} numbers, but the shape has {elements}")]
    TooFewNumbers {
        /// The numbers of the fields.
        numbers: usize,
        /// The numbers of the shape.
        elements: usize,
    },
    /// A field of raw numbers has another length than the shape.
    #[error(
        "field `{field}` holds {bytes} bytes, but the shape has {numbers} numbers ({dtype}) of {expected} bytes"
    )]
    RawBytes {
        /// The field.
        field: String,
        /// The bytes of the field.
        bytes: usize,
        /// The numbers of the shape.
        numbers: usize,
        /// The type of the numbers.
        dtype: &'static str,
        /// The bytes of the shape's numbers.
        expected: usize,
    },
    /// A field has another number of tokens than the context needs.
    #[error("field `{field}` holds {tokens} tokens; expected {context} and the next one")]
    TokenCount {
        /// The field.
        field: String,
        /// The tokens of the field.
        tokens: usize,
        /// The tokens of a sample.
        context: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} at position {position}, but the vocabulary has {vocabulary} tokens")]
    Token {
        /// The token.
        token: f64,
        /// Its position in the field.
        position: usize,
        /// The number of tokens.
        vocabulary: u32,
    },
    /// A class is out of range.
    #[error("field `{field}` holds class {class}, but classes are {first} to {last}{advice}")]
    Class {
        /// The field.
        field: String,
        /// The class.
        class: i64,
        /// The number of the first class.
        first: i64,
        /// The number of the last class.
        last: i64,
        /// What to set if the range of the run file is likely to be wrong; else empty.
        advice: String,
    },
    /// The name of a class is not in the list of the run file.
    #[error(
        "field `{field}` holds {name:?}, which is not in label.names: {}",
        ronde_core::NameList(names)
    )]
    ClassName {
        /// The field.
        field: String,
        /// The start of the name.
        name: String,
        /// The names of all classes.
        names: Vec<String>,
    },
    /// A field does not have an array of numpy.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// An image cannot be decoded.
    #[cfg(feature = "full")]
    #[error(transparent)]
    Image(#[from] super::ImageError),
}
