//! [`SparseValues`]: a vector with mostly zeros, as the runs of blocks that are not.
//!
//! The gradient of a table (an embedding, factors of users and items) is zero except in the rows that a shard looked up. Only
//! blocks of [`SPARSE_BLOCK`] elements that have a bit set are kept and sent. A block that is left out counts as `+0.0` in
//! all elements, so sums of such values have the bits of the dense sum, also where an element is `-0.0` or NaN.

use std::ops::Range;

use crate::dtype::DType;
use crate::exact;

/// The number of elements of a block: 64 bytes.
pub const SPARSE_BLOCK: usize = 16;

/// A vector of f32 without its blocks of zeros.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SparseValues {
    /// The number of elements of the vector.
    len: usize,
    /// Runs of blocks: in order, not empty, neither overlapping nor adjacent.
    runs: Vec<Range<u32>>,
    /// The elements of these blocks; the last block of the vector is filled with zeros.
    values: Vec<f32>,
}

/// The size of [`SparseValues`], which a receiver needs to read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseSize {
    /// The number of runs.
    pub runs: u32,
    /// The number of blocks.
    pub blocks: u32,
}

impl SparseSize {
    /// Returns the number of bytes of [`SparseValues::encode`].
    #[must_use]
    pub fn bytes(self) -> usize {
        8 * self.runs as usize + 4 * SPARSE_BLOCK * self.blocks as usize
    }
}

impl SparseValues {
    /// Collects the blocks of a vector that are not zero. Returns `None` as soon as they would take more than `bytes_max` bytes;
    /// a dense vector is recognised early.
    #[must_use]
    pub fn of(vector: &[f32], bytes_max: usize) -> Option<Self> {
        let mut this = Self {
            len: vector.len(),
            ..Self::default()
        };
        let mut left = bytes_max;
        for (block, values) in (0_u32..).zip(vector.chunks(SPARSE_BLOCK)) {
            if values.iter().all(|value| value.to_bits() == 0) {
                continue;
            }
            let is_next = this.runs.last().is_some_and(|run| run.end == block);
            left = left.checked_sub(4 * SPARSE_BLOCK + if is_next { 0 } else { 8 })?;
            match this.runs.last_mut().filter(|_| is_next) {
                Some(run) => run.end += 1,
                None => this.runs.push(block..block + 1),
            }
            this.values.extend_from_slice(values);
            let filled = this.values.len().next_multiple_of(SPARSE_BLOCK);
            this.values.resize(filled, 0.0);
        }
        Some(this)
    }

    /// Returns the size.
    #[must_use]
    pub fn size(&self) -> SparseSize {
        SparseSize {
            runs: self.runs.len() as u32,
            blocks: (self.values.len() / SPARSE_BLOCK) as u32,
        }
    }

    /// Appends the runs and the values as bytes: [`SparseSize::bytes`].
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.reserve(self.size().bytes());
        for run in &self.runs {
            bytes.extend_from_slice(&run.start.to_le_bytes());
            bytes.extend_from_slice(&run.end.to_le_bytes());
        }
        bytes.extend(self.values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Reads what [`SparseValues::encode`] has written for a vector of `len` elements. `None` if the bytes are not valid.
    #[must_use]
    pub fn decode(bytes: &[u8], len: usize, size: SparseSize) -> Option<Self> {
        if bytes.len() != size.bytes() {
            return None;
        }
        let (runs, values) = bytes.split_at(8 * size.runs as usize);
        let word = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        let (mut end, mut blocks) = (None, 0);
        let mut read = Vec::with_capacity(size.runs as usize);
        for pair in runs.chunks_exact(8) {
            let run = word(&pair[..4])?..word(&pair[4..])?;
            let follows = end.is_none_or(|end| end < run.start);
            if !follows || run.is_empty() {
                return None;
            }
            blocks += u64::from(run.end - run.start);
            end = Some(run.end);
            read.push(run);
        }
        let is_within = end.is_none_or(|end| end as usize <= len.div_ceil(SPARSE_BLOCK));
        if blocks != u64::from(size.blocks) || !is_within {
            return None;
        }
        let values = values.chunks_exact(4);
        let values = values.map(|value| Some(f32::from_bits(word(value)?)));
        Some(Self {
            len,
            runs: read,
            values: values.collect::<Option<_>>()?,
        })
    }

    /// Returns the sum of two vectors of the same length, with the bits of the dense sum: see [`exact::add`].
    ///
    /// # Panics
    /// If the lengths differ, which is a bug of the caller.
    #[must_use]
    pub fn add(&self, right: &Self) -> Self {
        assert_eq!(self.len, right.len, "lengths of an exact sum differ");
        let runs = union(&self.runs, &right.runs);
        let mut sum = self.spread(&runs);
        let right = right.spread(&runs);
        exact::add(
            DType::F32,
            bytemuck::cast_slice_mut(&mut sum),
            bytemuck::cast_slice(&right),
        );
        Self {
            len: self.len,
            runs,
            values: sum,
        }
    }

    /// Returns the values of `runs`, which include all own ones.
    fn spread(&self, runs: &[Range<u32>]) -> Vec<f32> {
        let blocks: usize = runs.iter().map(ExactSizeIterator::len).sum();
        let mut spread = vec![0.0; blocks * SPARSE_BLOCK];
        let (mut own, mut rest, mut offset) = (self.runs.iter().peekable(), &*self.values, 0);
        for run in runs {
            while let Some(within) = own.next_if(|own| own.end <= run.end) {
                let (values, after) = rest.split_at(within.len() * SPARSE_BLOCK);
                let at = (offset + (within.start - run.start) as usize) * SPARSE_BLOCK;
                spread[at..at + values.len()].copy_from_slice(values);
                rest = after;
            }
            offset += run.len();
        }
        spread
    }

    /// Writes the elements from number `first` on to `to`, with the zeros.
    pub fn write(&self, first: usize, to: &mut [f32]) {
        to.fill(0.0);
        let end = first + to.len();
        let mut rest = &*self.values;
        for run in &self.runs {
            let (values, after) = rest.split_at(run.len() * SPARSE_BLOCK);
            rest = after;
            let start = run.start as usize * SPARSE_BLOCK;
            let within = start.max(first)..(start + values.len()).min(end);
            if within.start < within.end {
                to[within.start - first..within.end - first]
                    .copy_from_slice(&values[within.start - start..within.end - start]);
            }
        }
    }
}

/// Returns the blocks that are in one of two lists of runs.
fn union(left: &[Range<u32>], right: &[Range<u32>]) -> Vec<Range<u32>> {
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    let mut all: Vec<Range<u32>> = Vec::with_capacity(left.len() + right.len());
    loop {
        let is_left = match (left.peek(), right.peek()) {
            (Some(left), Some(right)) => left.start <= right.start,
            (left, _) => left.is_some(),
        };
        let next = if is_left { left.next() } else { right.next() };
        let Some(run) = next else { return all };
        match all.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => all.push(run.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
