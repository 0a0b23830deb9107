//! A transformer with encoder and decoder, as a chain: the decoder's inputs are carried along in
//! the activation.
//!
//! A sample is the source text followed by the target text up to the predicted token, S and T token
//! numbers. All activations between the layers are `[N, S + T, E]`: encoder layers transform the
//! source positions and pass the target's through, decoder layers transform the target's and pass
//! the memory through. So encoder and decoder can be cut like any chain, and the memory's gradient
//! is summed over the decoder blocks in backward. With padding, activations have an additional
//! position that holds the length of the source. Padding of targets needs no mask, because the loss
//! ignores it and no position attends to later ones.

use super::attention::TransformerShape;
use super::{Layers, refuse};
use crate::{Attended, GraphBuilder, GraphValue, SourcePadding};

/// The source text of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceText {
    /// The number of positions of the source.
    pub(super) source: usize,
    /// The token that pads the source, if there is one.
    pub(super) padding: Option<u32>,
}

/// The parts of an activation between layers.
struct CarriedValues {
    source: GraphValue,
    target: GraphValue,
    length: Option<GraphValue>,
}

impl SourceText {
    /// Takes the activation between two layers apart.
    fn split(self, layer: &mut GraphBuilder) -> CarriedValues {
        let x = layer.input();
        let places = layer.shape(x)[0];
        let end = places - usize::from(self.padding.is_some());
        CarriedValues {
            source: layer.slice(x, 0, 0..self.source),
            target: layer.slice(x, 0, self.source..end),
            length: self.padding.map(|_| layer.slice(x, 0, end..places)),
        }
    }
}

impl CarriedValues {
    fn join(&self, layer: &mut GraphBuilder) {
        let parts = [Some(self.source), Some(self.target), self.length];
        let parts: Vec<GraphValue> = parts.into_iter().flatten().collect();
        layer.concatenate(&parts, 0);
    }

    /// Returns the source positions to attend to: all that are not padding.
    fn attended(&self) -> Attended {
        self.length.map_or(Attended::All, Attended::First)
    }
}

/// Describes the layers: `embedding`, `encoder1`, ..., `decoder1`, ..., `head`.
pub(super) fn layers(
    input_shape: &[usize],
    tokens: usize,
    text: SourceText,
    depth: usize,
    form: TransformerShape,
) -> Layers {
    form.check(depth)?;
    let source = text.source;
    if !matches!(*input_shape, [places] if 0 < source && source < places) {
        return refuse(format!(
            "invalid sample shape {input_shape:?} with source = {source}: expected [source + target], at least 1 each"
        ));
    }
    if text.padding.is_some_and(|token| token as usize >= tokens) {
        return refuse(format!(
            "invalid padding = {:?} with {tokens} tokens: expected a token number",
            text.padding
        ));
    }
    let blocks = [source, input_shape[0] - source];
    let shared = usize::from(text.padding.is_some());
    let mut embedding = TransformerShape::layer("embedding", input_shape);
    let words = embedding.input();
    let x = form.embedding(&mut embedding, tokens, &blocks, &[]);
    let x = embedding.dropout(x, form.dropout);
    if let Some(token) = text.padding {
        let padding = SourcePadding { token, source };
        let length = embedding.source_lengths(words, padding, form.width);
        embedding.concatenate(&[x, length], 0);
    }
    let mut layers = vec![embedding.finish()?];
    let sample = layers[0].output().to_vec();
    for number in 1..=depth {
        let mut layer = form.layer_of_tokens(&format!("encoder{number}"), &sample, &blocks, shared);
        let mut parts = text.split(&mut layer);
        let (x, attended) = (parts.source, parts.attended());
        let x = form.attention(&mut layer, "attention", x, None, attended);
        parts.source = form.feed_forward(&mut layer, x);
        if number == depth {
            parts.source = layer.layer_norm("last_norm", parts.source);
        }
        parts.join(&mut layer);
        layers.push(layer.finish()?);
    }
    for number in 1..=depth {
        let mut layer = form.layer_of_tokens(&format!("decoder{number}"), &sample, &blocks, shared);
        let mut parts = text.split(&mut layer);
        let (x, memory, attended) = (parts.target, Some(parts.source), parts.attended());
        let x = form.attention(&mut layer, "attention", x, None, Attended::Earlier);
        let x = form.attention(&mut layer, "source_attention", x, memory, attended);
        parts.target = form.feed_forward(&mut layer, x);
        parts.join(&mut layer);
        layers.push(layer.finish()?);
    }
    let mut head = form.layer_of_tokens("head", &sample, &blocks, shared);
    let end = input_shape[0];
    let x = head.slice(head.input(), 0, source..end);
    let x = head.layer_norm("norm", x);
    form.scores(&mut head, x, tokens, &[]);
    layers.push(head.finish()?);
    Ok(layers)
}
