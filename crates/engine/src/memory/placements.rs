//! [`Placements`]: the offsets of blocks in a few large slabs, without the memory itself.
//!
//! A block takes the shortest free range between others, or else the memory after them; only memory that was ever written counts.
//! Equal steps have equal offsets, so nothing grows later. Blocks of separate lengths on the heap, kept in lists for reuse, took up
//! to a third more memory than planned, because short blocks divided the heap.

use std::collections::BTreeMap;

/// The length of a slab; longer blocks have a separate slab. Memory of a slab that was never used costs nothing.
const SLAB: usize = 1 << 26;
/// Blocks begin at multiples of this number of floats: a cache line.
const LINE: usize = 16;

/// A block of floats in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) slab: usize,
    pub(crate) start: usize,
    /// The number of floats, rounded up to whole cache lines.
    pub(crate) length: usize,
}

/// The memory of a device, in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// In use.
    pub in_use: usize,
    /// In use, or free and kept for the next blocks.
    pub taken: usize,
}

/// The blocks of some slabs. A block takes the shortest free range between others that is long enough, or else the memory after all
/// blocks of the first slab with enough of it, used before or not. So steps that take and return the same blocks have the same
/// placements. Neighbouring free ranges are one range.
#[derive(Debug, Default)]
pub(crate) struct Placements {
    slabs: Vec<SlabUse>,
    in_use: usize,
}

#[derive(Debug)]
struct SlabUse {
    length: usize,
    /// The end of the memory that was ever used.
    end: usize,
    /// The lengths of free ranges before `end`, by their starts.
    free: BTreeMap<usize, usize>,
}

impl SlabUse {
    /// Returns the start of the free range at the end, or the end.
    fn tail(&self) -> usize {
        match self.free.last_key_value() {
            Some((start, length)) if start + length == self.end => *start,
            _ => self.end,
        }
    }
}

impl Placements {
    /// Finds memory for a number of floats, in a new slab if no other has it. Cost: a pass over the free ranges.
    pub(crate) fn take(&mut self, length: usize) -> Placement {
        self.take_from_slabs(length).unwrap_or_else(|| {
            self.slabs.push(SlabUse {
                length: Self::slab_length(length),
                end: 0,
                free: BTreeMap::new(),
            });
            let found = self.take_from_slabs(length);
            found.unwrap_or_else(|| unreachable!("the new slab is long enough"))
        })
    }

    /// Returns the length of a new slab for a block of a number of floats.
    pub(crate) fn slab_length(length: usize) -> usize {
        length.next_multiple_of(LINE).max(SLAB)
    }

    /// Finds memory as [`Placements::take`]; `None` if no slab has it.
    pub(crate) fn take_from_slabs(&mut self, length: usize) -> Option<Placement> {
        let length = length.next_multiple_of(LINE);
        let found = self.take_free(length).or_else(|| self.take_end(length))?;
        self.in_use += length;
        Some(found)
    }

    /// Takes the memory after all blocks of the first slab that has enough of it.
    fn take_end(&mut self, length: usize) -> Option<Placement> {
        let fits = |slab: &SlabUse| slab.tail() + length <= slab.length;
        let slab = self.slabs.iter().position(fits)?;
        let found = &mut self.slabs[slab];
        let start = found.tail();
        found.free.remove(&start);
        let end = start + length;
        if found.end > end {
            found.free.insert(end, found.end - end);
        }
        found.end = found.end.max(end);
        Some(Placement {
            slab,
            start,
            length,
        })
    }

    /// Takes the start of the shortest free range between blocks that is long enough.
    fn take_free(&mut self, length: usize) -> Option<Placement> {
        let slabs = self.slabs.iter().enumerate();
        let ranges = slabs.flat_map(|(index, slab)| {
            let between = slab.free.range(..slab.tail());
            let long = between.filter(|(_, free)| **free >= length);
            long.map(move |(start, free)| (*free, index, *start))
        });
        let (free, slab, start) = ranges.min()?;
        let ranges = &mut self.slabs[slab].free;
        ranges.remove(&start);
        if free > length {
            ranges.insert(start + length, free - length);
        }
        Some(Placement {
            slab,
            start,
            length,
        })
    }

