//! Element-wise sums and products of whole slices.

use crate::simd::{Vectorised, vectorised};

/// Adds `x` to `y`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn add_to(y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len(), "lengths of a sum");
    vectorised(Combined {
        y,
        x,
        combine: |y, x| y + x,
    });
}

/// Adds `x` to `y`, element by element; a sum that is NaN becomes the canonical NaN, so that its payload does not depend on the order
/// of the operands.
///
/// # Panics
/// If the lengths differ.
pub fn add_exactly(y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len(), "lengths of a sum");
    vectorised(Combined {
        y,
        x,
        combine: |y, x| {
            let sum: f32 = y + x;
            if sum.is_nan() { f32::NAN } else { sum }
        },
    });
}

/// Multiplies `y` by `factors`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn multiply_by(y: &mut [f32], factors: &[f32]) {
    assert_eq!(y.len(), factors.len(), "lengths of a product");
    vectorised(Combined {
        y,
        x: factors,
        combine: |y, x| y * x,
    });
}

struct Combined<'a, F> {
    y: &'a mut [f32],
    x: &'a [f32],
    combine: F,
}

impl<F: Fn(f32, f32) -> f32> Vectorised for Combined<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = (self.combine)(*y, *x);
        }
    }
}

/// Adds a number to each channel of `y`, which is `[samples, channels, places]`.
///
/// # Panics
/// If the length of `y` is not a multiple of the number of channels times `places`.
pub fn add_to_channels(y: &mut [f32], places: usize, added: &[f32]) {
    check_channels(y.len(), places, added.len());
    vectorised(AddedToChannels { y, places, added });
}

struct AddedToChannels<'a> {
    y: &'a mut [f32],
    places: usize,
    added: &'a [f32],
}

impl Vectorised for AddedToChannels<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.added.iter().cycle();
        for (y, added) in self.y.chunks_exact_mut(self.places.max(1)).zip(channels) {
            y.iter_mut().for_each(|y| *y += added);
        }
    }
}

/// Writes the sum of each channel of `x`, which is `[samples, channels, places]`.
///
/// # Panics
/// If the length of `x` is not a multiple of the number of channels times `places`.
pub fn channel_sums(x: &[f32], places: usize, sums: &mut [f32]) {
    check_channels(x.len(), places, sums.len());
    sums.fill(0.0);
    vectorised(ChannelSums { x, places, sums });
}

fn check_channels(elements: usize, places: usize, channels: usize) {
    assert!(
        elements.is_multiple_of((channels * places).max(1)),
        "{elements} elements of {channels} channels of {places}"
    );
}

/// The number of partial sums of a channel of one sample.
const LANES: usize = 16;

struct ChannelSums<'a> {
    x: &'a [f32],
    places: usize,
    sums: &'a mut [f32],
}

impl Vectorised for ChannelSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let places = self.places.max(1);
        for sample in self.x.chunks_exact((self.sums.len() * places).max(1)) {
            for (sum, x) in self.sums.iter_mut().zip(sample.chunks_exact(places)) {
                let mut lanes = [0.0; LANES];
                let (whole, rest) = x.as_chunks::<LANES>();
                for x in whole {
                    for (lane, x) in lanes.iter_mut().zip(x) {
                        *lane += x;
                    }
                }
                for (lane, x) in lanes.iter_mut().zip(rest) {
                    *lane += x;
                }
                *sum += lanes.iter().sum::<f32>();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    #[test]
    fn slices_are_combined_element_by_element() {
        at_every_level(|| {
            let x: Vec<f32> = (0..70).map(|i| i as f32).collect();
            let mut y = vec![2.0; 70];
            multiply_by(&mut y, &x);
            add_to(&mut y, &x);
            assert!(y.iter().zip(&x).all(|(y, x)| *y == 3.0 * x));
        });
    }

    #[test]
    fn channels_are_shifted_and_summed() {
        at_every_level(|| {
            let (channels, places) = (3, 37);
            let mut y = vec![0.0; 2 * channels * places];
            add_to_channels(&mut y, places, &[1.0, 2.0, 4.0]);
            assert_eq!((y[0], y[places], y[5 * places]), (1.0, 2.0, 4.0));
            let mut sums = vec![f32::NAN; channels];
            channel_sums(&y, places, &mut sums);
            assert_eq!(sums, [74.0, 148.0, 296.0]);
            channel_sums(&[], places, &mut sums);
            assert_eq!(sums, [0.0; 3]);
        });
    }
}
