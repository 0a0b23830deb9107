//! Every operation against PyTorch in double precision: outputs, gradients and running statistics.

mod cases;

use std::collections::BTreeMap;
use std::ops::Range;

use cases::cases;
use ronde_core::layout::{Role, StateLayout};
use ronde_core::seed::SeedTree;
use ronde_kernels::{Level, with_level};
use serde::Deserialize;

use crate::activation::Activation;
use crate::chain::Chain;
use crate::context::ForwardContext;
use crate::graph::GraphBuilder;
use crate::layer::{BackwardPart, BackwardPass, Layer, LayerExt};
use crate::lock_step::SingleRankSums;
use crate::lock_step::{ShardGradient, ShardInput};
use crate::testing::{
    TensorChecksums, arena, hashed, load_named_weights, name_seed, state, training,
};

/// The greatest deviation, as a share of the norm of a tensor.
const BOUND: f64 = 1e-5;
/// The padding token of the texts with padding, and the number of positions of their sources.
const PADDING: u32 = 0;
const SOURCE: usize = 5;

/// The values of an input, as in `tests/pytorch/operations.py`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InputValues {
    /// Numbers in `[-1, 1)`.
    Narrow,
    /// Numbers in `[-6, 6)`.
    Wide,
    /// Token numbers below 11.
    Tokens,
    /// The same; the source of sample `s` has `s + 1` tokens before its padding.
    PaddedTokens,
}

/// An operation, or a few, with the shape of a batch.
struct ComparedOperation {
    name: &'static str,
    shape: &'static [usize],
    values: InputValues,
    /// Describes the layers for samples of a shape.
    layers: fn(&[usize]) -> Vec<GraphBuilder>,
}

impl ComparedOperation {
    fn build(&self) -> Chain {
        let seeds = SeedTree::new(3);
        let layers = (self.layers)(&self.shape[1..]).into_iter();
        let layers = layers.map(|layer| layer.build(&seeds).unwrap());
        let mut chain = Chain::new(layers.collect()).unwrap();
        load_named_weights(&mut chain);
        chain
    }

    fn has_tokens(&self) -> bool {
        matches!(self.values, InputValues::Tokens | InputValues::PaddedTokens)
    }

    fn input(&self) -> Vec<f32> {
        let mut values = hashed(name_seed("input"), self.shape.iter().product());
        for value in &mut values {
            if self.has_tokens() {
                *value = ((*value * 0.5 + 0.5) * 11.0).floor();
            } else if self.values == InputValues::Wide {
                *value *= 6.0;
            }
        }
        if self.values == InputValues::PaddedTokens {
            for (sample, row) in values.chunks_exact_mut(self.shape[1]).enumerate() {
                let (source, padding) = row[..SOURCE].split_at_mut(sample + 1);
                source.iter_mut().for_each(|token| *token = token.max(1.0));
                padding.fill(PADDING as f32);
            }
        }
        values
    }
}

/// The figures of a pass over a batch.
struct Passed {
    output: Vec<f32>,
    input_gradient: Option<Vec<f32>>,
    /// The gradients of parameters, summed over shards, and the buffers.
    tensors: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct ExpectedOperation {
    output: TensorChecksums,
    /// None for token numbers.
    input: Option<TensorChecksums>,
    tensors: BTreeMap<String, TensorChecksums>,
}

#[derive(Deserialize)]
struct ExpectedOperations {
    operations: BTreeMap<String, ExpectedOperation>,
}

fn expected() -> BTreeMap<String, ExpectedOperation> {
    let text = include_str!("../../tests/pytorch/operations.json");
    let expected: ExpectedOperations = serde_json::from_str(text).unwrap();
    expected.operations
}

/// Returns the rows of a batch that belong to shards of the given sizes.
fn rows(values: &[f32], samples: usize, counts: &[usize]) -> Vec<Vec<f32>> {
    let each = values.len() / samples;
    let mut first = 0;
    let shard = |&count: &usize| {
        let start = first;
        first += count;
        values[start * each..first * each].to_vec()
    };
    counts.iter().map(shard).collect()
}

/// Returns the sums over shards of the gradients of a parameter; the buffer of the last shard.
fn of_all_shards(layout: &StateLayout, index: usize, of_shards: &[&[f32]]) -> Vec<f32> {
    let last = of_shards[of_shards.len() - 1];
    if layout.tensors[index].role == Role::Buffer {
        return last.to_vec();
    }
    let sum = |at: usize| of_shards.iter().map(|shard| shard[at]).sum();
    (0..last.len()).map(sum).collect()
}

/// Runs a batch in shards of the given sizes, forward and backward.
fn pass(case: &ComparedOperation, counts: &[usize]) -> Passed {
    let mut chain = case.build();
    let samples = case.shape[0];
    let context = |shard: usize| training(4, shard as u32);
    let inputs = rows(&case.input(), samples, counts).into_iter().enumerate();
    let inputs = inputs.map(|(shard, values)| ShardInput {
        input: Activation::from_host(&[&[counts[shard]], &case.shape[1..]].concat(), values),
        context: context(shard),
    });
    let outputs = chain
        .forward(inputs.collect(), &mut SingleRankSums)
        .unwrap();
    let output: Vec<f32> = outputs.iter().flat_map(|o| o.as_slice().to_vec()).collect();
    let fixed = rows(&hashed(name_seed("loss"), output.len()), samples, counts);
    let (arena, layout) = (arena(&chain), chain.layout().clone());
    let mut of_shards: Vec<Vec<f32>> = counts.iter().map(|_| vec![f32::NAN; arena.len()]).collect();
    let given = outputs.iter().zip(fixed).zip(&mut of_shards).enumerate();
    let given = given.map(|(shard, ((output, fixed), gradients))| ShardGradient {
        shard: context(shard).shard,
        grad_output: Activation::from_host(output.shape(), fixed),
        gradients,
        added: Vec::new(),
    });
    let given = given.collect();
    let back = chain
        .backward(
            given,
            BackwardPass {
                part: BackwardPart::Whole,
                ranges: arena.ranges(),
                needs_input_gradient: !case.has_tokens(),
            },
            &mut SingleRankSums,
        )
        .unwrap();
    let back: Option<Vec<Activation>> = back.into_iter().collect();
    let tensor = |(index, range): (usize, &Range<usize>)| {
        let shards: Vec<&[f32]> = of_shards.iter().map(|g| &g[range.clone()]).collect();
        of_all_shards(&layout, index, &shards)
    };
    Passed {
        output,
        input_gradient: back.map(|back| back.into_iter().flat_map(Activation::into_host).collect()),
        tensors: arena.ranges().iter().enumerate().map(tensor).collect(),
    }
}

/// Compares a pass with PyTorch's.
fn compare(title: &str, layout: &StateLayout, found: &Passed, expected: &ExpectedOperation) {
    let check = |what: &str, values: &[f32], expected: &TensorChecksums| {
        let error = expected.error(values);
        assert!(error < BOUND, "{title}: {what}: error {error:.2e}");
    };
    check("output", &found.output, &expected.output);
    let of_input = found.input_gradient.as_ref().zip(expected.input.as_ref());
    match of_input {
        Some((found, expected)) => check("input", found, expected),
        None => assert!(
            found.input_gradient.is_none() && expected.input.is_none(),
            "{title}"
        ),
    }
    assert_eq!(layout.tensors.len(), expected.tensors.len(), "{title}");
    for (tensor, values) in layout.tensors.iter().zip(&found.tensors) {
        check(&tensor.name, values, &expected.tensors[&tensor.name]);
    }
}

#[test]
fn outputs_and_gradients_are_those_of_pytorch() {
    let (cases, expected) = (cases(), expected());
    let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().eq(expected.keys()), "{names:?}");
    for case in &cases {
        let layout = case.build().layout().clone();
        for level in Level::supported() {
            let title = format!("{} at {}", case.name, level.name());
            let found = with_level(level, || pass(case, &[case.shape[0]]));
            compare(&title, &layout, &found, &expected[case.name]);
        }
    }
}

