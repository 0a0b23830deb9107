//! Models with batch normalisation over all samples of a step: one batch cut into shards in any way.

use std::ops::Range;

use ronde_core::Shard;

use super::*;
use crate::context::ForwardContext;
use crate::layer::{BackwardPart, BackwardPass, LayerExt};
use crate::lock_step::SingleRankSums;
use crate::lock_step::{NotSummed, ShardGradient, ShardInput, ShardSums};
use crate::testing::samples;

const RESNET18: &str =
    r#"{"kind": "resnet18", "small_input": true, "normalisation": "synchronised_batch"}"#;

fn resnet18() -> (&'static ModelCase, Chain) {
    let case = CASES.iter().find(|case| case.name == "resnet18").unwrap();
    (case, build(RESNET18, case.shape))
}

fn build(model: &str, shape: &[usize]) -> Chain {
    let model: ModelConfig = serde_json::from_str(model).unwrap();
    assert!(model.runs_shards_together());
    model.build(&shape[1..], 10, &SeedTree::new(3)).unwrap()
}

/// Splits the case's samples into shards of the given sizes.
fn cut(case: &ModelCase, counts: &[usize]) -> Vec<ShardInput> {
    let values = case.input().into_host();
    let each: usize = case.shape[1..].iter().product();
    let mut first = 0;
    let shard = |(shard, &count): (usize, &usize)| {
        let mut shape = case.shape.to_vec();
        shape[0] = count;
        let part = values[first * each..(first + count) * each].to_vec();
        first += count;
        ShardInput {
            input: Activation::from_host(&shape, part),
            context: training(4, shard as u32),
        }
    };
    counts.iter().enumerate().map(shard).collect()
}

/// Returns loss and gradients, summed over the shards; buffers are those of the last shard.
fn together(case: &ModelCase, chain: &mut Chain, counts: &[usize]) -> (f64, Vec<Vec<f32>>) {
    let outputs = chain
        .forward(cut(case, counts), &mut SingleRankSums)
        .unwrap();
    let all: Vec<f32> = outputs.iter().flat_map(|o| o.as_slice().to_vec()).collect();
    let loss = case.loss(&Activation::from_host(&[case.shape[0], case.classes], all));
    let arena = arena(chain);
    let mut buffers: Vec<Vec<f32>> = counts.iter().map(|_| vec![f32::NAN; arena.len()]).collect();
    let mut at = 0;
    let given = outputs.iter().zip(&mut buffers).enumerate();
    let given = given.map(|(shard, (output, gradients))| {
        let end = at + output.as_slice().len();
        let gradient = loss.gradient[std::mem::replace(&mut at, end)..end].to_vec();
        ShardGradient {
            shard: Shard(shard as u32),
            grad_output: Activation::from_host(output.shape(), gradient),
            gradients,
            added: Vec::new(),
        }
    });
    let given = given.collect();
    let ranges = arena.ranges();
    let inputs = chain
        .backward(
            given,
            BackwardPass {
                part: BackwardPart::Whole,
                ranges,
                needs_input_gradient: false,
            },
            &mut SingleRankSums,
        )
        .unwrap();
    assert_eq!(inputs.len(), counts.len());
    let sum = |(index, range): (usize, &Range<usize>)| {
        let of = |buffer: &Vec<f32>| buffer[range.clone()].to_vec();
        if chain.layout().tensors[index].role == Role::Buffer {
            return of(&buffers[buffers.len() - 1]);
        }
        let add = |mut sum: Vec<f32>, more: Vec<f32>| {
            sum.iter_mut()
                .zip(more)
                .for_each(|(sum, more)| *sum += more);
            sum
        };
        buffers.iter().map(of).reduce(add).unwrap()
    };
    let gradients = ranges.iter().enumerate().map(sum).collect();
    (loss.loss_sum, gradients)
}

#[test]
fn a_batch_in_shards_has_pytorchs_gradients_of_the_whole_batch() {
    let expected = expected();
    for counts in [&[3][..], &[2, 1], &[1, 0, 1, 1]] {
        let (case, mut chain) = resnet18();
        load_named_weights(&mut chain);
        let layout = chain.layout().clone();
        let (loss, gradients) = together(case, &mut chain, counts);
        case.compare(&expected[case.name], loss, &layout, &gradients);
    }
}

