//! The operations that the built-in models are made of: one place to put a faster kernel.
//!
//! Shapes in the documentation: N samples, C channels, H and W height and width, T places of a
//! sequence, E its width, A attention heads. Everything is differentiable and runs on one thread,
//! in an order that depends on the shapes alone.

mod activation;
mod attention;
mod batch_norm;
mod conv2d;
mod group_norm;
mod layer_norm;
mod linear;
mod pool;
#[cfg(test)]
mod slopes;

pub use activation::relu;
pub use attention::attention;
pub use batch_norm::{AfterNorm, batch_norm};
pub use conv2d::conv2d;
pub(crate) use group_norm::finish;
pub use group_norm::group_norm;
pub use layer_norm::{gelu, layer_norm};
pub use linear::linear;
pub use pool::{Window, average_to, max_pool};
