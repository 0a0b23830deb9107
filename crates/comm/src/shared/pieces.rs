//! [`run`]: the pieces of an operation on their way through the steps of all ranks.
//!
//! As [`super::flags`], this file is compiled by the loom tests as it is.

use super::flags::{Flag, reached};

/// A step of a rank on a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceStep {
    /// Copy this rank's part to its stage.
    Bring,
    /// Reduce or read what all have brought.
    Work,
    /// Copy the results of the others.
    Take,
}

/// A count that a rank publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressMark {
    /// Pieces that are copied to the stages, ever.
    Brought,
    /// Pieces that are reduced or read, ever.
    Worked,
}

/// The flags of all ranks.
pub(super) trait ProgressBoard {
    /// Why a wait ended in vain.
    type Stop;

    /// A count of a rank.
    fn flag(&self, rank: usize, mark: ProgressMark) -> Flag<'_>;

    /// Waits until a count of another rank has reached a value, for a piece of this operation.
    fn wait(
        &self,
        rank: usize,
        mark: ProgressMark,
        value: u32,
        piece: u32,
    ) -> Result<(), Self::Stop>;
}

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub(super) struct PieceTask {
    pub(super) me: usize,
    pub(super) size: usize,
    /// Pieces of all operations before this one.
    pub(super) base: u32,
    pub(super) pieces: u32,
    /// Stages of a rank.
    pub(super) stages: u32,
}

/// The stage of a piece.
pub(super) fn stage_of(piece: u32, stages: u32) -> u32 {
    piece % stages
}

/// Takes all pieces through their steps, each as soon as the other ranks allow it.
///
/// A piece is worked on when all that bring have brought it, and taken when all have worked on it. A
/// rank brings at most as many pieces more than it has taken as there are stages. So when it brings
/// piece `p`, all have worked on piece `p - stages` and read what it brought; and when it works on `p`
/// and leaves its result there, all have brought `p`, so they have taken its result of `p - stages`.
/// That needs each rank's part of a piece to lie at the same place of its stage, in `p - stages` and
/// `p` alike: else what is brought would overwrite results that are not taken yet. All stages are free
/// at the beginning, for nobody posts an operation before it has ended the one before.
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
            // The piece that is furthest on is waited for first: this rank has done its part of it, so
            // whoever is behind with it does not wait for this rank.
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
