//! [`DeviceBuffer`]: memory of a device, and views of it.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use crate::memory::HostValues;

/// Memory that only its device can address.
pub trait ForeignMemory: Any + Send + Sync {
    /// Returns the number of floats.
    fn length(&self) -> usize;

    /// Copies all values to the host, after the work that writes them. A device with an error may leave `to` as it is.
    fn read(&self, to: &mut [f32]);

    /// Returns the memory as the type that its device knows. A device writes through it, too: a [`DeviceSliceMut`] is the proof that
    /// no other code uses the range.
    fn as_any(&self) -> &dyn Any;
}

/// Floats in the memory of a device.
pub enum DeviceBuffer {
    /// In ordinary memory.
    Host(HostValues),
    /// In memory that only its device can address.
    Foreign(Box<dyn ForeignMemory>),
}

impl DeviceBuffer {
    /// Returns the number of floats.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Foreign(memory) => memory.length(),
        }
    }

    /// Copies all values to the host, after the work that writes them.
    pub fn read(&self, to: &mut [f32]) {
        match self {
            Self::Host(values) => to.copy_from_slice(values),
            Self::Foreign(memory) => memory.read(to),
        }
    }

    /// Returns the values for kernels to read.
    #[must_use]
    pub fn slice(&self) -> DeviceSlice<'_> {
        match self {
            Self::Host(values) => DeviceSlice::Host(values),
            Self::Foreign(memory) => DeviceSlice::Foreign {
                start: 0,
                length: memory.length(),
                memory: memory.as_ref(),
            },
        }
    }

    /// Returns the values for kernels to write.
    #[must_use]
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_> {
        match self {
            Self::Host(values) => DeviceSliceMut::Host(values),
            Self::Foreign(memory) => DeviceSliceMut::Foreign {
                start: 0,
                length: memory.length(),
                memory: &**memory,
            },
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slice().fmt(f)
    }
}

/// Floats that kernels of a device read.
#[derive(Clone, Copy)]
pub enum DeviceSlice<'a> {
    /// In ordinary memory.
    Host(&'a [f32]),
    /// A range of memory that only its device can address.
    Foreign {
        /// The whole memory.
        memory: &'a dyn ForeignMemory,
        /// The first float.
        start: usize,
        /// The number of floats.
        length: usize,
    },
}

impl<'a> DeviceSlice<'a> {
    /// Returns the number of floats.
    #[must_use]
    pub fn length(self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Foreign { length, .. } => length,
        }
    }

    /// Returns a range of the values.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Self {
        match self {
            Self::Host(values) => Self::Host(&values[range]),
            Self::Foreign {
                memory,
                start,
                length,
            } => {
                let (start, length) = part_of(start, length, range);
                Self::Foreign {
                    memory,
                    start,
                    length,
                }
            }
        }
    }

    /// Returns the values.
    ///
    /// # Panics
    /// When they are in memory that only its device can address.
    #[must_use]
    pub fn host(self) -> &'a [f32] {
        match self {
            Self::Host(values) => values,
            Self::Foreign { .. } => panic!("memory of a device was read as memory of the host"),
        }
    }

    /// Returns a copy on the host, after the work that writes the values. Cost: a copy.
    #[must_use]
    pub fn to_vec(self) -> Vec<f32> {
        match self {
            Self::Host(values) => values.to_vec(),
            Self::Foreign {
                memory,
                start,
                length,
            } => {
                let mut values = vec![0.0; memory.length()];
                memory.read(&mut values);
                values.truncate(start + length);
                values.split_off(start)
            }
        }
    }

    /// Returns a copy on the host of sums in f64, which a kernel has written in the bits of two floats each, the low half first.
    /// Waits for the work that writes them.
    #[must_use]
    pub fn to_f64(self) -> Vec<f64> {
        let floats = self.to_vec();
        let (pairs, _) = floats.as_chunks::<2>();
        let number = |pair: &[f32; 2]| {
            let [low, high] = pair.map(|half| u64::from(half.to_bits()));
            f64::from_bits(high << 32 | low)
        };
        pairs.iter().map(number).collect()
    }
}

/// Writes sums as [`DeviceSlice::to_f64`] reads them.
///
/// # Panics
/// When `to` does not have two floats for each.
pub(crate) fn write_f64(sums: &[f64], to: &mut [f32]) {
    let (pairs, rest) = to.as_chunks_mut::<2>();
    assert!(
        rest.is_empty() && pairs.len() == sums.len(),
        "two floats for each sum"
    );
    for (pair, sum) in pairs.iter_mut().zip(sums) {
        let bits = sum.to_bits();
        *pair = [bits as u32, (bits >> 32) as u32].map(f32::from_bits);
    }
}

impl fmt::Debug for DeviceSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(values) => values.fmt(f),
            Self::Foreign { length, .. } => write!(f, "[{length} floats of a device]"),
        }
    }
}

/// Returns the start and the length of a range of a slice.
fn part_of(start: usize, length: usize, range: Range<usize>) -> (usize, usize) {
    assert!(
        range.start <= range.end && range.end <= length,
        "range {range:?} of {length} floats of a device"
    );
    (start + range.start, range.len())
}

/// Floats that kernels of a device write.
pub enum DeviceSliceMut<'a> {
    /// In ordinary memory.
    Host(&'a mut [f32]),
    /// A range of memory that only its device can address.
    Foreign {
        /// The whole memory.
        memory: &'a dyn ForeignMemory,
        /// The first float.
        start: usize,
        /// The number of floats.
        length: usize,
    },
}

impl<'a> DeviceSliceMut<'a> {
    /// Returns the number of floats.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Foreign { length, .. } => *length,
        }
    }

    /// Returns the same values for a shorter time.
    pub fn reborrow(&mut self) -> DeviceSliceMut<'_> {
        match self {
            Self::Host(values) => DeviceSliceMut::Host(values),
            Self::Foreign {
                memory,
                start,
                length,
            } => DeviceSliceMut::Foreign {
                memory: *memory,
                start: *start,
                length: *length,
            },
        }
    }

    /// Returns a range of the values.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Self {
        match self {
            Self::Host(values) => Self::Host(&mut values[range]),
            Self::Foreign {
                memory,
                start,
                length,
            } => {
                let (start, length) = part_of(start, length, range);
                Self::Foreign {
                    memory,
                    start,
                    length,
                }
            }
        }
    }

    /// Divides the values in two parts, which kernels can write together.
    ///
    /// # Panics
    /// When there are fewer than `middle`.
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        match self {
            Self::Host(values) => {
                let (first, second) = values.split_at_mut(middle);
                (Self::Host(first), Self::Host(second))
            }
            Self::Foreign {
                memory,
                start,
                length,
            } => {
                let part = |range| {
                    let (start, length) = part_of(start, length, range);
                    Self::Foreign {
                        memory,
                        start,
                        length,
                    }
                };
                (part(0..middle), part(middle..length))
            }
        }
    }

    /// Returns the values.
    ///
    /// # Panics
    /// When they are in memory that only its device can address.
    #[must_use]
    pub fn host(self) -> &'a mut [f32] {
        match self {
            Self::Host(values) => values,
            Self::Foreign { .. } => panic!("memory of a device was written as memory of the host"),
        }
    }
}
