//! A program's own layer gets its input again as it was, whatever the layer before keeps.

use std::ops::Range;

use ronde_core::layout::StateLayout;
use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};
use ronde_engine::*;

/// Returns its input, reads it on the host, and accepts every format.
struct Reader(LayerFacts);

impl Reader {
    fn new() -> Self {
        let facts = LayerFacts::new(StateLayout::default(), "reader".to_owned());
        Self(LayerFacts {
            only_f32: None,
            ..facts
        })
    }
}

impl Layer for Reader {
    fn facts(&self) -> &LayerFacts {
        &self.0
    }

    fn set(&mut self, _: LayerSetting<'_>) {}

    fn state(&mut self, _: StateChange<'_>) {}

    fn save(&self, _: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        let _ = (state, ranges);
        true
    }

    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        _: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let copied = |shard: ShardInput| {
            let input = shard.input;
            Activation::from_host(input.shape(), input.as_slice().to_vec())
        };
        Ok(shards.into_iter().map(copied).collect())
    }

    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        _: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let _ = pass;
        Ok(shards
            .into_iter()
            .map(|given| Some(given.grad_output))
            .collect())
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
        Box::new(Reader::new()),
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
    let output = chain.forward_shard(input, &context).expect("an output");
    let arena = ronde_core::layout::Arena::new(
        chain
            .layout()
            .tensors
            .iter()
            .map(ronde_core::layout::TensorEntry::elements),
    );
    let mut gradients = vec![0.0; arena.len()];
    let found = chain.backward_shard(Shard(0), output, &mut gradients, arena.ranges(), true);
    assert!(found.expect("gradients").is_some());
    assert!(gradients.iter().all(|gradient| gradient.is_finite()));
    assert!(gradients.iter().any(|gradient| *gradient != 0.0));
}
