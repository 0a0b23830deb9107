//! Runs the program of a step on this rank.

use std::collections::BTreeMap;
use std::ops::Range;

use ronde_core::spans::SpanKind;
use ronde_core::step_layout::MeshPlace;
use ronde_core::{CollectiveError, GroupRank, Step};
use ronde_engine::Activation;
use ronde_protocol::transaction::ShardReport;
use ronde_schedule::{Border, ProgramAction, ProgramShape, ShardOrder, StageShape, programs, runs};

use super::SynchronousStrategy;
use super::borders::Inbox;
use crate::error::ParallelError;
use crate::strategy::MicroBatch;

/// The values or the gradients at the borders of stages, by stage and shard; `None` for a shard without samples.
type ByStageAndShard = BTreeMap<(usize, u32), Option<Activation>>;

/// A step on its way through its program.
pub(super) struct RunningStep {
    pub(super) step: Step,
    pub(super) batches: BTreeMap<u32, MicroBatch>,
    /// The number of samples of each shard, from its forward pass on.
    pub(super) samples: BTreeMap<u32, usize>,
    /// The outputs of stages.
    pub(super) outputs: ByStageAndShard,
    /// The gradients of the outputs of stages, on their way back through these stages.
    pub(super) gradients: ByStageAndShard,
    pub(super) reports: Vec<ShardReport>,
    inbox: Inbox,
}

impl SynchronousStrategy {
    /// Returns the programs of the ranks that compute the same shards as this rank, by column.
    fn programs(&mut self) -> Vec<Vec<ProgramAction>> {
        let stages = self.layout.stages().iter().enumerate();
        let stages = stages.map(|(index, stage)| StageShape {
            column: stage.column,
            buckets: self.units_of_stage(index),
            cost: 1,
        });
        let shape = ProgramShape {
            stages: stages.collect(),
            shards: self.layout.run(self.groups.all.rank()),
            order: match self.in_lock_step() {
                true => ShardOrder::LockStep,
                false => self.config.order,
            },
            together: self.together(),
            gather_rounds: self.gathers_weights().then(|| {
                let plan = self.layout.shards();
                let runs = (0..plan.ranks()).map(|rank| plan.run(GroupRank(rank as u32)));
                runs.map(|run| run.len() as u32).max().unwrap_or(0)
            }),
        };
        programs(self.config.schedule, &shape)
    }

    /// Runs forward and backward of the shards of this rank, and starts the reductions.
    pub(super) fn run_program(
        &mut self,
        step: Step,
        batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        let Some(own) = self.place() else {
            return Ok(Vec::new());
        };
        self.same_layers()?;
        let programs = self.programs();
        let ranks = (0..self.layout.columns()).map(|column| {
            let place = MeshPlace { column, ..own };
            self.layout.rank_at(place)
        });
        let ranks: Vec<_> = ranks.collect();
        let mut running = RunningStep {
            step,
            batches: batches.into_iter().map(|b| (b.shard.0, b)).collect(),
            samples: BTreeMap::new(),
            outputs: BTreeMap::new(),
            gradients: BTreeMap::new(),
            reports: Vec::new(),
            inbox: Inbox::new(&programs, own.column, &ranks),
        };
        let opened = running.inbox.open(&*self.groups.all, &self.forms);
        opened
            .map_err(|source| exchange("receive the values of another stage".to_owned(), source))?;
        for (index, action) in programs[own.column].iter().enumerate() {
            // The remaining members wait for this rank, which may not reach an exchange for long.
            if let Some(source) = self.groups.all.failure().filter(|_| index > 0) {
                return Err(exchange("continue the step".to_owned(), source));
            }
            self.act(action, &mut running)?;
        }
        self.count_exchanges();
        // Ranks with different parts of the last layer compute the same losses.
        Ok(match own.tensor {
            0 => running.reports,
            _ => Vec::new(),
        })
    }

    fn act(
        &mut self,
        action: &ProgramAction,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        match action {
            ProgramAction::Receive(border) => self.receive(*border, running),
            ProgramAction::Send(border) => self.send(*border, running),
            ProgramAction::Gather { bucket } => self.start_layers(*bucket),
            ProgramAction::Release { bucket } => self.suspend_layers(*bucket),
            ProgramAction::Forward { bucket, shards } => {
                self.finish_layers(*bucket)?;
                let begun = self.now();
                let span = self.begin_span();
                if self.in_lock_step() {
                    self.forward_together(*bucket, running)?;
                } else {
                    for run in runs(shards.clone(), self.together()) {
                        self.forward_run(*bucket, run, running)?;
                    }
                }
                self.times.forward_s += self.now() - begun;
                self.end_span(span, SpanKind::Forward, shards.start.into());
                Ok(())
            }
            ProgramAction::Loss { shards } => {
                let begun = self.now();
                for shard in shards.clone() {
                    self.loss(shard, running)?;
                }
                self.times.forward_s += self.now() - begun;
                Ok(())
            }
            ProgramAction::Backward { bucket, shards }
            | ProgramAction::BackwardInput { bucket, shards }
            | ProgramAction::BackwardWeights { bucket, shards } => {
                self.finish_layers(*bucket)?;
                let begun = self.now();
                let span = self.begin_span();
                self.backward_bucket(action, *bucket, shards.clone(), running)?;
                self.times.backward_s += self.now() - begun;
                self.end_span(span, SpanKind::Backward, *bucket as u64);
                Ok(())
            }
            ProgramAction::Reduce { bucket } => {
                let begun = self.now();
                for index in self.buckets_of_unit(*bucket) {
                    self.start_bucket(index)?;
                }
                self.times.backward_s += self.now() - begun;
                Ok(())
            }
        }
    }

