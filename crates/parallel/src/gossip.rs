//! [`Gossip`]: decentralised training. Each rank trains its own replica and averages it with that of one partner at a time, without
//! waiting for any other rank; no rank is special.
//!
//! Sources: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018; Assran et al., "Stochastic
//! gradient push", ICML 2019.
//!
//! The decisions are those of [`ronde_protocol::gossip`]. Between rounds every rank has the same state, so evaluations, checkpoints and
//! joining workers need no special case: a round is one transaction, and its reduced gradient is the mean of all replicas at its
//! end. After a failure within a round, the remaining ranks keep their replicas, and the next group continues the round.
//! Cost of an exchange: the weights in each direction. Cost of a round: one exact sum of the state, with the states of the optimizer.

mod begin;
mod messages;
mod peer;

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, DType, Group, GroupRank, Operation, WorldSize};
use ronde_engine::Chain;
use ronde_protocol::gossip::{LoggedUpdate, UpdateLog, merge_updates};
use ronde_protocol::served::UpdateSamples;
use ronde_protocol::transaction::ShardReport;

use self::peer::FinishedReplica;
use crate::error::ParallelError;
use crate::inner_losses::InnerLosses;
use crate::parameter_servers::messages::gather_words;
use crate::parameter_servers::{RoundStart, RoundTally, ServedUpdate};
use crate::state_view::{MeanGradient, ModelHandle, RoundState, StateEdit, StateView};
use crate::step_method::{CommittedUpdate, MicroBatch, ReducedGradient, StepMethod, UpdateReport};
use crate::synchronous::replica::ReplicaUpdate;
use crate::synchronous::{ComputeClock, SynchronousStrategy, WaitTimer};

pub use self::peer::GossipPeer;

/// The settings of decentralised training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GossipConfig {
    /// The number of updates of a rank between two exchanges that it begins.
    pub gossip_steps: u64,
    /// The root of the random numbers that make the pairs.
    pub seeds: SeedTree,
}

/// The exchanges of all ranks in a round.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GossipSummary {
    /// The root mean square distance of the replicas from their mean at the end of the round, divided by the norm of the mean;
    /// parameters only.
    pub distance: f64,
    /// The number of exchanges that had an effect.
    pub exchanges: u64,
    /// The number of exchanges without an effect: the partner was waiting for another one, or has begun the same one.
    pub missed: u64,
    /// The bytes of weights that were sent for both.
    pub exchanged_bytes: u64,
    /// The number of updates that each rank has computed.
    pub updates: Vec<u64>,
}

/// The samples of a rank in a complete round.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GossipTally {
    /// The sums over the updates of all ranks, on the first rank, which reports them; without numbers of samples.
    pub all: Option<RoundTally>,
    /// The numbers of this rank's samples in the data set.
    pub sample_ids: Vec<u64>,
}

/// Weights with the states of the optimizer.
#[derive(Debug, Clone)]
struct SavedState {
    weights: Vec<f32>,
    states: Vec<Vec<f32>>,
}

/// The replica of a round that is not committed yet.
struct RoundReplica {
    log: UpdateLog,
    /// Its state, while the inner strategy has that before the round.
    state: Option<SavedState>,
}

/// The share of a rank in the mean of all replicas.
#[derive(Debug, Clone, Copy)]
struct ReplicaShare {
    /// Of parameters and optimizer states: that of its counted targets in those of the round.
    of_targets: f32,
    /// Of running statistics: that of its samples.
    of_samples: f32,
}

impl ReplicaShare {
    /// Returns the share of a rank with counts `own`, of `ranks` ranks with the sum `all`.
    fn new(own: BatchCounts, all: BatchCounts, ranks: usize) -> Self {
        let share = |own: u64, all: u64| match all {
            0 => 1.0 / ranks as f32,
            all => (own as f64 / all as f64) as f32,
        };
        Self {
            of_targets: share(own.targets, all.targets),
            of_samples: share(own.samples, all.samples),
        }
    }
}

