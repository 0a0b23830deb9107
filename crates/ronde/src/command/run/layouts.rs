//! [`LayoutBuilder`]: the layouts of a run and the memory of their workers.

use std::ops::Range;

use ronde::engine::{Chain, ModelSize, Recomputation, StepShape};
use ronde_core::WorldSize;
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::PipelineStage;
use ronde_data::Dataset;
use ronde_parallel::{ModelState, bucket};
use ronde_planner::{
    BucketShape, ChoiceLimits, LayoutCandidate, LayoutChoice, RegionShape, layout_choices,
};
use ronde_schedule::ShardOrder;
use ronde_tracking::render::bytes;
use ronde_train::config::{OrderName, ParallelSection};
use ronde_train::{ModelParts, Plan};

use crate::command::run::capacity::{
    DIVIDED_BUCKET_BYTES, choose_recomputation, with_margin, worker_estimates,
};
use crate::command::run::layout_arguments::{layout_arguments, schedule_name};
use ronde_engine::LayerExt;

/// Builds the layouts of a run. Nothing is allocated for the model's weights.
pub(crate) struct LayoutBuilder<'a> {
    plan: &'a Plan,
    size: &'a ModelSize,
    train: &'a dyn Dataset,
    chain: Chain,
    /// The elements of each layer in each region of the flat state.
    regions: Vec<Vec<Range<usize>>>,
    /// The elements of each tensor.
    tensors: Vec<Range<usize>>,
    /// The bytes of memory of a host, and the number of workers that it has at most.
    host: (u64, u32),
}

impl<'a> LayoutBuilder<'a> {
    /// Creates the builder of a run; `None` if its model cannot be built.
    pub(crate) fn new(plan: &'a Plan, size: &'a ModelSize, train: &'a dyn Dataset) -> Option<Self> {
        let chain = plan.chain(train).ok()?;
        let state = ModelState::outline(&chain);
        let regions = state.regions().to_vec();
        let tensors = state.tensors().iter().map(|tensor| tensor.range.clone());
        let tensors = tensors.collect();
        Some(Self {
            plan,
            size,
            train,
            chain,
            regions,
            tensors,
            host: (u64::MAX, 1),
        })
    }

    /// Sets the memory of a host and the number of its workers, for which layers are computed again if the run file leaves them open.
    pub(crate) fn for_hosts(mut self, memory_bytes: u64, workers: u32) -> Self {
        self.host = (memory_bytes, workers);
        self
    }

    /// Returns the state of the model without values.
    pub(crate) fn state(&self) -> ModelState {
        ModelState::outline(&self.chain)
    }

    /// Returns what limits the layouts on hosts that each have cores for a number of workers.
    pub(crate) fn limits(&self, workers_per_host: u32, hosts: u32) -> ChoiceLimits {
        let layers = self.chain.layers().len() as u32;
        ChoiceLimits {
            workers_per_host,
            hosts,
            shards: self.plan.shards.shards(),
            pipeline_max: layers,
            interleaved_max: layers / 2,
            parts: self.chain.parts(),
            zero_max: 3,
            has_orders: !self.plan.config.model.config.runs_shards_together(),
        }
    }

    /// Returns the plan of the run with a layout and a number of logical shards.
    fn plan_of(&self, choice: &LayoutChoice, shards: u32) -> Option<Plan> {
        let mut plan = self.plan.clone();
        let own = &self.plan.config.parallel;
        let section = ParallelSection {
            zero: choice.zero,
            copies: choice.is_held_once().then_some(choice.copies),
            servers: 0,
            pipeline: choice.pipeline,
            tensor: choice.tensor,
            schedule: schedule_name(choice.schedule).0,
            stages_per_worker: (choice.stages_per_worker > 1).then_some(choice.stages_per_worker),
            order: match choice.order {
                ShardOrder::ByShard => OrderName::ByShard,
                ShardOrder::ByLayer | ShardOrder::LockStep => OrderName::ByLayer,
            },
            cuts: Vec::new(),
        };
        let has_own_cuts = own.pipeline == choice.pipeline && own.rounds() == section.rounds();
        plan.config.parallel = ParallelSection {
            cuts: if has_own_cuts {
                own.cuts.clone()
            } else {
                Vec::new()
            },
            ..section
        };
        plan.config.workers.count = choice.workers();
        plan.shards = ShardPlan::new(shards, WorldSize::new(choice.data)?)?;
        Some(plan)
    }