/// All but batch normalisation of each shard give a batch in shards the results of the whole batch.
#[test]
fn a_batch_in_shards_has_the_gradients_of_the_whole_batch() {
    let expected = expected();
    let per_shard = |case: &ComparedOperation| case.name.starts_with("batch_norm");
    let mut in_lock_step = 0;
    for case in cases().iter().filter(|case| !per_shard(case)) {
        let chain = case.build();
        in_lock_step += usize::from(chain.facts().needs_all_shards());
        let samples = case.shape[0];
        for counts in [&[1, samples - 1][..], &[1, 0, samples - 2, 1]] {
            let title = format!("{} in shards of {counts:?}", case.name);
            let found = pass(case, counts);
            compare(&title, chain.layout(), &found, &expected[case.name]);
        }
    }
    assert_eq!(in_lock_step, 3);
}

/// Evaluation uses the running statistics, and otherwise computes what training does.
#[test]
fn evaluation_has_the_outputs_of_training_but_for_batch_statistics() {
    let expected = expected();
    for case in &cases() {
        let mut chain = case.build();
        let (mut values, arena) = state(&chain);
        let is_batch = case.name.starts_with("batch_");
        if is_batch {
            // Those that training would find, after infinitely many steps with the same batch.
            let found = pass(case, &[case.shape[0]]);
            let [mean, variance] = [2, 3].map(|index| &found.tensors[index]);
            for (to, x) in values[arena.range(2)].iter_mut().zip(mean) {
                *to = x / 0.1;
            }
            for (to, x) in values[arena.range(3)].iter_mut().zip(variance) {
                *to = (x - 0.9) / 0.1;
            }
            chain.load(&values, arena.ranges());
        }
        let input = Activation::from_host(case.shape, case.input());
        let output = chain
            .forward_shard(input, &ForwardContext::evaluate())
            .unwrap();
        let error = expected[case.name].output.error(output.as_slice());
        assert!(error < BOUND, "{}: error {error:.2e}", case.name);
    }
}

/// A checksum that lacks a change could not find it.
#[test]
fn checksums_find_wrong_and_exchanged_elements() {
    let case = &cases()[0];
    let expected = &expected()[case.name];
    let found = pass(case, &[case.shape[0]]);
    let gradient = found.input_gradient.unwrap();
    let of_input = expected.input.as_ref().unwrap();
    assert!(of_input.error(&gradient) < BOUND);
    let open = gradient.iter().position(|g| *g != 0.0).unwrap();
    for change in [
        &(|values: &mut [f32]| values[open] *= 1.01) as &dyn Fn(&mut [f32]),
        &|values| values.swap(open, open + 1),
        &|values| values.rotate_left(1),
        &|values| values.iter_mut().for_each(|g| *g = -*g),
    ] {
        let mut wrong = gradient.clone();
        change(&mut wrong);
        assert!(of_input.error(&wrong) > 10.0 * BOUND);
    }
}
