//! [`View`]: the memory of a Python object, and [`Loan`], which says when an operation has given it back.

use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use ronde::core::{Buffer, DType, Memory, MemoryKind};

/// Contiguous memory of a Python object, such as a numpy array, which stays in place while this exists.
pub(crate) struct View {
    buffer: PyUntypedBuffer,
    dtype: DType,
}

impl View {
    /// Returns the memory of an object with a buffer interface.
    ///
    /// # Errors
    /// It has none, it is not contiguous or not aligned, or its elements have another type than those of ronde.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        let format = buffer.format().to_string_lossy().into_owned();
        let dtype = dtype(&buffer, &format).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "elements of the format `{format}` ({} bytes) are not supported",
                buffer.item_size()
            ))
        })?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the array is not contiguous"));
        }
        let view = Self { buffer, dtype };
        match view.start().as_ptr().addr().is_multiple_of(dtype.size()) {
            true => Ok(view),
            false => Err(PyValueError::new_err("the array is not aligned")),
        }
    }

    /// Returns the memory of an object for changes.
    ///
    /// # Errors
    /// As [`View::of`], and when it can only be read.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let view = Self::of(object)?;
        if view.buffer.readonly() {
            return Err(PyValueError::new_err("the array cannot be written"));
        }
        Ok(view)
    }

    /// Returns the address of the first element; any aligned address if there is none.
    fn start(&self) -> NonNull<u8> {
        let start = NonNull::new(self.buffer.buf_ptr().cast());
        let has_elements = self.buffer.item_count() > 0;
        start
            .filter(|_| has_elements)
            .unwrap_or(NonNull::<u64>::dangling().cast())
    }

    /// Returns the elements, if they are float32.
    ///
    /// # Errors
    /// They have another type.
    ///
    /// # Safety
    /// Nothing writes to them while the slice exists.
    #[expect(unsafe_code, reason = "the caller makes promises")]
    pub(crate) unsafe fn floats(&self) -> PyResult<&[f32]> {
        let start = self.start_of_floats()?;
        // SAFETY: the buffer's memory is aligned, exists as long as `self`, and the caller promises the rest.
        Ok(unsafe { std::slice::from_raw_parts(start, self.buffer.item_count()) })
    }

    /// Returns the elements, if they are float32, for changes.
    ///
    /// # Errors
    /// They have another type.
    ///
    /// # Safety
    /// Nothing else reads or writes them while the slice exists.
    #[expect(unsafe_code, reason = "the caller makes promises")]
    pub(crate) unsafe fn floats_mut(&mut self) -> PyResult<&mut [f32]> {
        let start = self.start_of_floats()?;
        // SAFETY: as in `floats`.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, self.buffer.item_count()) })
    }

    fn start_of_floats(&self) -> PyResult<*mut f32> {
        match self.dtype == DType::F32 {
            true => Ok(self.start().as_ptr().cast()),
            false => Err(PyTypeError::new_err(format!(
                "expected elements of float32, not {}",
                self.dtype
            ))),
        }
    }

    /// Returns a buffer over this memory, and when it is given back.
    ///
    /// # Safety
    /// `self` stays, and nothing else reads or writes the memory, until the [`Loan`] has ended.
    #[expect(unsafe_code, reason = "the caller makes promises")]
    pub(crate) unsafe fn lend(&mut self) -> (Buffer, Loan) {
        let (back, loan) = channel();
        let memory = Lent {
            start: self.start(),
            bytes: self.buffer.len_bytes(),
            _back: back,
        };
        let buffer = Buffer::from_memory(self.dtype, self.buffer.item_count(), Box::new(memory));
        (buffer, Loan(loan))
    }

    /// Replaces the elements by those of a buffer of the same type and length, unless they lie there already.
    pub(crate) fn fill(&mut self, values: &Buffer) {
        let start = self.start().as_ptr();
        let bytes = values.bytes();
        if !std::ptr::eq(bytes.as_ptr(), start) && bytes.len() == self.buffer.len_bytes() {
            #[expect(unsafe_code, reason = "foreign memory")]
            // SAFETY: both have this length, and memory of ronde's does not overlap that of Python.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            }
        }
    }
}

/// Returns the element type of a buffer; `None`: ronde has no such type.
fn dtype(buffer: &PyUntypedBuffer, format: &str) -> Option<DType> {
    if matches!(format.trim_start_matches(['@', '=', '<']), "e") {
        return Some(DType::F16);
    }
    // Big-endian numbers.
    if format.starts_with(['>', '!']) && buffer.item_size() > 1 {
        return None;
    }
    Some(match ElementType::from_format(buffer.format()) {
        ElementType::Float { bytes: 8 } => DType::F64,
        ElementType::Float { bytes: 4 } => DType::F32,
        ElementType::SignedInteger { bytes: 8 } => DType::I64,
        ElementType::SignedInteger { bytes: 4 } => DType::I32,
        ElementType::UnsignedInteger { bytes: 4 } => DType::U32,
        ElementType::UnsignedInteger { bytes: 1 } => DType::U8,
        _ => return None,
    })
}

/// Memory of a [`View`].
struct Lent {
    start: NonNull<u8>,
    bytes: usize,
    /// Dropped with the memory.
    _back: Sender<()>,
}

#[expect(
    unsafe_code,
    reason = "a pointer may go to the thread that runs the operation"
)]
// SAFETY: the memory is plain bytes, and nothing else accesses it while it is lent, see `View::lend`.
unsafe impl Send for Lent {}
#[expect(unsafe_code, reason = "a reference may be read by another thread")]
// SAFETY: as above, and a shared reference only reads.
unsafe impl Sync for Lent {}

impl Memory for Lent {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn owner(&self) -> &'static str {
        "python"
    }

    #[expect(unsafe_code, reason = "foreign memory")]
    fn bytes(&self) -> &[u8] {
        // SAFETY: `View::lend` guarantees that these bytes exist and are used by nothing else until the loan ends.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    #[expect(unsafe_code, reason = "foreign memory")]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is the only access to them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// Says when lent memory is released.
pub(crate) struct Loan(Receiver<()>);

impl Loan {
    /// Waits until the memory is released; returns `false` if it is not after `limit`.
    pub(crate) fn ended_within(self, limit: Duration) -> bool {
        // Nothing is ever sent: the sender is dropped with the memory.
        self.0.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}
