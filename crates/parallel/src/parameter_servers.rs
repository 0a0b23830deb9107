//! [`ParameterServers`]: asynchronous training. Servers have the state during a round; each worker fetches it, computes the
//! gradient of an update, and pushes it, without waiting for the other workers.
//!
//! Sources: Dean et al., "Large scale distributed deep networks", NIPS 2012; Ho et al., "More effective distributed ML via a stale
//! synchronous parallel parameter server", NIPS 2013; Li et al., "Scaling distributed machine learning with the parameter
//! server", OSDI 2014.
//!
//! The decisions are those of [`ronde_protocol::served`]. Between rounds every rank has the whole state, so evaluations, checkpoints
//! and joining workers need nothing more: a round is one transaction, and its reduced gradient is the state at its end.
//! After a failure within a round, the remaining ranks keep their slots and copies, and the next group continues the round.
//! Cost of an update: the weights to the worker, the gradient to the servers, and once more to the copies. Cost of a round: the
//! whole state with the states of the optimizer to all ranks.
//!
//! The strategy has no threads: the training loop starts those that call `RoundServer::serve`. The transport is the messages of the
//! group, not remote calls: connections, encryption, the rejection of other plans and generations and the detection of lost peers
//! exist there, and a message has no JSON. The price is that a death ends the group for all members for a moment, where remote
//! calls would fail for one caller only. Each rank therefore keeps its slots, its copies and the gradient that it could not push.

mod begin;
mod client;
pub(crate) mod messages;
mod server;
mod slice;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::staleness::WorkerStaleness;
use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, Buffer, CollectivesExt, Group, Step};
use ronde_engine::{Chain, sum_of_squares};
use ronde_protocol::served::RoundPlacement;
use ronde_protocol::transaction::ShardReport;

use self::client::ComputedUpdate;
use self::messages::{ServerAnswer, gather_words};
use self::slice::{ServedSlot, SliceRules, StateSlice, UpdateScale};
use crate::bucket;
use crate::error::ParallelError;
use crate::inner_losses::InnerLosses;
use crate::state_view::{MeanGradient, ModelHandle, RoundState, StateEdit, StateView};
use crate::step_method::{CommittedUpdate, MicroBatch, ReducedGradient, StepMethod, UpdateReport};
use crate::synchronous::{ComputeClock, SynchronousStrategy, WaitTimer};

pub use self::client::RoundClient;
pub use self::server::{AbortOnPanic, RoundServer};

/// The settings of parameter servers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterServersConfig {
    /// The number of slots into which the state is divided: the most servers.
    pub servers: u32,
    /// The number of ranks that have each slot, 1 or 2.
    pub copies: u32,
    /// The most updates that may be applied between the pull and the push of a gradient; `None`: any number.
    pub staleness_max: Option<u64>,
    /// Whether the learning rate of a gradient is divided by its staleness.
    pub scales_by_staleness: bool,
    /// The milliseconds after which another worker may compute a leased update.
    pub lease_ms: u64,
}

/// A round that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundStart {
    /// Its number, which is a step of the run.
    pub step: Step,
    /// The number of its updates.
    pub updates: u32,
    /// The number of updates in all earlier rounds.
    pub first: u64,
    /// A number that grows with each change of the members.
    pub attempt: u64,
}

/// The task of a rank in a round.
pub struct RoundRole {
    /// Its slots; `None`: none.
    pub server: Option<Arc<RoundServer>>,
    /// Its requests to the servers; `None`: it computes nothing.
    pub client: Option<RoundClient>,
    /// The first update of this worker, which computes every `workers`-th one as long as the others do their part.
    pub first_update: u64,
    /// The number of workers.
    pub workers: u64,
    /// Whether it reports the samples of the round for all ranks.
    pub leads: bool,
}

/// The samples of a whole round.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RoundTally {
    /// The sums of samples and counted targets over all updates.
    pub counts: BatchCounts,
    /// The number of samples that could not be read.
    pub skipped: u64,
    /// The loss, summed over the counted targets of all updates, in their order.
    pub loss_sum: f64,
    /// The numbers of all samples in the data set.
    pub sample_ids: Vec<u64>,
}

/// An update that a worker computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServedUpdate {
    /// Its number within the round.
    pub update: u32,
    /// The step that its random numbers belong to.
    pub random: Step,
    /// The learning rate.
    pub learning_rate: f64,
}

