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

/// `max(x, 0)` in place; `open[i]` becomes 1 where the result is above zero, else 0.
///
/// # Panics
/// When lengths differ.
pub fn rectified_noting(values: &mut [f32], open: &mut [u8]) {
    assert_eq!(values.len(), open.len(), "lengths of a rectifier's notes");
    vectorised(Noting { values, open });
}

struct Noting<'a> {
    values: &'a mut [f32],
    open: &'a mut [u8],
}

impl Vectorised for Noting<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (value, open) in self.values.iter_mut().zip(self.open) {
            *value = if *value <= 0.0 { 0.0 } else { *value };
            *open = u8::from(*value > 0.0);
        }
    }
}

/// Shuts a gradient, in place, where the notes of [`rectified_noting`] say so.
///
/// # Panics
/// When lengths differ.
pub fn shut(gradient: &mut [f32], open: &[u8]) {
    assert_eq!(gradient.len(), open.len(), "lengths of a rectifier's notes");
    vectorised(Shut { gradient, open });
}

struct Shut<'a> {
    gradient: &'a mut [f32],
    open: &'a [u8],
}

impl Vectorised for Shut<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (gradient, open) in self.gradient.iter_mut().zip(self.open) {
            *gradient = if *open == 0 { 0.0 } else { *gradient };
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
        let (mut noted, mut open) = (x.clone(), vec![7; 40]);
        rectified_noting(&mut noted, &mut open);
        let dy: Vec<f32> = (0..40).map(|i| i as f32).collect();
        let mut dx = vec![f32::NAN; 40];
        rectified_backward(&y, &dy, &mut dx);
        let mut in_place = dy.clone();
        shut(&mut in_place, &open);
        assert_eq!(in_place, dx);
        for i in (0..40).filter(|&i| i != 3) {
            assert_eq!((y[i], noted[i]), (x[i].max(0.0), y[i]));
            assert_eq!(dx[i], if x[i] > 0.0 { dy[i] } else { 0.0 });
        }
        assert!(y[3].is_nan() && noted[3].is_nan() && dx[3] == 0.0);
    }
}
