//! A causal transformer in GPT-2's layout, the output layer not tied to the embedding.

use burn::module::Module;
use burn::tensor::Tensor;
use ronde_core::seed::SeedTree;

use super::attention::{Attention, FeedForward, Form};
use super::size::StageSize;
use super::tokens::{Embedding, Scores};
use super::{Stages, cost_per_sample};
use crate::initial::Initial;
use crate::{BurnStage, ForwardContext, training_device};

/// Attention to earlier places, then a layer for each place.
#[derive(Module, Debug)]
struct Block {
    attention: Attention,
    feed_forward: FeedForward,
}

/// Length of the text of samples that are token numbers.
fn places(input_shape: &[usize]) -> Result<usize, String> {
    match *input_shape {
        [places] => Ok(places),
        _ => Err(format!(
            "samples of {input_shape:?}; expected [places], one token number each"
        )),
    }
}

/// What each stage takes: embedding, blocks, head.
pub(super) fn sizes(
    input_shape: &[usize],
    tokens: usize,
    layers: usize,
    form: Form,
) -> Result<Vec<StageSize>, String> {
    form.check(layers)?;
    let places = places(input_shape)?;
    let width = form.width;
    let embedding = StageSize {
        parameters: (tokens + places) as u64 * width as u64,
        kept: places * (1 + 2 * width),
        output: vec![places, width],
    };
    let block = StageSize {
        parameters: form.attention_parameters() + form.feed_forward_parameters(),
        kept: form.attention_kept(places, places) + form.feed_forward_kept(places),
        output: vec![places, width],
    };
    let head = StageSize {
        parameters: tokens as u64 * width as u64 + 2 * width as u64,
        kept: places * (3 * width + tokens),
        output: vec![places, tokens],
    };
    let mut sizes = vec![embedding];
    sizes.extend(std::iter::repeat_n(block, layers));
    sizes.push(head);
    Ok(sizes)
}

/// Stages: `embedding`, `block1`, `block2`, ..., `head`.
pub(super) fn stages(
    input_shape: &[usize],
    tokens: usize,
    layers: usize,
    form: Form,
    seeds: &SeedTree,
) -> Stages {
    let sizes = sizes(input_shape, tokens, layers, form)?;
    let places = places(input_shape)?;
    let device = training_device();
    let dropout = form.dropout;
    let sample = [places, form.width];
    let embedding = Embedding::new(tokens, places, form.width, &device);
    let embed = move |embedding: &Embedding, x: Tensor<2>, context: &ForwardContext| {
        context.dropout(embedding.forward(x), dropout, 0)
    };
    let mut stages: Vec<Box<dyn crate::Stage>> = vec![Box::new(
        BurnStage::new(embedding, embed)
            .named("embedding")
            .with_sample_shape(input_shape)
            .with_initial_weights(seeds, Initial::TRANSFORMER)
            .with_cost(cost_per_sample(&sizes[0].output, sizes[0].kept))
            .without_input_gradient(),
    )];
    for (index, size) in sizes[1..=layers].iter().enumerate() {
        let block = Block {
            attention: Attention::new(form, &device),
            feed_forward: FeedForward::new(form, &device),
        };
        let run = move |block: &Block, x: Tensor<3>, context: &ForwardContext| {
            let x = block.attention.forward(x, None, true);
            block.feed_forward.forward(x, dropout, 0, context)
        };
        stages.push(Box::new(
            BurnStage::new(block, run)
                .named(&format!("block{}", index + 1))
                .with_sample_shape(&sample)
                .with_initial_weights(seeds, Initial::TRANSFORMER)
                .with_cost(cost_per_sample(&size.output, size.kept)),
        ));
    }
    let last = &sizes[layers + 1];
    let scores = Scores::new(form.width, tokens, &device);
    stages.push(Box::new(
        BurnStage::new(scores, |scores: &Scores, x, _: &ForwardContext| {
            scores.forward(x)
        })
        .named("head")
        .with_sample_shape(&sample)
        .with_initial_weights(seeds, Initial::TRANSFORMER)
        .with_cost(cost_per_sample(&last.output, last.kept)),
    ));
    Ok(stages)
}
