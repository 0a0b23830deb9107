//! The operations, by the names of `tests/pytorch/operations.py`.

use ronde_kernels::ActivationFunction;
use ronde_kernels::SlidingWindow;

use super::{ComparedOperation, InputValues, PADDING, SOURCE};
use crate::graph::{Attended, GraphBuilder, GraphValue};
use crate::models::Normalisation;
use crate::operations::{AfterNorm, SourcePadding, TiedTable};

/// The number of tokens of the texts.
const TOKENS: usize = 11;

pub(super) fn cases() -> Vec<ComparedOperation> {
    let groups = [
        elementwise(),
        products(),
        convolutions_in_groups(),
        norms_of_channels(),
        pools(),
        shapes(),
        sequences(),
        texts(),
    ];
    groups.into_iter().flatten().collect()
}

/// Describes a case of one layer of an operation on the layer's input.
macro_rules! case {
    ($name:literal, $shape:expr, $values:ident, $describe:expr) => {
        ComparedOperation {
            name: $name,
            shape: $shape,
            values: InputValues::$values,
            layers: |sample| {
                let mut layer = GraphBuilder::new("layer", sample);
                let describe: fn(&mut GraphBuilder, GraphValue) -> GraphValue = $describe;
                let x = layer.input();
                describe(&mut layer, x);
                vec![layer]
            },
        }
    };
}

fn elementwise() -> Vec<ComparedOperation> {
    vec![
        case!("relu", &[3, 40], Wide, |b, x| b.relu(x)),
        case!("gelu", &[3, 40], Wide, |b, x| {
            b.activate(x, ActivationFunction::Gelu)
        }),
        case!("silu", &[3, 40], Wide, |b, x| {
            b.activate(x, ActivationFunction::Silu)
        }),
        case!("sigmoid", &[3, 40], Wide, |b, x| {
            b.activate(x, ActivationFunction::Sigmoid)
        }),
        case!("tanh", &[3, 40], Wide, |b, x| {
            b.activate(x, ActivationFunction::Tanh)
        }),
        case!("add", &[3, 40], Wide, |b, x| {
            let y = b.activate(x, ActivationFunction::Gelu);
            b.add(x, y)
        }),
    ]
}

fn products() -> Vec<ComparedOperation> {
    vec![
        case!("linear", &[3, 4, 70], Narrow, |b, x| {
            b.linear("", x, 50, true)
        }),
        case!("linear_without_bias", &[5, 33], Narrow, |b, x| {
            b.linear("", x, 7, false)
        }),
        case!("convolution", &[3, 16, 13, 11], Narrow, |b, x| {
            b.convolution("", x, 24, SlidingWindow::new(3, 1, 1), true)
        }),
        case!(
            "convolution_without_bias",
            &[3, 3, 9, 10],
            Narrow,
            |b, x| { b.convolution("", x, 8, SlidingWindow::new(7, 2, 3), false) }
        ),
        case!(
            "convolution_of_a_rectangle",
            &[2, 3, 9, 8],
            Narrow,
            |b, x| {
                let window = SlidingWindow {
                    side: [4, 2],
                    stride: [2, 1],
                    padding: [1, 0],
                };
                b.convolution("", x, 5, window, true)
            }
        ),
        case!("convolution_1x1", &[3, 64, 7, 7], Narrow, |b, x| {
            b.convolution("", x, 48, SlidingWindow::new(1, 1, 0), false)
        }),
        case!(
            "convolution_1x1_with_bias",
            &[3, 6, 5, 7],
            Narrow,
            |b, x| { b.convolution("", x, 10, SlidingWindow::new(1, 1, 0), true) }
        ),
        case!("convolution_1x1_stride_2", &[3, 6, 7, 5], Narrow, |b, x| {
            b.convolution("", x, 10, SlidingWindow::new(1, 2, 0), false)
        }),
        case!("convolution_1x1_padded", &[3, 6, 5, 4], Narrow, |b, x| {
            b.convolution("", x, 10, SlidingWindow::new(1, 1, 1), true)
        }),
    ]
}

