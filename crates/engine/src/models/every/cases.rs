//! The models at a small size, with their losses.

/// A small model with samples, as in `tests/pytorch/gradients.py`.
pub(super) struct ModelCase {
    pub(super) name: &'static str,
    pub(super) model: &'static str,
    pub(super) shape: &'static [usize],
    /// 0: the model learns one value.
    pub(super) classes: usize,
    pub(super) targets: usize,
    /// The loss sums of the first three SGD steps; they may depend on a function of the C library.
    pub(super) golden: [f64; 3],
}

pub(super) const CASES: [ModelCase; 16] = [
    case(
        "linear",
        r#"{"kind": "linear"}"#,
        &[5, 2, 3],
        4,
        1,
        [9.579_86, 9.435_79, 9.293_44],
    ),
    case(
        "regression",
        r#"{"kind": "linear"}"#,
        &[5, 6],
        0,
        1,
        [4.133_33, 3.363_70, 2.752_54],
    ),
    case(
        "mlp",
        r#"{"kind": "mlp", "hidden": [8, 5]}"#,
        &[5, 6],
        7,
        1,
        [10.501_41, 10.260_79, 10.039_21],
    ),
    case(
        "resnet18",
        r#"{"kind": "resnet18", "small_input": true}"#,
        &[3, 3, 16, 16],
        10,
        1,
        [6.638_36, 6.382_88, 6.138_56],
    ),
    case(
        "resnet18_group",
        r#"{"kind": "resnet18", "normalisation": "group"}"#,
        &[2, 3, 32, 32],
        10,
        1,
        [4.750_73, 4.472_75, 4.216_35],
    ),
    case(
        "resnet50_group",
        r#"{"kind": "resnet50", "small_input": true, "normalisation": "group"}"#,
        &[2, 3, 16, 16],
        10,
        1,
        [5.071_74, 4.108_99, 3.345_05],
    ),
    case(
        "resnet50",
        r#"{"kind": "resnet50", "small_input": true}"#,
        &[3, 3, 16, 16],
        10,
        1,
        [7.755_63, 6.556_35, 5.794_23],
    ),
    case(
        "vgg16",
        r#"{"kind": "vgg16", "small_input": true, "dropout": 0.0}"#,
        &[2, 3, 32, 32],
        10,
        1,
        [4.599_68, 4.566_28, 4.533_45],
    ),
    case(
        "inception_v3",
        r#"{"kind": "inception_v3", "small_input": true, "width_divisor": 16, "dropout": 0.0}"#,
        &[3, 2, 15, 16],
        10,
        1,
        [6.900_44, 6.832_17, 6.802_13],
    ),
    case(
        "gpt",
        r#"{"kind": "gpt", "layers": 2, "width": 16, "heads": 2}"#,
        &[3, 10],
        12,
        10,
        [7.509_65, 7.095_72, 6.874_05],
    ),
    case(
        "gpt_tied",
        r#"{"kind": "gpt", "layers": 2, "width": 16, "heads": 2, "tied": true}"#,
        &[3, 10],
        12,
        10,
        [7.500_61, 7.180_25, 6.953_53],
    ),
    case(
        "bert",
        r#"{"kind": "bert", "layers": 2, "width": 16, "heads": 2}"#,
        &[3, 10],
        12,
        10,
        [7.508_94, 7.095_99, 6.874_10],
    ),
    case(
        "unet",
        r#"{"kind": "unet", "channels": 4, "levels": 2}"#,
        &[3, 2, 8, 12],
        0,
        96,
        [2.534_49, 2.532_35, 2.530_25],
    ),
    case(
        "detector",
        r#"{"kind": "detector", "channels": 4, "levels": 2}"#,
        &[3, 2, 16, 24],
        0,
        120,
        [2.078_32, 2.078_32, 2.078_32],
    ),
    case(
        "transformer",
        r#"{"kind": "transformer", "source": 4, "layers": 2, "width": 16, "heads": 2}"#,
        &[3, 9],
        12,
        5,
        [7.398_59, 7.027_95, 6.804_50],
    ),
    case(
        "transformer_padded",
        r#"{"kind": "transformer", "source": 4, "padding": 0, "layers": 2, "width": 16, "heads": 2}"#,
        &[3, 9],
        12,
        5,
        [7.398_59, 7.027_95, 6.804_50],
    ),
];

const fn case(
    name: &'static str,
    model: &'static str,
    shape: &'static [usize],
    classes: usize,
    targets: usize,
    golden: [f64; 3],
) -> ModelCase {
    ModelCase {
        name,
        model,
        shape,
        classes,
        targets,
        golden,
    }
}
