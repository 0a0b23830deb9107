//! [`Replica`]: one worker's state, ledger and step in flight: the data of the transaction.

use ronde_core::exact::{Node, TreeSum};
use ronde_core::ledger::{EpochVerdict, Ledger};
use ronde_core::shards::even_range;
use ronde_core::{Buffer, Generation, Step};

use crate::model::{PARAMETERS, SimulatedRun, SimulatedState};

/// A rank's vote on a step.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaVote {
    /// The step.
    pub step: Step,
    /// The newest generation that the rank knows.
    pub newest: Generation,
    /// Whether the rank's state is complete.
    pub is_whole: bool,
    /// The hash of the rank's state before the step, if it is complete.
    pub digest: Option<u64>,
    /// The shards that the rank computed.
    pub shards: Vec<u32>,
    /// The samples of these shards.
    pub ids: Vec<u64>,
}

/// The data that an up-to-date rank sends to ranks that catch up.
#[derive(Debug, Clone)]
pub struct ReplicaSnapshot {
    /// The votes of the step before `next`, if this worker has received them.
    pub votes: Option<Vec<ReplicaVote>>,
    /// The ledger before `next`.
    pub ledger: Ledger,
}

/// The subtrees of a rank's shards.
pub type Subtrees = Vec<(Node, Vec<f32>)>;

/// The data of a worker.
#[derive(Debug, Clone)]
pub struct Replica {
    run: SimulatedRun,
    /// The next step; `None` before the first generation.
    pub next: Option<Step>,
    /// The state before `next`, or `None` while it is not complete.
    pub state: Option<SimulatedState>,
    ledger: Ledger,
    /// The complete gradient of a step that may have been committed.
    pub gradient: Option<(Step, Vec<f32>)>,
    /// The gradients of steps committed while the state is not complete.
    backlog: Vec<(Step, Vec<f32>)>,
    last_votes: Option<Vec<ReplicaVote>>,
    slices: Vec<Option<Vec<f32>>>,
    /// The shards of this rank in the step in flight.
    mine: Vec<u32>,
}

impl Replica {
    /// Creates a replica without data.
    #[must_use]
    pub fn new(run: SimulatedRun) -> Self {
        Self {
            run,
            next: None,
            state: None,
            ledger: Ledger::new(run.batches.samples(), run.batches.samples_per_epoch()),
            gradient: None,
            backlog: Vec::new(),
            last_votes: None,
            slices: Vec::new(),
            mine: Vec::new(),
        }
    }

    /// Returns the data for ranks that lack the state or the last votes.
    #[must_use]
    pub fn snapshot(&self) -> ReplicaSnapshot {
        ReplicaSnapshot {
            votes: self.last_votes.clone(),
            ledger: self.ledger.clone(),
        }
    }

    /// Loads a stored state.
    pub fn load(&mut self, next: Step, state: SimulatedState, ledger: Ledger) {
        (self.next, self.state, self.ledger) = (Some(next), Some(state), ledger);
        (self.gradient, self.last_votes) = (None, None);
        self.backlog.clear();
    }

    /// Returns the ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Prepares to receive the state before `next` in `of` slices.
    pub fn begin_to_heal(&mut self, next: Step, snapshot: &ReplicaSnapshot, of: usize) {
        (self.next, self.state) = (Some(next), None);
        self.ledger = snapshot.ledger.clone();
        self.last_votes.clone_from(&snapshot.votes);
        self.gradient = None;
        self.backlog.clear();
        self.slices = vec![None; of];
    }

    /// Returns the part of the state that holder `index` of `of` sends.
    #[must_use]
    pub fn slice(&self, index: usize, of: usize) -> Vec<f32> {
        let Some(SimulatedState(values)) = &self.state else {
            return Vec::new();
        };
        let range = even_range(values.len() as u64, of as u64, index as u64);
        values[range.start as usize..range.end as usize].to_vec()
    }

    /// Adds a slice; returns true if it completes the state.
    ///
    /// # Errors
    /// The slices do not form a state.
    pub fn take_slice(&mut self, index: usize, values: Vec<f32>) -> Result<bool, String> {
        if self.state.is_some() || index >= self.slices.len() {
            return Ok(false);
        }
        self.slices[index] = Some(values);
        if self.slices.iter().any(Option::is_none) {
            return Ok(false);
        }
        let mut state = SimulatedState(self.slices.drain(..).flatten().flatten().collect());
        if state.0.len() != 2 * PARAMETERS {
            return Err(format!(
                "the slices have {} numbers in total",
                state.0.len()
            ));
        }
        for (step, gradient) in self.backlog.drain(..) {
            state.apply(&gradient, self.run.batches.batch(step).samples());
        }
        self.state = Some(state);
        Ok(true)
    }

