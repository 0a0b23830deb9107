//! [`Record`]: named [`Value`]s.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The encoding of a number in little-endian bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NumberType {
    /// One byte: 0 for false, any other value for true.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 half precision.
    F16,
    /// Brain floating point: the upper half of an `F32`.
    Bf16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl NumberType {
    /// Returns the size of one number in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns whether this is a floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// Returns the number at an index of little-endian bytes, or `None` past their end.
    #[must_use]
    pub fn float(self, bytes: &[u8], index: usize) -> Option<f64> {
        let at = index.checked_mul(self.bytes())?;
        let number = bytes.get(at..at.checked_add(self.bytes())?)?;
        let two = || number.first_chunk::<2>().copied().unwrap_or_default();
        let four = || number.first_chunk::<4>().copied().unwrap_or_default();
        let eight = || number.first_chunk::<8>().copied().unwrap_or_default();
        Some(match self {
            Self::Bool => f64::from(u8::from(number[0] != 0)),
            Self::U8 => f64::from(number[0]),
            Self::I8 => f64::from(number[0] as i8),
            Self::U16 => f64::from(u16::from_le_bytes(two())),
            Self::I16 => f64::from(i16::from_le_bytes(two())),
            Self::U32 => f64::from(u32::from_le_bytes(four())),
            Self::I32 => f64::from(i32::from_le_bytes(four())),
            Self::U64 => u64::from_le_bytes(eight()) as f64,
            Self::I64 => i64::from_le_bytes(eight()) as f64,
            Self::F16 => half::f16::from_le_bytes(two()).to_f64(),
            Self::Bf16 => half::bf16::from_le_bytes(two()).to_f64(),
            Self::F32 => f64::from(f32::from_le_bytes(four())),
            Self::F64 => f64::from_le_bytes(eight()),
        })
    }

    /// Returns the integer at an index of little-endian bytes, or `None` past their end and for a number that is not an
    /// integer or does not fit.
    #[must_use]
    pub fn integer(self, bytes: &[u8], index: usize) -> Option<i64> {
        let at = index.checked_mul(self.bytes())?;
        let eight = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
        match self {
            Self::I64 => eight.copied().map(i64::from_le_bytes),
            Self::U64 => eight.and_then(|&number| u64::from_le_bytes(number).try_into().ok()),
            _ => {
                let number = self.float(bytes, index)?;
                let is_whole = number.fract() == 0.0 && number.abs() < i64::MAX as f64;
                is_whole.then_some(number as i64)
            }
        }
    }

    /// Returns the name that run files use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

/// The value of one field of a record.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// Bytes, such as an encoded image or a text.
    Bytes(Cow<'a, [u8]>),
    /// A list of byte strings; may be empty.
    List(Vec<Cow<'a, [u8]>>),
    /// Contiguous little-endian numbers of one type.
    Numbers {
        /// Their type.
        dtype: NumberType,
        /// Their bytes; the length is a multiple of [`NumberType::bytes`].
        bytes: Cow<'a, [u8]>,
    },
}

impl Value<'_> {
    /// Creates a value from integers.
    #[must_use]
    pub fn integers(numbers: &[i64]) -> Self {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Self::Numbers {
            dtype: NumberType::I64,
            bytes: Cow::Owned(bytes),
        }
    }

    /// Creates a value from single-precision numbers.
    #[must_use]
    pub fn floats(numbers: &[f32]) -> Self {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Self::Numbers {
            dtype: NumberType::F32,
            bytes: Cow::Owned(bytes),
        }
    }

    /// Describes the value for messages: `3 numbers (i64)`.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Self::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Self::List(list) => format!("a list of {} texts or images", list.len()),
            Self::Numbers { dtype, bytes } => {
                format!("{} numbers ({})", bytes.len() / dtype.bytes(), dtype.name())
            }
        }
    }
}

/// The requested fields of one record, by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Record<'a> {
    /// Names and values, in the order requested, or in the order of the file.
    pub fields: Vec<(Cow<'a, str>, Value<'a>)>,
}

impl<'a> Record<'a> {
    /// Returns the value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        let mut fields = self.fields.iter();
        fields.find(|(field, _)| field == name).map(|(_, v)| v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_type_are_read() {
        let one =
            |dtype: NumberType, bytes: &[u8]| (dtype.float(bytes, 0), dtype.integer(bytes, 0));
        assert_eq!(one(NumberType::Bool, &[7]), (Some(1.0), Some(1)));
        assert_eq!(one(NumberType::I8, &[0xff]), (Some(-1.0), Some(-1)));
        assert_eq!(one(NumberType::U16, &[1, 2]), (Some(513.0), Some(513)));
        assert_eq!(one(NumberType::I16, &[0xfe, 0xff]), (Some(-2.0), Some(-2)));
        assert_eq!(one(NumberType::U32, &[0xff; 4]).1, Some(u32::MAX.into()));
        assert_eq!(one(NumberType::I32, &[0xff; 4]), (Some(-1.0), Some(-1)));
        assert_eq!(one(NumberType::U64, &[0xff; 8]).1, None);
        assert_eq!(one(NumberType::F16, &[0, 0xc0]), (Some(-2.0), Some(-2)));
        assert_eq!(one(NumberType::Bf16, &[0xc0, 0x3f]), (Some(1.5), None));
        let (half, whole) = (0.5_f32.to_le_bytes(), (1e10_f64).to_le_bytes());
        assert_eq!(one(NumberType::F32, &half), (Some(0.5), None));
        assert_eq!(
            one(NumberType::F64, &whole),
            (Some(1e10), Some(10_000_000_000))
        );
        assert_eq!(NumberType::F64.integer(&f64::NAN.to_le_bytes(), 0), None);
        assert_eq!(NumberType::F64.float(&[0; 15], 1), None);
        assert_eq!(NumberType::I64.float(&[0; 8], usize::MAX), None);
    }
}
