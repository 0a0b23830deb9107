//! Pooling of images.

use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Tensor, module};

/// The window of a convolution or pooling: equal along height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The side of the window.
    pub side: usize,
    /// The distance from one window to the next.
    pub stride: usize,
    /// The number of rows and columns added on each side: zeros for a convolution, ignored by a
    /// maximum.
    pub padding: usize,
}

impl SlidingWindow {
    /// A window of a side, with a stride and a padding.
    #[must_use]
    pub fn new(side: usize, stride: usize, padding: usize) -> Self {
        Self {
            side,
            stride,
            padding,
        }
    }

    /// Returns the number of windows along a length.
    #[must_use]
    pub fn count(&self, length: usize) -> usize {
        (length + 2 * self.padding).saturating_sub(self.side) / self.stride + 1
    }
}

/// Returns the greatest value of each window of `x` (`[N, C, H, W]`).
#[must_use]
pub fn max_pool(x: Tensor<4>, window: SlidingWindow) -> Tensor<4> {
    let around = (window.padding, window.padding);
    let options = MaxPoolOptions::new([window.side, window.side])
        .with_stride([window.stride, window.stride])
        .with_padding_pairs([around, around]);
    module::max_pool2d(x, options)
}

/// Returns the means over `side` x `side` areas that cover `x` (`[N, C, H, W]`) evenly.
#[must_use]
pub fn average_to(x: Tensor<4>, side: usize) -> Tensor<4> {
    module::adaptive_avg_pool2d(x, [side, side])
}
