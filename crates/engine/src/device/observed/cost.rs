//! [`KernelCost`]: the multiply-adds of a call, and the lengths on which they depend.

use ronde_kernels::{Attention, BatchNorm, GroupNorm, GroupedConvolution};

use crate::device::{MatrixSlice, RowCopy};

/// The cost of a call.
pub(super) struct KernelCost {
    pub(super) shape: String,
    pub(super) multiply_adds: f64,
    /// The number of floats that are read or written, if these are not all operands.
    pub(super) moved: Option<usize>,
}

impl KernelCost {
    /// A kernel that moves data.
    pub(super) fn moves(shape: String) -> Self {
        Self {
            shape,
            multiply_adds: 0.0,
            moved: None,
        }
    }

    pub(super) fn product(left: &MatrixSlice<'_>, right: &MatrixSlice<'_>) -> Self {
        let lengths = |matrix: &MatrixSlice<'_>| match matrix.is_transposed {
            true => ([matrix.columns, matrix.rows], "T"),
            false => ([matrix.rows, matrix.columns], ""),
        };
        let ([rows, depth], left) = lengths(left);
        let ([_, columns], right) = lengths(right);
        Self {
            shape: format!("{rows}x{depth}{left} {depth}x{columns}{right}"),
            multiply_adds: rows as f64 * depth as f64 * columns as f64,
            moved: None,
        }
    }

    pub(super) fn convolution(shape: &GroupedConvolution, samples: usize) -> Self {
        let (each, groups) = (shape.each, shape.groups);
        let [height, width] = each.size;
        let [down, across] = each.kernel;
        let window = each.channels * down * across;
        let of_groups = match groups {
            1 => String::new(),
            groups => format!(" in {groups} groups"),
        };
        Self {
            shape: format!(
                "{samples}x{}x{height}x{width} to {}, {down}x{across} / {}{of_groups}",
                groups * each.channels,
                groups * each.outputs,
                each.stride[0],
            ),
            multiply_adds: (samples * groups) as f64 * each.elements()[1] as f64 * window as f64,
            moved: None,
        }
    }

    /// Attention of `products` products of queries by keys.
    pub(super) fn attention(shape: &Attention, products: f64) -> Self {
        let Attention {
            batch,
            queries,
            keys,
            heads,
            width,
            causal,
        } = *shape;
        let pairs = (batch * heads) as f64 * queries as f64 * keys as f64;
        Self {
            shape: format!("{batch}x{heads} heads, {queries}x{keys}x{width}"),
            multiply_adds: products * pairs * width as f64 * if causal { 0.5 } else { 1.0 },
            moved: None,
        }
    }

    /// Distances or their gradients, `width` multiply-adds each.
    pub(super) fn distances(count: usize, width: usize) -> Self {
        Self {
            shape: format!("{count} of {width}"),
            multiply_adds: count as f64 * width as f64,
            moved: None,
        }
    }

    pub(super) fn batch_norm(shape: &BatchNorm) -> Self {
        Self::moves(format!(
            "{}x{}x{}",
            shape.samples, shape.channels, shape.places
        ))
    }

    pub(super) fn group_norm(shape: &GroupNorm) -> Self {
        Self::moves(format!(
            "{}x{}x{} in {} groups",
            shape.samples, shape.channels, shape.places, shape.groups
        ))
    }

    pub(super) fn floats(count: usize) -> Self {
        Self::moves(format!("{count}"))
    }

    /// A copy of a part of each row to a buffer of some length.
    pub(super) fn copy(copy: RowCopy, to: usize) -> Self {
        let copied = to / copy.to[0].max(1) * copy.length;
        Self {
            moved: Some(2 * copied),
            ..Self::floats(copied)
        }
    }
}
