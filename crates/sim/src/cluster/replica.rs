//! [`Replica`]: one worker's state, and its log of the transaction that real workers run.

use ronde_core::exact::{Node, TreeSum};
use ronde_core::shards::{ShardPlan, even_range};
use ronde_core::{Buffer, Generation, GroupRank, Shard, Step, WorldSize};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::{
    CommittedStep, MemberState, OpenStep, RankInGroup, ShardReport, SliceExchange, Transaction,
    TransactionError,
};

use crate::cluster::model::{PARAMETERS, SimulatedRun, SimulatedState, all_elements};

/// The subtrees of a rank's shards.
pub(super) type Subtrees = Vec<(Node, Vec<f32>)>;

/// The data of a worker.
#[derive(Debug)]
pub(super) struct Replica {
    run: SimulatedRun,
    /// The log of committed steps.
    pub transaction: Transaction,
    /// The state before the next step, or `None` while it is not complete. If it is divided, the momentum of elements that this
    /// rank does not hold is NaN, and so are their weights between an update and the next gathering.
    pub state: Option<SimulatedState>,
    /// The elements of the state that this rank has; all of them, unless the state is divided.
    pub slices: SliceExchange,
    /// The complete gradient of a step that may have been committed.
    gradient: Option<(Step, Vec<f32>)>,
    /// The gradients of steps committed while the state is not complete.
    backlog: Vec<(Step, Vec<f32>)>,
    /// The received parts of a state that is not divided.
    parts: Vec<Option<Vec<f32>>>,
    /// The step in flight.
    open: Option<OpenStep>,
}

/// Returns the log of a worker that is alone, before its first generation.
fn fresh(run: &SimulatedRun) -> Transaction {
    let place = RankInGroup {
        rank: GroupRank(0),
        ranks: 1,
    };
    let generation = Generation::default();
    let mut log = Transaction::new(place, generation, run.batches, shards(run, 1));
    let initial = SimulatedState::initial();
    log.set_digest(match run.division {
        None => initial.hash(),
        Some(_) => initial.weight_hash(),
    });
    log
}

/// Returns the division of shards among ranks. A group larger than their number has ranks without shards.
fn shards(run: &SimulatedRun, ranks: usize) -> ShardPlan {
    let ranks = ranks.max(1);
    let servers = (run.division).map_or(0, |division| division.servers_among(ranks));
    let computing = run.shards.min((ranks - servers) as u32);
    WorldSize::new(ranks as u32)
        .and_then(|size| ShardPlan::with_spares(run.shards, size, computing))
        .expect("a run has at least one shard")
}

impl Replica {
    /// Creates a replica with the initial state.
    #[must_use]
    pub(super) fn new(run: SimulatedRun) -> Self {
        Self {
            run,
            transaction: fresh(&run),
            state: Some(SimulatedState::initial()),
            slices: SliceExchange::new(all_elements()),
            gradient: None,
            backlog: Vec::new(),
            parts: Vec::new(),
            open: None,
        }
    }

    /// Returns the report with which a generation begins.
    #[must_use]
    pub(super) fn member_state(&self, claims_gradient: bool) -> MemberState {
        let next = self.transaction.next_step();
        let is_complete = self.state.is_some() && self.transaction.is_complete();
        MemberState {
            has_state: is_complete && next > Step(0),
            term: 0,
            next,
            holds_gradient: is_complete && self.holds_gradient() || claims_gradient,
            held: self.slices.held().clone(),
        }
    }

    /// Enters a group.
    pub(super) fn enter(&mut self, generation: Generation, rank: usize, ranks: usize) {
        let place = RankInGroup {
            rank: GroupRank(rank as u32),
            ranks,
        };
        self.transaction
            .enter(place, generation, shards(&self.run, ranks));
    }

    /// Returns whether it holds the complete gradient of the next step.
    #[must_use]
    pub(super) fn holds_gradient(&self) -> bool {
        let next = self.transaction.next_step();
        self.state.is_some()
            && self
                .gradient
                .as_ref()
                .is_some_and(|(step, _)| *step == next)
    }

