//! [`ModelParts`]: the parts of a model that workers may have, and the layout of a run among its workers.

use std::ops::Range;

use ronde_core::WorldSize;
use ronde_core::layout::TensorEntry;
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::{PipelineStage, StepLayout, divide_layers};
use ronde_data::Dataset;
use ronde_engine::{Chain, Layer, LayerExt, ModelConfig, PartPlace, StepShape};
use ronde_parallel::ZeroLevel;
use ronde_schedule::{PipelineSchedule, ProgramAction, ProgramShape, ShardOrder, programs};

use crate::config::{BalanceMode, ParallelSection, RunConfig};
use crate::error::TrainError;
use crate::memory::{DividedModel, PartMemory};
use crate::plan::Plan;

/// The parts of a model that workers of a pipeline may have.
#[derive(Debug, Clone)]
pub struct ModelParts {
    /// The names of the layers.
    layers: Vec<String>,
    /// The work of each layer.
    work: Vec<f64>,
    /// Layers that stay together, in order.
    pieces: Vec<Range<usize>>,
    /// Whether the first and the last layer share a parameter.
    is_tied: bool,
    /// The number of workers that divide the layers among themselves, if there are enough.
    columns: usize,
    /// The number of stages of each of them.
    rounds: usize,
    /// The number of workers that divide the parts of each layer among themselves, if there are enough.
    tensors: usize,
    /// The number of workers that update the state instead of computing shards.
    servers: usize,
    /// The number of shards that one worker computes together.
    together: u32,
}

impl ModelParts {
    /// Returns the parts of a model as a plan trains it.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] when `[parallel]` requests a division that the model does not allow.
    pub fn of(plan: &Plan, chain: &mut Chain, train: &dyn Dataset) -> Result<Self, TrainError> {
        let section = &plan.config.parallel;
        let layers: Vec<String> = chain.layers().iter().map(|l| l.name().to_owned()).collect();
        let is_tied = chain.shared_parameter().is_some();
        let is_own = plan.has_own_model();
        check_layers(&plan.config, chain, is_own)?;
        check_tensor(&plan.config, chain.parts(), is_own)?;
        let work = work(&plan.config, chain, train, plan.shard_samples_max());
        let mut this = Self::new(section, layers, work, is_tied)?;
        this.together = plan.config.shards_together();
        Ok(this)
    }

    /// Returns the parts of the model of a run file that its workers have. Cost: that of describing the model; no weights are
    /// allocated.
    ///
    /// # Errors
    /// As [`ModelParts::of`], and when the model does not accept the samples.
    pub fn memory(plan: &Plan, train: &dyn Dataset) -> Result<DividedModel, TrainError> {
        let description = train.description();
        let mut chain = plan.chain(train)?;
        let parts = Self::of(plan, &mut chain, train)?;
        let shards = plan.shards.shards();
        let together = parts.columns * parts.tensors;
        let layout = parts.layout(shards, together * plan.shards.ranks())?;
        let mut shape = vec![plan.shard_samples_max()];
        shape.extend_from_slice(&description.shape);
        let (divisor, whole_kept) = {
            let whole = layer_sizes(&mut chain, &shape, 0..u32::MAX);
            let elements: f64 = whole.iter().map(|(elements, _)| elements).sum();
            (elements.max(1.0), whole.iter().map(|(_, kept)| kept).sum())
        };
        let section = &plan.config.parallel;
        let own_shards = shards.div_ceil(layout.replicas() as u32);
        let mut workers = Vec::with_capacity(together);
        // In the order of the ranks: those that differ in their parts only are neighbours.
        let mut of_tensor: Vec<(Vec<f64>, Vec<u64>)> = Vec::with_capacity(parts.tensors);
        for tensor in 0..layout.tensors() {
            let own = layout.parts_at(tensor, chain.parts());
            let layers = layer_sizes(&mut chain, &shape, own);
            let mut elements = vec![0.0; layout.columns()];
            let mut kept_of = Vec::with_capacity(layout.stages().len());
            for stage in layout.stages() {
                let own = layers[stage.layers.clone()].iter();
                elements[stage.column] += own.clone().map(|(own, _)| own / divisor).sum::<f64>();
                kept_of.push(own.map(|(_, kept)| kept).sum());
            }
            let kept = match section.shard_order() {
                // Without a pipeline: one stage.
                ShardOrder::ByLayer => vec![kept_of.iter().sum::<u64>() * u64::from(own_shards)],
                _ => kept_max(&layout, section.pipeline_schedule(), own_shards, &kept_of),
            };
            of_tensor.push((elements, kept));
        }
        for column in 0..layout.columns() {
            workers.extend(of_tensor.iter().map(|(elements, kept)| PartMemory {
                elements: elements[column],
                copied_elements: 0.0,
                kept_floats_max: kept[column],
            }));
        }
        let is_held_once = layout.replicas() == 1 || section.zero_level().is_sharded();
        if is_held_once && section.copies_among(layout.members() as u32) > 1 {
            let elements: Vec<f64> = workers.iter().map(|part| part.elements).collect();
            let count = elements.len();
            for (index, part) in workers.iter_mut().enumerate() {
                part.copied_elements = elements[(index + count - 1) % count];
            }
        }
        Ok(DividedModel {
            workers,
            kept_floats: whole_kept,
        })
    }

