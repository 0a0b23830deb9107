//! A round: the batches that the stages of a rank compute, and the gradients that train their predictors.

use ronde_core::{BatchCounts, GroupRank, Shard};
use ronde_engine::Activation;
use ronde_protocol::transaction::ShardReport;
use ronde_schedule::Border;

use super::{
    BorderTally, Divergence, NeighbourInbox, PendingBatch, RunningStages, StageBorder,
    SyntheticGradients, exchange_failed, no_round,
};
use crate::error::ParallelError;
use crate::parameter_servers::messages::gather_words;
use crate::step_method::{LocalStep, MicroBatch};
use crate::synchronous::replica::ReplicaUpdate;

/// The most messages that are being sent.
const SENDS_MAX: usize = 64;

/// The computation of a round. Order: `begin_round`; the batches of the round, in order; `end_round`;
/// [`StepMethod::reduce`](crate::StepMethod::reduce).
impl SyntheticGradients {
    /// Starts a round of `steps` batches, or starts it again.
    ///
    /// # Errors
    /// The ranks cannot exchange messages.
    pub fn begin_round(&mut self, steps: u64) -> Result<(), ParallelError> {
        self.restore_start();
        self.restore_predictors();
        self.losses = Default::default();
        let (rank, own) = (self.group.rank(), self.stages_of(self.group.rank()));
        let (last, shards) = (self.inner.stages() - 1, self.inner.shards());
        let inbox =
            |rank: u32, from, to| NeighbourInbox::new(GroupRank(rank), (from, to), shards, steps);
        let report = ShardReport::empty(Shard(0));
        let mut running = RunningStages {
            weights: self.inner.weights().values().to_vec(),
            states: self.inner.optimizer_states().to_vec(),
            borders: own.clone().map(|_| StageBorder::default()).collect(),
            inputs: (own.start > 0).then(|| inbox(rank.0 - 1, own.start - 1, own.start)),
            gradients: (own.end <= last).then(|| inbox(rank.0 + 1, own.end, own.end - 1)),
            sends: Default::default(),
            batches: 0,
            diverged: None,
            report: (own.end > last).then_some(report),
            own,
        };
        let inboxes = running.inputs.iter_mut().chain(&mut running.gradients);
        for inbox in inboxes {
            let filled = inbox.fill(&self.inner, &*self.group);
            filled.map_err(|source| exchange_failed("begin a round", source))?;
        }
        self.running = Some(running);
        Ok(())
    }

    /// Trains the stages of this rank on a batch, whose micro-batches are those of all ranks.
    ///
    /// # Errors
    /// The engine failed, or a rank was lost. [`SyntheticGradients::end_round`] reports a gradient that is not finite on all ranks.
    pub fn train_stages(
        &mut self,
        step: &LocalStep,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<(), ParallelError> {
        let given = micro_batches.iter().map(|batch| batch.shard.0);
        if !given.clone().eq(0..self.inner.shards()) {
            let (given, all) = (given.collect::<Vec<u32>>(), self.inner.shards());
            let problem = format!("expected batches of {all} shards, received {given:?}");
            return Err(ParallelError::OutOfOrder { problem });
        }
        self.in_round(|this, running| this.train_batch(running, step, micro_batches))
    }

    /// Waits for the last gradients of the round, and trains the predictors with them. Returns the sum over the batches on the rank
    /// with the last stage. All ranks call it together.
    ///
    /// # Errors
    /// A rank was lost, or a gradient was not finite, which all ranks report.
    pub fn end_round(&mut self) -> Result<Option<ShardReport>, ParallelError> {
        let report = self.in_round(|this, running| {
            for stage in running.own.clone() {
                while this.train_predictor(running, stage)? {}
            }
            for work in std::mem::take(&mut running.sends) {
                let sent = this.waits.time(|| work.wait());
                sent.map_err(|source| exchange_failed("send the values of a stage", source))?;
            }
            this.merge(running)?;
            Ok(running.report.take())
        })?;
        self.is_computed = true;
        Ok(report)
    }

    /// Returns the seconds in which this rank waited for other ranks since the last call.
    pub fn take_exchange_s(&mut self) -> f64 {
        self.waits.take_s()
    }

    /// Returns the predictions of the last round of each predictor, in the order of the stages.
    pub fn tallies(&self) -> &[BorderTally] {
        &self.tallies
    }
}

impl SyntheticGradients {
    /// Trains the stages of this rank on a batch, one after the other.
    fn train_batch(
        &mut self,
        running: &mut RunningStages,
        step: &LocalStep,
        mut batches: Vec<MicroBatch>,
    ) -> Result<(), ParallelError> {
        let features = batches.iter_mut().map(|batch| {
            let features = std::mem::take(&mut batch.features);
            (batch.samples() > 0).then(|| Activation::from_host(&batch.shape, features))
        });
        let mut inputs: Vec<Option<Activation>> = features.collect();
        // Every stage has the targets.
        let reports = batches.iter().map(|batch| self.inner.report_of(batch));
        let counts = reports.map(|report| report.counts()).sum();
        for stage in running.own.clone() {
            let pending = running.borders[stage - running.own.start].pending.len();
            if pending as u64 >= self.config.gradient_delay.max(1) {
                self.train_predictor(running, stage)?;
            }
            let mut predictions = Vec::with_capacity(batches.len());
            for (batch, input) in batches.iter().zip(&mut inputs) {
                let given = match running.inputs.is_some() && stage == running.own.start {
                    true => self.receive_input(running)?,
                    false => input.take(),
                };
                let (output, prediction) = self.pass(running, (step, stage), batch, given)?;
                *input = output;
                predictions.push(prediction);
            }
            self.update(running, (step, stage), counts)?;
            if stage + 1 < self.inner.stages() {
                running.borders[stage - running.own.start]
                    .pending
                    .push_back(PendingBatch {
                        of: (step.number, step.random),
                        shards: predictions,
                    });
            }
        }
        running.batches += 1;
        Ok(())
    }