    /// Loads a stored state with its cursor.
    pub(super) fn load(&mut self, state: SimulatedState, cursor: &[u8]) {
        let is_resumed = self.transaction.resume(cursor, state.hash());
        assert!(is_resumed, "the cursor of a checkpoint of this run");
        self.state = Some(state);
        self.gradient = None;
        self.backlog.clear();
    }

    /// Loads some elements of a stored state with its cursor, instead of its state.
    pub(super) fn load_elements(
        &mut self,
        elements: &HeldRanges,
        stored: &SimulatedState,
        cursor: &[u8],
    ) {
        let mut state = SimulatedState::unknown();
        state.set_values(elements, &stored.values(elements));
        self.load(state, cursor);
    }

    /// Prepares to receive elements of a divided state instead of its own.
    pub(super) fn begin_to_copy(&mut self) {
        self.state = Some(SimulatedState::unknown());
        self.gradient = None;
    }

    /// Returns the values of some elements.
    #[must_use]
    pub(super) fn values(&self, elements: &HeldRanges) -> Vec<f32> {
        let state = self.state.as_ref();
        state.map_or_else(Vec::new, |state| state.values(elements))
    }

    /// Replaces the values of some elements.
    pub(super) fn set_values(&mut self, elements: &HeldRanges, values: &[f32]) {
        if let Some(state) = &mut self.state {
            state.set_values(elements, values);
        }
    }

    /// Replaces the weights of the elements that this rank does not hold, and notes the hash of all weights for the next vote.
    pub(super) fn set_weights(&mut self, elements: &HeldRanges, weights: &[f32]) {
        if let Some(state) = &mut self.state {
            state.set_weights(elements, weights);
        }
    }

    /// Changes a bit of the last weight, as a defect of the memory does, if another rank holds it.
    pub(super) fn flip_last_weight(&mut self) {
        let is_held = |element: usize| self.slices.held().locate(&(element..element + 1)).is_some();
        if is_held(PARAMETERS - 1) {
            return;
        }
        if let Some(SimulatedState(values)) = &mut self.state {
            values[PARAMETERS - 1] = f32::from_bits(values[PARAMETERS - 1].to_bits() ^ (1 << 22));
        }
    }

    /// Notes the hash of all weights for the next vote.
    pub(super) fn set_digest(&mut self) {
        if let Some(state) = &self.state {
            self.transaction.set_digest(state.weight_hash());
        }
    }

    /// Sets the momentum of the elements that this rank holds to its initial value, before the first step.
    pub(super) fn reset_momentum(&mut self) {
        let held = self.slices.held();
        if let Some(state) = &mut self.state {
            let mut values = state.weights(held);
            values.resize(2 * values.len(), 0.0);
            state.set_values(held, &values);
        }
    }

    /// Keeps the momentum of the elements that this rank holds, and forgets that of the others.
    pub(super) fn keep_held(&mut self) {
        if let Some(state) = &mut self.state {
            state.keep_momentum(self.slices.held());
        }
    }

    /// Applies a step whose outcome this rank missed, with the gradient that it has kept.
    pub(super) fn apply_missed(&mut self, committed: &CommittedStep) {
        self.apply(committed);
    }

    /// Forgets a gradient that is not needed any more.
    pub(super) fn forget_gradient(&mut self) {
        self.gradient = None;
    }

    /// Prepares to receive the state in `of` slices.
    pub(super) fn begin_to_heal(&mut self, of: usize) {
        self.state = None;
        self.gradient = None;
        self.backlog.clear();
        self.parts = vec![None; of];
    }

