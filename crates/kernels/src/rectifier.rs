//! The rectifier: negative values become zero.

use crate::simd::{Vectorised, vectorised};

/// Computes `max(x, 0)` in place. NaN remains NaN, so that it is noticed.
pub fn rectified(values: &mut [f32]) {
    vectorised(RectifierForward(values));
}

struct RectifierForward<'a>(&'a mut [f32]);

impl Vectorised for RectifierForward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for value in self.0 {
            *value = if *value <= 0.0 { 0.0 } else { *value };
        }
    }
}

/// Computes `dx`: zero where the output `y` is zero, otherwise the gradient `dy`, also where `y` is NaN.
///
/// # Panics
/// If lengths differ.
pub fn rectified_backward(y: &[f32], dy: &[f32], dx: &mut [f32]) {
    assert!(
        y.len() == dx.len() && dy.len() == dx.len(),
        "lengths of a rectifier's gradient"
    );
    vectorised(RectifierBackward { y, dy, dx });
}

struct RectifierBackward<'a> {
    y: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl Vectorised for RectifierBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((dx, y), dy) in self.dx.iter_mut().zip(self.y).zip(self.dy) {
            *dx = if *y <= 0.0 { 0.0 } else { *dy };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    #[test]
    fn gradients_below_zero_are_masked_and_nan_remains() {
        at_every_level(|| {
            let mut y: Vec<f32> = (-20..20).map(|i| i as f32 / 4.0).collect();
            y[3] = f32::NAN;
            let x = y.clone();
            rectified(&mut y);
            let dy: Vec<f32> = (0..40).map(|i| i as f32).collect();
            let mut dx = vec![f32::NAN; 40];
            rectified_backward(&y, &dy, &mut dx);
            for i in (0..40).filter(|&i| i != 3) {
                assert_eq!(y[i], x[i].max(0.0));
                assert_eq!(dx[i], if x[i] > 0.0 { dy[i] } else { 0.0 });
            }
            assert!(y[3].is_nan() && dx[3] == dy[3]);
        });
    }
}
