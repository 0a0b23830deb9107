//! [`NormalSteps`]: the steps of a normalizer, and between which characters each works on both sides independently.

use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};
use unicode_normalization_alignments::char::{canonical_combining_class, decompose_compatible};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick, is_nfkc_quick};

use super::adjacency::Adjacency;
use super::{items, kind, pattern};

/// The steps of a normalizer in order.
#[derive(Debug, Default)]
pub(super) struct NormalSteps(Vec<NormalStep>);

#[derive(Debug)]
enum NormalStep {
    /// A step that changes parts of a text.
    Change(IndependenceRule, Box<NormalizerWrapper>),
    /// Spaces at the ends of a text are stripped; nothing inside is changed.
    Strip { left: bool, right: bool },
}

/// The normalized characters on both sides of a position at which all steps work independently.
#[derive(Debug, Clone, Copy)]
pub(super) struct NormalPair {
    pub(super) last: char,
    pub(super) first: char,
    /// Whether a step would strip a space here if the text were cut.
    pub(super) is_stripped: bool,
}

/// When a step gives the same for a text as for its two parts.
#[derive(Debug)]
enum IndependenceRule {
    /// Each character is replaced on its own.
    Always,
    /// The second part starts with a character that never combines with preceding ones: after decomposition.
    Decomposition,
    /// As [`IndependenceRule::Decomposition`], after canonical or compatible composition.
    Composition { is_compatible: bool },
    /// The second part starts with an ASCII character that BERT does not remove.
    Bert,
    /// A grapheme cluster ends.
    Grapheme,
    /// No match crosses.
    Matches(Adjacency),
}

impl IndependenceRule {
    fn holds(&self, before: char, after: char) -> bool {
        match self {
            Self::Always => true,
            Self::Decomposition => {
                let mut first = None;
                decompose_compatible(after, |character| {
                    first.get_or_insert(character);
                });
                canonical_combining_class(after) == 0
                    && first.is_none_or(|first| canonical_combining_class(first) == 0)
            }
            Self::Composition { is_compatible } => {
                let after_only = std::iter::once(after);
                let quick = match is_compatible {
                    true => is_nfkc_quick(after_only),
                    false => is_nfc_quick(after_only),
                };
                quick == IsNormalized::Yes && canonical_combining_class(after) == 0
            }
            Self::Bert => after.is_ascii_graphic() || " \t\r\n".contains(after),
            Self::Grapheme => {
                let is_break = |character: char| character.is_ascii_control();
                // Scripts whose characters never join a following ASCII character.
                let is_plain = matches!(before, ..'\u{600}' | '\u{3000}'..='\u{d7a3}');
                (before, after) != ('\r', '\n')
                    && (is_break(before) || is_break(after) || (is_plain && after.is_ascii()))
            }
            Self::Matches(adjacency) => !adjacency.joins(before, after),
        }
    }
}

impl NormalSteps {
    /// Parses the `normalizer` of a `tokenizer.json`; `None` if a step depends on the start of the text, or is unknown.
    pub(super) fn parse(normalizer: &Value) -> Option<Self> {
        let mut steps = Vec::new();
        add_steps(normalizer, &mut steps)?;
        Some(Self(steps))
    }

    /// Returns the last character of the normalized `before` and the first one of the normalized `after`; `None` if a step
    /// does not work on both independently.
    pub(super) fn across(&self, before: char, after: char) -> Option<NormalPair> {
        let (mut left, mut right) = (before.to_string(), after.to_string());
        let mut pair = NormalPair {
            last: before,
            first: after,
            is_stripped: false,
        };
        for step in &self.0 {
            match step {
                NormalStep::Change(rule, _) if !rule.holds(pair.last, pair.first) => return None,
                NormalStep::Change(..) => {}
                NormalStep::Strip { left, right } => {
                    pair.is_stripped |=
                        *left && pair.first.is_whitespace() || *right && pair.last.is_whitespace();
                }
            }
            (left, right) = (step.normalize(left), step.normalize(right));
            (pair.last, pair.first) = (left.chars().next_back()?, right.chars().next()?);
        }
        Some(pair)
    }

    /// Normalizes a part of a text between two positions at which all steps work independently.
    pub(super) fn normalize(&self, text: &str) -> String {
        let steps = self.0.iter();
        steps.fold(text.to_owned(), |text, step| step.normalize(text))
    }
}

impl NormalStep {
    fn normalize(&self, text: String) -> String {
        let Self::Change(_, run) = self else {
            return text;
        };
        let mut normalized = NormalizedString::from(&*text);
        match run.normalize(&mut normalized) {
            Ok(()) => normalized.get().to_owned(),
            // Without a character, no position is accepted.
            Err(_) => String::new(),
        }
    }
}

fn add_steps(normalizer: &Value, steps: &mut Vec<NormalStep>) -> Option<()> {
    let rule = match kind(normalizer) {
        None if normalizer.is_null() => return Some(()),
        Some("Sequence") => {
            let parts = items(normalizer, "normalizers")?;
            return parts.iter().try_for_each(|part| add_steps(part, steps));
        }
        Some("Lowercase" | "StripAccents" | "Nmt" | "ByteLevel") => IndependenceRule::Always,
        Some("NFD" | "NFKD") => IndependenceRule::Decomposition,
        Some("NFC") => IndependenceRule::Composition {
            is_compatible: false,
        },
        Some("NFKC") => IndependenceRule::Composition {
            is_compatible: true,
        },
        Some("BertNormalizer") => IndependenceRule::Bert,
        Some("Precompiled") => IndependenceRule::Grapheme,
        Some("Strip") => {
            steps.push(NormalStep::Strip {
                left: normalizer.get("strip_left")?.as_bool()?,
                right: normalizer.get("strip_right")?.as_bool()?,
            });
            return Some(());
        }
        Some("Replace") => IndependenceRule::Matches(pattern(normalizer)?),
        _ => return None,
    };
    let run = serde_json::from_value(normalizer.clone()).ok()?;
    steps.push(NormalStep::Change(rule, Box::new(run)));
    Some(())
}
