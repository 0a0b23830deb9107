//! [`BufferPool`]: reuses the memory of reads, so that the operating system need not allocate and clear it again.

use std::sync::{Mutex, PoisonError};

/// The granularity of buffer lengths.
const STEP_BYTES: usize = 64 << 10;

/// A pool of unused buffers.
#[derive(Debug)]
pub(super) struct BufferPool {
    free: Mutex<Vec<Vec<u8>>>,
    /// The maximum number of bytes of unused buffers.
    bytes_max: usize,
}

impl BufferPool {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            free: Mutex::default(),
            bytes_max,
        }
    }

    /// Returns a buffer of at least `bytes` bytes with unspecified contents. New buffers are a little longer, so that they fit
    /// later reads.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = free.iter().position(|buffer| buffer.len() >= bytes);
        let found = fitting.map(|place| free.swap_remove(place));
        drop(free);
        found.unwrap_or_else(|| vec![0; bytes.next_multiple_of(STEP_BYTES)])
    }

    /// Returns a buffer to the pool.
    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: usize = free.iter().map(Vec::len).sum();
        if kept + buffer.len() <= self.bytes_max {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_up_to_the_limit() {
        let pool = BufferPool::new(200 << 10);
        let mut buffer = pool.take(60 << 10);
        assert_eq!(buffer.len(), STEP_BYTES);
        buffer[0] = 7;
        pool.give(buffer);
        pool.give(vec![1; 150 << 10]);
        assert_eq!(pool.take(65 << 10).len(), 2 * STEP_BYTES);
        assert_eq!(
            pool.take(30)[0],
            7,
            "the first buffer was kept, the second one exceeded the limit"
        );
        assert_eq!(pool.take(30), [0; STEP_BYTES]);
    }
}