    fn new(
        section: &ParallelSection,
        layers: Vec<String>,
        work: Vec<f64>,
        is_tied: bool,
    ) -> Result<Self, TrainError> {
        let count = layers.len();
        let mut begins = vec![0];
        for name in &section.cuts {
            let after = begins.last().map_or(0, |begin| begin + 1);
            let found = layers.iter().skip(after).position(|layer| layer == name);
            let begin = found.ok_or_else(|| unknown_cut("parallel.cuts", name, &layers, after))?;
            begins.push(after + begin);
        }
        let ends = begins.iter().skip(1).copied().chain([count]);
        let named = begins.iter().zip(ends).map(|(&begin, end)| begin..end);
        let pieces = match section.cuts.is_empty() {
            true => (0..count).map(|layer| layer..layer + 1).collect(),
            false => named.collect(),
        };
        let this = Self {
            layers,
            work,
            pieces,
            is_tied,
            columns: section.pipeline as usize,
            rounds: section.rounds(),
            tensors: section.tensor as usize,
            servers: section.servers as usize,
            together: 1,
        };
        if this.stages(this.columns).is_none() {
            let shared = if is_tied {
                ", of which the first and the last share a parameter and stay on one worker"
            } else {
                ""
            };
            let stages = match this.rounds {
                1 => String::new(),
                rounds => format!(" with {rounds} stages each"),
            };
            let hint = match this.columns_max() {
                1 if this.rounds > 1 => {
                    "set parallel.schedule to one with a single stage for each worker, such as \"zero_bubble\"".to_owned()
                }
                most => format!("set parallel.pipeline to {most} or less"),
            };
            return Err(TrainError::Impossible {
                problem: format!(
                    "a pipeline of {} workers{stages} cannot divide {count} layers{shared}",
                    this.columns
                ),
                hint,
            });
        }
        Ok(this)
    }

    /// Returns the most workers that can divide the layers among themselves.
    fn columns_max(&self) -> usize {
        let mut columns = (1..=self.layers.len()).rev();
        columns
            .find(|columns| self.stages(*columns).is_some())
            .unwrap_or(1)
    }

    fn stages(&self, columns: usize) -> Option<Vec<PipelineStage>> {
        // Fewer workers than in the run file have more layers each, but no more stages.
        let rounds = if columns > 1 { self.rounds } else { 1 };
        divide_layers(&self.pieces, &self.work, (columns, rounds), self.is_tied)
    }

    /// Returns the layout of a run of `shards` logical shards among `ranks` workers. With too few of them for the pipeline and
    /// the division of layers in the run file, the pipeline is shorter, and then the division is among fewer.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] without workers.
    pub fn layout(&self, shards: u32, ranks: usize) -> Result<StepLayout, TrainError> {
        let tensors = self.tensors.min(ranks).max(1);
        let columns = self.columns.min(ranks / tensors);
        let layout = match columns * tensors {
            0 | 1 if self.together > 1 => WorldSize::new(ranks as u32)
                .and_then(|size| ShardPlan::of_groups(shards / self.together, self.together, size))
                .map(|shards| StepLayout::data_parallel(shards, self.layers.len())),
            0 | 1 => StepLayout::with_servers(ranks, shards, self.layers.len(), self.servers),
            _ => self
                .stages(columns)
                .and_then(|stages| StepLayout::mesh(ranks, shards, stages, tensors)),
        };
        layout.ok_or_else(|| TrainError::Impossible {
            problem: "the group has no members".to_owned(),
            hint: "this is a bug of ronde; please report it".to_owned(),
        })
    }

