//! [`Improvement`]: whether a score still improves from evaluation to evaluation.

use serde::{Deserialize, Serialize};

/// The best score so far, and the number of evaluations since.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Improvement {
    best: Option<ExactNumber>,
    /// The number of evaluations in a row without an improvement.
    pub(crate) without: u32,
}

impl Improvement {
    /// Takes the score of an evaluation into account; higher is better, and `None` is no improvement. Returns whether it
    /// exceeds the best score by more than `min_delta`.
    pub(crate) fn observe(&mut self, score: Option<f64>, min_delta: f64) -> bool {
        let is_better = |score: &f64| self.best.is_none_or(|best| *score > best.0 + min_delta);
        match score.filter(is_better) {
            None => self.without = self.without.saturating_add(1),
            Some(better) => (self.best, self.without) = (Some(ExactNumber(better)), 0),
        }
        self.without == 0
    }
}

/// A number that is saved as text, which keeps infinities; JSON has none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ExactNumber(pub(crate) f64);

impl TryFrom<String> for ExactNumber {
    type Error = std::num::ParseFloatError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<ExactNumber> for String {
    fn from(number: ExactNumber) -> Self {
        // The shortest text that is read as the same number.
        number.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_higher_score_by_more_than_the_least_difference_counts() {
        let mut improvement = Improvement::default();
        let seen = [Some(1.0), Some(1.1), Some(1.25), None, Some(1.3)]
            .map(|score| (improvement.observe(score, 0.2), improvement.without));
        assert_eq!(
            seen,
            [(true, 0), (false, 1), (true, 0), (false, 1), (false, 2)]
        );
    }

    #[test]
    fn all_bits_are_kept() {
        for best in [None, Some(0.1 + 0.2), Some(f64::INFINITY), Some(-5e-324)] {
            let improvement = Improvement {
                best: best.map(ExactNumber),
                without: 3,
            };
            let text = serde_json::to_string(&improvement).unwrap();
            assert_eq!(
                serde_json::from_str::<Improvement>(&text).unwrap(),
                improvement
            );
        }
    }
}
