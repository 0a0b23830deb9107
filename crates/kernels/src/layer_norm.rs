//! Layer normalisation of rows.

use crate::simd::{SimdKernel, SimdVector, Vectorised, dispatch, vectorised};

const LANES: usize = 16;

/// Returns the sums of two terms per element of two rows, in a fixed order.
#[inline(always)]
fn sums(first: &[f32], second: &[f32], term: impl Fn(f32, f32) -> [f32; 2]) -> [f64; 2] {
    let mut lanes = [[0.0_f32; LANES]; 2];
    for (a, b) in first.chunks(LANES).zip(second.chunks(LANES)) {
        for (lane, (a, b)) in a.iter().zip(b).enumerate() {
            let [one, two] = term(*a, *b);
            lanes[0][lane] += one;
            lanes[1][lane] += two;
        }
    }
    lanes.map(|lanes| lanes.iter().map(|&lane| f64::from(lane)).sum())
}

/// Computes `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta` for each row of `gamma.len()` elements; returns
/// each row's mean and `1 / sqrt(variance + epsilon)`.
///
/// # Panics
/// If lengths do not match.
pub fn layer_norm(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    epsilon: f64,
    y: &mut [f32],
) -> Vec<[f32; 2]> {
    let width = gamma.len();
    assert!(
        beta.len() == width && y.len() == x.len() && x.len().is_multiple_of(width.max(1)),
        "rows of {width}"
    );
    dispatch(LayerNormForward {
        x,
        gamma,
        beta,
        epsilon,
        y,
    })
}

struct LayerNormForward<'a> {
    x: &'a [f32],
    gamma: &'a [f32],
    beta: &'a [f32],
    epsilon: f64,
    y: &'a mut [f32],
}

impl SimdKernel for LayerNormForward<'_> {
    type Output = Vec<[f32; 2]>;

    #[inline(always)]
    fn run<V: SimdVector>(self) -> Vec<[f32; 2]> {
        let width = self.gamma.len().max(1);
        let mut found = Vec::with_capacity(self.x.len() / width);
        for (x, y) in self
            .x
            .chunks_exact(width)
            .zip(self.y.chunks_exact_mut(width))
        {
            let mean = (sums(x, x, |x, _| [x, 0.0])[0] / width as f64) as f32;
            let squares = sums(x, x, |x, _| [(x - mean) * (x - mean), 0.0])[0];
            let inverse = (1.0 / (squares / width as f64 + self.epsilon).sqrt()) as f32;
            let affine = self.gamma.iter().zip(self.beta);
            for ((y, x), (gamma, beta)) in y.iter_mut().zip(x).zip(affine) {
                *y = (x - mean) * inverse * gamma + beta;
            }
            found.push([mean, inverse]);
        }
        found
    }
}

/// Computes the gradients of [`layer_norm`] from its output's gradient: writes `dx`, and sums `dgamma` and `dbeta` over
/// rows in order.
///
/// # Panics
/// If lengths do not match.
pub fn layer_norm_backward(
    x: &[f32],
    gamma: &[f32],
    rows: &[[f32; 2]],
    dy: &[f32],
    dx: &mut [f32],
    [dgamma, dbeta]: [&mut [f32]; 2],
) {
    let width = gamma.len();
    assert!(
        [x.len(), dy.len(), dx.len()] == [rows.len() * width; 3]
            && [dgamma.len(), dbeta.len()] == [width; 2],
        "{} rows of {width}",
        rows.len()
    );
    dispatch(LayerNormBackward {
        x,
        gamma,
        rows,
        dy,
        dx,
        dgamma,
        dbeta,
    });
}

/// Sums the gradients of gamma and beta of the columns from `start` on, as [`layer_norm_backward`] does.
///
/// # Panics
/// If lengths do not match.
pub fn layer_norm_affine_gradients(
    x: &[f32],
    rows: &[[f32; 2]],
    dy: &[f32],
    start: usize,
    [dgamma, dbeta]: [&mut [f32]; 2],
) {
    let width = x.len() / rows.len().max(1);
    assert!(
        [x.len(), dy.len()] == [rows.len() * width; 2]
            && dgamma.len() == dbeta.len()
            && (start + dgamma.len() <= width || rows.is_empty()),
        "{} rows of {width}",
        rows.len()
    );
    vectorised(AffineColumns {
        x,
        rows,
        dy,
        columns: start..start + dgamma.len(),
        dgamma,
        dbeta,
    });
}

