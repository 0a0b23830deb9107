//! A transformer with encoder and decoder, as a chain: what the decoder needs rides along.
//!
//! A sample is the source text and after it the target text as far as it is known, S and T token
//! numbers. All activations between the stages are `[N, S + T, E]`: encoder stages change the
//! source's places and hand the target's on, decoder stages change the target's and hand the memory
//! on. So encoder and decoder can be cut apart like any chain, and the memory's gradient is summed
//! over the decoder's layers on its way back. Padding is a token like any other.

use burn::module::Module;
use burn::nn::LayerNorm;
use burn::tensor::Tensor;
use ronde_core::seed::SeedTree;

use super::attention::{Attention, FeedForward, Form};
use super::layers::{normalise, row_norm};
use super::size::StageSize;
use super::tokens::{Embedding, Scores};
use super::{Stages, cost_per_sample};
use crate::initial::Initial;
use crate::{BurnStage, ForwardContext, Stage, training_device};

/// Sees all of the source. The last one normalises what it hands to the decoder.
#[derive(Module, Debug)]
struct Encoder {
    attention: Attention,
    feed_forward: FeedForward,
    last_norm: Option<LayerNorm>,
}

/// Sees the target so far, then the source.
#[derive(Module, Debug)]
struct Decoder {
    attention: Attention,
    source_attention: Attention,
    feed_forward: FeedForward,
}

/// Lengths of source and target.
fn lengths(input_shape: &[usize], source: usize) -> Result<[usize; 2], String> {
    match *input_shape {
        [places] if 0 < source && source < places => Ok([source, places - source]),
        _ => Err(format!(
            "samples of {input_shape:?} with source = {source}; expected [source + target], at least 1 each"
        )),
    }
}

/// What each stage takes: embedding, encoders, decoders, head.
pub(super) fn sizes(
    input_shape: &[usize],
    tokens: usize,
    source: usize,
    layers: usize,
    form: Form,
) -> Result<Vec<StageSize>, String> {
    form.check(layers)?;
    let [source, target] = lengths(input_shape, source)?;
    let (places, width) = (source + target, form.width);
    let between = vec![places, width];
    let (attention, feed_forward) = (form.attention_parameters(), form.feed_forward_parameters());
    let mut sizes = vec![StageSize {
        parameters: (tokens + places) as u64 * width as u64,
        kept: places * (1 + 2 * width),
        output: between.clone(),
    }];
    for layer in 1..=layers {
        let norm = if layer == layers { 2 * width } else { 0 };
        sizes.push(StageSize {
            parameters: attention + feed_forward + norm as u64,
            kept: form.attention_kept(source, source)
                + form.feed_forward_kept(source)
                + 2 * places * width,
            output: between.clone(),
        });
    }
    let decoder = StageSize {
        parameters: 2 * attention + feed_forward,
        kept: form.attention_kept(target, target)
            + form.attention_kept(target, source)
            + form.feed_forward_kept(target)
            + 2 * places * width,
        output: between,
    };
    sizes.extend(std::iter::repeat_n(decoder, layers));
    sizes.push(StageSize {
        parameters: tokens as u64 * width as u64 + 2 * width as u64,
        kept: places * width + target * (3 * width + tokens),
        output: vec![target, tokens],
    });
    Ok(sizes)
}

/// Builds one stage after the other.
struct Builder<'a> {
    form: Form,
    source: usize,
    target: usize,
    seeds: &'a SeedTree,
}

