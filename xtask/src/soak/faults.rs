//! [`FaultSequence`]: the faults of a job and their times, from one seed.

use super::fault_kind::FaultKind;
use super::hosts::CableCut;
use super::layout::JobLayout;

/// The minimum time for which a worker is stopped: longer than the silence after which it counts as lost.
const STOP_S_MIN: f64 = 1.5;
/// The maximum additional time for which a worker is stopped.
const STOP_S_MORE: f64 = 2.5;
/// The maximum delay of the second of two kills, which often hits while the job recovers from the first; also the
/// maximum delay between the kills of the coordinator and of a worker.
const GAP_S_MAX: f64 = 0.4;

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SoakFault {
    pub(super) kind: FaultKind,
    /// The delay in seconds after the previous fault, or after the first step.
    pub(super) after_s: f64,
    /// The time in seconds for which a worker is stopped or a cable is cut, or between two kills.
    pub(super) lasts_s: f64,
    /// The random numbers that select the victims.
    draw: SoakRandom,
}

impl SoakFault {
    /// Selects the victims among the `present` workers; `workers` is the number of workers that the job should have.
    pub(super) fn pick(&self, present: &[u32], workers: u32) -> Vec<u32> {
        let (mut left, mut draw) = (present.to_vec(), self.draw);
        let count = self.kind.victims(workers).min(left.len());
        let picked = (0..count).map(|_| left.remove(draw.below(left.len())));
        picked.collect()
    }

    /// Returns the direction in which the cable is cut.
    pub(super) fn cut(&self) -> CableCut {
        let mut draw = self.draw;
        match self.kind {
            FaultKind::Cut => CableCut::Both,
            _ if draw.below(2) == 0 => CableCut::Input,
            _ => CableCut::Output,
        }
    }
}

/// The faults of a job: rounds with each kind once, in random order.
pub(super) struct FaultSequence {
    random: SoakRandom,
    kinds: Vec<FaultKind>,
    round: Vec<FaultKind>,
    every_s: f64,
}

impl FaultSequence {
    /// Creates the faults of one job of a soak. Kinds that need the job's layout come first.
    pub(super) fn new(
        seed: u64,
        job: u64,
        layout: JobLayout,
        asked: &[FaultKind],
        every_s: f64,
    ) -> Self {
        let kinds = layout.kinds(asked);
        let is_own = |kind: &FaultKind| JobLayout::for_fault(*kind) == layout;
        let own = kinds.iter().copied().filter(is_own);
        Self {
            random: SoakRandom(seed ^ (job + 1).wrapping_mul(0xa076_1d64_78bd_642f)),
            round: own.collect(),
            kinds,
            every_s,
        }
    }

    pub(super) fn next(&mut self) -> SoakFault {
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
        }
        let kind = self.round.swap_remove(self.random.below(self.round.len()));
        let after_s = self.every_s * (0.5 + self.random.unit());
        let chance = self.random.unit();
        let lasts_s = match kind {
            FaultKind::Stop | FaultKind::Cut | FaultKind::OneWay => {
                STOP_S_MIN + STOP_S_MORE * chance
            }
            // In half of the cases, both at once.
            FaultKind::Two => (chance - 0.5).max(0.0) * 2.0 * GAP_S_MAX,
            FaultKind::Leaderless => chance * GAP_S_MAX,
            FaultKind::Kill | FaultKind::Half | FaultKind::Coordinator => 0.0,
        };
        let draw = self.random.split();
        SoakFault {
            kind,
            after_s,
            lasts_s,
            draw,
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SoakRandom(u64);

impl SoakRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the beginning of another sequence.
    pub(super) fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_the_same_faults_and_each_round_has_every_kind() {
        let faults = |seed, job| {
            let mut faults = FaultSequence::new(seed, job, JobLayout::Here, &FaultKind::ALL, 15.0);
            (0..8).map(|_| faults.next()).collect::<Vec<_>>()
        };
        assert_eq!(faults(7, 0), faults(7, 0));
        assert_ne!(faults(7, 0), faults(7, 1));
        assert_ne!(faults(7, 0), faults(8, 0));
        let some = faults(7, 0);
        for round in some.chunks(4) {
            for kind in JobLayout::Here.kinds(&FaultKind::ALL) {
                assert!(round.iter().any(|fault| fault.kind == kind), "{round:?}");
            }
        }
        assert!(some.iter().all(|f| (7.5..22.5).contains(&f.after_s)));
    }

    #[test]
    fn kinds_that_need_the_layout_come_first() {
        let mut faults = FaultSequence::new(1, 0, JobLayout::TwoHosts, &FaultKind::ALL, 1.0);
        let first = [faults.next().kind, faults.next().kind];
        assert!(first.contains(&FaultKind::Cut) && first.contains(&FaultKind::OneWay));
        let next: Vec<FaultKind> = (0..4).map(|_| faults.next().kind).collect();
        assert!(next.contains(&FaultKind::Coordinator) && next.contains(&FaultKind::Cut));
    }

    #[test]
    fn victims_are_reproducible_and_distinct() {
        let mut faults = FaultSequence::new(1, 0, JobLayout::Here, &[FaultKind::Half], 1.0);
        let fault = faults.next();
        let mut met = fault.pick(&[3, 5, 9, 11], 4);
        assert_eq!(met, fault.pick(&[3, 5, 9, 11], 4));
        met.sort_unstable();
        met.dedup();
        assert_eq!(met.len(), 2);
        assert_eq!(fault.pick(&[3], 4), [3]);
        assert!(FaultKind::list("kill,flood").is_err());
    }
}
