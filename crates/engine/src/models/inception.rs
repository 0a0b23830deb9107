//! Inception-v3 in torchvision's layout, without the auxiliary classifier, which only training would use.

use super::{Layers, Normalisation, image, refuse};
use crate::{AfterNorm, GraphBuilder, GraphValue, Initial, SlidingWindow};

/// The divisors that leave every number of channels whole.
const DIVISORS: [usize; 5] = [1, 2, 4, 8, 16];

const ONE: SlidingWindow = SlidingWindow::new(1, 1, 0);
const THREE: SlidingWindow = SlidingWindow::new(3, 1, 1);
const FIVE: SlidingWindow = SlidingWindow::new(5, 1, 2);
const WIDE: SlidingWindow = SlidingWindow::same([1, 7]);
const TALL: SlidingWindow = SlidingWindow::same([7, 1]);
/// A window without padding that halves the size.
const HALVE: SlidingWindow = SlidingWindow::new(3, 2, 0);
/// A window without padding that keeps the size but for its border.
const SHRINK: SlidingWindow = SlidingWindow::new(3, 1, 0);

/// Describes the layers: `stem`; `mixed5` with blocks A; `mixed6` with a reduction and blocks C; `mixed7` with a
/// reduction and blocks E; `fc`. All published numbers of channels are divided by `divisor`.
pub(super) fn layers(
    input_shape: &[usize],
    classes: usize,
    (small_input, divisor, dropout): (bool, usize, f64),
) -> Layers {
    if !DIVISORS.contains(&divisor) || !(0.0..1.0).contains(&dropout) {
        return refuse(format!(
            "invalid width_divisor = {divisor}, dropout = {dropout}: expected one of {DIVISORS:?}, and at least 0 and below 1"
        ));
    }
    image(input_shape, if small_input { 7 } else { 75 })?;
    let mut stem = Mixed::new("stem", input_shape, divisor);
    if small_input {
        let steps = [
            (32, THREE),
            (32, THREE),
            (64, THREE),
            (80, ONE),
            (192, THREE),
        ];
        stem.convolutions("", stem.x, &steps);
    } else {
        let x = stem.convolutions("", stem.x, &[(32, HALVE), (32, SHRINK), (64, THREE)]);
        let x = stem.layer.max_pool(x, HALVE);
        let x = stem.convolutions("after.", x, &[(80, ONE), (192, SHRINK)]);
        stem.layer.max_pool(x, HALVE);
    }
    let stem = stem.layer.finish()?;

    let mut mixed = Mixed::new("mixed5", stem.output(), divisor);
    for (block, pooled) in [("b", 32), ("c", 64), ("d", 64)] {
        let five = [(48, ONE), (64, FIVE)];
        let double = [(64, ONE), (96, THREE), (96, THREE)];
        mixed.block(block, [&[(64, ONE)], &five, &double], Some(pooled));
    }
    let mixed5 = mixed.layer.finish()?;

    let mut mixed = Mixed::new("mixed6", mixed5.output(), divisor);
    let double = [(64, ONE), (96, THREE), (96, HALVE)];
    mixed.block("a", [&[(384, HALVE)], &double], None);
    for (block, c) in [("b", 128), ("c", 160), ("d", 160), ("e", 192)] {
        let seven = [(c, ONE), (c, WIDE), (192, TALL)];
        let double = [(c, ONE), (c, TALL), (c, WIDE), (c, TALL), (192, WIDE)];
        mixed.block(block, [&[(192, ONE)], &seven, &double], Some(192));
    }
    let mixed6 = mixed.layer.finish()?;

    let mut mixed = Mixed::new("mixed7", mixed6.output(), divisor);
    let seven = [(192, ONE), (192, WIDE), (192, TALL), (192, HALVE)];
    mixed.block("a", [&[(192, ONE), (320, HALVE)], &seven], None);
    mixed.forked_block("b");
    mixed.forked_block("c");
    let mixed7 = mixed.layer.finish()?;

    let mut head = GraphBuilder::new("fc", mixed7.output());
    head.set_initial(Initial::CLASSIFIER);
    let x = head.average_to(head.input(), 1);
    let x = head.dropout(x, dropout);
    let x = head.flatten(x);
    head.linear("", x, classes, true);
    Ok(vec![stem, mixed5, mixed6, mixed7, head.finish()?])
}

/// The channels and the window of a convolution.
type Step = (usize, SlidingWindow);

/// A layer of blocks, each of which concatenates its branches.
struct Mixed {
    layer: GraphBuilder,
    divisor: usize,
    /// The output of the previous block.
    x: GraphValue,
}

impl Mixed {
    fn new(name: &str, shape: &[usize], divisor: usize) -> Self {
        let layer = GraphBuilder::new(name, shape);
        let x = layer.input();
        Self { layer, divisor, x }
    }

    /// Adds a block: the branches, numbered from 1, and a branch with means and that many channels, or with the greatest
    /// values of a halved image. Source: figures 5, 6 and 10.
    fn block<const N: usize>(&mut self, name: &str, branches: [&[Step]; N], pooled: Option<usize>) {
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
    fn forked_block(&mut self, name: &str) {
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
    fn convolutions(&mut self, prefix: &str, mut x: GraphValue, steps: &[Step]) -> GraphValue {
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