    fn receive(&mut self, border: Border, running: &mut RunningStep) -> Result<(), ParallelError> {
        let begun = self.now();
        let span = self.begin_span();
        let received = running
            .inbox
            .receive(&*self.groups.all, &self.forms, border);
        self.times.waited_s += self.now() - begun;
        self.end_span(span, SpanKind::Border, border.shard.into());
        let values = received.map_err(|source| {
            let (what, stage) = match border.from < border.to {
                true => ("values", border.to),
                false => ("gradients", border.from),
            };
            let layer = self.layout.stages()[stage].layers.start;
            let shard = border.shard;
            exchange(
                format!("receive the {what} of shard {shard} before layer {layer}"),
                source,
            )
        })?;
        let (from, to, shard) = (border.from, border.to, border.shard);
        match from < to {
            true => running.outputs.insert((from, shard), values),
            false => running.gradients.insert((to, shard), values),
        };
        Ok(())
    }

    fn send(&mut self, border: Border, running: &mut RunningStep) -> Result<(), ParallelError> {
        let Border { from, to, shard } = border;
        let values = match from < to {
            true => running.outputs.remove(&(from, shard)),
            false => running.gradients.remove(&(to, shard)),
        };
        let rank = self.rank_of_stage(to);
        let all = &*self.groups.all;
        let sent = self.forms.send(all, rank, border, values.flatten());
        let work = sent.map_err(|source| {
            exchange(
                format!("send the values of shard {shard} to rank {rank}"),
                source,
            )
        })?;
        self.sends.push(work);
        Ok(())
    }

    /// Waits until all values of this step have been sent.
    pub(super) fn finish_sends(&mut self) -> Result<(), ParallelError> {
        let mut sends = std::mem::take(&mut self.sends).into_iter();
        let sent = sends.try_for_each(|work| work.wait().map(drop));
        sent.map_err(|source| exchange("send the values of a stage".to_owned(), source))
    }

    /// Computes the loss of a shard and its gradient.
    fn loss(&mut self, shard: u32, running: &mut RunningStep) -> Result<(), ParallelError> {
        let last = self.layout.stages().len() - 1;
        let output = running.outputs.remove(&(last, shard)).flatten();
        let Some(batch) = running.batches.get(&shard) else {
            return Err(not_loaded(shard));
        };
        let mut report = self.report_of(batch);
        let gradient = match output {
            Some(output) if batch.samples() > 0 => {
                Some(self.loss_gradient(output, batch, &mut report)?)
            }
            Some(output) => Some(Activation::from_host(output.shape(), Vec::new())),
            None => None,
        };
        running.gradients.insert((last, shard), gradient);
        running.reports.push(report);
        Ok(())
    }

    /// Runs the backward pass of the layers of a bucket, or a half of it, and adds the gradients of the shards.
    fn backward_bucket(
        &mut self,
        action: &ProgramAction,
        index: usize,
        shards: Range<u32>,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let stage = self.unit(index).stage;
        if self.in_lock_step() {
            self.backward_together(index, running)?;
        } else {
            for run in runs(shards.clone(), self.together()) {
                match action {
                    ProgramAction::BackwardInput { .. } => {
                        self.backward_input_of(index, run.start, running)?;
                    }
                    ProgramAction::BackwardWeights { .. } => {
                        self.backward_weights_of(index, run.start, running)?;
                    }
                    _ => self.backward_run(index, run, running)?,
                }
            }
        }
        if matches!(action, ProgramAction::BackwardWeights { .. }) {
            return Ok(());
        }
        // The gradient of the stage's input is that of the output of the stage before it.
        let plan = self.unit(index);
        if plan.layers.start == self.layout.stages()[stage].layers.start {
            for shard in shards {
                let gradient = running.gradients.remove(&(stage, shard)).flatten();
                if let Some(before) = stage.checked_sub(1) {
                    running.gradients.insert((before, shard), gradient);
                }
            }
        }
        Ok(())
    }
}

pub(super) fn exchange(action: String, source: CollectiveError) -> ParallelError {
    ParallelError::Exchange { action, source }
}

pub(super) fn not_loaded(shard: u32) -> ParallelError {
    ParallelError::OutOfOrder {
        problem: format!("the samples of shard {shard} were not loaded"),
    }
}
