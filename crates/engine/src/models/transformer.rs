//! A transformer with encoder and decoder, as a chain: the decoder's inputs are carried along in
//! the activation.
//!
//! A sample is the source text followed by the target text up to the predicted token, S and T token
//! numbers. All activations between the layers are `[N, S + T, E]`: encoder layers transform the
//! source positions and pass the target's through, decoder layers transform the target's and pass
//! the memory through. So encoder and decoder can be cut like any chain, and the memory's gradient
//! is summed over the decoder blocks in backward. With padding, activations have an additional
//! position that holds the length of the source: see [`Padding`]. Padding of targets needs no mask,
//! because the loss ignores it and no position attends to later ones.

use burn::module::Module;
use burn::nn::LayerNorm;
use burn::tensor::Tensor;
use ronde_core::seed::SeedTree;

use super::attention::{FeedForward, MultiHeadAttention, TransformerShape};
use super::embedding::{Embedding, EmbeddingShape, Padding};
use super::layer_size::LayerSize;
use super::modules::{normalise, row_norm};
use super::tokens::Scores;
use super::{Layers, cost_per_sample};
use crate::initial::Initial;
use crate::ops::AttentionMask;
use crate::{Activation, BurnLayer, ForwardContext, Layer, training_device};

/// Attends to the whole source. The last block also normalises its output for the decoder.
#[derive(Module, Debug)]
struct EncoderModule {
    attention: MultiHeadAttention,
    feed_forward: FeedForward,
    last_norm: Option<LayerNorm>,
}

/// Attends to earlier positions of the target, then to the source.
#[derive(Module, Debug)]
struct DecoderModule {
    attention: MultiHeadAttention,
    source_attention: MultiHeadAttention,
    feed_forward: FeedForward,
}

/// The source text of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceText {
    /// The number of positions of the source.
    pub(super) source: usize,
    /// The token that pads the source, if there is one.
    pub(super) padding: Option<u32>,
}

/// The numbers of positions of a sample.
#[derive(Debug, Clone, Copy)]
struct SequenceLengths {
    source: usize,
    target: usize,
    padding: Option<Padding>,
}

impl SourceText {
    fn places(&self, input_shape: &[usize]) -> Result<SequenceLengths, String> {
        let Self { source, padding } = *self;
        match *input_shape {
            [places] if 0 < source && source < places => Ok(SequenceLengths {
                source,
                target: places - source,
                padding: padding.map(|token| Padding { token, source }),
            }),
            _ => Err(format!(
                "invalid sample shape {input_shape:?} with source = {source}: expected [source + target], at least 1 each"
            )),
        }
    }
}

impl SequenceLengths {
    /// Returns the number of positions between layers, including the one for the length.
    fn between(&self) -> usize {
        self.source + self.target + usize::from(self.padding.is_some())
    }

    /// Returns the source positions of an activation.
    fn source_of(&self, x: &Tensor<3>) -> Tensor<3> {
        x.clone().narrow(1, 0, self.source)
    }

    /// Returns the target positions of an activation.
    fn target_of(&self, x: &Tensor<3>) -> Tensor<3> {
        x.clone().narrow(1, self.source, self.target)
    }

    /// Returns the mask of all source positions that are not padding.
    fn seen(&self, x: &Tensor<3>) -> AttentionMask {
        let [samples, places, _] = x.dims();
        let lengths = self.padding.map(|_| {
            let carried = x.clone().narrow(1, places - 1, 1).narrow(2, 0, 2);
            let carried = Activation::from_tensor(carried);
            let each = carried.as_slice().chunks_exact(2).take(samples);
            each.map(Padding::read).collect()
        });
        AttentionMask {
            causal: false,
            lengths: lengths.unwrap_or_default(),
        }
    }
}

/// Returns the size of each layer: embedding, encoders, decoders, head.
pub(super) fn sizes(
    input_shape: &[usize],
    tokens: usize,
    text: SourceText,
    depth: usize,
    form: TransformerShape,
) -> Result<Vec<LayerSize>, String> {
    form.check(depth)?;
    let all = text.places(input_shape)?;
    let (source, target, width) = (all.source, all.target, form.width);
    if let Some(padding) = all.padding {
        padding.check(tokens, width)?;
    }
    let places = source + target;
    let between = vec![all.between(), width];
    let (attention, feed_forward) = (form.attention_parameters(), form.feed_forward_parameters());
    let mut sizes = vec![LayerSize {
        parameters: (tokens + places) as u64 * width as u64,
        kept: places * (1 + 2 * width),
        output: between.clone(),
    }];
    for number in 1..=depth {
        let norm = if number == depth { 2 * width } else { 0 };
        sizes.push(LayerSize {
            parameters: attention + feed_forward + norm as u64,
            kept: form.attention_kept(source, source)
                + form.feed_forward_kept(source)
                + 2 * places * width,
            output: between.clone(),
        });
    }
    let decoder = LayerSize {
        parameters: 2 * attention + feed_forward,
        kept: form.attention_kept(target, target)
            + form.attention_kept(target, source)
            + form.feed_forward_kept(target)
            + 2 * places * width,
        output: between,
    };
    sizes.extend(std::iter::repeat_n(decoder, depth));
    sizes.push(LayerSize {
        parameters: tokens as u64 * width as u64 + 2 * width as u64,
        kept: places * width + target * (3 * width + tokens),
        output: vec![target, tokens],
    });
    Ok(sizes)
}