    /// Returns the part of the state that holder `index` of `of` sends.
    #[must_use]
    pub(super) fn slice(&self, index: usize, of: usize) -> Vec<f32> {
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
    pub(super) fn take_slice(&mut self, index: usize, values: Vec<f32>) -> Result<bool, String> {
        if self.state.is_some() || index >= self.parts.len() {
            return Ok(false);
        }
        self.parts[index] = Some(values);
        if self.parts.iter().any(Option::is_none) {
            return Ok(false);
        }
        let mut state = SimulatedState(self.parts.drain(..).flatten().flatten().collect());
        if state.0.len() != 2 * PARAMETERS {
            return Err(format!(
                "the slices have {} numbers in total",
                state.0.len()
            ));
        }
        for (step, gradient) in self.backlog.drain(..) {
            state.apply(&gradient, self.run.batches.batch(step).samples());
        }
        self.complete(state);
        Ok(true)
    }

    /// Takes a state as the complete one.
    pub(super) fn complete(&mut self, state: SimulatedState) {
        self.transaction.healed(state.hash());
        self.state = Some(state);
    }

    /// Computes the shards of this rank in the next step. It is number `index` of `of` ranks with a complete state.
    pub(super) fn backward(&mut self, index: Option<usize>, of: usize) -> Subtrees {
        self.gradient = None;
        let mut open = self.transaction.begin_step();
        let step = open.step();
        let mut sum = TreeSum::new(self.run.shards);
        if let (Some(state), Some(index)) = (&self.state, index) {
            let mine = even_range(self.run.shards.into(), of as u64, index as u64);
            for shard in mine.start as u32..mine.end as u32 {
                let ids = self.run.shard(step, shard);
                sum.add_shard(shard, Buffer::copy_of(&state.gradient(&ids)));
                let report = ShardReport {
                    shard: Shard(shard),
                    samples: ids.len() as u64,
                    targets: ids.len() as u64,
                    skipped: 0,
                    loss_sum: 0.0,
                };
                open.record(report, &ids);
            }
        }
        self.open = Some(open);
        let nodes = sum.take().into_iter();
        nodes
            .map(|(node, sum)| (node, sum.as_slice().to_vec()))
            .collect()
    }

    /// Adds the subtrees of all ranks; `None` if they do not form the whole tree.
    #[must_use]
    pub(super) fn reduce(&self, subtrees: Vec<Subtrees>) -> Option<Vec<f32>> {
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

    /// Keeps the reduced gradient of a step.
    pub(super) fn hold(&mut self, step: Step, gradient: Vec<f32>) {
        self.gradient = Some((step, gradient));
    }

    /// Returns this rank's vote on the step in flight.
    #[must_use]
    pub(super) fn vote(&self) -> Vec<u8> {
        let open = self.open.as_ref();
        open.map_or_else(Vec::new, |open| self.transaction.vote(open))
    }

    /// Returns a vote on the next step without shards and samples.
    #[must_use]
    pub(super) fn empty_vote(&self) -> Vec<u8> {
        self.transaction.vote(&self.transaction.begin_step())
    }

    /// Returns a vote on the step in flight whose shards have no samples.
    #[must_use]
    pub(super) fn vote_without_samples(&self) -> Vec<u8> {
        let Some(open) = &self.open else {
            return Vec::new();
        };
        let mut without = self.transaction.begin_step();
        for report in open.reports() {
            without.record(*report, &[]);
        }
        self.transaction.vote(&without)
    }

    /// Commits the step in flight with the votes of all ranks. Its gradient is applied at once, or when the state is
    /// complete.
    ///
    /// # Errors
    /// The votes contradict each other.
    pub(super) fn commit(&mut self, votes: Vec<u8>) -> Result<CommittedStep, TransactionError> {
        let open = self.open.take();
        let open = open.unwrap_or_else(|| self.transaction.begin_step());
        let committed = self.transaction.commit(&open, votes)?;
        self.apply(&committed);
        Ok(committed)
    }

    fn apply(&mut self, committed: &CommittedStep) {
        let step = committed.step;
        let gradient = match self.gradient.take() {
            Some((held, gradient)) if held == step => gradient,
            _ => vec![f32::NAN; PARAMETERS],
        };
        match &mut self.state {
            Some(state) => {
                state.apply(&gradient, self.run.batches.batch(step).samples());
                // The weights of a divided state are gathered first.
                if self.run.division.is_none() {
                    self.transaction.set_digest(state.hash());
                }
            }
            None => self.backlog.push((step, gradient)),
        }
    }
}
