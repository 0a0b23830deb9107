//! Update rules against PyTorch's values and published formulas, and slices against the whole.

use serde::Deserialize;

use super::*;

/// Written by `optimizers.py` in the same folder.
const VALUES: &str = include_str!("../../tests/pytorch/optimizers.json");
/// The shapes of `weight` and `bias` of the test problem.
const SHAPES: [&[usize]; 2] = [&[9, 15], &[15]];

#[derive(Deserialize)]
struct Values {
    steps: u64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    optimizer: OptimizerConfig,
    learning_rate: f64,
    weight_decay_on: WeightDecayOn,
    weight: Vec<f32>,
    weight_sum: f64,
    bias: Vec<f32>,
}

fn trained(case: &Case, steps: u64) -> Vec<Vec<f32>> {
    let tensors = SHAPES.iter().enumerate().map(|(index, shape)| {
        let rule = if case.weight_decay_on.includes(shape) {
            case.optimizer
        } else {
            case.optimizer.without_decay()
        };
        let count = shape.iter().product();
        let mut parameters = crate::testing::hashed(index as u64 + 1, count);
        let mut states = vec![vec![0.0; count]; rule.state_names().len()];
        for number in 1..=steps {
            let noise = crate::testing::hashed(1000 * number + index as u64, count);
            let slopes = noise.iter().zip(&parameters).map(|(n, p)| n + 0.25 * p);
            let gradients: Vec<f32> = slopes.collect();
            let mut states: Vec<&mut [f32]> = states.iter_mut().map(Vec::as_mut_slice).collect();
            rule.step_tensor(
                number,
                case.learning_rate,
                &mut parameters,
                &gradients,
                &mut states,
            );
        }
        parameters
    });
    tensors.collect()
}

#[test]
fn parameters_after_twelve_updates_equal_pytorchs() {
    let values: Values = serde_json::from_str(VALUES).unwrap();
    assert_eq!(values.cases.len(), 10);
    for case in &values.cases {
        let got = trained(case, values.steps);
        let pairs = got[0]
            .iter()
            .zip(&case.weight)
            .chain(got[1].iter().zip(&case.bias));
        for (got, expected) in pairs {
            let error = (got - expected).abs();
            assert!(error < 2e-6, "{:?}: {got} for {expected}", case.optimizer);
        }
        let sum: f64 = got[0].iter().map(|&x| f64::from(x)).sum();
        let error = (sum - case.weight_sum).abs();
        assert!(error < 2e-5, "{:?}: sum {sum}", case.optimizer);
    }
}

#[test]
fn layerwise_rules_accept_zeros_and_skip_the_plain_group() {
    let parse = |text: &str| serde_json::from_str::<OptimizerConfig>(text).unwrap();
    for optimizer in [parse(r#"{"kind": "lars"}"#), parse(r#"{"kind": "lamb"}"#)] {
        assert!(optimizer.has_trust_ratio() && optimizer.check().is_ok());
        let plain = optimizer.without_decay();
        assert!(!plain.has_trust_ratio());
        assert_eq!(plain.state_names(), optimizer.state_names());
        for gradient in [0.0, 1.0] {
            let mut parameters = [0.0_f32; 100];
            let mut states = vec![vec![0.0; 100]; optimizer.state_names().len()];
            let mut states: Vec<&mut [f32]> = states.iter_mut().map(Vec::as_mut_slice).collect();
            optimizer.step_tensor(1, 0.5, &mut parameters, &[gradient; 100], &mut states);
            assert!(parameters.iter().all(|x| (x + 0.5 * gradient).abs() < 1e-5));
        }
    }
    let none = r#"{"kind": "lars", "momentum": 0.0}"#;
    assert!(parse(none).check().unwrap_err().contains("momentum"));
}

const ADAM: OptimizerConfig = OptimizerConfig::Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.1,
};
const ADAMW: OptimizerConfig = OptimizerConfig::AdamW {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.1,
};

const LARS: OptimizerConfig = OptimizerConfig::Lars {
    momentum: 0.9,
    weight_decay: 0.1,
    trust: 0.001,
    epsilon: 1e-8,
};
const LAMB: OptimizerConfig = OptimizerConfig::Lamb {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-6,
    weight_decay: 0.1,
};

fn sgd(momentum: f64, nesterov: bool) -> OptimizerConfig {
    OptimizerConfig::Sgd {
        momentum,
        nesterov,
        weight_decay: 0.1,
    }
}

