//! The matrix product, blocked for the caches; the callers pack the operands.
//!
//! Bits: an element is summed in the order of the inner index (in a short format, in that of its instructions), in blocks
//! whose size depends only on the inner length; blocks are added in order. The other lengths and cache sizes have no influence.
//! Source of the blocking: Goto and van de Geijn, "Anatomy of high-performance matrix
//! multiplication", ACM TOMS 34(3), 2008.

mod matrix;
mod tile;
pub(crate) mod tree;

use std::ops::Range;

use crate::moves::{put, put_tile};
use crate::scratch::{ScratchBuffer, lend};
use crate::simd::{
    Level, PanelForm, Products, SimdKernel, SimdVector, arrange_columns, arrange_rows, dispatch,
    dispatch_at, dispatch_products,
};

pub use matrix::Matrix;
use tile::PackedPanels;

/// The longest block of the inner index.
const DEPTH_MAX: usize = 256;
/// The number of rows whose packed panels stay in the second-level cache.
const ROWS_MAX: usize = 192;
/// The number of columns that are packed at once.
const COLUMNS_MAX: usize = 1056;

/// One operand of a product, which packs panels of its rows (left) or columns (right).
pub(crate) trait Panels {
    /// Writes `out[k][width]` for inner indices `depth` and outer indices `outer`; columns past the end of `outer`
    /// must be zero.
    fn pack<V: SimdVector>(
        &mut self,
        depth: Range<usize>,
        outer: Range<usize>,
        width: usize,
        out: &mut [f32],
    );

    /// Packs panels of rows (`LEFT`) or columns in the form of the vectors, which has tiles. Returns whether it did; otherwise
    /// packed values are converted.
    #[inline(always)]
    fn pack_tiles<V: SimdVector, const LEFT: bool>(
        &mut self,
        _depth: &Range<usize>,
        _outer: &Range<usize>,
        _out: &mut [f32],
    ) -> bool {
        false
    }

    /// Packs panels of the rows of a tile: the left side.
    #[inline(always)]
    fn pack_rows<V: SimdVector>(&mut self, depth: Range<usize>, rows: Range<usize>, out: &mut [f32])
    where
        Self: Sized,
    {
        pack_rows::<V>(self, depth, rows, out);
    }

    /// Packs panels of the widest tile; the last one has as many vectors as it needs.
    #[inline(always)]
    fn pack_all<V: SimdVector>(&mut self, depth: Range<usize>, outer: Range<usize>, out: &mut [f32])
    where
        Self: Sized,
    {
        pack_panels::<V>(self, depth, outer, out);
    }
}

/// Packs rows panel by panel.
#[inline(always)]
fn pack_rows<V: SimdVector>(
    side: &mut impl Panels,
    depth: Range<usize>,
    rows: Range<usize>,
    out: &mut [f32],
) {
    let panel = V::ROWS * depth.len();
    for (place, rows) in chunks(rows, V::ROWS).enumerate() {
        let out = &mut out[place * panel..(place + 1) * panel];
        side.pack::<V>(depth.clone(), rows, V::ROWS, out);
    }
}

/// Packs panel by panel.
#[inline(always)]
fn pack_panels<V: SimdVector>(
    side: &mut impl Panels,
    depth: Range<usize>,
    outer: Range<usize>,
    out: &mut [f32],
) {
    let panel = V::COLUMNS * V::LANES;
    for (place, outer) in chunks(outer, panel).enumerate() {
        let width = outer.len().next_multiple_of(V::LANES);
        let at = place * panel * depth.len();
        let out = &mut out[at..at + width * depth.len()];
        side.pack::<V>(depth.clone(), outer, width, out);
    }
}

/// The destination of a product.
pub(crate) trait Sink {
    /// Whether tiles of the same columns are stored from the last rows to the first.
    const LAST_ROWS_FIRST: bool = false;

    /// Returns the destination for tiles of whole vectors that are written or added directly: the first element, the
    /// distance of rows, and whether the first block of the inner index is added too. `None` if tiles must go through
    /// [`Sink::store`].
    fn place(
        &mut self,
        _rows: &Range<usize>,
        _columns: &Range<usize>,
    ) -> Option<(&mut [f32], usize, bool)> {
        None
    }

