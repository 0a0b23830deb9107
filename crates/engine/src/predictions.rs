//! [`Predictions`]: the outputs of a model for some samples, with their targets.

use crate::error::EngineError;

/// The outputs of a model for some samples, with their targets; the operands of a loss and a metric.
///
/// Outputs are row-major, samples first. A target is a class number or the bits of an `f32` value, see
/// [`Predictions::value`]. All samples have equally many outputs and equally many targets.
///
/// ```
/// use ronde_engine::Predictions;
///
/// let predictions = Predictions::new(&[0.1, 0.9, 0.8, 0.2], &[1, 0], 2)?;
/// let rows: Vec<(&[f32], &[u32])> = predictions.samples().collect();
/// assert_eq!(rows, [(&[0.1, 0.9][..], &[1][..]), (&[0.8, 0.2], &[0])]);
/// # Ok::<(), ronde_engine::EngineError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predictions<'a> {
    outputs: &'a [f32],
    targets: &'a [u32],
    samples: usize,
}

impl<'a> Predictions<'a> {
    /// Combines the outputs and targets of `samples` samples. Cost: none.
    ///
    /// # Errors
    /// When the outputs or the targets cannot be divided evenly among the samples.
    pub fn new(
        outputs: &'a [f32],
        targets: &'a [u32],
        samples: usize,
    ) -> Result<Self, EngineError> {
        for (what, count) in [("outputs", outputs.len()), ("targets", targets.len())] {
            if count.checked_rem(samples).unwrap_or(count) != 0 {
                return Err(EngineError::UnevenSamples {
                    what,
                    count,
                    samples,
                });
            }
        }
        Ok(Self {
            outputs,
            targets,
            samples,
        })
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples
    }

    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Returns the outputs of all samples.
    #[must_use]
    pub fn outputs(&self) -> &'a [f32] {
        self.outputs
    }

    /// Returns the targets of all samples.
    #[must_use]
    pub fn targets(&self) -> &'a [u32] {
        self.targets
    }

    /// Returns the number of outputs of one sample; 0 without samples.
    #[must_use]
    pub fn outputs_per_sample(&self) -> usize {
        self.outputs.len().checked_div(self.samples).unwrap_or(0)
    }

    /// Returns the number of targets of one sample; 0 without samples.
    #[must_use]
    pub fn targets_per_sample(&self) -> usize {
        self.targets.len().checked_div(self.samples).unwrap_or(0)
    }

    /// Returns the outputs and targets of each sample in order.
    pub fn samples(&self) -> impl Iterator<Item = (&'a [f32], &'a [u32])> + use<'a> {
        let (outputs, targets) = (self.outputs, self.targets);
        let (row, each) = (self.outputs_per_sample(), self.targets_per_sample());
        (0..self.samples).map(move |sample| {
            (
                &outputs[sample * row..(sample + 1) * row],
                &targets[sample * each..(sample + 1) * each],
            )
        })
    }

    /// Returns the value that a target of a regression contains.
    #[must_use]
    pub fn value(target: u32) -> f32 {
        f32::from_bits(target)
    }

    /// Checks that there are `factor` outputs for each target. `function` is the name of the loss or metric.
    ///
    /// # Errors
    /// When there are more or fewer.
    pub fn expect_outputs(&self, function: &str, factor: usize) -> Result<(), EngineError> {
        let expected = self.targets.len().checked_mul(factor);
        if factor > 0 && expected == Some(self.outputs.len()) {
            return Ok(());
        }
        Err(EngineError::OutputCount {
            function: function.to_owned(),
            samples: self.samples,
            found: self.outputs_per_sample(),
            targets: self.targets_per_sample(),
            factor,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_without_outputs_and_no_samples_are_allowed() {
        let predictions = Predictions::new(&[], &[], 3).unwrap();
        assert_eq!(predictions.samples().count(), 3);
        let nothing = Predictions::new(&[], &[], 0).unwrap();
        assert!(nothing.is_empty());
        assert_eq!(nothing.outputs_per_sample(), 0);
        assert!(nothing.expect_outputs("loss", 2).is_ok());
    }

    #[test]
    fn uneven_numbers_are_refused_by_name() {
        let message = |outputs, targets, samples| {
            let (outputs, targets) = (vec![0.0; outputs], vec![0; targets]);
            Predictions::new(&outputs, &targets, samples)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            message(5, 2, 2),
            "cannot divide 5 outputs among 2 samples: expected equally many for each"
        );
        assert!(message(4, 3, 2).contains("3 targets"));
        assert!(message(4, 0, 0).contains("4 outputs among 0 samples"));
        let predictions = Predictions::new(&[0.0; 6], &[0; 2], 2).unwrap();
        assert_eq!(
            predictions
                .expect_outputs("cross_entropy", 10)
                .unwrap_err()
                .to_string(),
            "cross_entropy: the model has 3 outputs for each of 2 samples; expected 10 (1 target x 10)"
        );
    }
}