    /// Passes a shard through a stage in both directions. Returns its output for the next stage, if that is on this rank, and the
    /// prediction.
    fn pass(
        &mut self,
        running: &mut RunningStages,
        (step, stage): (&LocalStep, usize),
        batch: &MicroBatch,
        input: Option<Activation>,
    ) -> Result<(Option<Activation>, Option<super::PredictedShard>), ParallelError> {
        let (shard, begun) = (batch.shard, self.waits.now_s());
        let samples = input.as_ref().map_or(0, Activation::samples);
        let of = (step.random, shard);
        let output = self.inner.forward_stage(stage, of, input)?;
        let (mut passed, mut prediction, mut gradient) = (None, None, None);
        if stage + 1 == self.inner.stages() {
            let (report, found) = self.inner.loss_of_stage(output, batch)?;
            if let Some(total) = &mut running.report {
                total.add(&report);
            }
            self.losses_of_batch(running.batches, &report);
            gradient = found;
        } else {
            if stage + 1 == running.own.end {
                self.send(running, (stage, stage + 1), shard, output.clone())?;
            } else {
                passed.clone_from(&output);
            }
            if let Some(output) = output {
                let predicted = self.predictors[stage].predict(&output, &batch.labels)?;
                (prediction, gradient) = (Some(predicted.0), Some(predicted.1));
            }
        }
        let middle = self.waits.now_s();
        self.inner.add_times(middle - begun, 0.0);
        let gradient = self
            .inner
            .backward_stage(stage, (shard, samples), gradient)?;
        self.inner.add_times(0.0, self.waits.now_s() - middle);
        match stage.checked_sub(1) {
            None => {}
            Some(before) if stage == running.own.start => {
                self.send(running, (stage, before), shard, gradient)?;
            }
            Some(before) => {
                let border = &mut running.borders[before - running.own.start];
                border.arrived.push_back(gradient);
            }
        }
        Ok((passed, prediction))
    }

    /// Adds the loss of a shard of a batch, numbered within the round.
    fn losses_of_batch(&mut self, batch: u64, report: &ShardReport) {
        self.losses
            .add_to(0, batch as usize, report.loss_sum, report.targets);
    }

    /// Updates a stage with the gradients of all shards; after a gradient that was not finite, it drops them.
    fn update(
        &mut self,
        running: &mut RunningStages,
        (step, stage): (&LocalStep, usize),
        counts: BatchCounts,
    ) -> Result<(), ParallelError> {
        let begun = self.waits.now_s();
        let update = ReplicaUpdate {
            random: step.random,
            number: step.number,
            learning_rate: step.learning_rate,
        };
        let update = running.diverged.is_none().then_some(update);
        let updated = self.inner.update_stage(stage, update, counts);
        self.inner.add_times(0.0, self.waits.now_s() - begun);
        match updated {
            Err(ParallelError::NotFinite { tensor }) => {
                let mut tensors = self.inner.weights().tensors().iter();
                let index = tensors.position(|other| other.entry.name == tensor);
                running.diverged = Some(Divergence {
                    batch: running.batches,
                    stage: stage as u64,
                    tensor: index.unwrap_or(0) as u64,
                });
                Ok(())
            }
            updated => updated,
        }
    }

