//! [`CallValues`]: the f32 values that travel beside the header of a message, without needless copies.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Vectors kept for reuse at most, by number and by total bytes.
const KEPT_VECTORS: usize = 16;
const KEPT_BYTES: usize = 64 << 20;

/// A contiguous vector of f32 values that a message carries. Sending moves or shares it; nothing is copied but into the
/// socket, or by a process of the same host out of this memory. Received values are in memory that the node uses again once they are dropped.
pub struct CallValues(Storage);

enum Storage {
    Owned(Vec<f32>),
    Shared(Arc<Vec<f32>>),
    /// The first `len` elements of `memory`, which returns to `pool`.
    Received {
        memory: Vec<f32>,
        len: usize,
        pool: Arc<ValuePool>,
    },
}

impl CallValues {
    /// Returns no values.
    #[must_use]
    pub fn none() -> Self {
        Self(Storage::Owned(Vec::new()))
    }

    /// Returns the values as a vector. Cost: a copy if they are shared, otherwise none.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<f32> {
        match std::mem::replace(&mut self.0, Storage::Owned(Vec::new())) {
            Storage::Owned(values) => values,
            Storage::Shared(values) => Arc::unwrap_or_clone(values),
            Storage::Received {
                mut memory, len, ..
            } => {
                memory.truncate(len);
                memory
            }
        }
    }

    /// Returns the values as bytes in the memory order of this host.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    pub(crate) fn received(memory: Vec<f32>, len: usize, pool: &Arc<ValuePool>) -> Self {
        Self(Storage::Received {
            memory,
            len,
            pool: Arc::clone(pool),
        })
    }
}

impl Deref for CallValues {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Storage::Owned(values) => values,
            Storage::Shared(values) => values,
            Storage::Received { memory, len, .. } => &memory[..*len],
        }
    }
}

impl Drop for CallValues {
    fn drop(&mut self) {
        if let Storage::Received { memory, pool, .. } = &mut self.0 {
            pool.give_back(std::mem::take(memory));
        }
    }
}

impl Default for CallValues {
    fn default() -> Self {
        Self::none()
    }
}

impl From<Vec<f32>> for CallValues {
    fn from(values: Vec<f32>) -> Self {
        Self(Storage::Owned(values))
    }
}

impl From<Arc<Vec<f32>>> for CallValues {
    fn from(values: Arc<Vec<f32>>) -> Self {
        Self(Storage::Shared(values))
    }
}

impl fmt::Debug for CallValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallValues({} values)", self.len())
    }
}

/// Memory of received values, kept for the next ones: fresh memory of this size costs page faults, which take longer
/// than the copy from the socket.
#[derive(Debug, Default)]
pub(crate) struct ValuePool(Mutex<Vec<Vec<f32>>>);

impl ValuePool {
    /// Returns memory of at least one element, with any contents; it may be shorter than `len`.
    pub(crate) fn take(&self, len: usize, fresh_max: usize) -> Vec<f32> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = kept.iter().enumerate();
        let fitting = fitting.filter(|(_, memory)| memory.len() >= len && memory.len() / 4 <= len);
        let smallest = fitting.min_by_key(|(_, memory)| memory.len());
        if let Some((index, _)) = smallest {
            return kept.swap_remove(index);
        }
        drop(kept);
        vec![0.0; len.min(fresh_max)]
    }

    fn give_back(&self, memory: Vec<f32>) {
        if memory.len() < 256 {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: usize = kept.iter().map(|memory| 4 * memory.len()).sum();
        if kept.len() < KEPT_VECTORS && bytes + 4 * memory.len() <= KEPT_BYTES {
            kept.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_dropped_values_is_used_again() {
        let pool = Arc::new(ValuePool::default());
        let memory = pool.take(1_000, 1_000);
        let address = memory.as_ptr();
        drop(CallValues::received(memory, 900, &pool));
        let again = pool.take(800, 800);
        assert_eq!(again.as_ptr(), address);
        let kept = CallValues::received(again, 3, &pool).into_vec();
        assert_eq!((kept.len(), kept.as_ptr()), (3, address));
        assert_eq!(pool.take(800, 10).len(), 10);
    }

    #[test]
    fn kept_memory_is_bounded() {
        let pool = Arc::new(ValuePool::default());
        for _ in 0..2 * KEPT_VECTORS {
            pool.give_back(vec![0.0; 300]);
        }
        assert_eq!(pool.0.lock().unwrap().len(), KEPT_VECTORS);
        pool.give_back(vec![0.0; KEPT_BYTES]);
        assert_eq!(pool.0.lock().unwrap().len(), KEPT_VECTORS);
    }
}
