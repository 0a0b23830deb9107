//! Pipelines and layers in parts: every layout of layers, parts, shards and slices has the bits of one rank.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, testing};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::{StepLayout, divide_layers};
use ronde_core::{BatchCounts, Collectives, CollectivesExt, GroupRank, Shard, Step, WorldSize};
use ronde_engine::{Chain, CrossEntropy, IGNORED, ModelConfig, OptimizerConfig};
use ronde_parallel::{
    CommittedUpdate, MicroBatch, StepMethod, SynchronousConfig, SynchronousStrategy, ZeroLevel,
};
use ronde_protocol::holdings::HeldRanges;
use ronde_schedule::{PipelineSchedule, ShardOrder};

/// The number of samples of each shard.
const COUNTS: [usize; 6] = [2, 2, 1, 2, 0, 1];
const STEPS: u64 = 2;
const LIMIT: Duration = Duration::from_secs(120);

/// A model and how it is trained.
#[derive(Debug, Clone, Copy)]
struct Case {
    model: &'static str,
    /// The shape of a sample.
    sample: &'static [usize],
    classes: u32,
    /// The number of labels of a sample.
    labels: usize,
    optimizer: &'static str,
    recomputes: bool,
}

const MLP: Case = Case {
    model: r#"{"kind": "mlp", "hidden": [70, 33, 20, 14, 9]}"#,
    sample: &[150],
    classes: 4,
    labels: 1,
    optimizer: r#"{"kind": "lamb"}"#,
    recomputes: false,
};

const GPT: Case = Case {
    model: r#"{"kind": "gpt", "layers": 2, "width": 16, "heads": 2, "dropout": 0.1}"#,
    sample: &[5],
    classes: 7,
    labels: 5,
    optimizer: r#"{"kind": "adamw"}"#,
    recomputes: true,
};

/// The first and the last layer share the vectors of the tokens.
const TIED: Case = Case {
    model: r#"{"kind": "gpt", "layers": 2, "width": 16, "heads": 2, "tied": true}"#,
    recomputes: false,
    ..GPT
};

const TRANSFORMER: Case = Case {
    model: r#"{"kind": "transformer", "source": 3, "layers": 1, "width": 16, "heads": 2, "dropout": 0.1}"#,
    sample: &[7],
    classes: 7,
    labels: 4,
    optimizer: r#"{"kind": "sgd"}"#,
    recomputes: false,
};

const RESNET: Case = Case {
    model: r#"{"kind": "resnet18", "small_input": true}"#,
    sample: &[3, 8, 8],
    classes: 4,
    labels: 1,
    optimizer: r#"{"kind": "lars"}"#,
    recomputes: false,
};

/// Layers in four parts.
const MLP_IN_PARTS: Case = Case {
    model: r#"{"kind": "mlp", "hidden": [70, 36, 21, 16, 9], "tensor_parts": 4}"#,
    ..MLP
};

const GPT_IN_PARTS: Case = Case {
    model: r#"{"kind": "gpt", "layers": 2, "width": 16, "heads": 4, "dropout": 0.1, "tensor_parts": 4}"#,
    classes: 7,
    optimizer: r#"{"kind": "lamb"}"#,
    ..GPT
};

const TIED_IN_PARTS: Case = Case {
    model: r#"{"kind": "gpt", "layers": 2, "width": 16, "heads": 4, "tied": true, "tensor_parts": 4}"#,
    classes: 8,
    ..TIED
};

const TRANSFORMER_IN_PARTS: Case = Case {
    model: r#"{"kind": "transformer", "source": 3, "layers": 1, "width": 18, "heads": 3, "dropout": 0.1, "tensor_parts": 3}"#,
    classes: 9,
    ..TRANSFORMER
};

impl Case {
    fn chain(&self) -> Chain {
        let model: ModelConfig = serde_json::from_str(self.model).unwrap();
        let chain = model.build(self.sample, self.classes, &seeds()).unwrap();
        match self.recomputes {
            true => chain
                .recomputing(&ronde_engine::Recomputation::All)
                .unwrap(),
            false => chain,
        }
    }

