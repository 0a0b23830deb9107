//! Gradients of tables that are exchanged without their zeros: the bits of dense sums, and fewer bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, testing};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, Collectives, CollectivesExt, GroupRank, Shard, Step, WorldSize};
use ronde_engine::{ModelConfig, OptimizerConfig, SquaredError};
use ronde_parallel::{
    CommittedUpdate, MicroBatch, StepMethod, SynchronousConfig, SynchronousStrategy, ZeroLevel,
};
use ronde_schedule::Hosts;

const SHARDS: u32 = 6;
const SAMPLES: usize = 3;
const STEPS: u64 = 4;
const LIMIT: Duration = Duration::from_secs(60);

fn seeds() -> SeedTree {
    SeedTree::new(5)
}

/// Returns ratings of a shard, among `rows` users and as many items.
fn micro_batch(step: u64, shard: u32, rows: usize) -> MicroBatch {
    let number = |i: u32| (i * 7919 + shard * 31 + step as u32 * 101) % rows as u32;
    let pairs = (0..SAMPLES as u32).flat_map(|i| [number(2 * i) as f32, number(2 * i + 1) as f32]);
    let mut ratings = vec![0.0; SAMPLES];
    let stream = seeds().stream(Purpose::Synthetic, &[step, shard.into()]);
    stream.fill_uniform(&mut ratings);
    MicroBatch {
        shard: Shard(shard),
        shape: vec![SAMPLES, 2],
        features: pairs.collect(),
        labels: ratings.into_iter().map(f32::to_bits).collect(),
    }
}

/// The state of a rank after some steps: the bits of its weights, and the bytes that it sent for sums.
struct Outcome {
    weights: Vec<u32>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    zero: ZeroLevel,
    sparse_tables: Option<bool>,
    /// The users, and as many items, with 17 factors each.
    rows: usize,
}

fn train(group: ProcessGroup, case: Case) -> Outcome {
    let group = Arc::new(group);
    let world_size = WorldSize::new(group.size() as u32).unwrap();
    let shards = ShardPlan::new(SHARDS, world_size).unwrap();
    let model = ModelConfig::MatrixFactorisation {
        users: case.rows,
        items: case.rows,
        factors: 17,
    };
    let chain = model.build(&[2], 1, &seeds()).unwrap();
    let optimizer: OptimizerConfig = serde_json::from_str(r#"{"kind": "adam"}"#).unwrap();
    let mut config = SynchronousConfig::new(optimizer, Arc::new(SquaredError));
    config.zero = case.zero;
    config.copies = Some(1);
    config.sparse_tables = case.sparse_tables;
    let run = shards.run(group.rank());
    let layout = StepLayout::data_parallel(shards, chain.len());
    let mut strategy = SynchronousStrategy::new(chain, group.clone(), layout, seeds(), config);
    let mut bytes = 0;
    for step in 0..STEPS {
        let batches = run.clone();
        let batches = batches.map(|shard| micro_batch(step, shard, case.rows));
        let before = group.bytes_sent();
        let reports = strategy.backward(Step(step), batches.collect()).unwrap();
        let reduced = strategy.reduce().unwrap();
        bytes += group.bytes_sent() - before;
        let targets = reports.iter().map(|report| report.targets).sum();
        let sums = strategy.vote(step + 1, &reduced, targets).unwrap();
        let lens = group.all_gather(&[sums.len() as u32]).unwrap();
        let all = group.all_gather(&sums).unwrap();
        let mut rest = all.as_slice();
        let sums: Vec<Vec<u8>> = lens
            .into_iter()
            .map(|len| rest.split_off(..len as usize).unwrap().to_vec())
            .collect();
        let samples = u64::from(SHARDS) * SAMPLES as u64;
        let update = CommittedUpdate {
            step: Step(step),
            number: step + 1,
            counts: BatchCounts {
                samples,
                targets: samples,
            },
            sums: &sums,
            learning_rate: 0.05,
        };
        strategy.apply(&update, reduced).unwrap();
        strategy.edit().gather(0, None).unwrap();
    }
    let weights = strategy.state().model().values().iter();
    Outcome {
        weights: weights.map(|value| value.to_bits()).collect(),
        bytes,
    }
}

/// Trains on ranks that are separate hosts.
fn train_on_hosts(ranks: usize, case: Case) -> Vec<Outcome> {
    let hosts: Vec<usize> = (0..ranks).collect();
    let configs = (0..ranks).map(|rank| {
        let mut config = GroupConfig::new("test", "test", GroupRank(rank as u32));
        config.timeout = LIMIT;
        config.hosts = Some(Hosts::new(&hosts));
        config
    });
    let groups = testing::in_process_groups(configs.collect());
    testing::run_ranks(groups, LIMIT, move |group| {
        Ok::<_, String>(train(group, case))
    })
}

#[test]
fn sums_without_zeros_have_the_bits_of_dense_sums_and_send_fewer_bytes() {
    let case = |zero, sparse_tables| Case {
        zero,
        sparse_tables,
        rows: 2000,
    };
    let levels = [
        ZeroLevel::Off,
        ZeroLevel::OptimizerStates,
        ZeroLevel::Gradients,
    ];
    let plain = train_on_hosts(1, case(ZeroLevel::Off, Some(true))).remove(0);
    for ranks in [2, 3, 4, 6] {
        for zero in levels {
            let dense = train_on_hosts(ranks, case(zero, Some(false)));
            for sparse_tables in [Some(true), None] {
                let sparse = train_on_hosts(ranks, case(zero, sparse_tables));
                for (sparse, dense) in sparse.iter().zip(&dense) {
                    assert!(sparse.weights == plain.weights, "{ranks} ranks, {zero:?}");
                    assert!(dense.weights == plain.weights, "{ranks} ranks, {zero:?}");
                }
                let most = |outcomes: &[Outcome]| outcomes.iter().map(|rank| rank.bytes).max();
                let (few, many) = (most(&sparse).unwrap(), most(&dense).unwrap());
                assert!(20 * few < many, "{ranks} ranks, {zero:?}: {few} of {many}");
            }
        }
    }
}

#[test]
fn tables_without_zeros_take_the_dense_sum() {
    let case = |sparse_tables| Case {
        zero: ZeroLevel::Off,
        sparse_tables: Some(sparse_tables),
        rows: 5,
    };
    for ranks in [2, 3] {
        let dense = train_on_hosts(ranks, case(false));
        let tried = train_on_hosts(ranks, case(true));
        for (dense, tried) in dense.iter().zip(&tried) {
            assert_eq!(dense.weights, tried.weights);
            // The sizes are exchanged in vain.
            let more = tried.bytes - dense.bytes;
            assert!(more > 0 && more <= STEPS * 400, "{more} bytes");
        }
    }
}
