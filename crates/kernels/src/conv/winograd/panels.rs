//! [`PanelLayout`]: matrices in panels of columns, one for each point of the transform.

use super::sizes::POINTS;

/// The distance between the matrices of two points beyond their length. Without it, the same element of all points
/// would be in the same set of the first-level cache.
const GAP: usize = 16;

/// A matrix `[depth, columns]` in panels of `width` columns: `[panel][depth][columns of the panel]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanelLayout {
    pub(super) columns: usize,
    pub(super) width: usize,
    pub(super) depth: usize,
}

impl PanelLayout {
    pub(super) fn elements(self) -> usize {
        self.columns * self.depth
    }

    /// Returns the distance between the matrices of two points.
    pub(super) fn point_stride(self) -> usize {
        self.elements() + GAP
    }

    /// Returns the number of elements of the matrices of all points.
    pub(super) fn all_points(self) -> usize {
        POINTS * self.point_stride()
    }

    /// Returns the position of an element.
    #[inline(always)]
    pub(super) fn position(self, depth: usize, column: usize) -> usize {
        let start = column / self.width * self.width;
        let width = (self.columns - start).min(self.width);
        start * self.depth + depth * width + column - start
    }
}
