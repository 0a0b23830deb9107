//! [`WorkerTimes`]: measures the times of the layers of a model and of the rest of a step on this machine.

use std::num::NonZeroU32;
use std::sync::{Arc, Barrier};
use std::thread;

use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::event::PhaseTimes;
use ronde_core::layout::TensorEntry;
use ronde_core::{DType, GroupRank, NullTracker, PartTransfer, PartTransfers, WorldSize};
use ronde_data::{Loader, Split};
use ronde_engine::{Layer, LayerExt, Loss, PassEnds};

use super::Training;
use crate::config::{
    CompressionSection, ParallelSection, RunConfig, ScheduleName, ShardsTogether, SyncSection,
};
use crate::error::TrainError;
use crate::first_part::{ExchangeTimes, FirstPart};
use crate::initial_state;
use crate::job_group::JobGroup;
use crate::plan::Plan;
use crate::timed_layer::{PassKind, PassTimes, TimedLayer};

/// The number of shards of a measured step: the first one of a step prepares the weights for the others.
const SHARDS: u32 = 4;
/// The same where this number takes longer than the time limit.
const FEW_SHARDS: u32 = 2;
/// The most steps that are measured.
const STEPS_MAX: usize = 5000;
/// The most elements on which additions and copies are measured, in buffers that alternate, and how often.
const BUFFER_ELEMENTS: usize = 4 << 20;
const BUFFERS: usize = 4;
const BUFFER_TIMES: usize = 8;

/// The measured times of a layer for one shard of the largest size, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerTimes {
    /// The name.
    pub name: String,
    /// The number of elements of its parameters and buffers.
    pub elements: usize,
    /// The bytes of its output for one shard.
    pub output_bytes: usize,
    /// The bytes of the output that belong to each part, if the output is divided along its tokens; otherwise empty.
    pub output_part_bytes: Vec<usize>,
    /// The forward pass.
    pub forward_s: f64,
    /// The backward pass.
    pub backward_s: f64,
    /// The half of the backward pass for the gradients of the weights.
    pub backward_weights_s: f64,
    /// The same of a worker that computes the first part only; `None` for a layer that is not divided into parts.
    pub first_part: Option<PartTimes>,
    /// The number of parts into which it is divided; 1 if it is not.
    pub parts: u32,
    /// What workers that compute different parts exchange.
    pub transfers: PartTransfers,
}

/// The measured times of a part of a layer for one shard of the largest size, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PartTimes {
    /// The forward pass.
    pub forward_s: f64,
    /// The backward pass.
    pub backward_s: f64,
    /// The half of the backward pass for the gradients of the weights.
    pub backward_weights_s: f64,
}

/// The measured times of a worker, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerTimes {
    /// The layers in order.
    pub layers: Vec<LayerTimes>,
    /// The loss of a shard.
    pub loss_s: f64,
    /// Adding an element of one gradient to that of another.
    pub add_element_s: f64,
    /// Copying an element to or from a buffer that is exchanged.
    pub copy_element_s: f64,
    /// Updating an element, norms and hashes included.
    pub update_element_s: f64,
    /// The rest of a step.
    pub step_s: f64,
    /// Reading and decoding the samples of a shard, on one core.
    pub decode_s: f64,
    /// The number of layers that sum over all shards within each pass.
    pub lock_step_layers: u32,
    /// The number of parts into which layers are divided; 1 if they are not.
    pub parts: u32,
    /// What workers that compute different parts of the outputs exchange for the loss of a shard; nothing if each of them computes
    /// the loss of all outputs.
    pub loss_transfers: Vec<PartTransfer>,
    /// Copying an element of a value to and from an exchange.
    pub exchange_element_s: f64,
}

