//! Single-threaded kernels on slices of f32 for the engine's own operations.
//!
//! The kernels have no tensor or gradient types: inputs are lengths and slices, outputs are slices. Every kernel
//! is compiled for the instruction sets of [`Level`]; the best level that the processor supports is selected at
//! run time. Tests of a kernel run at every level: see `testing::at_every_level`. Results depend only on the operands and the level, not on threads (there are none), caches or the
//! addresses of buffers.

mod activation;
mod attention;
mod batch_norm;
mod columns;
mod conv;
mod distance;
mod elementwise;
mod exponential;
mod gemm;
mod gradient_scale;
mod group_norm;
mod grouped;
mod layer_norm;
mod loss;
mod low_rank;
mod moves;
mod pool;
mod rectifier;
mod scratch;
mod shard_tree;
mod short;
mod simd;
mod squares;
#[cfg(test)]
mod testing;
mod upsample;

pub use activation::ActivationFunction;
pub use attention::Attention;
pub use batch_norm::{Affine, BatchNorm, BatchNormGradients, BatchStatistics};
pub use columns::{add_row_parts, add_rows};
pub use conv::{Convolution, ConvolutionDivision};
pub use distance::{add_centre_gradients, point_gradients, squared_distances};
pub use elementwise::{add_exactly, add_to, add_to_channels, channel_sums, multiply_by};
pub use gemm::tree::multiply_in_tree;
pub use gemm::{Matrix, multiply, multiply_at, multiply_with};
pub use gradient_scale::GradientScale;
pub use group_norm::GroupNorm;
pub use grouped::GroupedConvolution;
pub use layer_norm::{layer_norm, layer_norm_affine_gradients, layer_norm_backward};
pub use loss::{RowLoss, exponentials, greatest_logit, scale_in_f64, softmax_cross_entropy};
pub use low_rank::{add_column_products, times_columns, transposed_times_columns};
pub use pool::{
    AverageAreas, SlidingWindow, average_pool, average_pool_backward, max_pool, max_pool_backward,
};
pub use rectifier::{rectified, rectified_backward};
pub use scratch::buffer_bytes;
pub use short::{ShortFormat, pack_short, round_short, unpack_short};
pub use simd::{Level, Products, Vectorised, vectorised, with_level};
pub use squares::sum_of_squares;
pub use upsample::{upsample, upsample_backward};
