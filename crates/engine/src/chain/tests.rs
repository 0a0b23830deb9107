//! Cut anywhere, run in any order of shards and at any address, a chain computes the same bits.

use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;

use super::*;
use crate::layer::LayerExt;
use crate::models::ModelConfig;
use crate::testing::cross_entropy;
use crate::testing::{arena, bits, gradients, samples, state, training};

fn digits() -> Chain {
    let model = ModelConfig::DigitsCnn {
        channels: 6,
        dropout: 0.25,
    };
    model.build(&[1, 8, 8], 10, &SeedTree::new(7)).unwrap()
}

fn small_resnet() -> Chain {
    let model = ModelConfig::ResNet18 {
        small_input: true,
        normalisation: crate::Normalisation::Batch,
    };
    model.build(&[3, 8, 8], 10, &SeedTree::new(7)).unwrap()
}

fn shard_of(shape: &[usize], shard: u32) -> (Activation, Vec<u32>) {
    let labels = (0..shape[0] as u32).map(|i| (i * 3 + shard) % 10).collect();
    (samples(shape, u64::from(shard)), labels)
}

/// Returns outputs and gradients of a shard through parts that exchange host values only, as
/// processes do.
fn through_parts(
    parts: &mut [Chain],
    input: Activation,
    labels: &[u32],
    context: &ForwardContext,
) -> Vec<u32> {
    let mut value = input;
    for part in &mut *parts {
        let output = part.forward_shard(value, context).unwrap();
        let shape = output.shape().to_vec();
        value = Activation::from_host(&shape, output.into_host());
    }
    let shape = value.shape().to_vec();
    let loss = cross_entropy(value.as_slice(), shape[1], labels);
    let mut gradient = Activation::from_host(&shape, loss.gradient);
    let mut all = Vec::new();
    for (index, part) in parts.iter_mut().enumerate().rev() {
        let arena = arena(part);
        let mut gradients = vec![f32::NAN; arena.len()];
        let input = part
            .backward_shard(
                context.shard,
                gradient,
                &mut gradients,
                arena.ranges(),
                index > 0,
            )
            .unwrap();
        let tensors = arena
            .ranges()
            .iter()
            .map(|range| bits(&gradients[range.clone()]));
        all.splice(0..0, tensors.flatten().collect::<Vec<_>>());
        match input {
            Some(input) => gradient = input,
            None => break,
        }
    }
    all
}

#[test]
fn cuts_anywhere_do_not_change_the_bits() {
    for (build, shape) in [
        (digits as fn() -> Chain, [5, 1, 8, 8]),
        (small_resnet, [3, 3, 8, 8]),
    ] {
        let (input, labels) = shard_of(&shape, 3);
        let context = training(9, 3);
        let mut whole = [build()];
        let expected = through_parts(&mut whole, input.clone(), &labels, &context);
        let layers = whole[0].len();
        let names = |parts: &[Chain]| -> Vec<String> {
            let tensors = parts.iter().flat_map(|part| &part.layout().tensors);
            tensors.map(|tensor| tensor.name.clone()).collect()
        };
        let every: Vec<usize> = (1..layers).collect();
        for cut in [vec![1], vec![layers - 1], every] {
            let mut parts = build().cut(&cut).unwrap();
            assert_eq!(names(&parts), names(&whole));
            let got = through_parts(&mut parts, input.clone(), &labels, &context);
            assert!(got == expected, "cut before {cut:?} changes bits");
        }
    }
}

#[test]
fn cuts_out_of_range_or_order_are_refused() {
    for cut in [&[0][..], &[3], &[2, 1], &[1, 1]] {
        assert!(digits().cut(cut).is_err(), "{cut:?}");
    }
    assert_eq!(digits().cut(&[]).unwrap().len(), 1);
}

#[test]
fn the_bits_of_a_shard_depend_on_no_earlier_run_and_no_address() {
    for (build, shape, turns) in [
        (digits as fn() -> Chain, [8, 1, 8, 8], 20),
        (small_resnet, [2, 3, 8, 8], 5),
    ] {
        let (input, labels) = shard_of(&shape, 1);
        let (expected, loss) = gradients(&mut build(), input.clone(), &labels, &training(4, 1));
        let expected = bits(&expected);
        let mut used = build();
        let mut ballast = Vec::new();
        for turn in 0..turns {
            // Odd sizes that stay allocated shift the following allocations by odd amounts.
            ballast.push(vec![turn as u8; 4 * turn * turn + 4 * turn + 1]);
            let other = 2 + turn as u32 % 3;
            let (other_input, other_labels) =
                shard_of(&[1 + turn % shape[0], shape[1], 8, 8], other);
            let _ = gradients(&mut used, other_input, &other_labels, &training(4, other));
            let mut values = Vec::with_capacity(input.as_slice().len() + turn);
            values.extend_from_slice(input.as_slice());
            let again = Activation::from_host(&shape, values);
            let (got, again) = gradients(&mut used, again, &labels, &training(4, 1));
            assert!(bits(&got) == expected, "turn {turn} has other bits");
            assert_eq!(again.loss_sum.to_bits(), loss.loss_sum.to_bits());
        }
    }
}