    /// Describes the part of the model on each worker; `None` if each worker has all of it.
    #[must_use]
    pub fn describe(&self, layout: &StepLayout) -> Option<String> {
        if !layout.divides_model() {
            return None;
        }
        let mut text = match layout.columns() {
            1 => String::new(),
            _ => self.describe_columns(layout),
        };
        let tensors = layout.tensors();
        if tensors > 1 && layout.columns() > 1 {
            text.push_str(&format!(
                "; {tensors} workers divide the parts of each of these layers"
            ));
        } else if tensors > 1 {
            text = match layout.replicas() {
                1 => format!("{tensors} workers divide the parts of each layer"),
                groups => {
                    format!(
                        "in each of {groups} groups, {tensors} workers divide the parts of each layer"
                    )
                }
            };
        }
        let spares = layout.ranks() - layout.members();
        if spares > 0 {
            let ranks = layout.ranks();
            text.push_str(&format!("; {spares} of {ranks} workers are spares"));
        }
        Some(text)
    }

    fn describe_columns(&self, layout: &StepLayout) -> String {
        let total: f64 = self.work.iter().sum();
        let of_column = |column: usize| {
            let mut share = 0.0;
            let mut parts = Vec::new();
            for stage in layout
                .stages()
                .iter()
                .filter(|stage| stage.column == column)
            {
                share += self.work[stage.layers.clone()].iter().sum::<f64>();
                let (first, last) = (stage.layers.start, stage.layers.end - 1);
                parts.push(match first == last {
                    true => self.layers[first].clone(),
                    false => format!("{} to {}", self.layers[first], self.layers[last]),
                });
            }
            format!("{} ({:.0} %)", parts.join(" and "), 100.0 * share / total)
        };
        let columns: Vec<String> = (0..layout.columns()).map(of_column).collect();
        let pipelines = match layout.replicas() {
            1 => "a pipeline".to_owned(),
            replicas => format!("each of {replicas} pipelines"),
        };
        let workers = match layout.tensors() {
            1 => "workers",
            _ => "groups of workers",
        };
        format!(
            "{pipelines} divides the layers and their work among {} {workers}: {}",
            layout.columns(),
            columns.join(", ")
        )
    }
}

/// Returns the elements of each layer and the floats that it keeps of one shard, for the parts that a worker has.
fn layer_sizes(chain: &mut Chain, shape: &[usize], own: Range<u32>) -> Vec<(f64, u64)> {
    let parts = chain.parts();
    let own = own.start..own.end.min(parts);
    chain.set_parts(&PartPlace::planned(own.clone(), parts));
    let has = |tensor: &&TensorEntry| {
        let part = tensor.part.as_ref();
        part.is_none_or(|part| own.contains(&part.index))
    };
    let mut shape = shape.to_vec();
    let layers = chain.layers().iter().map(|layer| {
        let cost = layer.cost(&shape);
        shape.clone_from(&cost.output_shape);
        let tensors = layer.layout().tensors.iter().filter(has);
        let elements: usize = tensors.map(TensorEntry::elements).sum();
        (elements as f64, cost.kept_floats as u64)
    });
    layers.collect()
}

