//! [`TokenSampling`]: the choice of the next token of a generated text.

use std::num::NonZeroUsize;

use ronde_core::seed::{Purpose, SeedTree};

use crate::error::ServeError;

/// How the next token of a generated text is chosen from the model's scores. The default is greedy: the token with the
/// greatest score.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TokenSampling {
    temperature: f32,
    top_k: Option<NonZeroUsize>,
    seed: u64,
}

impl TokenSampling {
    /// Creates a sampling. Tokens are drawn with the probabilities of the scores divided by `temperature`, from the `top_k`
    /// tokens with the greatest scores or from all; temperature 0 is greedy. `seed` determines the random numbers.
    ///
    /// # Errors
    /// The temperature is negative or not finite.
    pub fn new(
        temperature: f32,
        top_k: Option<NonZeroUsize>,
        seed: u64,
    ) -> Result<Self, ServeError> {
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(ServeError::Generation {
                setting: "temperature",
                found: temperature.to_string(),
                expected: "a number of at least 0",
            });
        }
        Ok(Self {
            temperature,
            top_k,
            seed,
        })
    }

    /// Returns token `number` of the generated tokens of text `text`, from the scores of all tokens before softmax. The same
    /// arguments give the same token on every machine, whatever was chosen before. The first of equal scores counts as the
    /// greatest. Cost: linear in the number of tokens, and one exponential for each that is drawn from.
    ///
    /// # Errors
    /// Scores are missing, one is not a number, or the greatest is not finite.
    pub fn choose(&self, scores: &[f32], text: u64, number: u64) -> Result<u32, ServeError> {
        let best = greatest(scores).ok_or(ServeError::TokenScores)?;
        let top_k = self.top_k.map_or(usize::MAX, NonZeroUsize::get);
        if self.temperature == 0.0 || top_k == 1 {
            return Ok(best as u32);
        }
        let mut tokens: Vec<usize> = (0..scores.len()).collect();
        if top_k < tokens.len() {
            let order = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
            tokens.select_nth_unstable_by(top_k, order);
            tokens.truncate(top_k);
            tokens.sort_unstable();
        }
        let temperature = f64::from(self.temperature);
        let weight = |token: &usize| {
            let below = f64::from(scores[*token]) - f64::from(scores[best]);
            libm::exp(below / temperature)
        };
        let weights: Vec<f64> = tokens.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let mut left = sum * self.uniform(text, number);
        for (token, weight) in tokens.iter().zip(weights) {
            left -= weight;
            if left < 0.0 {
                return Ok(*token as u32);
            }
        }
        // Rounding can leave a rest after the last token.
        Ok(best as u32)
    }

    /// Returns the random number of a choice: a multiple of 2^-53 in `[0, 1)`.
    fn uniform(&self, text: u64, number: u64) -> f64 {
        let stream = SeedTree::new(self.seed).stream(Purpose::Generation, &[text, number]);
        let [low, high, ..] = stream.block(0);
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }
}

/// Returns the first token with the greatest score; `None` if it is not finite or a score is not a number.
fn greatest(scores: &[f32]) -> Option<usize> {
    let mut best = 0;
    for (token, score) in scores.iter().enumerate() {
        if score.is_nan() {
            return None;
        }
        if *score > scores[best] {
            best = token;
        }
    }
    scores.get(best).filter(|score| score.is_finite())?;
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32, top_k: usize, seed: u64) -> TokenSampling {
        TokenSampling::new(temperature, NonZeroUsize::new(top_k), seed).unwrap()
    }

    /// Returns how often each token of `scores` is chosen in 4,000 texts.
    fn frequencies(sampling: TokenSampling, scores: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; scores.len()];
        for text in 0..4_000 {
            counts[sampling.choose(scores, text, 3).unwrap() as usize] += 1.0 / 4_000.0;
        }
        counts
    }

    #[test]
    fn the_first_greatest_score_is_chosen_by_default() {
        let scores = [0.5, 2.0, f32::NEG_INFINITY, 2.0];
        for greedy in [
            TokenSampling::default(),
            sampling(0.0, 3, 7),
            sampling(1e9, 1, 7),
            // The smallest temperature divides by almost nothing, without overflow to another token.
            sampling(f32::MIN_POSITIVE, 2, 3),
        ] {
            let chosen = greedy.choose(&scores, 1, 1).unwrap();
            assert!(chosen == 1 || chosen == 3, "{greedy:?}");
        }
        assert_eq!(TokenSampling::default().choose(&scores, 1, 1).unwrap(), 1);
    }

    #[test]
    fn tokens_are_drawn_with_their_probabilities() {
        let scores = [
            0.0,
            0.6_f32.ln() - 0.1_f32.ln(),
            0.3_f32.ln() - 0.1_f32.ln(),
        ];
        let close = |found: Vec<f64>, expected: [f64; 3]| {
            let mut pairs = found.iter().zip(expected);
            let is_close = pairs.all(|(a, b)| (a - b).abs() < 0.03);
            assert!(is_close, "{found:?} instead of {expected:?}");
        };
        close(frequencies(sampling(1.0, 0, 5), &scores), [0.1, 0.6, 0.3]);
        close(
            frequencies(sampling(1.0, 2, 5), &scores),
            [0.0, 2.0 / 3.0, 1.0 / 3.0],
        );
        // Half the temperature squares the probabilities.
        let squares = [0.01, 0.36, 0.09].map(|square: f64| square / 0.46);
        close(frequencies(sampling(0.5, 9, 6), &scores), squares);
        // Of equal scores at the limit, the first are kept.
        close(frequencies(sampling(1.0, 2, 1), &[1.0; 3]), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn choices_depend_on_seed_text_and_number_alone() {
        let scores: Vec<f32> = (0..50).map(|token| (token % 7) as f32 * 0.1).collect();
        let chosen = |seed, text| -> Vec<u32> {
            let number = |number| {
                sampling(1.0, 0, seed)
                    .choose(&scores, text, number)
                    .unwrap()
            };
            (0..20).map(number).collect()
        };
        assert_eq!(chosen(1, 2), chosen(1, 2));
        assert_ne!(chosen(1, 2), chosen(1, 3));
        assert_ne!(chosen(1, 2), chosen(2, 2));
        assert_eq!(chosen(1, 2)[..5], [5, 18, 49, 34, 1]);
    }

    #[test]
    fn scores_and_settings_without_a_choice_are_refused() {
        for temperature in [-0.5, f32::NAN, f32::INFINITY] {
            let error = TokenSampling::new(temperature, None, 0).unwrap_err();
            assert!(error.to_string().contains("temperature"), "{error}");
        }
        for scores in [
            &[][..],
            &[0.0, f32::NAN],
            &[f32::INFINITY, 1.0],
            &[f32::NEG_INFINITY; 2],
        ] {
            for sampling in [TokenSampling::default(), sampling(1.0, 0, 1)] {
                let error = sampling.choose(scores, 0, 0).unwrap_err();
                assert!(matches!(error, ServeError::TokenScores), "{scores:?}");
            }
        }
    }
}
