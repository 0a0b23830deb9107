//! [`SharedExecutor::flow`]: runs the pieces of an operation, and helpers for ranges of them.

use std::ops::Range;
use std::sync::Arc;

use super::control::{ControlMemory, STAGES};
use super::executor::{CurrentOperation, SharedExecutor};
use super::flags::{Flag, reached};
use super::halt::HaltReason;
use super::mapping::{Mapping, Span};
pub(super) use super::pieces::PieceStep;
use super::pieces::{self, PieceTask, ProgressBoard, ProgressMark};

/// Returns a range in smaller units.
pub(super) fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

pub(super) fn moved(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// Memory of a rank that is read and written in place.
pub(super) type MappedRange = Option<(Arc<Mapping>, u64)>;

pub(super) fn part<'a>(region: &'a (Arc<Mapping>, u64), range: &Range<usize>) -> Span<'a> {
    region.0.span(moved(range, region.1 as usize))
}

/// The progress counters of all ranks, for one operation.
struct ProgressCounters<'a> {
    executor: &'a SharedExecutor,
    current: &'a CurrentOperation<'a>,
    pieces: u32,
    /// Total bytes that this rank expects.
    expected: usize,
}

impl ProgressBoard for ProgressCounters<'_> {
    type Stop = HaltReason;

    fn flag(&self, rank: usize, mark: ProgressMark) -> Flag<'_> {
        let control = self.executor.control(rank);
        match mark {
            ProgressMark::Brought => control.brought(),
            ProgressMark::Worked => control.worked(),
        }
    }

    fn wait(
        &self,
        rank: usize,
        mark: ProgressMark,
        value: u32,
        piece: u32,
    ) -> Result<(), HaltReason> {
        let flag = self.flag(rank, mark);
        let is_there = |now| reached(now, value);
        let waited = self.current.watch.wait(rank, flag, is_there, || false);
        waited.map_err(|stop| {
            let received = self.expected as u64 * u64::from(piece) / u64::from(self.pieces);
            HaltReason::Stopped {
                peer: rank,
                stop,
                received: received as usize,
            }
        })
    }
}

impl SharedExecutor {
    /// Returns the control memory of all ranks, by rank.
    pub(super) fn controls(&self) -> Vec<Arc<ControlMemory>> {
        let all = self.local_peers.iter();
        all.map(|neighbour| Arc::clone(&neighbour.control))
            .collect()
    }

    /// Takes all pieces through their steps, each as soon as the other ranks allow it.
    pub(super) fn flow(
        &mut self,
        current: &CurrentOperation<'_>,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        step: impl FnMut(PieceStep, u32),
    ) -> Result<(), HaltReason> {
        let outcome = self.flow_from(current, pieces, brings, expected, step);
        self.base = self.base.wrapping_add(pieces);
        outcome
    }

    /// Runs as [`SharedExecutor::flow`] does, but the caller counts the pieces afterwards.
    pub(super) fn flow_from(
        &self,
        current: &CurrentOperation<'_>,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        step: impl FnMut(PieceStep, u32),
    ) -> Result<(), HaltReason> {
        let counts = ProgressCounters {
            executor: self,
            current,
            pieces,
            expected,
        };
        let terms = PieceTask {
            me: self.me,
            size: self.size(),
            base: self.base,
            pieces,
            stages: STAGES,
        };
        pieces::run(&counts, terms, brings, step)
    }
}