struct AffineColumns<'a> {
    x: &'a [f32],
    rows: &'a [[f32; 2]],
    dy: &'a [f32],
    columns: std::ops::Range<usize>,
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
}

impl Vectorised for AffineColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = (self.x.len() / self.rows.len().max(1)).max(1);
        self.dgamma.fill(0.0);
        self.dbeta.fill(0.0);
        let rows = self.x.chunks_exact(width).zip(self.dy.chunks_exact(width));
        for ((x, dy), &[mean, inverse]) in rows.zip(self.rows) {
            let (x, dy) = (&x[self.columns.clone()], &dy[self.columns.clone()]);
            let affine = self.dgamma.iter_mut().zip(self.dbeta.iter_mut());
            for ((dy, x), (dgamma, dbeta)) in dy.iter().zip(x).zip(affine) {
                *dgamma += dy * (x - mean) * inverse;
                *dbeta += dy;
            }
        }
    }
}

struct LayerNormBackward<'a> {
    x: &'a [f32],
    gamma: &'a [f32],
    rows: &'a [[f32; 2]],
    dy: &'a [f32],
    dx: &'a mut [f32],
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
}

impl SimdKernel for LayerNormBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let width = self.gamma.len().max(1);
        self.dgamma.fill(0.0);
        self.dbeta.fill(0.0);
        let rows = self.x.chunks_exact(width).zip(self.dy.chunks_exact(width));
        for (((x, dy), dx), &[mean, inverse]) in
            rows.zip(self.dx.chunks_exact_mut(width)).zip(self.rows)
        {
            let affine = self.dgamma.iter_mut().zip(self.dbeta.iter_mut());
            for (((to, dy), (gamma, (dgamma, dbeta))), x) in dx
                .iter_mut()
                .zip(dy)
                .zip(self.gamma.iter().zip(affine))
                .zip(x)
            {
                *to = dy * gamma;
                *dgamma += dy * (x - mean) * inverse;
                *dbeta += dy;
            }
            let [total, along] = sums(dx, x, |dx, x| [dx, dx * (x - mean)]);
            let offset = (total / width as f64) as f32;
            let slope = (along * f64::from(inverse) * f64::from(inverse) / width as f64) as f32;
            for (to, x) in dx.iter_mut().zip(x) {
                *to = inverse * (*to - offset - (x - mean) * slope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, close, values};

    #[test]
    fn rows_and_their_gradients_fit_the_definition() {
        at_every_level(|| {
            let (rows, width) = (5, 37);
            let (x, dy) = (values(rows * width, 1), values(rows * width, 2));
            let (gamma, beta) = (values(width, 3), values(width, 4));
            let mut y = vec![0.0; x.len()];
            let found = layer_norm(&x, &gamma, &beta, 1e-5, &mut y);
            let (mut dx, mut dgamma, mut dbeta) =
                (vec![0.0; x.len()], vec![9.0; width], vec![9.0; width]);
            layer_norm_backward(&x, &gamma, &found, &dy, &mut dx, [&mut dgamma, &mut dbeta]);

            let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let inputs = [wide(&x), wide(&gamma), wide(&beta)];
            let objective = |inputs: &[Vec<f64>; 3]| {
                let mut sum = 0.0;
                for (row, dy) in inputs[0].chunks(width).zip(dy.chunks(width)) {
                    let mean = row.iter().sum::<f64>() / width as f64;
                    let variance =
                        row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                    for (i, x) in row.iter().enumerate() {
                        let y = (x - mean) / (variance + 1e-5).sqrt() * inputs[1][i] + inputs[2][i];
                        sum += y * f64::from(dy[i]);
                    }
                }
                sum
            };
            let total: f64 = y
                .iter()
                .zip(&dy)
                .map(|(y, dy)| f64::from(*y) * f64::from(*dy))
                .sum();
            assert!((total - objective(&inputs)).abs() < 1e-4);
            for (which, got) in [&dx, &dgamma, &dbeta].into_iter().enumerate() {
                for (place, &got) in got.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut inputs = inputs.clone();
                        inputs[which][place] += by;
                        objective(&inputs)
                    };
                    close(got, (moved(1e-6) - moved(-1e-6)) / 2e-6, 1e-5);
                }
            }
        });
    }
}
