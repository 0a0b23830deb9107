//! Operations against the engine's own: values and gradients.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, LayerNormConfig, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{self, relu, softmax};
use burn::tensor::{Tensor, TensorData};

use super::*;
use crate::testing::uniform;
use crate::training_device;

fn leaf<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let data = TensorData::new(uniform(shape.iter().product(), seed), shape);
    Tensor::from_data(data, &training_device()).require_grad()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

/// Returns the output, and the gradients of the input and of a weight for a fixed gradient of the
/// output.
fn outcome<const I: usize, const O: usize, const W: usize>(
    x: &Tensor<I>,
    weight: &Tensor<W>,
    y: Tensor<O>,
) -> [Vec<f32>; 3] {
    let dy = Tensor::from_data(
        TensorData::new(uniform(y.dims().iter().product(), 9), y.dims()),
        &training_device(),
    );
    let mut found = (y.clone() * dy).sum().backward();
    let dx = x.grad_remove(&mut found).unwrap();
    let dw = weight.grad_remove(&mut found).unwrap();
    [values(y), values(dx), values(dw)]
}

#[track_caller]
fn near(got: &[Vec<f32>; 3], expected: &[Vec<f32>; 3], what: &str) {
    for (part, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{what}, part {part}");
        for (got, expected) in got.iter().zip(expected) {
            let near = (got - expected).abs() <= 2e-4 * (1.0 + expected.abs());
            assert!(near, "{what}, part {part}: {got} for {expected}");
        }
    }
}

fn convolution(stride: usize, padding: PaddingConfig2d, groups: usize) -> Conv2d {
    Conv2dConfig::new([4, 6], [3, 3])
        .with_stride([stride; 2])
        .with_padding(padding)
        .with_groups(groups)
        .init(&training_device())
}

#[test]
fn convolutions_equal_the_engines_up_to_rounding() {
    let cases = [
        (1, PaddingConfig2d::Explicit(1, 1, 1, 1), 1),
        (2, PaddingConfig2d::Explicit(1, 0, 1, 0), 1),
        (1, PaddingConfig2d::Valid, 1),
        (1, PaddingConfig2d::Same, 1),
        (1, PaddingConfig2d::Valid, 2),
    ];
    for (stride, padding, groups) in cases {
        let what = format!("stride {stride}, {padding:?}, {groups} groups");
        let layer = convolution(stride, padding, groups);
        let x = leaf([3, 4, 9, 8], 1);
        let expected = outcome(&x, &layer.weight.val(), layer.forward(x.clone()));
        let got = outcome(&x, &layer.weight.val(), conv2d(&layer, x.clone()));
        near(&got, &expected, &what);
        let plain = conv2d(&layer.valid(), x.inner());
        assert_eq!(values(plain), got[0], "{what}: evaluation");
    }
}

#[test]
fn linear_modules_equal_the_engines_up_to_rounding() {
    for bias in [false, true] {
        let layer = LinearConfig::new(5, 7)
            .with_bias(bias)
            .init(&training_device());
        let x = leaf([2, 3, 5], 1);
        let expected = outcome(&x, &layer.weight.val(), layer.forward(x.clone()));
        near(
            &outcome(&x, &layer.weight.val(), linear(&layer, x.clone())),
            &expected,
            "linear",
        );
    }
    let layer = LinearConfig::new(5, 7).init(&training_device());
    let bias = layer.bias.as_ref().unwrap().val();
    let x = leaf([4, 5], 1);
    let expected = outcome(&x, &bias, layer.forward(x.clone()));
    near(
        &outcome(&x, &bias, linear(&layer, x.clone())),
        &expected,
        "bias",
    );
    // A transposed view is a valid input.
    let turned = leaf([5, 4], 1).transpose();
    let expected = values(layer.forward(turned.clone()));
    let got = values(linear(&layer, turned));
    assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
}

