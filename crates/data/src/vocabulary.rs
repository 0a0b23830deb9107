//! [`Vocabulary`]: the text of the tokens of a data set, to encode prompts and to show generated tokens.

use std::sync::Arc;

use ronde_core::TokenTexts;

use crate::error::DataError;
use crate::tokenized::{Tokenization, Tokenizer, UNCUT_BYTES_MAX};

/// The reason why a text cannot be converted to tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A letter has no token.
    #[error("the letter `{letter}` is not in the training text")]
    Letter {
        /// The letter.
        letter: char,
    },
    /// A word has no token.
    #[error("the word `{word}` is not in the vocabulary")]
    Word {
        /// The word.
        word: String,
    },
    /// The text is too long.
    #[error("the text has {bytes} bytes, the limit is {UNCUT_BYTES_MAX}")]
    Length {
        /// Its length.
        bytes: usize,
    },
    /// The tokenizer refuses the text.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
}

/// The text of the tokens of a data set.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    form: TokenForm,
    start: Option<u32>,
    end: Option<u32>,
    padding: Option<u32>,
}

/// How tokens and text correspond.
#[derive(Debug, Clone)]
enum TokenForm {
    /// Each token is a byte; those of the list, in order.
    Letters(Vec<u8>),
    /// Each token is a word; words are separated by spaces.
    Words(Arc<[String]>),
    /// The tokens of a tokenizer.
    Tokenizer(Arc<Tokenization>),
}

impl PartialEq for Vocabulary {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Vocabulary {
    /// Creates the vocabulary of texts whose tokens are bytes.
    pub(crate) fn letters(letters: Vec<u8>) -> Self {
        Self {
            form: TokenForm::Letters(letters),
            start: None,
            end: None,
            padding: None,
        }
    }

    /// Creates the vocabulary of pairs of texts whose tokens are words. The second text of a sample begins and ends with the
    /// word `mark`; the first one is padded with the word `padding`.
    pub(crate) fn words(words: &[&str], (padding, mark): (u32, u32)) -> Self {
        let words = words.iter().map(|word| (*word).to_owned());
        Self {
            form: TokenForm::Words(words.collect()),
            start: Some(mark),
            end: Some(mark),
            padding: Some(padding),
        }
    }

    /// Creates the vocabulary of a tokenizer.
    pub(crate) fn tokenizer(tokenization: Arc<Tokenization>) -> Self {
        Self {
            start: None,
            end: tokenization.end_of_text,
            padding: None,
            form: TokenForm::Tokenizer(tokenization),
        }
    }

    /// Creates the vocabulary with the texts of another one. `tokenizer` is its `tokenizer.json`, if it has one.
    ///
    /// # Errors
    /// The letters are not in ascending order, a token is not that of a word, or the tokenizer is missing or cannot be read.
    pub fn new(texts: TokenTexts, tokenizer: Option<&[u8]>) -> Result<Self, DataError> {
        let invalid = |problem: String| DataError::schema("vocabulary", problem);
        match texts {
            TokenTexts::Letters { bytes } => match bytes.is_sorted_by(|a, b| a < b) {
                true => Ok(Self::letters(bytes)),
                false => Err(invalid("its letters are not in ascending order".to_owned())),
            },
            TokenTexts::Words {
                words,
                start,
                end,
                padding,
            } => {
                let known = words.len();
                let mut named = [start, end, padding].into_iter().flatten();
                if let Some(token) = named.find(|token| *token as usize >= known) {
                    let problem = format!("it has {known} words, but token {token} is used");
                    return Err(invalid(problem));
                }
                Ok(Self {
                    form: TokenForm::Words(words.into()),
                    start,
                    end,
                    padding,
                })
            }
            TokenTexts::Tokenizer { end } => {
                let json =
                    tokenizer.ok_or_else(|| invalid("its tokenizer is missing".to_owned()))?;
                let tokenizer = Tokenizer::parse(json, "the tokenizer of the model")?;
                Ok(Self::tokenizer(Arc::new(Tokenization {
                    tokenizer,
                    end_of_text: end,
                    field: String::new(),
                })))
            }
        }
    }

    /// Returns the texts of the tokens. Cost: a copy.
    #[must_use]
    pub fn texts(&self) -> TokenTexts {
        let (start, end, padding) = (self.start, self.end, self.padding);
        match &self.form {
            TokenForm::Letters(letters) => TokenTexts::Letters {
                bytes: letters.clone(),
            },
            TokenForm::Words(words) => TokenTexts::Words {
                words: words.to_vec(),
                start,
                end,
                padding,
            },
            TokenForm::Tokenizer(_) => TokenTexts::Tokenizer { end },
        }
    }

    /// Returns the tokenizer as a `tokenizer.json` of the library `tokenizers`, if the tokens are those of one.
    ///
    /// # Errors
    /// The tokenizer cannot be written.
    pub fn tokenizer_json(&self) -> Result<Option<Vec<u8>>, DataError> {
        match &self.form {
            TokenForm::Tokenizer(tokenization) => tokenization.tokenizer.to_json().map(Some),
            TokenForm::Letters(_) | TokenForm::Words(_) => Ok(None),
        }
    }

