//! Gradients of each operation against finite differences, by its input and its parameters; and the
//! separate backward passes.

use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;
use ronde_kernels::SlidingWindow;

use crate::testing::{arena, bits, hashed, state, training};
use crate::{
    Activation, ActivationFunction, AfterNorm, Attended, ForwardContext, GraphBuilder, GraphValue,
    Layer, Normalisation, TiedTable,
};

/// The length of a step to both sides of a point.
const STEP: f64 = 2e-3;
/// The number of elements of a tensor that are compared one by one.
const ELEMENTS: usize = 40;

/// Builds a layer for samples of a shape.
fn layer(sample: &[usize], describe: impl FnOnce(&mut GraphBuilder)) -> Box<dyn Layer> {
    let mut builder = GraphBuilder::new("layer", sample);
    describe(&mut builder);
    builder.build(&SeedTree::new(7)).unwrap()
}

/// Compares a gradient with the derivatives of `at`, which is called with changes of the point: along the gradient, and of some
/// elements.
fn compare(what: &str, gradient: &[f32], at: &mut dyn FnMut(&[f32]) -> f64) {
    let square: f64 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum();
    assert!(square > 0.0, "{what} has no gradient");
    let norm = square.sqrt();
    let mut slope = |direction: &[f32], length: f64| {
        let step = STEP / length;
        let mut moved = |by: f64| {
            let direction = direction.iter().map(|d| d * by as f32);
            at(&direction.collect::<Vec<f32>>())
        };
        (moved(step) - moved(-step)) / (2.0 * STEP)
    };
    let found = slope(gradient, norm);
    let error = (found - norm).abs() / norm;
    assert!(error < 0.02, "{what}: {found} for {norm}");
    // A gradient that lacks elements passes along itself, so some elements are compared one by one.
    let count = gradient.len().min(ELEMENTS);
    for number in 0..count {
        let element = number * (gradient.len() - 1) / (count - 1).max(1);
        let mut direction = vec![0.0; gradient.len()];
        direction[element] = 1.0;
        let (found, expected) = (slope(&direction, 1.0), f64::from(gradient[element]));
        let error = (found - expected).abs() / norm;
        assert!(error < 0.01, "{what} at {element}: {found} for {expected}");
    }
}

/// Checks the derivatives of `sum(output * fixed)` along every tensor and the input, and that the
/// backward passes for input and weights have the same bits together and one after the other.
fn check(name: &str, sample: &[usize], describe: impl FnOnce(&mut GraphBuilder)) {
    let mut layer = layer(sample, describe);
    let shape = &[&[3], sample].concat()[..];
    let count = shape.iter().product();
    let (mut values, arena) = state(&*layer);
    for (index, range) in arena.ranges().iter().enumerate() {
        let moved = hashed(100 + index as u64, range.len());
        for (value, by) in values[range.clone()].iter_mut().zip(moved) {
            *value += 0.25 * by;
        }
    }
    let layer_has_buffers = layer.layout().of_role(Role::Buffer).count() > 0;
    let input = hashed(5, count);
    let (context, shard) = (training(0, 0), training(0, 0).shard);
    let mut run = |values: &[f32], input: &[f32]| {
        layer.load(values, arena.ranges());
        let given = || Activation::from_host(shape, input.to_vec());
        let output = layer.forward(given(), &context).unwrap();
        let weights = hashed(6, output.as_slice().len());
        let products = output.as_slice().iter().zip(&weights);
        let sum: f64 = products.map(|(y, w)| f64::from(*y) * f64::from(*w)).sum();
        let gradient = Activation::from_host(output.shape(), weights);
        let (mut both, mut apart) = (vec![0.0; arena.len()], vec![0.0; arena.len()]);
        let back = layer.backward(shard, gradient.clone(), &mut both, arena.ranges(), true);
        let back = back.unwrap().unwrap();
        layer.forward(given(), &context).unwrap();
        let again = layer
            .backward_input(shard, gradient, true)
            .unwrap()
            .unwrap();
        layer
            .backward_weights(shard, &mut apart, arena.ranges())
            .unwrap();
        assert_eq!(bits(back.as_slice()), bits(again.as_slice()), "{name}");
        assert_eq!(bits(&both), bits(&apart), "{name}");
        (sum, both, back.into_host())
    };
    let (_, gradients, input_gradient) = run(&values, &input);
    compare(&format!("{name}: input"), &input_gradient, &mut |by| {
        let moved = input.iter().zip(by).map(|(x, by)| x + by);
        run(&values, &moved.collect::<Vec<f32>>()).0
    });
    for (index, range) in arena.ranges().iter().enumerate() {
        if layer_has_buffers && index > 1 {
            continue;
        }
        let gradient = &gradients[range.clone()];
        compare(&format!("{name}: tensor {index}"), gradient, &mut |by| {
            let mut values = values.clone();
            for (value, by) in values[range.clone()].iter_mut().zip(by) {
                *value += by;
            }
            run(&values, &input).0
        });
    }
}

