//! Synthetic shapes: discs and squares on a noisy image, with a mask that marks their pixels. Each sample is computed
//! independently when it is read.

use std::sync::Arc;

use ronde_core::Epoch;
use ronde_core::seed::{Purpose, SeedTree};

use super::SplitSizes;
use crate::dataset::{DatasetDescription, check_form};
use crate::dataset::{Split, Targets};
use crate::error::DataError;
use crate::memory::MemoryDataset;
use crate::memory::SampleSource;

/// The identifier of the random stream of a sample's shapes; that of its noise follows.
const SHAPES: u64 = 5;
const NOISE: u64 = 6;

/// The maximum number of shapes in an image; the minimum is one.
const SHAPES_MAX: f32 = 3.0;
/// The greatest value of the noise. A shape adds less than this, so that no pixel alone shows where a shape is.
const NOISE_MAX: f32 = 0.6;
/// The value that a shape adds to its pixels.
const BRIGHTNESS: f32 = 0.4;

/// Images of `side` x `side` values in `[0, 1)`. Cost of a read: a quarter of a Philox block per pixel.
struct SyntheticShapes {
    seed: u64,
    first: u64,
    side: usize,
}

/// Returns a training set and a test set of different images.
pub(super) fn split(counts: SplitSizes, side: usize, seed: u64) -> Result<Split, DataError> {
    let pixels = check_form(&[1, side, side], 1)?;
    Ok(counts.split(|numbers, _| {
        let identity =
            format!("synthetic_shapes version 1: seed {seed}, samples {numbers:?}, side {side}");
        let source = SyntheticShapes {
            seed,
            first: numbers.start,
            side,
        };
        MemoryDataset::of(
            Arc::new(source),
            numbers.end - numbers.start,
            DatasetDescription {
                targets: Targets::Values,
                targets_per_sample: pixels,
                ..DatasetDescription::new(vec![1, side, side], 1, identity)
            },
        )
    }))
}

/// A disc or a square.
struct PlacedShape {
    is_disc: bool,
    centre: [f32; 2],
    /// Half of its side, or its radius.
    reach: f32,
}

impl PlacedShape {
    /// Places a shape by four random numbers in `[0, 1)`.
    fn of(numbers: &[f32], side: usize) -> Self {
        let side = side as f32;
        Self {
            is_disc: numbers[0] < 0.5,
            centre: [numbers[1] * side, numbers[2] * side],
            reach: side * (0.1 + 0.15 * numbers[3]),
        }
    }

    fn covers(&self, row: usize, column: usize) -> bool {
        let [down, right] = [row as f32 - self.centre[0], column as f32 - self.centre[1]];
        if self.is_disc {
            down * down + right * right <= self.reach * self.reach
        } else {
            down.abs() <= self.reach && right.abs() <= self.reach
        }
    }
}

impl SampleSource for SyntheticShapes {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let stream = |what| {
            let coordinates = [what, self.first + sample];
            SeedTree::new(self.seed).stream(Purpose::Synthetic, &coordinates)
        };
        let mut numbers = [0.0; 1 + 4 * SHAPES_MAX as usize];
        stream(SHAPES).fill_uniform(&mut numbers);
        let count = 1 + (numbers[0] * SHAPES_MAX) as usize;
        let places = numbers[1..].chunks_exact(4).take(count);
        let shapes: Vec<PlacedShape> = places.map(|n| PlacedShape::of(n, self.side)).collect();
        stream(NOISE).fill_uniform(out);
        for (pixel, (value, target)) in out.iter_mut().zip(targets).enumerate() {
            let (row, column) = (pixel / self.side, pixel % self.side);
            let is_covered = shapes.iter().any(|shape| shape.covers(row, column));
            let mask = f32::from(u8::from(is_covered));
            *value = *value * NOISE_MAX + mask * BRIGHTNESS;
            *target = mask.to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetExt;

    #[test]
    fn masks_mark_the_brighter_pixels_and_samples_differ() {
        let counts = SplitSizes::new(20, 4).unwrap();
        let split = super::split(counts, 24, 3).unwrap();
        let (train, test) = (split.train, split.test.unwrap());
        let description = train.description();
        assert_eq!(
            (description.targets_per_sample, description.classes),
            (576, 1)
        );
        assert_ne!(description.identity, test.description().identity);
        let (mut sums, mut counts) = ([0.0; 2], [0.0; 2]);
        for sample in 0..20 {
            let (pixels, mask) = train.sample(sample).unwrap();
            assert!(pixels.iter().all(|x| (0.0..1.0).contains(x)));
            for (pixel, target) in pixels.iter().zip(&mask) {
                let inside = usize::from(f32::from_bits(*target) == 1.0);
                assert!(inside == 1 || *target == 0);
                sums[inside] += pixel;
                counts[inside] += 1.0;
            }
            assert_eq!(train.sample(sample).unwrap(), (pixels, mask));
        }
        let [outside, inside] = [0, 1].map(|kind| sums[kind] / counts[kind]);
        assert!(
            (inside - outside - BRIGHTNESS).abs() < 0.02,
            "{outside} {inside}"
        );
        assert!(counts[1] > 0.02 * counts[0] && counts[1] < 0.5 * counts[0]);
        assert_ne!(train.sample(0).unwrap(), train.sample(1).unwrap());
        assert!(super::split(SplitSizes::new(1, 0).unwrap(), 0, 3).is_err());
    }
}
