//! Layers made of modules as a user might write them.

use burn::module::Param;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use ronde_core::Step;

use super::*;
use crate::device::{seed_engine, training_device};
use crate::testing::{arena, bits, samples, state, training};
use ronde_engine::LayerExt;

#[derive(Module, Debug)]
struct UserModule {
    first: Linear,
    bn: BatchNorm,
    dropout: Dropout,
    frozen: Linear,
    unused: Param<Tensor<1>>,
}

fn user_layer(
    momentum: f64,
) -> BurnLayer<UserModule, impl Fn(&UserModule, Tensor<2>, &ForwardContext) -> Tensor<2> + Send, 2, 2>
{
    let device = training_device();
    seed_engine(&SeedTree::new(3));
    let module = UserModule {
        first: LinearConfig::new(3, 4).init(&device),
        bn: BatchNormConfig::new(4)
            .with_momentum(momentum)
            .init(&device),
        dropout: DropoutConfig::new(0.5).init(),
        frozen: LinearConfig::new(4, 2).init(&device).no_grad(),
        unused: Param::from_tensor(Tensor::ones([2], &device)),
    };
    BurnLayer::new(
        module,
        |m: &UserModule, x: Tensor<2>, _: &ForwardContext| {
            m.frozen
                .forward(m.dropout.forward(m.bn.forward(m.first.forward(x))))
        },
    )
    .named("brought")
    .with_initial_weights_from_seed(&SeedTree::new(3))
}

fn run(layer: &mut dyn Layer, rows: usize, shard: u32) -> (Vec<f32>, Vec<f32>) {
    let output = layer
        .forward_shard(samples(&[rows, 3], 5), &training(1, shard))
        .unwrap();
    let shape = output.shape().to_vec();
    let arena = arena(layer);
    let mut gradients = vec![f32::NAN; arena.len()];
    let given = samples(&shape, 6);
    let input = layer
        .backward_shard(Shard(shard), given, &mut gradients, arena.ranges(), true)
        .unwrap()
        .unwrap();
    assert_eq!(input.shape(), [rows, 3]);
    layer
        .forward_shard(samples(&[rows, 3], 5), &training(1, shard))
        .unwrap();
    let again = layer.backward_input(Shard(shard), samples(&shape, 6), true);
    assert_eq!(
        bits(again.unwrap().unwrap().as_slice()),
        bits(input.as_slice())
    );
    let mut apart = vec![f32::NAN; arena.len()];
    layer
        .backward_weights(Shard(shard), &mut apart, arena.ranges())
        .unwrap();
    for range in arena.ranges() {
        assert_eq!(bits(&apart[range.clone()]), bits(&gradients[range.clone()]));
    }
    (gradients, input.into_host())
}

