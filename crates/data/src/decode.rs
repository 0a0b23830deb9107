//! Records to features.

/// Memory of a thread that decodes, used again for every sample.
#[derive(Debug, Default)]
pub struct Scratch {}
