//! [`Precision`]: the floating-point format of the values of a layer.
//!
//! Short formats are storage, and formats of factors where the processor has instructions for their products. All values between
//! the operations of a layer and their gradients are packed in 2 bytes, and copies of weight matrices are rounded; one set of f32
//! kernels serves all formats. These stay f32: statistics of normalisations, which are few; factors of dropout, so that both passes
//! multiply by the same ones; positions of max pooling; numbers that select rows of a table; and attention while it computes.
//! Gradients of weights and their sum between ranks stay f32 too: a partial sum in a short format would be rounded wherever the
//! cluster cuts the tree, and the bits would depend on the number of workers.

use ronde_kernels::{ShortFormat, round_short};
use serde::{Deserialize, Serialize};

/// The floating-point format of weights, of the values between operations and of their gradients.
///
/// With a short format, a layer stores the outputs of operations and their gradients in 2 bytes, and rounds its weight matrices
/// to the format. Values of bf16 are multiplied by AMX or AVX512-BF16
/// where this is faster than f32, with sums in f32; values of f16 in f32, or on request in f16 (see
/// [`ComputeEngine::products`](crate::ComputeEngine::products)). These stay f32: the state with its master weights, tensors of
/// fewer than two dimensions, gradients of weights, statistics of normalisations, and numbers that select rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 24 bits of precision: nothing is rounded.
    #[default]
    F32,
    /// 8 bits of precision, the range of `f32`.
    Bf16,
    /// 11 bits of precision, 6e-8 to 65,504: gradients need a loss scale.
    F16,
}

impl Precision {
    /// Returns the name in run files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Returns the format of 2 bytes; `None` for f32.
    #[must_use]
    pub fn short(self) -> Option<ShortFormat> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(ShortFormat::Bf16),
            Self::F16 => Some(ShortFormat::F16),
        }
    }

    /// Rounds to the nearest value of the format, ties to even. Values beyond its range become
    /// infinite.
    pub fn round(self, values: &mut [f32]) {
        if let Some(format) = self.short() {
            round_short(format, values);
        }
    }

    /// Returns the number of floats that take as much memory as `values` kept values.
    #[must_use]
    pub fn kept_floats(self, values: usize) -> usize {
        match self {
            Self::F32 => values,
            Self::Bf16 | Self::F16 => ShortFormat::packed_length(values),
        }
    }
}
