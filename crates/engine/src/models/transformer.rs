//! A transformer with encoder and decoder, as a chain: see [`carried`] for the values between layers.
//!
//! A sample is the source text followed by the target text up to the predicted token, S and T token
//! numbers. Padding of targets needs no mask, because the loss ignores it and no position attends to later ones.

mod carried;

pub(super) use self::carried::SourceText;
use super::attention::TransformerShape;
use super::{Layers, refuse};
use crate::graph::Attended;
use crate::operations::SourcePadding;

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
