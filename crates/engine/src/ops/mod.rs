//! The operations that the built-in models are made of: one place to put a faster kernel.
//!
//! Shapes in the documentation: N samples, C channels, H and W height and width, T places of a
//! sequence, E its width, A attention heads. Everything is differentiable and runs on one thread,
//! in an order that depends on the shapes alone.

mod activation;
mod attention;
mod batch_norm;
mod conv2d;
mod linear;
mod norm;
mod pool;
#[cfg(test)]
mod slopes;

pub use activation::{gelu, relu};
pub use attention::attention;
pub use batch_norm::{AfterNorm, batch_norm};
pub use conv2d::conv2d;
pub use linear::linear;
pub use norm::{group_norm, layer_norm};
pub use pool::{Window, average_to, max_pool};
