//! ResNet with batch normalisation over all samples of a step.

use ronde_core::seed::SeedTree;

use super::{BlockShape, POOL, ResNetShape, WIDTHS};
use crate::Layer;
use crate::models::graph_layer::{GraphLayer, Images};
use crate::models::layer_size::LayerSize;
use crate::ops::{AfterNorm, SlidingWindow};

/// Builds the stem and the four groups, with the same tensors as with normalisation per shard.
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
        let mut graph = GraphLayer::new(&name, input, size, false);
        let mut x = graph.images();
        for (index, shape) in BlockShape::of_group(form, group, input[0])
            .into_iter()
            .enumerate()
        {
            x = block(
                &mut graph,
                &format!("{name}.{index}"),
                shape,
                form,
                x,
                seeds,
            );
        }
        layers.push(Box::new(graph));
    }
    layers
}

fn stem(input: &[usize], form: ResNetShape, size: &LayerSize, seeds: &SeedTree) -> GraphLayer {
    let mut graph = GraphLayer::new("stem", input, size, true);
    let x = graph.images();
    let window = form.stem_window();
    let conv = graph.convolution("conv1", x.shape, WIDTHS[0], window, false, seeds);
    let norm = graph.norm("bn1", WIDTHS[0], AfterNorm::Rectified);
    let y = graph.convolved(conv, norm, x, None);
    if !form.small_input {
        graph.pooled(y, POOL);
    }
    graph
}

fn block(
    graph: &mut GraphLayer,
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
        let conv = graph.convolution(&conv, seen, channels, window, false, seeds);
        let norm = graph.norm(&format!("{name}.bn{index}"), channels, AfterNorm::Rectified);
        layers.push((conv, norm));
        seen = [channels, window.count(seen[1]), window.count(seen[2])];
    }
    let around = if shape.changes(form) {
        let [conv, norm] = ["conv", "bn"].map(|part| format!("{name}.downsample.{part}"));
        let conv = graph.convolution(
            &conv,
            x.shape,
            to,
            SlidingWindow::new(1, stride, 0),
            false,
            seeds,
        );
        let norm = graph.norm(&norm, to, AfterNorm::Linear);
        graph.convolved(conv, norm, x, None)
    } else {
        x
    };
    let last = layers.len() - 1;
    let through = layers.into_iter().enumerate();
    through.fold(x, |y, (index, (conv, norm))| {
        let added = (index == last).then_some(around.value);
        graph.convolved(conv, norm, y, added)
    })
}
