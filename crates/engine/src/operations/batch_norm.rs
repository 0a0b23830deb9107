//! [`NormaliseBatch`]: batch normalisation of one shard, with an addition and a rectifier in the same
//! pass.

mod channels;

use ronde_kernels::BatchNorm;

pub(super) use self::channels::ChannelNorm;
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::DeviceSlice;
use crate::device::kernel::{
    BatchAffineGradientsKernel, BatchNormByKernel, BatchNormGradientKernel, BatchNormKernel,
    CopyKernel, KnownStatisticsKernel, MoveStatisticsKernel,
};
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};

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
pub(crate) struct NormaliseBatch(ChannelNorm);

impl NormaliseBatch {
    pub(crate) fn new(channels: usize, places: usize, after: AfterNorm, adds: bool) -> Self {
        Self(ChannelNorm {
            channels,
            places,
            after,
            adds,
        })
    }

    fn shape(&self, samples: usize) -> BatchNorm {
        BatchNorm {
            rectified: self.0.after == AfterNorm::Rectified,
            ..self.0.shape(samples)
        }
    }

    /// Returns the output and the statistics of values in f32.
    fn normalised_in_one_pass(
        &self,
        [x, added]: [&Activation; 2],
        tensors: Tensors<'_>,
    ) -> (Activation, Activation) {
        let device = tensors.device();
        let added = self.0.adds.then(|| added.values());
        let (mut y, mut found) = (
            tensors.unwritten(x.shape()),
            tensors.unwritten(&[3, self.0.channels]),
        );
        let (shape, [gamma, beta]) = (self.shape(x.samples()), affine(tensors));
        let (to, statistics) = (y.values_mut(device), found.values_mut(device));
        BatchNormKernel {
            shape,
            x: x.values(),
            gamma,
            beta,
            added,
            y: to,
            statistics,
        }
        .run_on(device);
        (y, found)
    }

    /// Computes the backward pass of packed values in blocks.
    fn backward_in_blocks(
        &self,
        saved: &mut SavedBatchNorm,
        gradient: Activation,
        tensors: Tensors<'_>,
    ) -> Vec<Option<Activation>> {
        let norm = &self.0;
        let mut gradient = match &saved.y {
            Some(y) => norm.masked(y, &gradient, tensors),
            None => gradient,
        };
        let of_added = norm.adds.then(|| gradient.clone());
        let sums = norm.gradient_sums([&saved.x, &gradient, &saved.statistics], tensors);
        norm.input_gradient([&saved.x, &saved.statistics], &sums, &mut gradient, tensors);
        let device = tensors.device();
        let mut of_affine = [(); 2].map(|()| tensors.unwritten(&[norm.channels]));
        let [of_gamma, of_beta] = of_affine.each_mut().map(|found| found.values_mut(device));
        BatchAffineGradientsKernel {
            shape: norm.shape(saved.x.samples()),
            own: sums.to_vec(),
            statistics: saved.statistics.values(),
            of_gamma,
            of_beta,
        }
        .run_on(device);
        saved.of_affine = of_affine.into();
        vec![Some(gradient), of_added]
    }
}

/// Returns gamma and beta.
pub(super) fn affine(tensors: Tensors<'_>) -> [DeviceSlice<'_>; 2] {
    [tensors.get(0), tensors.get(1)]
}

/// Returns the statistics that the running ones give.
pub(super) fn known_statistics(tensors: Tensors<'_>) -> Activation {
    let (device, running) = (tensors.device(), [tensors.get(2), tensors.get(3)]);
    let mut known = tensors.unwritten(&[3, running[0].length()]);
    let [mean, variance] = running;
    KnownStatisticsKernel {
        mean,
        variance,
        epsilon: EPSILON,
        statistics: known.values_mut(device),
    }
    .run_on(device);
    known
}

