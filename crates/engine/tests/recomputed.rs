//! A program's own layer gets its input again as it was, whatever the layer before keeps.

use std::ops::Range;

use ronde_core::layout::StateLayout;
use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};
use ronde_engine::*;

/// Returns its input, reads it on the host, and accepts every format.
struct Reader(StateLayout);

impl Layer for Reader {
    fn layout(&self) -> &StateLayout {
        &self.0
    }

    fn load(&mut self, _: &[f32], _: &[Range<usize>]) {}

    fn save(&self, _: &mut [f32], _: &[Range<usize>]) {}

    fn forward(
        &mut self,
        input: Activation,
        _: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        Ok(Activation::from_host(
            input.shape(),
            input.as_slice().to_vec(),
        ))
    }

    fn backward(
        &mut self,
        _: Shard,
        grad_output: Activation,
        _: &mut [f32],
        _: &[Range<usize>],
        _: bool,
    ) -> Result<Option<Activation>, EngineError> {
        Ok(Some(grad_output))
    }

    fn backward_input(
        &mut self,
        _: Shard,
        grad_output: Activation,
        _: bool,
    ) -> Result<Option<Activation>, EngineError> {
        Ok(Some(grad_output))
    }

    fn backward_weights(
        &mut self,
        _: Shard,
        _: &mut [f32],
        _: &[Range<usize>],
    ) -> Result<(), EngineError> {
        Ok(())
    }

    fn set_precision(&mut self, _: Precision) -> Result<(), EngineError> {
        Ok(())
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        LayerCost {
            output_shape: input_shape.to_vec(),
            kept_floats: 0,
        }
    }
}

/// A linear layer, with a rectifier that keeps the output in 2 bytes if there is one.
fn linear(name: &str, inputs: usize, is_rectified: bool, seeds: &SeedTree) -> Box<dyn Layer> {
    let mut layer = GraphBuilder::new(name, &[inputs]);
    let x = layer.linear("linear", layer.input(), 16, true);
    if is_rectified {
        layer.relu(x);
    }
    Box::new(GraphLayer::new(layer.finish().expect("a layer"), seeds))
}

#[test]
fn a_layer_after_packed_values_is_recomputed() {
    let seeds = SeedTree::new(3);
    let layers = vec![
        linear("first", 4, true, &seeds),
        Box::new(Reader(StateLayout::default())),
        linear("last", 16, false, &seeds),
    ];
    let chain = Chain::new(layers).expect("a model");
    let chain = chain.with_precision(Precision::Bf16).expect("bf16");
    let mut chain = chain
        .recomputing(&ronde_engine::Recomputation::All)
        .unwrap();
    let context = ForwardContext {
        seeds,
        step: Step(0),
        shard: Shard(0),
        layer: 0,
        mode: Mode::Train,
    };
    let input = Activation::from_host(&[2, 4], vec![0.5; 8]);
    let output = chain.forward(input, &context).expect("an output");
    let arena = ronde_core::layout::Arena::new(
        chain
            .layout()
            .tensors
            .iter()
            .map(ronde_core::layout::TensorEntry::elements),
    );
    let mut gradients = vec![0.0; arena.len()];
    let found = chain.backward(Shard(0), output, &mut gradients, arena.ranges(), true);
    assert!(found.expect("gradients").is_some());
    assert!(gradients.iter().all(|gradient| gradient.is_finite()));
    assert!(gradients.iter().any(|gradient| *gradient != 0.0));
}
