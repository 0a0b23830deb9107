//! The same network with batch normalisation over all samples of a step.

use ronde_core::seed::SeedTree;

use super::{BLOCKS, CONVOLUTION, POOL};
use crate::models::size::StageSize;
use crate::models::wired::Wired;
use crate::ops::AfterNorm;

/// A block of convolutions, with the tensors of the one that is normalised shard by shard.
pub(super) fn features(
    block: usize,
    sample: &[usize],
    size: &StageSize,
    seeds: &SeedTree,
) -> Wired {
    let (layers, channels) = BLOCKS[block];
    let name = format!("features{}", block + 1);
    let mut wired = Wired::new(&name, sample, size, block == 0);
    let mut y = wired.images();
    for layer in 0..layers {
        let conv = format!("{name}.{layer}.conv");
        let conv = wired.convolution(&conv, y.shape, channels, CONVOLUTION, true, seeds);
        let norm = format!("{name}.{layer}.norm");
        let norm = wired.norm(&norm, channels, AfterNorm::Rectified);
        y = wired.convolved(conv, norm, y, None);
    }
    y = wired.pooled(y, POOL);
    if let Some(side) = super::averaged_to(sample, size) {
        wired.averaged(y, side);
    }
    wired
}
