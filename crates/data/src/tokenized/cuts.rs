//! [`CutRule`]: where a text may be cut so that its parts have the tokens of the whole text.
//!
//! A tokenizer extracts added tokens, normalizes the text between them, splits it into pieces (the pre-tokenizer) and encodes
//! each piece on its own. A position is *quiet* if none of these steps sees across it: the characters on both sides are
//! normalized independently, no match of an expression of the pre-tokenizer joins them, and they are not both white space,
//! which an added token may strip. Between two quiet positions a text therefore has the pieces that it has in the whole text.
//! A quiet position is a *cut* if a piece ends there and no added token is near. Tokenizers with a step that is not known
//! here, without a pre-tokenizer, or with a mark before each text have no cuts.

mod adjacency;
mod normal_steps;
mod splitters;

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

use adjacency::Adjacency;
use normal_steps::NormalSteps;
use splitters::Splitters;

/// The maximum number of remembered pairs of characters.
const PAIRS_MAX: usize = 1 << 20;
/// The maximum bytes, beyond the length of the longest added token, in which a quiet position beside a cut is searched.
const MARGIN_BYTES: usize = 4096;

/// What is known of neighbouring characters; kept between searches.
pub(crate) type CharacterPairs = HashMap<(char, char), PairRule>;

/// What may happen between two characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PairRule {
    /// Whether they are normalized independently.
    is_independent: bool,
    /// Whether, in addition, no step sees across, if the outer neighbours are independent, too.
    is_quiet: bool,
    /// Whether, in addition, no step changes the end of a text with the first one, or the start of a text with the second one.
    may_be_cut: bool,
}

/// The steps of a tokenizer, as far as they decide where a text may be cut.
#[derive(Debug)]
pub(crate) struct CutRule {
    normal: NormalSteps,
    splitters: Splitters,
    /// The texts of added tokens that are found before and after normalization.
    added: Vec<String>,
    added_normalized: Vec<String>,
    /// The length of the longest one.
    added_bytes_max: usize,
}

