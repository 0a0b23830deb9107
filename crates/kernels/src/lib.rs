//! Kernels on slices of f32, one thread each: what the engine's own operations are slow without.
//!
//! Nothing here knows of tensors or gradients as objects: lengths and slices come in, slices go out.
//! Every kernel is compiled for the instruction sets of [`Level`] and the best one that the processor
//! has is taken at run time. Results depend on the operands and the level alone: not on threads (there
//! are none), caches, or where buffers lie.

mod batch_norm;
mod conv;
mod gemm;
mod scratch;
mod simd;
#[cfg(test)]
mod testing;

pub use batch_norm::{Affine, BatchNorm, BatchNormGradients, BatchStatistics};
pub use conv::Convolution;
pub use gemm::{Matrix, multiply, multiply_at};
pub use simd::Level;
