//! The built-in losses: values by hand, slopes, and refused predictions.

use std::collections::BTreeMap;

use super::*;
use crate::testing::{TensorChecksums, hashed, name_seed};

fn cross_entropy(logits: &[f32], classes: usize, labels: &[u32]) -> LossOutput {
    of(&CrossEntropy { classes }, logits, labels, labels.len()).unwrap()
}

fn of(
    loss: &dyn Loss,
    outputs: &[f32],
    targets: &[u32],
    samples: usize,
) -> Result<LossOutput, EngineError> {
    let found = loss.checked(&Predictions::new(outputs, targets, samples)?)?;
    let mut gradient = outputs.to_vec();
    let loss_sum = loss.loss_and_gradient_in_place(&mut gradient, targets, samples)?;
    let replaced = LossOutput { loss_sum, gradient };
    let bits = |of: &LossOutput| -> (u64, Vec<u32>) {
        let gradient = of.gradient.iter().map(|value| value.to_bits());
        (of.loss_sum.to_bits(), gradient.collect())
    };
    assert_eq!(bits(&found), bits(&replaced), "{}", loss.name());
    Ok(found)
}

#[test]
fn values_by_hand() {
    let output = cross_entropy(&[0.0, 0.0, 1.0, 3.0], 2, &[1, 0]);
    let second = 2.0 + (1.0 + (-2.0_f64).exp()).ln();
    assert!((output.loss_sum - (2.0_f64.ln() + second)).abs() < 1e-12);
    let p = (1.0 / (1.0 + 2.0_f64.exp())) as f32;
    let expected = [0.5, -0.5, p - 1.0, 1.0 - p];
    for (got, expected) in output.gradient.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-6, "{got} for {expected}");
    }
}

#[test]
fn great_logits_do_not_overflow_and_nan_shows() {
    let output = cross_entropy(&[1e30, -1e30, 0.0], 3, &[0]);
    assert_eq!(output.loss_sum, 0.0);
    assert_eq!(output.gradient, [0.0; 3]);
    let output = cross_entropy(&[f32::NAN, 0.0], 2, &[1]);
    assert!(output.loss_sum.is_nan());
}

#[test]
fn the_gradient_is_the_slope() {
    let logits = [0.3, -1.2, 0.7, 2.0, 0.1, -0.4];
    let at = |logits: &[f32]| cross_entropy(logits, 3, &[2, 1]);
    let gradient = at(&logits).gradient;
    for i in 0..logits.len() {
        let shifted = |by: f32| {
            let mut logits = logits;
            logits[i] += by;
            at(&logits).loss_sum
        };
        let slope = (shifted(1e-3) - shifted(-1e-3)) / 2e-3;
        assert!((slope - f64::from(gradient[i])).abs() < 1e-4);
    }
}

#[test]
fn a_sample_of_several_targets_is_their_sum_without_the_ignored() {
    let logits = [0.3, -1.2, 0.7, 2.0, 0.1, -0.4, 1.0, 1.0, 1.0];
    let loss = CrossEntropy { classes: 3 };
    let one = |at: usize, label| cross_entropy(&logits[3 * at..3 * at + 3], 3, &[label]);
    let (a, c) = (one(0, 2), one(2, 1));
    let all = of(&loss, &logits, &[2, IGNORED, 1], 1).unwrap();
    assert_eq!(all.loss_sum, a.loss_sum + c.loss_sum);
    assert_eq!(all.gradient[..3], a.gradient);
    assert_eq!(all.gradient[3..6], [0.0; 3]);
    assert_eq!(all.gradient[6..], c.gradient);
    assert_eq!(loss.counted_targets(&[2, IGNORED, 1], 1), 2);
    assert_eq!(SquaredError.counted_targets(&[2, IGNORED, 1], 1), 1);
    let nothing = of(&loss, &logits[..3], &[IGNORED], 1).unwrap();
    assert_eq!(nothing.loss_sum, 0.0);
    assert!(of(&loss, &logits, &[0, 1, 2], 2).is_err());
}

#[derive(Deserialize)]
struct ExpectedLoss {
    loss: f64,
    gradient: TensorChecksums,
}

#[derive(Deserialize)]
struct ExpectedLosses {
    losses: BTreeMap<String, ExpectedLoss>,
}

#[test]
fn losses_and_gradients_of_values_are_those_of_pytorch() {
    let text = include_str!("../../tests/pytorch/operations.json");
    let ExpectedLosses { losses } = serde_json::from_str(text).unwrap();
    let outputs: Vec<f32> = hashed(name_seed("outputs"), 40)
        .into_iter()
        .map(|x| 3.0 * x)
        .collect();
    let targets = hashed(name_seed("targets"), 40).into_iter();
    let targets: Vec<u32> = targets.map(|x| (0.5 + 0.5 * x).to_bits()).collect();
    assert_eq!(losses.len(), 4);
    for (name, expected) in losses {
        let kind: ValueLoss = serde_json::from_value(name.clone().into()).unwrap();
        let found = of(&*kind.loss(), &outputs, &targets, 4).unwrap();
        let error = (found.loss_sum - expected.loss).abs() / expected.loss;
        // Outputs times 3 are rounded to single precision.
        assert!(error < 1e-6, "{name}: {}", found.loss_sum);
        let error = expected.gradient.error(&found.gradient);
        assert!(error < 1e-6, "{name}: gradient, error {error:.2e}");
    }
}

#[test]
fn squared_errors_by_hand() {
    let targets = [1.0_f32, 0.0].map(f32::to_bits);
    let output = of(&SquaredError, &[3.0, -1.0], &targets, 2).unwrap();
    assert_eq!(output.loss_sum, 5.0);
    assert_eq!(output.gradient, [4.0, -2.0]);
}

#[test]
fn wrong_lengths_and_labels_are_refused_and_no_samples_give_zero() {
    assert!(matches!(
        of(&CrossEntropy { classes: 2 }, &[0.0; 4], &[0, 2], 2),
        Err(EngineError::Label {
            sample: 1,
            label: 2,
            classes: 2
        })
    ));
    for (outputs, classes, samples) in [(3, 2, 1), (4, 2, 1), (0, 0, 1)] {
        let (outputs, labels) = (vec![0.0; outputs], vec![0; samples]);
        let result = of(&CrossEntropy { classes }, &outputs, &labels, samples);
        assert!(matches!(result, Err(EngineError::OutputCount { .. })));
    }
    assert_eq!(cross_entropy(&[], 2, &[]), LossOutput::default());
}

#[test]
fn a_loss_with_too_few_gradients_is_refused_by_name() {
    struct Short;
    impl Loss for Short {
        fn name(&self) -> String {
            "short".to_owned()
        }
        fn loss_and_gradient(&self, _: &Predictions<'_>) -> Result<LossOutput, EngineError> {
            Ok(LossOutput::default())
        }
    }
    assert_eq!(
        of(&Short, &[1.0, 2.0], &[0], 1).unwrap_err().to_string(),
        "loss short: returned 0 gradients for 2 outputs; expected one for each"
    );
}
