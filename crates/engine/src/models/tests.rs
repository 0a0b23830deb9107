//! Sizes, names, costs and errors of the models, and training on the digits.

use ronde_core::layout::Role;

use super::*;
use crate::layer::LayerExt;
use crate::learning_rate::ScheduleConfig;
use crate::optimizer::OptimizerConfig;
use crate::testing::{DigitsRun, arena, samples, state, training};

fn resnet18(small_input: bool) -> ModelConfig {
    ModelConfig::ResNet18 {
        small_input,
        normalisation: Normalisation::Batch,
    }
}

fn all() -> Vec<(ModelConfig, Vec<usize>)> {
    let digits = ModelConfig::DigitsCnn {
        channels: 4,
        dropout: 0.25,
    };
    let mlp = |hidden: &[usize]| ModelConfig::Mlp {
        hidden: hidden.to_vec(),
        tensor_parts: 1,
    };
    vec![
        (digits, vec![2, 9, 8]),
        (resnet18(true), vec![3, 9, 8]),
        (resnet18(false), vec![1, 33, 40]),
        (mlp(&[7, 5]), vec![1, 4, 4]),
        (mlp(&[3]), vec![6]),
        (ModelConfig::Linear {}, vec![2, 3]),
    ]
}

#[test]
fn each_layer_outputs_the_shape_in_its_cost() {
    for (model, shape) in all() {
        let mut chain = model.build(&shape, 10, &SeedTree::new(1)).unwrap();
        for count in [2, 0] {
            let mut input = vec![count];
            input.extend(&shape);
            let mut value = samples(&input, 1);
            for layer in chain.layers_mut() {
                let cost = layer.cost(value.shape());
                value = layer.forward_shard(value, &training(0, 0)).unwrap();
                assert_eq!(cost.output_shape, value.shape(), "{model:?}");
                assert_eq!(cost.kept_floats == 0, count == 0, "{model:?}");
            }
            assert_eq!(value.shape(), [count, 10]);
            assert_eq!(chain.cost(&input).output_shape, [count, 10]);
            chain.discard_all();
        }
    }
}

#[test]
fn resnet18_is_that_of_torchvision() {
    let model = resnet18(false);
    let chain = model
        .build(&[3, 224, 224], 1000, &SeedTree::new(1))
        .unwrap();
    let layout = chain.layout();
    assert_eq!(layout.elements(Role::Parameter), 11_689_512);
    // There are 20 normalisations; torchvision's number of batches seen is not stored.
    assert_eq!(layout.of_role(Role::Buffer).count(), 40);
    assert_eq!(layout.of_role(Role::Parameter).count(), 62);
    assert_eq!(chain.cost(&[2, 3, 224, 224]).output_shape, [2, 1000]);
    for name in [
        "conv1.weight",
        "bn1.gamma",
        "layer1.0.conv1.weight",
        "layer2.0.downsample.conv.weight",
        "layer4.1.bn2.running_var",
        "fc.bias",
    ] {
        assert!(
            layout.tensors.iter().any(|tensor| tensor.name == name),
            "{name}"
        );
    }
}

#[test]
fn weights_follow_the_seed_and_nothing_else() {
    let model = ModelConfig::Mlp {
        hidden: vec![5],
        tensor_parts: 1,
    };
    let of = |seed| state(&model.build(&[6], 3, &SeedTree::new(seed)).unwrap()).0;
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    let chain = model.build(&[6], 3, &SeedTree::new(1)).unwrap();
    let weights = of(1)[arena(&chain).range(0)].to_vec();
    assert!(weights.iter().all(|x| x.abs() <= 1.0 && *x != 0.0));
}

#[test]
fn configurations_parse_with_defaults_and_refuse_unknown_fields() {
    let parse = |text: &str| serde_json::from_str::<ModelConfig>(text);
    let digits = parse(r#"{"kind": "digits_cnn"}"#).unwrap();
    let expected = ModelConfig::DigitsCnn {
        channels: 16,
        dropout: 0.25,
    };
    assert_eq!(digits, expected);
    let resnet = parse(r#"{"kind": "resnet18", "small_input": true}"#).unwrap();
    assert_eq!(resnet, resnet18(true));
    for (model, _) in all() {
        let text = serde_json::to_string(&model).unwrap();
        assert!(
            text.contains(&format!(r#""kind":"{}""#, model.kind())),
            "{text}"
        );
        assert_eq!(parse(&text).unwrap(), model);
    }
    for text in [
        r#"{"kind": "linear", "hidden": [3]}"#,
        r#"{"kind": "digits_cnn", "chanels": 3}"#,
        r#"{"kind": "transformer"}"#,
        r#"{"kind": "resnet50", "normalisation": "layer"}"#,
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

fn gpt(width: usize, heads: usize) -> ModelConfig {
    ModelConfig::Gpt {
        layers: 1,
        width,
        heads,
        dropout: 0.0,
        tied: false,
        tensor_parts: 1,
    }
}

fn transformer(source: usize) -> ModelConfig {
    ModelConfig::Transformer {
        source,
        padding: None,
        layers: 1,
        width: 8,
        heads: 2,
        dropout: 0.0,
        tensor_parts: 1,
    }
}

#[test]
fn invalid_samples_and_sizes_are_reported_with_the_numbers() {
    let digits = |channels, dropout| ModelConfig::DigitsCnn { channels, dropout };
    let resnet = resnet18(false);
    let cases = [
        (digits(4, 0.0), vec![8, 8], 10, "[8, 8]"),
        (digits(4, 0.0), vec![1, 3, 8], 10, "[1, 3, 8]"),
        (digits(0, 0.0), vec![1, 8, 8], 10, "channels = 0"),
        (digits(usize::MAX, 0.0), vec![1, 8, 8], 10, "1 to 65536"),
        (digits(4, 1.0), vec![1, 8, 8], 10, "dropout = 1"),
        (resnet, vec![3, 8, 8], 10, "32 x 32"),
        (
            ModelConfig::Mlp {
                hidden: vec![3, 0],
                tensor_parts: 1,
            },
            vec![4],
            10,
            "[3, 0]",
        ),
        (
            ModelConfig::Linear {},
            vec![1, 1, 1, 1],
            10,
            "1 to 3 dimensions",
        ),
        (gpt(6, 4), vec![8], 10, "heads = 4"),
        (gpt(8, 4), vec![8, 2], 10, "[8, 2]"),
        (gpt(0, 4), vec![8], 10, "width = 0"),
        (transformer(8), vec![8], 10, "source = 8"),
        (ModelConfig::Linear {}, vec![4], 0, "0 classes"),
        (ModelConfig::Linear {}, vec![4, 0], 2, "[4, 0]"),
    ];
    for (model, shape, classes, expected) in cases {
        let Err(error) = model.build(&shape, classes, &SeedTree::new(1)) else {
            panic!("{model:?} was built for {shape:?}");
        };
        let text = error.to_string();
        assert!(
            text.contains(expected) && text.contains(model.kind()),
            "{text}"
        );
    }
}

#[test]
fn the_digits_are_learnt() {
    let run = DigitsRun {
        optimizer: OptimizerConfig::Sgd {
            momentum: 0.9,
            nesterov: true,
            weight_decay: 2e-3,
        },
        schedule: ScheduleConfig::Cosine { warmup_steps: 20 },
        learning_rate: 0.1,
        batch: 64,
        epochs: 15,
        seed: 2,
    };
    let model = ModelConfig::DigitsCnn {
        channels: 16,
        dropout: 0.25,
    };
    let accuracies = run.accuracies(&model);
    assert!(accuracies[14] >= 0.97, "{accuracies:.3?}");
}
