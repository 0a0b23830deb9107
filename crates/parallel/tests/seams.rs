//! Builds a pipeline of two stages on the public interfaces. It gives the bits of the plain run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup, testing};
use ronde_core::exact::TreeSum;
use ronde_core::layout::Role;
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::shards::ShardPlan;
use ronde_core::{
    Buffer, Collectives, DType, GroupRank, PointToPoint, Shard, Step, Tag, WorldSize,
};
use ronde_engine::{
    Activation, Chain, CrossEntropy, ForwardContext, Layer, Loss, LossOutput, Mode, ModelConfig,
    OptimizerConfig, Predictions,
};
use ronde_parallel::{DataParallel, DataParallelConfig, MicroBatch, ModelState, Strategy};
use ronde_schedule::pipeline::{Action, one_forward_one_backward};

const SHARDS: u32 = 2;
const SAMPLES: usize = 5;
const FEATURES: usize = 12;
const CLASSES: usize = 4;
const STEPS: u64 = 3;
const RATE: f64 = 0.05;
const LIMIT: Duration = Duration::from_secs(60);

type Bits = Vec<(String, Vec<u32>)>;

fn seeds() -> SeedTree {
    SeedTree::new(11)
}

fn chain() -> Chain {
    let config = ModelConfig::Mlp {
        hidden: vec![33, 17],
    };
    config.build(&[FEATURES], CLASSES as u32, &seeds()).unwrap()
}