    /// Returns the token with which a translation begins, if there is one.
    #[must_use]
    pub fn start(&self) -> Option<u32> {
        self.start
    }

    /// Returns the token that ends a text, if there is one.
    #[must_use]
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// Returns the token that pads short texts, if there is one.
    #[must_use]
    pub fn padding(&self) -> Option<u32> {
        self.padding
    }

    /// Returns the tokens of a text.
    ///
    /// # Errors
    /// A description of the first part of the text that has no token, or of a text that is too long for a tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        match &self.form {
            TokenForm::Letters(letters) => {
                let token = |letter: char| {
                    let mut bytes = [0; 4];
                    let bytes = letter.encode_utf8(&mut bytes).as_bytes().to_vec();
                    let tokens = bytes.into_iter().map(|byte| letters.binary_search(&byte));
                    let tokens: Result<Vec<usize>, usize> = tokens.collect();
                    tokens.map_err(|_| EncodeError::Letter { letter })
                };
                let tokens: Result<Vec<Vec<usize>>, EncodeError> =
                    text.chars().map(token).collect();
                Ok(tokens?
                    .concat()
                    .into_iter()
                    .map(|token| token as u32)
                    .collect())
            }
            TokenForm::Words(words) => {
                let token = |word: &str| {
                    let found = words.iter().position(|known| *known == word);
                    found
                        .map(|token| token as u32)
                        .ok_or_else(|| EncodeError::Word {
                            word: word.to_owned(),
                        })
                };
                text.split_whitespace().map(token).collect()
            }
            TokenForm::Tokenizer(_) if text.len() > UNCUT_BYTES_MAX => {
                let bytes = text.len();
                Err(EncodeError::Length { bytes })
            }
            TokenForm::Tokenizer(tokenization) => Ok(tokenization.tokenizer.encode(text)?),
        }
    }

    /// Returns the text of tokens. A token without text, and bytes that are not valid UTF-8, become the replacement
    /// character.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        match &self.form {
            TokenForm::Letters(letters) => {
                let byte = |token: &u32| letters.get(*token as usize).copied().unwrap_or(0xFF);
                let bytes: Vec<u8> = tokens.iter().map(byte).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            TokenForm::Words(words) => {
                let word = |token: &u32| words.get(*token as usize).map_or("\u{FFFD}", |word| word);
                let words: Vec<&str> = tokens.iter().map(word).collect();
                words.join(" ")
            }
            TokenForm::Tokenizer(tokenization) => tokenization.tokenizer.decode(tokens),
        }
    }

    /// Returns a text that differs for vocabularies with different tokens.
    #[must_use]
    pub fn identity(&self) -> String {
        match &self.form {
            TokenForm::Letters(letters) => format!("letters {letters:?}"),
            TokenForm::Words(words) => format!("words {}", words.join(" ")),
            TokenForm::Tokenizer(tokenization) => tokenization.identity(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_bytes_of_utf8() {
        let mut letters = "abé ".as_bytes().to_vec();
        letters.sort_unstable();
        let vocabulary = Vocabulary::letters(letters);
        let tokens = vocabulary.encode("bé a").unwrap();
        assert_eq!(tokens, [2, 4, 3, 0, 1]);
        assert_eq!(vocabulary.decode(&tokens), "bé a");
        assert_eq!(vocabulary.decode(&tokens[..2]), "b\u{FFFD}");
        assert_eq!(vocabulary.decode(&[99]), "\u{FFFD}");
        let error = vocabulary.encode("abc").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the letter `c` is not in the training text"
        );
    }

    #[test]
    fn a_vocabulary_is_created_again_from_its_texts() {
        let words = Vocabulary::words(&["-", "|", "one"], (0, 1));
        for vocabulary in [words, Vocabulary::letters(b"abc".to_vec())] {
            let again = Vocabulary::new(vocabulary.texts(), None).unwrap();
            assert_eq!(again, vocabulary);
            let marks = |one: &Vocabulary| (one.start(), one.end(), one.padding());
            assert_eq!(marks(&again), marks(&vocabulary));
        }
        let refused = |texts, json| Vocabulary::new(texts, json).unwrap_err().to_string();
        let bytes = b"aab".to_vec();
        let error = refused(TokenTexts::Letters { bytes }, None);
        assert!(error.contains("ascending order"), "{error}");
        let words = TokenTexts::Words {
            words: vec!["one".to_owned()],
            start: None,
            end: Some(1),
            padding: None,
        };
        let error = refused(words, None);
        assert!(error.contains("1 words, but token 1"), "{error}");
        refused(TokenTexts::Tokenizer { end: None }, Some(b"{}"));
        let error = refused(TokenTexts::Tokenizer { end: None }, None);
        assert!(error.contains("its tokenizer is missing"), "{error}");
    }

    #[test]
    fn words_are_separated_by_spaces() {
        let vocabulary = Vocabulary::words(&["-", "|", "one", "two"], (0, 1));
        assert_eq!(vocabulary.encode(" two  one ").unwrap(), [3, 2]);
        assert_eq!(vocabulary.decode(&[3, 2, 9]), "two one \u{FFFD}");
        let error = vocabulary.encode("one three").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the word `three` is not in the vocabulary"
        );
    }
}