/// The strategy's state on one rank.
pub struct ParameterServers {
    group: Arc<dyn Group>,
    config: ParameterServersConfig,
    inner: Box<SynchronousStrategy>,
    rules: Arc<SliceRules>,
    waits: WaitTimer,
    /// The elements of each slot.
    slots: Vec<Range<usize>>,
    /// The slots and copies of the round under way, while no server has them.
    held: BTreeMap<u32, ServedSlot>,
    placement: Option<RoundPlacement>,
    /// The weights before the round, while it is under way.
    running: Option<Vec<f32>>,
    /// A gradient that could not be pushed.
    pending: Option<ComputedUpdate>,
    /// The memory of a pushed gradient.
    spare: Vec<f32>,
    /// The tensor whose gradient was not finite, on the leading rank.
    diverged: Option<u64>,
    losses: InnerLosses,
    staleness: Vec<WorkerStaleness>,
    is_computed: bool,
}

impl ParameterServers {
    /// Creates the strategy. `inner` computes the gradient of one update: on a separate group, with the micro-batches of an
    /// update as shards.
    ///
    /// # Panics
    /// When `inner` does not hold the whole state, which is a bug of the caller.
    #[must_use]
    pub fn new(
        inner: SynchronousStrategy,
        group: Arc<dyn Group>,
        config: ParameterServersConfig,
        clock: ComputeClock,
    ) -> Self {
        let state = inner.weights();
        let len = state.len();
        assert_eq!(state.stored().len(), len, "a worker has the whole state");
        let tensors = state.tensors().iter().map(|tensor| tensor.range.clone());
        let tensors: Vec<Range<usize>> = tensors.collect();
        let slots = bucket::slices(&(0..len), &tensors, config.servers.max(1) as usize);
        // A small model has fewer blocks than servers.
        let mut slots: Vec<Range<usize>> =
            slots.into_iter().filter(|slot| !slot.is_empty()).collect();
        if slots.is_empty() {
            slots.push(0..0);
        }
        let rules = SliceRules::new(state, inner.config(), config.scales_by_staleness);
        Self {
            group,
            config,
            rules: Arc::new(rules),
            inner: Box::new(inner),
            waits: WaitTimer::new(clock),
            slots,
            held: BTreeMap::new(),
            placement: None,
            running: None,
            pending: None,
            spare: Vec::new(),
            diverged: None,
            losses: InnerLosses::default(),
            staleness: Vec::new(),
            is_computed: false,
        }
    }

