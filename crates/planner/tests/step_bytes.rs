//! The bytes that ranks really send in a step are those that are counted in the programs and schedules of their layout.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, testing};
use ronde_core::layout::TensorEntry;
use ronde_core::seed::SeedTree;
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::{StepLayout, divide_layers};
use ronde_core::{
    BatchCounts, Buffer, CollectiveError, Collectives, DType, Group, GroupRank, Operation,
    PointToPoint, Shard, Step, Tag, Work, WorldSize,
};
use ronde_engine::{
    Chain, CrossEntropy, Layer, LayerExt, Loss, ModelConfig, OptimizerConfig, PassEnds,
};
use ronde_parallel::{
    CommittedUpdate, MicroBatch, ModelState, StepMethod, SynchronousConfig, SynchronousStrategy,
    ZeroLevel, bucket,
};
use ronde_planner::{
    BucketShape, ClusterShape, CollectiveTimes, HostLink, LayerCosts, LayoutCandidate,
    LayoutChoice, LinkCosts, ModelCosts, RankBytes, RegionShape, StepRequest, WorkerCosts,
    step_bytes,
};
use ronde_schedule::{Algorithm, CostModel, PipelineSchedule};

/// The bytes of the header of each message.
const HEADER_BYTES: usize = 48;
const SHARDS: u32 = 6;
const SAMPLES: usize = 2;
const BUCKET_BYTES: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(120);

/// A model and its samples.
#[derive(Clone, Copy)]
struct Case {
    model: &'static str,
    sample: &'static [usize],
    classes: u32,
    recomputes: bool,
}

const MLP: Case = Case {
    model: r#"{"kind": "mlp", "hidden": [70, 33, 20, 14, 9]}"#,
    sample: &[150],
    classes: 4,
    recomputes: false,
};

const MLP_IN_PARTS: Case = Case {
    model: r#"{"kind": "mlp", "hidden": [70, 36, 21, 16, 9], "tensor_parts": 4}"#,
    ..MLP
};

const GPT_IN_PARTS: Case = Case {
    model: r#"{"kind": "gpt", "layers": 2, "width": 16, "heads": 4, "dropout": 0.1, "tensor_parts": 4}"#,
    sample: &[5],
    classes: 7,
    recomputes: false,
};

impl Case {
    fn chain(&self) -> Chain {
        let model: ModelConfig = serde_json::from_str(self.model).unwrap();
        let chain = model.build(self.sample, self.classes, &SeedTree::new(11));
        let chain = chain.unwrap();
        match self.recomputes {
            true => chain
                .recomputing(&ronde_engine::Recomputation::All)
                .unwrap(),
            false => chain,
        }
    }

    fn loss(&self) -> CrossEntropy {
        CrossEntropy {
            classes: self.classes as usize,
        }
    }

    /// Returns the number of labels of a sample: one for each token of a text.
    fn labels(&self) -> usize {
        match self.sample {
            [tokens] if *tokens < 100 => *tokens,
            _ => 1,
        }
    }

    fn micro_batch(&self, shard: u32) -> MicroBatch {
        let elements = SAMPLES * self.sample.iter().product::<usize>();
        let features = (0..elements).map(|at| ((at * 5 + shard as usize) % 7) as f32);
        let labels = (0..(SAMPLES * self.labels()) as u32).map(|at| (at + shard) % self.classes);
        MicroBatch {
            shard: Shard(shard),
            shape: [&[SAMPLES], self.sample].concat(),
            features: features.collect(),
            labels: labels.collect(),
        }
    }

