//! [`StreamedActions`]: the local actions of a round on the bytes received so far, while the rest arrives.
//!
//! A piece that was just received is still in the cache when it is reduced, while the next one
//! arrives. Actions work element by element, so running all of them on one piece after another
//! gives the same bits as running each on the whole operand.

use ronde_schedule::{LocalAction, Region, Round, Transfer};

use crate::memory::{MemoryRange, ScheduleMemory};

/// Bytes that are received and acted on together; the operands of a few pieces stay in the cache.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// The progress of a round that is acted on in pieces.
#[derive(Debug)]
pub(crate) struct StreamedActions {
    /// Operands that are received in this round, and the bytes of each received so far.
    arriving: Vec<(MemoryRange, usize)>,
    /// Bytes of every operand that were acted on.
    acted: usize,
}

impl StreamedActions {
    /// Applies to long rounds whose actions use equal ranges and no bytes that are being sent.
    pub(crate) fn of(round: &Round, memory: &ScheduleMemory) -> Option<Self> {
        let regions: Vec<&Region> = round.actions.iter().flat_map(touched).collect();
        let first = memory.place(regions.first()?);
        let fits = |one: &Region, other: &Region| one == other || !one.overlaps(other);
        let alike = regions.iter().enumerate().all(|(place, region)| {
            region.len() == regions[0].len() && regions[..place].iter().all(|r| fits(r, region))
        });
        if first.len() < 2 * PIECE_BYTES || !alike {
            return None;
        }
        let mut arriving = Vec::new();
        for transfer in &round.transfers {
            match transfer {
                Transfer::Send { region, .. } => {
                    let written = |action: &LocalAction| match action {
                        LocalAction::Reduce { into, .. } | LocalAction::Copy { into, .. } => {
                            into.overlaps(region)
                        }
                    };
                    if round.actions.iter().any(written) {
                        return None;
                    }
                }
                Transfer::Receive { region, .. } => {
                    if !regions.iter().all(|r| fits(r, region)) {
                        return None;
                    }
                    if regions.contains(&region) {
                        arriving.push((memory.place(region), 0));
                    }
                }
            }
        }
        (!arriving.is_empty()).then_some(Self { arriving, acted: 0 })
    }

    /// Records that `count` more bytes of `place` have arrived.
    pub(crate) fn arrived(&mut self, place: &MemoryRange, count: usize) {
        if let Some((_, here)) = self.arriving.iter_mut().find(|(p, _)| p == place) {
            *here += count;
        }
    }

    /// Returns the bytes of every operand that can be acted on now.
    pub(crate) fn due(&mut self) -> Option<std::ops::Range<usize>> {
        let all = self.arriving.iter().map(|&(_, here)| here).min()?;
        let is_complete = self
            .arriving
            .iter()
            .all(|(place, here)| place.len() == *here);
        let whole = if is_complete {
            all
        } else {
            all - all % PIECE_BYTES
        };
        if whole <= self.acted {
            return None;
        }
        let due = self.acted..whole;
        self.acted = whole;
        Some(due)
    }

    /// Returns the bytes of every operand that were acted on.
    pub(crate) fn acted(&self) -> usize {
        self.acted
    }
}

fn touched(action: &LocalAction) -> [&Region; 2] {
    match action {
        LocalAction::Reduce { left, right, .. } => [left, right],
        LocalAction::Copy { into, from } => [into, from],
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::{Buffer, DType, GroupRank};
    use ronde_schedule::{Hosts, all_reduce_on};

    use super::*;

    fn streaming(make: impl Fn() -> ronde_schedule::Schedule) -> Option<StreamedActions> {
        let schedule = make();
        let caller = Buffer::host(DType::F32, schedule.input_len());
        let scratch = Buffer::host(DType::U8, 0);
        let memory =
            ScheduleMemory::new(&schedule, DType::F32, caller, scratch).expect("there is memory");
        StreamedActions::of(&schedule.rounds[0], &memory)
    }

    #[test]
    fn long_rounds_are_acted_on_in_pieces_and_short_or_sent_ones_are_not() {
        let direct = |len| {
            let algorithm = ronde_schedule::Algorithm::Direct;
            // On separate hosts: within one host it would go in blocks.
            let hosts = Hosts::new(&[0, 1, 2]);
            move || all_reduce_on(algorithm, GroupRank(0), &hosts, len).expect("it can")
        };
        assert!(streaming(direct(1000)).is_none());
        assert!(streaming(|| ronde_schedule::all_to_all(0, 2, 1 << 20)).is_none());
        let mut streaming = streaming(direct(3 << 18)).expect("much");
        let places: Vec<MemoryRange> = streaming.arriving.iter().map(|(p, _)| p.clone()).collect();
        assert_eq!(places.len(), 2);
        streaming.arrived(&places[0], 600 << 10);
        assert_eq!(streaming.due(), None);
        streaming.arrived(&places[1], 300 << 10);
        assert_eq!(streaming.due(), Some(0..PIECE_BYTES));
        streaming.arrived(&places[1], 100 << 10);
        assert_eq!(streaming.due(), None);
        streaming.arrived(&places[1], 300 << 10);
        assert_eq!(streaming.due(), Some(PIECE_BYTES..2 * PIECE_BYTES));
        assert_eq!(streaming.acted(), 2 * PIECE_BYTES);
    }
}