/// The strategy's state on one rank.
///
/// Between rounds, the inner strategy has the state of the run. During a round it has the replica.
pub struct Gossip {
    group: Arc<dyn Group>,
    config: GossipConfig,
    inner: Box<SynchronousStrategy>,
    waits: WaitTimer,
    /// The state before the round, while the inner strategy has the replica.
    before: Option<SavedState>,
    replica: Option<RoundReplica>,
    /// The number of updates in all earlier rounds.
    first: u64,
    /// The weights that the update under way began with.
    base: Vec<f32>,
    /// The share of this rank in the mean of all replicas.
    share: ReplicaShare,
    losses: InnerLosses,
    summary: GossipSummary,
    is_computed: bool,
}

fn no_round() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no round of decentralised training is complete".to_owned(),
    }
}

fn exchange_failed(source: ronde_core::CollectiveError) -> ParallelError {
    ParallelError::Exchange {
        action: "average the replicas of all workers".to_owned(),
        source,
    }
}

impl Gossip {
    /// Creates the strategy. `inner` trains the replica: on a separate group, with the micro-batches of an update as shards.
    ///
    /// # Panics
    /// When `inner` does not hold the whole state, which is a bug of the caller.
    #[must_use]
    pub fn new(
        inner: SynchronousStrategy,
        group: Arc<dyn Group>,
        config: GossipConfig,
        clock: ComputeClock,
    ) -> Self {
        let len = inner.weights().len();
        assert_eq!(
            inner.weights().stored().len(),
            len,
            "a replica has the whole state"
        );
        Self {
            group,
            config,
            inner: Box::new(inner),
            waits: WaitTimer::new(clock),
            before: None,
            replica: None,
            first: 0,
            base: vec![0.0; len],
            share: ReplicaShare {
                of_targets: 1.0,
                of_samples: 1.0,
            },
            losses: InnerLosses::default(),
            summary: GossipSummary::default(),
            is_computed: false,
        }
    }

