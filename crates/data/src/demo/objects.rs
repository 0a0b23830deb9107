//! Synthetic objects: coloured ellipses, rectangles and triangles on a noisy image, with the box of each. Each sample is
//! computed independently when it is read.

use std::sync::Arc;

use ronde_core::Epoch;
use ronde_core::seed::{Purpose, SeedTree};

use super::SplitSizes;
use crate::dataset::{DatasetDescription, check_form};
use crate::dataset::{IGNORED, Split, Targets};
use crate::error::DataError;
use crate::memory::MemoryDataset;
use crate::memory::SampleSource;

/// The identifier of the random stream of a sample's objects; that of its noise follows.
const OBJECTS: u64 = 11;
const NOISE: u64 = 12;

/// The number of kinds of objects: ellipses, rectangles and triangles.
const CLASSES: u32 = 3;
/// The maximum number of objects in an image.
const OBJECTS_MAX: usize = 4;
/// The number of objects that are tried; one that would overlap a previous one is left out.
const TRIES: usize = 16;
/// The random numbers of an object: kind, centre, half of height and width, colour.
const NUMBERS: usize = 8;
const COLOURS: usize = 3;
/// The targets of a box: the class, and the four sides.
const BOX_TARGETS: usize = 5;
/// The greatest value of the noise. An object adds less than this to any colour.
const NOISE_MAX: f32 = 0.5;
/// The smallest value that an object adds to a colour of its pixels; the greatest makes a value of 1.
const BRIGHTNESS_MIN: f32 = 0.1;

/// Images of 3 x `side` x `side` values in `[0, 1)`. Cost of a read: a quarter of a Philox block per value.
struct SyntheticObjects {
    seed: u64,
    first: u64,
    side: usize,
}

/// Returns a training set and a test set of different images.
pub(super) fn split(counts: SplitSizes, side: usize, seed: u64) -> Result<Split, DataError> {
    check_form(&[COLOURS, side, side], CLASSES)?;
    Ok(counts.split(|numbers, _| {
        let identity =
            format!("synthetic_objects version 1: seed {seed}, samples {numbers:?}, side {side}");
        let source = SyntheticObjects {
            seed,
            first: numbers.start,
            side,
        };
        MemoryDataset::of(
            Arc::new(source),
            numbers.end - numbers.start,
            DatasetDescription {
                targets: Targets::Boxes,
                targets_per_sample: BOX_TARGETS * OBJECTS_MAX,
                ..DatasetDescription::new(vec![COLOURS, side, side], CLASSES, identity)
            },
        )
    }))
}

/// An object with its box; lengths are shares of the image's side.
#[derive(Debug, Clone, Copy)]
struct PlacedObject {
    class: u32,
    centre: [f32; 2],
    /// Half of height and width.
    reach: [f32; 2],
    colour: [f32; COLOURS],
}

impl PlacedObject {
    /// Places an object inside the image by random numbers in `[0, 1)`.
    fn of(numbers: &[f32]) -> Self {
        let reach = [numbers[3], numbers[4]].map(|number| 0.1 + 0.1 * number);
        let centre = [0, 1].map(|axis| reach[axis] + numbers[1 + axis] * (1.0 - 2.0 * reach[axis]));
        let brightness = 1.0 - NOISE_MAX - BRIGHTNESS_MIN;
        Self {
            class: (numbers[0] * CLASSES as f32) as u32,
            centre,
            reach,
            colour: [5, 6, 7].map(|at| BRIGHTNESS_MIN + numbers[at] * brightness),
        }
    }

    /// Returns top, left, bottom and right.
    fn sides(&self) -> [f32; 4] {
        let ([down, across], [height, width]) = (self.centre, self.reach);
        let sides = [down - height, across - width, down + height, across + width];
        sides.map(|side| side.clamp(0.0, 1.0))
    }

    fn overlaps(&self, other: &Self) -> bool {
        (0..2).all(|axis| {
            (self.centre[axis] - other.centre[axis]).abs() < self.reach[axis] + other.reach[axis]
        })
    }

    /// Returns whether it covers a point, a share of the image's height and width.
    fn covers(&self, point: [f32; 2]) -> bool {
        // From -1 to 1 inside the box.
        let [down, across] =
            [0, 1].map(|axis| (point[axis] - self.centre[axis]) / self.reach[axis]);
        match self.class {
            0 => down * down + across * across <= 1.0,
            1 => down.abs() <= 1.0 && across.abs() <= 1.0,
            _ => down.abs() <= 1.0 && across.abs() <= (1.0 + down) / 2.0,
        }
    }
}

