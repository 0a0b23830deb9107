//! [`FaultSequence`]: what is done to the workers and when, all of it from one seed.

use anyhow::{Result, bail};

use super::hosts::CableCut;
use super::layout::JobLayout;

/// A stopped worker sleeps at least this long: longer than the silence after which it is lost.
const STOP_S_MIN: f64 = 1.5;
/// And so much longer at most.
const STOP_S_MORE: f64 = 2.5;
/// The second of two dies so much later than the first at most, often while the others make up for it; a
/// worker so much later than its coordinator.
const GAP_S_MAX: f64 = 0.4;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// SIGKILL to one worker.
    Kill,
    /// SIGSTOP to one worker, SIGCONT when it counts as lost.
    Stop,
    /// SIGKILL to two workers, at once or one shortly after the other.
    Two,
    /// SIGKILL to half of the workers at once.
    Half,
    /// SIGKILL to the coordinator.
    Coordinator,
    /// SIGKILL to the coordinator, then to a worker while there is none.
    Leaderless,
    /// The cable between two hosts is cut, and mended when the workers behind it count as lost.
    Cut,
    /// The same, in one direction.
    OneWay,
}

impl FaultKind {
    pub(super) const ALL: [Self; 8] = [
        Self::Kill,
        Self::Stop,
        Self::Two,
        Self::Half,
        Self::Coordinator,
        Self::Leaderless,
        Self::Cut,
        Self::OneWay,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Two => "two",
            Self::Half => "half",
            Self::Coordinator => "coordinator",
            Self::Leaderless => "leaderless",
            Self::Cut => "cut",
            Self::OneWay => "one-way",
        }
    }

    /// The plainest layout of a job that it can happen to.
    pub(super) fn layout(self) -> JobLayout {
        match self {
            Self::Kill | Self::Stop | Self::Two | Self::Half => JobLayout::Here,
            Self::Coordinator | Self::Leaderless => JobLayout::Open,
            Self::Cut | Self::OneWay => JobLayout::TwoHosts,
        }
    }

    /// Whether a cable is cut.
    pub(super) fn cuts(self) -> bool {
        matches!(self, Self::Cut | Self::OneWay)
    }

    /// Whether the coordinator is killed.
    pub(super) fn kills_coordinator(self) -> bool {
        matches!(self, Self::Coordinator | Self::Leaderless)
    }

    /// Kinds by their names, with commas between them.
    pub(super) fn list(text: &str) -> Result<Vec<Self>> {
        let one = |name: &str| match Self::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Ok(kind),
            None => bail!(
                "--faults: there is no {name:?}; there are {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        };
        text.split(',').map(one).collect()
    }

    /// How many workers it meets.
    fn victims(self, workers: u32) -> usize {
        match self {
            Self::Kill | Self::Stop | Self::Leaderless => 1,
            Self::Two => 2,
            Self::Coordinator | Self::Cut | Self::OneWay => 0,
            Self::Half => workers as usize / 2,
        }
    }
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SoakFault {
    pub(super) kind: FaultKind,
    /// Seconds after the one before, or after the first step.
    pub(super) after_s: f64,
    /// How long a worker is stopped, or a cable cut; how long after the first the second of two is killed.
    pub(super) lasts_s: f64,
    /// Who is met.
    draw: SoakRandom,
}

impl SoakFault {
    /// The workers that it meets, of those that are there; `workers` is how many the job should have.
    pub(super) fn pick(&self, present: &[u32], workers: u32) -> Vec<u32> {
        let (mut left, mut draw) = (present.to_vec(), self.draw);
        let count = self.kind.victims(workers).min(left.len());
        let picked = (0..count).map(|_| left.remove(draw.below(left.len())));
        picked.collect()
    }

    /// How the cable is cut.
    pub(super) fn cut(&self) -> CableCut {
        let mut draw = self.draw;
        match self.kind {
            FaultKind::Cut => CableCut::Both,
            _ if draw.below(2) == 0 => CableCut::Input,
            _ => CableCut::Output,
        }
    }
}

/// All faults of a job: each kind once, in any order, then again.
pub(super) struct FaultSequence {
    random: SoakRandom,
    kinds: Vec<FaultKind>,
    round: Vec<FaultKind>,
    every_s: f64,
}

impl FaultSequence {
    /// The faults of one job of a soak. Those that only such a job is for come first.
    pub(super) fn new(
        seed: u64,
        job: u64,
        layout: JobLayout,
        asked: &[FaultKind],
        every_s: f64,
    ) -> Self {
        let kinds = layout.kinds(asked);
        let own = kinds.iter().copied().filter(|k| k.layout() == layout);
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
            // Half of the time at once.
            FaultKind::Two => (chance - 0.5).max(0.0) * 2.0 * GAP_S_MAX,
            FaultKind::Leaderless => chance * GAP_S_MAX,
            FaultKind::Kill | FaultKind::Half | FaultKind::Coordinator => 0.0,
        };
        let draw = SoakRandom(self.random.next());
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
struct SoakRandom(u64);

impl SoakRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_makes_the_same_faults_and_every_kind_comes_in_each_round() {
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
    fn what_only_such_a_job_is_for_comes_first() {
        let mut faults = FaultSequence::new(1, 0, JobLayout::TwoHosts, &FaultKind::ALL, 1.0);
        let first = [faults.next().kind, faults.next().kind];
        assert!(first.contains(&FaultKind::Cut) && first.contains(&FaultKind::OneWay));
        let next: Vec<FaultKind> = (0..4).map(|_| faults.next().kind).collect();
        assert!(next.contains(&FaultKind::Coordinator) && next.contains(&FaultKind::Cut));
    }

    #[test]
    fn the_same_workers_are_met_and_nobody_twice() {
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
