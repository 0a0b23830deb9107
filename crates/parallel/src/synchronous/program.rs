//! Runs the program of a step on this rank.

use std::collections::BTreeMap;
use std::ops::Range;

use ronde_core::spans::SpanKind;
use ronde_core::step_layout::MeshPlace;
use ronde_core::{CollectiveError, GroupRank, Step, Work};
use ronde_engine::Activation;
use ronde_protocol::transaction::ShardReport;
use ronde_schedule::{Border, ProgramAction, ProgramShape, ShardOrder, StageShape, programs, runs};

use super::SynchronousConfig;
use super::borders::{BorderForms, Inbox};
use super::mesh::MeshPosition;
use super::model::PlacedModel;
use super::passes::Passes;
use crate::error::ParallelError;
use crate::step_method::MicroBatch;
use crate::zero::ZeroLevel;

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

/// The values of a rank's step that pass between ranks.
pub(super) struct Program {
    /// The forms of the values between stages in training.
    pub(super) forms: BorderForms,
    /// Those in evaluations.
    pub(super) evaluation_forms: BorderForms,
    /// Whether ranks hold parts of the weights only, and gather those that they compute with.
    pub(super) gathers_weights: bool,
    /// The weights of buckets that are being gathered.
    pub(super) gathering: BTreeMap<usize, Box<dyn Work>>,
    /// The values that are being sent to other ranks.
    pub(super) sends: Vec<Box<dyn Work>>,
    /// Whether all shards of this rank are computed and the reductions have started.
    pub(super) is_computed: bool,
}

impl Program {
    /// Returns the program of a rank at its position.
    pub(super) fn new(
        mesh: &MeshPosition,
        config: &SynchronousConfig,
        model: &PlacedModel,
    ) -> Self {
        let shape = &config.sample_shape;
        let evaluation_forms = BorderForms::new(mesh, &model.chain, shape, None);
        Self {
            forms: BorderForms {
                samples_max: config.shard_samples_max,
                ..BorderForms::new(mesh, &model.chain, shape, Some(&mesh.own_parts()))
            },
            evaluation_forms: BorderForms {
                samples_max: model.evaluation.batch,
                ..evaluation_forms
            },
            gathers_weights: config.zero == ZeroLevel::Weights && mesh.layout.replicas() > 1,
            gathering: BTreeMap::new(),
            sends: Vec::new(),
            is_computed: false,
        }
    }

    /// Waits until all values have been sent.
    pub(super) fn finish_sends(&mut self) -> Result<(), ParallelError> {
        let mut sends = std::mem::take(&mut self.sends).into_iter();
        let sent = sends.try_for_each(|work| work.wait().map(drop));
        sent.map_err(|source| exchange("send the values of a stage".to_owned(), source))
    }

    /// Discards an aborted step.
    pub(super) fn reset(&mut self) {
        self.is_computed = false;
        self.sends.clear();
        self.gathering.clear();
    }
}

