//! [`layer_norm`] and [`gelu`]: operations on each token of a transformer separately.

use burn::tensor::Tensor;
use ronde_kernels::{Vectorised, vectorised};

use super::custom::{HostTensor, OperationInput, SavedForBackward, record};
use super::memory::{give, take};

/// Normalises the last dimension with `epsilon` added to the variance, then scales it by `gamma`
/// and shifts it by `beta`.
///
/// # Panics
/// When the last dimension differs from that of `gamma` and `beta`.
#[must_use]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let inputs = [
        OperationInput::of(x),
        OperationInput::of(gamma),
        OperationInput::of(beta),
    ];
    record(inputs, |[x, gamma, beta]| {
        let mut y = take(x.values().len());
        let rows =
            ronde_kernels::layer_norm(x.values(), gamma.values(), beta.values(), epsilon, &mut y);
        (
            HostTensor::new(y, x.shape()),
            SavedLayerNorm { x, gamma, rows },
        )
    })
}

#[derive(Debug)]
struct SavedLayerNorm {
    x: HostTensor,
    gamma: HostTensor,
    /// The mean and inverse deviation of each row.
    rows: Vec<[f32; 2]>,
}

impl SavedForBackward<3> for SavedLayerNorm {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 3]) -> [Option<HostTensor>; 3] {
        let width = self.gamma.values().len();
        let mut dx = take(self.x.values().len());
        let (mut dgamma, mut dbeta) = (vec![0.0; width], vec![0.0; width]);
        let (x, gamma) = (self.x.values(), self.gamma.values());
        let affine = [&mut dgamma[..], &mut dbeta[..]];
        ronde_kernels::layer_norm_backward(x, gamma, &self.rows, gradient, &mut dx, affine);
        [
            Some(HostTensor::new(dx, self.x.shape())),
            Some(HostTensor::new(dgamma, &[width])),
            Some(HostTensor::new(dbeta, &[width])),
        ]
    }
}

/// Returns `x / 2 * (1 + erf(x / sqrt(2)))` with an error below 1e-6. Keeps the slope of each
/// element for backward.
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let tracked = x.device().is_autodiff();
    record([OperationInput::of(x)], |[x]| {
        let mut y = take(x.values().len());
        let mut slope = take(if tracked { y.len() } else { 0 });
        let wanted = tracked.then_some(&mut slope[..]);
        ronde_kernels::gelu(x.values(), &mut y, wanted);
        let shape = x.shape().to_vec();
        (HostTensor::new(y, &shape), SavedGelu { shape, slope })
    })
}

#[derive(Debug)]
struct SavedGelu {
    shape: Vec<usize>,
    slope: Vec<f32>,
}

impl Drop for SavedGelu {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.slope));
    }
}

impl SavedForBackward<1> for SavedGelu {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 1]) -> [Option<HostTensor>; 1] {
        let mut dx = take(gradient.len());
        vectorised(ScaleBySlope {
            dx: &mut dx,
            dy: gradient,
            slope: &self.slope,
        });
        [Some(HostTensor::new(dx, &self.shape))]
    }
}

struct ScaleBySlope<'a> {
    dx: &'a mut [f32],
    dy: &'a [f32],
    slope: &'a [f32],
}

impl Vectorised for ScaleBySlope<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((dx, dy), slope) in self.dx.iter_mut().zip(self.dy).zip(self.slope) {
            *dx = dy * slope;
        }
    }
}