fn convolutions_in_groups() -> Vec<ComparedOperation> {
    vec![
        case!("grouped_convolution", &[3, 12, 9, 8], Narrow, |b, x| {
            b.grouped_convolution("", x, [18, 3], SlidingWindow::new(3, 2, 1), true)
        }),
        case!("depthwise_convolution", &[3, 20, 9, 8], Narrow, |b, x| {
            b.grouped_convolution("", x, [20, 20], SlidingWindow::new(3, 2, 1), true)
        }),
        case!(
            "depthwise_convolution_of_two",
            &[2, 6, 7, 7],
            Narrow,
            |b, x| b.grouped_convolution("", x, [12, 6], SlidingWindow::new(5, 1, 2), false)
        ),
    ]
}

/// Adds a normalisation; with `adds`, of the input plus a function of it.
fn normalise(
    b: &mut GraphBuilder,
    kind: Normalisation,
    after: AfterNorm,
    adds: bool,
) -> GraphValue {
    let x = b.input();
    let added = adds.then(|| b.activate(x, ActivationFunction::Gelu));
    b.normalise("norm", kind, x, added, after)
}

fn norms_of_channels() -> Vec<ComparedOperation> {
    use AfterNorm::{Linear, Rectified};
    use Normalisation::{Batch, Group, SynchronisedBatch};
    vec![
        case!("batch_norm", &[4, 5, 3, 4], Narrow, |b, _| {
            normalise(b, Batch, Linear, false)
        }),
        case!("batch_norm_rectified", &[4, 5, 3, 4], Narrow, |b, _| {
            normalise(b, Batch, Rectified, false)
        }),
        case!("batch_norm_added", &[4, 5, 3, 4], Narrow, |b, _| {
            normalise(b, Batch, Rectified, true)
        }),
        case!("batch_wide_norm", &[4, 5, 3, 4], Narrow, |b, _| {
            normalise(b, SynchronisedBatch, Linear, false)
        }),
        case!(
            "batch_wide_norm_rectified",
            &[4, 5, 3, 4],
            Narrow,
            |b, _| { normalise(b, SynchronisedBatch, Rectified, false) }
        ),
        case!("batch_wide_norm_added", &[4, 5, 3, 4], Narrow, |b, _| {
            normalise(b, SynchronisedBatch, Rectified, true)
        }),
        case!("group_norm", &[3, 64, 3, 5], Narrow, |b, _| {
            normalise(b, Group, Linear, false)
        }),
        case!("group_norm_of_3", &[3, 6, 3, 5], Narrow, |b, x| b
            .group_norm("norm", x, 3)),
        case!("group_norm_rectified", &[3, 64, 3, 5], Narrow, |b, _| {
            normalise(b, Group, Rectified, false)
        }),
        case!("group_norm_added", &[3, 64, 3, 5], Narrow, |b, _| {
            normalise(b, Group, Rectified, true)
        }),
    ]
}

fn pools() -> Vec<ComparedOperation> {
    vec![
        case!("max_pool", &[3, 4, 9, 8], Narrow, |b, x| {
            b.max_pool(x, SlidingWindow::new(2, 2, 0))
        }),
        case!("max_pool_padded", &[3, 4, 9, 8], Narrow, |b, x| {
            b.max_pool(x, SlidingWindow::new(3, 2, 1))
        }),
        case!("max_pool_of_rectangles", &[3, 4, 9, 8], Narrow, |b, x| {
            let window = SlidingWindow {
                side: [2, 3],
                stride: [1, 3],
                padding: [1, 0],
            };
            b.max_pool(x, window)
        }),
        case!("average_pool", &[3, 4, 9, 8], Narrow, |b, x| {
            b.average_pool(x, SlidingWindow::new(2, 2, 0))
        }),
        case!("average_pool_padded", &[3, 4, 9, 8], Narrow, |b, x| {
            b.average_pool(x, SlidingWindow::new(3, 2, 1))
        }),
        case!("average_to_1", &[3, 4, 5, 7], Narrow, |b, x| b
            .average_to(x, [1, 1])),
        case!("average_to_3", &[3, 4, 5, 7], Narrow, |b, x| b
            .average_to(x, [3, 3])),
        case!("average_to_2_rows", &[3, 4, 5, 7], Narrow, |b, x| b
            .average_to(x, [2, 3])),
        case!("average_to_more", &[3, 4, 2, 3], Narrow, |b, x| b
            .average_to(x, [4, 4])),
        case!("upsample", &[3, 4, 3, 5], Narrow, |b, x| b.upsample(x, 3)),
    ]
}

