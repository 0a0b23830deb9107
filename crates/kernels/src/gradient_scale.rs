//! [`GradientScale`]: scales the sum of a gradient over samples for the optimizer, in one pass.

use crate::simd::{Vectorised, vectorised};

/// A division by the number of samples and two multiplications, each rounded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradientScale {
    count: f32,
    factors: [f32; 2],
}

impl GradientScale {
    /// Creates the mean over `samples` samples, multiplied by a factor (the inverse of a loss scale, or 1).
    #[must_use]
    pub fn new(samples: u64, factor: f32) -> Self {
        Self {
            count: samples as f32,
            factors: [factor, 1.0],
        }
    }

    /// Returns the product of the factors and the inverse of the number of samples, not rounded to f32.
    #[must_use]
    pub fn factor(&self) -> f64 {
        f64::from(self.factors[0]) * f64::from(self.factors[1]) / f64::from(self.count)
    }

    /// Adds a second factor, such as that of gradient clipping.
    #[must_use]
    pub fn then(self, factor: f32) -> Self {
        Self {
            factors: [self.factors[0], factor],
            ..self
        }
    }

    /// Writes the scaled values. Cost: one pass.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn write(&self, from: &[f32], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "lengths of a gradient");
        vectorised(ScaledCopy {
            scale: *self,
            from,
            to,
        });
    }

    /// Returns the inverse of the divisor if it is a power of two: the multiplication gives the same bits in a fraction
    /// of the time.
    fn inverse(&self) -> Option<f32> {
        let is_power = self.count >= 1.0 && self.count.to_bits().trailing_zeros() >= 23;
        is_power.then(|| 1.0 / self.count)
    }

    #[inline(always)]
    fn of(&self, quotient: f32) -> f32 {
        quotient * self.factors[0] * self.factors[1]
    }
}

struct ScaledCopy<'a> {
    scale: GradientScale,
    from: &'a [f32],
    to: &'a mut [f32],
}

impl Vectorised for ScaledCopy<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (scale, elements) = (self.scale, self.to.iter_mut().zip(self.from));
        match scale.inverse() {
            Some(inverse) => elements.for_each(|(to, from)| *to = scale.of(from * inverse)),
            None => elements.for_each(|(to, from)| *to = scale.of(from / scale.count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    fn values(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| (i as f32 * 0.37).fract() * 1e3 - 400.0)
            .chain([1e-42, -3e-39])
            .collect()
    }

    #[test]
    fn one_pass_has_the_bits_of_the_steps_apart() {
        at_every_level(|| {
            for samples in [1, 3, 48, 64, 1437, 1 << 20] {
                for (factor, clip) in [(1.0, 1.0), (1.0 / 1024.0, 0.37)] {
                    let values = values(1000);
                    let apart: Vec<f32> = values
                        .iter()
                        .map(|value| value / samples as f32 * factor)
                        .collect();
                    let scale = GradientScale::new(samples, factor);
                    let mut found = vec![f32::NAN; values.len()];
                    scale.then(clip).write(&values, &mut found);
                    for (found, apart) in found.iter().zip(&apart) {
                        assert_eq!(found.to_bits(), (apart * clip).to_bits(), "{samples}");
                    }
                }
            }
        });
    }
}
