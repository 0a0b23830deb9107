//! [`DetectionLoss`]: the loss of a detector's boxes and classes.

use super::segments::{logistic_loss, sigmoid};
use super::{Loss, LossOutput};
use crate::detection::{BOX_OUTPUTS, BoxGrid, DetectedImages, TrueBox};
use crate::error::EngineError;
use crate::predictions::Predictions;

/// The error from which the loss of a box grows linearly.
const LINEAR_FROM: f64 = 0.1;

/// The loss of [`DetectedImages`]: binary cross-entropy of all logits of all cells, plus smooth L1 of the four outputs that
/// describe a box, in the cells with the centre of a true box; divided by the number of true boxes, or by 1 if there are
/// none. Smooth L1 of an error `e` is `5 e^2` below 0.1, otherwise `|e| - 0.05`. Of two true boxes in a cell the first
/// counts. Computed in f64. Cost: one exponential for each logit. Source: Redmon, Divvala, Girshick, Farhadi, "You Only Look
/// Once", CVPR 2016, section 2, for cells; Lin, Goyal, Girshick, He, Dollar, "Focal Loss", ICCV 2017, section 4, for the
/// logits of classes without a separate one for objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetectionLoss {
    /// The images.
    pub images: DetectedImages,
}

impl Loss for DetectionLoss {
    fn name(&self) -> String {
        "detection".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let grid = self.images.grid("loss detection", predictions)?;
        let width = predictions.outputs_per_sample();
        let mut total = LossOutput {
            loss_sum: 0.0,
            gradient: vec![0.0; predictions.outputs().len()],
        };
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            let boxes = grid.true_boxes(sample, targets)?;
            let gradient = &mut total.gradient[sample * width..(sample + 1) * width];
            total.loss_sum += sample_loss(&grid, outputs, &boxes, gradient);
        }
        Ok(total)
    }
}

/// Returns the loss of a sample, and writes its gradient.
fn sample_loss(grid: &BoxGrid, outputs: &[f32], boxes: &[TrueBox], gradient: &mut [f32]) -> f64 {
    let (cells, count) = (grid.cells(), boxes.len().max(1) as f64);
    let mut in_cell: Vec<Option<(usize, [f64; BOX_OUTPUTS])>> = vec![None; cells];
    for TrueBox { class, bounds } in boxes {
        let (cell, encoded) = grid.encode(bounds);
        in_cell[cell].get_or_insert((*class, encoded));
    }
    let mut sum = 0.0;
    gradient[..BOX_OUTPUTS * cells].fill(0.0);
    for (cell, expected) in in_cell.iter().enumerate() {
        let Some((_, encoded)) = expected else {
            continue;
        };
        for (at, encoded) in encoded.iter().enumerate() {
            let error = f64::from(outputs[at * cells + cell]) - encoded;
            sum += if error.abs() < LINEAR_FROM {
                error * error / (2.0 * LINEAR_FROM)
            } else {
                error.abs() - LINEAR_FROM / 2.0
            };
            let slope = (error / LINEAR_FROM).clamp(-1.0, 1.0);
            gradient[at * cells + cell] = (slope / count) as f32;
        }
    }
    for class in 0..grid.classes() {
        for (cell, expected) in in_cell.iter().enumerate() {
            let is_expected = expected.is_some_and(|(expected, _)| expected == class);
            let at = grid.logit(class, cell);
            let (x, t) = (f64::from(outputs[at]), f64::from(u8::from(is_expected)));
            sum += logistic_loss(x, t);
            gradient[at] = ((sigmoid(x) - t) / count) as f32;
        }
    }
    sum / count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detection::reference::ReferenceImages;
    use crate::testing::{hashed, name_seed};

    #[test]
    fn loss_and_gradient_are_those_of_pytorch() {
        let reference = ReferenceImages::load();
        let targets = reference.targets();
        let count = reference.len() * reference.outputs_each();
        let outputs: Vec<f32> = hashed(name_seed("outputs"), count)
            .into_iter()
            .map(|x| 2.0 * x)
            .collect();
        let predictions = Predictions::new(&outputs, &targets, reference.len()).unwrap();
        let images = reference.images();
        let loss: &dyn Loss = &DetectionLoss { images };
        let found = loss.checked(&predictions).unwrap();
        let error = (found.loss_sum - reference.loss).abs() / reference.loss;
        assert!(error < 1e-9, "{} for {}", found.loss_sum, reference.loss);
        let fixed = hashed(name_seed("dot"), count);
        let values = || found.gradient.iter().map(|&g| f64::from(g));
        let product: f64 = values().zip(fixed).map(|(g, f)| g * f64::from(f)).sum();
        let norm = values().map(|g| g * g).sum::<f64>().sqrt();
        for (found, expected) in [product, norm].into_iter().zip(reference.gradient) {
            assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
        }
    }

    #[test]
    fn invalid_targets_are_refused_and_images_without_boxes_are_not() {
        let images = DetectedImages {
            size: [8, 8],
            classes: 1,
        };
        let of = |target: [u32; 5]| {
            let predictions = Predictions::new(&[0.0; 5], &target, 1).unwrap();
            DetectionLoss { images }.loss_and_gradient(&predictions)
        };
        let empty = of([crate::IGNORED; 5]).unwrap();
        assert!((empty.loss_sum - libm::log(2.0)).abs() < 1e-12);
        assert_eq!(empty.gradient, [0.0, 0.0, 0.0, 0.0, 0.5]);
        assert!(matches!(
            of([1; 5]),
            Err(EngineError::Label { label: 1, .. })
        ));
        assert!(matches!(of([0; 5]), Err(EngineError::InvalidBox { .. })));
    }
}
