//! The same networks with batch normalisation over all samples of a step.

use ronde_core::seed::SeedTree;

use super::{BlockShape, POOL, ResNetShape, WIDTHS};
use crate::Layer;
use crate::models::size::LayerSize;
use crate::models::wired::{Images, Wired};
use crate::ops::{AfterNorm, SlidingWindow};

/// Stem and four groups, with the tensors of those that are normalised shard by shard.
pub(super) fn layers(
    input_shape: &[usize],
    form: ResNetShape,
    sizes: &[LayerSize],
    seeds: &SeedTree,
) -> Vec<Box<dyn Layer>> {
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(stem(input_shape, form, &sizes[0], seeds))];
    for group in 0..WIDTHS.len() {
        let (input, size) = (&sizes[group].output, &sizes[group + 1]);
        let name = format!("layer{}", group + 1);
        let mut wired = Wired::new(&name, input, size, false);
        let mut x = wired.images();
        for (index, shape) in BlockShape::of_group(form, group, input[0])
            .into_iter()
            .enumerate()
        {
            x = block(
                &mut wired,
                &format!("{name}.{index}"),
                shape,
                form,
                x,
                seeds,
            );
        }
        layers.push(Box::new(wired));
    }
    layers
}

fn stem(input: &[usize], form: ResNetShape, size: &LayerSize, seeds: &SeedTree) -> Wired {
    let mut wired = Wired::new("stem", input, size, true);
    let x = wired.images();
    let window = form.stem_window();
    let conv = wired.convolution("conv1", x.shape, WIDTHS[0], window, false, seeds);
    let norm = wired.norm("bn1", WIDTHS[0], AfterNorm::Rectified);
    let y = wired.convolved(conv, norm, x, None);
    if !form.small_input {
        wired.pooled(y, POOL);
    }
    wired
}

fn block(
    wired: &mut Wired,
    name: &str,
    shape: BlockShape,
    form: ResNetShape,
    x: Images,
    seeds: &SeedTree,
) -> Images {
    let BlockShape { width, stride, .. } = shape;
    let to = form.outputs(width);
    // Output channels, side and stride of each convolution.
    let convolutions = if form.is_bottleneck {
        vec![(width, 1, 1), (width, 3, stride), (to, 1, 1)]
    } else {
        vec![(width, 3, stride), (width, 3, 1)]
    };
    let mut seen = x.shape;
    let mut layers = Vec::new();
    for (index, (channels, side, stride)) in (1..).zip(convolutions) {
        let window = SlidingWindow::new(side, stride, side / 2);
        let conv = format!("{name}.conv{index}");
        let conv = wired.convolution(&conv, seen, channels, window, false, seeds);
        let norm = wired.norm(&format!("{name}.bn{index}"), channels, AfterNorm::Rectified);
        layers.push((conv, norm));
        seen = [channels, window.count(seen[1]), window.count(seen[2])];
    }
    let around = if shape.changes(form) {
        let [conv, norm] = ["conv", "bn"].map(|part| format!("{name}.downsample.{part}"));
        let conv = wired.convolution(
            &conv,
            x.shape,
            to,
            SlidingWindow::new(1, stride, 0),
            false,
            seeds,
        );
        let norm = wired.norm(&norm, to, AfterNorm::Linear);
        wired.convolved(conv, norm, x, None)
    } else {
        x
    };
    let last = layers.len() - 1;
    let through = layers.into_iter().enumerate();
    through.fold(x, |y, (index, (conv, norm))| {
        let added = (index == last).then_some(around.value);
        wired.convolved(conv, norm, y, added)
    })
}
