//! Pooling of images: the greatest value of each window, and means of areas.

/// The window of a convolution or pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The height and width of the window.
    pub side: [usize; 2],
    /// The distance from one window to the next along height and width, at least 1.
    pub stride: [usize; 2],
    /// The number of rows above and below, and of columns left and right, that are added to the image: zeros for a
    /// convolution, ignored by a maximum.
    pub padding: [usize; 2],
}

impl SlidingWindow {
    /// A square window of a side, with a stride and a padding.
    #[must_use]
    pub const fn new(side: usize, stride: usize, padding: usize) -> Self {
        Self {
            side: [side; 2],
            stride: [stride; 2],
            padding: [padding; 2],
        }
    }

    /// A window of an odd height and width that moves by 1, with the padding that keeps the size of the image.
    #[must_use]
    pub const fn same(side: [usize; 2]) -> Self {
        Self {
            side,
            stride: [1; 2],
            padding: [side[0] / 2, side[1] / 2],
        }
    }

    /// Returns the numbers of windows along the height and width of an image; 0 where the window is longer than the
    /// image with its padding.
    #[must_use]
    pub fn count(&self, size: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|axis| {
            let padded = size[axis] + 2 * self.padding[axis];
            match padded.checked_sub(self.side[axis]) {
                Some(rest) => rest / self.stride[axis].max(1) + 1,
                None => 0,
            }
        })
    }

    /// Returns whether every window has at least one element, and covers a part of the image.
    #[must_use]
    pub fn touches_image(&self) -> bool {
        [0, 1]
            .iter()
            .all(|&axis| self.padding[axis] < self.side[axis])
    }

    /// Returns the part of the window number `index` along an axis inside a length.
    fn inside(&self, axis: usize, index: usize, length: usize) -> std::ops::Range<usize> {
        let (start, padding) = (index * self.stride[axis], self.padding[axis]);
        let end = (start + self.side[axis])
            .saturating_sub(padding)
            .min(length);
        start.saturating_sub(padding).min(end)..end
    }
}

/// Writes the greatest value of each window of images `[planes, height, width]` to `y`, and its position in its plane
/// to `from`. NaN counts as the greatest value; of equal values the first is taken.
///
/// # Panics
/// If lengths do not match, or the padding is not smaller than the window.
pub fn max_pool(
    x: &[f32],
    [height, width]: [usize; 2],
    window: SlidingWindow,
    y: &mut [f32],
    from: &mut [u32],
) {
    let [rows, columns] = window.count([height, width]);
    check_pool(x.len(), [height, width], y.len(), rows * columns);
    assert!(
        from.len() == y.len() && window.touches_image(),
        "positions of a pooling by {window:?}"
    );
    let outputs = y.chunks_exact_mut((rows * columns).max(1));
    let outputs = outputs.zip(from.chunks_exact_mut((rows * columns).max(1)));
    for (x, (y, from)) in x.chunks_exact((height * width).max(1)).zip(outputs) {
        for row in 0..rows {
            let seen = window.inside(0, row, height);
            for column in 0..columns {
                let along = window.inside(1, column, width);
                let mut at = seen.start * width + along.start;
                let mut greatest = x[at];
                for line in seen.clone() {
                    let start = line * width;
                    for (place, &value) in
                        x[start + along.start..start + along.end].iter().enumerate()
                    {
                        if value > greatest || (value.is_nan() && !greatest.is_nan()) {
                            (greatest, at) = (value, start + along.start + place);
                        }
                    }
                }
                y[row * columns + column] = greatest;
                from[row * columns + column] = at as u32;
            }
        }
    }
}

/// Computes `dx`, the gradient of the input of [`max_pool`].
///
/// # Panics
/// If lengths do not match.
pub fn max_pool_backward(
    dy: &[f32],
    from: &[u32],
    [height, width]: [usize; 2],
    window: SlidingWindow,
    dx: &mut [f32],
) {
    let each = window.count([height, width]).iter().product();
    check_pool(dx.len(), [height, width], dy.len(), each);
    assert_eq!(from.len(), dy.len(), "positions of a pooling");
    dx.fill(0.0);
    let given = dy
        .chunks_exact(each.max(1))
        .zip(from.chunks_exact(each.max(1)));
    for (dx, (dy, from)) in dx.chunks_exact_mut((height * width).max(1)).zip(given) {
        for (dy, from) in dy.iter().zip(from) {
            dx[*from as usize] += dy;
        }
    }
}