/// Checks that the layers of the model allow the division that `[parallel]` requests.
fn check_layers(config: &RunConfig, chain: &mut Chain, is_own: bool) -> Result<(), TrainError> {
    let section = &config.parallel;
    let refused = |problem, hint: &str| {
        let hint = hint.to_owned();
        Err(TrainError::Impossible { problem, hint })
    };
    if section.pipeline > 1 && chain.facts().needs_all_shards() {
        let problem = "a pipeline cannot train this model: a layer needs sums over all samples of a step within its pass";
        return refused(
            problem.to_owned(),
            match &config.model.config {
                _ if is_own => {
                    "use `Normalisation::Batch` or `Group`, or set parallel.pipeline = 1"
                }
                ModelConfig::KMeans { .. } => {
                    "set parallel.pipeline = 1: workers divide the samples of `kmeans`, not its only layer"
                }
                _ => {
                    "use `model.normalisation = \"batch\"` or `\"group\"`, or set parallel.pipeline = 1"
                }
            },
        );
    }
    let mut kept = chain.layers().iter();
    let Some(layer) = kept.find(|layer| !layer.facts().is_suspendable) else {
        return Ok(());
    };
    let (name, engine) = (layer.name(), layer.engine());
    if section.divides_model() {
        let key = match section.pipeline {
            0 | 1 => format!("parallel.tensor = {}", section.tensor),
            pipeline => format!("parallel.pipeline = {pipeline}"),
        };
        return refused(
            format!(
                "{key} cannot train this model: layer `{name}` of {engine} keeps its weights on every worker"
            ),
            "set parallel.pipeline = 1 and parallel.tensor = 1; parallel.zero = 1 or 2 divides the states of the optimizer",
        );
    }
    if section.zero_level() == ZeroLevel::Weights {
        return refused(
            format!(
                "parallel.zero = 3 cannot train this model: layer `{name}` of {engine} keeps its weights between its passes"
            ),
            "set parallel.zero to 2 or less",
        );
    }
    Ok(())
}

/// Checks that workers can divide the parts of the model's layers.
fn check_tensor(config: &RunConfig, parts: u32, is_own: bool) -> Result<(), TrainError> {
    let tensor = config.parallel.tensor;
    if tensor <= parts {
        return Ok(());
    }
    let model = match is_own {
        true => "this model".to_owned(),
        false => format!("`{}`", config.model.config.kind()),
    };
    let (problem, hint) = match parts {
        1 => (
            format!("{tensor} workers cannot divide the layers of {model}: they are not in parts"),
            match is_own {
                true => {
                    format!(
                        "describe layers with `GraphBuilder::each_part` in {tensor} parts, or set parallel.tensor = 1"
                    )
                }
                false => format!(
                    "set model.tensor_parts = {tensor}, which changes the trained bits (gpt, bert, transformer and mlp have it), or parallel.tensor = 1"
                ),
            },
        ),
        parts => (
            format!("{tensor} workers cannot divide {parts} parts of the layers of {model}"),
            match is_own {
                true => format!(
                    "set parallel.tensor to {parts} or less, or describe the layers in {tensor} parts, which changes the trained bits"
                ),
                false => format!(
                    "set parallel.tensor to {parts} or less, or model.tensor_parts to {tensor}, which changes the trained bits"
                ),
            },
        ),
    };
    Err(TrainError::Impossible { problem, hint })
}

/// Returns the most values that each worker of a pipeline keeps at any time for backward passes, from those that each stage
/// keeps of one shard.
fn kept_max(
    layout: &StepLayout,
    schedule: PipelineSchedule,
    shards: u32,
    kept_of: &[u64],
) -> Vec<u64> {
    let shape = ProgramShape::with_one_bucket_per_stage(layout.stages(), 0..shards);
    let programs = programs(schedule, &shape);
    let mut most = vec![0; programs.len()];
    for (program, most) in programs.iter().zip(&mut most) {
        let mut kept: u64 = 0;
        for action in program {
            match action {
                ProgramAction::Forward { bucket, .. } => {
                    kept += kept_of[kept_of.len() - 1 - bucket];
                }
                ProgramAction::Backward { bucket, .. }
                | ProgramAction::BackwardWeights { bucket, .. } => {
                    kept -= kept_of[kept_of.len() - 1 - bucket];
                }
                _ => {}
            }
            *most = kept.max(*most);
        }
    }
    most
}

/// Returns the number of workers with the same layers and parts.
pub(crate) fn replicas(config: &RunConfig, world_size: WorldSize) -> WorldSize {
    let together = config.parallel.model_workers().min(world_size.get());
    let shards = match together {
        1 => u32::MAX,
        _ => config.workers.logical_shards.max(1),
    };
    WorldSize::new((world_size.get() / together).min(shards)).unwrap_or(WorldSize::ONE)
}

