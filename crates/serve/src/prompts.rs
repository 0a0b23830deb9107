//! [`Prompts`]: texts that a model continues or translates, from the lines of a file.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_data::{Dataset, MemoryDataset, Vocabulary};

use crate::error::ServeError;

/// A text and its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text.
    pub text: String,
    /// Its tokens; at least one.
    pub tokens: Vec<u32>,
}

/// The prompts of a file, one for each line. In memory.
#[derive(Debug, Clone)]
pub struct Prompts {
    path: PathBuf,
    prompts: Vec<Prompt>,
    identity: String,
}

impl Prompts {
    /// Parses the lines of the text file `path`, whose contents are `bytes`, as prompts of 1 to `tokens_max` tokens. Without a
    /// vocabulary, a line has token numbers below `classes`, separated by spaces. Cost: the tokens in memory.
    ///
    /// # Errors
    /// The file is not text or has no line, or a line has no token, too many, or a part without a token.
    pub fn parse(
        (path, bytes): (&Path, &[u8]),
        vocabulary: Option<&Vocabulary>,
        (classes, tokens_max): (u32, usize),
    ) -> Result<Self, ServeError> {
        let invalid = |line: Option<usize>, problem: &dyn Display| ServeError::Prompt {
            path: path.to_owned(),
            line: line.map(|line| line as u64 + 1),
            problem: problem.to_string(),
        };
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|_| invalid(None, &"it is not valid UTF-8"))?;
        let mut prompts = Vec::new();
        for (line, text) in text.lines().enumerate() {
            let tokens = match vocabulary {
                Some(vocabulary) => vocabulary
                    .encode(text)
                    .map_err(|error| invalid(Some(line), &error))?,
                None => numbers(text, classes).map_err(|error| invalid(Some(line), &error))?,
            };
            if tokens.is_empty() || tokens.len() > tokens_max {
                let problem = format!("it has {} tokens, expected 1 to {tokens_max}", tokens.len());
                return Err(invalid(Some(line), &problem));
            }
            let text = text.to_owned();
            prompts.push(Prompt { text, tokens });
        }
        if prompts.is_empty() {
            return Err(invalid(None, &"it has no lines"));
        }
        Ok(Self {
            path: path.to_owned(),
            prompts,
            identity: format!("prompts blake3:{}", blake3::hash(bytes).to_hex()),
        })
    }

    /// Returns the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the prompt of a line; the first one has number 0.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Prompt> {
        self.prompts.get(usize::try_from(number).ok()?)
    }

    /// Returns the hash of the file as text.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns a data set with a sample for each prompt, whose number is that of the prompt. Its features have no meaning.
    ///
    /// # Errors
    /// Never with fewer than 2^32 prompts.
    pub fn dataset(&self) -> Result<Arc<dyn Dataset>, ServeError> {
        let count = self.prompts.len();
        let set = MemoryDataset::new(vec![0.0; count], vec![0; count], vec![1], 1)?;
        Ok(Arc::new(set))
    }
}

/// A word that is not the number of a token.
#[derive(Debug, thiserror::Error)]
#[error("expected token numbers below {classes}, found `{word}`")]
struct TokenNumberError {
    classes: u32,
    word: String,
}

/// Parses token numbers.
fn numbers(text: &str, classes: u32) -> Result<Vec<u32>, TokenNumberError> {
    let token = |word: &str| {
        let number = word.parse().ok().filter(|number| *number < classes);
        number.ok_or_else(|| TokenNumberError {
            classes,
            word: word.to_owned(),
        })
    };
    text.split_whitespace().map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<Vec<u32>>, String> {
        let file = ("prompts.txt".as_ref(), text);
        let prompts = Prompts::parse(file, None, (10, 3)).map_err(|error| error.to_string())?;
        let all = (0..).map_while(|number| prompts.get(number));
        let all: Vec<Vec<u32>> = all.map(|prompt| prompt.tokens.clone()).collect();
        assert_eq!(prompts.dataset().unwrap().len(), all.len() as u64);
        Ok(all)
    }

    #[test]
    fn each_line_is_a_prompt() {
        assert_eq!(read(b"1 2\r\n9\n").unwrap(), [vec![1, 2], vec![9]]);
    }

    #[test]
    fn lines_that_are_no_prompts_are_named() {
        for (text, problem) in [
            (&b""[..], "no lines"),
            (b"1\n\n2", "line 2: it has 0 tokens"),
            (b"1 2 3 4", "line 1: it has 4 tokens, expected 1 to 3"),
            (
                b"1\n2\n10",
                "line 3: expected token numbers below 10, found `10`",
            ),
            (b"-1", "found `-1`"),
            (b"\xff", "not valid UTF-8"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
