//! [`Buffer`]: a sequence of elements that is moved into an operation and returned by it.
//!
//! A borrowed handle to memory that an operation still uses would be unsound, so buffers are moved.
//! [`Memory`] abstracts the kind of memory (host, shared memory, a device); a group allocates buffers in
//! memory that it can send without a copy.

use crate::dtype::DType;

/// The kind of memory that holds the bytes of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Ordinary memory of this process.
    Host,
    /// Memory that other processes of this host have mapped too.
    Shared,
    /// Memory of an accelerator; bytes are not addressable from the host.
    Device,
}

/// The memory of a buffer, owned by its allocator.
///
/// To use memory that another library owns, implement this trait for it and call [`Buffer::from_memory`]:
/// operations then work on it in place, without a copy if the group's transport allows it. Dropping the value
/// returns the memory to its owner. The owner must keep the memory alive and must not access it until then;
/// a failed operation may hold it a little longer than the caller's wait. The memory must be aligned to its
/// element type, otherwise a group rejects it.
pub trait Memory: Send + Sync {
    /// Returns the kind of memory.
    fn kind(&self) -> MemoryKind;
    /// Returns the name of the allocator for error messages: `"host"`, `"group dp"`.
    fn owner(&self) -> &str;
    /// Returns the bytes, aligned to [`ALIGNMENT`] if possible. Empty for device memory.
    fn bytes(&self) -> &[u8];
    /// Returns the bytes for writing. Empty for device memory.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// The system has no memory for an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes")]
pub struct AllocationError {
    /// The requested size in bytes.
    pub bytes: usize,
}

/// The alignment in bytes of every buffer that is allocated here or by a group: one cache line.
pub const ALIGNMENT: usize = 64;

/// Ordinary process memory, zeroed at allocation.
struct HostMemory {
    words: Vec<u64>,
    start: usize,
    bytes: usize,
}

impl HostMemory {
    fn new(bytes: usize) -> Self {
        Self::over(vec![0_u64; (bytes + ALIGNMENT).div_ceil(8)], bytes)
    }

    fn try_new(bytes: usize) -> Option<Self> {
        let words = bytes.checked_add(ALIGNMENT)?.div_ceil(8);
        let words = bytemuck::allocation::try_zeroed_vec(words).ok()?;
        Some(Self::over(words, bytes))
    }

    fn over(words: Vec<u64>, bytes: usize) -> Self {
        let start = words.as_ptr().cast::<u8>().align_offset(ALIGNMENT);
        Self {
            words,
            start,
            bytes,
        }
    }
}

impl Memory for HostMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn owner(&self) -> &'static str {
        "host"
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.start..self.start + self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.start..self.start + self.bytes]
    }
}

/// A Rust type that corresponds to a [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The element type.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
element!(f64 => F64, f32 => F32, half::f16 => F16, half::bf16 => Bf16, i64 => I64, i32 => I32, u32 => U32, u8 => U8);

/// A sequence of `len` elements of one type.
pub struct Buffer {
    dtype: DType,
    len: usize,
    memory: Box<dyn Memory>,
}

impl Buffer {
    /// Allocates zeroed host memory for `len` elements. Cost: one allocation.
    #[must_use]
    pub fn host(dtype: DType, len: usize) -> Self {
        Self::from_memory(dtype, len, Box::new(HostMemory::new(len * dtype.size())))
    }

    /// Allocates zeroed host memory for `len` elements, like [`Buffer::host`], which ends the process instead of
    /// returning an error.
    ///
    /// # Errors
    /// The system has no memory for the elements.
    pub fn try_host(dtype: DType, len: usize) -> Result<Self, AllocationError> {
        let bytes = len.saturating_mul(dtype.size());
        let memory = HostMemory::try_new(bytes).ok_or(AllocationError { bytes })?;
        Ok(Self::from_memory(dtype, len, Box::new(memory)))
    }

    /// Creates a host buffer that holds a copy of `values`.
    #[must_use]
    pub fn copy_of<T: Element>(values: &[T]) -> Self {
        let mut buffer = Self::host(T::DTYPE, values.len());
        buffer.as_mut_slice::<T>().copy_from_slice(values);
        buffer
    }

    /// Creates a buffer in memory from another allocator.
    ///
    /// # Panics
    /// If host-addressable memory is too short for the elements.
    #[must_use]
    pub fn from_memory(dtype: DType, len: usize, memory: Box<dyn Memory>) -> Self {
        assert!(
            memory.kind() == MemoryKind::Device || memory.bytes().len() >= len * dtype.size(),
            "memory of {} is shorter than {len} elements of {dtype}",
            memory.owner(),
        );
        Self { dtype, len, memory }
    }

    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the kind of memory.
    #[must_use]
    pub fn memory_kind(&self) -> MemoryKind {
        self.memory.kind()
    }

    /// Returns the name of the allocator.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.memory.owner()
    }

    /// Shortens the buffer to `len` elements; the memory stays allocated.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Changes the number of elements to `len` if the memory is long enough, and returns whether it is. Elements that did not
    /// belong to the buffer have any values.
    pub fn set_len(&mut self, len: usize) -> bool {
        let bytes = len.saturating_mul(self.dtype.size());
        let fits = len <= self.len || bytes <= self.memory.bytes().len();
        if fits {
            self.len = len;
        }
        fits
    }

    /// Returns the bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.len * self.dtype.size()]
    }

    /// Returns the bytes of the elements for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.len * self.dtype.size();
        &mut self.memory.bytes_mut()[..bytes]
    }

    /// Returns the elements.
    ///
    /// # Panics
    /// If `T` is not the element type, which is a bug of the caller.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype, "buffer read as another element type");
        bytemuck::cast_slice(self.bytes())
    }

    /// Returns the elements for writing.
    ///
    /// # Panics
    /// If `T` is not the element type, which is a bug of the caller.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(
            T::DTYPE,
            self.dtype,
            "buffer written as another element type"
        );
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Buffer({} x {}, {:?} of {})",
            self.len,
            self.dtype,
            self.memory_kind(),
            self.owner()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_aligned_zeroed_and_typed() {
        for len in [0, 1, 3, 64, 1000] {
            let mut buffer = Buffer::host(DType::F32, len);
            assert_eq!(buffer.bytes().as_ptr().align_offset(ALIGNMENT), 0);
            assert!(buffer.as_slice::<f32>().iter().all(|&x| x == 0.0));
            buffer.as_mut_slice::<f32>().fill(1.5);
            assert_eq!(buffer.as_slice::<f32>(), vec![1.5; len]);
        }
    }

    #[test]
    fn a_buffer_becomes_no_longer_than_its_memory() {
        let mut buffer = Buffer::copy_of(&[1_u32, 2, 3]);
        assert!(buffer.set_len(1));
        assert_eq!(buffer.as_slice::<u32>(), [1]);
        assert!(buffer.set_len(3));
        assert_eq!(buffer.as_slice::<u32>(), [1, 2, 3]);
        assert!(!buffer.set_len(4) && !buffer.set_len(usize::MAX));
        assert_eq!(buffer.len(), 3);
    }

    #[test]
    #[should_panic(expected = "another element type")]
    fn a_wrong_element_type_is_a_bug() {
        let _ = Buffer::host(DType::F32, 4).as_slice::<i32>();
    }
}