/// Checks that a run can start with a number of workers. A run that loses workers may continue with fewer.
pub(crate) fn check_workers(config: &RunConfig, world_size: WorldSize) -> Result<(), TrainError> {
    let (workers, columns) = (world_size.get(), config.parallel.pipeline);
    let together = config.parallel.model_workers();
    if together < 2 {
        return Ok(());
    }
    let what = match config.parallel.tensor {
        1 => format!("a pipeline of {columns} workers"),
        tensor if columns < 2 => format!("a division of each layer among {tensor} workers"),
        tensor => format!("a pipeline of {columns} times {tensor} workers"),
    };
    if workers < together {
        let hint = match config.parallel.tensor {
            1 => format!("use --workers {together}, or set parallel.pipeline to {workers}"),
            _ => format!("use --workers {together}, or lower parallel.pipeline or parallel.tensor"),
        };
        return Err(TrainError::Impossible {
            problem: format!("{what} cannot start with {workers}"),
            hint,
        });
    }
    if config.workers.balance == BalanceMode::Measured {
        return Err(TrainError::Impossible {
            problem: format!(
                "{what} cannot balance the shards of its workers: all of them compute the same shards"
            ),
            hint: "set workers.balance = \"equal\"".to_owned(),
        });
    }
    let (shards, replicas) = (config.workers.logical_shards, replicas(config, world_size));
    let least = shards / replicas.get();
    if least < columns {
        return Err(TrainError::Impossible {
            problem: format!(
                "{what} needs at least {columns} logical shards, but one of {replicas} has {least} of {shards}"
            ),
            hint: format!(
                "raise workers.logical_shards to {} (which changes the trained bits), or lower parallel.pipeline",
                columns * replicas.get()
            ),
        });
    }
    Ok(())
}

/// Returns the work of each layer: that of the built-in model or of the layers of a user's own model; if one of these does not know
/// it, the number of parameters of each.
pub(crate) fn work(
    config: &RunConfig,
    chain: &mut Chain,
    train: &dyn Dataset,
    samples: usize,
) -> Vec<f64> {
    let description = train.description();
    let step = StepShape {
        sample: &description.shape,
        classes: description.classes,
        samples,
        shards: 1,
        is_by_layer: false,
        recomputation: config.train.recompute_activations.layers(),
        precision: config.train.precision,
    };
    let model = &config.model.config;
    let outline = model.outline(&description.shape, description.classes);
    let outlined = outline.unwrap_or_default();
    let is_built_in = outlined.len() == chain.len()
        && outlined
            .iter()
            .zip(chain.layers())
            .all(|(outlined, layer)| outlined.layout() == layer.layout());
    let known = match is_built_in {
        true => model.layer_work(&step).ok(),
        false => chain.layer_work(&description.shape, samples),
    };
    known.unwrap_or_else(|| {
        let layers = chain.layers().iter();
        let elements = layers.map(|layer| {
            let tensors = layer.layout().tensors.iter();
            tensors.map(TensorEntry::elements).sum::<usize>()
        });
        elements.map(|elements| 1.0 + elements as f64).collect()
    })
}