    /// Returns the model with the current state.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.inner.into_chain()
    }

    fn saved(&self) -> SavedState {
        SavedState {
            weights: self.inner.weights().values().to_vec(),
            states: self.inner.optimizer_states().to_vec(),
        }
    }

    fn restore(&mut self, state: &SavedState) {
        let states: Vec<&[f32]> = state.states.iter().map(Vec::as_slice).collect();
        self.inner.restore(&state.weights, Some(&states));
    }

    /// Returns the state to that before the round, if one is under way, and keeps the replica.
    fn restore_state(&mut self) {
        let Some(before) = self.before.take() else {
            return;
        };
        let state = self.saved();
        if let Some(replica) = &mut self.replica {
            replica.state = Some(state);
        }
        self.restore(&before);
    }

    /// Leaves the round under way, if there is one: the inner strategy has the state of the run again.
    fn leave_round(&mut self) {
        self.is_computed = false;
        self.restore_state();
    }

    /// Forgets the round under way, because the state changes from outside.
    fn drop_round(&mut self) {
        (self.before, self.replica) = (None, None);
    }

    /// Returns the elements of tensors with a role.
    fn elements_of(&self, role: Role) -> Vec<Range<usize>> {
        let tensors = self.inner.weights().tensors().iter();
        let of_role = tensors.filter(|tensor| tensor.entry.role == role);
        of_role.map(|tensor| tensor.range.clone()).collect()
    }

    /// Tells all ranks how this one has ended the round, and merges their logs.
    fn merge(&mut self, finished: &FinishedReplica) -> Result<GossipTally, ParallelError> {
        let log = &self.replica.as_ref().ok_or_else(no_round)?.log;
        let own = log.logged();
        let diverged = finished.diverged.map_or(0, |tensor| tensor + 1);
        let mut words = vec![diverged, own.len() as u64];
        words.extend([finished.averaged, finished.missed, finished.bytes]);
        words.extend(own.iter().flat_map(LoggedUpdate::encode));
        let words = gather_words(&*self.group, &words).map_err(exchange_failed)?;
        let (updates, counts, sample_ids) = (log.round().updates, log.counts(), log.sample_ids());
        let mut summary = GossipSummary::default();
        let (mut all, mut rest) = (Vec::new(), words.as_slice());
        while let [diverged, count, averaged, missed, bytes, after @ ..] = rest {
            if let Some(tensor) = diverged.checked_sub(1) {
                return Err(self.not_finite(tensor));
            }
            summary.exchanges += averaged;
            summary.missed += missed;
            summary.exchanged_bytes += bytes;
            summary.updates.push(*count);
            let len = (*count as usize).saturating_mul(LoggedUpdate::WORDS);
            let (logged, after) = after.split_at_checked(len).ok_or_else(no_round)?;
            let logged = logged.as_chunks::<{ LoggedUpdate::WORDS }>().0.iter();
            all.extend(logged.filter_map(|words| LoggedUpdate::decode(*words)));
            rest = after;
        }
        let merged = merge_updates(updates, all);
        let merged = merged.map_err(|problem| ParallelError::OutOfOrder {
            problem: problem.to_string(),
        })?;
        self.summary = summary;
        let mut tally = RoundTally::default();
        self.losses = InnerLosses::default();
        let reports = self.group.rank() == GroupRank(0);
        for update in merged {
            tally.counts += update.counts;
            tally.skipped += update.skipped;
            tally.loss_sum += update.loss_sum;
            if reports {
                let targets = update.counts.targets;
                self.losses.add(0, update.loss_sum, targets);
            }
        }
        self.share = ReplicaShare::new(counts, tally.counts, self.group.size());
        Ok(GossipTally {
            all: reports.then_some(tally),
            sample_ids,
        })
    }

    fn not_finite(&self, tensor: u64) -> ParallelError {
        let tensors = self.inner.weights().tensors();
        let tensor = tensors.get(tensor as usize);
        ParallelError::NotFinite {
            tensor: tensor.map_or_else(String::new, |tensor| tensor.entry.name.clone()),
        }
    }

    /// Returns the mean of all replicas, weighted by counted targets, and of running statistics by samples: the weights, then each
    /// state of the optimizer. Its bits do not depend on the algorithm of the sum.
    fn average(&self) -> Result<ronde_core::Buffer, ParallelError> {
        let len = self.inner.weights().len();
        let states = self.inner.optimizer_states();
        let mut sum = self
            .group
            .allocate(DType::F32, len * (1 + states.len()))
            .map_err(exchange_failed)?;
        let weights = self.inner.weights().values();
        let vectors = std::iter::once(weights).chain(states.iter().map(Vec::as_slice));
        // The other ranks have the rest of a share of zero, so this replica adds nothing, whatever its values are.
        let write = |to: &mut f32, from: f32, share: f32| {
            *to = if share > 0.0 { share * from } else { 0.0 };
        };
        let all = sum.as_mut_slice::<f32>();
        for (to, from) in all.iter_mut().zip(vectors.flatten()) {
            write(to, *from, self.share.of_targets);
        }
        for range in self.elements_of(Role::Buffer) {
            for (to, from) in all[range.clone()].iter_mut().zip(&weights[range]) {
                write(to, *from, self.share.of_samples);
            }
        }
        let ranks = self.group.size() as u32;
        let size = WorldSize::new(ranks).and_then(|size| ShardPlan::new(ranks, size));
        let plan = size.ok_or_else(no_round)?;
        let operation = Operation::ExactSum(plan.exact_sum());
        let mean = self.group.start_and_wait(operation, sum);
        mean.map_err(exchange_failed)
    }

    /// Measures how far the replicas are from their mean: see [`GossipSummary::distance`].
    fn measure_distance(&mut self, mean: &[f32]) -> Result<(), ParallelError> {
        let (mut squares, mut norm) = (0.0, 0.0);
        for range in self.elements_of(Role::Parameter) {
            let own = &self.inner.weights().values()[range.clone()];
            for (own, mean) in own.iter().zip(&mean[range]) {
                let (own, mean) = (f64::from(*own), f64::from(*mean));
                squares += (own - mean) * (own - mean);
                norm += mean * mean;
            }
        }
        let words = gather_words(&*self.group, &[f64::to_bits(squares)]);
        let words = words.map_err(exchange_failed)?;
        let all: f64 = words.iter().map(|word| f64::from_bits(*word)).sum();
        let mean_square = all / self.group.size() as f64;
        self.summary.distance = match norm > 0.0 {
            true => (mean_square / norm).sqrt(),
            false => mean_square.sqrt(),
        };
        Ok(())
    }
}