/// Writes the mean of each window of images `[planes, height, width]`; padding counts as zeros.
///
/// # Panics
/// If lengths do not match.
pub fn average_pool(x: &[f32], [height, width]: [usize; 2], window: SlidingWindow, y: &mut [f32]) {
    let [rows, columns] = window.count([height, width]);
    check_pool(x.len(), [height, width], y.len(), rows * columns);
    let count = (window.side[0] * window.side[1]) as f32;
    let outputs = y.chunks_exact_mut((rows * columns).max(1));
    for (x, y) in x.chunks_exact((height * width).max(1)).zip(outputs) {
        for row in 0..rows {
            for column in 0..columns {
                let along = window.inside(1, column, width);
                let mut sum = 0.0;
                for line in window.inside(0, row, height) {
                    for x in &x[line * width + along.start..line * width + along.end] {
                        sum += x;
                    }
                }
                y[row * columns + column] = sum / count;
            }
        }
    }
}

/// Computes `dx`, the gradient of the input of [`average_pool`].
///
/// # Panics
/// If lengths do not match.
pub fn average_pool_backward(
    dy: &[f32],
    [height, width]: [usize; 2],
    window: SlidingWindow,
    dx: &mut [f32],
) {
    let [rows, columns] = window.count([height, width]);
    check_pool(dx.len(), [height, width], dy.len(), rows * columns);
    dx.fill(0.0);
    let count = (window.side[0] * window.side[1]) as f32;
    let given = dy.chunks_exact((rows * columns).max(1));
    for (dx, dy) in dx.chunks_exact_mut((height * width).max(1)).zip(given) {
        for row in 0..rows {
            for column in 0..columns {
                let along = window.inside(1, column, width);
                let share = dy[row * columns + column] / count;
                for line in window.inside(0, row, height) {
                    for dx in &mut dx[line * width + along.start..line * width + along.end] {
                        *dx += share;
                    }
                }
            }
        }
    }
}

fn check_pool(input: usize, [height, width]: [usize; 2], output: usize, each: usize) {
    assert!(
        each > 0 && input.is_multiple_of((height * width).max(1)),
        "{input} elements of images of {height} x {width}"
    );
    assert_eq!(
        input / (height * width).max(1) * each,
        output,
        "outputs of a pooling"
    );
}

/// Areas that cover an image evenly, for their means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AverageAreas {
    /// The height and width of the input.
    pub size: [usize; 2],
    /// The numbers of areas along height and width.
    pub areas: [usize; 2],
}

impl AverageAreas {
    /// Returns the part of a length that an area covers; neighbours overlap where the number does not divide it.
    fn covered(&self, axis: usize, index: usize) -> std::ops::Range<usize> {
        let (length, count) = (self.size[axis], self.areas[axis]);
        index * length / count..((index + 1) * length).div_ceil(count)
    }

    /// Calls `each` with the output's index, its rows and columns, and its number of elements.
    fn each(
        &self,
        mut each: impl FnMut(usize, std::ops::Range<usize>, std::ops::Range<usize>, f32),
    ) {
        for row in 0..self.areas[0] {
            let rows = self.covered(0, row);
            for column in 0..self.areas[1] {
                let columns = self.covered(1, column);
                let count = rows.len() * columns.len();
                each(
                    row * self.areas[1] + column,
                    rows.clone(),
                    columns,
                    count as f32,
                );
            }
        }
    }

