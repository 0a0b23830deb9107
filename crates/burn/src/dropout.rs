//! [`dropout`]: dropout keyed by the coordinates of a pass.

use burn::tensor::{Tensor, TensorData};
use ronde_engine::ForwardContext;

/// Sets elements to zero with the given probability and scales the remaining ones by `1 / (1 -
/// probability)`; the identity in evaluation.
///
/// The mask is keyed by (seed, step, shard, layer, `index`); give each dropout of a layer its own
/// `index`. `probability` is clamped to `0..=1`. Cost: a Philox number per element.
#[must_use]
pub fn dropout<const D: usize>(
    context: &ForwardContext,
    x: Tensor<D>,
    probability: f64,
    index: u64,
) -> Tensor<D> {
    let shape = x.dims();
    let mut factors = vec![0.0; shape.iter().product()];
    if !context.draw_dropout(&mut factors, probability, index) {
        return x;
    }
    let device = x.device();
    x * Tensor::from_data(TensorData::new(factors, shape), &device)
}