    /// Returns a block to the free ranges.
    pub(crate) fn give(&mut self, block: Placement) {
        let Placement {
            slab,
            mut start,
            mut length,
        } = block;
        self.in_use -= length;
        let free = &mut self.slabs[slab].free;
        if let Some(after) = free.remove(&(start + length)) {
            length += after;
        }
        if let Some((before, count)) = free.range(..start).next_back()
            && before + count == start
        {
            (start, length) = (*before, length + count);
        }
        free.insert(start, length);
    }

    /// Returns the free ranges that were used before.
    pub(crate) fn free_ranges(&self) -> impl Iterator<Item = Placement> {
        let slabs = self.slabs.iter().enumerate();
        slabs.flat_map(|(slab, of)| {
            of.free.iter().map(move |(start, length)| Placement {
                slab,
                start: *start,
                length: *length,
            })
        })
    }

    /// Returns the memory that all blocks take.
    pub(crate) fn memory(&self) -> MemoryUse {
        MemoryUse {
            in_use: self.in_use,
            taken: self.slabs.iter().map(|slab| slab.end).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(placements: &mut Placements, lengths: &[usize]) -> Vec<Placement> {
        lengths
            .iter()
            .map(|length| placements.take(*length))
            .collect()
    }

    #[test]
    fn the_shortest_free_range_is_used_and_neighbours_become_one() {
        let mut all = Placements::default();
        let blocks = takes(&mut all, &[64, 32, 96, 16]);
        assert_eq!(
            blocks.iter().map(|block| block.start).collect::<Vec<_>>(),
            [0, 64, 96, 192]
        );
        all.give(blocks[0]);
        all.give(blocks[2]);
        assert_eq!(all.take(80).start, 96);
        assert_eq!(all.take(10).start, 176);
        all.give(blocks[1]);
        assert_eq!(all.take(96).start, 0);
        assert_eq!(all.memory().taken, 208);
    }

    #[test]
    fn the_same_step_takes_the_same_memory_again() {
        let mut all = Placements::default();
        let mut step = || {
            let mut found = Vec::new();
            let blocks = takes(&mut all, &[100, 300, 80, 500]);
            all.give(blocks[1]);
            all.give(blocks[3]);
            let more = takes(&mut all, &[200, 90, 600]);
            found.extend(blocks.iter().chain(&more).copied());
            for block in [blocks[0], blocks[2], more[0], more[1], more[2]] {
                all.give(block);
            }
            (found, all.memory().taken)
        };
        let first = step();
        assert_eq!(step(), first);
    }

    #[test]
    fn a_free_end_grows_and_long_blocks_have_a_slab_of_their_own() {
        let mut all = Placements::default();
        let blocks = takes(&mut all, &[16, 32]);
        all.give(blocks[1]);
        assert_eq!(all.take(64).start, 16);
        assert_eq!(all.memory().taken, 80);
        let long = all.take(SLAB + 1);
        assert_eq!((long.slab, long.start), (1, 0));
        assert_eq!(all.slabs[1].length, SLAB + LINE);
        assert_eq!(all.memory().in_use, 80 + SLAB + LINE);
        all.give(long);
        assert_eq!(all.free_ranges().last().unwrap().length, SLAB + LINE);
    }

    #[test]
    fn blocks_never_overlap() {
        let mut all = Placements::default();
        let mut blocks: Vec<Placement> = Vec::new();
        let mut state = 1_u64;
        for _ in 0..4000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = (state >> 33) as usize;
            if number.is_multiple_of(3) && !blocks.is_empty() {
                all.give(blocks.swap_remove(number % blocks.len()));
            } else {
                let found = all.take(1 + number % 5000);
                let end = found.start + found.length;
                assert!(blocks.iter().all(|block| {
                    block.slab != found.slab
                        || block.start >= end
                        || block.start + block.length <= found.start
                }));
                blocks.push(found);
            }
        }
        let in_use: usize = blocks.iter().map(|block| block.length).sum();
        assert_eq!(all.memory().in_use, in_use);
        let free: usize = all.free_ranges().map(|range| range.length).sum();
        assert_eq!(all.memory().taken, in_use + free);
    }
}