#[test]
fn tensors_and_weights_equal_those_of_normalisation_per_shard() {
    for (kind, rest, side) in [
        ("resnet18", r#", "small_input": true"#, 16),
        ("resnet18", "", 32),
        ("resnet50", r#", "small_input": true"#, 16),
        ("vgg16", r#", "small_input": true"#, 64),
    ] {
        let of = |normalisation: &str| {
            let text = format!(r#"{{"kind": "{kind}", "normalisation": "{normalisation}"{rest}}}"#);
            let model: ModelConfig = serde_json::from_str(&text).unwrap();
            model
                .build(&[3, side, side], 10, &SeedTree::new(3))
                .unwrap()
        };
        let (mut together, mut apart) = (of("synchronised_batch"), of("batch"));
        assert_eq!(together.layout(), apart.layout(), "{kind}");
        assert_eq!(state(&together).0, state(&apart).0, "{kind}");
        assert!(together.facts().needs_all_shards() && !apart.facts().needs_all_shards());
        let shape = [2, 3, side, side];
        assert_eq!(together.cost(&shape), apart.cost(&shape));
        let evaluated = |chain: &mut Chain| chain.evaluate(samples(&shape, 5)).unwrap();
        let (got, expected) = (evaluated(&mut together), evaluated(&mut apart));
        assert_eq!(got.shape(), expected.shape());
        for (got, expected) in got.as_slice().iter().zip(expected.as_slice()) {
            assert!(
                (got - expected).abs() < 1e-4,
                "{kind}: {got} for {expected}"
            );
        }
    }
}

#[test]
fn a_single_shard_is_a_whole_batch_and_updates_the_running_statistics() {
    let (case, mut chain) = resnet18();
    let (loss, gradients) = case.through(&mut [chain]);
    chain = resnet18().1;
    let (same, again) = together(case, &mut chain, &[3]);
    assert_eq!(loss.to_bits(), same.to_bits());
    assert_eq!(gradients, again);
    let apart = case.through(&mut [case.build()]).1;
    let layout = chain.layout().tensors.iter();
    for ((tensor, got), expected) in layout.zip(&gradients).zip(&apart) {
        if tensor.role == Role::Buffer {
            for (got, expected) in got.iter().zip(expected) {
                let error = (got - expected).abs();
                assert!(error < 1e-4, "{}: {got} for {expected}", tensor.name);
            }
        }
    }
}

#[test]
fn recomputed_and_rounded_layers_keep_step() {
    let (case, mut chain) = resnet18();
    let expected = together(case, &mut chain, &[2, 1]);
    let mut recomputed = resnet18()
        .1
        .recomputing(&crate::Recomputation::All)
        .unwrap();
    assert!(together(case, &mut recomputed, &[2, 1]) == expected);
    let rounded = |recomputes: bool| {
        let mut chain = resnet18().1.with_precision(Precision::Bf16).unwrap();
        if recomputes {
            chain = chain.recomputing(&crate::Recomputation::All).unwrap();
        }
        let (values, arena) = state(&chain);
        chain.load(&values, arena.ranges());
        together(case, &mut chain, &[2, 1])
    };
    let (loss, gradients) = rounded(false);
    assert!(loss != expected.0 && (loss - expected.0).abs() < 0.05 * expected.0);
    assert!(rounded(true) == (loss, gradients));
}

struct FailingSums;

impl ShardSums for FailingSums {
    fn sum(&mut self, _len: usize, _parts: Vec<(Shard, Vec<f64>)>) -> Result<Vec<f64>, NotSummed> {
        Err(NotSummed)
    }
}

#[test]
fn failures_are_reported_and_a_step_can_be_aborted() {
    let (case, mut chain) = resnet18();
    let failed = chain
        .forward(cut(case, &[3]), &mut FailingSums)
        .unwrap_err();
    assert_eq!(
        failed.to_string(),
        "layer bn1: the sum over all shards failed"
    );
    let wrong = ShardInput {
        input: samples(&[1, 3, 8, 16], 1),
        context: ForwardContext {
            layer: 0,
            ..training(4, 0)
        },
    };
    let wrong = chain.forward(vec![wrong], &mut SingleRankSums).unwrap_err();
    assert!(wrong.to_string().contains("stem"), "{wrong}");
    chain.forward(cut(case, &[3]), &mut SingleRankSums).unwrap();
    chain
        .layers_mut()
        .iter_mut()
        .for_each(|layer| layer.discard_all());
    let arena = arena(&chain);
    let mut gradients = vec![0.0; arena.len()];
    let given = ShardGradient {
        shard: Shard(0),
        grad_output: samples(&[3, 10], 1),
        gradients: &mut gradients,
        added: Vec::new(),
    };
    let ended = chain.backward(
        vec![given],
        BackwardPass {
            part: BackwardPart::Whole,
            ranges: arena.ranges(),
            needs_input_gradient: false,
        },
        &mut SingleRankSums,
    );
    assert!(matches!(ended, Err(EngineError::NotInFlight { .. })));
}