impl Passes<'_> {
    /// Returns the programs of the ranks that compute the same shards as this rank, by column.
    fn programs(&mut self) -> Vec<Vec<ProgramAction>> {
        let stages = self.mesh.layout.stages().iter().enumerate();
        let stages = stages.map(|(index, stage)| StageShape {
            column: stage.column,
            buckets: self.reducer.units_of_stage(index),
            cost: 1,
        });
        let shape = ProgramShape {
            stages: stages.collect(),
            shards: self.mesh.layout.run(self.mesh.rank()),
            order: match self.in_lock_step() {
                true => ShardOrder::LockStep,
                false => self.config.order,
            },
            together: self.together(),
            gather_rounds: self.program.gathers_weights.then(|| {
                let plan = self.mesh.layout.shards();
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
        let Some(own) = self.mesh.place() else {
            return Ok(Vec::new());
        };
        self.mesh.same_layers()?;
        let programs = self.programs();
        let ranks = (0..self.mesh.layout.columns()).map(|column| {
            let place = MeshPlace { column, ..own };
            self.mesh.layout.rank_at(place)
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
        let opened = running.inbox.open(&*self.mesh.all, &self.program.forms);
        opened
            .map_err(|source| exchange("receive the values of another stage".to_owned(), source))?;
        for (index, action) in programs[own.column].iter().enumerate() {
            // The remaining members wait for this rank, which may not reach an exchange for long.
            if let Some(source) = self.mesh.all.failure().filter(|_| index > 0) {
                return Err(exchange("continue the step".to_owned(), source));
            }
            self.act(action, &mut running)?;
        }
        self.model.count_exchanges(self.timer);
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
                let begun = self.timer.now();
                let span = self.timer.begin_span();
                if self.in_lock_step() {
                    self.forward_together(*bucket, running)?;
                } else {
                    for run in runs(shards.clone(), self.together()) {
                        self.forward_run(*bucket, run, running)?;
                    }
                }
                self.timer.times.forward_s += self.timer.now() - begun;
                self.timer
                    .end_span(span, SpanKind::Forward, shards.start.into());
                Ok(())
            }
            ProgramAction::Loss { shards } => {
                let begun = self.timer.now();
                for shard in shards.clone() {
                    self.loss(shard, running)?;
                }
                self.timer.times.forward_s += self.timer.now() - begun;
                Ok(())
            }
            ProgramAction::Backward { bucket, shards }
            | ProgramAction::BackwardInput { bucket, shards }
            | ProgramAction::BackwardWeights { bucket, shards } => {
                self.finish_layers(*bucket)?;
                let begun = self.timer.now();
                let span = self.timer.begin_span();
                self.backward_bucket(action, *bucket, shards.clone(), running)?;
                self.timer.times.backward_s += self.timer.now() - begun;
                self.timer
                    .end_span(span, SpanKind::Backward, *bucket as u64);
                Ok(())
            }
            ProgramAction::Reduce { bucket } => {
                let begun = self.timer.now();
                for index in self.reducer.buckets_of_unit(*bucket) {
                    let compression = self.slices.compression.as_ref();
                    self.reducer.start(index, compression, self.timer)?;
                }
                self.timer.times.backward_s += self.timer.now() - begun;
                Ok(())
            }
        }
    }

    fn receive(&mut self, border: Border, running: &mut RunningStep) -> Result<(), ParallelError> {
        let begun = self.timer.now();
        let span = self.timer.begin_span();
        let forms = &self.program.forms;
        let received = running.inbox.receive(&*self.mesh.all, forms, border);
        self.timer.waited_since(begun);
        self.timer
            .end_span(span, SpanKind::Border, border.shard.into());
        let values = received.map_err(|source| {
            let (what, stage) = match border.from < border.to {
                true => ("values", border.to),
                false => ("gradients", border.from),
            };
            let layer = self.mesh.layout.stages()[stage].layers.start;
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
        let rank = self.mesh.rank_of_stage(to);
        let all = &*self.mesh.all;
        let sent = self.program.forms.send(all, rank, border, values.flatten());
        let work = sent.map_err(|source| {
            exchange(
                format!("send the values of shard {shard} to rank {rank}"),
                source,
            )
        })?;
        self.program.sends.push(work);
        Ok(())
    }

    /// Computes the loss of a shard and its gradient.
    fn loss(&mut self, shard: u32, running: &mut RunningStep) -> Result<(), ParallelError> {
        let last = self.mesh.layout.stages().len() - 1;
        let output = running.outputs.remove(&(last, shard)).flatten();
        let Some(batch) = running.batches.get(&shard) else {
            return Err(not_loaded(shard));
        };
        let mut report = self.model.report_of(batch);
        let gradient = match output {
            Some(output) if batch.samples() > 0 => {
                let of = (batch, &mut report);
                Some(self.model.loss_gradient(output, of, &self.slices.scale)?)
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
        let stage = self.reducer.unit(index).stage;
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
        let plan = self.reducer.unit(index);
        if plan.layers.start == self.mesh.layout.stages()[stage].layers.start {
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