#[test]
fn the_layout_distinguishes_parameters_buffers_and_constants() {
    let _alone = crate::testing::alone();
    let layer = user_layer(0.1);
    let found: Vec<_> = layer
        .layout()
        .tensors
        .iter()
        .map(|t| (t.name.as_str(), t.role, t.shape.clone()))
        .collect();
    let expected = [
        ("brought.first.weight", Role::Parameter, vec![3, 4]),
        ("brought.first.bias", Role::Parameter, vec![4]),
        ("brought.bn.gamma", Role::Parameter, vec![4]),
        ("brought.bn.beta", Role::Parameter, vec![4]),
        ("brought.bn.running_mean", Role::Buffer, vec![4]),
        ("brought.bn.running_var", Role::Buffer, vec![4]),
        ("brought.unused", Role::Parameter, vec![2]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_module_from_a_plain_device_is_trained_as_well() {
    let _alone = crate::testing::alone();
    let module = LinearConfig::new(3, 2).init(&Device::default());
    let mut layer = BurnLayer::new(module, |m: &Linear, x: Tensor<2>, _: &ForwardContext| {
        m.forward(x)
    });
    assert_eq!(layer.layout().of_role(Role::Parameter).count(), 2);
    let (gradients, _) = run(&mut layer, 4, 0);
    assert!(gradients[..6].iter().all(|&x| x != 0.0));
}

#[test]
fn each_shard_returns_its_buffers_and_the_committed_ones_stay() {
    let _alone = crate::testing::alone();
    let mut layer = user_layer(0.25);
    let (before, arena) = state(&layer);
    let (first, _) = run(&mut layer, 6, 0);
    assert_eq!(state(&layer).0, before);
    let (again, _) = run(&mut layer, 6, 0);
    let mean = arena.range(4);
    assert_eq!(bits(&first[mean.clone()]), bits(&again[mean.clone()]));

    // The running mean becomes a quarter of the batch mean of the normalisation's input, which the
    // weights of `first` determine; biases are zero.
    let input = samples(&[6, 3], 5).into_host();
    for channel in 0..4 {
        let outputs = (0..6).map(|row| {
            (0..3)
                .map(|i| input[3 * row + i] * before[4 * i + channel])
                .sum::<f32>()
        });
        let expected = 0.25 * outputs.sum::<f32>() / 6.0;
        assert!((first[mean.start + channel] - expected).abs() < 1e-6);
    }

    let mut committed = before.clone();
    committed[mean.clone()].copy_from_slice(&first[mean.clone()]);
    layer.load(&committed, arena.ranges());
    let (next, _) = run(&mut layer, 6, 0);
    for channel in mean {
        let expected = 0.75 * first[channel] + first[channel];
        assert!(
            (next[channel] - expected).abs() < 1e-6,
            "committed values are the start"
        );
    }
}

#[test]
fn evaluation_uses_committed_statistics_and_changes_nothing() {
    let _alone = crate::testing::alone();
    let mut layer = user_layer(0.25);
    let evaluate = ForwardContext::evaluate();
    let one = layer
        .forward_shard(samples(&[6, 3], 5), &evaluate)
        .unwrap()
        .into_host();
    let _ = layer
        .forward_shard(samples(&[6, 3], 9), &training(0, 0))
        .unwrap();
    let two = layer
        .forward_shard(samples(&[6, 3], 5), &evaluate)
        .unwrap()
        .into_host();
    assert_eq!(bits(&one), bits(&two));
    let (mut values, arena) = state(&layer);
    values[arena.range(4)].fill(3.0);
    layer.load(&values, arena.ranges());
    let three = layer
        .forward_shard(samples(&[6, 3], 5), &evaluate)
        .unwrap()
        .into_host();
    assert_ne!(one, three);
}

#[test]
fn unused_parameters_have_zero_gradients_and_save_gives_what_load_took() {
    let _alone = crate::testing::alone();
    let mut layer = user_layer(0.1);
    let (gradients, _) = run(&mut layer, 5, 2);
    let arena = arena(&layer);
    assert_eq!(gradients[arena.range(6)], [0.0, 0.0]);
    assert!(gradients[arena.range(3)].iter().any(|&x| x != 0.0));
    let given = crate::testing::uniform(arena.len(), 8);
    layer.load(&given, arena.ranges());
    let saved = state(&layer).0;
    for range in arena.ranges() {
        assert_eq!(given[range.clone()], saved[range.clone()]);
    }
}

#[test]
fn empty_shards_give_zeros_and_unchanged_buffers() {
    let _alone = crate::testing::alone();
    let mut layer = user_layer(0.1);
    let (before, arena) = state(&layer);
    let (gradients, input) = run(&mut layer, 0, 0);
    assert!(input.is_empty());
    for (index, tensor) in layer.layout().tensors.iter().enumerate() {
        let range = arena.range(index);
        match tensor.role {
            Role::Buffer => assert_eq!(gradients[range.clone()], before[range]),
            _ => assert!(gradients[range].iter().all(|&x| x == 0.0)),
        }
    }
    let nothing = layer
        .forward_shard(samples(&[0, 3], 0), &ForwardContext::evaluate())
        .unwrap();
    assert_eq!(nothing.shape(), [0, 2]);
    assert_eq!(layer.cost(&[7, 3]).output_shape, [7, 2]);
}

#[test]
fn mistakes_are_reported() {
    let _alone = crate::testing::alone();
    let mut layer = user_layer(0.1).with_sample_shape(&[3]);
    let context = training(0, 1);
    let shape = layer
        .forward_shard(samples(&[2, 4], 0), &context)
        .unwrap_err();
    assert!(
        shape
            .to_string()
            .contains("brought: invalid shape [2, 4] of the input"),
        "{shape}"
    );
    assert!(layer.forward_shard(samples(&[2], 0), &context).is_err());
    let arena = arena(&layer);
    let mut gradients = vec![0.0; arena.len()];
    let mut back = |layer: &mut dyn Layer, shape: &[usize]| {
        layer.backward_shard(
            Shard(1),
            samples(shape, 0),
            &mut gradients,
            arena.ranges(),
            true,
        )
    };
    assert!(matches!(
        back(&mut layer, &[2, 2]),
        Err(EngineError::NotInFlight { .. })
    ));
    layer.forward_shard(samples(&[2, 3], 0), &context).unwrap();
    assert!(matches!(
        back(&mut layer, &[3, 2]),
        Err(EngineError::Shape { .. })
    ));
    layer.forward_shard(samples(&[2, 3], 0), &context).unwrap();
    layer.discard_all();
    assert!(matches!(
        back(&mut layer, &[2, 2]),
        Err(EngineError::NotInFlight { .. })
    ));
    let mut first = layer.without_input_gradient();
    first.forward_shard(samples(&[2, 3], 0), &context).unwrap();
    assert!(matches!(
        back(&mut first, &[2, 2]),
        Err(EngineError::NoInputGradient { .. })
    ));
}

#[test]
fn a_layer_without_parameters_passes_gradients_through() {
    let _alone = crate::testing::alone();
    let double = |_: &Vec<Linear>, x: Tensor<2>, _: &ForwardContext| x.mul_scalar(2.0);
    let mut layer = BurnLayer::new(Vec::<Linear>::new(), double);
    let (gradients, input) = run(&mut layer, 2, 0);
    assert!(gradients.is_empty());
    let expected: Vec<f32> = samples(&[2, 3], 6)
        .as_slice()
        .iter()
        .map(|x| 2.0 * x)
        .collect();
    assert_eq!(input, expected);
}

#[test]
fn the_engine_seed_depends_on_step_shard_and_layer() {
    let _alone = crate::testing::alone();
    let base = training(1, 2).at_layer(3);
    assert_eq!(base.engine_seed(), base.engine_seed());
    for other in [
        training(2, 2).at_layer(3),
        training(1, 3).at_layer(3),
        base.at_layer(4),
    ] {
        assert_ne!(base.engine_seed(), other.engine_seed());
    }
    assert_ne!(
        base.engine_seed(),
        ForwardContext {
            step: Step(9),
            ..base
        }
        .engine_seed()
    );
}
