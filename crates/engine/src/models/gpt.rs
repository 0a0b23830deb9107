//! A causal transformer in GPT-2's layout, and an encoder in which every position sees all.

use super::attention::TransformerShape;
use super::{Layers, refuse};
use crate::graph::Attended;
use crate::operations::TiedTable;

/// The predictions of a model of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextModel {
    /// The next token, from the earlier ones. In a tied model the first and the last layer share the
    /// vectors of the tokens.
    Next { tied: bool },
    /// Hidden tokens, from all.
    Masked,
}

/// Describes the layers: `embedding`, `block1`, `block2`, ..., `head`.
pub(super) fn layers(
    input_shape: &[usize],
    tokens: usize,
    depth: usize,
    form: TransformerShape,
    predicts: TextModel,
) -> Layers {
    form.check(depth)?;
    if input_shape.len() != 1 {
        return refuse(format!(
            "invalid sample shape {input_shape:?}: expected [positions], one token number each"
        ));
    }
    let is_tied = predicts == TextModel::Next { tied: true };
    let tables = if is_tied { form.parts } else { 0 };
    let tables: Vec<TiedTable> = (0..tables).map(|_| TiedTable::default()).collect();
    let attended = match predicts {
        TextModel::Next { .. } => Attended::Earlier,
        TextModel::Masked => Attended::All,
    };
    let mut embedding = TransformerShape::layer("embedding", input_shape);
    let x = form.embedding(&mut embedding, tokens, input_shape, &tables);
    embedding.dropout(x, form.dropout);
    let mut layers = vec![embedding.finish()?];
    let sample = [input_shape[0], form.width];
    for number in 1..=depth {
        let mut block = form.layer_of_tokens(&format!("block{number}"), &sample, input_shape, 0);
        let x = block.input();
        let x = form.attention(&mut block, "attention", x, None, attended);
        form.feed_forward(&mut block, x);
        layers.push(block.finish()?);
    }
    let mut head = form.layer_of_tokens("head", &sample, input_shape, 0);
    let x = head.layer_norm("norm", head.input());
    form.scores(&mut head, x, tokens, &tables);
    layers.push(head.finish()?);
    Ok(layers)
}