impl WorkerTimes {
    /// Measures the steps of a run for about `limit_s` seconds, with real samples and the real training loop, as the mean of a
    /// number of workers that compute at the same time without exchanging anything. Of shards that take
    /// longer than that, some are measured all the same. Cost: the memory of as many workers with a few shards.
    ///
    /// # Errors
    /// When the model, the data or a step fails.
    pub fn measure(
        config: &RunConfig,
        split: &Split,
        workers: usize,
        limit_s: f64,
    ) -> Result<Self, TrainError> {
        let barrier = Barrier::new(workers.max(1));
        let measured = thread::scope(|scope| {
            let threads = (0..workers.max(1))
                .map(|_| scope.spawn(|| Self::measure_one(config, split, limit_s, &barrier)));
            let threads: Vec<_> = threads.collect();
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(TrainError::Impossible {
                        problem: "a measured worker has panicked".to_owned(),
                        hint: "this is a bug of ronde; please report it".to_owned(),
                    })
                })
            });
            joined.collect::<Result<Vec<Self>, _>>()
        })?;
        Ok(mean(&measured))
    }

    fn measure_one(
        config: &RunConfig,
        split: &Split,
        limit_s: f64,
        barrier: &Barrier,
    ) -> Result<Self, TrainError> {
        let whole = MeasuredForm::default();
        let first = MeasuredTraining::start(config, split, 1, whole)
            .and_then(|mut one| Ok((one.step()?.total_s, one)));
        // Also after a failure, for which the other workers must not wait.
        barrier.wait();
        let (first_s, mut measured) = first?;
        let most = match f64::from(SHARDS) * first_s > limit_s {
            true => FEW_SHARDS,
            false => SHARDS,
        };
        let shards = most.min(config.workers.logical_shards).max(1);
        if shards > 1 {
            drop(measured);
            measured = MeasuredTraining::start(config, split, shards, whole)?;
        }
        let (parts, lock_step_layers) = (measured.parts, measured.lock_step_layers);
        // Layers in parts are measured twice.
        let share_s = limit_s / if parts > 1 { 2.0 } else { 1.0 };
        let steps = measured.steps(share_s / 2.0)?;
        let mut found = measured.times(&steps);
        drop(measured);
        let run = |form: MeasuredForm, limit_s: f64| {
            let mut measured = MeasuredTraining::start(config, split, shards, form)?;
            measured.steps(limit_s)?;
            Ok::<_, TrainError>(measured)
        };
        if lock_step_layers == 0 {
            let halves = run(whole.in_halves(), share_s / 4.0)?;
            for (layer, times) in found.layers.iter_mut().zip(&halves.layers) {
                layer.backward_weights_s = layer.backward_s * weights_share(times);
            }
        }
        if parts > 1 {
            let form = MeasuredForm {
                first_part: true,
                ..whole
            };
            let measured = run(form, share_s / 2.0)?;
            let halves = run(form.in_halves(), share_s / 4.0)?;
            found.exchange_element_s = measured.exchanges.element_s();
            let both = measured.layers.iter().zip(&halves.layers);
            for (layer, (times, halves)) in found.layers.iter_mut().zip(both) {
                let backward_s = typical(times.take(PassKind::Backward));
                layer.first_part = (layer.parts > 1).then(|| PartTimes {
                    forward_s: typical(times.take(PassKind::Forward)),
                    backward_s,
                    backward_weights_s: backward_s * weights_share(halves),
                });
            }
        }
        Ok(found)
    }
}

/// Returns the share of the gradients of weights in a backward pass that was measured in halves: the two halves together do the
/// same as the whole pass.
fn weights_share(halves: &PassTimes) -> f64 {
    let input_s = typical(halves.take(PassKind::BackwardInput));
    let weights_s = typical(halves.take(PassKind::BackwardWeights));
    weights_s / (input_s + weights_s).max(f64::MIN_POSITIVE)
}

/// The measurements of a training.
#[derive(Debug, Clone, Copy, Default)]
struct MeasuredForm {
    schedule: ScheduleName,
    /// Whether the first part of layers is computed alone.
    first_part: bool,
}

