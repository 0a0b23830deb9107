//! Compares the texts of the tokens of a model with those of data.

use std::path::Path;

use ronde_core::TokenTexts;
use ronde_data::{SignatureError, Vocabulary};
use ronde_saved_model::TOKENIZER_FILE;

/// Checks that the tokens of data have the texts of those of the model in a folder.
///
/// # Errors
/// The difference, with the tokens of both where they are listed, or the problem of a tokenizer that cannot be read or written.
pub fn check_tokens(model: &TokenTexts, folder: &Path, data: &Vocabulary) -> Result<(), String> {
    if let TokenTexts::Tokenizer { .. } = model {
        let path = folder.join(TOKENIZER_FILE);
        let theirs = std::fs::read(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let own = data.tokenizer_json().map_err(|error| error.to_string())?;
        return match own.is_some_and(|own| own == theirs) {
            true => Ok(()),
            false => Err("the tokenizer of the data is not that of the model".to_owned()),
        };
    }
    let (model, data) = (texts(model), texts(&data.texts()));
    match model == data {
        true => Ok(()),
        false => {
            let what = "tokens";
            Err(SignatureError { what, model, data }.to_string())
        }
    }
}

/// Returns the text of each token, in the order of the tokens; none for a tokenizer.
fn texts(texts: &TokenTexts) -> Vec<String> {
    match texts {
        TokenTexts::Letters { bytes } => bytes
            .iter()
            .map(|byte| byte.escape_ascii().to_string())
            .collect(),
        TokenTexts::Words { words, .. } => words.clone(),
        TokenTexts::Tokenizer { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_letters_are_refused_with_both_lists() {
        let letters = |bytes: &[u8]| TokenTexts::Letters {
            bytes: bytes.to_vec(),
        };
        let data = Vocabulary::new(letters(b"\nab"), None).unwrap();
        let check = |model: &[u8]| check_tokens(&letters(model), Path::new("."), &data);
        assert_eq!(check(b"\nab"), Ok(()));
        let problem = check(b"abc").unwrap_err();
        assert!(
            problem.contains("the model has `a`, `b`, `c`, the data has `\\n`, `a`, `b`"),
            "{problem}"
        );
        let tokenizer = TokenTexts::Tokenizer { end: None };
        let problem = check_tokens(&tokenizer, Path::new("/gone"), &data).unwrap_err();
        assert!(
            problem.contains("cannot read /gone/tokenizer.json"),
            "{problem}"
        );
    }
}
