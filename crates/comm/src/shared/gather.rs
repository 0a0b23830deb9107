//! The operations over shared memory that only copy: all_gather and broadcast.

use ronde_core::{Buffer, DType};

use super::control::{OperandLocation, STAGE_BYTES};
use super::executor::{CurrentOperation, SharedExecutor};
use super::flow::{MappedRange, PieceStep, moved, part};
use super::halt::HaltReason;
use super::mapping::Span;

/// Maximum size of a result whose length is decided by other ranks, in bytes.
const RESULT_BYTES_MAX: u64 = 16 << 30;

/// The location and destination of the bytes of all ranks.
struct GatherLayout {
    places: Vec<OperandLocation>,
    /// Number of bytes of each rank.
    counts: Vec<usize>,
    /// Offset of each rank's bytes in the result.
    starts: Vec<usize>,
    regions: Vec<MappedRange>,
}

/// Returns the bytes of each rank, from the lengths that the ranks have sent.
fn gathered_bytes(lens: &[u64], dtype: DType) -> Result<Vec<usize>, HaltReason> {
    let add = |sum: u64, &len: &u64| sum.checked_add(len.checked_mul(dtype.size() as u64)?);
    match lens.iter().try_fold(0, add) {
        Some(total) if total <= RESULT_BYTES_MAX => {
            let bytes = |&len: &u64| len as usize * dtype.size();
            Ok(lens.iter().map(bytes).collect())
        }
        _ => {
            let problem = format!("lengths {lens:?} are too large");
            Err(HaltReason::Error(crate::program::invalid(
                "all_gather",
                problem,
            )))
        }
    }
}

impl SharedExecutor {
    /// Returns all ranks' elements in rank order, in a new buffer.
    pub(super) fn all_gather(
        &mut self,
        current: &CurrentOperation<'_>,
        buffer: &mut Buffer,
    ) -> Result<Buffer, HaltReason> {
        let (me, size, dtype) = (self.me, self.size(), buffer.dtype());
        let own_bytes = buffer.bytes().len();
        let inline = own_bytes <= self.inline_max();
        let place = match own_bytes {
            0 => OperandLocation::Nothing,
            _ if inline => OperandLocation::Inline,
            _ => self.place(buffer),
        };
        let (mut places, mut lens) = (vec![place; size], vec![buffer.len() as u64; size]);
        self.post(
            current,
            place,
            lens[me],
            if inline { buffer.bytes() } else { &[] },
        );
        self.meet(current, |peer, post| {
            (places[peer], lens[peer]) = (post.place, post.own_len)
        })?;
        let counts = gathered_bytes(&lens, dtype)?;
        let starts: Vec<usize> = (0..size).map(|rank| counts[..rank].iter().sum()).collect();
        let total: usize = counts.iter().sum();
        let mut result = self
            .pool
            .allocate(dtype, total / dtype.size(), false)
            .map_err(HaltReason::OutOfMemory)?;
        let whole = GatherLayout {
            regions: (0..size)
                .map(|rank| self.region(rank, places[rank], counts[rank]))
                .collect::<Result<_, _>>()?,
            places,
            counts,
            starts,
        };
        if !inline {
            let sent = (own_bytes * (size - 1)) as u64;
            self.mailbox.count(sent, sent);
        }
        let (host, into) = (Span::of(buffer.bytes_mut()), Span::of(result.bytes_mut()));
        self.gather_short(current, &whole, host, into);
        self.gather_long(current, &whole, host, into)?;
        Ok(result)
    }

    /// Copies this rank's own bytes, and those stored with the calls.
    fn gather_short(
        &self,
        current: &CurrentOperation<'_>,
        whole: &GatherLayout,
        host: Span<'_>,
        into: Span<'_>,
    ) {
        for rank in 0..self.size() {
            let (start, count) = (whole.starts[rank], whole.counts[rank]);
            let place = into.part(start..start + count);
            match whole.places[rank] {
                _ if rank == self.me => place.copy_from(host),
                OperandLocation::Inline if count <= self.inline_max() => {
                    place.copy_from(self.control(rank).inline(current.sequence, count));
                }
                _ => {}
            }
        }
    }