/// Returns the error of a name in the list `key` that is not that of a layer from number `after` on.
pub(crate) fn unknown_cut(key: &str, name: &str, layers: &[String], after: usize) -> TrainError {
    let is_earlier = layers.iter().take(after).any(|layer| layer == name);
    let is_first = layers.first().is_some_and(|layer| layer == name);
    let problem = match is_earlier {
        true if is_first => {
            format!("{key} names `{name}`, the first layer: no part would be before it")
        }
        true => {
            format!("{key} names `{name}` too late or twice: a part cannot begin there")
        }
        false => format!("{key} names `{name}`, but the model has no such layer"),
    };
    let possible = layers.iter().skip(1).map(String::as_str);
    let possible: Vec<&str> = possible.collect();
    TrainError::Impossible {
        problem,
        hint: format!(
            "name layers in their order, each once: {}",
            possible.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::seed::SeedTree;

    use super::*;

    fn parts(section: &str, is_tied: bool) -> Result<ModelParts, TrainError> {
        let section: ParallelSection = toml::from_str(section).unwrap();
        let layers = ["embedding", "block1", "block2", "block3", "head"];
        let work = vec![1.0, 4.0, 4.0, 4.0, 3.0];
        ModelParts::new(&section, layers.map(str::to_owned).to_vec(), work, is_tied)
    }

    fn described(section: &str, is_tied: bool, ranks: usize) -> String {
        let parts = parts(section, is_tied).unwrap();
        let layout = parts.layout(8, ranks).unwrap();
        parts.describe(&layout).unwrap_or_default()
    }

    #[test]
    fn layers_are_divided_by_work_or_at_named_ones() {
        assert_eq!(
            described("pipeline = 2", false, 2),
            "a pipeline divides the layers and their work among 2 workers: embedding to block2 (56 %), block3 to head (44 %)"
        );
        let named = described("pipeline = 2\ncuts = [\"block1\"]", false, 5);
        assert!(named.starts_with("each of 2 pipelines"), "{named}");
        assert!(
            named.contains("embedding (6 %), block1 to head (94 %)"),
            "{named}"
        );
        assert!(named.ends_with("; 1 of 5 workers are spares"), "{named}");
        let tied = described("pipeline = 2", true, 2);
        assert!(
            tied.contains("embedding to block1 and head (50 %), block2 to block3"),
            "{tied}"
        );
        // Too few workers for the pipeline of the run file.
        assert!(described("pipeline = 4", false, 3).contains("among 3 workers"));
        assert_eq!(described("pipeline = 4", false, 1), "");
    }

    #[test]
    fn a_pipeline_needs_workers_and_shards_to_start() {
        let refused = |sets: &str, workers| {
            let text = format!("[data]\nsource = 'digits'\n[model]\nkind = 'linear'\n{sets}");
            let config: RunConfig = toml::from_str(&text).unwrap();
            let checked = check_workers(&config, WorldSize::new(workers).unwrap());
            checked.map_or_else(|error| error.to_string(), |()| String::new())
        };
        let four = "[parallel]\npipeline = 4\n";
        assert_eq!(refused(four, 4), "");
        assert!(refused(four, 3).contains("cannot start with 3"));
        assert!(refused(four, 12).contains("one of 3 has 2 of 8"));
        let balanced = format!("{four}[workers]\nbalance = 'measured'");
        assert!(refused(&balanced, 4).contains("cannot balance"));
    }

    #[test]
    fn clusters_are_not_advised_to_change_their_normalisation() {
        let text = "[data]\nsource = 'digits'\n[model]\nkind = 'kmeans'\nclusters = 3\n[parallel]\npipeline = 2";
        let config: RunConfig = toml::from_str(text).unwrap();
        let model = &config.model.config;
        let mut chain = model.build(&[1, 8, 8], 10, &SeedTree::new(1)).unwrap();
        let message = check_layers(&config, &mut chain, false).unwrap_err();
        let message = message.to_string();
        assert!(
            message.contains("set parallel.pipeline = 1") && !message.contains("normalisation"),
            "{message}"
        );
    }

    #[test]
    fn models_that_cannot_be_divided_are_refused_with_what_works() {
        let refused = |section, is_tied| parts(section, is_tied).unwrap_err().to_string();
        let message = refused("pipeline = 6", false);
        assert!(message.contains("cannot divide 5 layers"), "{message}");
        assert!(
            message.contains("set parallel.pipeline to 5 or less"),
            "{message}"
        );
        let message = refused("pipeline = 5", true);
        assert!(message.contains("stay on one worker"), "{message}");
        assert!(message.contains("to 4 or less"), "{message}");
        let message = refused("pipeline = 3\nschedule = 'interleaved'", false);
        assert!(
            message.contains("of 3 workers with 2 stages each cannot divide 5 layers"),
            "{message}"
        );
        assert!(message.contains("to 2 or less"), "{message}");
        let message = refused(
            "pipeline = 2\nschedule = 'interleaved'\nstages_per_worker = 3",
            false,
        );
        assert!(message.contains("\"zero_bubble\""), "{message}");
        let message = refused("pipeline = 2\ncuts = [\"block9\"]", false);
        assert!(message.contains("no such layer"), "{message}");
        assert!(
            message.contains("block1, block2, block3, head"),
            "{message}"
        );
        let message = refused("pipeline = 3\ncuts = [\"block2\", \"block1\"]", false);
        assert!(message.contains("too late or twice"), "{message}");
        let message = refused("pipeline = 2\ncuts = [\"embedding\"]", false);
        assert!(message.contains("the first layer"), "{message}");
    }
}
