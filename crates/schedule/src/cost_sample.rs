//! [`CostSample`]: the measured time of an operation.

use crate::counts::Counts;

/// One measured operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostSample {
    /// The counts of the operation.
    pub counts: Counts,
    /// The measured time in seconds.
    pub seconds: f64,
}