    /// Returns the samples of a shard: tokens for models of texts.
    fn micro_batch(&self, step: u64, shard: u32) -> MicroBatch {
        let samples = COUNTS[shard as usize];
        let mut features = vec![0.0; samples * self.sample.iter().product::<usize>()];
        let stream = seeds().stream(Purpose::Synthetic, &[step, shard.into()]);
        stream.fill_uniform(&mut features);
        if self.sample.len() == 1 && self.labels > 1 {
            let classes = self.classes as f32;
            features
                .iter_mut()
                .for_each(|x| *x = (*x * classes).floor());
        }
        let each = self.labels as u32;
        let label = |index: u32| {
            let (sample, target) = (index / each, index % each);
            // Texts have different lengths, and shard 2 has no counted target.
            let is_ignored = each > 1 && (shard == 2 || target > (sample + shard) % each);
            match is_ignored {
                true => IGNORED,
                false => (index + shard + step as u32) % self.classes,
            }
        };
        let labels = (0..samples as u32 * each).map(label);
        MicroBatch {
            shard: Shard(shard),
            shape: [&[samples], self.sample].concat(),
            features,
            labels: labels.collect(),
        }
    }
}

/// How the ranks divide the work and the state.
#[derive(Debug, Clone, Copy)]
struct Division {
    ranks: usize,
    columns: usize,
    /// The number of ranks that divide the parts of layers.
    tensors: usize,
    /// The number of stages of each rank.
    rounds: usize,
    zero: ZeroLevel,
    copies: u32,
    schedule: PipelineSchedule,
    order: ShardOrder,
}

const ALONE: Division = Division {
    ranks: 1,
    columns: 1,
    tensors: 1,
    rounds: 1,
    zero: ZeroLevel::Off,
    copies: 1,
    schedule: PipelineSchedule::OneForwardOneBackward,
    order: ShardOrder::ByShard,
};