impl MeasuredForm {
    /// Returns the form with backward passes in halves, which layers run shard by shard.
    fn in_halves(self) -> Self {
        Self {
            schedule: ScheduleName::ZeroBubble,
            ..self
        }
    }

    fn set(self, config: &mut RunConfig) {
        config.parallel.schedule = self.schedule;
        if self.schedule == ScheduleName::ZeroBubble {
            config.train.shards_together = ShardsTogether::Count(NonZeroU32::MIN);
        }
    }
}

/// One measured step.
struct MeasuredStep {
    total_s: f64,
    times: PhaseTimes,
}

/// A training whose layers measure their passes.
struct MeasuredTraining {
    training: Training,
    loader: Loader,
    layers: Vec<Arc<PassTimes>>,
    shards: u32,
    lock_step_layers: u32,
    /// The layers without their times.
    outlines: Vec<LayerTimes>,
    parts: u32,
    loss_transfers: Vec<PartTransfer>,
    exchanges: Arc<ExchangeTimes>,
}

impl MeasuredTraining {
    /// Prepares the training of a run with some of its shards, by one worker.
    fn start(
        config: &RunConfig,
        split: &Split,
        shards: u32,
        form: MeasuredForm,
    ) -> Result<Self, TrainError> {
        let mut reduced = with_one_worker(config);
        let whole = Plan::resolve(&reduced, WorldSize::ONE, &*split.train)?;
        let shard_samples = whole.shard_samples_max() as u64;
        reduced.workers.logical_shards = shards;
        form.set(&mut reduced);
        let train = &mut reduced.train;
        train.global_batch_size = shard_samples * u64::from(shards);
        (train.steps, train.epochs) = (Some(u64::from(u32::MAX)), None);
        train.drop_last = train.global_batch_size <= split.train.len();
        // Layers are wrapped once they recompute, so that this counts as a part of their backward pass.
        let recomputed = std::mem::take(&mut train.recompute_activations);
        let plan = Plan::resolve(&reduced, WorldSize::ONE, &*split.train)?;
        let description = split.train.description();
        let model = &reduced.model.config;
        let mut chain = model
            .build(&description.shape, description.classes, &plan.seeds)
            .map_err(TrainError::Model)?;
        initial_state::from_samples(&plan, &mut chain, &*split.train)?;
        let recomputed = recomputed.layers();
        chain = chain.recomputing(recomputed).map_err(TrainError::Model)?;
        let mut shape = [&[shard_samples as usize], &description.shape[..]].concat();
        let loss = plan.objective.loss.clone();
        let parts = chain.parts();
        // The loss is computed from the parts of the outputs if it can be.
        let joined = chain.facts().output_parts.clone();
        let output_parts = joined.filter(|_| loss.in_parts().is_some());
        let (exchanges, layer_count) = (Arc::<ExchangeTimes>::default(), chain.len());
        let mut layers = Vec::new();
        let (mut outlines, mut lock_step_layers) = (Vec::new(), 0);
        let chain = chain.wrapped(|index, layer| {
            let own_output = output_parts.clone().filter(|_| index + 1 == layer_count);
            let ends = PassEnds {
                needs_input_gradient: index > 0,
                has_output_apart: own_output.is_some(),
            };
            outlines.push(outline(&*layer, &mut shape, ends));
            lock_step_layers += u32::from(layer.facts().needs_all_shards());
            let (mut layer, times) = TimedLayer::new(layer);
            if form.first_part {
                layer = layer.with_first_part(FirstPart::new(parts, own_output, &exchanges));
            }
            layers.push(times);
            Box::new(layer)
        });
        let loss_transfers = loss_transfers(&*loss, output_parts.as_deref(), &shape);
        let group = ProcessGroup::alone(GroupConfig::new("measure", "measure", GroupRank(0)));
        let member = JobGroup::of(Arc::new(group), Arc::new(NullTracker));
        let training = Training::new(member, plan, chain, split.clone())?;
        let training = training.with_engine(&reduced.train, reduced.workers.threads)?;
        let loader = training.load()?;
        Ok(Self {
            training,
            loader,
            layers,
            shards,
            lock_step_layers,
            outlines,
            parts,
            loss_transfers,
            exchanges,
        })
    }

