//! Batch normalisation over all samples of a step: the same bits on one, two and three ranks, with a shard
//! that has no sample and a rank that has no shard.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, testing};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, Group, GroupRank, Recovery, Shard, Step, WorldSize};
use ronde_engine::{
    AfterNorm, Chain, CrossEntropy, GraphBuilder, ModelConfig, Normalisation, OptimizerConfig,
    SlidingWindow,
};
use ronde_parallel::{
    CommittedUpdate, MicroBatch, ModelState, ParallelError, StepMethod, SynchronousConfig,
    SynchronousStrategy,
};

/// The number of samples of each shard.
const COUNTS: [usize; 4] = [2, 1, 0, 1];
const SHAPE: [usize; 3] = [3, 8, 8];
const CLASSES: usize = 4;
const STEPS: u64 = 2;
const LIMIT: Duration = Duration::from_secs(120);

fn seeds() -> SeedTree {
    SeedTree::new(11)
}

fn resnet() -> Chain {
    let model =
        r#"{"kind": "resnet18", "small_input": true, "normalisation": "synchronised_batch"}"#;
    let model: ModelConfig = serde_json::from_str(model).unwrap();
    model.build(&SHAPE, CLASSES as u32, &seeds()).unwrap()
}

/// A user's own layers with a normalisation over all samples between them.
fn of_own_layers() -> Chain {
    let mut features = GraphBuilder::new("features", &SHAPE);
    let window = SlidingWindow::new(3, 1, 0);
    let x = features.convolution("conv", features.input(), 5, window, false);
    let kind = Normalisation::SynchronisedBatch;
    features.normalise("norm", kind, x, None, AfterNorm::Rectified);
    let mut output = GraphBuilder::new("output", &[5, 6, 6]);
    let x = output.flatten(output.input());
    output.linear("", x, CLASSES, true);
    let layers = [features, output].map(|layer| layer.build(&seeds()).unwrap());
    Chain::new(layers.into()).unwrap()
}

fn strategy(chain: Chain, group: Arc<dyn Group>, shards: ShardPlan) -> SynchronousStrategy {
    let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "sgd"}"#).unwrap();
    let config = SynchronousConfig::new(optimizer, Arc::new(CrossEntropy { classes: CLASSES }));
    let layout = StepLayout::data_parallel(shards, chain.len());
    SynchronousStrategy::new(chain, group, layout, seeds(), config)
}

fn micro_batch(step: u64, shard: u32) -> MicroBatch {
    let samples = COUNTS[shard as usize];
    let mut features = vec![0.0; samples * SHAPE.iter().product::<usize>()];
    let stream = seeds().stream(Purpose::Synthetic, &[step, shard.into()]);
    stream.fill_uniform(&mut features);
    MicroBatch {
        shard: Shard(shard),
        shape: [&[samples], &SHAPE[..]].concat(),
        features,
        labels: (0..samples as u32)
            .map(|i| (i + shard) % CLASSES as u32)
            .collect(),
    }
}

fn bits(state: &ModelState) -> Vec<u32> {
    state.values().iter().map(|value| value.to_bits()).collect()
}

/// Returns weights and losses after some steps, with `computing` ranks that have shards.
fn trained(model: fn() -> Chain, group: Arc<dyn Group>, computing: u32) -> (Vec<u32>, Vec<u64>) {
    let world_size = WorldSize::new(group.size() as u32).unwrap();
    let shards = COUNTS.len() as u32;
    let shards = ShardPlan::with_spares(shards, world_size, computing).unwrap();
    let run = shards.run(group.rank());
    let mut strategy = strategy(model(), group, shards);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let batches = run.clone().map(|shard| micro_batch(step, shard)).collect();
        let reports = strategy.backward(Step(step), batches).unwrap();
        assert!(reports.iter().map(|report| report.shard.0).eq(run.clone()));
        losses.extend(reports.iter().map(|report| report.loss_sum.to_bits()));
        let reduced = strategy.reduce().unwrap();
        let samples = COUNTS.iter().sum::<usize>() as u64;
        let update = CommittedUpdate {
            step: Step(step),
            number: step + 1,
            counts: BatchCounts {
                samples,
                targets: samples,
            },
            sums: &[],
            learning_rate: 0.05,
        };
        strategy.apply(&update, reduced).unwrap();
        strategy.edit().gather(0, None).unwrap();
    }
    (bits(strategy.state().model()), losses)
}

fn alone() -> Arc<dyn Group> {
    Arc::new(ProcessGroup::alone(GroupConfig::new(
        "dp",
        "lock step",
        GroupRank(0),
    )))
}

#[test]
fn the_bits_do_not_depend_on_the_ranks() {
    let cases = [(2, 2), (3, 3), (2, 1)];
    for (model, (world_size, computing)) in [resnet as fn() -> Chain, of_own_layers]
        .into_iter()
        .flat_map(|model| cases.map(|case| (model, case)))
    {
        let (expected, losses) = trained(model, alone(), 1);
        let ranks = testing::spawn_ranks(world_size, LIMIT, move |group| {
            Ok::<_, String>(trained(model, Arc::new(group), computing))
        });
        for (rank, (got, _)) in ranks.iter().enumerate() {
            let differ = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
            assert_eq!(
                differ, 0,
                "rank {rank} of {world_size}, {computing} computing"
            );
        }
        let of_ranks = ranks.iter().map(|(_, losses)| losses.len()).sum::<usize>();
        assert_eq!(of_ranks, losses.len());
    }
}

#[test]
fn a_failed_sum_reports_its_layer_and_its_cause() {
    let failures = testing::spawn_ranks(2, LIMIT, |group| {
        let group: Arc<dyn Group> = Arc::new(group);
        let shards = ShardPlan::new(4, WorldSize::new(2).unwrap()).unwrap();
        let run = shards.run(group.rank());
        let mut strategy = strategy(resnet(), group.clone(), shards);
        group.abort("the test ends it");
        let batches = run.map(|shard| micro_batch(0, shard)).collect();
        let error = strategy.backward(Step(0), batches).unwrap_err();
        assert!(matches!(&error, ParallelError::LayerSum { layer, .. } if layer == "bn1"));
        assert!(matches!(
            strategy.reduce(),
            Err(ParallelError::OutOfOrder { .. })
        ));
        Ok::<_, String>(error.recovery())
    });
    assert_eq!(failures, [Recovery::Rejoin; 2]);
}

#[test]
fn a_step_without_samples_leaves_the_running_statistics_unchanged() {
    let shards = ShardPlan::new(COUNTS.len() as u32, WorldSize::ONE).unwrap();
    let mut strategy = strategy(resnet(), alone(), shards);
    let before = bits(strategy.state().model());
    let empty = |shard| MicroBatch {
        shape: [&[0], &SHAPE[..]].concat(),
        features: Vec::new(),
        labels: Vec::new(),
        ..micro_batch(0, shard)
    };
    let batches = (0..COUNTS.len() as u32).map(empty).collect();
    strategy.backward(Step(0), batches).unwrap();
    let reduced = strategy.reduce().unwrap();
    let update = CommittedUpdate {
        step: Step(0),
        number: 0,
        counts: BatchCounts::default(),
        sums: &[],
        learning_rate: 0.05,
    };
    let report = strategy.apply(&update, reduced).unwrap();
    assert!(report.gradient_norm.is_nan());
    strategy.edit().gather(0, None).unwrap();
    assert_eq!(bits(strategy.state().model()), before);
}
