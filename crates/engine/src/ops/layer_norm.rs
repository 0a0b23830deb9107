//! [`layer_norm`] and [`gelu`]: what a transformer does to each token by itself.

use burn::tensor::Tensor;
use ronde_kernels::{Vectorised, vectorised};

use super::custom::{Host, Input, Saved, record};
use super::memory::{give, take};

/// Normalises the last dimension with `epsilon` added to the variance, then scales it by `gamma` and
/// shifts it by `beta`.
///
/// # Panics
/// When the last dimension is not that of `gamma` and `beta`.
#[must_use]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let inputs = [Input::of(x), Input::of(gamma), Input::of(beta)];
    record(inputs, |[x, gamma, beta]| {
        let mut y = take(x.values().len());
        let rows =
            ronde_kernels::layer_norm(x.values(), gamma.values(), beta.values(), epsilon, &mut y);
        (Host::new(y, x.shape()), Rows { x, gamma, rows })
    })
}

#[derive(Debug)]
struct Rows {
    x: Host,
    gamma: Host,
    /// Mean and inverse deviation of each row.
    rows: Vec<[f32; 2]>,
}

impl Saved<3> for Rows {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 3]) -> [Option<Host>; 3] {
        let width = self.gamma.values().len();
        let mut dx = take(self.x.values().len());
        let (mut dgamma, mut dbeta) = (vec![0.0; width], vec![0.0; width]);
        let (x, gamma) = (self.x.values(), self.gamma.values());
        let affine = [&mut dgamma[..], &mut dbeta[..]];
        ronde_kernels::layer_norm_backward(x, gamma, &self.rows, gradient, &mut dx, affine);
        [
            Some(Host::new(dx, self.x.shape())),
            Some(Host::new(dgamma, &[width])),
            Some(Host::new(dbeta, &[width])),
        ]
    }
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`, within 1e-6 of it. Kept for backward: the slope of each element.
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let tracked = x.device().is_autodiff();
    record([Input::of(x)], |[x]| {
        let mut y = take(x.values().len());
        let mut slope = take(if tracked { y.len() } else { 0 });
        let wanted = tracked.then_some(&mut slope[..]);
        ronde_kernels::gelu(x.values(), &mut y, wanted);
        let shape = x.shape().to_vec();
        (Host::new(y, &shape), Slope { shape, slope })
    })
}

#[derive(Debug)]
struct Slope {
    shape: Vec<usize>,
    slope: Vec<f32>,
}

impl Drop for Slope {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.slope));
    }
}

impl Saved<1> for Slope {
    fn backward(&self, gradient: &[f32], _wanted: [bool; 1]) -> [Option<Host>; 1] {
        let mut dx = take(gradient.len());
        vectorised(Steepened {
            dx: &mut dx,
            dy: gradient,
            slope: &self.slope,
        });
        [Some(Host::new(dx, &self.shape))]
    }
}

struct Steepened<'a> {
    dx: &'a mut [f32],
    dy: &'a [f32],
    slope: &'a [f32],
}

impl Vectorised for Steepened<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((dx, dy), slope) in self.dx.iter_mut().zip(self.dy).zip(self.slope) {
            *dx = dy * slope;
        }
    }
}
