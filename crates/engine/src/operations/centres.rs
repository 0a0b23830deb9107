//! [`CentreDistances`]: squared distances from the centres of clusters.

use std::sync::Arc;

use ronde_core::Shard;

use super::only;
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::kernel::{CentreGradientsKernel, PointGradientsKernel, SquaredDistancesKernel};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphBuilder, GraphNode, GraphValue, KeptValues, NodeGradient};
use crate::graph::{TensorGradients, Tensors};
use crate::lock_step::{NotSummed, ShardSums};
use crate::loss::nearest;
use crate::shard_map::ShardMap;

/// The squared distance of each sample from each centre.
///
/// The gradient of a centre is divided by its second derivative, which is twice the share of the
/// global batch's samples that are nearest to the centre. Subtracting the result moves the centre
/// to the mean of these samples: the step of Newton's method and of Lloyd's algorithm (Bottou and
/// Bengio, NeurIPS 1995). A centre without samples has no gradient and keeps its position. The
/// numbers of samples are one sum over all shards, in forward.
pub(crate) struct CentreDistances {
    name: String,
    centres: usize,
    width: usize,
    saved: ShardMap<SavedDistances>,
}

/// The values that backward of a shard needs.
struct SavedDistances {
    x: Activation,
    /// The inverse of each centre's second derivative.
    scales: Arc<[f32]>,
}

impl CentreDistances {
    fn distances(&self, x: &Activation, tensors: Tensors<'_>) -> Activation {
        let mut y = tensors.unwritten(&[x.samples(), self.centres]);
        let (device, inputs) = (tensors.device(), [x.values(), tensors.get(0)]);
        let [points, centres] = inputs;
        SquaredDistancesKernel {
            width: self.width,
            points,
            centres,
            to: y.values_mut(device),
        }
        .run_on(device);
        y
    }

    /// Returns the number of samples that are nearest to each centre.
    fn members(&self, distances: &Activation) -> Vec<f64> {
        let mut members = vec![0.0; self.centres];
        let distances = distances.clone().on_host();
        for row in distances.as_slice().chunks_exact(self.centres.max(1)) {
            if let Some(nearest) = nearest(row) {
                members[nearest] += 1.0;
            }
        }
        members
    }
}

/// Returns the inverse of each centre's second derivative, from the numbers of samples.
fn scales(members: &[f64]) -> Arc<[f32]> {
    let samples: f64 = members.iter().sum();
    let scale = |members: &f64| (samples / (2.0 * members.max(1.0))) as f32;
    members.iter().map(scale).collect()
}

impl GraphNode for CentreDistances {
    fn computation(&self) -> Computation {
        Computation::SquaredDistances
    }

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn each_saved(&mut self, shard: Shard, visit: &mut dyn FnMut(&mut Activation)) {
        if let Some(saved) = self.saved.get_mut(&shard) {
            visit(&mut saved.x);
        }
    }

    fn forward(
        &mut self,
        inputs: Vec<Vec<Activation>>,
        tensors: Tensors<'_>,
        contexts: &[ForwardContext],
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let inputs: Vec<Activation> = inputs.into_iter().map(only).collect();
        let distances = inputs.iter().map(|x| self.distances(x, tensors));
        let distances: Vec<Activation> = distances.collect();
        if contexts
            .iter()
            .any(|context| context.mode == Mode::Evaluate)
        {
            return Ok(distances);
        }
        let of_shards = contexts.iter().zip(&distances);
        let members = of_shards.map(|(context, rows)| (context.shard, self.members(rows)));
        let members = sums.sum(self.centres, members.collect());
        let members = members.map_err(|NotSummed| EngineError::NotSummed {
            layer: self.name.clone(),
        })?;
        let scales = scales(&members);
        for (x, context) in inputs.into_iter().zip(contexts) {
            let scales = scales.clone();
            self.saved
                .insert(context.shard, SavedDistances { x, scales });
        }
        Ok(distances)
    }

    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        wanted: &[bool],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError> {
        let of_input = |given: NodeGradient<'_>| {
            let saved = self.saved.get(&given.shard).filter(|_| wanted[0])?;
            let (device, centres) = (given.tensors.device(), given.tensors.get(0));
            let mut to = given.tensors.unwritten(saved.x.shape());
            let (inputs, dy) = ([saved.x.values(), centres], given.gradient.values());
            let [points, centres] = inputs;
            PointGradientsKernel {
                width: self.width,
                points,
                centres,
                dy,
                to: to.values_mut(device),
            }
            .run_on(device);
            Some(to)
        };
        let each = shards.into_iter();
        Ok(each.map(|given| vec![of_input(given)]).collect())
    }

    fn backward_weights(
        &mut self,
        given: &NodeGradient<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let Some(saved) = self.saved.get(&given.shard) else {
            return Ok(());
        };
        let (device, inputs) = (
            given.tensors.device(),
            [saved.x.values(), given.tensors.get(0)],
        );
        let dy = given.gradient.values();
        let [points, centres] = inputs;
        CentreGradientsKernel {
            width: self.width,
            points,
            centres,
            dy,
            scales: saved.scales.to_vec(),
            to: to.get(0),
        }
        .run_on(device);
        Ok(())
    }

    fn end(&mut self, shard: Shard) {
        self.saved.remove(&shard);
    }

    fn discard(&mut self) {
        self.saved.clear();
    }

    fn needs_all_shards(&self) -> bool {
        true
    }
}

