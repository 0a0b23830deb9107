//! [`TokenTexts`]: the text of the tokens of a data set or a model, without the contents of a tokenizer.

use serde::{Deserialize, Serialize};

/// The text of the tokens of a data set or a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TokenTexts {
    /// Each token is a byte.
    Letters {
        /// The bytes in ascending order.
        bytes: Vec<u8>,
    },
    /// Each token is a word; words are separated by spaces.
    Words {
        /// The words in the order of their tokens.
        words: Vec<String>,
        /// The token with which a translation begins.
        start: Option<u32>,
        /// The token that ends a text.
        end: Option<u32>,
        /// The token that pads short texts.
        padding: Option<u32>,
    },
    /// The tokens of a tokenizer, which is stored separately as a `tokenizer.json` of the library `tokenizers`.
    Tokenizer {
        /// The token that ends a text.
        end: Option<u32>,
    },
}
