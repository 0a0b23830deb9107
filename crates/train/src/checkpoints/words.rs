//! [`Word`]: what a rank tells all others about a save, with its votes.

use ronde_checkpoint::SavedPart;
use ronde_core::Step;
use serde::{Deserialize, Serialize};

/// Something that a rank tells the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// This run has claimed the term.
    Term(u64),
    /// This rank's share is written.
    Saved { part: SavedPart, held_up_s: f64 },
    /// This rank could not do its part.
    Failed { step: Step, problem: String },
    /// The checkpoint counts.
    Published { step: Step },
}

/// The bytes of a note; none for no words.
pub(crate) fn encode(words: &[Word]) -> Vec<u8> {
    if words.is_empty() {
        return Vec::new();
    }
    // Numbers, names and text: nothing that JSON could refuse but a number that is none.
    serde_json::to_vec(words).unwrap_or_default()
}

/// The words of a note; none when it is not one.
pub(crate) fn decode(note: &[u8]) -> Vec<Word> {
    serde_json::from_slice(note).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were() {
        let words = vec![
            Word::Term(3),
            Word::Failed {
                step: Step(7),
                problem: "disk full".to_owned(),
            },
            Word::Published { step: Step(8) },
        ];
        assert_eq!(decode(&encode(&words)), words);
        assert!(encode(&[]).is_empty());
        assert!(decode(b"").is_empty() && decode(b"[{}").is_empty());
    }
}