    /// Returns the layers with all that bytes follow from.
    fn costs(&self) -> ModelCosts {
        let (chain, loss) = (self.chain(), self.loss());
        let mut shape = [&[SAMPLES], self.sample].concat();
        let output_parts = chain.facts().output_parts.clone();
        let last = chain.len() - 1;
        let layers = chain.layers().iter().enumerate().map(|(index, layer)| {
            let ends = PassEnds {
                needs_input_gradient: index > 0,
                has_output_apart: index == last && output_parts.is_some(),
            };
            let transfers = layer.part_transfers(&shape, ends);
            shape = layer.cost(&shape).output_shape;
            let tensors = layer.layout().tensors.iter();
            let output_bytes = 4 * shape.iter().product::<usize>();
            let output_part_bytes =
                layer
                    .facts()
                    .output_tokens
                    .as_ref()
                    .map_or_else(Vec::new, |tokens| {
                        let parts = tokens.parts.iter();
                        parts
                            .map(|of_part| output_bytes / shape[1] * of_part)
                            .collect()
                    });
            LayerCosts {
                elements: tensors.map(TensorEntry::elements).sum(),
                output_bytes,
                output_part_bytes,
                transfers,
                ..LayerCosts::default()
            }
        });
        let loss_transfers = output_parts.as_ref().map(|parts| {
            let loss = loss.in_parts().unwrap();
            loss.transfers_of_parts(SAMPLES * self.labels(), parts.len())
        });
        ModelCosts {
            layers: layers.collect(),
            parts: chain.parts(),
            loss_transfers: loss_transfers.unwrap_or_default(),
            ..ModelCosts::default()
        }
    }

    fn layout(&self, choice: LayoutChoice) -> StepLayout {
        let chain = self.chain();
        let (workers, columns) = (choice.workers() as usize, choice.pipeline as usize);
        if choice.model_workers() == 1 {
            let size = WorldSize::new(choice.workers()).unwrap();
            return StepLayout::data_parallel(ShardPlan::new(SHARDS, size).unwrap(), chain.len());
        }
        let layers: Vec<_> = (0..chain.len()).map(|layer| layer..layer + 1).collect();
        let shape = (columns, choice.stages_per_worker as usize);
        let stages = divide_layers(&layers, &vec![1.0; layers.len()], shape, false).unwrap();
        StepLayout::mesh(workers, SHARDS, stages, choice.tensor as usize).unwrap()
    }

    fn candidate(&self, choice: LayoutChoice) -> LayoutCandidate {
        let layout = self.layout(choice);
        let state = ModelState::outline(&self.chain());
        let tensors: Vec<_> = state.tensors().iter().map(|t| t.range.clone()).collect();
        let mut buckets: Vec<BucketShape> = Vec::new();
        for bucket in bucket::plan(state.regions(), layout.stages(), BUCKET_BYTES) {
            let slices = bucket::slices(&bucket.elements, &tensors, layout.replicas());
            let region = RegionShape {
                elements: bucket.elements.len(),
                slices: slices.iter().map(ExactSizeIterator::len).collect(),
            };
            match buckets.last_mut() {
                Some(last) if last.layers == bucket.layers => last.regions.push(region),
                _ => buckets.push(BucketShape {
                    stage: bucket.stage,
                    layers: bucket.layers,
                    regions: vec![region],
                }),
            }
        }
        LayoutCandidate {
            choice,
            layout,
            buckets,
            recomputed: 0..0,
            memory_bytes: Vec::new(),
        }
    }

    /// Returns the bytes that each rank sends according to the programs and schedules.
    fn counted(&self, choice: LayoutChoice, algorithm: Algorithm) -> Vec<RankBytes> {
        let links = LinkCosts::new(CostModel::default(), 1e-6, 1e-9, HostLink::default());
        let collectives = CollectiveTimes::new(links, Some(algorithm));
        let worker = WorkerCosts {
            alone: self.costs(),
            crowded: None,
            alone_share: 1.0,
        };
        let request = StepRequest {
            worker: &worker,
            links: &links,
            collectives: &collectives,
            algorithm: Some(algorithm),
            cluster: ClusterShape {
                hosts: 1,
                cores: 64,
                memory_bytes: u64::MAX,
                link: HostLink::default(),
                price_per_hour: None,
            },
            threads: 1,
            in_lock_step: false,
            sums_in_passes: 0,
            has_trust_ratios: false,
            hash_parts: 1,
            crowded_s: 0.0,
        };
        step_bytes(&self.candidate(choice), &request).unwrap()
    }
}

