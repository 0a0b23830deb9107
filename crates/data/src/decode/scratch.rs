//! [`DecodeScratch`]: memory that decoding uses again.

#[cfg(feature = "full")]
use super::image::ImageBuffers;

/// Reusable memory of one decoding thread.
#[derive(Debug, Default)]
pub struct DecodeScratch {
    #[cfg(feature = "full")]
    pub(super) image: ImageBuffers,
}

impl DecodeScratch {
    /// Creates empty memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}