    /// Stores a tile `tile[row][width]`, with `rows` by `columns` valid elements. Each block of the inner
    /// index produces a tile; they are summed, starting with the `first`.
    fn store<V: SimdVector>(
        &mut self,
        rows: Range<usize>,
        columns: Range<usize>,
        tile: &[f32],
        width: usize,
        first: bool,
    );

    /// Returns the inner indices of a block that a tile needs; `None` if the tile is not needed.
    #[inline(always)]
    fn inner(
        &self,
        _rows: &Range<usize>,
        _columns: &Range<usize>,
        depth: &Range<usize>,
    ) -> Option<Range<usize>> {
        Some(depth.clone())
    }
}

/// The part of a product that is known to be zero or not needed. The offset is that of the diagonal: the number of the first row of
/// a strip of rows in the whole matrix that contains the strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Triangle {
    /// No part.
    Nowhere,
    /// The output above the diagonal is not needed: tiles there are not written.
    AboveInOutput(usize),
    /// The left side is zero above the diagonal.
    AboveInLeft(usize),
    /// The left side, a transposed strip, is zero below the diagonal.
    BelowInLeft(usize),
}

/// The lengths of a product: `rows` by `depth` times `depth` by `columns`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProductSize {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
}

/// Packs a whole left side, for several products with it: see [`drive_packed`].
#[inline(always)]
pub(crate) fn pack_left<'a, V: SimdVector>(
    [rows, depth]: [usize; 2],
    left: &mut impl Panels,
    memory: &'a mut ScratchBuffer,
) -> &'a [f32] {
    let padded = rows.next_multiple_of(V::ROWS);
    let depths = BlockedLength::of_depth(depth);
    let a = memory.take(padded * depths.packed_length::<V>());
    for depth in depths.ranges() {
        let a = &mut a[padded * depths.packed_start::<V>(depth.start)..];
        pack_left_block::<V>(left, depth, 0..rows, a);
    }
    a
}

/// Packs panels of rows in the form of the vectors.
#[inline(always)]
fn pack_left_block<V: SimdVector>(
    left: &mut impl Panels,
    depth: Range<usize>,
    rows: Range<usize>,
    a: &mut [f32],
) {
    let (length, count) = (depth.len(), rows.len().div_ceil(V::ROWS));
    if V::FORM.has_tiles() && left.pack_tiles::<V, true>(&depth, &rows, a) {
        return;
    }
    left.pack_rows::<V>(depth, rows, a);
    arrange_rows::<V>(a, count, length);
}

/// Packs panels of columns in the form of the vectors.
#[inline(always)]
fn pack_right_block<V: SimdVector>(
    right: &mut impl Panels,
    depth: Range<usize>,
    columns: Range<usize>,
    b: &mut [f32],
) {
    let (length, count) = (depth.len(), columns.len());
    if V::FORM.has_tiles() && right.pack_tiles::<V, false>(&depth, &columns, b) {
        return;
    }
    right.pack_all::<V>(depth, columns, b);
    arrange_columns::<V>(b, count, length);
}

/// Multiplies as [`drive`], with the left side packed by [`pack_left`]. The bits are the same.
#[inline(always)]
pub(crate) fn drive_packed<V: SimdVector>(
    size: ProductSize,
    left: &[f32],
    right: &mut impl Panels,
    sink: &mut impl Sink,
    memory: &mut ScratchBuffer,
) {
    let tile_columns = V::COLUMNS * V::LANES;
    let packed_columns = COLUMNS_MAX.next_multiple_of(tile_columns);
    let (packed_rows, padded) = (
        ROWS_MAX.next_multiple_of(V::ROWS),
        size.rows.next_multiple_of(V::ROWS),
    );
    let b = memory.take(packed_columns * V::FORM.length(DEPTH_MAX));
    let depths = BlockedLength::of_depth(size.depth);
    for columns in chunks(0..size.columns, packed_columns) {
        for depth in depths.ranges() {
            pack_right_block::<V>(right, depth.clone(), columns.clone(), b);
            for (_, rows) in row_chunks(sink, 0..size.rows, packed_rows) {
                let length = V::FORM.length(depth.len());
                let start = padded * depths.packed_start::<V>(depth.start);
                let a = &left[start + rows.start * length..];
                block::<V>(rows, columns.clone(), &depth, a, b, sink);
            }
        }
    }
}