/// Builds the layers one after the other.
struct TransformerBuilder<'a> {
    form: TransformerShape,
    places: SequenceLengths,
    seeds: &'a SeedTree,
}

impl TransformerBuilder<'_> {
    fn layer<M: Module + 'static, const O: usize>(
        &self,
        name: &str,
        module: M,
        size: &LayerSize,
        forward: impl Fn(&M, Tensor<3>, &ForwardContext) -> Tensor<O> + Send + 'static,
    ) -> Box<dyn Layer> {
        Box::new(
            BurnLayer::new(module, forward)
                .named(name)
                .with_sample_shape(&[self.places.between(), self.form.width])
                .with_initial_weights(self.seeds, Initial::TRANSFORMER)
                .with_cost(cost_per_sample(&size.output, size.kept)),
        )
    }

    fn encoder(&self, name: &str, is_last: bool, size: &LayerSize) -> Box<dyn Layer> {
        let device = training_device();
        let module = EncoderModule {
            attention: MultiHeadAttention::new(self.form, &device),
            feed_forward: FeedForward::new(self.form, &device),
            last_norm: is_last.then(|| row_norm(self.form.width, &device)),
        };
        let (places, dropout) = (self.places, self.form.dropout);
        let forward = move |encoder: &EncoderModule, x: Tensor<3>, context: &ForwardContext| {
            let y = places.source_of(&x);
            let y = encoder.attention.forward(y, None, places.seen(&x));
            let y = encoder.feed_forward.forward(y, dropout, 0, context);
            let y = match &encoder.last_norm {
                Some(norm) => normalise(norm, y),
                None => y,
            };
            let others = places.between() - places.source;
            let others = x.narrow(1, places.source, others);
            Tensor::cat(vec![y, others], 1)
        };
        self.layer(name, module, size, forward)
    }

    fn decoder(&self, name: &str, size: &LayerSize) -> Box<dyn Layer> {
        let device = training_device();
        let module = DecoderModule {
            attention: MultiHeadAttention::new(self.form, &device),
            source_attention: MultiHeadAttention::new(self.form, &device),
            feed_forward: FeedForward::new(self.form, &device),
        };
        let (places, dropout) = (self.places, self.form.dropout);
        let forward = move |decoder: &DecoderModule, x: Tensor<3>, context: &ForwardContext| {
            let (memory, y) = (places.source_of(&x), places.target_of(&x));
            let y = decoder.attention.forward(y, None, AttentionMask::of(true));
            let seen = places.seen(&x);
            let y = decoder
                .source_attention
                .forward(y, Some(memory.clone()), seen);
            let y = decoder.feed_forward.forward(y, dropout, 0, context);
            let mut parts = vec![memory, y];
            if places.padding.is_some() {
                parts.push(x.narrow(1, places.between() - 1, 1));
            }
            Tensor::cat(parts, 1)
        };
        self.layer(name, module, size, forward)
    }
}

/// Builds the layers: `embedding`, `encoder1`, ..., `decoder1`, ..., `head`.
pub(super) fn layers(
    input_shape: &[usize],
    tokens: usize,
    text: SourceText,
    depth: usize,
    form: TransformerShape,
    seeds: &SeedTree,
) -> Layers {
    let sizes = sizes(input_shape, tokens, text, depth, form)?;
    let places = text.places(input_shape)?;
    let builder = TransformerBuilder {
        form,
        places,
        seeds,
    };
    let embedded = EmbeddingShape {
        tokens,
        places: places.source + places.target,
        width: form.width,
        dropout: form.dropout,
        padding: places.padding,
    };
    let embedding = Embedding::new(embedded, false, &sizes[0], seeds);
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(embedding)];
    for (number, size) in (1..=depth).zip(&sizes[1..]) {
        let name = format!("encoder{number}");
        layers.push(builder.encoder(&name, number == depth, size));
    }
    for (number, size) in (1..=depth).zip(&sizes[1 + depth..]) {
        let name = format!("decoder{number}");
        layers.push(builder.decoder(&name, size));
    }
    let last = &sizes[2 * depth + 1];
    let scores = Scores::new(form.width, tokens, &training_device());
    let head = move |scores: &Scores, x: Tensor<3>, _: &ForwardContext| {
        scores.forward(places.target_of(&x))
    };
    layers.push(builder.layer("head", scores, last, head));
    Ok(layers)
}