/// A group that knows its sub-groups.
struct KnownGroups {
    all: Arc<dyn Group>,
    parts: Mutex<Vec<Arc<dyn Group>>>,
}

impl KnownGroups {
    /// Returns the bytes that this rank has sent in all groups.
    fn sent(&self) -> u64 {
        let parts = self.parts.lock().unwrap();
        let of_parts = parts.iter().map(|group| group.bytes_sent());
        self.all.bytes_sent() + of_parts.sum::<u64>()
    }
}

impl Collectives for KnownGroups {
    fn rank(&self) -> GroupRank {
        self.all.rank()
    }

    fn size(&self) -> usize {
        self.all.size()
    }

    fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer, CollectiveError> {
        self.all.allocate(dtype, len)
    }

    fn start(
        &self,
        operation: Operation,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.all.start(operation, buffer)
    }

    fn abort(&self, reason: &str) {
        self.all.abort(reason);
    }

    fn bytes_sent(&self) -> u64 {
        self.all.bytes_sent()
    }

    fn hosts(&self) -> Vec<usize> {
        self.all.hosts()
    }
}

impl PointToPoint for KnownGroups {
    fn send(
        &self,
        to: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.all.send(to, tag, buffer)
    }

    fn receive(
        &self,
        from: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.all.receive(from, tag, buffer)
    }
}