/// Multiplies panels of `left` and `right` into `sink`. An empty inner index produces tiles of zeros.
#[inline(always)]
pub(crate) fn drive<V: SimdVector>(
    size: ProductSize,
    left: &mut impl Panels,
    right: &mut impl Panels,
    sink: &mut impl Sink,
    memory: (&mut ScratchBuffer, &mut ScratchBuffer),
) {
    let depths = BlockedLength::of_depth(size.depth);
    drive_blocks::<V>(size, depths, left, right, sink, memory);
}

/// Multiplies as [`drive`], with given blocks of the inner index.
#[inline(always)]
fn drive_blocks<V: SimdVector>(
    size: ProductSize,
    depths: BlockedLength,
    left: &mut impl Panels,
    right: &mut impl Panels,
    sink: &mut impl Sink,
    memory: (&mut ScratchBuffer, &mut ScratchBuffer),
) {
    let tile_columns = V::COLUMNS * V::LANES;
    let packed_columns = COLUMNS_MAX.next_multiple_of(tile_columns);
    let packed_rows = ROWS_MAX.next_multiple_of(V::ROWS);
    let length = V::FORM.length(DEPTH_MAX);
    let a = memory.0.take(packed_rows * length);
    let b = memory.1.take(packed_columns * length);
    for columns in chunks(0..size.columns, packed_columns) {
        for depth in depths.ranges() {
            pack_right_block::<V>(right, depth.clone(), columns.clone(), b);
            for (_, rows) in row_chunks(sink, 0..size.rows, packed_rows) {
                pack_left_block::<V>(left, depth.clone(), rows.clone(), a);
                block::<V>(rows, columns.clone(), &depth, a, b, sink);
            }
        }
    }
}

/// Returns consecutive ranges of at most `size` rows with their numbers, in the order of the sink.
#[inline(always)]
fn row_chunks<S: Sink>(
    _: &S,
    rows: Range<usize>,
    size: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> + use<S> {
    let count = rows.len().div_ceil(size);
    (0..count).map(move |number| {
        let number = match S::LAST_ROWS_FIRST {
            true => count - 1 - number,
            false => number,
        };
        let start = rows.start + number * size;
        (number, start..(start + size).min(rows.end))
    })
}

/// Multiplies packed rows by packed columns, tile by tile.
#[inline(always)]
fn block<V: SimdVector>(
    rows: Range<usize>,
    columns: Range<usize>,
    depth: &Range<usize>,
    a: &[f32],
    b: &[f32],
    sink: &mut impl Sink,
) {
    let (length, tile_columns) = (V::FORM.length(depth.len()), V::COLUMNS * V::LANES);
    let mut tile = [0.0; tile::TILE_MAX];
    for (right, columns) in chunks(columns, tile_columns).enumerate() {
        let vectors = columns.len().div_ceil(V::LANES);
        let width = vectors * V::LANES;
        let at = right * tile_columns * length;
        let b = &b[at..at + width * length];
        for (left, rows) in row_chunks(sink, rows.clone(), V::ROWS) {
            let Some(inner) = sink.inner(&rows, &columns, depth) else {
                continue;
            };
            let first = depth.start == 0;
            if inner.is_empty() && !first {
                continue;
            }
            let part = match V::FORM {
                PanelForm::Values => inner.start - depth.start..inner.end - depth.start,
                form => {
                    assert_eq!(inner, *depth, "a form of whole blocks");
                    0..form.rows(depth.len())
                }
            };
            let at = left * V::ROWS * length;
            let panels = PackedPanels {
                a: &a[at + V::ROWS * part.start..at + V::ROWS * part.end],
                b: &b[width * part.start..width * part.end],
                depth: depth.len(),
                columns: vectors,
            };
            if rows.len() == V::ROWS
                && columns.len() == width
                && let Some((to, stride, adds)) = sink.place(&rows, &columns)
            {
                tile::multiply_to::<V>(panels, (to, stride), first && !adds);
                continue;
            }
            tile::multiply::<V>(panels, &mut tile);
            sink.store::<V>(rows, columns.clone(), &tile, width, first);
        }
    }
}

/// A length divided into blocks of nearly equal sizes.
#[derive(Clone, Copy)]
pub(crate) struct BlockedLength {
    length: usize,
    block: usize,
}

impl BlockedLength {
    /// Divides a length into the fewest blocks of at most `max`; a length of zero has one empty block.
    pub(crate) fn of(length: usize, max: usize) -> Self {
        let count = length.div_ceil(max).max(1);
        let block = length.div_ceil(count).next_multiple_of(8).min(max);
        Self { length, block }
    }

    /// Returns the blocks of the inner index of a product.
    pub(crate) fn of_depth(length: usize) -> Self {
        Self::of(length, DEPTH_MAX)
    }

    /// Returns the same blocks up to an index, where the last one may end early.
    pub(crate) fn until(self, length: usize) -> Self {
        Self { length, ..self }
    }

    /// Returns the inner length of the memory of all packed blocks before the one that starts at an index.
    #[inline(always)]
    fn packed_start<V: SimdVector>(self, start: usize) -> usize {
        start / self.block.max(1) * V::FORM.length(self.block)
    }

    /// Returns the inner length of the memory of all packed blocks.
    #[inline(always)]
    fn packed_length<V: SimdVector>(self) -> usize {
        self.ranges().map(|block| V::FORM.length(block.len())).sum()
    }

    #[inline(always)]
    pub(crate) fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let count = self.length.div_ceil(self.block.max(1)).max(1);
        (0..count).map(move |i| i * self.block..((i + 1) * self.block).min(self.length))
    }
}

