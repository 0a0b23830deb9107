//! [`SharedBytes`]: a part of a shared buffer.

use std::ops::Range;
use std::sync::Arc;

/// A part of a buffer that is shared with other parts.
#[derive(Debug, Clone)]
pub struct SharedBytes {
    memory: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Returns the bytes `range` of `memory`, or `None` if the range exceeds it.
    #[must_use]
    pub fn new(memory: Arc<Vec<u8>>, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= memory.len()).then_some(Self { memory, range })
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(memory: Vec<u8>) -> Self {
        let range = 0..memory.len();
        let memory = Arc::new(memory);
        Self { memory, range }
    }
}
