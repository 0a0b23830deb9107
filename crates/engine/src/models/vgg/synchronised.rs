//! The same network with batch normalisation over all samples of a step.

use ronde_core::seed::SeedTree;

use super::{BLOCKS, CONVOLUTION, POOL};
use crate::models::size::LayerSize;
use crate::models::wired::Wired;
use crate::ops::AfterNorm;

/// A block of convolutions, with the tensors of the one that is normalised shard by shard.
pub(super) fn features(
    block: usize,
    sample: &[usize],
    size: &LayerSize,
    seeds: &SeedTree,
) -> Wired {
    let (count, channels) = BLOCKS[block];
    let name = format!("features{}", block + 1);
    let mut wired = Wired::new(&name, sample, size, block == 0);
    let mut y = wired.images();
    for index in 0..count {
        let conv = format!("{name}.{index}.conv");
        let conv = wired.convolution(&conv, y.shape, channels, CONVOLUTION, true, seeds);
        let norm = format!("{name}.{index}.norm");
        let norm = wired.norm(&norm, channels, AfterNorm::Rectified);
        y = wired.convolved(conv, norm, y, None);
    }
    y = wired.pooled(y, POOL);
    if let Some(side) = super::averaged_to(sample, size) {
        wired.averaged(y, side);
    }
    wired
}
