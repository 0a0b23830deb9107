//! [`ScheduleMemory`]: the caller's buffer and the scratch of one schedule, addressed by regions.

use std::ops::Range;

use ronde_core::buffer::{ALIGNMENT, AllocationError};
use ronde_core::{Buffer, DType};
use ronde_schedule::{Region, Schedule};

/// A range of bytes in one of the two areas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    scratch: bool,
    bytes: Range<usize>,
}

impl MemoryRange {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns a part of these bytes, relative to their start.
    pub(crate) fn part(&self, bytes: Range<usize>) -> Self {
        Self {
            scratch: self.scratch,
            bytes: self.bytes.start + bytes.start..self.bytes.start + bytes.end,
        }
    }

    /// Returns whether the two ranges have a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.scratch == other.scratch
            && self.bytes.start.max(other.bytes.start) < self.bytes.end.min(other.bytes.end)
    }

    /// Returns the offset of `other` within these bytes, if they contain all of it.
    pub(crate) fn offset_of(&self, other: &Self) -> Option<usize> {
        let inside = self.scratch == other.scratch && other.bytes.end <= self.bytes.end;
        let offset = other.bytes.start.checked_sub(self.bytes.start)?;
        inside.then_some(offset)
    }
}

/// The slots of one rank's schedule.
#[derive(Debug)]
pub(crate) struct ScheduleMemory {
    caller: Buffer,
    scratch: Buffer,
    inputs: usize,
    /// Offset of each slot in its area, in bytes.
    starts: Vec<usize>,
    element: usize,
}

impl ScheduleMemory {
    /// Lays out memory for `schedule`. `old` is scratch of an earlier one, reused if it is long enough.
    ///
    /// # Errors
    /// The system has no memory for the scratch.
    pub(crate) fn new(
        schedule: &Schedule,
        dtype: DType,
        caller: Buffer,
        old: Buffer,
    ) -> Result<Self, AllocationError> {
        let element = dtype.size();
        let (mut starts, mut in_caller, mut in_scratch) = (Vec::new(), 0, 0);
        for (slot, len) in schedule.slots.iter().enumerate() {
            if slot < schedule.inputs {
                starts.push(in_caller);
                in_caller += len * element;
            } else {
                starts.push(in_scratch);
                in_scratch += (len * element).next_multiple_of(ALIGNMENT);
            }
        }
        let scratch = if old.len() >= in_scratch {
            old
        } else {
            drop(old);
            Buffer::try_host(DType::U8, in_scratch)?
        };
        Ok(Self {
            caller,
            scratch,
            inputs: schedule.inputs,
            starts,
            element,
        })
    }

    /// Returns the bytes of a region.
    pub(crate) fn place(&self, region: &Region) -> MemoryRange {
        let start = self.starts[region.slot];
        MemoryRange {
            scratch: region.slot >= self.inputs,
            bytes: start + region.elements.start * self.element
                ..start + region.elements.end * self.element,
        }
    }

    /// Returns the bytes of a range.
    pub(crate) fn bytes(&self, place: &MemoryRange) -> &[u8] {
        let area = if place.scratch {
            &self.scratch
        } else {
            &self.caller
        };
        &area.bytes()[place.bytes.clone()]
    }

    /// Returns the bytes of a range, writable.
    pub(crate) fn bytes_mut(&mut self, place: &MemoryRange) -> &mut [u8] {
        let area = if place.scratch {
            &mut self.scratch
        } else {
            &mut self.caller
        };
        &mut area.bytes_mut()[place.bytes.clone()]
    }

    /// Returns the bytes of two ranges that do not overlap, the first one writable.
    pub(crate) fn pair(&mut self, into: &MemoryRange, other: &MemoryRange) -> (&mut [u8], &[u8]) {
        match (into.scratch, other.scratch) {
            (false, true) => (
                &mut self.caller.bytes_mut()[into.bytes.clone()],
                &self.scratch.bytes()[other.bytes.clone()],
            ),
            (true, false) => (
                &mut self.scratch.bytes_mut()[into.bytes.clone()],
                &self.caller.bytes()[other.bytes.clone()],
            ),
            (scratch, _) => {
                let area = if scratch {
                    self.scratch.bytes_mut()
                } else {
                    self.caller.bytes_mut()
                };
                if into.bytes.start < other.bytes.start {
                    let (before, after) = area.split_at_mut(other.bytes.start);
                    (&mut before[into.bytes.clone()], &after[..other.len()])
                } else {
                    let (before, after) = area.split_at_mut(into.bytes.start);
                    (&mut after[..into.len()], &before[other.bytes.clone()])
                }
            }
        }
    }

    /// Returns the result as its own buffer, and the scratch for the next operation.
    ///
    /// # Errors
    /// The system has no memory for the result.
    pub(crate) fn into_result(
        mut self,
        result: &Region,
        dtype: DType,
    ) -> Result<(Buffer, Buffer), AllocationError> {
        let place = self.place(result);
        if place.scratch {
            let mut buffer = Buffer::try_host(dtype, result.len())?;
            buffer.bytes_mut().copy_from_slice(self.bytes(&place));
            return Ok((buffer, self.scratch));
        }
        if place.bytes.start > 0 {
            self.caller.bytes_mut().copy_within(place.bytes, 0);
        }
        self.caller.truncate(result.len());
        Ok((self.caller, self.scratch))
    }

    /// Returns the caller's buffer unchanged, and the scratch.
    pub(crate) fn into_parts(self) -> (Buffer, Buffer) {
        (self.caller, self.scratch)
    }
}
