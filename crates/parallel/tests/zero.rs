//! Divided optimizer states and gradients: every level has the bits of plain data parallelism, for any number of ranks.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, testing};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::step_layout::StepLayout;
use ronde_core::{BatchCounts, Collectives, CollectivesExt, GroupRank, Shard, Step};
use ronde_engine::{CrossEntropy, ModelConfig, OptimizerConfig};
use ronde_parallel::{
    CommittedUpdate, LossScaling, MicroBatch, StepMethod, SynchronousConfig, SynchronousStrategy,
    ZeroLevel,
};
use ronde_protocol::holdings::HeldRanges;
use ronde_schedule::{Hosts, ShardOrder};

const SHARDS: u32 = 8;
const SAMPLES: usize = 2;
const FEATURES: usize = 150;
const CLASSES: usize = 4;
const STEPS: u64 = 3;
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
struct Case {
    optimizer: &'static str,
    clip_norm: Option<f64>,
    loss_scaling: Option<LossScaling>,
}

fn seeds() -> SeedTree {
    SeedTree::new(11)
}

fn micro_batch(step: u64, shard: u32) -> MicroBatch {
    let mut features = vec![0.0; SAMPLES * FEATURES];
    let stream = seeds().stream(Purpose::Synthetic, &[step, shard.into()]);
    stream.fill_uniform(&mut features);
    let labels = (0..SAMPLES as u32).map(|i| (i + shard + step as u32) % CLASSES as u32);
    MicroBatch {
        shard: Shard(shard),
        shape: vec![SAMPLES, FEATURES],
        features,
        labels: labels.collect(),
    }
}

/// Exchanges byte strings of different lengths.
fn exchange(group: &ProcessGroup, bytes: &[u8]) -> Vec<Vec<u8>> {
    let lens = group.all_gather(&[bytes.len() as u32]).unwrap();
    let all = group.all_gather(bytes).unwrap();
    let mut rest = all.as_slice();
    let parts = lens.into_iter().map(|len| {
        let (part, after) = rest.split_at(len as usize);
        rest = after;
        part.to_vec()
    });
    parts.collect()
}

/// The state of a rank after some steps.
#[derive(Debug, PartialEq)]
struct Outcome {
    weights: Vec<u32>,
    norms: Vec<u64>,
}

/// Trains some steps; returns the outcome, and the elements of the optimizer's state that this rank holds.
fn train(
    group: ProcessGroup,
    case: &Case,
    (zero, order): (ZeroLevel, ShardOrder),
    copies: u32,
) -> (Outcome, HeldRanges) {
    train_with_servers(group, case, (zero, order), (copies, 0))
}

/// Does [`train`] with the last `servers` ranks as servers.
fn train_with_servers(
    group: ProcessGroup,
    case: &Case,
    (zero, order): (ZeroLevel, ShardOrder),
    (copies, servers): (u32, usize),
) -> (Outcome, HeldRanges) {
    let group = Arc::new(group);
    let model = ModelConfig::Mlp {
        hidden: vec![70, 33],
        tensor_parts: 1,
    };
    let chain = model.build(&[FEATURES], CLASSES as u32, &seeds()).unwrap();
    let optimizer: OptimizerConfig = serde_json::from_str(case.optimizer).unwrap();
    let mut config = SynchronousConfig::new(optimizer, Arc::new(CrossEntropy { classes: CLASSES }));
    config.bucket_bytes_max = 20_000;
    config.clip_norm = case.clip_norm;
    config.loss_scaling = case.loss_scaling;
    config.zero = zero;
    config.order = order;
    config.copies = Some(copies);
    let layout = StepLayout::with_servers(group.size(), SHARDS, chain.len(), servers).unwrap();
    let run = layout.run(group.rank());
    let mut strategy = SynchronousStrategy::new(chain, group.clone(), layout, seeds(), config);
    let mut norms = Vec::new();
    for step in 0..STEPS {
        let batches = run.clone().map(|shard| micro_batch(step, shard));
        let reports = strategy.backward(Step(step), batches.collect()).unwrap();
        let reduced = strategy.reduce().unwrap();
        let targets = reports.iter().map(|report| report.targets).sum();
        let sums = strategy.vote(step + 1, &reduced, targets).unwrap();
        let sums = exchange(&group, &sums);
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
        let report = strategy.apply(&update, reduced).unwrap();
        norms.push(report.gradient_norm.to_bits());
        strategy.edit().gather(0, None).unwrap();
    }
    let layout = strategy.state().layout();
    assert_eq!(strategy.state().held(), layout[group.rank().index()]);
    let weights = strategy
        .state()
        .model()
        .values()
        .iter()
        .map(|value| value.to_bits());
    let outcome = Outcome {
        weights: weights.collect(),
        norms,
    };
    (outcome, strategy.state().held().clone())
}

