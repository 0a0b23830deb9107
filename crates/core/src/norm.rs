//! Sums of squares over fixed blocks, so that a norm does not depend on which rank owns which slice.

/// The number of elements of a block. Slices of a sharded state start at multiples of it.
pub const BLOCK: usize = crate::layout::ARENA_ALIGNMENT;

/// Returns the sum of squares of each block of `values` in f64, with the tail padded with zeros.
///
/// Within a block, eight lanes are summed separately and then added pairwise, which fixes the order.
pub fn block_sums(values: &[f32]) -> impl Iterator<Item = f64> + '_ {
    values.chunks(BLOCK).map(|block| {
        let mut lanes = [0.0_f64; 8];
        for eight in block.chunks(8) {
            for (lane, &value) in lanes.iter_mut().zip(eight) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + b) + (c + d)) + ((e + f) + (g + h))
    })
}

/// Returns the Euclidean norm from block sums in the order of their blocks.
#[must_use]
pub fn norm(block_sums: impl Iterator<Item = f64>) -> f64 {
    block_sums.sum::<f64>().sqrt()
}

/// Returns the factor that scales a gradient of norm `norm` to a norm of at most `limit`.
#[must_use]
pub fn clip_factor(norm: f64, limit: f64) -> f32 {
    if norm > limit {
        (limit / norm) as f32
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_at_block_borders_give_the_bits_of_the_whole() {
        let values: Vec<f32> = (0..1000)
            .map(|i| (i as f32 * 0.37).fract() * 1e3 - 400.0)
            .collect();
        let whole = norm(block_sums(&values));
        for blocks in 0..=values.len() / BLOCK {
            let (left, right) = values.split_at(blocks * BLOCK);
            let halves = norm(block_sums(left).chain(block_sums(right)));
            assert_eq!(whole.to_bits(), halves.to_bits());
        }
        let plain = values
            .iter()
            .map(|&x| f64::from(x).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!((whole - plain).abs() < 1e-9 * plain);
    }

    #[test]
    fn clipping_only_shrinks() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(4.0, 1.0), 0.25);
        assert_eq!(clip_factor(0.0, 1.0), 1.0);
    }
}
