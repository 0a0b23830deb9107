//! [`Replica`]: one worker's state, ledger and step in flight; the data side of the transaction.

use ronde_core::exact::{Node, TreeSum};
use ronde_core::ledger::{EpochVerdict, Ledger};
use ronde_core::shards::even_range;
use ronde_core::{Buffer, Generation, Step};

use crate::model::{PARAMETERS, Run, State};

/// What a rank says in the vote on a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Vote {
    /// Which step.
    pub step: Step,
    /// The newest generation that the rank knows of.
    pub newest: Generation,
    /// Whether its state is complete.
    pub is_whole: bool,
    /// Hash of its state before the step, if it is complete.
    pub digest: Option<u64>,
    /// Shards that it computed.
    pub shards: Vec<u32>,
    /// Samples that went into them.
    pub ids: Vec<u64>,
}

/// What a rank that keeps tells one that does not.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The votes of the step before `next`, if this worker has seen them.
    pub votes: Option<Vec<Vote>>,
    /// The ledger before `next`.
    pub ledger: Ledger,
}

/// Subtrees of a rank's shards.
pub type Subtrees = Vec<(Node, Vec<f32>)>;

/// A worker's data.
#[derive(Debug, Clone)]
pub struct Replica {
    run: Run,
    /// The next step; `None` before the first generation.
    pub next: Option<Step>,
    /// The state before `next`, or `None` while it is not complete.
    pub state: Option<State>,
    ledger: Ledger,
    /// The complete gradient of a step that may have been voted for.
    pub gradient: Option<(Step, Vec<f32>)>,
    /// Gradients of the steps that were committed while the state is not complete.
    backlog: Vec<(Step, Vec<f32>)>,
    last_votes: Option<Vec<Vote>>,
    slices: Vec<Option<Vec<f32>>>,
    /// The shards of this rank in the step in flight.
    mine: Vec<u32>,
}

impl Replica {
    /// Nothing yet.
    #[must_use]
    pub fn new(run: Run) -> Self {
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

    /// For those that lack the state or the last votes.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            votes: self.last_votes.clone(),
            ledger: self.ledger.clone(),
        }
    }

    /// Takes a stored state.
    pub fn load(&mut self, next: Step, state: State, ledger: Ledger) {
        (self.next, self.state, self.ledger) = (Some(next), Some(state), ledger);
        (self.gradient, self.last_votes) = (None, None);
        self.backlog.clear();
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The state before `next` will come in `of` slices.
    pub fn begin_to_heal(&mut self, next: Step, snapshot: &Snapshot, of: usize) {
        (self.next, self.state) = (Some(next), None);
        self.ledger = snapshot.ledger.clone();
        self.last_votes.clone_from(&snapshot.votes);
        self.gradient = None;
        self.backlog.clear();
        self.slices = vec![None; of];
    }

    /// The part of the state that the holder `index` of `of` sends.
    #[must_use]
    pub fn slice(&self, index: usize, of: usize) -> Vec<f32> {
        let Some(State(values)) = &self.state else {
            return Vec::new();
        };
        let range = even_range(values.len() as u64, of as u64, index as u64);
        values[range.start as usize..range.end as usize].to_vec()
    }

    /// Takes a slice in; true when the state is complete with it.
    ///
    /// # Errors
    /// The slices do not make a state.
    pub fn take_slice(&mut self, index: usize, values: Vec<f32>) -> Result<bool, String> {
        if self.state.is_some() || index >= self.slices.len() {
            return Ok(false);
        }
        self.slices[index] = Some(values);
        if self.slices.iter().any(Option::is_none) {
            return Ok(false);
        }
        let mut state = State(self.slices.drain(..).flatten().flatten().collect());
        if state.0.len() != 2 * PARAMETERS {
            return Err(format!("slices of {} numbers in all", state.0.len()));
        }
        for (step, gradient) in self.backlog.drain(..) {
            state.apply(&gradient, self.run.batches.batch(step).samples());
        }
        self.state = Some(state);
        Ok(true)
    }

    /// Computes the shards of this rank: of those whose state is complete it is number `index` of `of`.
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

    /// Adds the subtrees of all ranks; `None` when they are not the whole tree.
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

    /// What this rank says about a step whose gradient it holds.
    #[must_use]
    pub fn vote(&self, step: Step, newest: Generation) -> Vote {
        Vote {
            step,
            newest,
            is_whole: self.state.is_some(),
            digest: self.state.as_ref().map(State::hash),
            shards: self.mine.clone(),
            ids: self
                .mine
                .iter()
                .flat_map(|&shard| self.run.shard(step, shard))
                .collect(),
        }
    }

    /// What is wrong with the votes on a step.
    #[must_use]
    pub fn contradiction(&self, step: Step, votes: &[Vote]) -> Option<String> {
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

    /// Enters a step that all have voted for and applies its gradient, at once or when the state is
    /// complete. Gives the samples that went into it.
    pub fn commit(&mut self, step: Step, votes: Vec<Vote>) -> (Vec<u64>, Option<EpochVerdict>) {
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