impl Builder<'_> {
    fn stage<M: Module + 'static, const O: usize>(
        &self,
        name: &str,
        module: M,
        size: &StageSize,
        forward: impl Fn(&M, Tensor<3>, &ForwardContext) -> Tensor<O> + Send + 'static,
    ) -> Box<dyn Stage> {
        Box::new(
            BurnStage::new(module, forward)
                .named(name)
                .with_sample_shape(&[self.source + self.target, self.form.width])
                .with_initial_weights(self.seeds, Initial::TRANSFORMER)
                .with_cost(cost_per_sample(&size.output, size.kept)),
        )
    }

    fn encoder(&self, name: &str, is_last: bool, size: &StageSize) -> Box<dyn Stage> {
        let device = training_device();
        let module = Encoder {
            attention: Attention::new(self.form, &device),
            feed_forward: FeedForward::new(self.form, &device),
            last_norm: is_last.then(|| row_norm(self.form.width, &device)),
        };
        let (source, target, dropout) = (self.source, self.target, self.form.dropout);
        let forward = move |encoder: &Encoder, x: Tensor<3>, context: &ForwardContext| {
            let known = x.clone().narrow(1, source, target);
            let y = encoder
                .attention
                .forward(x.narrow(1, 0, source), None, false);
            let y = encoder.feed_forward.forward(y, dropout, 0, context);
            let y = match &encoder.last_norm {
                Some(norm) => normalise(norm, y),
                None => y,
            };
            Tensor::cat(vec![y, known], 1)
        };
        self.stage(name, module, size, forward)
    }

    fn decoder(&self, name: &str, size: &StageSize) -> Box<dyn Stage> {
        let device = training_device();
        let module = Decoder {
            attention: Attention::new(self.form, &device),
            source_attention: Attention::new(self.form, &device),
            feed_forward: FeedForward::new(self.form, &device),
        };
        let (source, target, dropout) = (self.source, self.target, self.form.dropout);
        let forward = move |decoder: &Decoder, x: Tensor<3>, context: &ForwardContext| {
            let memory = x.clone().narrow(1, 0, source);
            let y = x.narrow(1, source, target);
            let y = decoder.attention.forward(y, None, true);
            let y = decoder
                .source_attention
                .forward(y, Some(memory.clone()), false);
            let y = decoder.feed_forward.forward(y, dropout, 0, context);
            Tensor::cat(vec![memory, y], 1)
        };
        self.stage(name, module, size, forward)
    }
}

/// Stages: `embedding`, `encoder1`, ..., `decoder1`, ..., `head`.
pub(super) fn stages(
    input_shape: &[usize],
    tokens: usize,
    source: usize,
    layers: usize,
    form: Form,
    seeds: &SeedTree,
) -> Stages {
    let sizes = sizes(input_shape, tokens, source, layers, form)?;
    let [source, target] = lengths(input_shape, source)?;
    let device = training_device();
    let builder = Builder {
        form,
        source,
        target,
        seeds,
    };
    let embedding = Embedding::new(tokens, source + target, form.width, &device);
    let dropout = form.dropout;
    let embed = move |embedding: &Embedding, x: Tensor<2>, context: &ForwardContext| {
        context.dropout(embedding.forward(x), dropout, 0)
    };
    let mut stages: Vec<Box<dyn Stage>> = vec![Box::new(
        BurnStage::new(embedding, embed)
            .named("embedding")
            .with_sample_shape(input_shape)
            .with_initial_weights(seeds, Initial::TRANSFORMER)
            .with_cost(cost_per_sample(&sizes[0].output, sizes[0].kept))
            .without_input_gradient(),
    )];
    for (layer, size) in (1..=layers).zip(&sizes[1..]) {
        let name = format!("encoder{layer}");
        stages.push(builder.encoder(&name, layer == layers, size));
    }
    for (layer, size) in (1..=layers).zip(&sizes[1 + layers..]) {
        let name = format!("decoder{layer}");
        stages.push(builder.decoder(&name, size));
    }
    let last = &sizes[2 * layers + 1];
    let scores = Scores::new(form.width, tokens, &device);
    let head = move |scores: &Scores, x: Tensor<3>, _: &ForwardContext| {
        scores.forward(x.narrow(1, source, target))
    };
    stages.push(builder.stage("head", scores, last, head));
    Ok(stages)
}
