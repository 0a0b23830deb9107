//! [`LayerSize`]: the size of one layer, computed before anything is allocated.

/// The size of one layer, for one sample.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerSize {
    pub(super) parameters: u64,
    /// The estimated number of floats kept from forward until backward.
    pub(super) kept: usize,
    /// The shape of the output, without the number of samples.
    pub(super) output: Vec<usize>,
}