    /// Returns the model with the current state.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.inner.into_chain()
    }

    fn start_digest(&self) -> u64 {
        self.inner.digest(None)
    }

    fn inner_weights(&self) -> &[f32] {
        self.inner.weights().values()
    }

    /// Returns the number of the states of the optimizer.
    fn state_count(&self) -> usize {
        self.inner.optimizer_states().len()
    }

    fn slice_of_state(&self, elements: &Range<usize>) -> StateSlice {
        StateSlice::of(
            elements,
            self.inner_weights(),
            self.inner.optimizer_states(),
        )
    }

    /// Returns the weights to those before the round, if one is under way.
    fn restore_state(&mut self) {
        if let Some(start) = self.running.take() {
            self.inner
                .with_weights(|weights| weights.copy_from_slice(&start));
            self.inner.load_layers();
        }
    }

    /// Leaves the round under way, if there is one: the inner strategy has the state of the run again.
    fn leave_round(&mut self) {
        self.is_computed = false;
        self.restore_state();
    }

    /// Forgets the round under way, because the state changes from outside.
    fn drop_round(&mut self) {
        (self.running, self.placement, self.pending) = (None, None, None);
        self.held.clear();
    }

    fn exchange_failed(source: ronde_core::CollectiveError) -> ParallelError {
        ParallelError::Exchange {
            action: "collect the state from the servers".to_owned(),
            source,
        }
    }

    /// Pushes a gradient, and keeps it if a rank was lost.
    fn push(
        &mut self,
        client: &RoundClient,
        computed: ComputedUpdate,
    ) -> Result<bool, ParallelError> {
        match self.waits.time(|| client.push(&computed)) {
            Err(error) => {
                self.pending = Some(computed);
                Err(error)
            }
            Ok(ServerAnswer::NotFinite) => {
                let tensors = self.inner.weights().tensors().iter();
                let mut sums =
                    tensors.map(|tensor| sum_of_squares(&computed.gradient[tensor.range.clone()]));
                let tensor = sums.position(|sum| !sum.is_finite()).unwrap_or(0);
                client.diverged(tensor as u64)?;
                Ok(true)
            }
            Ok(answer) => {
                self.spare = computed.gradient;
                Ok(answer == ServerAnswer::Counted)
            }
        }
    }

    /// Returns whether this rank leads the round.
    fn leads(&self) -> bool {
        let lead = self.placement.as_ref().map(RoundPlacement::lead);
        lead == Some(self.group.rank().index())
    }

    /// Tells all ranks how the round has ended.
    fn share_outcome(&mut self) -> Result<(), ParallelError> {
        let mut words = Vec::new();
        if let Some(first) = self.held.get(&0).filter(|_| self.leads()) {
            words.push(self.diverged.map_or(0, |tensor| tensor + 1));
            for worker in first.log.staleness().workers() {
                words.extend([u64::from(worker.rank), worker.counts.len() as u64]);
                words.extend(worker.counts);
            }
        }
        let words = gather_words(&*self.group, &words).map_err(Self::exchange_failed)?;
        let (diverged, mut rest) = words.split_first().ok_or_else(no_round)?;
        self.staleness.clear();
        while let [rank, len, after @ ..] = rest {
            let Some((counts, after)) = after.split_at_checked(*len as usize) else {
                return Err(no_round());
            };
            self.staleness.push(WorkerStaleness {
                rank: *rank as u32,
                counts: counts.to_vec(),
            });
            rest = after;
        }
        let Some(tensor) = diverged.checked_sub(1) else {
            return Ok(());
        };
        let tensors = self.inner.weights().tensors();
        let tensor = tensors.get(tensor as usize);
        Err(ParallelError::NotFinite {
            tensor: tensor.map_or_else(String::new, |tensor| tensor.entry.name.clone()),
        })
    }

    /// Collects the state at the end of the round: the weights, then each state of the optimizer.
    fn collect(&self) -> Result<Vec<f32>, ParallelError> {
        let placement = self.placement.as_ref().ok_or_else(no_round)?;
        let me = self.group.rank().index();
        let mut mine = Vec::new();
        for (slot, place) in placement.slots.iter().enumerate() {
            if place.primary == me {
                let held = self.held.get(&(slot as u32)).ok_or_else(no_round)?;
                mine.extend_from_slice(&held.slice.weights);
                held.slice
                    .states
                    .iter()
                    .for_each(|s| mine.extend_from_slice(s));
            }
        }
        let all = self
            .group
            .all_gather(&mine)
            .map_err(Self::exchange_failed)?;
        let (len, vectors) = (self.inner.weights().len(), 1 + self.state_count());
        let mut state = vec![0.0; len * vectors];
        let mut rest = all.as_slice();
        for rank in 0..self.group.size() {
            let slots = placement.slots.iter().zip(&self.slots);
            for (_, elements) in slots.filter(|(place, _)| place.primary == rank) {
                for vector in 0..vectors {
                    let (values, after) =
                        rest.split_at_checked(elements.len()).ok_or_else(no_round)?;
                    let at = vector * len + elements.start;
                    state[at..at + elements.len()].copy_from_slice(values);
                    rest = after;
                }
            }
        }
        Ok(state)
    }

    /// Compares the copies of this rank with the slots.
    fn check_copies(&self, state: &[f32]) -> Result<(), ParallelError> {
        let len = self.inner.weights().len();
        for (slot, held) in &self.held {
            let vectors = std::iter::once(&held.slice.weights).chain(&held.slice.states);
            for (vector, values) in vectors.enumerate() {
                let at = vector * len + held.slice.elements.start;
                let same = values.iter().zip(&state[at..at + values.len()]);
                if same
                    .into_iter()
                    .any(|(one, other)| one.to_bits() != other.to_bits())
                {
                    let rank = self.group.rank();
                    return Err(ParallelError::OutOfOrder {
                        problem: format!(
                            "the copy of slot {slot} on rank {rank} differs from the slot"
                        ),
                    });
                }
            }
        }
        Ok(())
    }
}

fn no_round() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no round of parameter servers is complete".to_owned(),
    }
}

