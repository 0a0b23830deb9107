//! [`Exchange::flow`]: pieces of an operation on their way through the steps of all ranks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::control::{Control, STAGES, publish};
use super::exchange::{Current, Exchange, Halt};
use super::mapping::{Mapping, Span};
use super::wait::reached;

/// Pieces that a rank may be ahead of itself; see [`Exchange::flow_from`].
pub(super) const AHEAD: u32 = STAGES / 2;

/// A step of a rank on a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Copy this rank's part to its stage.
    Bring,
    /// Reduce or read what all have brought.
    Work,
    /// Copy the results of the others.
    Take,
}

/// A count that a rank publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Brought,
    Worked,
}

impl Mark {
    fn of(self, control: &Control) -> &AtomicU32 {
        match self {
            Self::Brought => control.brought(),
            Self::Worked => control.worked(),
        }
    }
}

/// A range in smaller units.
pub(super) fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

pub(super) fn moved(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// Memory of a rank that is read and written in place.
pub(super) type Region = Option<(Arc<Mapping>, u64)>;

pub(super) fn part<'a>(region: &'a (Arc<Mapping>, u64), range: &Range<usize>) -> Span<'a> {
    region.0.span(moved(range, region.1 as usize))
}

impl Exchange {
    /// Everybody's control memory, by rank.
    pub(super) fn controls(&self) -> Vec<Arc<Control>> {
        let all = self.neighbours.iter();
        all.map(|neighbour| Arc::clone(&neighbour.control))
            .collect()
    }

    /// Takes all pieces through their steps, each as soon as the other ranks allow it.
    pub(super) fn flow(
        &mut self,
        current: &Current<'_>,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        step: impl FnMut(Step, u32),
    ) -> Result<(), Halt> {
        let outcome = self.flow_from(current, self.base, pieces, brings, expected, step);
        self.base = self.base.wrapping_add(pieces);
        outcome
    }

    /// A piece is worked on when all that bring have brought it, and taken when all have worked on
    /// it. A rank brings at most [`AHEAD`] pieces more than it has taken. So a rank that has worked
    /// on piece `p` knows that all have taken piece `p - AHEAD`, and one that brings `p` itself has
    /// worked on `p - AHEAD`: the stage of `p - 2 AHEAD` is free again. All stages are free at the
    /// beginning, for nobody posts an operation before it has ended the one before.
    pub(super) fn flow_from(
        &self,
        current: &Current<'_>,
        base: u32,
        pieces: u32,
        brings: impl Fn(usize) -> bool,
        expected: usize,
        mut step: impl FnMut(Step, u32),
    ) -> Result<(), Halt> {
        let own = self.control(self.me);
        let (mut brought, mut worked, mut taken) = (0, 0, 0);
        let value = |piece: u32| base.wrapping_add(piece).wrapping_add(1);
        let behind = |piece: u32, mark: Mark| {
            let mut peers = self
                .others()
                .filter(|&peer| mark == Mark::Worked || brings(peer));
            let late = |&peer: &usize| {
                !reached(
                    mark.of(self.control(peer)).load(Ordering::Acquire),
                    value(piece),
                )
            };
            peers.find(late).map(|peer| (peer, piece, mark))
        };
        let i_bring = brings(self.me);
        while taken < pieces {
            let mut waits = None;
            if taken < worked {
                waits = behind(taken, Mark::Worked);
                if waits.is_none() {
                    step(Step::Take, taken);
                    taken += 1;
                    continue;
                }
            }
            if worked < pieces && (!i_bring || worked < brought) {
                let lacks = behind(worked, Mark::Brought);
                if lacks.is_none() {
                    step(Step::Work, worked);
                    publish(own, own.worked(), value(worked));
                    worked += 1;
                    continue;
                }
                // The piece that is furthest on is waited for first: this rank has done its part of it,
                // so whoever is behind with it does not wait for this rank.
                waits = waits.or(lacks);
            }
            if i_bring && brought < pieces.min(taken + AHEAD) {
                step(Step::Bring, brought);
                publish(own, own.brought(), value(brought));
                brought += 1;
                continue;
            }
            if let Some((peer, piece, mark)) = waits {
                let (control, there) = (self.control(peer), |now| reached(now, value(piece)));
                let word = mark.of(control);
                let waited = current.watch.wait(peer, control, word, there, || false);
                let received = expected as u64 * u64::from(piece) / u64::from(pieces);
                waited.map_err(|stop| Halt::Stopped {
                    peer,
                    stop,
                    received: received as usize,
                })?;
            }
        }
        Ok(())
    }
}