fn optimizer() -> OptimizerConfig {
    serde_json::from_str(r#"{"kind": "adamw"}"#).unwrap()
}

fn config() -> DataParallelConfig {
    let mut config =
        DataParallelConfig::new(optimizer(), Arc::new(CrossEntropy { classes: CLASSES }));
    config.bucket_bytes_max = 1000;
    config
}

fn micro_batch(step: u64, shard: u32) -> MicroBatch {
    let mut features = vec![0.0; SAMPLES * FEATURES];
    seeds()
        .stream(Purpose::Synthetic, &[step, shard.into()])
        .fill_uniform(&mut features);
    let labels = (0..SAMPLES as u32)
        .map(|i| (i + shard + step as u32) % CLASSES as u32)
        .collect();
    MicroBatch {
        shard: Shard(shard),
        shape: vec![SAMPLES, FEATURES],
        features,
        labels,
    }
}

fn cross_entropy(logits: &[f32], labels: &[u32]) -> LossOutput {
    let predictions = Predictions::new(logits, labels, labels.len()).unwrap();
    let loss = CrossEntropy { classes: CLASSES };
    loss.loss_and_gradient(&predictions).unwrap()
}

fn bits(state: &ModelState) -> Bits {
    let of = |range: &std::ops::Range<usize>| {
        state.values()[range.clone()]
            .iter()
            .map(|v| v.to_bits())
            .collect()
    };
    let mut bits: Bits = state
        .tensors()
        .iter()
        .map(|p| (p.entry.name.clone(), of(&p.range)))
        .collect();
    bits.sort();
    bits
}

fn data_parallel(group: Arc<dyn Collectives>) -> Bits {
    let shards = ShardPlan::new(SHARDS, WorldSize::new(group.size() as u32).unwrap()).unwrap();
    let run = shards.run(group.rank());
    let mut strategy = DataParallel::new(chain(), group, shards, seeds(), config());
    for step in 0..STEPS {
        let batches = run.clone().map(|shard| micro_batch(step, shard));
        strategy.backward(Step(step), batches.collect()).unwrap();
        let reduced = strategy.reduce().unwrap();
        strategy
            .apply(
                Step(step),
                reduced,
                &[],
                u64::from(SHARDS) * SAMPLES as u64,
                RATE,
            )
            .unwrap();
        strategy.gather_weights().unwrap();
    }
    bits(strategy.state())
}

fn plain() -> Bits {
    let group = ProcessGroup::alone(GroupConfig::new("dp", "seams", GroupRank(0)));
    data_parallel(Arc::new(group))
}

#[test]
fn two_data_parallel_ranks_give_the_bits_of_one() {
    for bits in testing::spawn_ranks(2, LIMIT, |group| {
        Ok::<_, String>(data_parallel(Arc::new(group)))
    }) {
        assert_eq!(bits, plain());
    }
}

/// Applies the mean of the sum over shards to the flat state of a part of the model.
fn update(
    part: &mut Chain,
    state: &mut ModelState,
    sum: &[f32],
    moments: &mut [Vec<f32>],
    step: u64,
) {
    for index in 0..state.tensors().len() {
        let range = state.tensors()[index].range.clone();
        let count = (SHARDS as usize * SAMPLES) as f32;
        let mean: Vec<f32> = sum[range.clone()]
            .iter()
            .map(|value| value / count)
            .collect();
        assert_eq!(state.tensors()[index].entry.role, Role::Parameter);
        let mut moments: Vec<&mut [f32]> =
            moments.iter_mut().map(|m| &mut m[range.clone()]).collect();
        optimizer().step_tensor(
            step + 1,
            RATE,
            &mut state.values_mut()[range],
            &mean,
            &mut moments,
        );
    }
    state.load_into(part);
}

fn context(step: u64, shard: u32, part: &Chain) -> ForwardContext {
    ForwardContext {
        seeds: seeds(),
        step: Step(step),
        shard: Shard(shard),
        layer: part.first_layer(),
        mode: Mode::Train,
    }
}

/// Returns the flat ranges of a part's tensors in the order of its layout.
fn ranges(part: &Chain, state: &ModelState) -> Vec<std::ops::Range<usize>> {
    let range = |name: &str| {
        state
            .tensors()
            .iter()
            .find(|p| p.entry.name == name)
            .unwrap()
            .range
            .clone()
    };
    part.layout()
        .tensors
        .iter()
        .map(|tensor| range(&tensor.name))
        .collect()
}

/// Runs one rank of a pipeline of two with the one-forward-one-backward schedule.
fn pipeline(group: &ProcessGroup, cut: usize) -> Bits {
    let rank = group.rank().0;
    let peer = GroupRank(1 - rank);
    let mut part = chain().cut(&[cut]).unwrap().swap_remove(rank as usize);
    let mut state = ModelState::of(&part);
    let ranges = ranges(&part, &state);
    let mut moments = vec![vec![0.0; state.values().len()]; optimizer().state_names().len()];
    let border = part.cost(&[SAMPLES, FEATURES]).output_shape[1];
    for step in 0..STEPS {
        let mut sum = TreeSum::new(SHARDS);
        let mut losses: Vec<Option<Activation>> = (0..SHARDS).map(|_| None).collect();
        for action in one_forward_one_backward(rank as usize, 2, SHARDS as usize) {
            match action {
                Action::Forward(shard) => {
                    let batch = micro_batch(step, shard as u32);
                    let input = if rank == 0 {
                        Activation::from_host(&batch.shape, batch.features)
                    } else {
                        receive(group, peer, shard)
                    };
                    let output = part
                        .forward(input, &context(step, shard as u32, &part))
                        .unwrap();
                    if rank == 0 {
                        assert_eq!(output.shape(), [SAMPLES, border]);
                        send(group, peer, shard, output);
                    } else {
                        let loss = cross_entropy(&output.into_host(), &batch.labels);
                        losses[shard] =
                            Some(Activation::from_host(&[SAMPLES, CLASSES], loss.gradient));
                    }
                }
                Action::Backward(shard) => {
                    let gradient = losses[shard]
                        .take()
                        .unwrap_or_else(|| receive(group, peer, shard));
                    let mut buffer = Buffer::host(DType::F32, state.values().len());
                    let input = part
                        .backward(
                            Shard(shard as u32),
                            gradient,
                            buffer.as_mut_slice(),
                            &ranges,
                            rank == 1,
                        )
                        .unwrap();
                    if let Some(input) = input.filter(|_| rank == 1) {
                        send(group, peer, shard, input);
                    }
                    sum.add_shard(shard as u32, buffer);
                }
            }
        }
        let sum = sum.take();
        update(
            &mut part,
            &mut state,
            sum[0].1.as_slice(),
            &mut moments,
            step,
        );
    }
    bits(&state)
}

/// Sends the shape and values of an activation.
fn send(group: &ProcessGroup, to: GroupRank, shard: usize, activation: Activation) {
    let shape: Vec<u32> = activation.shape().iter().map(|&n| n as u32).collect();
    group
        .send(to, Tag(2 * shard as u32), Buffer::copy_of(&shape))
        .unwrap()
        .wait()
        .unwrap();
    group
        .send(
            to,
            Tag(2 * shard as u32 + 1),
            Buffer::copy_of(&activation.into_host()),
        )
        .unwrap()
        .wait()
        .unwrap();
}

fn receive(group: &ProcessGroup, from: GroupRank, shard: usize) -> Activation {
    let shape = Buffer::host(DType::U32, 2);
    let shape = group
        .receive(from, Tag(2 * shard as u32), shape)
        .unwrap()
        .wait()
        .unwrap();
    let shape: Vec<usize> = shape
        .as_slice::<u32>()
        .iter()
        .map(|&n| n as usize)
        .collect();
    let values = Buffer::host(DType::F32, shape.iter().product());
    let values = group
        .receive(from, Tag(2 * shard as u32 + 1), values)
        .unwrap()
        .wait()
        .unwrap();
    Activation::from_host(&shape, values.as_slice().to_vec())
}

#[test]
fn a_pipeline_of_two_stages_gives_the_bits_of_the_plain_run() {
    let plain = plain();
    for cut in 1..chain().len() {
        let parts = testing::spawn_ranks(2, LIMIT, move |group| {
            Ok::<_, String>(pipeline(&group, cut))
        });
        let mut whole: Bits = parts.into_iter().flatten().collect();
        whole.sort();
        assert_eq!(whole, plain, "cut before layer {cut}");
    }
}