/// Returns the objects of a sample by its random numbers; at least one.
fn placed(numbers: &[f32]) -> Vec<PlacedObject> {
    let count = 1 + (numbers[0] * OBJECTS_MAX as f32) as usize;
    let mut objects: Vec<PlacedObject> = Vec::new();
    for numbers in numbers[1..].chunks_exact(NUMBERS) {
        let object = PlacedObject::of(numbers);
        if objects.len() < count && !objects.iter().any(|other| other.overlaps(&object)) {
            objects.push(object);
        }
    }
    objects
}

impl SampleSource for SyntheticObjects {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let stream = |what| {
            let coordinates = [what, self.first + sample];
            SeedTree::new(self.seed).stream(Purpose::Synthetic, &coordinates)
        };
        let mut numbers = [0.0; 1 + NUMBERS * TRIES];
        stream(OBJECTS).fill_uniform(&mut numbers);
        let objects = placed(&numbers);
        targets.fill(0);
        for (at, target) in targets.chunks_exact_mut(BOX_TARGETS).enumerate() {
            target[0] = objects.get(at).map_or(IGNORED, |object| object.class);
            let sides = objects.get(at).map_or([0.0; 4], PlacedObject::sides);
            target[1..].copy_from_slice(&sides.map(f32::to_bits));
        }
        stream(NOISE).fill_uniform(out);
        let pixels = self.side * self.side;
        for pixel in 0..pixels {
            let point = [pixel / self.side, pixel % self.side];
            let point = point.map(|at| (at as f32 + 0.5) / self.side as f32);
            let object = objects.iter().find(|object| object.covers(point));
            for colour in 0..COLOURS {
                let value = &mut out[colour * pixels + pixel];
                *value = *value * NOISE_MAX + object.map_or(0.0, |object| object.colour[colour]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetExt;

    #[test]
    fn boxes_hold_the_brighter_pixels_and_do_not_overlap() {
        let split = super::split(SplitSizes::new(60, 4).unwrap(), 32, 3).unwrap();
        let (train, test) = (split.train, split.test.unwrap());
        let description = train.description();
        assert_eq!(
            (description.classes, description.targets),
            (3, Targets::Boxes)
        );
        assert_ne!(description.identity, test.description().identity);
        let (mut classes, mut counts) = ([0; 3], [0; 5]);
        let (mut sums, mut pixels) = ([0.0; 2], [0.0; 2]);
        for sample in 0..60 {
            let (image, targets) = train.sample(sample).unwrap();
            assert!(image.iter().all(|x| (0.0..1.0).contains(x)));
            let mut boxes: Vec<[f32; 4]> = Vec::new();
            for target in targets
                .chunks_exact(5)
                .filter(|target| target[0] != IGNORED)
            {
                classes[target[0] as usize] += 1;
                let sides = [1, 2, 3, 4].map(|at| f32::from_bits(target[at]));
                let [top, left, bottom, right] = sides;
                assert!(0.0 <= top && top + 0.15 < bottom && bottom <= 1.0);
                assert!(0.0 <= left && left + 0.15 < right && right <= 1.0);
                for [t, l, b, r] in &boxes {
                    assert!(bottom <= *t || *b <= top || right <= *l || *r <= left);
                }
                boxes.push(sides);
            }
            counts[boxes.len()] += 1;
            for (at, value) in image.iter().enumerate() {
                let [row, column] = [at / 32 % 32, at % 32].map(|i| (i as f32 + 0.5) / 32.0);
                let is_inside = boxes.iter().any(|[top, left, bottom, right]| {
                    *top <= row && row <= *bottom && *left <= column && column <= *right
                });
                sums[usize::from(is_inside)] += value;
                pixels[usize::from(is_inside)] += 1.0;
            }
            assert_eq!(train.sample(sample).unwrap(), (image, targets));
        }
        assert!(
            counts[0] == 0 && counts[1..].iter().all(|&count| count > 0),
            "{counts:?}"
        );
        assert!(classes.iter().all(|&count| count > 20), "{classes:?}");
        let [outside, inside] = [0, 1].map(|kind| sums[kind] / pixels[kind]);
        assert!((outside - NOISE_MAX / 2.0).abs() < 0.01 && inside > outside + 0.15);
        assert_ne!(train.sample(0).unwrap(), train.sample(1).unwrap());
        assert!(super::split(SplitSizes::new(1, 0).unwrap(), 0, 3).is_err());
    }
}
