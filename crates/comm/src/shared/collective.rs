//! The operations over shared memory: which rank reads and writes which bytes at which point.
//!
//! | operation | bytes read and written by each of `n` ranks, `B` bytes each |
//! |---|---|
//! | short ones | `n B` read |
//! | all_reduce, exact sum | `B` read, `B` written, in slices: each rank reduces its slice of all buffers |
//! | reduce_scatter, scattered exact sum | `B` read, `B / n` written |
//! | all_gather | `n B` read and written |
//! | broadcast | `B` read and written |
//!
//! Memory that is not shared is copied through a ring of stages, piece by piece: while one rank
//! reduces a piece, another one copies the next. A rank never copies its own slice to the stages:
//! no other rank reads it, and its result is written there instead.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Buffer;

use super::control::{OperandLocation, RIDE_MAX, STAGE_BYTES, STAGES};
use super::executor::{CurrentOperation, SharedExecutor};
use super::flow::{PieceStep, moved, part, scaled};
use super::halt::HaltReason;
use super::mapping::{Mapping, Span};
use super::tree::{self, ReduceKernel, ReductionTree};

/// Slices start at multiples of this many elements.
const GRAIN: usize = 64;
/// Minimum size of a piece, in bytes.
const PIECE_BYTES_MIN: usize = 64 << 10;

/// Maximum number of ranks whose inline bytes are held at once.
const RIDERS_MAX: usize = 16;

/// Returns the part of `len` elements that belongs to `rank` of `size`.
fn slice(len: usize, rank: usize, size: usize) -> Range<usize> {
    let each = len.div_ceil(size).next_multiple_of(GRAIN);
    (rank * each).min(len)..((rank + 1) * each).min(len)
}

impl SharedExecutor {
    /// Sums the operands of all ranks along a tree; the result is at the front of every buffer.
    pub(super) fn reduce_all(
        &mut self,
        current: &CurrentOperation<'_>,
        tree: &ReductionTree,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
    ) -> Result<(), HaltReason> {
        self.reduce(current, tree, kernel, buffer, None)
    }

    /// Sums the operands of all ranks along a tree; each rank keeps its `lens[rank]` elements of the sum.
    pub(super) fn reduce_to_owners(
        &mut self,
        current: &CurrentOperation<'_>,
        tree: &ReductionTree,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
        lens: &[usize],
    ) -> Result<(), HaltReason> {
        let start: usize = lens[..self.me].iter().sum();
        let mine = start..start + lens[self.me];
        self.reduce(current, tree, kernel, buffer, Some(mine.clone()))?;
        let bytes = scaled(&mine, kernel.dtype.size());
        buffer.bytes_mut().copy_within(bytes, 0);
        buffer.truncate(mine.len());
        Ok(())
    }

    /// Sums the operands of all ranks along a tree, at the front of each buffer. With `kept`, this rank needs only these
    /// elements of the sum, and every element is kept by one rank.
    fn reduce(
        &mut self,
        current: &CurrentOperation<'_>,
        tree: &ReductionTree,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
        kept: Option<Range<usize>>,
    ) -> Result<(), HaltReason> {
        let (me, element) = (self.me, kernel.dtype.size());
        let own = tree.brought(me);
        let len = buffer.len() / own.max(1);
        if tree.operands_max * len * element <= self.inline_max() {
            return self.reduce_inline(current, tree, kernel, buffer, len * element);
        }
        let mut places = vec![self.place(buffer); self.size()];
        self.post(current, places[me], 0, &[]);
        self.meet(current, |peer, post| places[peer] = post.place)?;
        let directions = if kept.is_some() { 1 } else { 2 };
        let each = directions * (len * element) as u64 / self.size() as u64;
        let each = each * (self.size() as u64 - 1);
        self.mailbox.count(each, each);
        let mut regions = Vec::with_capacity(self.size());
        for (rank, &place) in places.iter().enumerate() {
            let bytes = tree.brought(rank) * len * element;
            regions.extend(self.region(rank, place, bytes)?);
        }
        if regions.len() == self.size() {
            self.reduce_in_place(current, tree, kernel, &regions, (len, kept))
        } else {
            self.reduce_staged(current, tree, kernel, buffer, len)
        }
    }

