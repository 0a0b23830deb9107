//! Inception-v3 in torchvision's layout, without the auxiliary classifier, which only training would use.

mod mixed;

use self::mixed::{FIVE, HALVE, Mixed, ONE, SHRINK, TALL, THREE, WIDE};
use super::{Layers, image, refuse};
use crate::graph::GraphBuilder;
use crate::initial::Initial;

/// The divisors that leave every number of channels whole.
const DIVISORS: [usize; 5] = [1, 2, 4, 8, 16];

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
    let x = head.average_to(head.input(), [1, 1]);
    let x = head.dropout(x, dropout);
    let x = head.flatten(x);
    head.linear("", x, classes, true);
    Ok(vec![stem, mixed5, mixed6, mixed7, head.finish()?])
}