impl GraphBuilder {
    /// Adds the squared distance of `x` from each of some centres: `[centres]`. The tensor is
    /// `centres`, `[centres, elements of x]`.
    ///
    /// With [`NearestDistance`](crate::NearestDistance) as the loss, the gradient is scaled so that
    /// plain gradient descent with a learning rate of 1 moves each centre to the mean of the
    /// samples of a step that are nearest to it. This needs one sum over all shards in each step.
    pub fn centre_distances(&mut self, name: &str, x: GraphValue, centres: usize) -> GraphValue {
        let width = self.shape(x).iter().product();
        let initial = self.initial();
        let tensor = self.tensor(name, "centres", &[centres, width], initial);
        let node = CentreDistances {
            name: tensor.entry.name.clone(),
            centres,
            width,
            saved: ShardMap::new(),
        };
        self.add_node(Box::new(node), &[x], vec![centres], vec![tensor])
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::seed::SeedTree;

    use super::*;
    use crate::layer::{Layer, LayerExt};
    use crate::loss::{Loss, NearestDistance};
    use crate::predictions::Predictions;
    use crate::testing::{arena, training};

    const POINTS: [f32; 8] = [0.0, 0.0, 2.0, 0.0, 10.0, 10.0, 12.0, 14.0];

    /// Three centres, with the last one far from all points.
    const CENTRES: [f32; 6] = [1.0, 1.0, 9.0, 9.0, 100.0, 100.0];

    fn layer() -> Box<dyn Layer> {
        let mut builder = GraphBuilder::new("layer", &[2]);
        builder.centre_distances("", builder.input(), 3);
        let mut layer = builder.build(&SeedTree::new(1)).unwrap();
        let arena = arena(&*layer);
        layer.load(&CENTRES, arena.ranges());
        layer
    }

    /// Returns the gradients of the centres and the points.
    fn gradients(layer: &mut dyn Layer, points: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let samples = points.len() / 2;
        let x = Activation::from_host(&[samples, 2], points.to_vec());
        let context = training(0, 0);
        let y = layer.forward_shard(x, &context).unwrap();
        let targets = vec![0; samples];
        let predictions = Predictions::new(y.as_slice(), &targets, samples).unwrap();
        let loss = NearestDistance.loss_and_gradient(&predictions).unwrap();
        let given = Activation::from_host(y.shape(), loss.gradient);
        let mut to = vec![f32::NAN; 6];
        let arena = arena(layer);
        let back = layer.backward_shard(context.shard, given, &mut to, arena.ranges(), true);
        (to, back.unwrap().unwrap().into_host())
    }

    #[test]
    fn a_step_of_rate_one_moves_each_centre_to_the_mean_of_its_points() {
        let (gradient, _) = gradients(&mut *layer(), &POINTS);
        let after = CENTRES.iter().zip(&gradient).map(|(c, g)| c - g / 4.0);
        let after: Vec<f32> = after.collect();
        assert_eq!(after, [1.0, 0.0, 11.0, 12.0, 100.0, 100.0]);
    }

    #[test]
    fn points_have_the_slope_of_the_distance_from_the_nearest_centre() {
        let (_, gradient) = gradients(&mut *layer(), &POINTS);
        assert_eq!(gradient, [-2.0, -2.0, 2.0, -2.0, 2.0, 2.0, 6.0, 10.0]);
    }

    #[test]
    fn no_samples_give_no_gradient_and_evaluation_keeps_nothing() {
        let mut layer = layer();
        let (gradient, _) = gradients(&mut *layer, &[]);
        assert_eq!(gradient, [0.0; 6]);
        let x = Activation::from_host(&[4, 2], POINTS.to_vec());
        let y = layer.forward_shard(x, &ForwardContext::evaluate()).unwrap();
        assert_eq!(y.as_slice()[..3], [2.0, 162.0, 20_000.0]);
    }
}