/// Five updates of three parameters on a quadratic function with alternating gradients.
fn after_five(optimizer: OptimizerConfig, learning_rate: f64) -> Vec<f32> {
    let mut parameters = vec![0.5, -1.25, 2.0];
    let mut states = vec![vec![0.0; 3]; optimizer.state_names().len()];
    for number in 1..=5_u64 {
        let turn = if number % 2 == 1 { 1.0 } else { -0.5 };
        let gradients: Vec<f32> = [0.25, -0.5, 1.5]
            .iter()
            .zip(&parameters)
            .map(|(slope, parameter)| slope * turn + 0.125 * parameter)
            .collect();
        let mut states: Vec<&mut [f32]> = states.iter_mut().map(Vec::as_mut_slice).collect();
        optimizer.step_tensor(
            number,
            learning_rate,
            &mut parameters,
            &gradients,
            &mut states,
        );
    }
    parameters
}

#[test]
fn values_match_the_formulas_in_double_precision() {
    let cases = [
        (sgd(0.0, false), 0.1, [0.398_406_3, -1.019_925_1, 1.497_988]),
        (
            sgd(0.9, false),
            0.1,
            [0.240_205_8, -0.660_327_6, 0.721_570_1],
        ),
        (
            sgd(0.9, true),
            0.1,
            [0.179_204_9, -0.522_092_2, 0.420_500_1],
        ),
        (ADAM, 0.05, [0.313_727_4, -1.051_138_6, 1.824_121_3]),
        (ADAMW, 0.05, [0.323_232_8, -1.044_713_3, 1.794_166_6]),
    ];
    for (optimizer, learning_rate, expected) in cases {
        let got = after_five(optimizer, learning_rate);
        for (got, expected) in got.iter().zip(expected) {
            assert!(
                (got - expected).abs() < 1e-6,
                "{optimizer:?}: {got} for {expected}"
            );
        }
    }
}

#[test]
fn slices_get_the_bits_of_the_whole() {
    let whole = crate::testing::uniform(1000, 1);
    let gradients = crate::testing::uniform(1000, 2);
    for optimizer in [sgd(0.0, false), sgd(0.9, true), ADAM, ADAMW, LARS, LAMB] {
        let count = optimizer.state_names().len();
        let run = |cuts: &[usize]| {
            let mut parameters = whole.clone();
            let mut states = vec![vec![0.0; 1000]; count];
            for number in 1..=3 {
                for cut in cuts.windows(2) {
                    let range = cut[0]..cut[1];
                    let mut slices: Vec<&mut [f32]> = states
                        .iter_mut()
                        .map(|state| &mut state[range.clone()])
                        .collect();
                    let parameters = &mut parameters[range.clone()];
                    optimizer.step(
                        number,
                        0.01,
                        0.75,
                        parameters,
                        &gradients[range],
                        &mut slices,
                    );
                }
            }
            (parameters, states)
        };
        assert_eq!(run(&[0, 1000]), run(&[0, 1, 8, 73, 500, 501, 999, 1000]));
    }
}

#[test]
fn configurations_have_the_defaults_of_pytorch_and_refuse_unknown_fields() {
    let parse = |text: &str| serde_json::from_str::<OptimizerConfig>(text);
    let adam = parse(r#"{"kind": "adam"}"#).unwrap();
    assert!(matches!(
        adam,
        OptimizerConfig::Adam {
            weight_decay: 0.0,
            ..
        }
    ));
    let adamw = parse(r#"{"kind": "adamw"}"#).unwrap();
    let expected = OptimizerConfig::AdamW {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
    };
    assert_eq!(adamw, expected);
    assert_eq!(parse(r#"{"kind": "sgd"}"#).unwrap().state_names().len(), 0);
    assert!(parse(r#"{"kind": "sgd", "momentun": 0.9}"#).is_err());
    assert!(parse(r#"{"kind": "lion"}"#).is_err());
}

#[test]
fn constants_out_of_range_are_named() {
    let problem = sgd(1.5, false).check().unwrap_err();
    assert!(problem.contains("momentum = 1.5"), "{problem}");
    assert!(sgd(0.0, true).check().unwrap_err().contains("nesterov"));
    let broken = OptimizerConfig::Adam {
        beta1: 0.9,
        beta2: 1.0,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    assert!(broken.check().unwrap_err().contains("beta2 = 1"));
    assert_eq!(
        (ADAM.check(), ADAMW.check(), sgd(0.9, true).check()),
        (Ok(()), Ok(()), Ok(()))
    );
}
