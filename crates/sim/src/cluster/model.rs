//! A model that is small enough to train thousands of times, with real sums and real optimizer state.

use std::ops::Range;

use ronde_core::batch::BatchPlan;
use ronde_core::exact::TreeSum;
use ronde_core::shards::even_range;
use ronde_core::weight_hash;
use ronde_core::{Buffer, Step};
use ronde_protocol::holdings::{HeldRanges, second_holders};

/// The number of parameters of the model.
pub(super) const PARAMETERS: usize = 6;
/// The number of samples of the data set.
pub(super) const SAMPLES: u64 = 40;
/// The number of samples of a step; the last step of an epoch is smaller.
pub(super) const GLOBAL_BATCH: u64 = 9;

/// How the state of a run is divided among its workers. Element `i` of the division is weight `i` with its momentum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedDivision {
    /// The number of ranks that hold each element, 1 or 2.
    pub copies: u32,
    /// The maximum number of slices; ranks beyond it are spares, which hold none.
    pub slices_max: usize,
    /// The number of ranks that hold all slices and compute no shards, the last ones; 0: the ranks that compute hold them.
    pub servers: usize,
}

impl SimulatedDivision {
    /// Returns how many of `ranks` ranks serve.
    #[must_use]
    pub fn servers_among(&self, ranks: usize) -> usize {
        self.servers.min(ranks.saturating_sub(1))
    }

    /// Returns the ranks that own slices.
    fn owners(&self, ranks: usize) -> Range<usize> {
        match self.servers_among(ranks) {
            0 => 0..self.slices_max.min(ranks),
            servers => ranks - servers..ranks,
        }
    }

    /// Returns the elements that each of `ranks` ranks owns.
    #[must_use]
    pub fn owned(&self, ranks: usize) -> Vec<HeldRanges> {
        let owners = self.owners(ranks);
        let slice = |rank: usize| match owners.contains(&rank) {
            true => {
                let (slices, index) = (owners.len() as u64, (rank - owners.start) as u64);
                let range = even_range(PARAMETERS as u64, slices, index);
                HeldRanges::new(std::iter::once(range.start as usize..range.end as usize))
            }
            false => HeldRanges::default(),
        };
        (0..ranks).map(slice).collect()
    }

    /// Returns each owner of a slice with the rank that has the second copy; none without second copies. A single server has its
    /// copy on a rank that computes. `hosts` has the host of each rank.
    #[must_use]
    pub fn second_holders(&self, hosts: &[usize]) -> Vec<(usize, usize)> {
        let owners = self.owners(hosts.len());
        let among = match owners.len() {
            1 => 0..hosts.len(),
            _ => owners.clone(),
        };
        if self.copies < 2 || among.len() < 2 {
            return Vec::new();
        }
        let holders = second_holders(&hosts[among.clone()]).into_iter();
        let pairs = holders.enumerate();
        pairs
            .map(|(owner, holder)| (among.start + owner, among.start + holder))
            .filter(|(owner, _)| owners.contains(owner))
            .collect()
    }

    /// Returns the elements that each rank holds.
    #[must_use]
    pub fn layout(&self, hosts: &[usize]) -> Vec<HeldRanges> {
        let owned = self.owned(hosts.len());
        let mut layout = owned.clone();
        for (owner, holder) in self.second_holders(hosts) {
            let both = layout[holder].ranges().iter().chain(owned[owner].ranges());
            layout[holder] = HeldRanges::new(both.cloned());
        }
        layout
    }
}

/// Returns all elements of a state.
#[must_use]
pub(super) fn all_elements() -> HeldRanges {
    HeldRanges::new(std::iter::once(0..PARAMETERS))
}

/// The settings of a run, equal on all workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimulatedRun {
    /// The samples of each step.
    pub batches: BatchPlan,
    /// The number of logical shards.
    pub shards: u32,
    /// The number of steps.
    pub end: Step,
    /// How the state is divided among the workers; `None`: each has all of it.
    pub division: Option<SimulatedDivision>,
}

/// The state: weights, then momentum.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SimulatedState(pub Vec<f32>);

impl SimulatedState {
    /// Returns the initial state.
    #[must_use]
    pub(super) fn initial() -> Self {
        let weights = (0..PARAMETERS).map(|i| 0.3 - 0.17 * i as f32);
        Self(weights.chain([0.0; PARAMETERS]).collect())
    }

    /// Returns a state without any values.
    #[must_use]
    pub(super) fn unknown() -> Self {
        Self(vec![f32::NAN; 2 * PARAMETERS])
    }

    /// Returns the hash of all bits.
    #[must_use]
    pub(super) fn hash(&self) -> u64 {
        weight_hash::hash(&self.0)
    }