fn shapes() -> Vec<ComparedOperation> {
    vec![
        case!("concatenate_channels", &[3, 4, 3, 5], Narrow, |b, x| {
            let some = b.slice(x, 0, 1..3);
            let y = b.activate(x, ActivationFunction::Gelu);
            b.concatenate(&[some, y, x], 0)
        }),
        case!("concatenate_columns", &[3, 4, 6], Narrow, |b, x| {
            let [last, first] = [4..6, 0..3].map(|part| b.slice(x, 1, part));
            let y = b.activate(x, ActivationFunction::Gelu);
            b.concatenate(&[last, first, y], 1)
        }),
    ]
}

/// Adds the attention of positions to themselves: queries of 16 columns, keys and values of the rest.
fn attend(b: &mut GraphBuilder, attended: Attended) -> GraphValue {
    let x = b.input();
    let (queries, rest) = (b.slice(x, 1, 0..16), b.slice(x, 1, 16..48));
    b.attention(queries, rest, 2, attended)
}

fn sequences() -> Vec<ComparedOperation> {
    vec![
        case!("layer_norm", &[3, 4, 37], Narrow, |b, x| b
            .layer_norm("", x)),
        case!("attention", &[3, 70, 48], Narrow, |b, _| {
            attend(b, Attended::All)
        }),
        case!("causal_attention", &[3, 70, 48], Narrow, |b, _| {
            attend(b, Attended::Earlier)
        }),
        case!("cross_attention", &[3, 12, 72], Narrow, |b, x| {
            let (asking, asked) = (b.slice(x, 0, 0..5), b.slice(x, 0, 5..12));
            let (queries, rest) = (b.slice(asking, 1, 0..24), b.slice(asked, 1, 24..72));
            b.attention(queries, rest, 3, Attended::All)
        }),
    ]
}

/// Describes embedded texts whose positions attend to their source without its padding.
fn padded(sample: &[usize]) -> Vec<GraphBuilder> {
    let mut layer = GraphBuilder::new("embedding", sample);
    let words = layer.input();
    let padding = SourcePadding {
        token: PADDING,
        source: SOURCE,
    };
    let x = layer.embedding(words, TOKENS, 8, None);
    let lengths = layer.source_lengths(words, padding, 8);
    let source = layer.slice(x, 0, 0..SOURCE);
    let queries = layer.linear("query", x, 8, true);
    let keys_values = layer.linear("key_value", source, 16, true);
    layer.attention(queries, keys_values, 2, Attended::First(lengths));
    vec![layer]
}

/// Describes an embedding, and scores by its vectors.
fn tied(sample: &[usize]) -> Vec<GraphBuilder> {
    let table = TiedTable::default();
    let mut embedding = GraphBuilder::new("embedding", sample);
    embedding.embedding(embedding.input(), TOKENS, 6, Some(&table));
    let mut head = GraphBuilder::new("head", &[sample[0], 6]);
    head.tied_scores(head.input(), TOKENS, &table);
    vec![embedding, head]
}

fn texts() -> Vec<ComparedOperation> {
    let case = |name, shape, values, layers| ComparedOperation {
        name,
        shape,
        values,
        layers,
    };
    let embedding = |sample: &[usize]| {
        let mut layer = GraphBuilder::new("embedding", sample);
        layer.embedding(layer.input(), TOKENS, 6, None);
        vec![layer]
    };
    vec![
        case("embedding", &[4, 7], InputValues::Tokens, embedding),
        case("tied_embedding", &[4, 7], InputValues::Tokens, tied),
        case(
            "padded_attention",
            &[4, 5],
            InputValues::PaddedTokens,
            padded,
        ),
        case(
            "padded_cross_attention",
            &[4, 9],
            InputValues::PaddedTokens,
            padded,
        ),
    ]
}