#[test]
fn slopes_of_functions_without_parameters() {
    for function in [
        ActivationFunction::Gelu,
        ActivationFunction::Silu,
        ActivationFunction::Sigmoid,
        ActivationFunction::Tanh,
    ] {
        check(&format!("{function:?}"), &[7], |b| {
            b.activate(b.input(), function);
        });
    }
    check("relu", &[7], |b| {
        b.relu(b.input());
    });
    check("dropout", &[40], |b| {
        b.dropout(b.input(), 0.3);
    });
    check("max_pool", &[3, 7, 6], |b| {
        b.max_pool(b.input(), SlidingWindow::new(3, 2, 1));
    });
    check("average_pool", &[3, 5, 6], |b| {
        b.average_pool(b.input(), SlidingWindow::new(3, 2, 1));
    });
    check("upsample", &[3, 2, 4], |b| {
        b.upsample(b.input(), 3);
    });
    check("average_to", &[3, 5, 6], |b| {
        b.average_to(b.input(), 2);
    });
    check("twice", &[7], |b| {
        b.add(b.input(), b.input());
    });
    check("parts", &[4, 3], |b| {
        let x = b.input();
        let parts = [
            b.slice(x, 1, 2..3),
            b.slice(x, 1, 0..2),
            b.activate(x, ActivationFunction::Gelu),
        ];
        let y = b.concatenate(&parts, 1);
        b.reshape(y, &[2, 12]);
    });
    for attended in [Attended::All, Attended::Earlier] {
        check("attention", &[5, 18], |b| {
            let x = b.input();
            let (queries, rest) = (b.slice(x, 1, 0..6), b.slice(x, 1, 6..18));
            b.attention(queries, rest, 3, attended);
        });
    }
}

#[test]
fn slopes_of_layers_with_parameters() {
    check("linear", &[4, 5], |b| {
        b.linear("", b.input(), 3, true);
    });
    check("convolution", &[3, 6, 5], |b| {
        b.convolution("", b.input(), 4, SlidingWindow::new(3, 2, 1), true);
    });
    check("wide_convolution", &[3, 6, 5], |b| {
        b.convolution("", b.input(), 4, SlidingWindow::same([1, 5]), true);
    });
    check("tall_convolution", &[3, 6, 5], |b| {
        let window = SlidingWindow {
            side: [4, 2],
            stride: 2,
            padding: [1, 0],
        };
        b.convolution("", b.input(), 4, window, true);
    });
    for groups in [2, 4] {
        check("grouped_convolution", &[4, 6, 5], |b| {
            let window = SlidingWindow::new(3, 1, 1);
            b.grouped_convolution("", b.input(), [4, groups], window, true);
        });
    }
    check("layer_norm", &[3, 6], |b| {
        b.layer_norm("", b.input());
    });
    let kinds = [
        ("batch_norm", Normalisation::Batch, 3),
        ("batch_wide_norm", Normalisation::SynchronisedBatch, 3),
        ("group_norm", Normalisation::Group, 64),
    ];
    for (name, kind, channels) in kinds {
        for after in [AfterNorm::Linear, AfterNorm::Rectified] {
            check(name, &[channels, 2, 3], |b| {
                b.normalise("", kind, b.input(), None, after);
            });
        }
        check(name, &[channels, 2, 3], |b| {
            let x = b.input();
            let added = b.activate(x, ActivationFunction::Gelu);
            b.normalise("", kind, x, Some(added), AfterNorm::Rectified);
        });
    }
}

