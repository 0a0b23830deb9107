//! Element types and reduction operators.

use serde::{Deserialize, Serialize};

/// The type of the elements of a buffer or tensor.
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

    /// Returns the size of one element in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Returns whether elements are floating-point numbers.
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

/// A reduction operator, which combines elements of several ranks into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum. The floating-point sum of a plain all-reduce depends on the algorithm's order; see [`crate::exact`]
    /// for a sum that does not.
    Sum = 0,
    /// Smallest; NaN if any element is NaN.
    Min = 1,
    /// Largest; NaN if any element is NaN.
    Max = 2,
    /// Product.
    Product = 3,
    /// The sum, divided once by the number of ranks. Floating point only.
    Mean = 4,
    /// Bitwise and. Integers only.
    And = 5,
    /// Bitwise or. Integers only.
    Or = 6,
    /// Bitwise exclusive or. Integers only.
    Xor = 7,
}

impl ReduceOp {
    /// All operators.
    pub const ALL: [Self; 8] = [
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::Product,
        Self::Mean,
        Self::And,
        Self::Or,
        Self::Xor,
    ];

    /// Returns the reason why elements of `dtype` cannot be reduced with this operator; `None` if they can.
    #[must_use]
    pub fn refusal(self, dtype: DType) -> Option<String> {
        match self {
            Self::Mean if !dtype.is_float() => Some(format!(
                "the mean of {dtype} would have to be rounded; use the sum and divide it"
            )),
            Self::And | Self::Or | Self::Xor if dtype.is_float() => {
                Some(format!("bitwise {self} needs integers, not {dtype}"))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
            Self::Mean => "mean",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_of_floats_or_integers_or_both() {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let only_floats = op == ReduceOp::Mean;
                let only_integers = matches!(op, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor);
                let refused = op.refusal(dtype);
                let expected =
                    dtype.is_float() && only_integers || !dtype.is_float() && only_floats;
                assert_eq!(refused.is_some(), expected, "{op} of {dtype}: {refused:?}");
            }
        }
    }
}
