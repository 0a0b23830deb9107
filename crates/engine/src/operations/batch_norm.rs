//! [`NormaliseBatch`]: batch normalisation of one shard, with an addition and a rectifier in the same
//! pass.

use ronde_kernels::{Affine, BatchNorm as Kernel, BatchNormGradients, BatchStatistics};

use crate::graph::{GraphOperation, KeptValues, TensorGradients, Tensors};
use crate::{Activation, EngineError, ForwardContext, Mode};

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

    fn shape(&self, samples: usize) -> Kernel {
        Kernel {
            samples,
            channels: self.channels,
            places: self.places,
            epsilon: EPSILON,
            rectified: self.after == AfterNorm::Rectified,
        }
    }
}

/// Returns the running mean and variance after a step with these statistics.
pub(super) fn moved_statistics(tensors: Tensors<'_>, found: &BatchStatistics) -> [Vec<f32>; 2] {
    let moved = |old: &[f32], new: &[f32]| {
        let pairs = old.iter().zip(new);
        pairs
            .map(|(old, new)| old * (1.0 - MOMENTUM) as f32 + new * MOMENTUM as f32)
            .collect()
    };
    [
        moved(tensors.get(2), &found.mean),
        moved(tensors.get(3), &found.variance),
    ]
}

/// The values kept of one shard.
pub(crate) struct SavedBatchNorm {
    x: Activation,
    /// The output, which tells where the rectifier is open; the input without a rectifier.
    y: Activation,
    statistics: BatchStatistics,
    /// The gradients of gamma and beta.
    of_affine: [Vec<f32>; 2],
}

impl GraphOperation for NormaliseBatch {
    type Saved = SavedBatchNorm;

    fn kept(&self) -> KeptValues {
        KeptValues {
            inputs: vec![true],
            output: self.after == AfterNorm::Rectified,
            more: 0,
        }
    }

    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, SavedBatchNorm), EngineError> {
        let [x, added] = super::first_two(inputs);
        let added = self.adds.then_some(added.as_slice());
        let shape = self.shape(x.samples());
        let affine = Affine {
            gamma: tensors.get(0),
            beta: tensors.get(1),
        };
        let mut y = Activation::unwritten(x.shape());
        let statistics = if context.mode == Mode::Evaluate || x.samples() == 0 {
            let known = BatchStatistics::known(tensors.get(2), tensors.get(3), EPSILON);
            shape.normalise(x.as_slice(), &known, affine, added, y.as_mut_slice());
            known
        } else {
            shape.forward(x.as_slice(), affine, added, y.as_mut_slice())
        };
        let y_for_mask = match self.after {
            AfterNorm::Rectified => y.clone(),
            AfterNorm::Linear => x.clone(),
        };
        let saved = SavedBatchNorm {
            x,
            y: y_for_mask,
            statistics,
            of_affine: Default::default(),
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
        let mut of_x = Activation::unwritten(saved.x.shape());
        let mut of_added = self.adds.then(|| Activation::unwritten(saved.x.shape()));
        saved.of_affine = [0, 1].map(|_| vec![0.0; self.channels]);
        let [of_gamma, of_beta] = &mut saved.of_affine;
        let gradients = BatchNormGradients {
            input: of_x.as_mut_slice(),
            gamma: of_gamma,
            beta: of_beta,
            added: of_added.as_mut().map(Activation::as_mut_slice),
        };
        let (x, y) = (saved.x.as_slice(), saved.y.as_slice());
        let (gamma, given) = (tensors.get(0), gradient.as_slice());
        shape.backward(x, y, given, gamma, &saved.statistics, gradients);
        vec![Some(of_x), of_added]
    }

    fn backward_weights(
        &self,
        saved: &SavedBatchNorm,
        _gradient: &Activation,
        tensors: Tensors<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        for (index, found) in saved.of_affine.iter().enumerate() {
            to.get(index).copy_from_slice(found);
        }
        let running = if saved.x.samples() == 0 {
            [tensors.get(2).to_vec(), tensors.get(3).to_vec()]
        } else {
            moved_statistics(tensors, &saved.statistics)
        };
        for (index, moved) in running.iter().enumerate() {
            to.get(2 + index).copy_from_slice(moved);
        }
        Ok(())
    }
}
