//! [`Pool`]: memory of reads, used again, so that the system need not give and clear it anew.

use std::sync::{Mutex, PoisonError};

/// Lengths of buffers are multiples of this.
const STEP_BYTES: usize = 64 << 10;

/// Buffers that nobody uses at the moment.
#[derive(Debug)]
pub(super) struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
    /// Bytes that are kept at most.
    bytes_max: usize,
}

impl Pool {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            free: Mutex::default(),
            bytes_max,
        }
    }

    /// A buffer of at least `bytes` bytes, with whatever was in it. New ones are a little longer, so that they fit again.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = free.iter().position(|buffer| buffer.len() >= bytes);
        let found = fitting.map(|place| free.swap_remove(place));
        drop(free);
        found.unwrap_or_else(|| vec![0; bytes.next_multiple_of(STEP_BYTES)])
    }

    /// Takes a buffer back.
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
    fn buffers_come_back_as_far_as_there_is_room() {
        let pool = Pool::new(200 << 10);
        let mut buffer = pool.take(60 << 10);
        assert_eq!(buffer.len(), STEP_BYTES);
        buffer[0] = 7;
        pool.give(buffer);
        pool.give(vec![1; 150 << 10]);
        assert_eq!(pool.take(65 << 10).len(), 2 * STEP_BYTES);
        assert_eq!(
            pool.take(30)[0],
            7,
            "the first one was kept, the other did not fit"
        );
        assert_eq!(pool.take(30), [0; STEP_BYTES]);
    }
}
