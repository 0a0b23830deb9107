//! [`DetectedImages`]: boxes of objects in images, and the grid of cells that predicts them.

#[cfg(test)]
pub(crate) mod reference;

use crate::error::EngineError;
use crate::loss::IGNORED;
use crate::predictions::Predictions;

/// The number of targets of a box: its class and four numbers.
const BOX_TARGETS: usize = 5;

/// The number of outputs of a cell that describe a box, before one logit for each class.
pub(crate) const BOX_OUTPUTS: usize = 4;

/// The largest side of a predicted box, in images; a larger one is clipped anyway.
const SIDE_MAX: f64 = 4.0;

/// The smallest logit that counts as a detection: a score of 1.8 %.
pub(crate) const LOGIT_MIN: f64 = -4.0;
/// The overlap from which a detection is correct, and from which a detection hides another one of a lower score.
pub(crate) const OVERLAP: f64 = 0.5;
/// The maximum number of detections of a class in an image.
const DETECTIONS_MAX: usize = 100;

/// A box with the top, left, bottom and right side as shares of the height and width of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ImageBox {
    pub(crate) sides: [f64; 4],
}

impl ImageBox {
    fn area(&self) -> f64 {
        let [top, left, bottom, right] = self.sides;
        (bottom - top).max(0.0) * (right - left).max(0.0)
    }

    /// Returns the area in both boxes, divided by the area in either; 0 if that is empty.
    pub(crate) fn overlap(&self, other: &Self) -> f64 {
        let ([t, l, b, r], [top, left, bottom, right]) = (self.sides, other.sides);
        let both = Self {
            sides: [t.max(top), l.max(left), b.min(bottom), r.min(right)],
        };
        let both = both.area();
        let either = self.area() + other.area() - both;
        if either > 0.0 { both / either } else { 0.0 }
    }
}

/// A true box with its class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrueBox {
    pub(crate) class: usize,
    pub(crate) bounds: ImageBox,
}

/// The images and classes of a detector whose outputs are `[4 + classes, rows, columns]` for a grid of square cells
/// that covers the image. A cell predicts one box, whose centre is in it: the distance of the centre from the cell's
/// centre along height and width in cells, the logarithms of height and width in cells, and a logit for each class.
///
/// The targets of a sample are boxes of five numbers each: the class, and the bits of the `f32` values top, left,
/// bottom and right, as shares of the image's height and width. A box of class [`IGNORED`] does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetectedImages {
    /// The height and width of an image, in pixels.
    pub size: [usize; 2],
    /// The number of classes.
    pub classes: usize,
}

/// A predicted box of a class.
pub(crate) struct Detection {
    pub(crate) logit: f64,
    pub(crate) bounds: ImageBox,
}

/// An object that a detector found in an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetectedObject {
    /// The class.
    pub class: usize,
    /// The logit of the class.
    pub logit: f64,
    /// The top, left, bottom and right side of its box, as shares of the image's height and width.
    pub sides: [f64; 4],
}

impl DetectedImages {
    /// Returns the objects in the outputs of one image, by class and then by falling logit: those that
    /// [`MeanAveragePrecision`](crate::MeanAveragePrecision) counts.
    ///
    /// # Errors
    /// When no grid of square cells has as many outputs.
    pub fn detections(self, outputs: &[f32]) -> Result<Vec<DetectedObject>, EngineError> {
        let predictions = Predictions::new(outputs, &[], 1)?;
        let grid = self.grid("detections", &predictions)?;
        let of_class = |class| {
            let found = grid.detections(outputs, class).into_iter();
            found.map(move |Detection { logit, bounds }| DetectedObject {
                class,
                logit,
                sides: bounds.sides,
            })
        };
        Ok((0..self.classes).flat_map(of_class).collect())
    }

