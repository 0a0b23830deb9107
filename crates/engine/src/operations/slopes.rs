//! Gradients of each operation against finite differences, by its input and its parameters; and the
//! separate backward passes.

use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;
use ronde_kernels::ActivationFunction;
use ronde_kernels::SlidingWindow;

use crate::activation::Activation;
use crate::chain::Chain;
use crate::context::ForwardContext;
use crate::graph::{Attended, GraphBuilder, GraphValue};
use crate::layer::{Layer, LayerExt};
use crate::models::Normalisation;
use crate::operations::{AfterNorm, SourcePadding, TiedTable};
use crate::testing::{arena, bits, hashed, state, training};

/// The length of a step to both sides of a point.
const STEP: f64 = 2e-3;
/// The number of elements of a tensor that are compared one by one.
const ELEMENTS: usize = 40;
/// The number of tokens of texts, which all occur, and the one that pads them.
const TOKENS: usize = 3;
const PADDING: u32 = 0;

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
    let input = hashed(5, 3 * sample.iter().product::<usize>());
    check_layer(name, sample, &input, layer(sample, describe), true);
}

/// Does the same along the tensors of layers whose input has token numbers. The first layer is called `embedding`.
fn check_texts(name: &str, sample: &[usize], layers: Vec<GraphBuilder>) {
    let seeds = SeedTree::new(7);
    let layers = layers.into_iter().map(|layer| layer.build(&seeds).unwrap());
    let chain = Chain::new(layers.collect()).unwrap();
    let tokens = hashed(5, 3 * sample.iter().product::<usize>()).into_iter();
    let tokens: Vec<f32> = tokens
        .map(|x| ((x * 0.5 + 0.5) * TOKENS as f32).floor())
        .collect();
    check_layer(name, sample, &tokens, Box::new(chain), false);
}

fn check_layer(
    name: &str,
    sample: &[usize],
    input: &[f32],
    mut layer: Box<dyn Layer>,
    has_input_gradient: bool,
) {
    let shape = &[&[3], sample].concat()[..];
    let (mut values, arena) = state(&*layer);
    for (index, range) in arena.ranges().iter().enumerate() {
        let moved = hashed(100 + index as u64, range.len());
        for (value, by) in values[range.clone()].iter_mut().zip(moved) {
            *value += 0.25 * by;
        }
    }
    let layer_has_buffers = layer.layout().of_role(Role::Buffer).count() > 0;
    let (context, shard) = (training(0, 0), training(0, 0).shard);
    let mut run = |values: &[f32], input: &[f32]| {
        layer.load(values, arena.ranges());
        let given = || Activation::from_host(shape, input.to_vec());
        let output = layer.forward_shard(given(), &context).unwrap();
        let weights = hashed(6, output.as_slice().len());
        let products = output.as_slice().iter().zip(&weights);
        let sum: f64 = products.map(|(y, w)| f64::from(*y) * f64::from(*w)).sum();
        let gradient = Activation::from_host(output.shape(), weights);
        let (mut both, mut apart) = (vec![0.0; arena.len()], vec![0.0; arena.len()]);
        let ranges = arena.ranges();
        let back = layer.backward_shard(
            shard,
            gradient.clone(),
            &mut both,
            ranges,
            has_input_gradient,
        );
        let back = back.unwrap().map(Activation::into_host);
        layer.forward_shard(given(), &context).unwrap();
        let again = layer.backward_input(shard, gradient, has_input_gradient);
        let again = again.unwrap().map(Activation::into_host);
        layer.backward_weights(shard, &mut apart, ranges).unwrap();
        let of_option = |values: &Option<Vec<f32>>| values.as_deref().map(bits);
        assert_eq!(of_option(&back), of_option(&again), "{name}");
        assert_eq!(bits(&both), bits(&apart), "{name}");
        (sum, both, back)
    };
    let (_, gradients, input_gradient) = run(&values, input);
    assert_eq!(input_gradient.is_some(), has_input_gradient, "{name}");
    if let Some(gradient) = input_gradient {
        compare(&format!("{name}: input"), &gradient, &mut |by| {
            let moved = input.iter().zip(by).map(|(x, by)| x + by);
            run(&values, &moved.collect::<Vec<f32>>()).0
        });
    }
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
            run(&values, input).0
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
        b.average_to(b.input(), [2, 3]);
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
    check("cross_attention", &[7, 18], |b| {
        let x = b.input();
        let (asking, asked) = (b.slice(x, 0, 0..3), b.slice(x, 0, 3..7));
        let (queries, rest) = (b.slice(asking, 1, 0..6), b.slice(asked, 1, 6..18));
        b.attention(queries, rest, 3, Attended::All);
    });
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
            stride: [2, 1],
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
fn slopes_of_vectors_of_tokens() {
    let embedding = |sample: &[usize], table| {
        let mut layer = GraphBuilder::new("embedding", sample);
        layer.embedding(layer.input(), TOKENS, 6, table);
        layer
    };
    check_texts("embedding", &[5], vec![embedding(&[5], None)]);
    let table = TiedTable::default();
    let first = embedding(&[5], Some(&table));
    let mut head = GraphBuilder::new("head", &[5, 6]);
    head.tied_scores(head.input(), TOKENS, &table);
    check_texts("tied_scores", &[5], vec![first, head]);
}

/// Every position attends to a source of 4 tokens, in which some texts have padding.
#[test]
fn slopes_of_attention_to_padded_sources() {
    for positions in [4, 6] {
        let mut layer = GraphBuilder::new("embedding", &[positions]);
        let words = layer.input();
        let x = layer.embedding(words, TOKENS, 6, None);
        let padding = SourcePadding {
            token: PADDING,
            source: 4,
        };
        let lengths = layer.source_lengths(words, padding, 6);
        let source = layer.slice(x, 0, 0..4);
        let queries = layer.linear("query", x, 6, true);
        let keys_values = layer.linear("key_value", source, 12, true);
        layer.attention(queries, keys_values, 2, Attended::First(lengths));
        check_texts("padded_attention", &[positions], vec![layer]);
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
        let output = layer
            .forward_shard(given, &ForwardContext::evaluate())
            .unwrap();
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
