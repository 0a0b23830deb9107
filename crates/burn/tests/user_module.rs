//! A user's module with Burn's own dropout, through the public interface only. The only test of its
//! process, because Burn has one generator per process.

use ronde_burn::burn;
use ronde_burn::burn::module::Module;
use ronde_burn::burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use ronde_burn::burn::tensor::Tensor;
use ronde_burn::{BurnLayer, seed_engine, training_device};
use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};
use ronde_engine::{Activation, ForwardContext, Layer, LayerExt, Mode};

#[derive(Module, Debug)]
struct DropoutModule {
    linear: Linear,
    dropout: Dropout,
}

fn layer() -> Box<dyn Layer> {
    seed_engine(&SeedTree::new(11));
    let module = DropoutModule {
        linear: LinearConfig::new(4, 40).init(&training_device()),
        dropout: DropoutConfig::new(0.5).init(),
    };
    Box::new(BurnLayer::new(
        module,
        |module: &DropoutModule, x: Tensor<2>, _: &ForwardContext| {
            module.dropout.forward(module.linear.forward(x))
        },
    ))
}

fn state(layer: &dyn Layer) -> Vec<f32> {
    let arena = Arena::new(layer.layout().tensors.iter().map(TensorEntry::elements));
    let mut state = vec![0.0; arena.len()];
    layer.save_state(&mut state, arena.ranges());
    state
}

fn output(layer: &mut dyn Layer, step: u64, shard: u32, number: u32) -> Vec<f32> {
    let context = ForwardContext {
        seeds: SeedTree::new(42),
        step: Step(step),
        shard: Shard(shard),
        layer: number,
        mode: Mode::Train,
    };
    let input = Activation::from_host(&[2, 4], vec![0.5; 8]);
    let output = layer.forward_shard(input, &context);
    output.expect("the input fits").into_host()
}

#[test]
fn initial_weights_and_dropout_do_not_depend_on_earlier_draws() {
    let mut first = layer();
    let before = state(&*first);
    let masked = output(&mut *first, 3, 2, 1);
    let zeros = masked.iter().filter(|&&x| x == 0.0).count();
    assert!((20..60).contains(&zeros), "{zeros} of 80 dropped");
    for (step, shard, number) in [(4, 2, 1), (3, 3, 1), (3, 2, 0)] {
        assert_ne!(output(&mut *first, step, shard, number), masked);
    }
    let mut second = layer();
    assert_eq!(state(&*second), before);
    assert_eq!(output(&mut *second, 3, 2, 1), masked);
    assert_eq!(output(&mut *first, 3, 2, 1), masked);
}
