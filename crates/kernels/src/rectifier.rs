//! The rectifier: negative values become zero.

use crate::simd::{Vectorised, vectorised};

/// `max(x, 0)` in place; what is not a number stays so, so that it shows.
pub fn rectified(values: &mut [f32]) {
    vectorised(Forward(values));
}

struct Forward<'a>(&'a mut [f32]);

impl Vectorised for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for value in self.0 {
            *value = if *value <= 0.0 { 0.0 } else { *value };
        }
    }
}

/// `dx`: the gradient `dy` where the output `y` was above zero, else zero.
///
/// # Panics
/// When lengths differ.
pub fn rectified_backward(y: &[f32], dy: &[f32], dx: &mut [f32]) {
    assert!(
        y.len() == dx.len() && dy.len() == dx.len(),
        "lengths of a rectifier's gradient"
    );
    vectorised(Backward { y, dy, dx });
}

struct Backward<'a> {
    y: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl Vectorised for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((dx, y), dy) in self.dx.iter_mut().zip(self.y).zip(self.dy) {
            *dx = if *y > 0.0 { *dy } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_zero_is_shut_and_a_nan_shows() {
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
        assert!(y[3].is_nan() && dx[3] == 0.0);
    }
}
