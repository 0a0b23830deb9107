//! Activation functions, element by element, with their slopes.

use crate::exponential::{erf, exp_f32};
use crate::simd::{SimdKernel, SimdVector, dispatch};

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationFunction {
    /// `x / 2 * (1 + erf(x / sqrt(2)))`, with an error below 1e-6. Source: Hendrycks and Gimpel, "Gaussian error linear
    /// units", 2016, section 2.
    Gelu,
    /// `x * sigmoid(x)`. Source: Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units", 2017.
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
}

impl ActivationFunction {
    /// Computes `y`, the function of each element of `x`, and its derivatives if `slope` is given.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn forward(self, x: &[f32], y: &mut [f32], slope: Option<&mut [f32]>) {
        assert!(
            y.len() == x.len() && slope.as_ref().is_none_or(|slope| slope.len() == x.len()),
            "outputs of {} values",
            x.len()
        );
        match self {
            Self::Gelu => dispatch(Elements {
                x,
                y,
                slope,
                at: gelu,
            }),
            Self::Silu => dispatch(Elements {
                x,
                y,
                slope,
                at: silu,
            }),
            Self::Sigmoid => dispatch(Elements {
                x,
                y,
                slope,
                at: sigmoid_and_slope,
            }),
            Self::Tanh => dispatch(Elements {
                x,
                y,
                slope,
                at: tanh,
            }),
        }
    }
}

struct Elements<'a, F> {
    x: &'a [f32],
    y: &'a mut [f32],
    slope: Option<&'a mut [f32]>,
    /// Returns the value and the slope.
    at: F,
}

impl<F: Fn(f32) -> [f32; 2]> SimdKernel for Elements<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let elements = self.x.iter().zip(self.y);
        match self.slope {
            None => {
                for (x, y) in elements {
                    *y = (self.at)(*x)[0];
                }
            }
            Some(slope) => {
                for ((x, y), slope) in elements.zip(slope) {
                    [*y, *slope] = (self.at)(*x);
                }
            }
        }
    }
}

#[inline(always)]
fn gelu(x: f32) -> [f32; 2] {
    const INVERSE_ROOT: f32 = std::f32::consts::FRAC_1_SQRT_2;
    // 1 / sqrt(2 pi).
    const DENSITY: f32 = 0.398_942_3;
    let power = exp_f32(-0.5 * x * x);
    let twice = 1.0 + erf(x * INVERSE_ROOT, power);
    [0.5 * x * twice, 0.5 * twice + x * power * DENSITY]
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    // The exponential of an infinite number is not a number.
    1.0 / (1.0 + exp_f32(-x.clamp(-87.0, 87.0)))
}

#[inline(always)]
fn sigmoid_and_slope(x: f32) -> [f32; 2] {
    let y = sigmoid(x);
    [y, y * (1.0 - y)]
}

#[inline(always)]
fn silu(x: f32) -> [f32; 2] {
    // The limit, so that -infinity is not multiplied by the least sigmoid.
    let share = if x == f32::NEG_INFINITY {
        0.0
    } else {
        sigmoid(x)
    };
    [x * share, share * (1.0 + x * (1.0 - share))]
}

#[inline(always)]
fn tanh(x: f32) -> [f32; 2] {
    let power = exp_f32(-2.0 * x.clamp(-43.0, 43.0).abs());
    let size = (1.0 - power) / (1.0 + power);
    let y = if x < 0.0 { -size } else { size };
    [y, 1.0 - y * y]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, close};

    #[test]
    fn functions_and_their_slopes_are_near_the_definition() {
        at_every_level(|| {
            let x: Vec<f32> = (-800..800).map(|i| i as f32 * 0.01).collect();
            type Definition = fn(f64) -> f64;
            let definitions: [(ActivationFunction, Definition); 4] = [
                (ActivationFunction::Gelu, |x| {
                    0.5 * x * (1.0 + libm::erf(x / 2.0_f64.sqrt()))
                }),
                (ActivationFunction::Silu, |x| x / (1.0 + libm::exp(-x))),
                (ActivationFunction::Sigmoid, |x| 1.0 / (1.0 + libm::exp(-x))),
                (ActivationFunction::Tanh, libm::tanh),
            ];
            for (function, of) in definitions {
                let (mut y, mut slope) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                function.forward(&x, &mut y, Some(&mut slope));
                let mut alone = vec![0.0; x.len()];
                function.forward(&x, &mut alone, None);
                assert_eq!(y, alone);
                for ((&x, y), slope) in x.iter().zip(y).zip(slope) {
                    let x = f64::from(x);
                    close(y, of(x), 2e-7);
                    close(slope, (of(x + 1e-5) - of(x - 1e-5)) / 2e-5, 4e-7);
                }
            }
        });
    }

    #[test]
    fn extreme_values_have_limits_and_nan_remains() {
        at_every_level(|| {
            let x = [f32::NEG_INFINITY, -1e30, 1e30, f32::INFINITY, f32::NAN];
            for (function, limits) in [
                (ActivationFunction::Sigmoid, [0.0, 0.0, 1.0, 1.0]),
                (ActivationFunction::Tanh, [-1.0, -1.0, 1.0, 1.0]),
            ] {
                let mut y = [0.0; 5];
                function.forward(&x, &mut y, None);
                for (y, limit) in y.iter().zip(limits) {
                    assert!((y - limit).abs() < 1e-6, "{function:?}: {y}");
                }
                assert!(y[4].is_nan());
            }
        });
    }
}
