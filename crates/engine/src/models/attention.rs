//! Building blocks of transformers: attention with its projections, and the feed-forward part.

use ronde_kernels::ActivationFunction;

use super::refuse;
use crate::error::EngineError;
use crate::graph::{Attended, GraphBuilder, GraphValue};
use crate::initial::Initial;
use crate::operations::TiedTable;

/// The size of a transformer's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransformerShape {
    pub(super) width: usize,
    pub(super) heads: usize,
    /// The inner width of a feed-forward part.
    pub(super) inner: usize,
    pub(super) dropout: f64,
    /// The number of parts into which attention, feed-forward parts and tables are divided; 1: they are whole.
    pub(super) parts: u32,
}

impl TransformerShape {
    /// Checks the settings.
    pub(super) fn check(&self, depth: usize) -> Result<(), EngineError> {
        let Self {
            width,
            heads,
            inner,
            dropout,
            parts,
        } = *self;
        if depth == 0 || width == 0 || inner == 0 || heads == 0 || !width.is_multiple_of(heads) {
            return refuse(format!(
                "invalid layers = {depth}, width = {width}, heads = {heads}: expected at least 1 of each, and a width that is a multiple of heads"
            ));
        }
        if depth > 1 << 12 || width > 1 << 20 || inner > 1 << 22 {
            return refuse(format!(
                "invalid layers = {depth}, width = {width}: expected at most {} and {}",
                1 << 12,
                1 << 20
            ));
        }
        if !(0.0..1.0).contains(&dropout) {
            return refuse(format!(
                "invalid dropout = {dropout}: expected at least 0 and below 1"
            ));
        }
        if parts == 0 || !heads.is_multiple_of(parts as usize) {
            return refuse(format!(
                "invalid tensor_parts = {parts}: {heads} heads cannot be divided into so many equal parts"
            ));
        }
        Ok(())
    }

    /// Starts a layer for samples of a shape.
    pub(super) fn layer(name: &str, sample: &[usize]) -> GraphBuilder {
        let mut layer = GraphBuilder::new(name, sample);
        layer.set_initial(Initial::TRANSFORMER);
        layer
    }

    /// Starts a layer whose samples are blocks of tokens, and `shared` tokens after them. Layers in parts divide the tokens.
    pub(super) fn layer_of_tokens(
        &self,
        name: &str,
        sample: &[usize],
        blocks: &[usize],
        shared: usize,
    ) -> GraphBuilder {
        let mut layer = Self::layer(name, sample);
        if self.parts > 1 {
            layer.divide_input(self.parts, blocks, shared);
        }
        layer
    }

    /// Adds a normalisation and an attention to `memory`, or to `x` itself without one, with a
    /// residual connection.
    pub(super) fn attention(
        &self,
        layer: &mut GraphBuilder,
        name: &str,
        x: GraphValue,
        memory: Option<GraphValue>,
        attended: Attended,
    ) -> GraphValue {
        let own = layer.layer_norm(&format!("{name}.norm"), x);
        if self.parts > 1 {
            let found = self.attention_in_parts(layer, name, own, memory, attended);
            return layer.add(x, found);
        }
        let queries = layer.linear(&format!("{name}.query"), own, self.width, true);
        let (name_kv, from) = (format!("{name}.key_value"), memory.unwrap_or(own));
        let keys_values = layer.linear(&name_kv, from, 2 * self.width, true);
        let found = layer.attention(queries, keys_values, self.heads, attended);
        let found = layer.linear(&format!("{name}.output"), found, self.width, true);
        layer.add(x, found)
    }

    /// Adds an attention in which each part has some of the heads.
    fn attention_in_parts(
        &self,
        layer: &mut GraphBuilder,
        name: &str,
        own: GraphValue,
        memory: Option<GraphValue>,
        attended: Attended,
    ) -> GraphValue {
        let [query, key_value, output] =
            ["query", "key_value", "output"].map(|part| format!("{name}.{part}"));
        let heads = self.heads / self.parts as usize;
        let tokens = layer.shape(own)[0];
        let own = layer.all_tokens(own);
        let from = memory.map_or(own, |memory| layer.all_tokens(memory));
        let parts = layer.each_part(self.parts, |layer, _| {
            let queries = layer.linear_columns(&query, own, (self.width, 1), true);
            // Keys and values are two groups of columns.
            let keys_values = layer.linear_columns(&key_value, from, (2 * self.width, 2), true);
            let found = layer.attention(queries, keys_values, heads, attended);
            layer.linear_rows(&output, found, [self.width, self.width])
        });
        let found = layer.sum_parts_by_tokens(&parts, &[tokens]);
        layer.bias(&output, found)
    }

    /// Adds the vectors of tokens and positions to the layer's input. `tied` has the table of each part that an output layer
    /// shares; `blocks` are those of the tokens.
    pub(super) fn embedding(
        &self,
        layer: &mut GraphBuilder,
        tokens: usize,
        blocks: &[usize],
        tied: &[TiedTable],
    ) -> GraphValue {
        let x = layer.input();
        if self.parts < 2 {
            return layer.embedding(x, tokens, self.width, tied.first());
        }
        let parts = layer.each_part(self.parts, |layer, part| {
            layer.embedding_rows(x, tokens, self.width, tied.get(part as usize))
        });
        let x = layer.sum_parts_by_tokens(&parts, blocks);
        layer.positions(x)
    }

    /// Adds a score for each token, by a matrix or the vectors of the embedding.
    pub(super) fn scores(
        &self,
        layer: &mut GraphBuilder,
        x: GraphValue,
        tokens: usize,
        tied: &[TiedTable],
    ) -> GraphValue {
        if self.parts < 2 {
            return match tied {
                [table, ..] => layer.tied_scores(x, tokens, table),
                [] => layer.linear("output", x, tokens, false),
            };
        }
        let x = layer.all_tokens(x);
        let parts = layer.each_part(self.parts, |layer, part| match tied.get(part as usize) {
            Some(table) => layer.tied_scores(x, table.tokens(), table),
            None => layer.linear_columns("output", x, (tokens, 1), false),
        });
        layer.join_parts(&parts)
    }

    /// Adds a normalisation and two linear operations, with a residual connection.
    pub(super) fn feed_forward(&self, layer: &mut GraphBuilder, x: GraphValue) -> GraphValue {
        let y = layer.layer_norm("feed_forward.norm", x);
        let (up, down) = ("feed_forward.up", "feed_forward.down");
        let y = if self.parts > 1 {
            let y = layer.all_tokens(y);
            let parts = layer.each_part(self.parts, |layer, _| {
                let y = layer.linear_columns(up, y, (self.inner, 1), true);
                let y = layer.activate(y, ActivationFunction::Gelu);
                layer.linear_rows(down, y, [self.inner, self.width])
            });
            let y = layer.sum_parts_by_tokens(&parts, &[layer.shape(x)[0]]);
            layer.bias(down, y)
        } else {
            let y = layer.linear(up, y, self.inner, true);
            let y = layer.activate(y, ActivationFunction::Gelu);
            layer.linear(down, y, self.width, true)
        };
        let y = layer.dropout(y, self.dropout);
        layer.add(x, y)
    }
}
