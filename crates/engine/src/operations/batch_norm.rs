//! [`NormaliseBatch`]: batch normalisation of one shard, with an addition and a rectifier in the same
//! pass.

use ronde_kernels::BatchNorm;

use crate::device::AffineSlices;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, Computation, EngineError, ForwardContext, Mode};

/// The number that is added to a variance.
pub(super) const EPSILON: f64 = 1e-5;
/// The weight of a step's statistics in the running ones.
const MOMENTUM: f64 = 0.1;

/// The operation after a normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterNorm {
    /// Nothing.
    Linear,
    /// The rectifier: negative values become zero.
    Rectified,
}

/// Normalises each channel of `[N, C, H, W]`, adds the second input if there is one, and rectifies
/// if configured. Training uses the statistics of the shard, evaluation the running ones. The
/// variance is not corrected. Tensors: gamma, beta, running mean, running variance.
pub(crate) struct NormaliseBatch {
    channels: usize,
    places: usize,
    after: AfterNorm,
    adds: bool,
}

impl NormaliseBatch {
    pub(crate) fn new(channels: usize, places: usize, after: AfterNorm, adds: bool) -> Self {
        Self {
            channels,
            places,
            after,
            adds,
        }
    }

    fn shape(&self, samples: usize) -> BatchNorm {
        BatchNorm {
            samples,
            channels: self.channels,
            places: self.places,
            epsilon: EPSILON,
            rectified: self.after == AfterNorm::Rectified,
        }
    }
}

/// Returns gamma and beta.
pub(super) fn affine(tensors: Tensors<'_>) -> AffineSlices<'_> {
    AffineSlices {
        gamma: tensors.get(0),
        beta: tensors.get(1),
    }
}

/// Returns the statistics that the running ones give.
pub(super) fn known_statistics(tensors: Tensors<'_>) -> Activation {
    let (device, running) = (tensors.device(), [tensors.get(2), tensors.get(3)]);
    let mut known = tensors.unwritten(&[3, running[0].length()]);
    device.known_statistics(running, EPSILON, known.values_mut(device));
    known
}

/// Writes the running mean and variance after a step with these statistics.
pub(super) fn move_statistics(
    tensors: Tensors<'_>,
    found: &Activation,
    to: &mut TensorGradients<'_>,
) {
    let running = [tensors.get(2), tensors.get(3)];
    let device = tensors.device();
    device.move_statistics(running, found.values(), MOMENTUM, to.pair(2));
}

/// The values kept of one shard.
pub(crate) struct SavedBatchNorm {
    x: Activation,
    /// The output, which tells where the rectifier is open; `None` without a rectifier.
    y: Option<Activation>,
    statistics: Activation,
    /// The gradients of gamma and beta.
    of_affine: Vec<Activation>,
}

impl GraphOperation for NormaliseBatch {
    type Saved = SavedBatchNorm;

    fn computation(&self) -> Computation {
        Computation::BatchNorm {
            epsilon: EPSILON,
            after: self.after,
        }
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            inputs: vec![true],
            output: self.after == AfterNorm::Rectified,
            ..KeptValues::default()
        }
    }

    /// The statistics are known, so the output costs one pass. What was added is not kept.
    fn kept_for_output(&self) -> Option<KeptValues> {
        (!self.adds).then(KeptValues::input)
    }

    fn output_again(&self, saved: &mut SavedBatchNorm, tensors: Tensors<'_>) -> Option<Activation> {
        let shape = self.shape(saved.x.samples());
        let device = tensors.device();
        let mut y = tensors.unwritten(saved.x.shape());
        let (x, to) = (saved.x.values(), y.values_mut(device));
        let known = saved.statistics.values();
        device.batch_norm_by(&shape, x, affine(tensors), None, to, known);
        Some(y)
    }

    fn each_saved(&self, saved: &mut SavedBatchNorm, visit: &mut dyn FnMut(&mut Activation)) {
        visit(&mut saved.x);
        saved.y.iter_mut().for_each(visit);
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, SavedBatchNorm), EngineError> {
        let [x, added] = super::first_two(inputs);
        let added = self.adds.then_some(added.values());
        let shape = self.shape(x.samples());
        let (device, affine) = (tensors.device(), affine(tensors));
        let mut y = tensors.unwritten(x.shape());
        let to = y.values_mut(device);
        let statistics = if context.mode == Mode::Evaluate || x.samples() == 0 {
            let known = known_statistics(tensors);
            device.batch_norm_by(&shape, x.values(), affine, added, to, known.values());
            known
        } else {
            let mut found = tensors.unwritten(&[3, self.channels]);
            let statistics = found.values_mut(device);
            device.batch_norm(&shape, x.values(), affine, added, to, statistics);
            found
        };
        let saved = SavedBatchNorm {
            x,
            y: (self.after == AfterNorm::Rectified).then(|| y.clone()),
            statistics,
            of_affine: Vec::new(),
        };
        Ok((y, saved))
    }

    fn backward_input(
        &self,
        saved: &mut SavedBatchNorm,
        gradient: Activation,
        tensors: Tensors<'_>,
        _wanted: &[bool],
    ) -> Vec<Option<Activation>> {
        let shape = self.shape(saved.x.samples());
        let device = tensors.device();
        let channels = [self.channels];
        let mut found =
            [saved.x.shape(), &channels, &channels].map(|shape| tensors.unwritten(shape));
        let gradients = found.each_mut().map(|found| found.values_mut(device));
        let mut of_added = self.adds.then(|| tensors.unwritten(saved.x.shape()));
        let to_added = of_added.as_mut().map(|added| added.values_mut(device));
        let x = saved.x.values();
        let y = saved.y.as_ref().map_or(x, Activation::values);
        let inputs = [x, y, gradient.values(), tensors.get(0)];
        let statistics = saved.statistics.values();
        device.batch_norm_gradient(&shape, inputs, statistics, gradients, to_added);
        let [of_x, of_gamma, of_beta] = found;
        saved.of_affine = vec![of_gamma, of_beta];
        vec![Some(of_x), of_added]
    }

    fn backward_weights(
        &self,
        saved: &SavedBatchNorm,
        _gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        let device = tensors.device();
        for (index, found) in saved.of_affine.iter().enumerate() {
            device.copy(found.values(), to.get(index));
        }
        if saved.x.samples() == 0 {
            for index in [2, 3] {
                device.copy(tensors.get(index), to.get(index));
            }
        } else {
            move_statistics(tensors, &saved.statistics, to);
        }
        Ok(())
    }
}