    /// Returns the layout of a choice, without the memory of its workers; `None` if the model does not allow it.
    pub(crate) fn shape(&mut self, choice: &LayoutChoice, shards: u32) -> Option<LayoutCandidate> {
        let plan = self.plan_of(choice, shards)?;
        self.shape_of(&plan, choice)
    }

    fn shape_of(&mut self, plan: &Plan, choice: &LayoutChoice) -> Option<LayoutCandidate> {
        let parts = ModelParts::of(plan, &mut self.chain, self.train).ok()?;
        let workers = choice.workers() as usize;
        let layout = parts.layout(plan.shards.shards(), workers).ok()?;
        let bucket_bytes = plan.config.comm.bucket_bytes_max;
        let bucket_bytes = bucket_bytes.unwrap_or(DIVIDED_BUCKET_BYTES) as usize;
        let stages: &[PipelineStage] = layout.stages();
        let mut buckets: Vec<BucketShape> = Vec::new();
        for bucket in bucket::plan(&self.regions, stages, bucket_bytes) {
            let region = RegionShape {
                elements: bucket.elements.len(),
                slices: bucket::slices(&bucket.elements, &self.tensors, layout.replicas())
                    .iter()
                    .map(Range::len)
                    .collect(),
            };
            match buckets.last_mut() {
                // Another region of the same layers.
                Some(last) if last.layers == bucket.layers => last.regions.push(region),
                _ => buckets.push(BucketShape {
                    stage: bucket.stage,
                    layers: bucket.layers,
                    regions: vec![region],
                }),
            }
        }
        Some(LayoutCandidate {
            choice: *choice,
            buckets,
            recomputed: 0..0,
            memory_bytes: Vec::new(),
            layout,
        })
    }

    /// Returns the layout of a choice with the memory of its workers; `None` if the model does not allow it.
    pub(crate) fn candidate(&mut self, choice: &LayoutChoice) -> Option<LayoutCandidate> {
        let mut plan = self.plan_of(choice, self.plan.shards.shards())?;
        let (memory_bytes, workers) = self.host;
        let on_host = u64::from(workers.min(choice.workers()));
        let names: Vec<&str> = self
            .chain
            .layers()
            .iter()
            .map(|layer| layer.name())
            .collect();
        let recomputed = choose_recomputation(&mut plan, &names, |plan| {
            let workers = worker_estimates(plan, self.size, self.train);
            let most = workers.iter().map(|worker| worker.total()).max();
            with_margin(most.unwrap_or(0)).saturating_mul(on_host) <= memory_bytes
        });
        let shape = self.shape_of(&plan, choice)?;
        let workers = worker_estimates(&plan, self.size, self.train);
        Some(LayoutCandidate {
            recomputed: 0..recomputed,
            memory_bytes: workers.iter().map(|worker| worker.total()).collect(),
            ..shape
        })
    }

    /// Returns the floats of a shard's activations, of the whole model, with and without recomputation.
    fn activations(&self, recomputation: &Recomputation) -> u64 {
        let config = &self.plan.config;
        let description = self.train.description();
        let step = StepShape {
            sample: &description.shape,
            classes: description.classes,
            samples: self.plan.shard_samples_max(),
            shards: 1,
            is_by_layer: false,
            recomputation,
            precision: config.train.precision,
        };
        config.model.config.step_floats(&step).unwrap_or(u64::MAX)
    }

