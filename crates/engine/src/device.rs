//! [`Device`]: the seam between layers and the hardware that computes them.
//!
//! A layer's operations decide the computation and its order: each [`Kernel`] is data that a device runs, at once or later.
//! [`HostDevice`] computes with the kernels of `ronde-kernels` in ordinary memory. A device with other memory, such as a GPU,
//! implements the same trait behind [`ForeignMemory`]; [`check_device`] compares its results with those of the host.
//!
//! The methods of a device cannot fail one by one, as commands in the queue of an accelerator cannot. A device that
//! cannot do its work keeps the first error, does nothing more, and returns the error from [`Device::take_error`],
//! which layers call at the end of each pass.
//!
//! An operation never touches the values of a buffer itself. On the host, the state and the gradients are used where they are
//! stored. For a device with separate memory, a layer copies the state when it is loaded, and the gradients back. Activations move
//! only at the ends of the model and where an operation needs numbers on the host (lengths of texts, sums over shards). Losses,
//! optimizers and sums between ranks stay on the host.

mod buffer;
mod conformance;
mod engine;
mod host;
pub mod kernel;
mod observed;
#[cfg(feature = "onednn")]
mod onednn;
mod planning;

pub(crate) use buffer::write_f64;
pub use buffer::{DeviceBuffer, DeviceSlice, DeviceSliceMut, ForeignMemory};
pub use conformance::{check_device, check_kernel};
pub use engine::ComputeEngine;
pub(crate) use host::statistics_values;
pub use host::{HostDevice, ProductMethod};
pub use kernel::{DeviceKernel, Kernel};
pub use observed::{KernelCall, KernelObserver, ObservedDevice};
pub use planning::PlanningDevice;

/// Memory and kernels for the operations of layers. All values are f32, except packed ones: see [`FormatKernels`](kernel::FormatKernels).
///
/// Buffers go only to the device that allocated them; anything else is a bug of the caller and panics. Lengths are
/// checked by the caller: layers derive them from the shapes of [`GraphBuilder`](crate::GraphBuilder).
///
/// Bits: a device computes the same bits for the same arguments at each call. Two devices may differ in the last bits;
/// [`Device::name`] is therefore part of the identity of a run.
pub trait Device: Send + Sync {
    /// Returns the name and version, a condition of equal bits.
    fn name(&self) -> String;

    /// Returns memory for a number of floats, with unspecified contents.
    fn allocate(&self, length: usize) -> DeviceBuffer;

    /// Returns whether buffers are ordinary memory of this process, which layers then use in place.
    fn is_host(&self) -> bool;

    /// Returns whether the results for a sample or a row have the same bits with any other ones beside it in a call, in f32. By default
    /// not, so that each logical shard runs alone.
    fn has_independent_rows(&self) -> bool {
        false
    }

    /// Writes values of the host to a buffer of the same length.
    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>);

    /// Runs a kernel, or adds it to a queue: work on the same memory is done in the order of the calls. Memory that is dropped stays
    /// until the work that uses it is done.
    fn run(&self, kernel: DeviceKernel<'_>);

    /// Returns the first error since the last call, in words. Waits for all work that was started.
    fn take_error(&self) -> Option<String> {
        None
    }
}