    /// Returns the grid of the outputs.
    ///
    /// # Errors
    /// When no grid of square cells has as many outputs, or targets are not boxes.
    pub(crate) fn grid(
        self,
        function: &str,
        predictions: &Predictions<'_>,
    ) -> Result<BoxGrid, EngineError> {
        let outputs = predictions.outputs_per_sample();
        let each = self.classes.saturating_add(BOX_OUTPUTS);
        let [height, width] = self.size.map(|length| length as u128);
        let cells = outputs / each;
        // rows / columns = height / width, and rows x columns = cells.
        let rows = (cells as u128 * height / width.max(1)).isqrt() as usize;
        let columns = cells.checked_div(rows).unwrap_or(0);
        let is_square = rows as u128 * width == columns as u128 * height;
        let has_boxes = predictions.targets_per_sample().is_multiple_of(BOX_TARGETS);
        let is_filled = rows > 0 && rows * columns * each == outputs;
        if predictions.is_empty() || (is_filled && is_square && has_boxes) {
            let size = [rows, columns];
            return Ok(BoxGrid {
                size,
                classes: self.classes,
            });
        }
        Err(EngineError::BoxCount {
            function: function.to_owned(),
            outputs,
            targets: predictions.targets_per_sample(),
            each,
            size: self.size,
        })
    }
}

/// A grid of cells with one predicted box each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoxGrid {
    /// The numbers of rows and columns.
    size: [usize; 2],
    classes: usize,
}

