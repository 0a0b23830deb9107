//! Operations that models are built of, with kernels and backward passes of our own.
//!
//! They take the engine's tensors and modules, and give what the engine's operations of the same name
//! give, up to rounding. Where a kernel does not cover a case (groups, dilation, a border that is not
//! symmetric) the engine's operation runs instead. Bits depend on the operands and
//! [`ronde_kernels::Level`] alone.

mod attention;
mod batch_norm;
mod conv2d;
mod custom;
mod given;
mod layer_norm;
mod linear;
#[cfg(test)]
mod tests;

pub use attention::attention;
pub use batch_norm::{AfterNorm, batch_norm};
pub use conv2d::conv2d;
pub(crate) use given::with_gradient;
pub use layer_norm::{gelu, layer_norm};
pub use linear::linear;
