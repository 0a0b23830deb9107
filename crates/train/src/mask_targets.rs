//! [`MaskTargets`]: a loss of masks that refuses targets that are not shares.

use std::sync::Arc;

use ronde_engine::{EngineError, Loss, LossInParts, LossOutput, Predictions};

/// A loss of masks, such as binary cross-entropy, whose targets must be in 0 to 1: with others it has no lower bound. Cost:
/// one pass over the targets.
pub(crate) struct MaskTargets(pub(crate) Arc<dyn Loss>);

impl MaskTargets {
    /// Checks the targets of some samples.
    fn check(&self, targets: &[u32], per_sample: usize) -> Result<(), EngineError> {
        let is_outside = |&bits: &u32| !(0.0..=1.0).contains(&Predictions::value(bits));
        let Some(first) = targets.iter().position(is_outside) else {
            return Ok(());
        };
        let values = targets.iter().map(|&bits| Predictions::value(bits));
        let least = values.clone().fold(f32::INFINITY, f32::min);
        let most = values.fold(f32::NEG_INFINITY, f32::max);
        Err(EngineError::TargetRange {
            loss: self.0.name(),
            sample: first / per_sample.max(1),
            target: Predictions::value(targets[first]).to_string(),
            range: format!("{least} to {most}"),
        })
    }
}

impl Loss for MaskTargets {
    fn name(&self) -> String {
        self.0.name()
    }

    fn counted_targets(&self, targets: &[u32], samples: usize) -> u64 {
        self.0.counted_targets(targets, samples)
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        self.check(predictions.targets(), predictions.targets_per_sample())?;
        self.0.loss_and_gradient(predictions)
    }

    fn loss_and_gradient_in_place(
        &self,
        outputs: &mut [f32],
        targets: &[u32],
        samples: usize,
    ) -> Result<f64, EngineError> {
        self.check(targets, targets.len() / samples.max(1))?;
        self.0.loss_and_gradient_in_place(outputs, targets, samples)
    }

    fn in_parts(&self) -> Option<&dyn LossInParts> {
        self.0.in_parts()
    }
}

#[cfg(test)]
mod tests {
    use ronde_engine::ValueLoss;

    use super::*;

    #[test]
    fn targets_outside_0_to_1_are_refused_by_their_sample_and_range() {
        for loss in [ValueLoss::BinaryCrossEntropy, ValueLoss::Dice] {
            let checked = MaskTargets(loss.loss());
            let found = |targets: [f32; 4]| {
                let targets = targets.map(f32::to_bits);
                let outputs = vec![0.5; 4];
                let predictions = Predictions::new(&outputs, &targets, 2).unwrap();
                let output = checked.loss_and_gradient(&predictions);
                let mut gradient = outputs.clone();
                let in_place = checked.loss_and_gradient_in_place(&mut gradient, &targets, 2);
                let in_place = in_place.map(|loss_sum| LossOutput { loss_sum, gradient });
                assert_eq!(output, in_place);
                (output, loss.loss().loss_and_gradient(&predictions))
            };
            let (output, plain) = found([0.0, 1.0, 0.25, 1.0]);
            assert_eq!(output, plain);
            for bad in [-0.5, 1.5, f32::NAN] {
                let error = found([0.0, 1.0, 1.0, bad]).0.unwrap_err();
                let text = error.to_string();
                let named = format!("target `{bad}` of sample 1");
                assert!(error.is_user_error() && text.contains(&named), "{text}");
            }
        }
    }
}
