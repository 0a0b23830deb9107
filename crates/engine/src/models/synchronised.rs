//! [`synchronised_batch_norm`]: for chains of users' own modules.

use super::graph_layer::GraphLayer;
use super::layer_size::LayerSize;
use crate::Layer;
use crate::ops::AfterNorm;

/// Batch normalisation over all samples of a step, on all workers, as a layer between others: it
/// takes and returns samples of `[channels, height, width]`. Tensors are `{name}.gamma`, `.beta`,
/// `.running_mean` and `.running_var`.
///
/// The shards of a worker then run through the chain together, which keeps the activations of all
/// of them. Needs two sums over all shards per step, of two f64 per channel: one in forward, one in
/// backward. A layer that is run on a single shard treats it as the whole batch.
///
/// ```
/// use ronde_engine::burn::nn::conv::{Conv2d, Conv2dConfig};
/// use ronde_engine::burn::nn::{Linear, LinearConfig};
/// use ronde_engine::burn::tensor::Tensor;
/// use ronde_engine::ops::AfterNorm;
/// use ronde_engine::{BurnLayer, Chain, ForwardContext, Layer, synchronised_batch_norm, training_device};
///
/// let device = training_device();
/// let conv = Conv2dConfig::new([3, 8], [3, 3]).init(&device);
/// let conv = BurnLayer::new(conv, |conv: &Conv2d, x, _: &ForwardContext| conv.forward(x)).named("conv");
/// let norm = synchronised_batch_norm("norm", [8, 6, 6], AfterNorm::Rectified);
/// let output = LinearConfig::new(8 * 6 * 6, 10).init(&device);
/// let run = |output: &Linear, x: Tensor<4>, _: &ForwardContext| output.forward(x.flatten::<2>(1, 3));
/// let output = BurnLayer::new(output, run).named("output");
/// let mut model = Chain::new(vec![Box::new(conv), norm, Box::new(output)])?;
/// assert_eq!(model.layout().tensors[2].name, "norm.gamma");
/// assert!(model.in_lock_step().is_some());
/// # Ok::<(), ronde_engine::EngineError>(())
/// ```
#[must_use]
pub fn synchronised_batch_norm(name: &str, sample: [usize; 3], after: AfterNorm) -> Box<dyn Layer> {
    let [channels, height, width] = sample;
    let size = LayerSize {
        parameters: 2 * channels as u64,
        kept: 2 * channels * height * width,
        output: sample.to_vec(),
    };
    let mut graph = GraphLayer::new(name, &sample, &size, false);
    let images = graph.images();
    let norm = graph.norm(name, channels, after);
    graph.wire(norm, images.value, None);
    Box::new(graph)
}