    /// Trains the predictor after a stage with the gradient of the oldest batch. Returns false if there is none.
    fn train_predictor(
        &mut self,
        running: &mut RunningStages,
        stage: usize,
    ) -> Result<bool, ParallelError> {
        let index = stage - running.own.start;
        let Some(batch) = running.borders[index].pending.pop_front() else {
            return Ok(false);
        };
        let mut shards = Vec::with_capacity(batch.shards.len());
        for prediction in batch.shards {
            let gradient = match stage + 1 == running.own.end {
                true => self.receive_gradient(running)?,
                false => {
                    let arrived = running.borders[index].arrived.pop_front();
                    arrived.ok_or_else(no_round)?
                }
            };
            shards.push((prediction, gradient));
        }
        if running.diverged.is_some() {
            return Ok(true);
        }
        let tally = &mut running.borders[index].tally;
        match self.predictors[stage].train(batch.of, shards, tally) {
            Err(ParallelError::NotFinite { .. }) => {
                running.diverged = Some(Divergence {
                    batch: running.batches,
                    stage: stage as u64,
                    tensor: (self.inner.weights().tensors().len() + stage) as u64,
                });
                Ok(true)
            }
            trained => trained.map(|()| true),
        }
    }

    fn receive_input(
        &mut self,
        running: &mut RunningStages,
    ) -> Result<Option<Activation>, ParallelError> {
        let inbox = running.inputs.as_mut().ok_or_else(no_round)?;
        let receive = || inbox.receive(&self.inner, &*self.group);
        self.waits
            .time(receive)
            .map_err(|source| exchange_failed("receive the values of the previous stage", source))
    }

    fn receive_gradient(
        &mut self,
        running: &mut RunningStages,
    ) -> Result<Option<Activation>, ParallelError> {
        let inbox = running.gradients.as_mut().ok_or_else(no_round)?;
        let receive = || inbox.receive(&self.inner, &*self.group);
        self.waits
            .time(receive)
            .map_err(|source| exchange_failed("receive the gradients of the next stage", source))
    }

    /// Starts to send values from a stage of this rank to one of the neighbour.
    fn send(
        &mut self,
        running: &mut RunningStages,
        (from, to): (usize, usize),
        shard: Shard,
        values: Option<Activation>,
    ) -> Result<(), ParallelError> {
        let failed = |source| exchange_failed("send the values of a stage", source);
        let rank = self.group.rank();
        let rank = GroupRank(if to > from { rank.0 + 1 } else { rank.0 - 1 });
        let border = Border {
            from,
            to,
            shard: shard.0,
        };
        let work = self.inner.send_between(&*self.group, rank, border, values);
        running.sends.push_back(work.map_err(failed)?);
        while let Some(first) = running.sends.front() {
            if !first.is_finished() && running.sends.len() <= SENDS_MAX {
                break;
            }
            let sent = running.sends.pop_front();
            let sent = sent.map(|work| self.waits.time(|| work.wait()));
            sent.transpose().map_err(failed)?;
        }
        Ok(())
    }

    /// Tells all ranks how this one has ended the round, and how its predictors have predicted.
    fn merge(&mut self, running: &RunningStages) -> Result<(), ParallelError> {
        let (first, count) = (running.own.start as u64, running.borders.len() as u64);
        let mut words = vec![first, count];
        words.extend(running.diverged.map_or([0; 4], |diverged| {
            [1, diverged.batch, diverged.stage, diverged.tensor]
        }));
        let tallies = running.borders.iter().map(|border| border.tally.encode());
        words.extend(tallies.flatten());
        let gathered = self.waits.time(|| gather_words(&*self.group, &words));
        let words = gathered.map_err(|source| exchange_failed("end a round", source))?;
        let (mut rest, mut diverged) = (words.as_slice(), Vec::new());
        while let [first, count, has_diverged, batch, stage, tensor, after @ ..] = rest {
            let (first, count) = (*first as usize, *count as usize);
            if *has_diverged > 0 {
                diverged.push(Divergence {
                    batch: *batch,
                    stage: *stage,
                    tensor: *tensor,
                });
            }
            let len = count.saturating_mul(BorderTally::WORDS);
            let (encoded, after) = after.split_at_checked(len).ok_or_else(no_round)?;
            let encoded = encoded.as_chunks::<{ BorderTally::WORDS }>().0.iter();
            for (stage, words) in (first..).zip(encoded) {
                // The last stage has no predictor.
                if let Some(tally) = self.tallies.get_mut(stage) {
                    *tally = BorderTally::decode(*words);
                }
            }
            rest = after;
        }
        match diverged.into_iter().min() {
            None => Ok(()),
            Some(first) => Err(ParallelError::NotFinite {
                tensor: self.tensor_name(first.tensor as usize),
            }),
        }
    }

    /// Returns the name of a tensor, or of a predictor behind the tensors.
    fn tensor_name(&self, index: usize) -> String {
        let tensors = self.inner.weights().tensors();
        match (tensors.get(index), index.checked_sub(tensors.len())) {
            (Some(tensor), _) => tensor.entry.name.clone(),
            (None, Some(stage)) if stage + 1 < self.inner.stages() => {
                let next = self.inner.first_layer(stage + 1);
                format!("the predictor before layer `{next}`")
            }
            _ => String::new(),
        }
    }
}