/// The computation of a round of updates at servers. Order: `begin_round`; threads serve, and a worker leases and computes updates;
/// `end_round`, also after an error; [`StepMethod::reduce`].
impl ParameterServers {
    /// Begins a round, or continues one after a failure. All ranks call it together.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn begin_round(&mut self, start: &RoundStart) -> Result<RoundRole, ParallelError> {
        self.begin(start)
    }

    /// Pushes a gradient that this worker could not push before a failure, if it has one.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn push_pending(&mut self, client: &RoundClient) -> Result<(), ParallelError> {
        match self.pending.take() {
            Some(computed) => self.push(client, computed).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Fetches the weights, computes the gradient of an update from its micro-batches, numbered from 0, and pushes it. `sample_ids`
    /// are the numbers of all samples of the update. Returns whether the update counts; otherwise the worker leases it again.
    ///
    /// # Errors
    /// A rank was lost, or the engine failed. A gradient that is not finite ends the round; [`StepMethod::reduce`] returns the error
    /// on all ranks.
    pub fn compute(
        &mut self,
        client: &RoundClient,
        update: &ServedUpdate,
        micro_batches: Vec<MicroBatch>,
        sample_ids: Vec<u64>,
    ) -> Result<bool, ParallelError> {
        let mut pulled = Ok(Vec::new());
        let pull = |weights: &mut [f32]| pulled = client.pull(weights);
        self.waits.time(|| self.inner.with_weights(pull));
        let bases = pulled?;
        self.inner.load_layers();
        let (reports, reduced) = self.inner.gradient_of(update.random, micro_batches)?;
        let counts: BatchCounts = reports.iter().map(ShardReport::counts).sum();
        let loss_sum = reports.iter().map(|report| report.loss_sum).sum();
        let clip_factor = match self.inner.clip_factor_of(&reduced, counts) {
            Err(ParallelError::NotFinite { tensor }) => {
                self.inner.recycle_gradient(reduced);
                let mut tensors = self.inner.weights().tensors().iter();
                let index = tensors.position(|other| other.entry.name == tensor);
                client.diverged(index.unwrap_or(0) as u64)?;
                return Ok(true);
            }
            factor => factor?,
        };
        let mut gradient = std::mem::take(&mut self.spare);
        gradient.resize(self.inner.weights().len(), 0.0);
        for part in &reduced.parts {
            gradient[part.elements.clone()].copy_from_slice(part.sum.as_slice());
        }
        self.inner.recycle_gradient(reduced);
        let computed = ComputedUpdate {
            round: client.round,
            update: update.update,
            bases,
            scale: UpdateScale {
                counts,
                clip_factor,
                learning_rate: update.learning_rate,
            },
            skipped: sample_ids.len() as u64 - counts.samples,
            loss_sum,
            sample_ids,
            gradient,
        };
        self.push(client, computed)
    }

    /// Takes the slots back from the server after all threads have ended. Returns the samples of the round on the rank that
    /// leads it, if `is_complete`.
    ///
    /// # Errors
    /// A thread still serves.
    pub fn end_round(
        &mut self,
        role: RoundRole,
        is_complete: bool,
    ) -> Result<Option<RoundTally>, ParallelError> {
        let RoundRole { server, client, .. } = role;
        drop(client);
        if let Some(server) = server {
            let server = Arc::into_inner(server);
            let server = server.ok_or_else(|| ParallelError::OutOfOrder {
                problem: "a thread still serves the round that ends".to_owned(),
            })?;
            (self.held, self.diverged) = server.into_parts();
        }
        self.restore_state();
        self.is_computed = is_complete;
        self.losses = InnerLosses::default();
        let first = self.held.get(&0).filter(|_| is_complete && self.leads());
        let Some(first) = first else {
            return Ok(None);
        };
        let mut tally = RoundTally::default();
        self.losses.begin(0);
        for report in first.log.reports().iter().flatten() {
            tally.counts += report.counts;
            tally.skipped += report.skipped;
            tally.loss_sum += report.loss_sum;
            tally.sample_ids.extend(&report.sample_ids);
            self.losses.add(0, report.loss_sum, report.counts.targets);
        }
        Ok(Some(tally))
    }

    /// Returns the seconds that this worker has waited for servers since the last call.
    pub fn take_exchange_s(&mut self) -> f64 {
        self.waits.take_s()
    }

    /// Returns the staleness of each worker's gradients in the last complete round.
    pub fn staleness(&self) -> &[WorkerStaleness] {
        &self.staleness
    }
}

impl StepMethod for ParameterServers {
    /// Returns the state at the end of the round, from all servers.
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            return Err(no_round());
        }
        self.share_outcome()?;
        let state = self.collect()?;
        self.check_copies(&state)?;
        Ok(ReducedGradient::of_round(Buffer::copy_of(&state)))
    }

    /// Returns the losses of the updates: see [`InnerLosses`].
    fn vote(&mut self, _: u64, _: &ReducedGradient, _: u64) -> Result<Vec<u8>, ParallelError> {
        Ok(self.losses.encode())
    }

    /// Takes over the state at the end of the round. The norm is that of the change of the parameters.
    fn apply(
        &mut self,
        _: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError> {
        let part = reduced.parts.first().ok_or_else(no_round)?;
        self.restore_state();
        let taken = self.inner.take_over(part.sum.as_slice());
        let (gradient_norm, _) = taken.ok_or_else(no_round)?;
        self.drop_round();
        Ok(UpdateReport::of_norm(gradient_norm))
    }

    /// The slots of this rank stay, so that the next group can continue the round.
    fn abort(&mut self) {
        self.inner.abort();
        self.leave_round();
    }

    fn enter(&mut self, group: Arc<dyn Group>, _: StepLayout) -> Result<(), ParallelError> {
        self.leave_round();
        self.group = group;
        Ok(())
    }

    fn state(&self) -> StateView<'_> {
        StateView::of_rounds(
            &self.inner,
            RoundState::of_replicas(&*self.group),
            MeanGradient::Unknown,
        )
    }

    fn edit(&mut self) -> StateEdit<'_> {
        self.drop_round();
        StateEdit::of(&mut self.inner)
    }

    fn model(&mut self) -> ModelHandle<'_> {
        ModelHandle::of_rounds(&mut self.inner, (&*self.group, None))
    }
}
