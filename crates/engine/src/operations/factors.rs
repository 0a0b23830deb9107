//! [`FactorScores`]: scores of users and items by products of their factors.

use super::only;
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::kernel::{FactorGradientsKernel, FactorScoresKernel};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{
    GraphBuilder, GraphOperation, GraphValue, KeptValues, TensorGradients, Tensors,
};
use crate::initial::Initial;

/// The score of a user and an item: the product of their factors, plus a bias of each and of all.
/// Takes pairs of numbers `[N, 2]`, returns `[N, 1]`. Gradients are dense.
pub(crate) struct FactorScores {
    /// The numbers of users and items.
    rows: [usize; 2],
    factors: usize,
}

/// Checks pairs of the numbers of a user and an item, for a model with a number of rows for each.
pub(crate) fn check_pairs(pairs: &[f32], rows: [usize; 2]) -> Result<(), EngineError> {
    for (sample, pair) in pairs.chunks_exact(2).enumerate() {
        for ((what, number), rows) in ["user", "item"].into_iter().zip(pair).zip(rows) {
            if !(number.fract() == 0.0 && (0.0..rows as f32).contains(number)) {
                return Err(EngineError::RowNumber {
                    what,
                    sample,
                    number: number.to_string(),
                    rows,
                });
            }
        }
    }
    Ok(())
}

impl GraphOperation for FactorScores {
    type Saved = Activation;

    fn computation(&self) -> Computation {
        Computation::FactorScores
    }

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn reads_numbers(&self) -> bool {
        true
    }

    fn selects_rows(&self) -> bool {
        true
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        _context: &ForwardContext,
    ) -> Result<(Activation, Activation), EngineError> {
        let pairs = only(inputs);
        check_pairs(pairs.clone().on_host().as_slice(), self.rows)?;
        let mut y = tensors.unwritten(&[pairs.samples(), 1]);
        let (device, tables) = (tensors.device(), [0, 1, 2, 3, 4].map(|n| tensors.get(n)));
        let to = y.values_mut(device);
        let [users, items, user_bias, item_bias, bias] = tables;
        FactorScoresKernel {
            factors: self.factors,
            pairs: pairs.values(),
            users,
            items,
            user_bias,
            item_bias,
            bias,
            y: to,
        }
        .run_on(device);
        Ok((y, pairs))
    }

    /// Numbers of users and items have no gradient.
    fn backward_input(
        &self,
        _saved: &mut Activation,
        _gradient: Activation,
        _tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        vec![None]
    }

    fn backward_weights(
        &self,
        saved: &Activation,
        gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let (pairs, dy) = (saved.values(), gradient.values());
        let device = tensors.device();
        let [of_users, of_items, of_user_bias, of_item_bias, of_bias] = to.several(0);
        FactorGradientsKernel {
            factors: self.factors,
            pairs,
            users: tensors.get(0),
            items: tensors.get(1),
            dy,
            of_users,
            of_items,
            of_user_bias,
            of_item_bias,
            of_bias,
        }
        .run_on(device);
        Ok(())
    }
}

impl GraphBuilder {
    /// Adds the score of a user and an item: `bias + user_bias[u] + item_bias[i] + user[u] . item[i]`
    /// with `factors` factors of each. `x` is `[2]`: the numbers of a user and an item, below `users`
    /// and `items`; the output is `[1]`. Source: Koren, Bell, Volinsky, IEEE Computer 42(8), 2009.
    pub fn factor_scores(
        &mut self,
        name: &str,
        x: GraphValue,
        [users, items]: [usize; 2],
        factors: usize,
    ) -> GraphValue {
        if self.shape(x) != [2] {
            let shape = self.shape(x).to_vec();
            self.fail(format!(
                "{name}: invalid input {shape:?}: expected [2], a user and an item"
            ));
            return x;
        }
        let initial = self.initial();
        let zero = Initial::Constant(0.0);
        let tensors = vec![
            self.tensor(name, "user", &[users, factors], initial),
            self.tensor(name, "item", &[items, factors], initial),
            self.tensor(name, "user_bias", &[users], zero),
            self.tensor(name, "item_bias", &[items], zero),
            self.tensor(name, "bias", &[1], zero),
        ];
        let operation = FactorScores {
            rows: [users, items],
            factors,
        };
        self.add_operation(operation, &[x], vec![1], tensors)
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::seed::SeedTree;

    use super::*;
    use crate::layer::{Layer, LayerExt};
    use crate::testing::{arena, hashed, training};

    fn layer() -> Box<dyn Layer> {
        let mut builder = GraphBuilder::new("layer", &[2]);
        builder.factor_scores("", builder.input(), [3, 2], 4);
        builder.build(&SeedTree::new(1)).unwrap()
    }

    fn pairs(values: &[f32]) -> Activation {
        Activation::from_host(&[values.len() / 2, 2], values.to_vec())
    }

    #[test]
    fn gradients_are_the_slopes_of_the_scores() {
        let mut layer = layer();
        let arena = arena(&*layer);
        let values = hashed(3, arena.len());
        let weights = [0.5, -2.0, 1.5];
        let x = || pairs(&[0.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
        let context = training(0, 0);
        let mut total = |values: &[f32]| -> f64 {
            layer.load(values, arena.ranges());
            let y = layer.forward_shard(x(), &context).unwrap();
            let products = y.as_slice().iter().zip(weights);
            products.map(|(y, w)| f64::from(*y) * f64::from(w)).sum()
        };
        let mut slope = |at: usize| {
            let moved = [0.125, -0.125].map(|by| {
                let mut values = values.clone();
                values[at] += by;
                total(&values)
            });
            (moved[0] - moved[1]) / 0.25
        };
        let places = arena.ranges().iter().flat_map(Clone::clone);
        let slopes: Vec<(usize, f64)> = places.map(|at| (at, slope(at))).collect();
        total(&values);
        let mut gradient = vec![f32::NAN; arena.len()];
        let given = Activation::from_host(&[3, 1], weights.to_vec());
        let shard = context.shard;
        let none = layer.backward_shard(shard, given, &mut gradient, arena.ranges(), false);
        assert!(none.unwrap().is_none());
        for (at, slope) in slopes {
            let found = f64::from(gradient[at]);
            assert!((found - slope).abs() < 1e-5, "{found} for {slope}");
        }
    }

    #[test]
    fn numbers_that_are_no_row_are_refused() {
        for (bad, what) in [
            ([3.0, 0.0], "user `3`"),
            ([0.0, 2.0], "item `2`"),
            ([-1.0, 0.0], "user `-1`"),
            ([0.5, 0.0], "user `0.5`"),
            ([0.0, f32::NAN], "item `NaN`"),
        ] {
            let error = layer()
                .forward_shard(pairs(&bad), &training(0, 0))
                .unwrap_err();
            assert!(
                error.is_user_error() && error.to_string().contains(what),
                "{error}"
            );
        }
    }
}