/// Writes the running mean and variance after a step with these statistics.
pub(super) fn move_statistics(
    tensors: Tensors<'_>,
    found: &Activation,
    to: &mut TensorGradients<'_>,
) {
    let device = tensors.device();
    let [new_mean, new_variance] = to.pair(2);
    MoveStatisticsKernel {
        mean: tensors.get(2),
        variance: tensors.get(3),
        statistics: found.values(),
        momentum: MOMENTUM,
        new_mean,
        new_variance,
    }
    .run_on(device);
}

/// The values kept of one shard.
pub(crate) struct SavedBatchNorm {
    x: Activation,
    /// The output, which shows where the rectifier is open; `None` without a rectifier.
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
            after: self.0.after,
        }
    }

    fn kept(&self) -> KeptValues {
        KeptValues {
            inputs: vec![true],
            output: self.0.after == AfterNorm::Rectified,
            ..KeptValues::default()
        }
    }

    /// The statistics are known, so the output costs one pass. The added operand is not kept.
    fn kept_for_output(&self) -> Option<KeptValues> {
        (!self.0.adds).then(KeptValues::input)
    }

    fn output_again(&self, saved: &mut SavedBatchNorm, tensors: Tensors<'_>) -> Option<Activation> {
        if saved.x.packed_format().is_some() {
            let x = &saved.x;
            return Some(self.0.normalised([x, x], &saved.statistics, tensors));
        }
        let shape = self.shape(saved.x.samples());
        let device = tensors.device();
        let mut y = tensors.unwritten(saved.x.shape());
        let (x, to) = (saved.x.values(), y.values_mut(device));
        let known = saved.statistics.values();
        let [gamma, beta] = affine(tensors);
        BatchNormByKernel {
            shape,
            x,
            gamma,
            beta,
            added: None,
            y: to,
            statistics: known,
        }
        .run_on(device);
        Some(y)
    }

    fn takes_packed(&self) -> bool {
        true
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
        let is_known = context.mode == Mode::Evaluate || x.samples() == 0;
        let (y, statistics) = if is_known {
            let known = known_statistics(tensors);
            (self.0.normalised([&x, &added], &known, tensors), known)
        } else if x.packed_format().is_some() {
            let found = self.0.statistics(&self.0.moments(&x, tensors), tensors);
            (self.0.normalised([&x, &added], &found, tensors), found)
        } else {
            self.normalised_in_one_pass([&x, &added], tensors)
        };
        let saved = SavedBatchNorm {
            x,
            y: (self.0.after == AfterNorm::Rectified).then(|| y.clone()),
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
        if saved.x.packed_format().is_some() {
            return self.backward_in_blocks(saved, gradient, tensors);
        }
        let shape = self.shape(saved.x.samples());
        let device = tensors.device();
        let channels = [self.0.channels];
        let mut found =
            [saved.x.shape(), &channels, &channels].map(|shape| tensors.unwritten(shape));
        let gradients = found.each_mut().map(|found| found.values_mut(device));
        let mut of_added = self.0.adds.then(|| tensors.unwritten(saved.x.shape()));
        let to_added = of_added.as_mut().map(|added| added.values_mut(device));
        let x = saved.x.values();
        let y = saved.y.as_ref().map_or(x, Activation::values);
        let statistics = saved.statistics.values();
        let [dx, of_gamma, of_beta] = gradients;
        BatchNormGradientKernel {
            shape,
            x,
            y,
            dy: gradient.values(),
            gamma: tensors.get(0),
            statistics,
            dx,
            of_gamma,
            of_beta,
            of_added: to_added,
        }
        .run_on(device);
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
            CopyKernel {
                from: found.values(),
                to: to.get(index),
            }
            .run_on(device);
        }
        if saved.x.samples() == 0 {
            for index in [2, 3] {
                CopyKernel {
                    from: tensors.get(index),
                    to: to.get(index),
                }
                .run_on(device);
            }
        } else {
            move_statistics(tensors, &saved.statistics, to);
        }
        Ok(())
    }
}
