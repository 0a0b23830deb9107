//! [`WholeReplica`]: the strategies that exchange in rounds, between which every rank has the whole state.
//!
//! A `SynchronousStrategy` on a group of one has the state between rounds. Local SGD, parameter servers, gossip and synthetic
//! gradients share it.

use std::sync::Arc;

use ronde_core::step_layout::StepLayout;
use ronde_core::{Group, Step};
use ronde_engine::{Activation, Chain, Device};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::ShardReport;

use crate::distributed::DistributedVector;
use crate::error::ParallelError;
use crate::gossip::GossipRounds;
use crate::parameter_servers::ServedRounds;
use crate::state::ModelState;
use crate::strategy::ReplicaRounds;
use crate::strategy::{
    CommittedUpdate, EvaluationPart, HeldVector, HeldVectorMut, MicroBatch, ReducedGradient,
    Strategy, UpdateReport,
};
use crate::synchronous::{ComputeTimes, SynchronousStrategy};
use crate::synthetic_gradients::StageRounds;

/// A strategy whose ranks train whole replicas, each with a [`SynchronousStrategy`], and whose transaction is a round. It defines
/// a round; the rest is that of the inner strategy.
pub trait WholeReplica: Send {
    /// Returns the strategy that trains a replica of this rank. Between rounds, it has the state of the run.
    fn inner(&self) -> &SynchronousStrategy;

    /// Returns the same strategy, mutable.
    fn inner_mut(&mut self) -> &mut SynchronousStrategy;

    /// Returns the inner strategy.
    fn into_inner(self) -> SynchronousStrategy
    where
        Self: Sized;

    /// Returns the group of all ranks and the layout of the rounds.
    fn ranks(&self) -> (&dyn Group, &StepLayout);

    /// Describes how a round is computed, for the error of a caller that computes a single step.
    fn computed_by(&self) -> &'static str;

    /// See [`Strategy::replica_rounds`].
    fn as_replica_rounds(&mut self) -> Option<&mut dyn ReplicaRounds> {
        None
    }

    /// See [`Strategy::served_rounds`].
    fn as_served_rounds(&mut self) -> Option<&mut dyn ServedRounds> {
        None
    }

    /// See [`Strategy::gossip_rounds`].
    fn as_gossip_rounds(&mut self) -> Option<&mut dyn GossipRounds> {
        None
    }

    /// See [`Strategy::stage_rounds`].
    fn as_stage_rounds(&mut self) -> Option<&mut dyn StageRounds> {
        None
    }

    /// Waits for the outcome of the round: see [`Strategy::reduce`]. Afterwards the inner strategy has the state of the run again.
    ///
    /// # Errors
    /// No round is complete, or a rank was lost.
    fn reduce_round(&mut self) -> Result<ReducedGradient, ParallelError>;

    /// Returns this rank's addition to its vote: see [`Strategy::vote_sums`].
    fn vote(&self) -> Vec<u8>;

    /// See [`Strategy::visit_gradient`]. Visits nothing if the gradients of updates are not kept.
    fn visit_mean(&self, _: &ReducedGradient, _: u64, _: &mut dyn FnMut(usize, &[f32])) {}

    /// Takes over the outcome of a round: see [`Strategy::apply`]. Learning rates are those of the updates or of the settings.
    ///
    /// # Errors
    /// The outcome is not finite, or not one of this strategy; the state has not changed.
    fn apply_round(
        &mut self,
        update: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError>;

    /// Drops the passes in flight.
    fn abort_passes(&mut self) {
        self.inner_mut().abort();
    }

    /// Leaves the round under way, if there is one: the inner strategy has the state of the run again.
    fn leave_round(&mut self);

    /// Forgets all that was computed of the round under way, because the state changes from outside.
    fn forget_round(&mut self) {}

    /// Enters a group and a layout, after the round was left.
    fn enter(&mut self, group: Arc<dyn Group>, layout: StepLayout);

    /// See [`Strategy::digest`].
    fn state_digest(&self, step: Option<Step>) -> u64 {
        self.inner().digest(step)
    }

    /// See [`Strategy::reload`].
    fn reload_state(&mut self) {
        self.inner_mut().reload();
    }

    /// See [`Strategy::set_device`].
    fn compute_on(&mut self, device: &Arc<dyn Device>) {
        self.inner_mut().set_device(device);
    }

    /// See [`Strategy::take_times`].
    fn take_computing_times(&mut self) -> ComputeTimes {
        self.inner_mut().take_times()
    }

    /// See [`Strategy::vectors`].
    fn state_vectors(&self) -> Vec<HeldVector<'_>> {
        self.inner().vectors()
    }

    /// See [`Strategy::vectors_mut`].
    fn state_vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>> {
        self.inner_mut().vectors_mut()
    }

    /// See [`Strategy::distributed`].
    fn distributed_vectors(&self) -> Vec<&DistributedVector> {
        Vec::new()
    }

