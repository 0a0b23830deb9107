//! [`BatchNormValues`]: the values over which a batch normalisation computes the statistics of a channel in training.

use super::{Computation, GraphOutline};

/// A batch normalisation of a layer, and the values over which it computes the statistics of a channel in training. One value has
/// no variance, so a normalisation must have more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchNormValues {
    /// Its name in the model, such as `layer4.0.bn1`.
    pub name: String,
    /// The number of values of a channel in one sample: height times width.
    pub of_sample: usize,
    /// Whether the statistics are those of all shards of a step, not of each shard.
    pub has_all_shards: bool,
}

impl GraphOutline {
    /// Returns the batch normalisations.
    #[must_use]
    pub fn batch_norms(&self) -> Vec<BatchNormValues> {
        let nodes = self.nodes.iter();
        let norms = nodes.filter(|node| {
            let computation = node.node.computation();
            matches!(computation, Computation::BatchNorm { .. })
        });
        let values = norms.map(|node| {
            let tensor = self.layout.tensors.get(node.tensors.start);
            let name = tensor.map_or("", |tensor| tensor.name.as_str());
            let shape = node.inputs.first().map(|input| &self.shapes[*input]);
            BatchNormValues {
                name: name
                    .rsplit_once('.')
                    .map_or(name, |(name, _)| name)
                    .to_owned(),
                of_sample: shape.map_or(0, |shape| shape.iter().skip(1).product()),
                has_all_shards: node.node.needs_all_shards(),
            }
        });
        values.collect()
    }
}
