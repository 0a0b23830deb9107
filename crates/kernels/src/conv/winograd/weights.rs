//! [`TiledWeights`]: the transform of weights to panels for the product.
#![expect(unsafe_code, reason = "vector loads and stores in inner loops")]

use std::ops::Range;

use super::panels::PanelLayout;
use super::points::{load_points, store_points};
use super::sizes::{KERNEL, POINTS, SIDE};
use super::transform::{WeightGradients, Weights, along_both_axes};
use crate::gemm::chunks;
use crate::moves::transpose_into;
use crate::scratch::ScratchBuffer;
use crate::simd::SimdVector;

/// The number of elements of a 3 x 3 kernel.
pub(super) const TAPS: usize = KERNEL * KERNEL;
/// The number of inner channels whose weights are transposed together.
const DEPTH_STEP: usize = 16;

/// The weights of a convolution; products sum over their inner channels.
#[derive(Clone, Copy)]
pub(in super::super) enum TiledWeights<'a> {
    /// `[outer, inner, taps]`.
    Forward(&'a [f32]),
    /// `[inner, outer, taps]`, with the taps in reverse: for the gradient of the input. The product has the outer channels from
    /// `first` on.
    Flipped {
        weights: &'a [f32],
        outer: usize,
        first: usize,
    },
}

impl TiledWeights<'_> {
    /// Writes the transformed weights of some outer channels as `[point][inner, outer]`.
    #[inline(always)]
    pub(super) fn transform<V: SimdVector>(
        self,
        depth: usize,
        outer: Range<usize>,
        (to, layout): (&mut [f32], PanelLayout),
        memory: &mut ScratchBuffer,
    ) {
        let taps = memory.take(DEPTH_STEP * TAPS * layout.width);
        for panel in chunks(outer.clone(), layout.width) {
            let width = panel.len();
            for inner in chunks(0..depth, DEPTH_STEP) {
                let taps = &mut taps[..inner.len() * TAPS * width];
                match self {
                    Self::Forward(weights) => {
                        let from = &weights[(panel.start * depth + inner.start) * TAPS..];
                        let length = inner.len() * TAPS;
                        transpose_into::<V>(from, depth * TAPS, width, length, width, taps);
                    }
                    Self::Flipped {
                        weights,
                        outer,
                        first,
                    } => {
                        for (inner, taps) in inner.clone().zip(taps.chunks_exact_mut(TAPS * width))
                        {
                            let from = &weights[(inner * outer + first + panel.start) * TAPS..];
                            transpose_into::<V>(from, TAPS, width, TAPS, width, taps);
                        }
                    }
                }
                for (inner, taps) in inner.zip(taps.chunks_exact(TAPS * width)) {
                    let at = layout.position(inner, panel.start - outer.start);
                    self.transform_taps::<V>(taps, width, &mut to[at..], layout.point_stride());
                }
            }
        }
    }

    /// Transforms `taps[tap][outer]`.
    #[inline(always)]
    fn transform_taps<V: SimdVector>(
        self,
        taps: &[f32],
        width: usize,
        to: &mut [f32],
        stride: usize,
    ) {
        assert!(
            width.is_multiple_of(V::LANES)
                && taps.len() >= TAPS * width
                && to.len() >= (POINTS - 1) * stride + width,
            "weights of a panel"
        );
        for lane in (0..width).step_by(V::LANES) {
            let mut values = [[V::splat(0.0); KERNEL]; KERNEL];
            for (i, values) in values.iter_mut().enumerate() {
                for (j, value) in values.iter_mut().enumerate() {
                    let tap = match self {
                        Self::Forward(_) => i * KERNEL + j,
                        Self::Flipped { .. } => TAPS - 1 - (i * KERNEL + j),
                    };
                    // SAFETY: all taps have `width` elements, as asserted.
                    *value = unsafe { V::load(taps.as_ptr().add(tap * width + lane)) };
                }
            }
            let found = along_both_axes::<V, Weights, KERNEL, SIDE>(&values);
            store_points::<V>(&found, &mut to[lane..], stride);
        }
    }
}

/// Transforms products `[point][inner][outer]` of some inner channels to gradients of the weights, and adds them to
/// `sums[inner][tap][outer]`, whose rows have `stride` elements.
#[inline(always)]
pub(super) fn add_gradients<V: SimdVector>(
    products: &[f32],
    point_stride: usize,
    [inner, width]: [usize; 2],
    sums: &mut [f32],
    stride: usize,
) {
    assert!(
        width.is_multiple_of(V::LANES)
            && inner > 0
            && products.len() >= (POINTS - 1) * point_stride + inner * width
            && sums.len() >= (inner * TAPS - 1) * stride + width,
        "products of a panel"
    );
    for inner in 0..inner {
        for lane in (0..width).step_by(V::LANES) {
            let at = inner * width + lane;
            let values = load_points::<V>(&products[at..], point_stride);
            let found = along_both_axes::<V, WeightGradients, SIDE, KERNEL>(&values);
            for (i, found) in found.iter().enumerate() {
                for (j, found) in found.iter().enumerate() {
                    // SAFETY: `sums` has all rows, as asserted.
                    unsafe {
                        let row = inner * TAPS + i * KERNEL + j;
                        let to = sums.as_mut_ptr().add(row * stride + lane);
                        V::load(to).add(*found).store(to);
                    }
                }
            }
        }
    }
}
