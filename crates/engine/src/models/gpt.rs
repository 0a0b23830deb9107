//! A causal transformer in GPT-2's layout.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use ronde_core::seed::SeedTree;

use super::attention::{FeedForward, MultiHeadAttention, TransformerShape};
use super::embedding::{Embedding, EmbeddingShape};
use super::embedding_table::EmbeddingTable;
use super::layer_size::LayerSize;
use super::tokens::{Scores, TiedHead};
use super::{Layers, cost_per_sample};
use crate::initial::Initial;
use crate::ops::AttentionMask;
use crate::{BurnLayer, ForwardContext, Layer, training_device};

/// Attention to earlier positions, then a feed-forward part.
#[derive(Module, Debug)]
struct GptBlock {
    attention: MultiHeadAttention,
    feed_forward: FeedForward,
}

/// Returns the length of the text in samples of token numbers.
fn places(input_shape: &[usize]) -> Result<usize, String> {
    match *input_shape {
        [places] => Ok(places),
        _ => Err(format!(
            "invalid sample shape {input_shape:?}: expected [positions], one token number each"
        )),
    }
}

/// Returns the size of each layer: embedding, blocks, head.
pub(super) fn sizes(
    input_shape: &[usize],
    tokens: usize,
    depth: usize,
    form: TransformerShape,
    is_tied: bool,
) -> Result<Vec<LayerSize>, String> {
    form.check(depth)?;
    let places = places(input_shape)?;
    let width = form.width;
    let embedding = LayerSize {
        parameters: (tokens + places) as u64 * width as u64,
        kept: places * (1 + 2 * width),
        output: vec![places, width],
    };
    let block = LayerSize {
        parameters: form.attention_parameters() + form.feed_forward_parameters(),
        kept: form.attention_kept(places, places) + form.feed_forward_kept(places),
        output: vec![places, width],
    };
    let own = if is_tied { 0 } else { tokens };
    let head = LayerSize {
        parameters: own as u64 * width as u64 + 2 * width as u64,
        kept: places * (3 * width + tokens),
        output: vec![places, tokens],
    };
    let mut sizes = vec![embedding];
    sizes.extend(std::iter::repeat_n(block, depth));
    sizes.push(head);
    Ok(sizes)
}

/// The scores of the next token, computed with a separate matrix or with the vectors of the
/// embedding.
fn head(
    sample: &[usize],
    tokens: usize,
    table: Option<Arc<EmbeddingTable>>,
    size: &LayerSize,
    seeds: &SeedTree,
) -> Box<dyn Layer> {
    let (device, width) = (training_device(), sample[1]);
    let cost = cost_per_sample(&size.output, size.kept);
    let Some(table) = table else {
        let scores = Scores::new(width, tokens, &device);
        let run = |scores: &Scores, x: Tensor<3>, _: &ForwardContext| scores.forward(x);
        let layer = BurnLayer::new(scores, run)
            .named("head")
            .with_sample_shape(sample)
            .with_initial_weights(seeds, Initial::TRANSFORMER);
        return Box::new(layer.with_cost(cost));
    };
    let run = move |norm: &TiedHead, x: Tensor<3>, context: &ForwardContext| {
        table.scores(norm.forward(x), context.shard)
    };
    let layer = BurnLayer::new(TiedHead::new(width, &device), run)
        .named("head")
        .with_sample_shape(sample);
    Box::new(layer.with_cost(cost))
}

/// Builds the layers: `embedding`, `block1`, `block2`, ..., `head`. In a tied model the first and
/// the last one share the vectors of the tokens.
pub(super) fn layers(
    input_shape: &[usize],
    tokens: usize,
    depth: usize,
    form: TransformerShape,
    is_tied: bool,
    seeds: &SeedTree,
) -> Layers {
    let sizes = sizes(input_shape, tokens, depth, form, is_tied)?;
    let places = places(input_shape)?;
    let device = training_device();
    let dropout = form.dropout;
    let sample = [places, form.width];
    let embedded = EmbeddingShape {
        tokens,
        places,
        width: form.width,
        dropout,
        padding: None,
    };
    let embedding = Embedding::new(embedded, is_tied, &sizes[0], seeds);
    let table = is_tied.then(|| embedding.table());
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(embedding)];
    for (index, size) in sizes[1..=depth].iter().enumerate() {
        let block = GptBlock {
            attention: MultiHeadAttention::new(form, &device),
            feed_forward: FeedForward::new(form, &device),
        };
        let run = move |block: &GptBlock, x: Tensor<3>, context: &ForwardContext| {
            let x = block.attention.forward(x, None, AttentionMask::of(true));
            block.feed_forward.forward(x, dropout, 0, context)
        };
        layers.push(Box::new(
            BurnLayer::new(block, run)
                .named(&format!("block{}", index + 1))
                .with_sample_shape(&sample)
                .with_initial_weights(seeds, Initial::TRANSFORMER)
                .with_cost(cost_per_sample(&size.output, size.kept)),
        ));
    }
    layers.push(head(&sample, tokens, table, &sizes[depth + 1], seeds));
    Ok(layers)
}
