//! [`KeptReplicas`]: the kept state of each replica between rounds.

use ronde_core::GroupRank;
use ronde_core::shards::ShardPlan;
use ronde_protocol::holdings::HeldRanges;

use crate::distributed::DistributedVector;

/// The vectors that replicas keep, on the ranks that compute them: for each replica its weights, if replicas never have the same ones,
/// and the states of its optimizer.
pub(super) struct KeptReplicas {
    /// The number of elements of the flat state.
    state_len: usize,
    pub(super) has_weights: bool,
    /// The number of vectors of a replica.
    vectors: usize,
    pub(super) all: DistributedVector,
    /// The vectors of replicas at the end of the round under way, one after the other.
    next: Vec<(u32, Vec<f32>)>,
    free: Vec<Vec<f32>>,
}

impl KeptReplicas {
    /// Creates the vectors of a run that begins, which are zero.
    pub(super) fn new(
        state_len: usize,
        (has_weights, states): (bool, usize),
        replicas: &ShardPlan,
        rank: GroupRank,
    ) -> Self {
        let vectors = usize::from(has_weights) + states;
        let width = vectors * state_len;
        let len = replicas.shards() as usize * width;
        Self {
            state_len,
            has_weights,
            vectors,
            all: DistributedVector::zeros(len, layout(replicas, width), rank.index()),
            next: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Assigns replicas to ranks.
    pub(super) fn assign(&mut self, replicas: &ShardPlan) {
        self.all
            .assign(layout(replicas, self.vectors * self.state_len));
    }

    /// Returns the vectors of a replica; `None` if this rank does not hold them.
    fn of(&self, replica: u32) -> Option<&[f32]> {
        let width = self.vectors * self.state_len;
        let start = replica as usize * width;
        self.all.values(&(start..start + width))
    }

    /// Returns the weights of a replica at the beginning of the round.
    pub(super) fn weights(&self, replica: u32) -> Option<&[f32]> {
        let all = self.of(replica).filter(|_| self.has_weights)?;
        Some(&all[..self.state_len])
    }

    /// Returns the states of the optimizer of a replica at the beginning of the round.
    pub(super) fn states(&self, replica: u32) -> Option<Vec<&[f32]>> {
        let first = usize::from(self.has_weights) * self.state_len;
        let states = self.of(replica)?[first..].chunks_exact(self.state_len.max(1));
        Some(states.collect())
    }

    /// Adds the vectors of a replica at the end of the round.
    pub(super) fn add(&mut self, replica: u32, weights: &[f32], states: &[Vec<f32>]) {
        let mut values = self.free.pop().unwrap_or_default();
        values.clear();
        if self.has_weights {
            values.extend_from_slice(weights);
        }
        for state in states {
            values.extend_from_slice(state);
        }
        self.next.push((replica, values));
    }

    /// Returns the weights of the replicas of this rank at the end of the round, mutable.
    pub(super) fn next_weights(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let len = if self.has_weights { self.state_len } else { 0 };
        let next = self.next.iter_mut();
        next.map(move |(_, values)| &mut values[..len])
    }

    /// Takes over the end of the round.
    pub(super) fn keep(&mut self) {
        let width = self.vectors * self.state_len;
        for (replica, values) in self.next.drain(..) {
            let start = replica as usize * width;
            self.all.write(&(start..start + width), &values);
            self.free.push(values);
        }
    }

    /// Discards the round.
    pub(super) fn discard(&mut self) {
        self.free
            .extend(self.next.drain(..).map(|(_, values)| values));
    }
}

/// Returns the elements of each rank, if a replica has `width` of them.
fn layout(replicas: &ShardPlan, width: usize) -> Vec<HeldRanges> {
    let of_rank = |rank: usize| {
        let run = replicas.run(GroupRank(rank as u32));
        HeldRanges::new(std::iter::once(
            run.start as usize * width..run.end as usize * width,
        ))
    };
    (0..replicas.ranks()).map(of_rank).collect()
}
