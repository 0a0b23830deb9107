//! [`NearestDistance`]: the loss of clusters.

use super::{Loss, LossOutput};
use crate::error::EngineError;
use crate::predictions::Predictions;

/// The smallest output of a sample: with the squared distances from all centres as outputs, the loss of k-means. Targets
/// are not used. The first of equal outputs counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearestDistance;

impl Loss for NearestDistance {
    fn name(&self) -> String {
        "nearest_distance".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let mut total = LossOutput {
            loss_sum: 0.0,
            gradient: vec![0.0; predictions.outputs().len()],
        };
        total.gradient.fill(0.0);
        let width = predictions.outputs_per_sample();
        for (sample, (outputs, _)) in predictions.samples().enumerate() {
            if let Some(nearest) = nearest(outputs) {
                total.loss_sum += f64::from(outputs[nearest]);
                total.gradient[sample * width + nearest] = 1.0;
            }
        }
        Ok(total)
    }
}

/// Returns the index of the smallest distance, the first of equal ones; `None` for no distances.
pub(crate) fn nearest(distances: &[f32]) -> Option<usize> {
    let smaller = |best: usize, index: usize| {
        if distances[index] < distances[best] {
            index
        } else {
            best
        }
    };
    (0..distances.len()).reduce(smaller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_smallest_outputs_counts() {
        let outputs = [3.0, 1.0, 2.0, 0.5, 0.5, 4.0];
        let predictions = Predictions::new(&outputs, &[7, 8], 2).unwrap();
        let loss = NearestDistance.loss_and_gradient(&predictions).unwrap();
        assert_eq!(loss.loss_sum, 1.5);
        assert_eq!(loss.gradient, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn outputs_that_are_not_numbers_are_not_hidden() {
        let outputs = [f32::NAN; 2];
        let predictions = Predictions::new(&outputs, &[0], 1).unwrap();
        let loss = NearestDistance.loss_and_gradient(&predictions).unwrap();
        assert!(loss.loss_sum.is_nan());
        assert_eq!(nearest(&[]), None);
    }
}