    fn step(&mut self) -> Result<MeasuredStep, TrainError> {
        let (before, begun) = (self.training.reports.times, ronde_clock::seconds());
        self.training.step(&mut self.loader)?;
        let (after, total_s) = (self.training.reports.times, ronde_clock::seconds() - begun);
        let times = PhaseTimes {
            wait_data_s: after.wait_data_s - before.wait_data_s,
            forward_s: after.forward_s - before.forward_s,
            backward_s: after.backward_s - before.backward_s,
            optimizer_s: after.optimizer_s - before.optimizer_s,
            ..PhaseTimes::default()
        };
        Ok(MeasuredStep { total_s, times })
    }

    /// Runs a step that touches memory for the first time, and then steps for some seconds, but at least one.
    fn steps(&mut self, limit_s: f64) -> Result<Vec<MeasuredStep>, TrainError> {
        self.step()?;
        for layer in &self.layers {
            for kind in [
                PassKind::Forward,
                PassKind::Backward,
                PassKind::BackwardInput,
                PassKind::BackwardWeights,
            ] {
                layer.take(kind);
            }
        }
        let begun = ronde_clock::seconds();
        let mut steps = vec![self.step()?];
        while ronde_clock::seconds() - begun < limit_s && steps.len() < STEPS_MAX {
            steps.push(self.step()?);
        }
        Ok(steps)
    }

    fn times(&self, steps: &[MeasuredStep]) -> WorkerTimes {
        let shards = f64::from(self.shards);
        let layers = self.outlines.iter().zip(&self.layers);
        let mut passes_s = 0.0;
        let layers = layers.map(|(outline, times)| {
            let forward = times.take(PassKind::Forward);
            // A pass in lock step has one time for all shards.
            passes_s += forward.iter().sum::<f64>() / forward.len().max(1) as f64;
            LayerTimes {
                forward_s: typical(forward),
                backward_s: typical(times.take(PassKind::Backward)),
                ..outline.clone()
            }
        });
        let layers: Vec<LayerTimes> = layers.collect();
        let of_steps = |of: &dyn Fn(&MeasuredStep) -> f64| typical(steps.iter().map(of).collect());
        let elements: usize = layers.iter().map(|layer| layer.elements).sum();
        // All that forward passes take besides those of the layers.
        let forward_s: f64 = steps.iter().map(|step| step.times.forward_s).sum();
        let loss_s = forward_s / (shards * steps.len() as f64) - passes_s;
        let rest_s = of_steps(&|step| {
            let times = step.times;
            let named = times.wait_data_s + times.forward_s + times.backward_s + times.optimizer_s;
            step.total_s - named
        });
        let loaded = self.loader.times();
        let decode_s = loaded.decoding.as_secs_f64() / loaded.samples.max(1) as f64;
        let samples = self.training.plan.shard_samples_max() as f64;
        let (add_element_s, copy_element_s) = element_times(elements);
        WorkerTimes {
            loss_s: loss_s.max(0.0),
            add_element_s,
            copy_element_s,
            update_element_s: of_steps(&|step| step.times.optimizer_s) / elements.max(1) as f64,
            step_s: rest_s.max(0.0),
            decode_s: decode_s * samples,
            lock_step_layers: self.lock_step_layers,
            parts: self.parts,
            loss_transfers: self.loss_transfers.clone(),
            exchange_element_s: 0.0,
            layers,
        }
    }
}