    /// Copies the bytes in other ranks' memory, and those that pass through their stages.
    fn gather_long(
        &mut self,
        current: &CurrentOperation<'_>,
        whole: &GatherLayout,
        host: Span<'_>,
        into: Span<'_>,
    ) -> Result<(), HaltReason> {
        let GatherLayout {
            places,
            counts,
            starts,
            regions,
        } = whole;
        let (me, size) = (self.me, self.size());
        let staged = |rank: usize| places[rank] == OperandLocation::Staged;
        let pieces = (0..size).map(|rank| match places[rank] {
            OperandLocation::Staged => counts[rank].div_ceil(STAGE_BYTES) as u32,
            OperandLocation::Segment { .. } => 1,
            _ => 0,
        });
        let pieces = pieces.max().unwrap_or(0);
        let controls = self.controls();
        let piece = |rank: usize, piece: u32| {
            let start = counts[rank].min(piece as usize * STAGE_BYTES);
            start..counts[rank].min(start + STAGE_BYTES)
        };
        let step = |step, at: u32| match step {
            PieceStep::Bring => {
                let range = piece(me, at);
                controls[me]
                    .stage(at)
                    .part(0..range.len())
                    .copy_from(host.part(range));
            }
            PieceStep::Work => {
                for rank in (0..size).filter(|&rank| rank != me) {
                    let start = starts[rank];
                    match &regions[rank] {
                        Some(region) if at == 0 => {
                            let whole = 0..counts[rank];
                            into.part(moved(&whole, start))
                                .copy_from(part(region, &whole));
                        }
                        None if staged(rank) => {
                            let range = piece(rank, at);
                            let from = controls[rank].stage(at).part(0..range.len());
                            into.part(moved(&range, start)).copy_from(from);
                        }
                        _ => {}
                    }
                }
            }
            PieceStep::Take => {}
        };
        self.flow(current, pieces, staged, into.len(), step)
    }

    /// Copies the root's bytes to all ranks.
    pub(super) fn broadcast(
        &mut self,
        current: &CurrentOperation<'_>,
        root: usize,
        buffer: &mut Buffer,
    ) -> Result<(), HaltReason> {
        let (me, bytes) = (self.me, buffer.bytes().len());
        let inline = bytes <= self.inline_max();
        let mut place = match me == root {
            false => OperandLocation::Nothing,
            true if inline => OperandLocation::Inline,
            true => self.place(buffer),
        };
        let shown: &[u8] = if place == OperandLocation::Inline {
            buffer.bytes()
        } else {
            &[]
        };
        self.post(current, place, 0, shown);
        self.meet(current, |peer, post| {
            if peer == root {
                place = post.place;
            }
        })?;
        let controls = self.controls();
        if inline {
            if me != root {
                controls[root]
                    .inline(current.sequence, bytes)
                    .read(buffer.bytes_mut());
            }
            return Ok(());
        }
        let sent = if me == root {
            (bytes * (self.size() - 1)) as u64
        } else {
            0
        };
        self.mailbox.count(sent, sent);
        let region = self.region(root, place, bytes)?;
        let piece_bytes = if region.is_some() { bytes } else { STAGE_BYTES };
        let host = Span::of(buffer.bytes_mut());
        let step = |step, piece: u32| {
            let start = piece as usize * piece_bytes;
            let range = start..bytes.min(start + piece_bytes);
            let stage = || controls[root].stage(piece).part(0..range.len());
            match (step, &region) {
                (PieceStep::Bring, _) => stage().copy_from(host.part(range)),
                (PieceStep::Work, Some(region)) if me != root => {
                    host.part(range.clone()).copy_from(part(region, &range));
                }
                (PieceStep::Work, None) if me != root => {
                    host.part(range.clone()).copy_from(stage())
                }
                _ => {}
            }
        };
        let pieces = bytes.div_ceil(piece_bytes) as u32;
        self.flow(
            current,
            pieces,
            |rank| rank == root && region.is_none(),
            bytes,
            step,
        )
    }
}