/// The computation of a round of replicas that average in pairs. Order: `begin_round`; threads serve the other ranks, and the worker
/// claims and computes updates; `end_round`, also after an error; [`StepMethod::reduce`].
impl Gossip {
    /// Begins a round, or continues one after a failure. All ranks call it together.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn begin_round(&mut self, start: &RoundStart) -> Result<Arc<GossipPeer>, ParallelError> {
        self.begin(start)
    }

    /// Computes an update from its micro-batches, numbered from 0, applies it to the replica, and starts an exchange if one is due.
    /// `sample_ids` are the numbers of all samples of the update.
    ///
    /// # Errors
    /// A rank was lost, or the engine failed. A gradient that is not finite ends the round; `end_round` returns the error on all ranks.
    pub fn compute(
        &mut self,
        peer: &GossipPeer,
        update: &ServedUpdate,
        micro_batches: Vec<MicroBatch>,
        sample_ids: Vec<u64>,
    ) -> Result<(), ParallelError> {
        let replica = self.replica.as_mut().ok_or_else(no_round)?;
        let base = &mut self.base;
        let version = peer.read(base);
        self.inner
            .with_weights(|weights| weights.copy_from_slice(base));
        self.inner.load_layers();
        let made = replica.log.len() as u64;
        let applied = ReplicaUpdate {
            random: update.random,
            number: self.first + made,
            learning_rate: update.learning_rate,
        };
        let reports = match self.inner.update_replica(applied, micro_batches) {
            Err(ParallelError::NotFinite { tensor }) => {
                let mut tensors = self.inner.weights().tensors().iter();
                let index = tensors.position(|other| other.entry.name == tensor);
                peer.diverge(index.unwrap_or(0) as u64);
                return Ok(());
            }
            reports => reports?,
        };
        peer.write((&*base, version), self.inner.weights().values());
        let counts: BatchCounts = reports.iter().map(ShardReport::counts).sum();
        let is_new = replica.log.insert(
            update.update,
            UpdateSamples {
                counts,
                skipped: sample_ids.len() as u64 - counts.samples,
                loss_sum: reports.iter().map(|report| report.loss_sum).sum(),
                sample_ids,
            },
        );
        if !is_new {
            return Err(ParallelError::OutOfOrder {
                problem: format!("update {} was computed before", update.update),
            });
        }
        if (made + 1).is_multiple_of(self.config.gossip_steps.max(1)) {
            self.waits.time(|| peer.exchange())?;
        }
        Ok(())
    }

    /// Takes the replica back after all threads have ended. If the round `is_complete` on this rank, all ranks merge their logs, and the
    /// samples are returned.
    ///
    /// # Errors
    /// A thread still serves, a rank was lost, or an update is missing or was computed twice.
    pub fn end_round(
        &mut self,
        peer: Arc<GossipPeer>,
        is_complete: bool,
    ) -> Result<Option<GossipTally>, ParallelError> {
        let peer = Arc::into_inner(peer).ok_or_else(|| ParallelError::OutOfOrder {
            problem: "a thread still serves the round that ends".to_owned(),
        })?;
        let finished = peer.into_finished();
        self.inner
            .with_weights(|weights| weights.copy_from_slice(&finished.weights));
        self.inner.load_layers();
        if !is_complete {
            self.restore_state();
            return Ok(None);
        }
        let tally = self.merge(&finished)?;
        self.is_computed = true;
        Ok(Some(tally))
    }

    /// Returns the seconds that this worker has waited for its partners since the last call.
    pub fn take_exchange_s(&mut self) -> f64 {
        self.waits.take_s()
    }

    /// Returns the exchanges of all ranks in the last complete round.
    pub fn summary(&self) -> &GossipSummary {
        &self.summary
    }
}

impl StepMethod for Gossip {
    /// Returns the mean of all replicas. The replica of this rank stays until the mean is applied.
    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        if !std::mem::take(&mut self.is_computed) {
            return Err(no_round());
        }
        let sum = self.average()?;
        self.measure_distance(sum.as_slice())?;
        self.restore_state();
        Ok(ReducedGradient::of_round(sum))
    }

    /// Returns the losses of the updates: see [`InnerLosses`].
    fn vote(&mut self, _: u64, _: &ReducedGradient, _: u64) -> Result<Vec<u8>, ParallelError> {
        Ok(self.losses.encode())
    }

    /// Takes over the mean of all replicas. The norm is that of the change of the parameters.
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

    /// The replica of this rank stays, so that the next group can continue it.
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
