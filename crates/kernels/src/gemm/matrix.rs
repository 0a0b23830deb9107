//! [`Matrix`]: a view of a matrix in a slice, and the packing of its panels.

mod tiles;

use std::ops::Range;

use super::{Panels, pack_panels, pack_rows};
use crate::moves::{copy, transpose_into};
use crate::simd::{PanelForm, SimdVector, TILE_PARTS};

/// A matrix that is stored in a slice by rows or by columns.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    stride: usize,
    by_columns: bool,
}

impl<'a> Matrix<'a> {
    /// Creates a row-major matrix of `rows` by `columns`.
    ///
    /// # Panics
    /// If `data` has another length.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of a matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// Creates a matrix of `rows` by `columns` whose rows are `stride` apart.
    ///
    /// # Panics
    /// If `data` ends before the last row, or rows overlap.
    #[must_use]
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        let needed = match rows {
            0 => 0,
            rows => (rows - 1) * stride + columns,
        };
        assert!(
            data.len() >= needed && stride >= columns,
            "rows of a matrix"
        );
        Self {
            data,
            rows,
            columns,
            stride,
            by_columns: false,
        }
    }

    /// Returns the transposed view of the same memory. Cost: none.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            by_columns: !self.by_columns,
            ..self
        }
    }

    /// Returns some rows of the matrix. Cost: none.
    ///
    /// # Panics
    /// If the range ends after the last row.
    #[must_use]
    pub fn some_rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let start = if self.by_columns {
            rows.start
        } else {
            rows.start * self.stride
        };
        Self {
            data: &self.data[start.min(self.data.len())..],
            rows: rows.len(),
            ..self
        }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }
}

/// The number of panels of rows that are packed together.
const PANELS: usize = 4;

/// Packs the right side, whose inner index is the row. The left side is passed transposed.
impl Panels for Matrix<'_> {
    #[inline(always)]
    fn pack_tiles<V: SimdVector, const LEFT: bool>(
        &mut self,
        depth: &Range<usize>,
        outer: &Range<usize>,
        out: &mut [f32],
    ) -> bool {
        match V::FORM {
            PanelForm::SplitTiles => tiles::pack::<V, LEFT, TILE_PARTS>(self, depth, outer, out),
            _ => tiles::pack::<V, LEFT, 1>(self, depth, outer, out),
        }
        true
    }

    #[inline(always)]
    fn pack<V: SimdVector>(
        &mut self,
        depth: Range<usize>,
        outer: Range<usize>,
        width: usize,
        out: &mut [f32],
    ) {
        if self.by_columns {
            let from = &self.data[outer.start * self.stride + depth.start..];
            transpose_into::<V>(from, self.stride, outer.len(), depth.len(), width, out);
        } else {
            for (row, to) in depth.zip(out.chunks_exact_mut(width)) {
                let from = &self.data[row * self.stride + outer.start..][..outer.len()];
                let (to, rest) = to.split_at_mut(from.len());
                copy::<V>(from, to);
                rest.fill(0.0);
            }
        }
    }

    /// Packs several panels at once, so that each fetched cache line is used completely.
    #[inline(always)]
    fn pack_rows<V: SimdVector>(
        &mut self,
        depth: Range<usize>,
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        let (panel, together) = (V::ROWS * depth.len(), V::ROWS * PANELS);
        let whole = if self.by_columns {
            0
        } else {
            rows.len() / together * together
        };
        let (packed, rest) = out.split_at_mut(whole * depth.len());
        for (place, out) in packed.chunks_exact_mut((panel * PANELS).max(1)).enumerate() {
            let start = rows.start + place * together;
            for (place, row) in depth.clone().enumerate() {
                let from = &self.data[row * self.stride + start..][..together];
                for (number, from) in from.chunks_exact(V::ROWS).enumerate() {
                    let at = number * panel + place * V::ROWS;
                    copy::<V>(from, &mut out[at..at + V::ROWS]);
                }
            }
        }
        pack_rows::<V>(self, depth, rows.start + whole..rows.end, rest);
    }

    /// Reads rows sequentially, so that the hardware can prefetch.
    #[inline(always)]
    fn pack_all<V: SimdVector>(
        &mut self,
        depth: Range<usize>,
        outer: Range<usize>,
        out: &mut [f32],
    ) {
        if self.by_columns {
            return pack_panels::<V>(self, depth, outer, out);
        }
        let (panel, length) = (V::COLUMNS * V::LANES, depth.len());
        for (place, row) in depth.enumerate() {
            let from = &self.data[row * self.stride + outer.start..][..outer.len()];
            let mut panels = from.chunks_exact(panel);
            let mut at = place * panel;
            for from in &mut panels {
                copy::<V>(from, &mut out[at..at + panel]);
                at += panel * length;
            }
            let from = panels.remainder();
            if !from.is_empty() {
                let width = from.len().next_multiple_of(V::LANES);
                let at = from_last(outer.len(), panel) * length + place * width;
                let (to, rest) = out[at..at + width].split_at_mut(from.len());
                copy::<V>(from, to);
                rest.fill(0.0);
            }
        }
    }
}

/// Returns the start of the last, partial panel.
#[inline(always)]
fn from_last(columns: usize, panel: usize) -> usize {
    columns / panel * panel
}