#[test]
fn divided_states_train_to_the_bits_of_plain_data_parallelism() {
    let case = |optimizer, clip_norm| Case {
        optimizer,
        clip_norm,
        loss_scaling: None,
    };
    let overflowing = LossScaling {
        initial: 16_777_216.0,
        growth_steps: 2,
    };
    let cases = [
        case(r#"{"kind": "sgd"}"#, None),
        case(r#"{"kind": "adamw"}"#, Some(0.1)),
        case(r#"{"kind": "lars"}"#, Some(0.1)),
        case(r#"{"kind": "lamb"}"#, Some(0.1)),
        Case {
            loss_scaling: Some(overflowing),
            ..case(r#"{"kind": "adam"}"#, Some(0.1))
        },
    ];
    for case in cases {
        let run = |ranks, zero, copies| {
            let case = case.clone();
            testing::spawn_ranks(ranks, LIMIT, move |group| {
                Ok::<_, String>(train(group, &case, zero, copies))
            })
        };
        let (plain, all) = run(1, (ZeroLevel::Off, ShardOrder::ByShard), 1).remove(0);
        for ranks in [1, 2, 3, 4, 5, 8] {
            let by_shard = |zero| (zero, ShardOrder::ByShard);
            let by_layer = |zero| (zero, ShardOrder::ByLayer);
            for (zero, copies) in [
                (by_shard(ZeroLevel::OptimizerStates), 1),
                (by_shard(ZeroLevel::Gradients), 1),
                (by_layer(ZeroLevel::Gradients), 1),
                (by_shard(ZeroLevel::OptimizerStates), 2),
                (by_shard(ZeroLevel::Gradients), 2),
                (by_layer(ZeroLevel::Gradients), 2),
            ] {
                let mut sum = 0;
                for (outcome, held) in run(ranks, zero, copies) {
                    assert!(
                        outcome == plain,
                        "{case:?}, {ranks} ranks, {zero:?}, {copies}"
                    );
                    sum += held.len();
                }
                let holders = (copies as usize).min(ranks);
                assert_eq!(sum, all.len() * holders, "every element has its holders");
            }
        }
    }
}

#[test]
fn servers_train_to_the_bits_of_plain_data_parallelism() {
    for (optimizer, clip_norm) in [
        (r#"{"kind": "adamw"}"#, None),
        (r#"{"kind": "lamb"}"#, Some(0.1)),
    ] {
        let case = Case {
            optimizer,
            clip_norm,
            loss_scaling: None,
        };
        let run = |ranks, zero, (copies, servers)| {
            let case = case.clone();
            testing::spawn_ranks(ranks, LIMIT, move |group| {
                let order = (zero, ShardOrder::ByShard);
                let trained = train_with_servers(group, &case, order, (copies, servers));
                Ok::<_, String>(trained)
            })
        };
        let (plain, all) = run(1, ZeroLevel::Off, (1, 0)).remove(0);
        for (ranks, servers) in [(2, 1), (3, 1), (3, 2), (4, 2), (5, 3), (11, 2), (2, 4)] {
            for (zero, copies) in [
                (ZeroLevel::OptimizerStates, 1),
                (ZeroLevel::Gradients, 1),
                (ZeroLevel::Gradients, 2),
            ] {
                let trained = run(ranks, zero, (copies, servers));
                let holding: Vec<usize> = trained.iter().map(|(_, held)| held.len()).collect();
                let name = format!("{ranks} ranks, {servers} servers, {zero:?}, {copies} copies");
                for (outcome, _) in &trained {
                    assert!(*outcome == plain, "{optimizer}, {name}");
                }
                let servers = servers.min(ranks - 1);
                let computing = &holding[..ranks - servers];
                // Only the copy of a single server is on a rank that computes.
                let copied = usize::from(servers == 1 && copies == 2) * all.len();
                assert_eq!(
                    computing.iter().sum::<usize>(),
                    copied,
                    "{name}: {holding:?}"
                );
                assert_eq!(
                    holding.iter().sum::<usize>(),
                    all.len() * copies as usize,
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn the_ranks_of_every_host_hold_everything_together_with_those_of_the_others() {
    let case = Case {
        optimizer: r#"{"kind": "lamb"}"#,
        clip_norm: Some(0.1),
        loss_scaling: None,
    };
    for hosts in [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 2]] {
        let run = |copies| {
            let configs = (0..4).map(|rank| {
                let mut config = GroupConfig::new("test", "test", GroupRank(rank));
                config.timeout = LIMIT;
                config.hosts = Some(Hosts::new(&hosts));
                config
            });
            let groups = testing::in_process_groups(configs.collect());
            let case = case.clone();
            testing::run_ranks(groups, LIMIT, move |group| {
                Ok::<_, String>(train(
                    group,
                    &case,
                    (ZeroLevel::Gradients, ShardOrder::ByShard),
                    copies,
                ))
            })
        };
        let (plain, each) = (run(1), run(2));
        let all = HeldRanges::new(plain.iter().flat_map(|(_, held)| held.ranges().to_vec()));
        for lost in 0..=2 {
            let remaining = each.iter().zip(hosts).filter(|(_, host)| *host != lost);
            let held = remaining.flat_map(|((_, held), _)| held.ranges().to_vec());
            assert_eq!(HeldRanges::new(held), all, "{hosts:?} without host {lost}");
        }
        assert!(plain.iter().zip(&each).all(|(one, two)| one.0 == two.0));
    }
}