    /// Reduces short operands, one per rank: every rank reads all of them.
    pub(super) fn reduce_short(
        &self,
        current: &CurrentOperation<'_>,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
    ) -> Result<(), HaltReason> {
        if buffer.bytes().len() <= RIDE_MAX && self.size() <= RIDERS_MAX {
            return self.reduce_riding(current, kernel, buffer);
        }
        self.post(current, OperandLocation::Inline, 0, buffer.bytes());
        self.meet(current, |_, _| ())?;
        let result = Span::of(buffer.bytes_mut());
        for (rank, neighbour) in self.local_peers.iter().enumerate() {
            let theirs = neighbour.control.inline(current.sequence, result.len());
            if rank > 0 {
                result.combine(theirs, |into, from| kernel.apply(into, from));
            } else if rank != self.me {
                result.copy_from(theirs);
            }
        }
        Ok(())
    }

    /// Reduces operands that are so short that they are part of the announcements.
    fn reduce_riding(
        &self,
        current: &CurrentOperation<'_>,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
    ) -> Result<(), HaltReason> {
        let own = buffer.bytes_mut();
        self.post(current, OperandLocation::Inline, 0, own);
        let mut rides = [0; RIDERS_MAX];
        bytemuck::bytes_of_mut(&mut rides[self.me])[..own.len()].copy_from_slice(own);
        self.meet(current, |peer, post| rides[peer] = post.ride)?;
        let (first, rest) = rides.split_at_mut(1);
        let sum = &mut bytemuck::cast_slice_mut(first)[..own.len()];
        for theirs in &rest[..self.size() - 1] {
            kernel.apply(sum, &bytemuck::bytes_of(theirs)[..own.len()]);
        }
        own.copy_from_slice(sum);
        Ok(())
    }

    /// Reduces short operands with several on a rank, or in another order than that of ranks.
    fn reduce_inline(
        &mut self,
        current: &CurrentOperation<'_>,
        tree: &ReductionTree,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
        bytes: usize,
    ) -> Result<(), HaltReason> {
        self.post(current, OperandLocation::Inline, 0, buffer.bytes());
        self.meet(current, |_, _| ())?;
        let room = bytes.next_multiple_of(64);
        self.with_scratch(tree.operands.len() * room, |this, scratch| {
            let mut copies = Vec::with_capacity(tree.operands.len());
            for (at, &(rank, place)) in tree.operands.iter().enumerate() {
                let all = this
                    .control(rank)
                    .inline(current.sequence, tree.brought(rank) * bytes);
                let copy = scratch.part(at * room..at * room + bytes);
                copy.copy_from(all.part(place * bytes..(place + 1) * bytes));
                copies.push(copy);
            }
            let result = Span::of(&mut buffer.bytes_mut()[..bytes]);
            tree::reduce(&copies, &tree.additions, None, &[result], kernel);
            Ok(())
        })
    }