#[test]
fn pending_shards_are_independent() {
    let mut chain = digits();
    let alone: Vec<_> = (0..3)
        .map(|shard| {
            let (input, labels) = shard_of(&[4, 1, 8, 8], shard);
            bits(&gradients(&mut digits(), input, &labels, &training(0, shard)).0)
        })
        .collect();
    let outputs: Vec<Activation> = (0..3)
        .map(|shard| {
            let (input, _) = shard_of(&[4, 1, 8, 8], shard);
            chain.forward_shard(input, &training(0, shard)).unwrap()
        })
        .collect();
    let arena = arena(&chain);
    for shard in [1, 0, 2] {
        let output = &outputs[shard as usize];
        let (_, labels) = shard_of(&[4, 1, 8, 8], shard);
        let loss = cross_entropy(output.as_slice(), 10, &labels);
        let gradient = Activation::from_host(&[4, 10], loss.gradient);
        let mut gradients = vec![0.0; arena.len()];
        // A step may commit while shards of another step are pending; these keep their own weights.
        chain.load(&vec![0.5; arena.len()], arena.ranges());
        chain
            .backward_shard(
                Shard(shard),
                gradient,
                &mut gradients,
                arena.ranges(),
                false,
            )
            .unwrap();
        for range in arena.ranges() {
            let expected: Vec<u32> = alone[shard as usize][range.clone()].to_vec();
            assert_eq!(bits(&gradients[range.clone()]), expected);
        }
    }
}

#[test]
fn gradients_match_finite_differences_of_the_loss() {
    let model = ModelConfig::DigitsCnn {
        channels: 3,
        dropout: 0.25,
    };
    let mut chain = model.build(&[1, 8, 8], 10, &SeedTree::new(3)).unwrap();
    let (mut state, arena) = state(&chain);
    let (input, labels) = shard_of(&[6, 1, 8, 8], 0);
    let context = training(2, 0);
    let (gradient, _) = gradients(&mut chain, input.clone(), &labels, &context);
    let mut checked = 0;
    for (index, tensor) in chain.layout().tensors.clone().iter().enumerate() {
        if tensor.role != Role::Parameter {
            continue;
        }
        // Along the gradient of one tensor the loss rises by the squared norm of the gradient.
        let range = arena.range(index);
        let direction = gradient[range.clone()].to_vec();
        let square: f64 = direction.iter().map(|&x| f64::from(x).powi(2)).sum();
        let step = 1e-3 / square.sqrt().max(1e-3);
        let mut at = |factor: f64| {
            let kept = state.clone();
            for (value, along) in state[range.clone()].iter_mut().zip(&direction) {
                *value += (factor * step) as f32 * along;
            }
            chain.load(&state, arena.ranges());
            state = kept;
            gradients(&mut chain, input.clone(), &labels, &context)
                .1
                .loss_sum
        };
        let slope = (at(1.0) - at(-1.0)) / (2.0 * step);
        let error = (slope - square).abs() / square.max(1e-2);
        assert!(error < 0.03, "{}: {slope} for {square}", tensor.name);
        checked += 1;
    }
    assert_eq!(checked, 11);
}

#[test]
fn layers_report_their_gradients_last_first() {
    let mut chain = digits();
    let (input, labels) = shard_of(&[4, 1, 8, 8], 0);
    let (expected, loss) = gradients(&mut digits(), input.clone(), &labels, &training(0, 0));
    let output = chain.forward_shard(input, &training(0, 0)).unwrap();
    let gradient = Activation::from_host(output.shape(), loss.gradient);
    let arena = arena(&chain);
    let tensors: Vec<_> = (0..chain.len())
        .map(|index| chain.tensors_of(index))
        .collect();
    let mut arena_values = vec![0.0; arena.len()];
    let mut order = Vec::new();
    chain
        .backward_each(
            Shard(0),
            gradient,
            &mut arena_values,
            arena.ranges(),
            false,
            |index, values| {
                for tensor in tensors[index].clone() {
                    let range = arena.range(tensor);
                    assert_eq!(values[range.clone()], expected[range]);
                }
                order.push(index);
            },
        )
        .unwrap();
    assert_eq!(order, [2, 1, 0]);
}

#[test]
fn duplicate_names_and_empty_chains_are_refused() {
    assert!(Chain::new(Vec::new()).is_err());
    let twice = digits().layers.into_iter().chain(digits().layers).collect();
    assert!(matches!(Chain::new(twice), Err(EngineError::Model { .. })));
}

#[test]
fn the_engine_of_a_chain_is_named_once() {
    assert_eq!(digits().engine(), crate::engine_name());
}
