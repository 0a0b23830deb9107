//! [`Dense`]: a linear layer of a perceptron, without the engine's graph.
//!
//! Computes the same products in the same order as `ops::linear` and `ops::relu`, hence the same
//! bits; but the gradient of the weights is written directly into the buffer that is sent, the
//! weights are read directly from the state, and nothing is copied.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_core::layout::{Role, StateLayout, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_kernels::{Matrix, add_rows, mask_gradient, multiply, rectified, rectified_with_mask};

use crate::initial::{Initial, fill};
use crate::ops::memory::{give, take};
use crate::pending_shards::PendingShards;
use crate::{Activation, EngineError, ForwardContext, Layer, LayerCost, Mode};

/// `max(x * weight + bias, 0)` followed by dropout, or without the rectifier. Samples of any shape
/// are treated as rows.
pub(super) struct Dense {
    layout: StateLayout,
    sample: Vec<usize>,
    /// The numbers of elements of a sample and of an output.
    sizes: [usize; 2],
    is_rectified: bool,
    dropout: f64,
    values: DenseWeights,
    pending: PendingShards<SavedDense>,
}

/// The ranges of weight and bias, in memory of the layer or in the model's state.
#[derive(Clone, Default)]
struct DenseWeights {
    state: Arc<Vec<f32>>,
    weight: Range<usize>,
    bias: Range<usize>,
}

impl DenseWeights {
    fn weight(&self) -> &[f32] {
        &self.state[self.weight.clone()]
    }

    fn bias(&self) -> &[f32] {
        &self.state[self.bias.clone()]
    }
}

/// The values that backward of a shard needs.
struct SavedDense {
    values: DenseWeights,
    input: Activation,
    /// Whether each output of the rectifier is positive; empty without a rectifier.
    open: Vec<u8>,
    /// The factors of the dropout; empty without one.
    mask: Vec<f32>,
}

impl Dense {
    /// Creates a layer without a rectifier for samples of a shape, with initial weights keyed by
    /// its name.
    pub(super) fn new(
        name: &str,
        sample: &[usize],
        width: usize,
        initial: Initial,
        seeds: &SeedTree,
    ) -> Self {
        let features = sample.iter().product();
        let tensors = [("weight", &[features, width][..]), ("bias", &[width])];
        let tensors = tensors.map(|(tensor, shape)| {
            TensorEntry::f32(format!("{name}.{tensor}"), shape, Role::Parameter)
        });
        let mut state = vec![0.0; (features + 1) * width];
        let (weight, bias) = state.split_at_mut(features * width);
        fill(&tensors[0], initial, seeds, weight);
        fill(&tensors[1], initial, seeds, bias);
        Self {
            layout: StateLayout {
                tensors: tensors.to_vec(),
            },
            sample: sample.to_vec(),
            sizes: [features, width],
            is_rectified: false,
            dropout: 0.0,
            values: DenseWeights {
                state: Arc::new(state),
                weight: 0..features * width,
                bias: features * width..(features + 1) * width,
            },
            pending: PendingShards::new(name, true),
        }
    }

    /// Adds a rectifier, followed by dropout in training.
    pub(super) fn rectified(mut self, dropout: f64) -> Self {
        (self.is_rectified, self.dropout) = (true, dropout);
        self
    }

    /// Declares this the first layer of a model, whose input gradient is never requested.
    pub(super) fn without_input_gradient(mut self) -> Self {
        self.pending.gives_input_gradient = false;
        self
    }
}