    /// Computes the shards of this rank, which is number `index` of `of` ranks with a complete state.
    pub fn backward(&mut self, step: Step, index: Option<usize>, of: usize) -> Subtrees {
        self.gradient = None;
        self.mine = match index {
            Some(index) => {
                let run = even_range(self.run.shards.into(), of as u64, index as u64);
                (run.start as u32..run.end as u32).collect()
            }
            None => Vec::new(),
        };
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let mut sum = TreeSum::new(self.run.shards);
        for &shard in &self.mine {
            let gradient = state.gradient(&self.run.shard(step, shard));
            sum.add_shard(shard, Buffer::copy_of(&gradient));
        }
        let nodes = sum.take().into_iter();
        nodes
            .map(|(node, sum)| (node, sum.as_slice().to_vec()))
            .collect()
    }

    /// Adds the subtrees of all ranks; `None` if they do not form the whole tree.
    #[must_use]
    pub fn reduce(&self, subtrees: Vec<Subtrees>) -> Option<Vec<f32>> {
        let mut sum = TreeSum::new(self.run.shards);
        let mut seen = Vec::new();
        for (node, values) in subtrees.into_iter().flatten() {
            if seen.contains(&node) {
                return None;
            }
            seen.push(node);
            sum.add(node, Buffer::copy_of(&values));
        }
        let mut whole = sum.take();
        let is_root = whole.len() == 1 && whole[0].0 == Node::root(self.run.shards);
        is_root.then(|| whole.remove(0).1.as_slice().to_vec())
    }

    /// Returns this rank's vote on a step whose gradient it holds.
    #[must_use]
    pub fn vote(&self, step: Step, newest: Generation) -> ReplicaVote {
        ReplicaVote {
            step,
            newest,
            is_whole: self.state.is_some(),
            digest: self.state.as_ref().map(SimulatedState::hash),
            shards: self.mine.clone(),
            ids: self
                .mine
                .iter()
                .flat_map(|&shard| self.run.shard(step, shard))
                .collect(),
        }
    }

    /// Returns the contradiction between the votes on a step, if any.
    #[must_use]
    pub fn contradiction(&self, step: Step, votes: &[ReplicaVote]) -> Option<String> {
        if let Some(other) = votes.iter().find(|vote| vote.step != step) {
            return Some(format!("votes on step {} and on step {step}", other.step));
        }
        let mut shards: Vec<u32> = votes
            .iter()
            .flat_map(|vote| &vote.shards)
            .copied()
            .collect();
        shards.sort_unstable();
        if shards != (0..self.run.shards).collect::<Vec<_>>() {
            return Some(format!("step {step}: the shards {shards:?} were computed"));
        }
        let mut digests = votes.iter().filter_map(|vote| vote.digest);
        let first = digests.next();
        if digests.any(|digest| Some(digest) != first) {
            return Some(format!("step {step}: the states differ"));
        }
        None
    }

    /// Commits a step that all ranks have voted on. Applies its gradient at once, or when the state is complete.
    /// Returns the samples of the step.
    pub fn commit(
        &mut self,
        step: Step,
        votes: Vec<ReplicaVote>,
    ) -> (Vec<u64>, Option<EpochVerdict>) {
        let ids: Vec<u64> = votes.iter().flat_map(|vote| &vote.ids).copied().collect();
        let _ = self.ledger.enter(&ids);
        let batch = self.run.batches.batch(step);
        let verdict = batch.ends_epoch.then(|| self.ledger.finish_epoch());
        let gradient = match self.gradient.take() {
            Some((held, gradient)) if held == step => gradient,
            _ => vec![f32::NAN; PARAMETERS],
        };
        match &mut self.state {
            Some(state) => state.apply(&gradient, batch.samples()),
            None => self.backlog.push((step, gradient)),
        }
        self.next = Some(step.next());
        self.last_votes = Some(votes);
        (ids, verdict)
    }
}
