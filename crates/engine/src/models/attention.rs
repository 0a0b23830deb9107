//! Building blocks of transformers: attention with its projections, and the feed-forward part.

use super::refuse;
use crate::{ActivationFunction, Attended, EngineError, GraphBuilder, GraphValue, Initial};

/// The size of a transformer's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransformerShape {
    pub(super) width: usize,
    pub(super) heads: usize,
    /// The inner width of a feed-forward part.
    pub(super) inner: usize,
    pub(super) dropout: f64,
}

impl TransformerShape {
    /// Checks the settings.
    pub(super) fn check(&self, depth: usize) -> Result<(), EngineError> {
        let Self {
            width,
            heads,
            inner,
            dropout,
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
        Ok(())
    }

    /// Starts a layer for samples of a shape.
    pub(super) fn layer(name: &str, sample: &[usize]) -> GraphBuilder {
        let mut layer = GraphBuilder::new(name, sample);
        layer.set_initial(Initial::TRANSFORMER);
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
        let queries = layer.linear(&format!("{name}.query"), own, self.width, true);
        let (name_kv, from) = (format!("{name}.key_value"), memory.unwrap_or(own));
        let keys_values = layer.linear(&name_kv, from, 2 * self.width, true);
        let found = layer.attention(queries, keys_values, self.heads, attended);
        let found = layer.linear(&format!("{name}.output"), found, self.width, true);
        layer.add(x, found)
    }

    /// Adds a normalisation and two linear operations, with a residual connection.
    pub(super) fn feed_forward(&self, layer: &mut GraphBuilder, x: GraphValue) -> GraphValue {
        let y = layer.layer_norm("feed_forward.norm", x);
        let y = layer.linear("feed_forward.up", y, self.inner, true);
        let y = layer.activate(y, ActivationFunction::Gelu);
        let y = layer.linear("feed_forward.down", y, self.width, true);
        let y = layer.dropout(y, self.dropout);
        layer.add(x, y)
    }
}