impl Layer for Dense {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        let own = [0, 1].map(|tensor: usize| &state[ranges[tensor].clone()]);
        let (at, own) = (own[0].len(), own.concat());
        let ranges = [0..at, at..own.len()];
        self.load_shared(&Arc::new(own), &ranges);
    }

    fn load_shared(&mut self, state: &Arc<Vec<f32>>, ranges: &[Range<usize>]) {
        let [weight, bias] = [0, 1].map(|tensor: usize| ranges[tensor].clone());
        let expected = [self.sizes[0] * self.sizes[1], self.sizes[1]];
        assert_eq!([weight.len(), bias.len()], expected, "lengths of a layer");
        self.values = DenseWeights {
            state: state.clone(),
            weight,
            bias,
        };
    }

    fn release_state(&mut self) {
        self.values = DenseWeights::default();
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        state[ranges[0].clone()].copy_from_slice(self.values.weight());
        state[ranges[1].clone()].copy_from_slice(self.values.bias());
    }

    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        let ([features, width], rows) = (self.sizes, input.samples());
        self.pending.check_samples(input.shape(), &self.sample)?;
        let mut output = take(rows * width);
        for row in output.chunks_exact_mut(width.max(1)) {
            row.copy_from_slice(self.values.bias());
        }
        let left = Matrix::new(input.as_slice(), rows, features);
        let right = Matrix::new(self.values.weight(), features, width);
        multiply(left, right, &mut output, true);
        if context.mode == Mode::Train {
            let mut open = Vec::new();
            if self.is_rectified {
                open = vec![0; output.len()];
                rectified_with_mask(&mut output, &mut open);
            }
            let mask = context.dropout_factors(output.len(), self.dropout, 0);
            let mask = mask.unwrap_or_default();
            output.iter_mut().zip(&mask).for_each(|(y, m)| *y *= m);
            let kept = SavedDense {
                values: self.values.clone(),
                input,
                open,
                mask,
            };
            self.pending.begin(context.shard, kept);
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
        let kept = self.pending.end(shard, needs_input_gradient)?;
        let ([features, width], rows) = (self.sizes, kept.input.samples());
        self.pending
            .check_gradient(grad_output.shape(), &[rows, width])?;
        let mut gradient = grad_output.into_host();
        gradient
            .iter_mut()
            .zip(&kept.mask)
            .for_each(|(dy, m)| *dy *= m);
        if self.is_rectified {
            mask_gradient(&mut gradient, &kept.open);
        }
        let of_output = Matrix::new(&gradient, rows, width);
        let input = Matrix::new(kept.input.as_slice(), rows, features);
        let to = &mut gradients[ranges[0].clone()];
        multiply(input.transposed(), of_output, to, false);
        let sum = &mut gradients[ranges[1].clone()];
        sum.fill(0.0);
        add_rows(&gradient, sum);
        let of_input = needs_input_gradient.then(|| {
            let weight = Matrix::new(kept.values.weight(), features, width);
            let mut found = take(rows * features);
            multiply(of_output, weight.transposed(), &mut found, false);
            Activation::from_host(kept.input.shape(), found)
        });
        give(gradient);
        Ok(of_input)
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        let [features, width] = self.sizes;
        let samples = input_shape.first().copied().unwrap_or(0);
        LayerCost {
            output_shape: vec![samples, width],
            kept_floats: samples * (features + width * (1 + usize::from(self.dropout > 0.0))),
        }
    }

    fn discard(&mut self) {
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Tensor;

    use super::*;
    use crate::ops::{linear, relu};
    use crate::testing::{arena, hashed, training};
    use crate::{BurnLayer, training_device};

    /// Returns output, gradients and input gradient of one shard of some samples, in a step with
    /// dropout.
    fn outcome(layer: &mut dyn Layer, samples: usize) -> [Vec<f32>; 3] {
        let arena = arena(layer);
        let shape = [samples, 3, 5];
        let input = Activation::from_host(&shape, hashed(1, samples * 15));
        let context = training(0, 2);
        let output = layer.forward(input, &context).unwrap();
        let given = Activation::from_host(output.shape(), hashed(2, output.as_slice().len()));
        let mut gradients = vec![f32::NAN; arena.len()];
        let back = layer.backward(context.shard, given, &mut gradients, arena.ranges(), true);
        let back = back.unwrap().unwrap();
        assert_eq!(back.shape(), shape);
        let found = arena
            .ranges()
            .iter()
            .flat_map(|range| gradients[range.clone()].to_vec());
        [output.into_host(), found.collect(), back.into_host()]
    }

    #[test]
    fn it_has_the_bits_of_the_separate_operations() {
        let seeds = SeedTree::new(3);
        for (is_rectified, dropout) in [(false, 0.0), (true, 0.0), (true, 0.25)] {
            let mut dense = Dense::new("layer", &[3, 5], 7, Initial::Rectifier, &seeds);
            if is_rectified {
                dense = dense.rectified(dropout);
            }
            let module = LinearConfig::new(15, 7).init(&training_device());
            let run = move |layer: &Linear, x: Tensor<3>, context: &ForwardContext| {
                let samples = x.dims()[0];
                let y = linear(layer, x.reshape([samples, 15]));
                if is_rectified {
                    context.dropout(relu(y), dropout, 0)
                } else {
                    y
                }
            };
            let mut graph = BurnLayer::new(module, run)
                .named("layer")
                .with_initial_weights_from_seed(&seeds);
            assert_eq!(dense.layout(), graph.layout());
            assert_eq!(outcome(&mut dense, 4), outcome(&mut graph, 4));
            let evaluated = |layer: &mut dyn Layer| {
                let input = Activation::from_host(&[2, 3, 5], hashed(4, 30));
                let output = layer.forward(input, &ForwardContext::evaluate());
                output.unwrap().into_host()
            };
            assert_eq!(evaluated(&mut dense), evaluated(&mut graph));
            let [output, gradients, back] = outcome(&mut dense, 0);
            assert!(output.is_empty() && back.is_empty());
            assert_eq!(gradients, vec![0.0; 15 * 7 + 7]);
        }
    }

    #[test]
    fn pending_shards_keep_their_weights_and_misuse_is_reported() {
        let mut layer = Dense::new("layer", &[2], 1, Initial::Rectifier, &SeedTree::new(1));
        let arena = arena(&layer);
        let load = |layer: &mut Dense, weight: f32| {
            let mut state = vec![0.0; arena.len()];
            state[arena.range(0)].fill(weight);
            layer.load(&state, arena.ranges());
        };
        load(&mut layer, 2.0);
        let input = || Activation::from_host(&[1, 2], vec![1.0, 3.0]);
        let context = training(0, 0);
        let output = layer.forward(input(), &context).unwrap();
        assert_eq!(output.as_slice(), [8.0]);
        load(&mut layer, 5.0);
        let mut gradients = vec![0.0; arena.len()];
        let mut back = |layer: &mut Dense, shape: &[usize]| {
            let given = Activation::from_host(shape, vec![1.0; shape.iter().product()]);
            layer.backward(context.shard, given, &mut gradients, arena.ranges(), true)
        };
        let found = back(&mut layer, &[1, 1]).unwrap().unwrap();
        assert_eq!(found.as_slice(), [2.0, 2.0]);
        let again = back(&mut layer, &[1, 1]).unwrap_err();
        assert!(matches!(again, EngineError::NotInFlight { .. }));
        layer.forward(input(), &context).unwrap();
        let shape = back(&mut layer, &[2, 1]).unwrap_err();
        assert!(matches!(shape, EngineError::Shape { .. }));
        let mut layer = layer.without_input_gradient();
        let first = back(&mut layer, &[1, 1]).unwrap_err();
        assert!(matches!(first, EngineError::NoInputGradient { .. }));
        let wrong = Activation::from_host(&[1, 3], vec![0.0; 3]);
        assert!(layer.forward(wrong, &context).is_err());
    }
    #[test]
    fn a_shared_state_is_read_in_place_until_it_is_released() {
        let mut layer = Dense::new("layer", &[2], 1, Initial::Rectifier, &SeedTree::new(1));
        let mut state = Arc::new(vec![9.0, 1.0, 2.0, 9.0, 3.0]);
        let ranges = [1..3, 4..5];
        let output = |layer: &mut Dense, context: &ForwardContext| {
            let input = Activation::from_host(&[1, 2], vec![1.0, 10.0]);
            layer.forward(input, context).unwrap().into_host()
        };
        layer.load_shared(&state, &ranges);
        assert_eq!(output(&mut layer, &training(0, 0)), [24.0]);
        // The pending shard holds the old values, so they are not changed in place.
        layer.release_state();
        assert!(Arc::get_mut(&mut state).is_none());
        Arc::make_mut(&mut state)[1] = 5.0;
        layer.load_shared(&state, &ranges);
        assert_eq!(output(&mut layer, &ForwardContext::evaluate()), [28.0]);
        let given = Activation::from_host(&[1, 1], vec![1.0]);
        let mut gradients = [0.0; 5];
        let back = layer.backward(Shard(0), given, &mut gradients, &ranges, true);
        assert_eq!(back.unwrap().unwrap().into_host(), [1.0, 2.0]);
        layer.release_state();
        assert!(Arc::get_mut(&mut state).is_some());
        let mut saved = [0.0; 5];
        layer.load(&state, &ranges);
        layer.save(&mut saved, &ranges);
        assert_eq!(saved, [0.0, 5.0, 2.0, 0.0, 3.0]);
    }
}
