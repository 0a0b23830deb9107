//! A causal transformer in GPT-2's layout.

use super::attention::TransformerShape;
use super::{Layers, refuse};
use crate::{Attended, TiedTable};

/// Describes the layers: `embedding`, `block1`, `block2`, ..., `head`. In a tied model the first and
/// the last one share the vectors of the tokens.
pub(super) fn layers(
    input_shape: &[usize],
    tokens: usize,
    depth: usize,
    form: TransformerShape,
    is_tied: bool,
) -> Layers {
    form.check(depth)?;
    if input_shape.len() != 1 {
        return refuse(format!(
            "invalid sample shape {input_shape:?}: expected [positions], one token number each"
        ));
    }
    let table = is_tied.then(TiedTable::default);
    let mut embedding = TransformerShape::layer("embedding", input_shape);
    let x = embedding.embedding(embedding.input(), tokens, form.width, table.as_ref());
    embedding.dropout(x, form.dropout);
    let mut layers = vec![embedding.finish()?];
    let sample = [input_shape[0], form.width];
    for number in 1..=depth {
        let mut block = TransformerShape::layer(&format!("block{number}"), &sample);
        let (x, earlier) = (block.input(), Attended::Earlier);
        let x = form.attention(&mut block, "attention", x, None, earlier);
        form.feed_forward(&mut block, x);
        layers.push(block.finish()?);
    }
    let mut head = TransformerShape::layer("head", &sample);
    let x = head.layer_norm("norm", head.input());
    match &table {
        Some(table) => head.tied_scores(x, tokens, table),
        None => head.linear("output", x, tokens, false),
    };
    layers.push(head.finish()?);
    Ok(layers)
}