    /// Returns the hash of the weights.
    #[must_use]
    pub(super) fn weight_hash(&self) -> u64 {
        weight_hash::hash(&self.0[..PARAMETERS])
    }

    /// Returns the hash of the bits of some elements.
    #[must_use]
    pub(super) fn hash_of(&self, elements: &HeldRanges) -> u64 {
        weight_hash::hash(&self.values(elements))
    }

    /// Returns the weights of some elements, then their momentum.
    #[must_use]
    pub(super) fn values(&self, elements: &HeldRanges) -> Vec<f32> {
        let parts = [&self.0[..PARAMETERS], &self.0[PARAMETERS..]];
        let part = |values: &[f32]| -> Vec<f32> {
            let ranges = elements.ranges().iter().cloned();
            ranges.flat_map(|range| values[range].to_vec()).collect()
        };
        parts.into_iter().flat_map(part).collect()
    }

    /// Replaces the values of some elements.
    pub(super) fn set_values(&mut self, elements: &HeldRanges, values: &[f32]) {
        let (weights, momentum) = values.split_at(values.len() / 2);
        let positions = elements.ranges().iter().cloned().flatten();
        for ((element, weight), momentum) in positions.zip(weights).zip(momentum) {
            self.0[element] = *weight;
            self.0[PARAMETERS + element] = *momentum;
        }
    }

    /// Returns the weights of some elements.
    #[must_use]
    pub(super) fn weights(&self, elements: &HeldRanges) -> Vec<f32> {
        let positions = elements.ranges().iter().cloned().flatten();
        positions.map(|element| self.0[element]).collect()
    }

    /// Replaces the weights of some elements.
    pub(super) fn set_weights(&mut self, elements: &HeldRanges, weights: &[f32]) {
        let positions = elements.ranges().iter().cloned().flatten();
        positions
            .zip(weights)
            .for_each(|(element, weight)| self.0[element] = *weight);
    }

    /// Forgets the momentum of all but some elements.
    pub(super) fn keep_momentum(&mut self, elements: &HeldRanges) {
        for element in (0..PARAMETERS).filter(|i| elements.locate(&(*i..i + 1)).is_none()) {
            self.0[PARAMETERS + element] = f32::NAN;
        }
    }

    /// Returns the gradient of one shard, summed over its samples.
    #[must_use]
    pub(super) fn gradient(&self, ids: &[u64]) -> Vec<f32> {
        let mut gradient = vec![0.0_f32; PARAMETERS];
        for &id in ids {
            for (j, sum) in gradient.iter_mut().enumerate() {
                let feature = ((id * 7 + j as u64 * 13) % 17) as f32 * 0.113 - 0.9;
                *sum += feature * (self.0[j] * feature - 0.37) + 0.013 * self.0[j];
            }
        }
        gradient
    }

    /// Makes one optimizer update with the mean gradient.
    pub(super) fn apply(&mut self, gradient: &[f32], samples: u64) {
        for (j, sum) in gradient.iter().enumerate() {
            let momentum = 0.9 * self.0[PARAMETERS + j] + sum / samples as f32;
            self.0[PARAMETERS + j] = momentum;
            self.0[j] -= 0.05 * momentum;
        }
    }
}

impl SimulatedRun {
    /// Returns the samples of a shard in a step.
    #[must_use]
    pub(super) fn shard(&self, step: Step, shard: u32) -> Vec<u64> {
        let batch = self.batches.batch(step);
        let order = self.batches.order(batch.epoch);
        let part = even_range(batch.samples(), self.shards.into(), shard.into());
        part.map(|within| order.sample(batch.positions.start + within))
            .collect()
    }

    /// Returns the samples of a step.
    #[must_use]
    pub(super) fn samples(&self, step: Step) -> Vec<u64> {
        (0..self.shards)
            .flat_map(|shard| self.shard(step, shard))
            .collect()
    }

    /// Returns the states before each step and after the last one, of a run without faults.
    #[must_use]
    pub(super) fn undisturbed(&self) -> Vec<SimulatedState> {
        let mut state = SimulatedState::initial();
        let mut states = vec![state.clone()];
        for step in (0..self.end.0).map(Step) {
            let mut sum = TreeSum::new(self.shards);
            for shard in 0..self.shards {
                let gradient = state.gradient(&self.shard(step, shard));
                sum.add_shard(shard, Buffer::copy_of(&gradient));
            }
            let gradient = sum.take().remove(0).1;
            state.apply(gradient.as_slice(), self.batches.batch(step).samples());
            states.push(state.clone());
        }
        states
    }
}
