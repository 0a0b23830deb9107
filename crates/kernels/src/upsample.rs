//! Enlargement of images by repeating their elements.

/// Writes images `[planes, height, width]` enlarged by a factor: each element becomes a square.
///
/// # Panics
/// If lengths do not match.
pub fn upsample(x: &[f32], width: usize, factor: usize, y: &mut [f32]) {
    assert_eq!(
        y.len(),
        x.len() * factor * factor,
        "elements of an enlargement"
    );
    let rows = y.chunks_exact_mut((width * factor * factor).max(1));
    for (x, y) in x.chunks_exact(width.max(1)).zip(rows) {
        for y in y.chunks_exact_mut(width * factor) {
            for (x, y) in x.iter().zip(y.chunks_exact_mut(factor)) {
                y.fill(*x);
            }
        }
    }
}

/// Computes `dx`, the gradient of the input of [`upsample`].
///
/// # Panics
/// If lengths do not match.
pub fn upsample_backward(dy: &[f32], width: usize, factor: usize, dx: &mut [f32]) {
    assert_eq!(
        dy.len(),
        dx.len() * factor * factor,
        "elements of an enlargement"
    );
    dx.fill(0.0);
    let rows = dy.chunks_exact((width * factor * factor).max(1));
    for (dx, dy) in dx.chunks_exact_mut(width.max(1)).zip(rows) {
        for dy in dy.chunks_exact(width * factor) {
            for (dx, dy) in dx.iter_mut().zip(dy.chunks_exact(factor)) {
                *dx += dy.iter().sum::<f32>();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    #[test]
    fn elements_become_squares_and_return_their_sums() {
        at_every_level(|| {
            let mut y = [0.0; 16];
            upsample(&[1.0, 2.0, 3.0, 4.0], 2, 2, &mut y);
            assert_eq!(y[..8], [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
            let mut dx = [f32::NAN; 4];
            upsample_backward(&y, 2, 2, &mut dx);
            assert_eq!(dx, [4.0, 8.0, 12.0, 16.0]);
        });
    }
}