/// Returns consecutive ranges of at most `size`.
#[inline(always)]
pub(crate) fn chunks(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .step_by(size)
        .map(move |start| start..(start + size).min(end))
}

/// The rows of a row-major output.
struct OutputRows<'a> {
    out: &'a mut [f32],
    stride: usize,
    adds: bool,
    triangle: Triangle,
}

impl OutputRows<'_> {
    /// Returns the inner indices, unless there are none to add: a sum of zeros could change the sign of a zero.
    #[inline(always)]
    fn unless_nothing_is_added(&self, inner: Range<usize>) -> Option<Range<usize>> {
        (!self.adds || !inner.is_empty()).then_some(inner)
    }
}

impl Sink for OutputRows<'_> {
    #[inline(always)]
    fn inner(
        &self,
        rows: &Range<usize>,
        columns: &Range<usize>,
        depth: &Range<usize>,
    ) -> Option<Range<usize>> {
        let Range { start, end } = *depth;
        match self.triangle {
            Triangle::Nowhere => Some(start..end),
            Triangle::AboveInOutput(offset) => {
                (columns.start < rows.end + offset).then_some(start..end)
            }
            Triangle::AboveInLeft(offset) => {
                self.unless_nothing_is_added(start..(rows.end + offset).clamp(start, end))
            }
            Triangle::BelowInLeft(offset) => {
                let first = rows.start.saturating_sub(offset);
                self.unless_nothing_is_added(first.clamp(start, end)..end)
            }
        }
    }

    #[inline(always)]
    fn place(
        &mut self,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Option<(&mut [f32], usize, bool)> {
        let start = rows.start * self.stride + columns.start;
        Some((&mut self.out[start..], self.stride, self.adds))
    }

    #[inline(always)]
    fn store<V: SimdVector>(
        &mut self,
        rows: Range<usize>,
        columns: Range<usize>,
        tile: &[f32],
        width: usize,
        first: bool,
    ) {
        let first = first && !self.adds;
        if columns.len() == width {
            let place = [rows.start * self.stride + columns.start, self.stride];
            return put_tile::<V>(self.out, place, tile, [rows.len(), width], first);
        }
        for (row, tile) in rows.zip(tile.chunks_exact(width)) {
            let at = row * self.stride + columns.start;
            put::<V>(&mut self.out[at..at + columns.len()], tile, first);
        }
    }
}

/// Returns the rows of `out`, `stride` apart and without space between them, to which a product is added.
pub(crate) fn rows_of(out: &mut [f32], stride: usize) -> impl Sink {
    OutputRows {
        out,
        stride,
        adds: true,
        triangle: Triangle::Nowhere,
    }
}

struct MatrixProduct<'a> {
    left: Matrix<'a>,
    right: Matrix<'a>,
    sink: OutputRows<'a>,
    /// The blocks of the inner index.
    depths: BlockedLength,
}