    /// Returns what makes the run fit into the memory of one host: another layout of as many workers, or of fewer.
    pub(crate) fn fitting(&mut self, workers: WorldSize, memory_bytes: u64) -> Option<String> {
        let mut choices = layout_choices(&self.limits(workers.get(), 1));
        // The smallest change first: as many workers, few divisions of the layers, the usual copies.
        choices.sort_by_key(|choice| {
            let fewer = workers.get() - choice.workers().min(workers.get());
            let has_usual_copies = choice.copies == choice.usual_copies();
            let divisions = choice.model_workers();
            (
                fewer,
                divisions,
                choice.tensor,
                !has_usual_copies,
                choice.zero,
            )
        });
        let first_fewer = choices
            .iter()
            .position(|choice| choice.workers() < workers.get());
        let (same, fewer) = choices.split_at(first_fewer.unwrap_or(choices.len()));
        let own = self.plan.config.parallel.clone();
        let mut found = |choices: &[LayoutChoice]| {
            choices.iter().find_map(|choice| {
                let candidate = self.candidate(choice)?;
                let replicas = u64::from(choice.data);
                let needed = candidate.memory_bytes.iter();
                let needed: u64 = needed.map(|bytes| bytes.saturating_mul(replicas)).sum();
                let most = candidate.memory_bytes.iter().max()?;
                (needed <= memory_bytes).then(|| {
                    format!(
                        "this layout fits, {choice}, with {} for the largest worker: {}",
                        bytes(*most),
                        layout_arguments(choice, &own)
                    )
                })
            })
        };
        if let Some(text) = found(same) {
            return Some(text);
        }
        let fewer = found(fewer);
        let own = self.plan.config.train.recompute_activations.layers();
        let saves = *own == Recomputation::Off
            && 2 * self.activations(&Recomputation::All) < self.activations(own);
        fewer.map(|text| match saves {
            true => {
                format!("{text}, or keep fewer activations: --set train.recompute_activations=true")
            }
            false => text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::run::train::{PlanRequest, plan};

    /// Runs a test with the builder of a model of five layers, of which the weights are most.
    fn with_builder<T>(run: impl FnOnce(&mut LayoutBuilder<'_>) -> T) -> T {
        with_parts(1, run)
    }

    /// The same with layers in a number of parts.
    fn with_parts<T>(parts: u32, run: impl FnOnce(&mut LayoutBuilder<'_>) -> T) -> T {
        let text = format!(
            "[run]\nname = \"x\"\n[data]\nsource = \"digits\"\n[model]\nkind = \"mlp\"\n\
             hidden = [4096, 4096, 4096, 4096]\ntensor_parts = {parts}\n[train]\nepochs = 1\n[workers]\nlogical_shards = 8\n"
        );
        with_run(&text, |builder| run(&mut { builder }))
    }

    /// The same with the builder of any run.
    fn with_run<T>(text: &str, run: impl FnOnce(LayoutBuilder<'_>) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.toml");
        std::fs::write(&file, text).unwrap();
        let request = PlanRequest {
            file: Some(&file),
            for_forecast: true,
            ..PlanRequest::default()
        };
        let planned = plan(&request).unwrap_or_else(|_| panic!("the run file is valid"));
        let (plan, size, split, _) = planned.into_parts();
        run(LayoutBuilder::new(&plan, &size, &*split.train).unwrap())
    }

    fn choice(data: u32, zero: u32, pipeline: u32) -> LayoutChoice {
        LayoutChoice {
            data,
            zero,
            pipeline,
            ..LayoutChoice::ONE
        }
    }

    #[test]
    fn layouts_have_the_memory_of_each_worker() {
        with_builder(|builder| {
            let one = builder.candidate(&LayoutChoice::ONE).unwrap();
            assert_eq!(one.memory_bytes.len(), 1);
            let pipeline = builder.candidate(&choice(2, 0, 2)).unwrap();
            assert_eq!(
                (pipeline.memory_bytes.len(), pipeline.layout.replicas()),
                (2, 2)
            );
            assert!(pipeline.memory_bytes.iter().max() < one.memory_bytes.iter().max());
            let divided = builder.candidate(&choice(4, 3, 1)).unwrap();
            assert!(divided.memory_bytes < one.memory_bytes);
            assert!(builder.candidate(&choice(1, 0, 6)).is_none(), "five layers");
            assert!(
                builder.candidate(&choice(9, 0, 1)).is_none(),
                "eight shards"
            );
            let elements = |candidate: &LayoutCandidate| -> usize {
                let regions = candidate.buckets.iter().flat_map(|bucket| &bucket.regions);
                regions.map(|region| region.elements).sum()
            };
            assert_eq!(elements(&pipeline), elements(&one));
            let thousands = builder.shape(&choice(4096, 0, 1), 4096).unwrap();
            assert_eq!(thousands.layout.ranks(), 4096);
        });
    }

    #[test]
    fn layers_in_parts_are_divided_in_every_product() {
        with_parts(4, |builder| {
            let limits = builder.limits(8, 1);
            assert_eq!(limits.parts, 4);
            let one = builder.candidate(&LayoutChoice::ONE).unwrap();
            let divided = |tensor, rest: LayoutChoice| LayoutChoice { tensor, ..rest };
            let four = builder.candidate(&divided(4, choice(1, 0, 1))).unwrap();
            assert_eq!((four.memory_bytes.len(), four.layout.tensors()), (4, 4));
            // The output layer is whole; the rest is divided.
            let share = four.memory_bytes[0] as f64 / one.memory_bytes[0] as f64;
            assert!((0.2..0.5).contains(&share), "{share}");
            assert_eq!(one.buckets[0].regions.len(), 5);
            let mesh = builder.candidate(&divided(2, choice(2, 3, 2))).unwrap();
            assert_eq!((mesh.memory_bytes.len(), mesh.layout.members()), (4, 8));
            assert!(builder.candidate(&divided(5, choice(1, 0, 1))).is_none());
            for choice in layout_choices(&limits).iter().filter(|c| c.tensor > 1) {
                let fits = choice.pipeline <= 5;
                assert_eq!(builder.shape(choice, 8).is_some(), fits, "{choice}");
            }
        });
    }

    #[test]
    fn a_model_that_does_not_fit_is_divided_by_its_parts_where_that_is_all_there_is() {
        with_parts(4, |builder| {
            let two = WorldSize::new(2).unwrap();
            let tensor = LayoutChoice {
                tensor: 2,
                ..choice(1, 0, 1)
            };
            let needed: u64 = builder
                .candidate(&tensor)
                .unwrap()
                .memory_bytes
                .iter()
                .sum();
            let text = builder.fitting(two, needed).unwrap();
            assert!(text.contains("--set parallel."), "{text}");
        });
    }

    #[test]
    fn as_few_layers_as_needed_compute_their_activations_again() {
        let text = "[run]\nname = \"x\"\n[data]\nsource = \"text\"\ncontext = 128\n[model]\nkind = \"gpt\"\nlayers = 4\nwidth = 64\n\
                    heads = 4\n[train]\nsteps = 4\nglobal_batch_size = 64\nrecompute_activations = \"auto\"\n[workers]\n\
                    logical_shards = 2\n";
        with_run(text, |mut builder| {
            let two = choice(2, 0, 1);
            let mut of = |memory_bytes| {
                builder.host = (memory_bytes, 2);
                let found = builder.candidate(&two).unwrap();
                (found.recomputed, found.memory_bytes[0])
            };
            let (none, most) = of(u64::MAX);
            let (all, least) = of(0);
            assert_eq!((none, all), (0..0, 0..5), "all but the last of six layers");
            assert!(least < most, "{least} {most}");
            // Two workers on the host.
            let between = with_margin(least + most);
            let (some, needed) = of(between);
            assert!((1..5).contains(&some.len()), "{some:?}");
            assert!(2 * with_margin(needed) <= between && needed > least);
        });
    }

    #[test]
    fn a_hint_names_a_layout_that_fits() {
        with_builder(|builder| {
            let four = WorldSize::new(4).unwrap();
            let whole = builder.candidate(&choice(4, 0, 1)).unwrap().memory_bytes[0] * 4;
            let levels = [1, 2, 3].map(|zero| LayoutChoice {
                copies: 2,
                ..choice(4, zero, 1)
            });
            let divided =
                levels.map(|choice| builder.candidate(&choice).unwrap().memory_bytes[0] * 4);
            let text = builder.fitting(four, whole).unwrap();
            assert!(text.contains("4 x data, with"), "{text}");
            let least = divided.into_iter().min().unwrap();
            assert!(least < whole, "{least} {whole}");
            let text = builder.fitting(four, least).unwrap();
            assert!(text.contains("--workers 4 --set parallel.zero="), "{text}");
            let one = builder.candidate(&LayoutChoice::ONE).unwrap().memory_bytes[0];
            let text = builder.fitting(four, one).unwrap();
            assert!(text.contains("--workers"), "{text}");
            assert_eq!(builder.fitting(four, 1 << 20), None);
        });
    }
}
