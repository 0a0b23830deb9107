//! [`run`]: moves the pieces of an operation through the steps of all ranks.
//!
//! Like [`super::flags`], this file is compiled unchanged by the loom tests.

use super::flags::{Flag, reached};

/// A step of a rank on a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceStep {
    /// Copy this rank's part to its stage.
    Bring,
    /// Reduce or read the pieces of all ranks.
    Work,
    /// Copy the results of the other ranks.
    Take,
}

/// A counter that a rank publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressMark {
    /// Total number of pieces copied to the stages.
    Brought,
    /// Total number of pieces reduced or read.
    Worked,
}

/// The flags of all ranks.
pub(super) trait ProgressBoard {
    /// Why a wait failed.
    type Stop;

    /// Returns a counter of a rank.
    fn flag(&self, rank: usize, mark: ProgressMark) -> Flag<'_>;

    /// Waits until a counter of another rank has reached a value, for a piece of this operation.
    fn wait(
        &self,
        rank: usize,
        mark: ProgressMark,
        value: u32,
        piece: u32,
    ) -> Result<(), Self::Stop>;
}

/// The parameters of one operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct PieceTask {
    pub(super) me: usize,
    pub(super) size: usize,
    /// Number of pieces of all earlier operations.
    pub(super) base: u32,
    pub(super) pieces: u32,
    /// Number of stages of a rank.
    pub(super) stages: u32,
}

/// Returns the stage of a piece.
pub(super) fn stage_of(piece: u32, stages: u32) -> u32 {
    piece % stages
}

/// Takes all pieces through their steps, each as soon as the other ranks allow it.
///
/// A piece is worked on when all contributing ranks have brought it, and taken when all have worked on it. A
/// rank brings at most as many pieces more than it has taken as there are stages. So when it brings
/// piece `p`, all have worked on piece `p - stages` and read its contribution; and when it works on `p`
/// and stores its result there, all have brought `p`, so they have taken its result of `p - stages`.
/// This requires each rank's part of a piece to be at the same offset of its stage, in `p - stages` and
/// `p` alike: otherwise a contribution would overwrite results that are not taken yet. All stages are free
/// at the start, because no rank announces an operation before it has ended the previous one.
pub(super) fn run<B: ProgressBoard>(
    board: &B,
    terms: PieceTask,
    brings: impl Fn(usize) -> bool,
    mut step: impl FnMut(PieceStep, u32),
) -> Result<(), B::Stop> {
    let PieceTask {
        me, pieces, stages, ..
    } = terms;
    let (mut brought, mut worked, mut taken) = (0, 0, 0);
    let value = |piece: u32| terms.base.wrapping_add(piece).wrapping_add(1);
    let behind = |piece: u32, mark: ProgressMark| {
        let others = (0..terms.size).filter(|&rank| rank != me);
        let mut concerned = others.filter(|&rank| mark == ProgressMark::Worked || brings(rank));
        let late = |&rank: &usize| !reached(board.flag(rank, mark).value(), value(piece));
        concerned.find(late).map(|rank| (rank, piece, mark))
    };
    let i_bring = brings(me);
    while taken < pieces {
        let mut waits = None;
        if taken < worked {
            waits = behind(taken, ProgressMark::Worked);
            if waits.is_none() {
                step(PieceStep::Take, taken);
                taken += 1;
                continue;
            }
        }
        if worked < pieces && (!i_bring || worked < brought) {
            let lacks = behind(worked, ProgressMark::Brought);
            if lacks.is_none() {
                step(PieceStep::Work, worked);
                board.flag(me, ProgressMark::Worked).raise(value(worked));
                worked += 1;
                continue;
            }
            // The most advanced piece is waited for first: this rank has done its part of it, so
            // a rank that is late with it does not wait for this rank.
            waits = waits.or(lacks);
        }
        if i_bring && brought < pieces.min(taken + stages) {
            step(PieceStep::Bring, brought);
            board.flag(me, ProgressMark::Brought).raise(value(brought));
            brought += 1;
            continue;
        }
        if let Some((rank, piece, mark)) = waits {
            board.wait(rank, mark, value(piece), piece)?;
        }
    }
    Ok(())
}
