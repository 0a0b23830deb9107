//! Shards that run together have the bits of shards that run one after the other and are added along the tree.

use std::ops::Range;

use ronde_core::Shard;
use ronde_core::exact::{TreeSum, cover};
use ronde_core::{Buffer, DType};

use super::*;
use crate::layer::{BackwardPart, BackwardPass};
use crate::lock_step::{ShardGradient, ShardInput, SingleRankSums};
use crate::recomputation::Recomputation;
use crate::testing::samples;

/// The samples of each shard: one without samples, and a number of shards that is no power of two.
const COUNTS: [usize; 6] = [2, 1, 0, 3, 1, 2];

const MODELS: [(&str, &[usize]); 6] = [
    (r#"{"kind": "linear"}"#, &[5]),
    (r#"{"kind": "mlp", "hidden": [33, 20]}"#, &[17]),
    (
        r#"{"kind": "resnet18", "small_input": true, "normalisation": "group"}"#,
        &[3, 8, 8],
    ),
    (
        r#"{"kind": "resnet18", "normalisation": "group"}"#,
        &[3, 32, 32],
    ),
    (
        r#"{"kind": "resnet50", "small_input": true, "normalisation": "group"}"#,
        &[3, 8, 8],
    ),
    (r#"{"kind": "vgg16", "small_input": true}"#, &[3, 32, 32]),
];

fn built(model: &str, sample: &[usize]) -> Chain {
    let model: ModelConfig = serde_json::from_str(model).unwrap();
    model.build(sample, 10, &SeedTree::new(3)).unwrap()
}

fn inputs(sample: &[usize]) -> Vec<Activation> {
    let input = |(shard, &count): (usize, &usize)| {
        let mut values = samples(&[&[count], sample].concat(), 7 + shard as u64);
        if let Some(first) = values.host_mut().and_then(|values| values.first_mut()) {
            // Neighbours that must not reach other shards.
            *first = [1e-41, f32::INFINITY, 0.5, f32::NAN, 2.0, -0.0][shard];
        }
        values
    };
    COUNTS.iter().enumerate().map(input).collect()
}

/// The bits of what passes give: outputs, gradients of inputs, and the sums of gradients of each subtree.
type PassBits = (Vec<Vec<u32>>, Vec<Vec<u32>>, Vec<Vec<u32>>);

fn gradient_of(output: &Activation, shard: usize) -> Activation {
    samples(output.shape(), 90 + shard as u64)
}

/// Runs shard by shard.
fn alone(chain: &mut Chain, sample: &[usize], run: Range<u32>) -> PassBits {
    let arena = arena(chain);
    let (mut outputs, mut of_inputs) = (Vec::new(), Vec::new());
    let mut sum = TreeSum::new(COUNTS.len() as u32);
    for (shard, input) in inputs(sample).into_iter().enumerate() {
        if !run.contains(&(shard as u32)) {
            continue;
        }
        let context = training(4, shard as u32);
        let output = chain.forward_shard(input, &context).unwrap();
        let mut buffer = Buffer::host(DType::F32, arena.len());
        let gradient = gradient_of(&output, shard);
        let of_input = chain.backward_shard(
            context.shard,
            gradient,
            buffer.as_mut_slice(),
            arena.ranges(),
            true,
        );
        outputs.push(bits(output.as_slice()));
        of_inputs.push(bits(of_input.unwrap().unwrap().as_slice()));
        sum.add_shard(shard as u32, buffer);
    }
    let sums = sum.take().into_iter();
    let sums = sums.map(|(_, sum)| bits(sum.as_slice())).collect();
    (outputs, of_inputs, sums)
}

/// Runs shards together, in the given parts of the backward pass.
fn together(
    chain: &mut Chain,
    sample: &[usize],
    run: Range<u32>,
    parts: &[BackwardPart],
) -> PassBits {
    let arena = arena(chain);
    let given = inputs(sample).into_iter().enumerate();
    let given = given.filter(|(shard, _)| run.contains(&(*shard as u32)));
    let given = given.map(|(shard, input)| ShardInput {
        input,
        context: training(4, shard as u32),
    });
    let outputs = chain.forward(given.collect(), &mut SingleRankSums).unwrap();
    let nodes = cover(run.clone(), COUNTS.len() as u32);
    let mut sums: Vec<Vec<f32>> = nodes.iter().map(|_| vec![0.0; arena.len()]).collect();
    let mut of_inputs = Vec::new();
    for &part in parts {
        let mut rest = (run.start..).zip(&outputs);
        let given = nodes.iter().zip(&mut sums).map(|(node, gradients)| {
            let shards = node.shards(COUNTS.len() as u32);
            let mut of_sum = rest
                .by_ref()
                .take(shards.len())
                .map(|(shard, output)| (Shard(shard), gradient_of(output, shard as usize)));
            let (shard, grad_output) = of_sum.next().unwrap();
            ShardGradient {
                shard,
                grad_output,
                gradients,
                added: of_sum.collect(),
            }
        });
        let given = given.collect();
        let pass = BackwardPass {
            part,
            ranges: arena.ranges(),
            needs_input_gradient: true,
        };
        let found = chain.backward(given, pass, &mut SingleRankSums).unwrap();
        assert_eq!(found.len(), run.len());
        of_inputs.extend(found.into_iter().flatten());
    }
    (
        outputs
            .iter()
            .map(|output| bits(output.as_slice()))
            .collect(),
        of_inputs
            .iter()
            .map(|found| bits(found.as_slice()))
            .collect(),
        sums.iter().map(|sum| bits(sum)).collect(),
    )
}

#[test]
fn shards_together_have_the_bits_of_shards_alone() {
    for (model, sample) in MODELS {
        let mut chain = built(model, sample);
        assert!(chain.facts().joins_shards(), "{model}");
        for run in [0..6, 0..4, 1..6, 3..5] {
            let expected = alone(&mut chain, sample, run.clone());
            for parts in [
                &[BackwardPart::Whole][..],
                &[BackwardPart::Input, BackwardPart::Weights],
            ] {
                let found = together(&mut chain, sample, run.clone(), parts);
                assert!(
                    found.0 == expected.0,
                    "outputs: {model}, shards {run:?}, {parts:?}"
                );
                assert!(
                    found.1 == expected.1,
                    "gradients of inputs: {model}, shards {run:?}, {parts:?}"
                );
                assert!(
                    found.2 == expected.2,
                    "sums: {model}, shards {run:?}, {parts:?}"
                );
            }
        }
        let expected = alone(&mut chain, sample, 0..6);
        let mut recomputed = chain.recomputing(&Recomputation::All).unwrap();
        let found = together(&mut recomputed, sample, 0..6, &[BackwardPart::Whole]);
        assert!(found == expected, "{model}, recomputed");
    }
}
