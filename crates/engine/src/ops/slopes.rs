//! Gradients of each operation against finite differences, by its input and its parameters.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::Tensor;

use super::*;
use crate::testing::{arena, hashed, state, training};
use crate::{Activation, BurnLayer, ForwardContext, Layer, training_device};

/// Checks the derivatives of `sum(output * fixed)` along every tensor and the input.
fn check(name: &str, mut layer: impl Layer, shape: &[usize]) {
    let count = shape.iter().product();
    let (mut values, arena) = state(&layer);
    for (index, range) in arena.ranges().iter().enumerate() {
        let moved = hashed(100 + index as u64, range.len());
        for (value, by) in values[range.clone()].iter_mut().zip(moved) {
            *value += 0.25 * by;
        }
    }
    let input = hashed(5, count);
    let mut run = |values: &[f32], input: &[f32]| {
        layer.load(values, arena.ranges());
        let given = Activation::from_host(shape, input.to_vec());
        let output = layer.forward(given, &training(0, 0)).unwrap();
        let weights = hashed(6, output.as_slice().len());
        let products = output.as_slice().iter().zip(&weights);
        let sum: f64 = products.map(|(y, w)| f64::from(*y) * f64::from(*w)).sum();
        let mut gradients = vec![0.0; arena.len()];
        let gradient = Activation::from_host(output.shape(), weights);
        let back = layer.backward(
            training(0, 0).shard,
            gradient,
            &mut gradients,
            arena.ranges(),
            true,
        );
        (sum, gradients, back.unwrap().unwrap().into_host())
    };
    let (_, gradients, input_gradient) = run(&values, &input);
    let compare = |what: &str, gradient: &[f32], at: &mut dyn FnMut(f32) -> f64| {
        let square: f64 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum();
        assert!(square > 0.0, "{name}: {what} has no gradient");
        let step = 2e-3 / square.sqrt();
        let slope = (at(step as f32) - at(-step as f32)) / (2.0 * step);
        let error = (slope - square).abs() / square;
        assert!(error < 0.02, "{name}: {what}: {slope} for {square}");
    };
    compare("input", &input_gradient, &mut |by| {
        let moved = input.iter().zip(&input_gradient).map(|(x, g)| x + by * g);
        run(&values, &moved.collect::<Vec<f32>>()).0
    });
    for (index, range) in arena.ranges().iter().enumerate() {
        compare(
            &format!("tensor {index}"),
            &gradients[range.clone()],
            &mut |by| {
                let mut values = values.clone();
                for at in range.clone() {
                    values[at] += by * gradients[at];
                }
                run(&values, &input).0
            },
        );
    }
}

fn bare<const I: usize, const O: usize>(
    forward: impl Fn(Tensor<I>) -> Tensor<O> + Send,
) -> impl Layer {
    let run = move |_: &Vec<LayerNorm>, x, _: &ForwardContext| forward(x);
    BurnLayer::new(Vec::<LayerNorm>::new(), run)
}

#[derive(Module, Debug)]
struct Scale {
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
}

#[test]
fn slopes_of_functions_without_parameters() {
    check("gelu", bare(gelu::<2>), &[4, 7]);
    check("relu", bare(relu::<2>), &[4, 7]);
    let pool = |x| max_pool(x, SlidingWindow::new(3, 2, 1));
    check("max_pool", bare(pool), &[2, 3, 7, 6]);
    check("average_to", bare(|x| average_to(x, 2)), &[2, 3, 4, 6]);
    for causal in [false, true] {
        // Queries, keys and values are thirds of the input.
        let split = move |x: Tensor<3>| {
            let third = |n: usize| x.clone().narrow(2, 6 * n, 6);
            attention(third(0), third(1), third(2), 3, causal)
        };
        check("attention", bare(split), &[2, 5, 18]);
    }
}

#[test]
fn slopes_of_normalisations() {
    let device = training_device();
    let norm = LayerNormConfig::new(6).init(&device);
    let rows = BurnLayer::new(
        norm,
        |norm: &LayerNorm, x: Tensor<3>, _: &ForwardContext| {
            let beta = norm.beta.as_ref().unwrap().val();
            layer_norm(x, norm.gamma.val(), beta, 1e-5)
        },
    );
    check("layer_norm", rows, &[2, 3, 6]);
    let scale = Scale {
        gamma: Param::from_tensor(Tensor::ones([6], &device)),
        beta: Param::from_tensor(Tensor::zeros([6], &device)),
    };
    let groups = BurnLayer::new(scale, |scale: &Scale, x: Tensor<4>, _: &ForwardContext| {
        group_norm(x, scale.gamma.val(), scale.beta.val(), 3, 1e-5)
    });
    check("group_norm", groups, &[2, 6, 3, 2]);
}

#[test]
fn a_position_does_not_attend_to_later_ones() {
    let mut layer = bare(|x: Tensor<3>| attention(x.clone(), x.clone(), x, 2, true));
    let mut input = hashed(1, 5 * 8);
    let mut first_three = |input: &[f32]| {
        let given = Activation::from_host(&[1, 5, 8], input.to_vec());
        let output = layer.forward(given, &ForwardContext::evaluate()).unwrap();
        output.as_slice()[..3 * 8].to_vec()
    };
    let before = first_three(&input);
    input[3 * 8..].fill(7.0);
    assert_eq!(first_three(&input), before);
    input[0] = 3.0;
    assert_ne!(first_three(&input), before);
    assert_eq!(arena(&layer).len(), 0);
}
