//! [`SharedState`]: values that layers read where they are stored.

use std::fmt::Debug;
use std::sync::Arc;

use ronde_core::Buffer;

/// Values of a state that are stored once, and read in place by layers.
pub type SharedState = Arc<dyn SharedValues>;

/// Memory with the values of a state.
pub trait SharedValues: Debug + Send + Sync {
    /// Returns the values.
    fn values(&self) -> &[f32];
}

impl SharedValues for Vec<f32> {
    fn values(&self) -> &[f32] {
        self
    }
}

/// Values that a collective has gathered, which need not be copied.
impl SharedValues for Buffer {
    fn values(&self) -> &[f32] {
        self.as_slice()
    }
}