impl CutRule {
    /// Returns the rule of a tokenizer; `None` if its texts cannot be cut.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let json: Value = serde_json::from_str(&tokenizer.to_string(false).ok()?).ok()?;
        let normal = NormalSteps::parse(json.get("normalizer")?)?;
        let splitters = Splitters::parse(json.get("pre_tokenizer")?)?;
        let (mut added, mut added_normalized) = (Vec::new(), Vec::new());
        for token in tokenizer.get_added_tokens_decoder().into_values() {
            match token.normalized {
                true => {
                    added_normalized.push(normal.normalize(&token.content));
                    added_normalized.push(token.content);
                }
                false => added.push(token.content),
            }
        }
        added.retain(|text| !text.is_empty());
        added_normalized.retain(|text| !text.is_empty());
        let lengths = added.iter().chain(&added_normalized).map(String::len);
        Some(Self {
            added_bytes_max: lengths.max().unwrap_or(0),
            normal,
            splitters,
            added,
            added_normalized,
        })
    }

    /// Returns the positions at which `text` may be cut, from the last to the first. The text itself starts at a cut or is the
    /// start of a document; `is_end` means that it ends the document.
    pub(crate) fn cuts<'a>(
        &'a self,
        text: &'a str,
        is_end: bool,
        pairs: &'a mut CharacterPairs,
    ) -> impl Iterator<Item = usize> {
        let mut after = is_end.then_some(text.len());
        let mut here = None;
        // The character after the last one of an incomplete text is not known.
        let mut before = last_known(text, is_end);
        std::iter::from_fn(move || {
            while before > 0 {
                before = quiet_before(self, text, before, pairs);
                let (cut, end) = (here, after);
                after = here.or(after).or(Some(before));
                here = after.filter(|after| *after != before).map(|_| before);
                if let (Some(cut), Some(end)) = (cut, end)
                    && self.is_cut(text, [before, cut, end], is_end, pairs)
                {
                    return Some(cut);
                }
            }
            None
        })
    }

    /// Returns whether a text may be cut at a quiet position between two others.
    fn is_cut(
        &self,
        text: &str,
        [start, cut, end]: [usize; 3],
        is_end: bool,
        pairs: &mut CharacterPairs,
    ) -> bool {
        let may_be_cut = self
            .pair(text, cut, pairs)
            .is_some_and(|pair| pair.may_be_cut);
        if !may_be_cut || self.has_added_near(text, start..end, is_end, pairs) != Some(false) {
            return false;
        }
        let normalize = |part: &str| self.normal.normalize(part);
        let (before, after) = (normalize(&text[start..cut]), normalize(&text[cut..end]));
        self.splitters.splits(&before, &after)
    }

    /// Returns what may happen at a position; `None` at the ends of the text.
    fn pair(&self, text: &str, at: usize, pairs: &mut CharacterPairs) -> Option<PairRule> {
        let (before, after) = (text[..at].chars().next_back()?, text[at..].chars().next()?);
        if pairs.len() >= PAIRS_MAX {
            pairs.clear();
        }
        let rule = pairs.entry((before, after)).or_insert_with(|| {
            let are_spaces =
                |before: char, after: char| before.is_whitespace() && after.is_whitespace();
            let across = self.normal.across(before, after);
            let quiet = across.filter(|pair| {
                !are_spaces(before, after)
                    && !are_spaces(pair.last, pair.first)
                    && !self.splitters.joins(pair.last, pair.first)
            });
            PairRule {
                is_independent: across.is_some(),
                is_quiet: quiet.is_some(),
                may_be_cut: quiet
                    .is_some_and(|pair| !pair.is_stripped && self.splitters.may_start(pair.first)),
            }
        });
        Some(*rule)
    }

    /// Returns whether the characters at a position and both their neighbours are normalized independently.
    fn is_independent(&self, text: &str, at: usize, pairs: &mut CharacterPairs) -> bool {
        let is_free = |at: usize, pairs: &mut CharacterPairs| {
            self.pair(text, at, pairs)
                .is_none_or(|pair| pair.is_independent)
        };
        is_free(at, pairs)
            && is_free(previous(text, at), pairs)
            && (at == text.len() || is_free(next(text, at), pairs))
    }

    /// Returns whether an added token is in or near a range; `None` if this cannot be known.
    fn has_added_near(
        &self,
        text: &str,
        range: std::ops::Range<usize>,
        is_end: bool,
        pairs: &mut CharacterPairs,
    ) -> Option<bool> {
        if self.added_bytes_max == 0 {
            return Some(false);
        }
        let is_wide = |part: &str| {
            part.len() >= self.added_bytes_max
                && self.normal.normalize(part).len() >= self.added_bytes_max
        };
        let margin = self.added_bytes_max + MARGIN_BYTES;
        let mut start = range.start;
        while start > 0
            && !(self.is_independent(text, start, pairs) && is_wide(&text[start..range.start]))
        {
            start = previous(text, start);
            if range.start - start > margin {
                return None;
            }
        }
        let (mut end, last) = (range.end, last_known(text, is_end));
        while end < last
            && !(self.is_independent(text, end, pairs) && is_wide(&text[range.end..end]))
        {
            end = next(text, end);
            if end - range.end > margin {
                return None;
            }
        }
        if end >= last && !is_end {
            return None;
        }
        let near = &text[start..end];
        if self.added.iter().any(|token| near.contains(&**token)) {
            return Some(true);
        }
        let near = self.normal.normalize(near);
        let mut tokens = self.added_normalized.iter();
        Some(tokens.any(|token| near.contains(&**token)))
    }
}

/// Returns the last quiet position before a position; 0 if there is none.
fn quiet_before(rule: &CutRule, text: &str, before: usize, pairs: &mut CharacterPairs) -> usize {
    let mut at = previous(text, before);
    while at > 0 {
        let is_quiet = rule.pair(text, at, pairs).is_some_and(|pair| pair.is_quiet);
        if is_quiet && rule.is_independent(text, at, pairs) {
            break;
        }
        at = previous(text, at);
    }
    at
}

/// Returns the end of the characters whose successor is known.
fn last_known(text: &str, is_end: bool) -> usize {
    match is_end {
        true => text.len(),
        false => previous(text, text.len()),
    }
}

/// Returns the position before the character that ends at `at`.
fn previous(text: &str, at: usize) -> usize {
    let last = text[..at].chars().next_back();
    at - last.map_or(0, char::len_utf8)
}

/// Returns the position after the character that starts at `at`.
fn next(text: &str, at: usize) -> usize {
    let first = text[at..].chars().next();
    at + first.map_or(0, char::len_utf8)
}

/// Returns the type of a step.
fn kind(step: &Value) -> Option<&str> {
    step.get("type")?.as_str()
}

/// Returns the list in a step.
fn items<'a>(step: &'a Value, name: &str) -> Option<&'a Vec<Value>> {
    step.get(name)?.as_array()
}

/// Returns the analysed pattern of a step.
fn pattern(step: &Value) -> Option<Adjacency> {
    let pattern = step.get("pattern")?;
    match (pattern.get("Regex"), pattern.get("String")) {
        (Some(expression), None) => Adjacency::parse(expression.as_str()?),
        (None, Some(text)) => Adjacency::parse(&fancy_regex::escape(text.as_str()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
