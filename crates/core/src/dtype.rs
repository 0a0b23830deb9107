//! Element types and reduction operators.

use serde::{Deserialize, Serialize};

/// Type of the elements of a buffer or tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary64.
    F64 = 0,
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary16.
    F16 = 2,
    /// The upper half of a binary32.
    Bf16 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// Unsigned 32-bit integer.
    U32 = 6,
    /// Byte.
    U8 = 7,
}

impl DType {
    /// All element types.
    pub const ALL: [Self; 8] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I64,
        Self::I32,
        Self::U32,
        Self::U8,
    ];

    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Whether elements are floating point.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::U8 => "u8",
        })
    }
}

/// How elements of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum. Floating-point sums of a plain all-reduce depend on the algorithm's order; see
    /// [`crate::exact`] for the one that does not.
    Sum = 0,
    /// Smallest; NaN if any element is NaN.
    Min = 1,
    /// Largest; NaN if any element is NaN.
    Max = 2,
    /// Product.
    Product = 3,
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        })
    }
}
