//! The blocks of Inception-v3: branches of convolutions beside each other.

use ronde_kernels::SlidingWindow;

use super::super::Normalisation;
use crate::graph::{GraphBuilder, GraphValue};
use crate::operations::AfterNorm;

pub(super) const ONE: SlidingWindow = SlidingWindow::new(1, 1, 0);
pub(super) const THREE: SlidingWindow = SlidingWindow::new(3, 1, 1);
pub(super) const FIVE: SlidingWindow = SlidingWindow::new(5, 1, 2);
pub(super) const WIDE: SlidingWindow = SlidingWindow::same([1, 7]);
pub(super) const TALL: SlidingWindow = SlidingWindow::same([7, 1]);
/// A window without padding that halves the size.
pub(super) const HALVE: SlidingWindow = SlidingWindow::new(3, 2, 0);
/// A window without padding that keeps the size but for its border.
pub(super) const SHRINK: SlidingWindow = SlidingWindow::new(3, 1, 0);

/// The channels and the window of a convolution.
type Step = (usize, SlidingWindow);

/// A layer of blocks, which concatenate their branches.
pub(super) struct Mixed {
    pub(super) layer: GraphBuilder,
    divisor: usize,
    /// The output of the previous block.
    pub(super) x: GraphValue,
}

impl Mixed {
    pub(super) fn new(name: &str, shape: &[usize], divisor: usize) -> Self {
        let layer = GraphBuilder::new(name, shape);
        let x = layer.input();
        Self { layer, divisor, x }
    }

    /// Adds a block: the branches, numbered from 1, and a branch with means and that many channels, or with the greatest
    /// values of a halved image. Source: figures 5, 6 and 10.
    pub(super) fn block<const N: usize>(
        &mut self,
        name: &str,
        branches: [&[Step]; N],
        pooled: Option<usize>,
    ) {
        let branches = (1..).zip(branches);
        let mut outputs: Vec<GraphValue> = branches
            .map(|(number, steps)| self.convolutions(&format!("{name}.{number}."), self.x, steps))
            .collect();
        outputs.push(match pooled {
            Some(channels) => self.pooled(name, channels),
            None => self.layer.max_pool(self.x, HALVE),
        });
        self.x = self.layer.concatenate(&outputs, 0);
    }

    /// Adds a block with two branches that end in a 1 x 3 and a 3 x 1 convolution beside each other. Source: figure 7.
    pub(super) fn forked_block(&mut self, name: &str) {
        let mut outputs = vec![self.convolutions(&format!("{name}.1."), self.x, &[(320, ONE)])];
        for (number, steps) in [(2, &[(384, ONE)][..]), (3, &[(448, ONE), (384, THREE)])] {
            let x = self.convolutions(&format!("{name}.{number}."), self.x, steps);
            for (end, side) in [("wide", [1, 3]), ("tall", [3, 1])] {
                let step = (384, SlidingWindow::same(side));
                outputs.push(self.convolutions(&format!("{name}.{number}.{end}."), x, &[step]));
            }
        }
        outputs.push(self.pooled(name, 192));
        self.x = self.layer.concatenate(&outputs, 0);
    }

    fn pooled(&mut self, name: &str, channels: usize) -> GraphValue {
        let x = self.layer.average_pool(self.x, THREE);
        self.convolutions(&format!("{name}.pool."), x, &[(channels, ONE)])
    }

    /// Adds convolutions one after another, each with batch normalisation and a rectifier.
    pub(super) fn convolutions(
        &mut self,
        prefix: &str,
        mut x: GraphValue,
        steps: &[Step],
    ) -> GraphValue {
        for (number, &(channels, window)) in (1..).zip(steps) {
            let [conv, norm] = ["conv", "bn"].map(|part| format!("{prefix}{part}{number}"));
            let channels = channels / self.divisor;
            x = self.layer.convolution(&conv, x, channels, window, false);
            let kind = Normalisation::Batch;
            x = self
                .layer
                .normalise(&norm, kind, x, None, AfterNorm::Rectified);
        }
        x
    }
}