    /// Reduces when all buffers are shared: each rank reduces its slice and writes it to all buffers, or reduces the
    /// elements that it keeps and writes them to its own one.
    fn reduce_in_place(
        &mut self,
        current: &CurrentOperation<'_>,
        tree: &ReductionTree,
        kernel: ReduceKernel,
        regions: &[(Arc<Mapping>, u64)],
        (len, kept): (usize, Option<Range<usize>>),
    ) -> Result<(), HaltReason> {
        let element = kernel.dtype.size();
        let targets = match kept {
            Some(_) => &regions[self.me..=self.me],
            None => regions,
        };
        let mine = kept.unwrap_or_else(|| slice(len, self.me, self.size()));
        let mine = scaled(&mine, element);
        let work = |step, _| {
            if step == PieceStep::Work && !mine.is_empty() {
                let of = |&(rank, place): &(usize, usize)| {
                    part(&regions[rank], &moved(&mine, place * len * element))
                };
                let operands: Vec<Span<'_>> = tree.operands.iter().map(of).collect();
                let results: Vec<Span<'_>> =
                    targets.iter().map(|region| part(region, &mine)).collect();
                tree::reduce(&operands, &tree.additions, None, &results, kernel);
            }
        };
        self.flow(current, 1, |_| false, len * element, work)
    }

    /// Reduces when some buffer is not shared: all ranks use the stages.
    fn reduce_staged(
        &mut self,
        current: &CurrentOperation<'_>,
        tree: &ReductionTree,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
        len: usize,
    ) -> Result<(), HaltReason> {
        let (me, size, element) = (self.me, self.size(), kernel.dtype.size());
        let own = tree.brought(me);
        let piece_len = piece_len(len, tree.operands_max * element, size);
        let pieces = len.div_ceil(piece_len) as u32;
        // A slice has the same offset in every piece, also in the shorter last one: the bytes that a rank
        // copies in never overwrite a result that others have not copied out yet.
        let slice_of = |rank: usize, count: usize| {
            let whole = slice(piece_len.min(len), rank, size);
            whole.start.min(count)..whole.end.min(count)
        };
        let host = Span::of(buffer.bytes_mut());
        let controls = self.controls();
        let stage = |rank: usize, piece: u32, node: usize, range: &Range<usize>| {
            controls[rank]
                .stage(piece)
                .part(scaled(&moved(range, node * piece_len), element))
        };
        let step = |step, piece: u32| {
            let start = piece as usize * piece_len;
            let count = piece_len.min(len - start);
            let at_host = |node: usize, range: &Range<usize>| {
                host.part(scaled(&moved(range, node * len + start), element))
            };
            let mine = slice_of(me, count);
            match step {
                PieceStep::Bring => {
                    for node in 0..own {
                        for range in [0..mine.start, mine.end..count] {
                            stage(me, piece, node, &range).copy_from(at_host(node, &range));
                        }
                    }
                }
                PieceStep::Work if mine.is_empty() => {}
                PieceStep::Work => {
                    let of = |&(rank, node): &(usize, usize)| {
                        if rank == me {
                            at_host(node, &mine)
                        } else {
                            stage(rank, piece, node, &mine)
                        }
                    };
                    let operands: Vec<Span<'_>> = tree.operands.iter().map(of).collect();
                    let (home, shown) = (at_host(0, &mine), stage(me, piece, 0, &mine));
                    let seed = (tree.operands[0].0 != me).then_some(shown);
                    tree::reduce(&operands, &tree.additions, seed, &[home, shown], kernel);
                }
                PieceStep::Take => {
                    for rank in (0..size).filter(|&rank| rank != me) {
                        let theirs = slice_of(rank, count);
                        at_host(0, &theirs).copy_from(stage(rank, piece, 0, &theirs));
                    }
                }
            }
        };
        self.flow(current, pieces, |_| true, len * element, step)
    }
}

/// Returns the length of a piece in elements: it fits a stage, in whole slices, and all pieces have
/// about the same length.
fn piece_len(len: usize, bytes_each: usize, size: usize) -> usize {
    let most = (STAGE_BYTES / bytes_each.max(1)).max(1);
    let least = PIECE_BYTES_MIN / bytes_each.max(1);
    let wanted = len
        .div_ceil(STAGES as usize)
        .max(least)
        .next_multiple_of(GRAIN * size);
    let longest = wanted.min(most).max(1);
    let even = len.div_ceil(len.div_ceil(longest).max(1));
    even.next_multiple_of(GRAIN).min(longest)
}