/// Returns what workers with different parts of the outputs exchange for a loss; `shape` is that of the outputs.
fn loss_transfers(
    loss: &dyn Loss,
    output_parts: Option<&[usize]>,
    shape: &[usize],
) -> Vec<PartTransfer> {
    let (Some(widths), Some(loss)) = (output_parts, loss.in_parts()) else {
        return Vec::new();
    };
    let targets = shape.iter().product::<usize>() / widths.iter().sum::<usize>().max(1);
    loss.transfers_of_parts(targets, widths.len())
}

/// Returns the known facts of a layer without measuring, and changes the shape of its input to that of its output.
fn outline(layer: &dyn Layer, shape: &mut Vec<usize>, ends: PassEnds) -> LayerTimes {
    let tensors = layer.layout().tensors.iter();
    let elements = tensors.map(TensorEntry::elements).sum();
    let transfers = layer.part_transfers(shape, ends);
    *shape = layer.cost(shape).output_shape;
    let output_bytes = 4 * shape.iter().product::<usize>();
    let output_part_bytes = layer
        .facts()
        .output_tokens
        .as_ref()
        .map_or_else(Vec::new, |tokens| {
            let each_token = output_bytes / tokens.all().max(1);
            let parts = tokens.parts.iter();
            parts.map(|tokens| tokens * each_token).collect()
        });
    LayerTimes {
        name: layer.name().to_owned(),
        elements,
        output_bytes,
        output_part_bytes,
        forward_s: 0.0,
        backward_s: 0.0,
        backward_weights_s: 0.0,
        first_part: None,
        parts: layer.parts(),
        transfers,
    }
}

/// Returns the same run with one worker, which has everything.
pub(super) fn with_one_worker(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    config.workers.count = 1;
    config.parallel = ParallelSection::default();
    config.sync = SyncSection::default();
    config.compression = CompressionSection::default();
    config
}

/// Returns the seconds in which one element is added to another, and those in which it is copied. Buffers are as long as those of a
/// model and alternate, so that caches hold no more of them than during a step.
fn element_times(elements: usize) -> (f64, f64) {
    let len = elements.clamp(1, BUFFER_ELEMENTS);
    let mut into = vec![vec![0.5_f32; len]; BUFFERS];
    let from = vec![0.25_f32; len];
    let mut of = |run: fn(&mut [f32], &[f32])| {
        let times = (0..BUFFER_TIMES).map(|time| {
            let begun = ronde_clock::seconds();
            run(&mut into[time % BUFFERS], &from);
            ronde_clock::seconds() - begun
        });
        typical(times.collect()) / len as f64
    };
    let add_s = of(|into, from| {
        let (into, from) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from));
        ronde_core::exact::add(DType::F32, into, from);
    });
    (add_s, of(|into, from| into.copy_from_slice(from)))
}

