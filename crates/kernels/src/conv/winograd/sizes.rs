//! The sizes of tiles and points.

/// The side of a kernel.
pub(super) const KERNEL: usize = 3;
/// The side of a tile of the output.
pub(super) const TILE: usize = 4;
/// The side of a tile of the input, and of the points.
pub(super) const SIDE: usize = TILE + KERNEL - 1;
/// The number of points.
pub(super) const POINTS: usize = SIDE * SIDE;
/// The approximate number of tiles whose products are computed and transformed together, in the second-level cache.
pub(super) const TILES_PER_BLOCK: usize = 48;
