//! The reduce_scatter over shared memory: operands are only read, and sums are computed in scratch.

use std::sync::Arc;

use ronde_core::Buffer;

use super::control::{OperandLocation, STAGE_BYTES};
use super::executor::{CurrentOperation, SharedExecutor};
use super::flow::{MappedRange, PieceStep, part, scaled};
use super::halt::HaltReason;
use super::mapping::Span;
use super::tree::{self, ReduceKernel, ReductionTree};

/// Size of the scratch of [`blockwise`], in bytes.
const SCRATCH_BYTES: usize = 16 << 10;

/// Reduces operands that are only read, block by block, into `result`.
fn blockwise(
    all: &[Span<'_>],
    chain: &ReductionTree,
    kernel: ReduceKernel,
    scratch: Span<'_>,
    result: Span<'_>,
) {
    let bytes = result.len();
    let mut start = 0;
    while start < bytes {
        let block = start..bytes.min(start + SCRATCH_BYTES);
        let parts: Vec<Span<'_>> = all.iter().map(|span| span.part(block.clone())).collect();
        let seed = scratch.part(0..block.len());
        tree::reduce(
            &parts,
            &chain.additions,
            Some(seed),
            &[result.part(block.clone())],
            kernel,
        );
        start = block.end;
    }
}

impl SharedExecutor {
    /// Stores each rank's part of the sum of all buffers at the front of its own buffer.
    pub(super) fn reduce_scatter(
        &mut self,
        current: &CurrentOperation<'_>,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
    ) -> Result<(), HaltReason> {
        let (me, size) = (self.me, self.size());
        let bytes = buffer.bytes().len() / size;
        let inline = buffer.bytes().len() <= self.inline_max();
        let mut places = vec![
            if inline {
                OperandLocation::Inline
            } else {
                self.place(buffer)
            };
            size
        ];
        self.post(
            current,
            places[me],
            0,
            if inline { buffer.bytes() } else { &[] },
        );
        self.meet(current, |peer, post| places[peer] = post.place)?;
        if inline {
            return self.scatter_short(current, kernel, buffer);
        }
        let sent = (bytes * (size - 1)) as u64;
        self.mailbox.count(sent, sent);
        let regions = self.regions(&places, size * bytes)?;
        self.scatter_long(current, kernel, buffer, &regions)
    }

    /// Reduces operands that are stored with the calls.
    fn scatter_short(
        &self,
        current: &CurrentOperation<'_>,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
    ) -> Result<(), HaltReason> {
        let (me, size) = (self.me, self.size());
        let (len, bytes) = (buffer.len() / size, buffer.bytes().len() / size);
        {
            let result = Span::of(&mut buffer.bytes_mut()[..bytes]);
            for (rank, neighbour) in self.local_peers.iter().enumerate() {
                let all = neighbour.control.inline(current.sequence, size * bytes);
                let theirs = all.part(me * bytes..(me + 1) * bytes);
                if rank == 0 {
                    result.copy_from(theirs);
                } else {
                    result.combine(theirs, |into, from| kernel.apply(into, from));
                }
            }
        }
        buffer.truncate(len);
        Ok(())
    }

    /// Reads this rank's slice from the memory of all ranks, or from their stages.
    fn scatter_long(
        &mut self,
        current: &CurrentOperation<'_>,
        kernel: ReduceKernel,
        buffer: &mut Buffer,
        regions: &[MappedRange],
    ) -> Result<(), HaltReason> {
        let (me, size, element) = (self.me, self.size(), kernel.dtype.size());
        let len = buffer.len() / size;
        let bytes = len * element;
        let staged = |rank: usize| regions[rank].is_none();
        let any = (0..size).any(staged);
        let piece_len = if any {
            (STAGE_BYTES / size / element).max(1)
        } else {
            len
        };
        let pieces = len.div_ceil(piece_len) as u32;
        let controls = self.controls();
        let chain = Arc::clone(&self.chain);
        let host = match &regions[me] {
            Some(region) => part(region, &(0..size * bytes)),
            None => Span::of(buffer.bytes_mut()),
        };
        let step = |step, piece: u32, scratch: Span<'_>| {
            let start = piece as usize * piece_len;
            let count = piece_len.min(len - start);
            let from =
                |slice: usize| scaled(&(slice * len + start..slice * len + start + count), element);
            let at =
                |slice: usize| scaled(&(slice * piece_len..slice * piece_len + count), element);
            match step {
                PieceStep::Bring => {
                    for slice in (0..size).filter(|&slice| slice != me) {
                        controls[me]
                            .stage(piece)
                            .part(at(slice))
                            .copy_from(host.part(from(slice)));
                    }
                }
                PieceStep::Work => {
                    let of = |rank: usize| match &regions[rank] {
                        _ if rank == me => host.part(from(me)),
                        Some(region) => part(region, &from(me)),
                        None => controls[rank].stage(piece).part(at(me)),
                    };
                    let all: Vec<Span<'_>> = (0..size).map(of).collect();
                    blockwise(&all, &chain, kernel, scratch, host.part(from(me)));
                }
                PieceStep::Take => {}
            }
        };
        self.with_flow_scratch(current, pieces, staged, size * bytes, step)?;
        buffer
            .bytes_mut()
            .copy_within(me * bytes..(me + 1) * bytes, 0);
        buffer.truncate(len);
        Ok(())
    }

    fn with_flow_scratch(
        &mut self,
        current: &CurrentOperation<'_>,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        mut step: impl FnMut(PieceStep, u32, Span<'_>),
    ) -> Result<(), HaltReason> {
        let outcome = self.with_scratch(SCRATCH_BYTES, |this, scratch| {
            let scratch = scratch.part(0..SCRATCH_BYTES);
            this.flow_from(current, pieces, brings, expected, |s, p| {
                step(s, p, scratch)
            })
        });
        self.base = self.base.wrapping_add(pieces);
        outcome
    }

    fn regions(
        &mut self,
        places: &[OperandLocation],
        bytes: usize,
    ) -> Result<Vec<MappedRange>, HaltReason> {
        let all = places.iter().enumerate();
        all.map(|(rank, &place)| self.region(rank, place, bytes))
            .collect()
    }
}
