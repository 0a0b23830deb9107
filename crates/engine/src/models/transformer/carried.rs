//! The values that the layers of a transformer carry along in the activation.
//!
//! All activations between the layers are `[N, S + T, E]`: encoder layers transform the source positions and pass the
//! target's through, decoder layers transform the target's and pass the memory through. So encoder and decoder can be cut like
//! any chain, and the memory's gradient is summed over the decoder blocks in backward. With padding, activations have an
//! additional position that holds the length of the source.

use crate::graph::{Attended, GraphBuilder, GraphValue};

/// The source text of a sample.
#[derive(Debug, Clone, Copy)]
pub(in crate::models) struct SourceText {
    /// The number of positions of the source.
    pub(in crate::models) source: usize,
    /// The token that pads the source, if there is one.
    pub(in crate::models) padding: Option<u32>,
}

/// The parts of an activation between layers.
pub(super) struct CarriedValues {
    pub(super) source: GraphValue,
    pub(super) target: GraphValue,
    length: Option<GraphValue>,
}

impl SourceText {
    /// Takes the activation between two layers apart.
    pub(super) fn split(self, layer: &mut GraphBuilder) -> CarriedValues {
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
    pub(super) fn join(&self, layer: &mut GraphBuilder) {
        let parts = [Some(self.source), Some(self.target), self.length];
        let parts: Vec<GraphValue> = parts.into_iter().flatten().collect();
        layer.concatenate(&parts, 0);
    }

    /// Returns the source positions to attend to: all that are not padding.
    pub(super) fn attended(&self) -> Attended {
        self.length.map_or(Attended::All, Attended::First)
    }
}