/// The separate operations that the fused one replaces.
fn apart(layer: &BatchNorm, x: Tensor<4>, added: Option<Tensor<4>>, after: AfterNorm) -> Tensor<4> {
    let y = layer.forward(x);
    let y = match added {
        Some(added) => y + added,
        None => y,
    };
    match after {
        AfterNorm::Linear => y,
        AfterNorm::Rectified => relu(y),
    }
}

#[test]
fn normalisation_equals_the_engines_up_to_rounding() {
    let added = leaf([3, 4, 5, 6], 2);
    for after in [AfterNorm::Linear, AfterNorm::Rectified] {
        for added in [None, Some(added.clone())] {
            let layers = [(); 2].map(|()| BatchNormConfig::new(4).init(&training_device()));
            let x = leaf([3, 4, 5, 6], 1);
            let of = |layer: &BatchNorm, y| outcome(&x, &layer.gamma.val(), y);
            let y = apart(&layers[0], x.clone(), added.clone(), after);
            let expected = of(&layers[0], y);
            let y = batch_norm(&layers[1], x.clone(), added.clone(), after);
            near(&of(&layers[1], y), &expected, "batch_norm");
            if let Some(added) = &added {
                let y = apart(&layers[0], x.clone(), Some(added.clone()), after);
                let expected = outcome(added, &layers[0].beta.val(), y);
                let y = batch_norm(&layers[1], x.clone(), Some(added.clone()), after);
                near(
                    &outcome(added, &layers[1].beta.val(), y),
                    &expected,
                    "added",
                );
            }
            let [plain, fused] = layers.map(|layer| layer.valid());
            let evaluated = apart(&plain, x.clone().inner(), None, after);
            let got = values(batch_norm(&fused, x.inner(), None, after));
            let expected = values(evaluated);
            assert!(
                got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4),
                "running statistics"
            );
        }
    }
}

#[test]
fn token_operations_equal_the_engines_up_to_rounding() {
    let layer = LayerNormConfig::new(6).init(&training_device());
    let x = leaf([2, 3, 6], 1);
    let beta = layer.beta.as_ref().unwrap().val();
    let of = |y| outcome(&x, &layer.gamma.val(), y);
    let expected = of(layer.forward(x.clone()));
    let got = of(layer_norm(x.clone(), layer.gamma.val(), beta, 1e-5));
    near(&got, &expected, "layer_norm");
    let of = |y| outcome(&x, &layer.gamma.val(), y);
    let scale = |y: Tensor<3>| y * layer.gamma.val().reshape([1, 1, 6]);
    let expected = of(scale(activation::gelu(x.clone())));
    near(&of(scale(gelu(x.clone()))), &expected, "gelu");
}

#[test]
fn attention_equals_the_engines_operations_up_to_rounding() {
    const HEADS: usize = 2;
    let (q, k, v) = (leaf([3, 4, 6], 1), leaf([3, 4, 6], 2), leaf([3, 4, 6], 3));
    let split = |x: &Tensor<3>| x.clone().reshape([3, 4, HEADS, 3]).swap_dims(1, 2);
    let mask = Tensor::<2>::ones([4, 4], &training_device()).triu(1) * -1e9;
    for causal in [false, true] {
        // A graph can run backward only once.
        let expected = || {
            let scores = split(&q).matmul(split(&k).transpose()) / 3.0_f32.sqrt();
            let scores = if causal {
                scores + mask.clone().reshape([1, 1, 4, 4])
            } else {
                scores
            };
            softmax(scores, 3)
                .matmul(split(&v))
                .swap_dims(1, 2)
                .reshape([3, 4, 6])
        };
        let got = || attention(q.clone(), k.clone(), v.clone(), HEADS, causal);
        near(
            &outcome(&q, &k, got()),
            &outcome(&q, &k, expected()),
            "queries and keys",
        );
        near(
            &outcome(&q, &v, got()),
            &outcome(&q, &v, expected()),
            "values",
        );
    }
}
