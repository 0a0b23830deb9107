//! Squared distances between points and centres, and their gradients.

use crate::simd::{Vectorised, vectorised};

/// The number of sums over which the elements of a distance are distributed, equal at every level: the bits do not
/// depend on the level.
const LANES: usize = 16;

/// Writes the squared distance of each point from each centre, `[points, centres]`. Points and centres are rows of
/// `width` elements. Cost: three operations for each element of a point and each centre.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn squared_distances(points: &[f32], centres: &[f32], width: usize, distances: &mut [f32]) {
    let rows = rows(points, centres, width);
    assert_eq!(distances.len(), rows[0] * rows[1], "distances");
    if width == 0 {
        distances.fill(0.0);
        return;
    }
    vectorised(Distances {
        points,
        centres,
        width,
        distances,
    });
}

/// Adds to the gradient of each centre its part of [`squared_distances`]: the sum over points of `2 * (centre - point)`
/// times the gradient of their distance, which is `gradient`, `[points, centres]`.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn add_centre_gradients(
    gradient: &[f32],
    points: &[f32],
    centres: &[f32],
    width: usize,
    to: &mut [f32],
) {
    let rows = rows(points, centres, width);
    assert_eq!(gradient.len(), rows[0] * rows[1], "gradient");
    assert_eq!(to.len(), centres.len(), "gradients of the centres");
    for (point, centre, factor) in factors(gradient, rows[1]) {
        vectorised(AddDifference {
            factor,
            from: &centres[centre * width..][..width],
            minus: &points[point * width..][..width],
            to: &mut to[centre * width..][..width],
        });
    }
}

/// Writes the gradient of each point: the sum over centres of `2 * (point - centre)` times the gradient of their
/// distance, which is `gradient`, `[points, centres]`.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn point_gradients(
    gradient: &[f32],
    points: &[f32],
    centres: &[f32],
    width: usize,
    to: &mut [f32],
) {
    let rows = rows(points, centres, width);
    assert_eq!(gradient.len(), rows[0] * rows[1], "gradient");
    assert_eq!(to.len(), points.len(), "gradients of the points");
    to.fill(0.0);
    for (point, centre, factor) in factors(gradient, rows[1]) {
        vectorised(AddDifference {
            factor,
            from: &points[point * width..][..width],
            minus: &centres[centre * width..][..width],
            to: &mut to[point * width..][..width],
        });
    }
}

/// Returns point, centre and twice the gradient of each distance that has one: of clusters, only the nearest one has.
fn factors(gradient: &[f32], centres: usize) -> impl Iterator<Item = (usize, usize, f32)> {
    let of_pairs = gradient.iter().enumerate();
    let with_gradient = of_pairs.filter(|(_, gradient)| **gradient != 0.0);
    with_gradient.map(move |(pair, gradient)| (pair / centres, pair % centres, 2.0 * gradient))
}

/// Returns the numbers of points and centres.
fn rows(points: &[f32], centres: &[f32], width: usize) -> [usize; 2] {
    [points, centres].map(|values| {
        let count = values.len().checked_div(width).unwrap_or(0);
        assert_eq!(values.len(), count * width, "rows of {width} elements");
        count
    })
}

struct Distances<'a> {
    points: &'a [f32],
    centres: &'a [f32],
    width: usize,
    distances: &'a mut [f32],
}

impl Vectorised for Distances<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let centres = self.centres.chunks_exact(self.width);
        let rows = self.distances.chunks_exact_mut(centres.len().max(1));
        for (point, row) in self.points.chunks_exact(self.width).zip(rows) {
            for (centre, distance) in centres.clone().zip(row) {
                *distance = squared_distance(point, centre);
            }
        }
    }
}

#[inline(always)]
fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (whole_a, rest_a) = a.as_chunks::<LANES>();
    let (whole_b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in whole_a.iter().zip(whole_b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += (a - b) * (a - b);
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(rest_a).zip(rest_b) {
        *sum += (a - b) * (a - b);
    }
    for half in [LANES / 2, LANES / 4, LANES / 8, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

struct AddDifference<'a> {
    factor: f32,
    from: &'a [f32],
    minus: &'a [f32],
    to: &'a mut [f32],
}

impl Vectorised for AddDifference<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((to, from), minus) in self.to.iter_mut().zip(self.from).zip(self.minus) {
            *to += self.factor * (from - minus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, close, values};

    #[test]
    fn distances_are_those_of_the_definition_for_any_width() {
        at_every_level(|| {
            for width in [1, 2, 15, 16, 17, 100] {
                let (points, centres) = (values(3 * width, 1), values(4 * width, 2));
                let mut distances = [f32::NAN; 12];
                squared_distances(&points, &centres, width, &mut distances);
                for (index, &got) in distances.iter().enumerate() {
                    let point = &points[index / 4 * width..][..width];
                    let centre = &centres[index % 4 * width..][..width];
                    let squares = point.iter().zip(centre);
                    let expected: f64 = squares.map(|(a, b)| f64::from(a - b).powi(2)).sum();
                    close(got, expected, 1e-6);
                }
            }
        });
    }

    #[test]
    fn gradients_are_those_of_the_definition() {
        at_every_level(|| {
            let (points, centres, gradient) = (values(6, 1), values(4, 2), values(6, 3));
            let (mut of_points, mut of_centres) = ([f32::NAN; 6], [0.5; 4]);
            point_gradients(&gradient, &points, &centres, 2, &mut of_points);
            add_centre_gradients(&gradient, &points, &centres, 2, &mut of_centres);
            let part = |point: usize, centre: usize, axis: usize| {
                let difference = points[2 * point + axis] - centres[2 * centre + axis];
                2.0 * f64::from(gradient[2 * point + centre]) * f64::from(difference)
            };
            for (index, found) in of_points.iter().enumerate() {
                let (point, axis) = (index / 2, index % 2);
                let expected = part(point, 0, axis) + part(point, 1, axis);
                close(*found, expected, 1e-6);
            }
            for (index, found) in of_centres.iter().enumerate() {
                let (centre, axis) = (index / 2, index % 2);
                let sum: f64 = (0..3).map(|point| part(point, centre, axis)).sum();
                close(*found, 0.5 - sum, 1e-6);
            }
        });
    }

    #[test]
    fn no_points_and_no_elements_are_allowed() {
        at_every_level(|| {
            // Without points or without centres distances and their gradients are missing.
            squared_distances(&[], &[1.0], 1, &mut []);
            squared_distances(&[1.0], &[], 1, &mut []);
            point_gradients(&[], &[], &[1.0], 1, &mut []);
            let mut of_points = [f32::NAN; 2];
            point_gradients(&[], &[1.0, 2.0], &[], 1, &mut of_points);
            assert_eq!(of_points, [0.0; 2]);
            let mut of_centres = [3.0];
            add_centre_gradients(&[], &[], &[1.0], 1, &mut of_centres);
            assert_eq!(of_centres, [3.0], "nothing is added");
            squared_distances(&[], &[], 0, &mut []);
            let of_no_width = || squared_distances(&[1.0], &[], 0, &mut []);
            assert!(std::panic::catch_unwind(of_no_width).is_err());
        });
    }
}