#[test]
fn a_position_does_not_attend_to_later_ones() {
    let mut layer = layer(&[5, 12], |b| {
        let x = b.input();
        let (queries, rest) = (b.slice(x, 1, 0..4), b.slice(x, 1, 4..12));
        b.attention(queries, rest, 2, Attended::Earlier);
    });
    let mut input = hashed(1, 5 * 12);
    let mut first_three = |input: &[f32]| {
        let given = Activation::from_host(&[1, 5, 12], input.to_vec());
        let output = layer.forward(given, &ForwardContext::evaluate()).unwrap();
        output.as_slice()[..3 * 4].to_vec()
    };
    let before = first_three(&input);
    input[3 * 12..].fill(7.0);
    assert_eq!(first_three(&input), before);
    input[8] = 3.0;
    assert_ne!(first_three(&input), before);
    assert_eq!(arena(&*layer).len(), 0);
}

/// The shape of a sample, a description with a mistake, and a part of the message.
type MistakeCase<'a> = (&'a [usize], &'a dyn Fn(&mut GraphBuilder), &'a str);

fn ignore(_: GraphValue) {}

/// Describes an operation whose output nothing uses.
fn two_ends(b: &mut GraphBuilder) {
    let _unused = b.activate(b.input(), ActivationFunction::Gelu);
    b.relu(b.input());
}

#[test]
fn mistakes_in_a_graph_are_reported_with_the_shapes() {
    let refused = |sample: &[usize], describe: &dyn Fn(&mut GraphBuilder)| {
        let mut builder = GraphBuilder::new("layer", sample);
        describe(&mut builder);
        builder
            .finish()
            .err()
            .map(|error| error.to_string())
            .unwrap()
    };
    let window = |side| SlidingWindow::new(side, 1, 0);
    let cases: [MistakeCase; 10] = [
        (&[4], &|_| (), "it has no operations"),
        (&[4], &|b| ignore(b.max_pool(b.input(), window(2))), "[4]"),
        (
            &[1, 2, 2],
            &|b| ignore(b.convolution("c", b.input(), 3, window(3), false)),
            "2 x 2",
        ),
        (&[6], &|b| ignore(b.reshape(b.input(), &[4])), "[6] to [4]"),
        (&[6], &|b| ignore(b.slice(b.input(), 0, 4..7)), "4..7"),
        (&[6], &|b| ignore(b.dropout(b.input(), 1.0)), "dropout = 1"),
        (
            &[6],
            &|b| ignore(b.linear("up", b.input(), usize::MAX, false)),
            "2^40",
        ),
        (&[6], &two_ends, "operation 1 of 2"),
        (
            &[4, 8],
            &|b| {
                let x = b.input();
                let queries = b.slice(x, 1, 0..4);
                let both = b.concatenate(&[queries, queries], 1);
                ignore(b.attention(queries, both, 2, Attended::First(x)));
            },
            "[4, 8] of the lengths",
        ),
        (
            &[4, 8],
            &|b| ignore(b.tied_scores(b.input(), 5, &TiedTable::default())),
            "5 tokens of width 8",
        ),
    ];
    for (sample, describe, expected) in cases {
        let text = refused(sample, describe);
        assert!(
            text.contains(expected) && text.contains("layer layer"),
            "{text}"
        );
    }
}