impl BoxGrid {
    /// Returns the number of cells.
    pub(crate) fn cells(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Returns the number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    /// Returns the index of a logit in a sample's outputs.
    pub(crate) fn logit(&self, class: usize, cell: usize) -> usize {
        (BOX_OUTPUTS + class) * self.cells() + cell
    }

    /// Returns the detections of a class in an image that none with a greater score hides, with falling scores.
    pub(crate) fn detections(&self, outputs: &[f32], class: usize) -> Vec<Detection> {
        let logit = |cell: usize| f64::from(outputs[self.logit(class, cell)]);
        let mut cells: Vec<usize> = (0..self.cells())
            .filter(|&cell| logit(cell) >= LOGIT_MIN)
            .collect();
        cells.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)));
        let mut kept: Vec<Detection> = Vec::new();
        for cell in cells {
            let Some(bounds) = self.decode(outputs, cell) else {
                continue;
            };
            let is_hidden = |other: &Detection| other.bounds.overlap(&bounds) > OVERLAP;
            if !kept.iter().any(is_hidden) {
                kept.push(Detection {
                    logit: logit(cell),
                    bounds,
                });
                if kept.len() == DETECTIONS_MAX {
                    break;
                }
            }
        }
        kept
    }

    /// Returns the true boxes of a sample.
    ///
    /// # Errors
    /// When a class is not below the number of classes, or sides are not in order and inside the image.
    pub(crate) fn true_boxes(
        &self,
        sample: usize,
        targets: &[u32],
    ) -> Result<Vec<TrueBox>, EngineError> {
        let mut boxes = Vec::new();
        for target in targets.chunks_exact(BOX_TARGETS) {
            if target[0] == IGNORED {
                continue;
            }
            crate::loss::check_label(sample, target[0], self.classes)?;
            let sides = [1, 2, 3, 4].map(|at| f64::from(Predictions::value(target[at])));
            let [top, left, bottom, right] = sides;
            let is_inside = 0.0 <= top && top < bottom && bottom <= 1.0;
            if !(is_inside && 0.0 <= left && left < right && right <= 1.0) {
                return Err(EngineError::InvalidBox { sample, sides });
            }
            boxes.push(TrueBox {
                class: target[0] as usize,
                bounds: ImageBox { sides },
            });
        }
        Ok(boxes)
    }

    /// Returns the cell with the centre of a box, and the outputs that describe the box exactly.
    pub(crate) fn encode(&self, bounds: &ImageBox) -> (usize, [f64; BOX_OUTPUTS]) {
        let [top, left, bottom, right] = bounds.sides;
        let axis = |from: f64, to: f64, count: usize| {
            let centre = (from + to) / 2.0 * count as f64;
            let cell = (centre as usize).min(count - 1);
            let side = libm::log((to - from) * count as f64);
            (cell, centre - cell as f64 - 0.5, side)
        };
        let (row, down, height) = axis(top, bottom, self.size[0]);
        let (column, across, width) = axis(left, right, self.size[1]);
        (row * self.size[1] + column, [down, across, height, width])
    }

    /// Returns the box that the outputs of a sample describe in a cell, clipped to the image; `None` if an output is NaN.
    pub(crate) fn decode(&self, outputs: &[f32], cell: usize) -> Option<ImageBox> {
        let value = |at: usize| f64::from(outputs[at * self.cells() + cell]);
        if (0..BOX_OUTPUTS).any(|at| value(at).is_nan()) {
            return None;
        }
        let (row, column) = (cell / self.size[1], cell % self.size[1]);
        let axis = |index: usize, offset: f64, side: f64, count: usize| {
            let centre = (index as f64 + 0.5 + offset) / count as f64;
            let half = (libm::exp(side) / count as f64).min(SIDE_MAX) / 2.0;
            [centre - half, centre + half].map(|side| side.clamp(0.0, 1.0))
        };
        let [top, bottom] = axis(row, value(0), value(2), self.size[0]);
        let [left, right] = axis(column, value(1), value(3), self.size[1]);
        Some(ImageBox {
            sides: [top, left, bottom, right],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: DetectedImages = DetectedImages {
        size: [32, 48],
        classes: 3,
    };

    fn grid(
        images: DetectedImages,
        outputs: usize,
        targets: usize,
    ) -> Result<BoxGrid, EngineError> {
        let (outputs, targets) = (vec![0.0; outputs], vec![0; targets]);
        images.grid("loss", &Predictions::new(&outputs, &targets, 1).unwrap())
    }

    #[test]
    fn cells_are_squares_that_cover_the_image() {
        let of = |outputs, targets| grid(IMAGES, outputs, targets);
        assert_eq!(of(7 * 4 * 6, 10).unwrap().size, [4, 6]);
        assert_eq!(of(7 * 6, 0).unwrap().size, [2, 3]);
        for (outputs, targets) in [(7 * 4 * 4, 5), (7 * 24 + 1, 5), (0, 5), (7 * 24, 6)] {
            let error = of(outputs, targets).unwrap_err();
            assert!(
                error.is_user_error() && error.to_string().contains("32 x 48"),
                "{error}"
            );
        }
        let huge = DetectedImages {
            size: [usize::MAX, 1],
            classes: 3,
        };
        assert!(grid(huge, 7, 5).is_err());
    }

    #[test]
    fn boxes_return_from_their_cells() {
        let grid = grid(IMAGES, 7 * 24, 5).unwrap();
        for sides in [
            [0.0, 0.0, 0.25, 0.5],
            [0.5, 0.9, 1.0, 1.0],
            [0.1, 0.2, 0.9, 0.3],
        ] {
            let bounds = ImageBox { sides };
            let (cell, encoded) = grid.encode(&bounds);
            assert!(encoded[..2].iter().all(|offset| offset.abs() <= 0.5));
            let mut outputs = vec![0.0; 7 * 24];
            for (at, value) in encoded.into_iter().enumerate() {
                outputs[at * 24 + cell] = value as f32;
            }
            let overlap = grid.decode(&outputs, cell).unwrap().overlap(&bounds);
            assert!(overlap > 1.0 - 1e-6, "{sides:?}: {overlap}");
            let whole = ImageBox {
                sides: [0.0, 0.0, 1.0, 1.0],
            };
            assert!((whole.overlap(&bounds) - bounds.area()).abs() < 1e-12);
        }
        let outputs = vec![f32::INFINITY; 7 * 24];
        let _ = grid.decode(&outputs, 3);
        let mut outputs = vec![0.0; 7 * 24];
        outputs[24 + 3] = f32::NAN;
        assert_eq!(grid.decode(&outputs, 3), None);
        assert!(grid.decode(&outputs, 4).is_some());
    }

    #[test]
    fn targets_that_are_no_boxes_are_refused() {
        let grid = grid(IMAGES, 7 * 24, 5).unwrap();
        let of = |class: u32, sides: [f32; 4]| {
            let mut targets = vec![class];
            targets.extend(sides.map(f32::to_bits));
            grid.true_boxes(4, &targets)
        };
        assert_eq!(of(2, [0.25, 0.0, 1.0, 0.5]).unwrap().len(), 1);
        assert!(of(IGNORED, [9.0; 4]).unwrap().is_empty());
        assert!(matches!(
            of(3, [0.0, 0.0, 1.0, 1.0]),
            Err(EngineError::Label { .. })
        ));
        for sides in [[0.5, 0.0, 0.5, 1.0], [0.0, 0.0, 1.0, 1.5], [f32::NAN; 4]] {
            let error = of(0, sides).unwrap_err();
            assert!(matches!(error, EngineError::InvalidBox { sample: 4, .. }));
        }
    }
}
