//! Kernels on slices of f32, one thread each: what the engine's own operations are slow without.
//!
//! Nothing here knows of tensors or gradients as objects: lengths and slices come in, slices go out.
//! Every kernel is compiled for the instruction sets of [`Level`] and the best one that the processor
//! has is taken at run time. Results depend on the operands and the level alone: not on threads (there
//! are none), caches, or where buffers lie.

mod attention;
mod batch_norm;
mod columns;
mod conv;
mod exponential;
mod gemm;
mod gradient_scale;
mod layer_norm;
mod loss;
mod moves;
mod rectifier;
mod scratch;
mod simd;
#[cfg(test)]
mod testing;

pub use attention::Attention;
pub use batch_norm::{Affine, BatchNorm, BatchNormGradients, BatchStatistics};
pub use columns::add_rows;
pub use conv::Convolution;
pub use gemm::{Matrix, multiply, multiply_at};
pub use gradient_scale::GradientScale;
pub use layer_norm::{gelu, layer_norm, layer_norm_backward};
pub use loss::{RowLoss, softmax_cross_entropy};
pub use rectifier::{rectified, rectified_backward, rectified_noting, shut};
pub use simd::{Level, Vectorised, vectorised};