impl Group for KnownGroups {
    fn sub_group(
        &self,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Arc<dyn Group>>, CollectiveError> {
        let group = self.all.sub_group(colour, key)?;
        self.parts.lock().unwrap().extend(group.clone());
        Ok(group)
    }
}

/// The shared state of the threads of all ranks.
struct Together {
    barrier: Barrier,
    votes: Mutex<Vec<Vec<u8>>>,
}

/// Trains two steps, and returns the bytes that the rank has sent in the second one.
fn sent_by_rank(
    group: ProcessGroup,
    (case, choice): (Case, LayoutChoice),
    together: &Together,
) -> u64 {
    let rank = group.rank();
    let groups = Arc::new(KnownGroups {
        all: Arc::new(group),
        parts: Mutex::default(),
    });
    let layout = case.layout(choice);
    let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap();
    let mut config = SynchronousConfig::new(optimizer, Arc::new(case.loss()));
    config.bucket_bytes_max = BUCKET_BYTES;
    config.zero = ZeroLevel::new(choice.zero).unwrap();
    config.copies = Some(choice.copies);
    config.schedule = choice.schedule;
    config.sample_shape = case.sample.to_vec();
    config.shard_samples_max = SAMPLES;
    let all: Arc<dyn Group> = groups.clone();
    let seeds = SeedTree::new(11);
    let mut strategy =
        SynchronousStrategy::new(case.chain(), all.clone(), layout.clone(), seeds, config);
    strategy.enter(all, layout.clone()).unwrap();
    let mut sent = 0;
    for step in (0..2).map(Step) {
        let before = groups.sent();
        let batches = layout.loads(rank).map(|shard| case.micro_batch(shard));
        strategy.backward(step, batches.collect()).unwrap();
        let reduced = strategy.reduce().unwrap();
        let samples = u64::from(SHARDS) * SAMPLES as u64;
        let counts = BatchCounts {
            samples,
            targets: samples,
        };
        let sums = strategy.vote(step.0 + 1, &reduced, samples).unwrap();
        // Votes travel in memory, so that only the bytes of the step are counted.
        together.votes.lock().unwrap()[rank.index()] = sums;
        together.barrier.wait();
        let votes = together.votes.lock().unwrap().clone();
        let update = CommittedUpdate {
            step,
            number: step.0 + 1,
            counts,
            sums: &votes,
            learning_rate: 0.01,
        };
        strategy.apply(&update, reduced).unwrap();
        strategy.edit().gather(0, Some(step)).unwrap();
        // Received bytes have been sent and counted.
        together.barrier.wait();
        sent = groups.sent() - before;
    }
    sent
}

fn check(case: Case, choice: LayoutChoice, algorithm: Algorithm) {
    let workers = choice.workers() as usize;
    let counted = case.counted(choice, algorithm);
    let together = Arc::new(Together {
        barrier: Barrier::new(workers),
        votes: Mutex::new(vec![Vec::new(); workers]),
    });
    let configs = (0..workers).map(|rank| {
        let mut config = GroupConfig::new("test", "test", GroupRank(rank as u32));
        config.timeout = LIMIT;
        config.algorithm = Some(algorithm);
        config
    });
    let groups = testing::in_process_groups(configs.collect());
    let sent = testing::run_ranks(groups, LIMIT, move |group| {
        Ok::<_, CollectiveError>(sent_by_rank(group, (case, choice), &together))
    });
    for (rank, (sent, counted)) in sent.into_iter().zip(&counted).enumerate() {
        let total = counted.total();
        let expected = (total.bytes + HEADER_BYTES * total.messages) as u64;
        assert_eq!(
            sent, expected,
            "{}: rank {rank} of {choice}, counted {counted:?}",
            case.model
        );
    }
}

const ONE: LayoutChoice = LayoutChoice::ONE;

#[test]
fn data_parallel_ranks_send_the_counted_bytes() {
    for (data, algorithm) in [
        (1, Algorithm::Direct),
        (2, Algorithm::HalvingDoubling),
        (3, Algorithm::Direct),
        (4, Algorithm::Direct),
        (4, Algorithm::Tree),
        (5, Algorithm::Driver),
    ] {
        check(MLP, LayoutChoice { data, ..ONE }, algorithm);
    }
}

#[test]
fn ranks_with_a_divided_state_send_the_counted_bytes() {
    for zero in 1..=3 {
        for (data, copies) in [(2, 1), (3, 1), (3, 2), (4, 2)] {
            let choice = LayoutChoice {
                data,
                zero,
                copies,
                ..ONE
            };
            check(MLP, choice, Algorithm::Direct);
        }
    }
}

#[test]
fn pipelines_send_the_counted_bytes() {
    let of = |schedule, pipeline, data, zero| LayoutChoice {
        data,
        zero,
        pipeline,
        schedule,
        stages_per_worker: 1 + u32::from(schedule == PipelineSchedule::Interleaved),
        copies: 2,
        ..ONE
    };
    for choice in [
        of(PipelineSchedule::OneForwardOneBackward, 2, 1, 0),
        of(PipelineSchedule::GPipe, 3, 2, 1),
        of(PipelineSchedule::Interleaved, 2, 1, 0),
        of(PipelineSchedule::ZeroBubble, 2, 2, 3),
        of(PipelineSchedule::ZeroBubble, 3, 1, 0),
    ] {
        check(MLP, choice, Algorithm::Direct);
    }
}

#[test]
fn ranks_that_divide_layers_send_the_counted_bytes() {
    let of = |tensor, pipeline, data, zero, copies| LayoutChoice {
        data,
        zero,
        pipeline,
        tensor,
        copies,
        ..ONE
    };
    for choice in [
        of(2, 1, 1, 0, 1),
        of(3, 1, 1, 0, 2),
        of(4, 1, 1, 0, 2),
        of(2, 1, 2, 0, 1),
        of(2, 1, 2, 2, 2),
        of(2, 2, 1, 0, 2),
        of(2, 2, 2, 3, 2),
    ] {
        check(MLP_IN_PARTS, choice, Algorithm::Direct);
        check(GPT_IN_PARTS, choice, Algorithm::Direct);
    }
    let recomputed = Case {
        recomputes: true,
        ..GPT_IN_PARTS
    };
    check(recomputed, of(2, 2, 1, 0, 1), Algorithm::Direct);
    let in_halves = LayoutChoice {
        schedule: PipelineSchedule::ZeroBubble,
        ..of(2, 2, 1, 0, 1)
    };
    check(recomputed, in_halves, Algorithm::Direct);
}