    /// See [`Strategy::distributed_mut`].
    fn distributed_vectors_mut(&mut self) -> Vec<&mut DistributedVector> {
        Vec::new()
    }

    /// Returns the number of parts in which a round is summed. It does not depend on sizes: see [`Strategy::buckets_of`].
    fn summed_parts(&self) -> usize {
        1
    }

    /// Returns the number of groups that divide the batches of an evaluation, and that of this rank. By default, every rank evaluates.
    fn evaluating(&self) -> (u64, Option<u64>) {
        let (group, _) = self.ranks();
        (group.size() as u64, Some(u64::from(group.rank().0)))
    }
}

impl<T: WholeReplica> Strategy for T {
    fn replica_rounds(&mut self) -> Option<&mut dyn ReplicaRounds> {
        self.as_replica_rounds()
    }

    fn served_rounds(&mut self) -> Option<&mut dyn ServedRounds> {
        self.as_served_rounds()
    }

    fn gossip_rounds(&mut self) -> Option<&mut dyn GossipRounds> {
        self.as_gossip_rounds()
    }

    fn stage_rounds(&mut self) -> Option<&mut dyn StageRounds> {
        self.as_stage_rounds()
    }

    fn backward(&mut self, _: Step, _: Vec<MicroBatch>) -> Result<Vec<ShardReport>, ParallelError> {
        Err(ParallelError::OutOfOrder {
            problem: format!("a round is computed by its {}", self.computed_by()),
        })
    }

    fn reduce(&mut self) -> Result<ReducedGradient, ParallelError> {
        self.reduce_round()
    }

    fn vote_sums(&mut self, _: u64, _: &ReducedGradient, _: u64) -> Result<Vec<u8>, ParallelError> {
        Ok(self.vote())
    }

    fn visit_gradient(
        &self,
        reduced: &ReducedGradient,
        targets: u64,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) {
        self.visit_mean(reduced, targets, visit);
    }

    fn apply(
        &mut self,
        update: &CommittedUpdate<'_>,
        reduced: ReducedGradient,
    ) -> Result<UpdateReport, ParallelError> {
        self.apply_round(update, reduced)
    }

    fn gather_weights(&mut self, step: Option<Step>) -> Result<(), ParallelError> {
        self.inner_mut().gather_weights(step)
    }

    fn abort(&mut self) {
        self.abort_passes();
        self.leave_round();
    }

    fn regroup(&mut self, group: Arc<dyn Group>, layout: StepLayout) -> Result<(), ParallelError> {
        self.leave_round();
        self.enter(group, layout);
        Ok(())
    }

    fn held(&self) -> &HeldRanges {
        self.inner().held()
    }

    fn owned(&self) -> Vec<HeldRanges> {
        self.layout()
    }

    fn layout(&self) -> Vec<HeldRanges> {
        let (_, layout) = self.ranks();
        vec![self.inner().held().clone(); layout.ranks()]
    }

    fn hold(&mut self, elements: HeldRanges) {
        self.inner_mut().hold(elements);
    }

    fn reset(&mut self) -> Result<(), ParallelError> {
        self.forget_round();
        self.inner_mut().reset()
    }

    fn state(&self) -> &ModelState {
        self.inner().state()
    }

    fn digest(&self, step: Option<Step>) -> u64 {
        self.state_digest(step)
    }

    fn vectors(&self) -> Vec<HeldVector<'_>> {
        self.state_vectors()
    }

    fn vectors_mut(&mut self) -> Vec<HeldVectorMut<'_>> {
        self.forget_round();
        self.state_vectors_mut()
    }

    fn distributed(&self) -> Vec<&DistributedVector> {
        self.distributed_vectors()
    }

    fn distributed_mut(&mut self) -> Vec<&mut DistributedVector> {
        self.distributed_vectors_mut()
    }

    fn reload(&mut self) {
        self.reload_state();
    }

    fn swap_weights(&mut self, values: &mut [f32]) {
        self.inner_mut().swap_weights(values);
    }

    fn state_mut(&mut self) -> &mut ModelState {
        self.forget_round();
        self.inner_mut().state_mut()
    }

    fn into_chain(self: Box<Self>) -> Chain {
        Box::new(self.into_inner()).into_chain()
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.compute_on(device);
    }

    fn part_group(&self) -> Option<&dyn Group> {
        None
    }

    fn take_times(&mut self) -> ComputeTimes {
        self.take_computing_times()
    }

    fn buckets_of(&self, _: usize) -> usize {
        self.summed_parts()
    }

    fn set_bucket_bytes(&mut self, _: usize) {}

    fn evaluation_part(&self) -> EvaluationPart {
        let (groups, group) = self.evaluating();
        EvaluationPart {
            groups,
            group,
            loads: group.is_some(),
            ..self.inner().evaluation_part()
        }
    }

    fn predict(
        &mut self,
        batch: Option<&mut MicroBatch>,
    ) -> Result<Option<Activation>, ParallelError> {
        self.inner_mut().predict(batch)
    }
}