    /// Writes the mean of each area of images `[planes, height, width]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(&self, x: &[f32], y: &mut [f32]) {
        let (plane, each) = (self.size[0] * self.size[1], self.areas[0] * self.areas[1]);
        check_pool(x.len(), self.size, y.len(), each);
        let planes = x
            .chunks_exact(plane.max(1))
            .zip(y.chunks_exact_mut(each.max(1)));
        for (x, y) in planes {
            self.each(|area, rows, columns, count| {
                let mut sum = 0.0;
                for row in rows {
                    let start = row * self.size[1];
                    for x in &x[start + columns.start..start + columns.end] {
                        sum += x;
                    }
                }
                y[area] = sum / count;
            });
        }
    }

    /// Computes `dx`, the gradient of the input.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn backward(&self, dy: &[f32], dx: &mut [f32]) {
        let (plane, each) = (self.size[0] * self.size[1], self.areas[0] * self.areas[1]);
        check_pool(dx.len(), self.size, dy.len(), each);
        dx.fill(0.0);
        let planes = dx
            .chunks_exact_mut(plane.max(1))
            .zip(dy.chunks_exact(each.max(1)));
        for (dx, dy) in planes {
            self.each(|area, rows, columns, count| {
                for row in rows {
                    let start = row * self.size[1];
                    for dx in &mut dx[start + columns.start..start + columns.end] {
                        *dx += dy[area] / count;
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_every_level;

    #[test]
    fn windows_take_their_first_greatest_value_and_return_its_gradient() {
        at_every_level(|| {
            let x = [1.0, 5.0, 2.0, 5.0, 4.0, 3.0, f32::NAN, 8.0, 7.0];
            let window = SlidingWindow::new(2, 1, 0);
            let (mut y, mut from) = ([0.0; 4], [9; 4]);
            max_pool(&x, [3, 3], window, &mut y, &mut from);
            assert_eq!((y[0], y[1], y[3]), (5.0, 5.0, 8.0));
            assert!(y[2].is_nan());
            assert_eq!(from, [1, 1, 6, 7]);
            let mut dx = [f32::NAN; 9];
            max_pool_backward(&[1.0, 2.0, 4.0, 8.0], &from, [3, 3], window, &mut dx);
            assert_eq!(dx, [0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 4.0, 8.0, 0.0]);
        });
    }

    #[test]
    fn padding_is_ignored_and_planes_are_separate() {
        at_every_level(|| {
            let window = SlidingWindow::new(3, 2, 1);
            assert_eq!(window.count([4, 1]), [2, 1]);
            assert_eq!(SlidingWindow::new(3, 1, 0).count([2, 3]), [0, 1]);
            let x: Vec<f32> = (0..32).map(|i| -(i as f32)).collect();
            let (mut y, mut from) = (vec![0.0; 8], vec![0; 8]);
            max_pool(&x, [4, 4], window, &mut y, &mut from);
            assert_eq!(y, [0.0, -1.0, -4.0, -5.0, -16.0, -17.0, -20.0, -21.0]);
            assert_eq!(from[4..], [0, 1, 4, 5]);
        });
    }

    #[test]
    fn windows_are_averaged_with_zeros_around() {
        at_every_level(|| {
            let x: Vec<f32> = (1..=9).map(|i| i as f32).collect();
            let window = SlidingWindow::new(3, 2, 1);
            let mut y = [0.0; 4];
            average_pool(&x, [3, 3], window, &mut y);
            assert_eq!(y, [12.0, 16.0, 24.0, 28.0].map(|sum| sum / 9.0));
            let mut dx = [f32::NAN; 9];
            average_pool_backward(&[9.0, 0.0, 0.0, 18.0], [3, 3], window, &mut dx);
            assert_eq!(dx, [1.0, 1.0, 0.0, 1.0, 3.0, 2.0, 0.0, 2.0, 2.0]);
        });
    }

    #[test]
    fn height_and_width_of_a_window_are_separate() {
        at_every_level(|| {
            let window = SlidingWindow {
                side: [1, 3],
                stride: [2, 2],
                padding: [0, 1],
            };
            assert_eq!(window.count([3, 4]), [2, 2]);
            let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let (mut y, mut from) = ([0.0; 4], [0; 4]);
            max_pool(&x, [3, 4], window, &mut y, &mut from);
            assert_eq!((y, from), ([1.0, 3.0, 9.0, 11.0], [1, 3, 9, 11]));
            average_pool(&x, [3, 4], window, &mut y);
            assert_eq!(y, [1.0, 6.0, 17.0, 30.0].map(|sum| sum / 3.0));
            let mut dx = [f32::NAN; 12];
            average_pool_backward(&[3.0, 6.0, 0.0, 9.0], [3, 4], window, &mut dx);
            assert_eq!(dx[..4], [1.0, 3.0, 2.0, 2.0]);
            assert_eq!(dx[4..8], [0.0; 4]);
            assert_eq!(dx[8..], [0.0, 3.0, 3.0, 3.0]);
            assert_eq!(SlidingWindow::same([7, 1]).count([5, 5]), [5, 5]);
            let window = SlidingWindow {
                stride: [1, 3],
                ..window
            };
            assert_eq!(window.count([3, 4]), [3, 2]);
            let (mut y, mut from) = ([0.0; 6], [0; 6]);
            max_pool(&x, [3, 4], window, &mut y, &mut from);
            assert_eq!(from, [1, 3, 5, 7, 9, 11]);
        });
    }

    #[test]
    fn areas_are_averaged_and_spread() {
        at_every_level(|| {
            let areas = AverageAreas {
                size: [3, 4],
                areas: [2, 2],
            };
            let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let mut y = [0.0; 4];
            areas.forward(&x, &mut y);
            assert_eq!(y, [2.5, 4.5, 6.5, 8.5]);
            let mut dx = [f32::NAN; 12];
            areas.backward(&[4.0, 0.0, 8.0, 0.0], &mut dx);
            assert_eq!(dx[..6], [1.0, 1.0, 0.0, 0.0, 3.0, 3.0]);
        });
    }
}
