//! The operations that models are built of, most with kernels and backward passes of our own.
//!
//! They take the engine's tensors and modules, and return the same values as the engine's
//! operations of the same name, up to rounding. Where a kernel does not support a case (groups,
//! dilation, asymmetric padding) the engine's operation runs instead. Bits depend only on the
//! operands and [`ronde_kernels::Level`]. Shapes in the documentation: N samples, C channels, H and
//! W height and width, T and S positions of a sequence.

mod activation;
mod attention;
mod batch_norm;
mod conv2d;
mod custom;
mod group_norm;
mod layer_norm;
mod linear;
pub(crate) mod memory;
mod pool;
#[cfg(test)]
mod slopes;
#[cfg(test)]
mod tests;
mod with_gradient;

pub use activation::relu;
pub use attention::attention;
pub(crate) use attention::{AttentionMask, attention_over};
pub use batch_norm::{AfterNorm, batch_norm};
pub use conv2d::conv2d;
pub(crate) use custom::{HostTensor, OperationInput, SavedForBackward, record};
pub(crate) use group_norm::finish;
pub use group_norm::group_norm;
pub use layer_norm::{gelu, layer_norm};
pub use linear::linear;
pub use pool::{SlidingWindow, average_to, max_pool};
pub(crate) use with_gradient::with_gradient;
