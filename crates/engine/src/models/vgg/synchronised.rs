//! VGG-16 with batch normalisation over all samples of a step.

use ronde_core::seed::SeedTree;

use super::{BLOCKS, CONVOLUTION, POOL};
use crate::models::graph_layer::GraphLayer;
use crate::models::layer_size::LayerSize;
use crate::ops::AfterNorm;

/// Builds a block of convolutions, with the same tensors as with normalisation per shard.
pub(super) fn features(
    block: usize,
    sample: &[usize],
    size: &LayerSize,
    seeds: &SeedTree,
) -> GraphLayer {
    let (count, channels) = BLOCKS[block];
    let name = format!("features{}", block + 1);
    let mut graph = GraphLayer::new(&name, sample, size, block == 0);
    let mut y = graph.images();
    for index in 0..count {
        let conv = format!("{name}.{index}.conv");
        let conv = graph.convolution(&conv, y.shape, channels, CONVOLUTION, true, seeds);
        let norm = format!("{name}.{index}.norm");
        let norm = graph.norm(&norm, channels, AfterNorm::Rectified);
        y = graph.convolved(conv, norm, y, None);
    }
    y = graph.pooled(y, POOL);
    if let Some(side) = super::averaged_to(sample, size) {
        graph.averaged(y, side);
    }
    graph
}
