//! [`GradientScale`]: scales the sum of a gradient over samples for the optimizer, in one pass.

use crate::simd::{SimdKernel, SimdVector, Vectorised, dispatch, vectorised};

/// The number of elements of a block whose squares are summed separately: a block of a sharded state.
const BLOCK: usize = 64;

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

    /// Adds the squares of the scaled values to `total`, block by block in order; `None` if a value is not finite. A
    /// block has 64 elements, the last one possibly fewer; it is summed in f64 in eight lanes that are added pairwise
    /// at the end. Cost: one read pass.
    #[must_use]
    pub fn add_squares(&self, values: &[f32], total: f64) -> Option<f64> {
        dispatch(SquareSums {
            scale: *self,
            values,
            total,
        })
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

struct SquareSums<'a> {
    scale: GradientScale,
    values: &'a [f32],
    total: f64,
}

impl SimdKernel for SquareSums<'_> {
    type Output = Option<f64>;

    #[inline(always)]
    fn run<V: SimdVector>(self) -> Option<f64> {
        let (scale, count) = (self.scale, self.scale.count);
        match scale.inverse() {
            Some(inverse) => self.add::<V>(|value| scale.of(value * inverse)),
            None => self.add::<V>(|value| scale.of(value / count)),
        }
    }
}

impl SquareSums<'_> {
    #[inline(always)]
    fn add<V: SimdVector>(self, scaled: impl Fn(f32) -> f32) -> Option<f64> {
        let (mut total, mut is_finite) = (self.total, true);
        let (blocks, rest) = self.values.as_chunks::<BLOCK>();
        for block in blocks {
            let sum = block_sum::<V>(block, &scaled);
            is_finite &= sum.is_finite();
            total += sum;
        }
        if !rest.is_empty() {
            let mut block = [0.0; BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            let sum = block_sum::<V>(&block, &scaled);
            is_finite &= sum.is_finite();
            total += sum;
        }
        is_finite.then_some(total)
    }
}

/// Adds eight lanes pairwise.
#[inline(always)]
fn block_sum<V: SimdVector>(block: &[f32; BLOCK], scaled: &impl Fn(f32) -> f32) -> f64 {
    let mut found = [0.0; BLOCK];
    for (to, from) in found.iter_mut().zip(block) {
        *to = scaled(*from);
    }
    let mut lanes = [0.0; 8];
    for eight in found.as_chunks::<8>().0 {
        V::add_squares(eight, &mut lanes);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    fn block_sums(values: &[f32]) -> impl Iterator<Item = f64> + '_ {
        values.chunks(BLOCK).map(|block| {
            let mut lanes = [0.0; 8];
            for (place, value) in block.iter().enumerate() {
                lanes[place % 8] += f64::from(*value) * f64::from(*value);
            }
            let pairs = [0, 2, 4, 6].map(|i| lanes[i] + lanes[i + 1]);
            (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])
        })
    }

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
                    let squares = block_sums(&apart).fold(0.25, |total, sum| total + sum);
                    assert_eq!(scale.add_squares(&values, 0.25), Some(squares), "{samples}");
                    let mut found = vec![f32::NAN; values.len()];
                    scale.then(clip).write(&values, &mut found);
                    for (found, apart) in found.iter().zip(&apart) {
                        assert_eq!(found.to_bits(), (apart * clip).to_bits(), "{samples}");
                    }
                }
            }
        });
    }

    #[test]
    fn non_finite_values_are_reported() {
        at_every_level(|| {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut values = values(100);
                values[70] = bad;
                assert_eq!(GradientScale::new(4, 1.0).add_squares(&values, 0.0), None);
            }
        });
    }
}