impl<'a> MatrixProduct<'a> {
    /// Checks the lengths of a row-major product.
    fn new(left: Matrix<'a>, right: Matrix<'a>, out: &'a mut [f32], adds: bool) -> Self {
        let (rows, columns) = (left.rows(), right.columns());
        assert_eq!(left.columns(), right.rows(), "inner lengths of a product");
        assert_eq!(out.len(), rows * columns, "elements of a product");
        let sink = OutputRows {
            out,
            stride: columns,
            adds,
            triangle: Triangle::Nowhere,
        };
        let depths = BlockedLength::of_depth(left.columns());
        Self {
            left,
            right,
            sink,
            depths,
        }
    }
}

impl SimdKernel for MatrixProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(mut self) {
        let size = ProductSize {
            rows: self.left.rows(),
            depth: self.left.columns(),
            columns: self.right.columns(),
        };
        let (mut left, mut right) = (self.left.transposed(), self.right);
        let buffers = &mut *lend();
        let memory = (&mut buffers.left, &mut buffers.right);
        drive_blocks::<V>(
            size,
            self.depths,
            &mut left,
            &mut right,
            &mut self.sink,
            memory,
        );
    }
}

/// Computes `out = left * right`, or `out += left * right` if `adds`: row-major, `left.rows()` by
/// `right.columns()`.
///
/// Bits depend only on the operands and the level of this processor. Cost: `rows * depth * columns`
/// multiply-adds; a megabyte of the thread's memory.
///
/// # Panics
/// If the lengths do not match.
///
/// ```
/// use ronde_kernels::{Matrix, multiply};
///
/// let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0]);
/// let mut out = [0.0; 2];
/// multiply(Matrix::new(&a, 2, 2), Matrix::new(&b, 2, 1), &mut out, false);
/// assert_eq!(out, [17.0, 39.0]);
/// ```
pub fn multiply(left: Matrix<'_>, right: Matrix<'_>, out: &mut [f32], adds: bool) {
    dispatch(MatrixProduct::new(left, right, out, adds));
}

/// Multiplies as [`multiply`], with given products: those of a short format need matrices whose elements are all rounded to it.
/// Sums are f32, except that [`Products::F16Sums`] adds up to 16 products in f16.
///
/// # Panics
/// If the lengths do not match, or this processor does not have the instructions: see [`Products::of`].
pub fn multiply_with(
    products: Products,
    left: Matrix<'_>,
    right: Matrix<'_>,
    out: &mut [f32],
    adds: bool,
) {
    dispatch_products(products, MatrixProduct::new(left, right, out, adds));
}

/// Multiplies at a level, or the best lower level that this processor supports: for tests and measurements.
///
/// # Panics
/// If the lengths do not match.
pub fn multiply_at(level: Level, left: Matrix<'_>, right: Matrix<'_>, out: &mut [f32], adds: bool) {
    dispatch_at(level, MatrixProduct::new(left, right, out, adds));
}

/// The form of a product that is a part of a larger one, with the bits that it has there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartialProduct {
    /// Whether the product is added to what is there: the inner index continues an earlier part's.
    pub(crate) adds: bool,
    /// The part of the work that is not needed.
    pub(crate) triangle: Triangle,
    /// The inner length of the larger product, whose first indices are multiplied.
    pub(crate) whole_depth: usize,
}

impl PartialProduct {
    /// A product that is written, of a whole inner length.
    pub(crate) fn new(whole_depth: usize, triangle: Triangle) -> Self {
        Self {
            adds: false,
            triangle,
            whole_depth,
        }
    }
}

/// Writes or adds `left * right` to rows of `out` that are `stride` apart, without the multiplications that a triangle of
/// zeros makes unnecessary. If the other operand is finite, the bits are the same as with them.
///
/// # Panics
/// If the lengths do not match.
pub(crate) fn multiply_part(
    left: Matrix<'_>,
    right: Matrix<'_>,
    (out, stride): (&mut [f32], usize),
    part: PartialProduct,
) {
    let (rows, depth, columns) = (left.rows(), left.columns(), right.columns());
    assert_eq!(depth, right.rows(), "inner lengths of a product");
    assert!(depth <= part.whole_depth, "inner lengths of a part");
    let needed = rows.saturating_sub(1) * stride + columns;
    assert!(
        out.len() >= needed && stride >= columns,
        "elements of a product"
    );
    let sink = OutputRows {
        out,
        stride,
        adds: part.adds,
        triangle: part.triangle,
    };
    let depths = BlockedLength::of_depth(part.whole_depth).until(depth);
    dispatch(MatrixProduct {
        left,
        right,
        sink,
        depths,
    });
}

#[cfg(test)]
mod tests;
