//! [`Dense`]: a layer of a perceptron as a stage of its own, without the engine's graph.
//!
//! The same products in the same order as `ops::linear` and `ops::relu`, so the same bits; but the
//! gradient of the weights is written where it is sent from, and nothing is copied between.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_kernels::{Matrix, add_rows, multiply, rectified, rectified_noting, shut};

use crate::flight::Flight;
use crate::initial::{Initial, fill};
use crate::{Activation, EngineError, ForwardContext, Mode, Stage, StageCost};

/// `max(x * weight + bias, 0)`, or without the rectifier; samples of any shape are seen as rows.
pub(super) struct Dense {
    layout: StateLayout,
    sample: Vec<usize>,
    /// Elements of a sample, and of an output.
    sizes: [usize; 2],
    is_rectified: bool,
    values: Arc<Values>,
    flight: Flight<Kept>,
}

#[derive(Clone)]
struct Values {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// What backward of a shard needs.
struct Kept {
    values: Arc<Values>,
    input: Activation,
    /// Where the rectifier was open; empty where there is none.
    open: Vec<u8>,
}

impl Dense {
    /// A layer with initial weights by its name, for samples of a shape. The first layer of a model
    /// gives no gradient of its input.
    pub(super) fn new(
        name: &str,
        sample: &[usize],
        width: usize,
        is_rectified: bool,
        is_first: bool,
        seeds: &SeedTree,
    ) -> Self {
        let features = sample.iter().product();
        let tensors = [("weight", &[features, width][..]), ("bias", &[width])];
        let tensors = tensors.map(|(tensor, shape)| {
            TensorEntry::f32(format!("{name}.{tensor}"), shape, Role::Parameter)
        });
        let mut values = Values {
            weight: vec![0.0; features * width],
            bias: vec![0.0; width],
        };
        fill(&tensors[0], Initial::Rectifier, seeds, &mut values.weight);
        fill(&tensors[1], Initial::Rectifier, seeds, &mut values.bias);
        Self {
            layout: StateLayout {
                tensors: tensors.to_vec(),
            },
            sample: sample.to_vec(),
            sizes: [features, width],
            is_rectified,
            values: Arc::new(values),
            flight: Flight::new(name, !is_first),
        }
    }
}

impl Stage for Dense {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        // Copied first where a shard in flight holds the old ones.
        let values = Arc::make_mut(&mut self.values);
        values.weight.copy_from_slice(&state[ranges[0].clone()]);
        values.bias.copy_from_slice(&state[ranges[1].clone()]);
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        state[ranges[0].clone()].copy_from_slice(&self.values.weight);
        state[ranges[1].clone()].copy_from_slice(&self.values.bias);
    }

    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        let ([features, width], rows) = (self.sizes, input.samples());
        self.flight.check_samples(input.shape(), &self.sample)?;
        let mut output: Vec<f32> = Vec::with_capacity(rows * width);
        for _ in 0..rows {
            output.extend_from_slice(&self.values.bias);
        }
        let left = Matrix::new(input.as_slice(), rows, features);
        let right = Matrix::new(&self.values.weight, features, width);
        multiply(left, right, &mut output, true);
        if context.mode == Mode::Train {
            let mut open = Vec::new();
            if self.is_rectified {
                open = vec![0; output.len()];
                rectified_noting(&mut output, &mut open);
            }
            let kept = Kept {
                values: self.values.clone(),
                input,
                open,
            };
            self.flight.begin(context.shard, kept);
        } else if self.is_rectified {
            rectified(&mut output);
        }
        Ok(Activation::from_host(&[rows, width], output))
    }

    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let kept = self.flight.end(shard, needs_input_gradient)?;
        let ([features, width], rows) = (self.sizes, kept.input.samples());
        self.flight
            .check_gradient(grad_output.shape(), &[rows, width])?;
        let mut gradient = grad_output.into_host();
        if self.is_rectified {
            shut(&mut gradient, &kept.open);
        }
        let of_output = Matrix::new(&gradient, rows, width);
        let input = Matrix::new(kept.input.as_slice(), rows, features);
        let to = &mut gradients[ranges[0].clone()];
        multiply(input.transposed(), of_output, to, false);
        let sum = &mut gradients[ranges[1].clone()];
        sum.fill(0.0);
        add_rows(&gradient, sum);
        Ok(needs_input_gradient.then(|| {
            let weight = Matrix::new(&kept.values.weight, features, width);
            let mut found = vec![0.0; rows * features];
            multiply(of_output, weight.transposed(), &mut found, false);
            Activation::from_host(kept.input.shape(), found)
        }))
    }

    fn cost(&self, input_shape: &[usize]) -> StageCost {
        let [features, width] = self.sizes;
        let samples = input_shape.first().copied().unwrap_or(0);
        StageCost {
            output_shape: vec![samples, width],
            kept_floats: samples * (features + width),
        }
    }

    fn discard(&mut self) {
        self.flight.clear();
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Tensor;

    use super::*;
    use crate::ops::{linear, relu};
    use crate::testing::{arena, hashed, training};
    use crate::{BurnStage, training_device};

    /// Output, gradients and input gradient of one shard of some samples.
    fn outcome(stage: &mut dyn Stage, samples: usize) -> [Vec<f32>; 3] {
        let arena = arena(stage);
        let shape = [samples, 3, 5];
        let input = Activation::from_host(&shape, hashed(1, samples * 15));
        let context = training(0, 2);
        let output = stage.forward(input, &context).unwrap();
        let given = Activation::from_host(output.shape(), hashed(2, output.as_slice().len()));
        let mut gradients = vec![f32::NAN; arena.len()];
        let back = stage.backward(context.shard, given, &mut gradients, arena.ranges(), true);
        let back = back.unwrap().unwrap();
        assert_eq!(back.shape(), shape);
        let found = arena
            .ranges()
            .iter()
            .flat_map(|range| gradients[range.clone()].to_vec());
        [output.into_host(), found.collect(), back.into_host()]
    }

    #[test]
    fn it_has_the_bits_of_the_operations() {
        let seeds = SeedTree::new(3);
        for is_rectified in [false, true] {
            let mut dense = Dense::new("layer", &[3, 5], 7, is_rectified, false, &seeds);
            let module = LinearConfig::new(15, 7).init(&training_device());
            let run = move |layer: &Linear, x: Tensor<3>, _: &ForwardContext| {
                let samples = x.dims()[0];
                let y = linear(layer, x.reshape([samples, 15]));
                if is_rectified { relu(y) } else { y }
            };
            let mut graph = BurnStage::new(module, run)
                .named("layer")
                .with_initial_weights_from_seed(&seeds);
            assert_eq!(dense.layout(), graph.layout());
            assert_eq!(outcome(&mut dense, 4), outcome(&mut graph, 4));
            let evaluated = |stage: &mut dyn Stage| {
                let input = Activation::from_host(&[2, 3, 5], hashed(4, 30));
                let output = stage.forward(input, &ForwardContext::evaluate());
                output.unwrap().into_host()
            };
            assert_eq!(evaluated(&mut dense), evaluated(&mut graph));
            let [output, gradients, back] = outcome(&mut dense, 0);
            assert!(output.is_empty() && back.is_empty());
            assert_eq!(gradients, vec![0.0; 15 * 7 + 7]);
        }
    }

    #[test]
    fn shards_in_flight_keep_their_weights_and_misuse_is_told() {
        let mut stage = Dense::new("layer", &[2], 1, false, true, &SeedTree::new(1));
        let arena = arena(&stage);
        let load = |stage: &mut Dense, weight: f32| {
            let mut state = vec![0.0; arena.len()];
            state[arena.range(0)].fill(weight);
            stage.load(&state, arena.ranges());
        };
        stage.flight.gives_input_gradient = true;
        load(&mut stage, 2.0);
        let input = || Activation::from_host(&[1, 2], vec![1.0, 3.0]);
        let context = training(0, 0);
        let output = stage.forward(input(), &context).unwrap();
        assert_eq!(output.as_slice(), [8.0]);
        load(&mut stage, 5.0);
        let mut gradients = vec![0.0; arena.len()];
        let mut back = |stage: &mut Dense, shape: &[usize]| {
            let given = Activation::from_host(shape, vec![1.0; shape.iter().product()]);
            stage.backward(context.shard, given, &mut gradients, arena.ranges(), true)
        };
        let found = back(&mut stage, &[1, 1]).unwrap().unwrap();
        assert_eq!(found.as_slice(), [2.0, 2.0]);
        let again = back(&mut stage, &[1, 1]).unwrap_err();
        assert!(matches!(again, EngineError::NotInFlight { .. }));
        stage.forward(input(), &context).unwrap();
        let shape = back(&mut stage, &[2, 1]).unwrap_err();
        assert!(matches!(shape, EngineError::Shape { .. }));
        stage.flight.gives_input_gradient = false;
        let first = back(&mut stage, &[1, 1]).unwrap_err();
        assert!(matches!(first, EngineError::NoInputGradient { .. }));
        let wrong = Activation::from_host(&[1, 3], vec![0.0; 3]);
        assert!(stage.forward(wrong, &context).is_err());
    }
}