/// Returns the median of times; 0 without any. The first shard of a step, for which a layer prepares its weights, lengthens some of
/// them.
pub(super) fn typical(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the mean of the measurements of several workers.
fn mean(measured: &[WorkerTimes]) -> WorkerTimes {
    let count = measured.len().max(1) as f64;
    let of = |of: &dyn Fn(&WorkerTimes) -> f64| measured.iter().map(of).sum::<f64>() / count;
    let first = &measured[0];
    let layers = first
        .layers
        .iter()
        .enumerate()
        .map(|(index, layer)| LayerTimes {
            forward_s: of(&|worker| worker.layers[index].forward_s),
            backward_s: of(&|worker| worker.layers[index].backward_s),
            backward_weights_s: of(&|worker| worker.layers[index].backward_weights_s),
            first_part: layer.first_part.map(|_| {
                let of_part = |time: fn(&PartTimes) -> f64| {
                    of(&|worker| worker.layers[index].first_part.as_ref().map_or(0.0, time))
                };
                PartTimes {
                    forward_s: of_part(|part| part.forward_s),
                    backward_s: of_part(|part| part.backward_s),
                    backward_weights_s: of_part(|part| part.backward_weights_s),
                }
            }),
            ..layer.clone()
        });
    WorkerTimes {
        layers: layers.collect(),
        loss_s: of(&|worker| worker.loss_s),
        add_element_s: of(&|worker| worker.add_element_s),
        copy_element_s: of(&|worker| worker.copy_element_s),
        update_element_s: of(&|worker| worker.update_element_s),
        step_s: of(&|worker| worker.step_s),
        decode_s: of(&|worker| worker.decode_s),
        lock_step_layers: first.lock_step_layers,
        parts: first.parts,
        loss_transfers: first.loss_transfers.clone(),
        exchange_element_s: of(&|worker| worker.exchange_element_s),
    }
}

#[cfg(test)]
mod tests {
    use ronde_data::OpenContext;

    use super::*;

    fn measured(settings: &str, workers: usize) -> WorkerTimes {
        let text = format!(
            "[run]\nname = 'x'\n[data]\nsource = 'digits'\n[model]\nkind = 'mlp'\nhidden = [32]\n\
             [train]\nepochs = 1\n{settings}\n[workers]\nlogical_shards = 4\n"
        );
        measured_run(&text, workers)
    }

    fn measured_run(text: &str, workers: usize) -> WorkerTimes {
        let config: RunConfig = toml::from_str(text).unwrap();
        let opening = OpenContext::new(".".as_ref(), config.run.seed);
        let split = ronde_data::open(&config.data, &opening).unwrap();
        WorkerTimes::measure(&config, &split, workers, 0.1).unwrap()
    }

    #[test]
    fn the_passes_of_each_layer_are_measured() {
        for settings in ["", "recompute_activations = true", "precision = 'bf16'"] {
            let found = measured(settings, 1);
            assert_eq!(found.layers.len(), 2, "{found:?}");
            for layer in &found.layers {
                assert!(
                    layer.forward_s > 0.0 && layer.backward_s > 0.0,
                    "{settings}: {layer:?}"
                );
                assert!(layer.backward_weights_s > 0.0, "{settings}: {layer:?}");
                assert!(
                    layer.backward_weights_s < layer.backward_s,
                    "{settings}: {layer:?}"
                );
            }
            assert_eq!(found.layers[0].elements, 64 * 32 + 32);
            // 16 samples of 32 and of 10 floats.
            assert_eq!(found.layers[0].output_bytes, 16 * 32 * 4);
            assert_eq!(found.layers[1].output_bytes, 16 * 10 * 4);
            assert!(found.update_element_s > 0.0 && found.add_element_s > 0.0);
            assert_eq!(found.lock_step_layers, 0);
        }
    }

    #[test]
    fn the_first_part_of_layers_is_measured_alone() {
        let text = "[run]\nname = 'x'\n[data]\nsource = 'text'\ncontext = 16\n[model]\nkind = 'gpt'\nlayers = 1\nwidth = 32\nheads = 4\n\
                    tensor_parts = 4\n[train]\nsteps = 4\nglobal_batch_size = 8\n[workers]\nlogical_shards = 4\n";
        let found = measured_run(text, 1);
        assert_eq!(found.parts, 4);
        let forward: Vec<usize> = found
            .layers
            .iter()
            .map(|l| l.transfers.forward.len())
            .collect();
        // The block and the head gather their tokens; the sums of the embedding and of the block are scattered over them.
        assert_eq!(forward, [1, 4, 1], "{found:?}");
        assert_eq!(found.loss_transfers.len(), 2);
        for layer in &found.layers {
            let part = layer.first_part.unwrap();
            assert!(part.forward_s > 0.0 && part.backward_s > 0.0, "{layer:?}");
            assert!(part.backward_weights_s < part.backward_s, "{layer:?}");
        }
        assert!(found.exchange_element_s > 0.0);
    }

    #[test]
    fn several_workers_are_measured_at_once() {
        let found = measured("", 2);
        assert!(found.layers[1].forward_s > 0.0, "{found:?}");
    }
}
