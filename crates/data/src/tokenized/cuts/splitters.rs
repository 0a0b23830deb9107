//! [`Splitters`]: the steps of a pre-tokenizer, and which characters each may keep together.

use serde_json::Value;
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use super::adjacency::Adjacency;
use super::{items, kind, pattern};

/// The expression of GPT-2, which the pre-tokenizer `ByteLevel` contains.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The expression of the pre-tokenizer `Whitespace`.
const WORDS: &str = r"\w+|[^\w\s]+";

/// The steps of a pre-tokenizer.
#[derive(Debug)]
pub(super) struct Splitters {
    run: PreTokenizerWrapper,
    /// The expressions that split. Other steps decide for each character alone.
    expressions: Vec<Adjacency>,
    /// Whether a step splits.
    is_splitting: bool,
    /// The possible first characters of a text, so that no step puts a space before it.
    starts: Option<Vec<char>>,
    /// Whether a step replaces characters; it must be the last one.
    is_complete: bool,
}

impl Splitters {
    /// Parses the `pre_tokenizer` of a `tokenizer.json`; `None` if it never splits, or has a step that depends on more than
    /// the characters that its expressions match.
    pub(super) fn parse(pre_tokenizer: &Value) -> Option<Self> {
        let mut splitters = Self {
            run: serde_json::from_value(pre_tokenizer.clone()).ok()?,
            expressions: Vec::new(),
            is_splitting: false,
            starts: None,
            is_complete: false,
        };
        splitters.add(pre_tokenizer)?;
        splitters.is_splitting.then_some(splitters)
    }

    fn add(&mut self, step: &Value) -> Option<()> {
        let kind = kind(step)?;
        if kind == "Sequence" {
            let parts = items(step, "pretokenizers")?;
            return parts.iter().try_for_each(|part| self.add(part));
        }
        if std::mem::replace(
            &mut self.is_complete,
            matches!(kind, "ByteLevel" | "Metaspace"),
        ) {
            return None;
        }
        let flag = |name: &str| step.get(name)?.as_bool();
        match kind {
            "BertPreTokenizer" | "WhitespaceSplit" | "CharDelimiterSplit" | "Digits"
            | "Punctuation" => {}
            "Whitespace" => self.expressions.push(Adjacency::parse(WORDS)?),
            "Split" => self.expressions.push(pattern(step)?),
            "ByteLevel" => {
                if flag("add_prefix_space")? {
                    self.starts = Some(vec![' ']);
                }
                if !flag("use_regex")? {
                    return Some(());
                }
                self.expressions.push(Adjacency::parse(GPT2)?);
            }
            "Metaspace" => {
                let replacement = step.get("replacement")?.as_str()?.chars();
                if step.get("prepend_scheme")?.as_str()? != "never" {
                    self.starts = Some(replacement.chain([' ']).collect());
                }
                if !flag("split")? {
                    return Some(());
                }
            }
            _ => return None,
        }
        self.is_splitting = true;
        Some(())
    }

    /// Returns whether a match may cross from one normalized character to the next one.
    pub(super) fn joins(&self, before: char, after: char) -> bool {
        let mut expressions = self.expressions.iter();
        expressions.any(|expression| expression.joins(before, after))
    }

    /// Returns whether a text may start with this normalized character as if it continued another one.
    pub(super) fn may_start(&self, first: char) -> bool {
        let starts = self.starts.as_ref();
        starts.is_none_or(|starts| starts.contains(&first))
    }

    /// Returns whether a piece ends between two normalized texts, given that no match crosses the ends of both.
    pub(super) fn splits(&self, before: &str, after: &str) -> bool {
        let whole = format!("{before}{after}");
        let mut pieces = PreTokenizedString::from(&*whole);
        if self.run.pre_tokenize(&mut pieces).is_err() {
            return false;
        }
        let at = before.len();
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let mut offsets = pieces.iter().map(|(_, offsets, _)| offsets);
        !offsets.any(|(start, end)| (start + 1..*end).contains(&at))
    }
}
