//! [`BorderTally`]: how well the predictor after a stage has predicted.

/// The sums over the predictions of a round whose gradients have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BorderTally {
    product: f64,
    predicted: f64,
    arrived: f64,
    error: f64,
}

impl BorderTally {
    /// The number of words of an encoded tally.
    pub(super) const WORDS: usize = 4;

    /// Adds predictions and the gradients that arrived for them.
    pub(super) fn add(&mut self, predicted: &[f32], arrived: &[f32]) {
        for (predicted, arrived) in predicted.iter().zip(arrived) {
            let (predicted, arrived) = (f64::from(*predicted), f64::from(*arrived));
            self.product += predicted * arrived;
            self.predicted += predicted * predicted;
            self.arrived += arrived * arrived;
            self.error += (predicted - arrived) * (predicted - arrived);
        }
    }

    /// Returns the cosine of the angle between the predictions and the gradients; 0 if one of them is zero.
    #[must_use]
    pub fn cosine(&self) -> f64 {
        let norms = (self.predicted * self.arrived).sqrt();
        if norms > 0.0 {
            self.product / norms
        } else {
            0.0
        }
    }

    /// Returns the norm of the errors, divided by that of the gradients: 1 for predictions of zeros.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        if self.arrived > 0.0 {
            (self.error / self.arrived).sqrt()
        } else {
            0.0
        }
    }

    pub(super) fn encode(&self) -> [u64; Self::WORDS] {
        [self.product, self.predicted, self.arrived, self.error].map(f64::to_bits)
    }

    pub(super) fn decode(words: [u64; Self::WORDS]) -> Self {
        let [product, predicted, arrived, error] = words.map(f64::from_bits);
        Self {
            product,
            predicted,
            arrived,
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_and_the_cosine_are_those_of_all_elements() {
        let mut tally = BorderTally::default();
        assert_eq!((tally.cosine(), tally.relative_error()), (0.0, 0.0));
        tally.add(&[0.0, 0.0], &[3.0, 4.0]);
        assert_eq!((tally.cosine(), tally.relative_error()), (0.0, 1.0));
        let mut exact = BorderTally::default();
        exact.add(&[3.0], &[3.0]);
        exact.add(&[-4.0], &[-4.0]);
        assert_eq!((exact.cosine(), exact.relative_error()), (1.0, 0.0));
        assert_eq!(BorderTally::decode(exact.encode()), exact);
        let mut opposite = BorderTally::default();
        opposite.add(&[2.0], &[-2.0]);
        assert_eq!((opposite.cosine(), opposite.relative_error()), (-1.0, 2.0));
    }
}
