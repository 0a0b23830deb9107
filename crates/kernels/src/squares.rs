//! [`sum_of_squares`]: the sum of squares of a block of values, in one pass and in a fixed order.

use crate::simd::{SimdKernel, SimdVector, dispatch};

/// The number of elements whose squares are summed in one run of eight lanes.
const PART: usize = 64;

/// Returns the sum of squares of `values` in f64; not finite if a value is not.
///
/// Parts of 64 elements, the last one possibly shorter, are added in order. Within a part, eight lanes are summed
/// separately and then added pairwise. Cost: one read pass.
#[must_use]
pub fn sum_of_squares(values: &[f32]) -> f64 {
    dispatch(Squares { values })
}

struct Squares<'a> {
    values: &'a [f32],
}

impl SimdKernel for Squares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<V: SimdVector>(self) -> f64 {
        let (parts, rest) = self.values.as_chunks::<PART>();
        let mut total = 0.0;
        for part in parts {
            total += part_sum::<V>(part);
        }
        if !rest.is_empty() {
            let mut part = [0.0; PART];
            part[..rest.len()].copy_from_slice(rest);
            total += part_sum::<V>(&part);
        }
        total
    }
}

/// Sums the squares of a part in eight lanes, and adds the lanes pairwise.
#[inline(always)]
fn part_sum<V: SimdVector>(part: &[f32; PART]) -> f64 {
    let mut lanes = [0.0; 8];
    for eight in part.as_chunks::<8>().0 {
        V::add_squares(eight, &mut lanes);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    #[test]
    fn the_sum_has_the_order_of_its_description() {
        let values: Vec<f32> = (0..1000)
            .map(|i| (i as f32 * 0.37).fract() * 1e3 - 400.0)
            .chain([1e-42, -3e-39])
            .collect();
        let parts = values.chunks(PART).map(|part| {
            let mut lanes = [0.0; 8];
            for (place, value) in part.iter().enumerate() {
                lanes[place % 8] += f64::from(*value) * f64::from(*value);
            }
            let pairs = [0, 2, 4, 6].map(|i| lanes[i] + lanes[i + 1]);
            (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])
        });
        let expected: f64 = parts.fold(0.0, |sum, part| sum + part);
        at_every_level(|| assert_eq!(sum_of_squares(&values), expected));
    }

    #[test]
    fn values_that_are_not_finite_show_in_the_sum() {
        at_every_level(|| {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut values = vec![1.0; 100];
                values[70] = bad;
                assert!(!sum_of_squares(&values).is_finite());
            }
            assert!(sum_of_squares(&[f32::MAX; 100]).is_finite());
        });
    }
}
