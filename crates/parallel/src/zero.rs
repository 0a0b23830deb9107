//! [`ZeroLevel`]: how much of the state each rank holds. Source: Rajbhandari et al., "ZeRO", SC 2020.

/// The parts of the state that are divided among the ranks instead of being held by all. The trained bits do not depend on
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ZeroLevel {
    /// Nothing: plain data parallelism.
    #[default]
    Off,
    /// The states of the optimizer. A rank updates the weights whose states it holds, and sends them to the others.
    OptimizerStates,
    /// Also the reduced gradients: the memory of a bucket is released as soon as its sum has been scattered.
    Gradients,
    /// Also the weights: those of a bucket are gathered for each of its passes, and released after it.
    Weights,
}

impl ZeroLevel {
    /// Returns the level of a number; `None` above 3.
    #[must_use]
    pub fn new(level: u32) -> Option<Self> {
        match level {
            0 => Some(Self::Off),
            1 => Some(Self::OptimizerStates),
            2 => Some(Self::Gradients),
            3 => Some(Self::Weights),
            _ => None,
        }
    }

    /// Returns whether ranks hold parts of the state only.
    #[must_use]
    pub fn is_sharded(self) -> bool {
        self > Self::Off
    }
}