fn seeds() -> SeedTree {
    SeedTree::new(11)
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
struct Outcome {
    /// The bits of the stored weights, one stored range after the other.
    weights: Vec<u32>,
    stored: HeldRanges,
    norms: Vec<u64>,
    /// The hashes of the weights of the rank's layers after each step.
    digests: Vec<u64>,
    /// The loss of each shard that the rank has reported, by step and shard.
    losses: Vec<(u64, u32, u64)>,
    held: HeldRanges,
    owned: HeldRanges,
}

/// Returns the settings of a case.
fn config(case: Case, division: Division) -> SynchronousConfig {
    let optimizer: OptimizerConfig = serde_json::from_str(case.optimizer).unwrap();
    let loss = CrossEntropy {
        classes: case.classes as usize,
    };
    let mut config = SynchronousConfig::new(optimizer, Arc::new(loss));
    config.bucket_bytes_max = 20_000;
    config.clip_norm = Some(0.5);
    config.zero = division.zero;
    config.copies = Some(division.copies);
    config.schedule = division.schedule;
    config.order = division.order;
    config.sample_shape = case.sample.to_vec();
    config.shard_samples_max = 2;
    config.targets_per_sample = case.labels;
    config
}

fn train(group: ProcessGroup, case: Case, division: Division) -> Outcome {
    let group = Arc::new(group);
    let chain = case.chain();
    let layers: Vec<_> = (0..chain.len()).map(|layer| layer..layer + 1).collect();
    let is_tied = chain.shared_parameter().is_some();
    let costs = vec![1.0; layers.len()];
    let stages = divide_layers(
        &layers,
        &costs,
        (division.columns, division.rounds),
        is_tied,
    )
    .unwrap();
    let shards = COUNTS.len() as u32;
    let layout = match division.columns * division.tensors {
        1 => {
            let size = WorldSize::new(division.ranks as u32).unwrap();
            let plan = ShardPlan::with_spares(shards, size, shards.min(size.get())).unwrap();
            StepLayout::data_parallel(plan, chain.len())
        }
        _ => StepLayout::mesh(division.ranks, shards, stages, division.tensors).unwrap(),
    };
    let config = config(case, division);
    let rank = group.rank();
    let mut strategy =
        SynchronousStrategy::new(chain, group.clone(), layout.clone(), seeds(), config);
    strategy.enter(group.clone(), layout.clone()).unwrap();
    let (mut norms, mut losses, mut digests) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..STEPS {
        let batches = layout
            .loads(rank)
            .map(|shard| case.micro_batch(step, shard));
        let reports = strategy.backward(Step(step), batches.collect()).unwrap();
        let reported = reports.iter().map(|report| report.shard.0);
        assert!(reported.eq(layout.reports().run(rank)));
        let of_step = reports.iter();
        losses.extend(of_step.map(|report| (step, report.shard.0, report.loss_sum.to_bits())));
        let reduced = strategy.reduce().unwrap();
        let targets = reports.iter().map(|report| report.targets).sum::<u64>();
        let sums = exchange(&group, &strategy.vote(step + 1, &reduced, targets).unwrap());
        let samples = COUNTS.iter().sum::<usize>() as u64;
        let targets: i64 = group.all_gather(&[targets as i64]).unwrap().iter().sum();
        let update = CommittedUpdate {
            step: Step(step),
            number: step + 1,
            counts: BatchCounts {
                samples,
                targets: targets as u64,
            },
            sums: &sums,
            learning_rate: 0.05,
        };
        let report = strategy.apply(&update, reduced).unwrap();
        norms.push(report.gradient_norm.to_bits());
        strategy.edit().gather(0, Some(Step(step))).unwrap();
        digests.push(strategy.state().digest(Some(Step(step))));
    }
    let state = strategy.state();
    let values = state.model().values().iter();
    assert_eq!(state.held(), state.layout()[rank.index()]);
    Outcome {
        weights: values.map(|value| value.to_bits()).collect(),
        stored: state.model().stored().clone(),
        norms,
        digests,
        losses,
        held: state.held(),
        owned: state.owned().swap_remove(rank.index()),
    }
}

/// Checks the other order of shards and layers, where it applies.
fn check_by_layer(case: Case, division: Division, expected: &Outcome) {
    if division.columns == 1 && division.zero >= ZeroLevel::Gradients {
        let order = ShardOrder::ByLayer;
        check(case, Division { order, ..division }, expected);
    }
}

fn check(case: Case, division: Division, alone: &Outcome) {
    let ranks = testing::spawn_ranks(division.ranks, LIMIT, move |group| {
        Ok::<_, String>(train(group, case, division))
    });
    let mut losses: Vec<_> = ranks.iter().flat_map(|rank| rank.losses.clone()).collect();
    losses.sort_unstable();
    assert_eq!(losses, alone.losses, "{} {division:?}", case.model);
    for rank in &ranks {
        assert_eq!(rank.norms, alone.norms, "{} {division:?}", case.model);
        let expected = rank.stored.ranges().iter().flat_map(|range| {
            let range = alone.stored.locate(range).unwrap();
            &alone.weights[range]
        });
        let divides_model = division.columns * division.tensors;
        if divides_model == 1 {
            assert_eq!(rank.digests, alone.digests, "{} {division:?}", case.model);
        }
        let is_equal = rank.weights.iter().eq(expected);
        assert!(is_equal, "{} {division:?}", case.model);
        let divides = match division.zero {
            ZeroLevel::Weights => division.ranks,
            _ => divides_model,
        };
        if divides > division.copies as usize {
            assert!(rank.stored.len() < alone.stored.len(), "{division:?}");
        }
    }
    let all = |of: fn(&Outcome) -> &HeldRanges| {
        let ranges = ranks.iter().flat_map(|rank| of(rank).ranges().to_vec());
        HeldRanges::new(ranges)
    };
    assert_eq!(
        all(|rank| &rank.held),
        alone.held,
        "every element has a holder"
    );
    assert_eq!(
        all(|rank| &rank.owned),
        alone.held,
        "every element has an owner"
    );
    assert_eq!(all(|rank| &rank.stored), alone.stored, "nothing is missing");
    let owned: usize = ranks.iter().map(|rank| rank.owned.len()).sum();
    if division.columns * division.tensors > 1 {
        assert_eq!(owned, alone.held.len(), "{division:?}: exactly one owner");
    }
}

fn alone(case: Case) -> Outcome {
    let group = ProcessGroup::alone(GroupConfig::new("all", "pipelines", GroupRank(0)));
    train(group, case, ALONE)
}

/// All schedules, each with the number of stages of a rank.
const SCHEDULES: [(PipelineSchedule, usize); 4] = [
    (PipelineSchedule::GPipe, 1),
    (PipelineSchedule::OneForwardOneBackward, 1),
    (PipelineSchedule::Interleaved, 2),
    (PipelineSchedule::ZeroBubble, 1),
];

#[test]
fn every_layout_of_a_perceptron_has_the_bits_of_one_rank() {
    let expected = alone(MLP);
    for (ranks, columns) in [
        (2, 1),
        (4, 1),
        (7, 1),
        (2, 2),
        (3, 3),
        (4, 2),
        (4, 4),
        (5, 2),
        (6, 3),
        (6, 2),
    ] {
        for (schedule, rounds) in SCHEDULES {
            if columns * rounds > MLP.chain().len() {
                continue;
            }
            for zero in [
                ZeroLevel::Off,
                ZeroLevel::OptimizerStates,
                ZeroLevel::Gradients,
                ZeroLevel::Weights,
            ] {
                for copies in [1, 2] {
                    let division = Division {
                        ranks,
                        columns,
                        tensors: 1,
                        rounds,
                        zero,
                        copies,
                        schedule,
                        ..ALONE
                    };
                    check(MLP, division, &expected);
                }
            }
        }
    }
}

#[test]
fn models_of_texts_and_images_have_the_bits_of_one_rank() {
    for case in [GPT, TIED, TRANSFORMER, RESNET] {
        let expected = alone(case);
        let of_schedules = [
            (2, 2, 0, PipelineSchedule::Interleaved, 2),
            (2, 2, 0, PipelineSchedule::ZeroBubble, 1),
            (3, 3, 0, PipelineSchedule::ZeroBubble, 1),
            (4, 2, 3, PipelineSchedule::ZeroBubble, 1),
            (4, 2, 3, PipelineSchedule::Interleaved, 2),
        ];
        let plain = [
            (2, 2, 0),
            (3, 3, 0),
            (4, 2, 2),
            (7, 3, 1),
            (4, 1, 3),
            (4, 2, 3),
        ];
        let plain = plain.map(|(ranks, columns, zero)| (ranks, columns, zero, ALONE.schedule, 1));
        let layers = case.chain().len() - usize::from(case.chain().shared_parameter().is_some());
        for (ranks, columns, zero, schedule, rounds) in plain.into_iter().chain(of_schedules) {
            if columns * rounds > layers {
                continue;
            }
            let division = Division {
                ranks,
                columns,
                rounds,
                schedule,
                zero: ZeroLevel::new(zero).unwrap(),
                ..ALONE
            };
            check(case, division, &expected);
            check_by_layer(case, division, &expected);
        }
    }
}

#[test]
fn every_division_of_layers_in_parts_has_the_bits_of_one_rank() {
    for case in [
        MLP_IN_PARTS,
        GPT_IN_PARTS,
        TIED_IN_PARTS,
        TRANSFORMER_IN_PARTS,
    ] {
        let expected = alone(case);
        let one = PipelineSchedule::OneForwardOneBackward;
        for (ranks, columns, tensors, zero, schedule) in [
            (2, 1, 1, 0, one),
            (3, 1, 1, 3, one),
            (2, 2, 1, 0, one),
            (2, 1, 2, 0, one),
            (3, 1, 3, 0, one),
            (5, 1, 2, 0, one),
            (4, 1, 2, 1, one),
            (4, 1, 2, 2, one),
            (4, 1, 2, 3, one),
            (6, 1, 3, 3, one),
            (4, 2, 2, 0, one),
            (4, 2, 2, 0, PipelineSchedule::ZeroBubble),
            (5, 2, 2, 0, PipelineSchedule::GPipe),
            (8, 2, 2, 3, one),
            (8, 2, 2, 1, PipelineSchedule::ZeroBubble),
        ] {
            for copies in [1, 2] {
                let division = Division {
                    ranks,
                    columns,
                    tensors,
                    zero: ZeroLevel::new(zero).unwrap(),
                    schedule,
                    copies,
                    ..ALONE
                };
                check(case, division, &expected);
                check_by_layer(case, division, &expected);
            }
        }
    }
}

/// Returns every layout of at most eight ranks: replicas, divided states, pipelines with each schedule, and divided layers.
fn all_divisions(tensors: &[usize]) -> Vec<Division> {
    let mut pipelines = vec![(1, ALONE.schedule, 1)];
    for columns in [2, 4] {
        pipelines.extend(SCHEDULES.map(|(schedule, rounds)| (columns, schedule, rounds)));
    }
    let mut all = Vec::new();
    for data in 1..=3 {
        for &(columns, schedule, rounds) in &pipelines {
            for &tensors in tensors {
                let ranks = data * columns * tensors;
                let levels = if data > 1 { 0..4 } else { 0..1 };
                let levels = levels.filter(|_| ranks <= 8);
                all.extend(levels.map(|zero| Division {
                    ranks,
                    columns,
                    tensors,
                    rounds,
                    zero: ZeroLevel::new(zero).unwrap(),
                    copies: 1 + zero % 2,
                    schedule,
                    order: match (columns, zero % 2) {
                        (1, 1) => ShardOrder::ByLayer,
                        _ => ShardOrder::ByShard,
                    },
                }));
            }
        }
    }
    all
}

#[test]
#[ignore = "takes minutes: `cargo xtask soak` runs it"]
fn every_layout_of_at_most_eight_ranks_has_the_bits_of_one_rank() {
    let deep = Case {
        model: r#"{"kind": "gpt", "layers": 6, "width": 16, "heads": 4, "dropout": 0.1, "tensor_parts": 4}"#,
        ..GPT_IN_PARTS
    };
    let transformer = Case {
        model: r#"{"kind": "transformer", "source": 3, "layers": 3, "width": 16, "heads": 4, "dropout": 0.1, "tensor_parts": 4}"#,
        ..TRANSFORMER_IN_PARTS
    };
    for (name, case, tensors) in [
        ("gpt in 4 parts, LAMB, recomputation", deep, &[1, 2, 4][..]),
        ("transformer in 4 parts, SGD", transformer, &[1, 2, 4]),
        ("resnet18, LARS", RESNET, &[1]),
    ] {
        let expected = alone(case);
        let layers = case.chain().len();
        let divisions = all_divisions(tensors).into_iter();
        let divisions = divisions.filter(|one| one.columns * one.rounds <= layers);
        let count = divisions.map(|one| check(case, one, &expected)).count();
        let digest = expected.digests.last().unwrap();
        println!("{name}: {count} layouts, one digest: {digest:016x}");
    }
}

#[test]
fn with_two_copies_any_one_rank_of_a_pipeline_may_be_lost() {
    for (ranks, columns, tensors, zero) in [
        (3, 3, 1, 0),
        (4, 2, 1, 1),
        (4, 2, 1, 0),
        (6, 3, 1, 2),
        (3, 1, 3, 0),
        (4, 2, 2, 0),
        (4, 1, 2, 3),
        (8, 2, 2, 1),
    ] {
        let case = if tensors > 1 { MLP_IN_PARTS } else { MLP };
        let division = Division {
            ranks,
            columns,
            tensors,
            zero: ZeroLevel::new(zero).unwrap(),
            copies: 2,
            ..ALONE
        };
        let all = alone(case).held;
        let ranks = testing::spawn_ranks(ranks, LIMIT, move |group| {
            Ok::<_, String>(train(group, case, division).held)
        });
        for lost in 0..ranks.len() {
            let remaining = ranks.iter().enumerate().filter(|(rank, _)| *rank != lost);
            let held = remaining.flat_map(|(_, held)| held.ranges().to_vec());
            assert_eq!(
                HeldRanges::new(held),
                all,
                "{division:?} without rank {lost}"
            );
        }
    }
}
