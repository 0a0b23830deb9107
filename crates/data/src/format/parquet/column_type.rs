//! [`ColumnType`]: how the values of a column are read, or why the column is not supported.

use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::schema::types::{self, ColumnDescriptor, SchemaDescriptor};

use super::super::NumberType;
use super::error::TableError;

/// The largest number of digits of a decimal: those that fit 128 bits.
pub(super) const DIGITS_MAX: i32 = 38;

/// How the values of a column are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnType {
    /// As numbers of this type.
    Numbers(NumberType),
    /// As [`NumberType::F64`], from integers that are divided by a power of ten.
    Decimal { scale: u32 },
    /// As byte strings.
    Bytes,
}

impl ColumnType {
    /// Returns the type of a column.
    ///
    /// # Errors
    /// Returns the name of the column's property that is not supported.
    pub(super) fn of(schema: &SchemaDescriptor, column: usize) -> Result<Self, TableError> {
        let descr = schema.column(column);
        check_groups(schema, &descr)?;
        if descr.max_rep_level() > 1 {
            return Err(TableError::Types {
                types: "nested lists",
            });
        }
        match descr.logical_type_ref() {
            Some(logical) => Self::of_logical(logical, &descr),
            None => Self::of_converted(&descr),
        }
    }

    fn of_logical(logical: &LogicalType, descr: &ColumnDescriptor) -> Result<Self, TableError> {
        match logical {
            LogicalType::String | LogicalType::Enum | LogicalType::Json | LogicalType::Bson => {
                Ok(Self::Bytes)
            }
            LogicalType::Uuid => Ok(Self::Bytes),
            LogicalType::Decimal(decimal) => Self::decimal(decimal.scale, decimal.precision),
            LogicalType::Integer(integer) => Self::of_physical(descr, !integer.is_signed),
            LogicalType::Float16 => Ok(Self::Numbers(NumberType::F16)),
            LogicalType::Date => Err(unsupported("dates")),
            LogicalType::Time(_) => Err(unsupported("times")),
            LogicalType::Timestamp(_) => Err(unsupported("timestamps")),
            LogicalType::Unknown => Err(TableError::Types {
                types: "columns of nulls only",
            }),
            other => Err(logical_type(other)),
        }
    }

    fn of_converted(descr: &ColumnDescriptor) -> Result<Self, TableError> {
        match descr.converted_type() {
            ConvertedType::NONE
            | ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::INT_64 => Self::of_physical(descr, false),
            ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64 => Self::of_physical(descr, true),
            ConvertedType::UTF8
            | ConvertedType::ENUM
            | ConvertedType::JSON
            | ConvertedType::BSON => Ok(Self::Bytes),
            ConvertedType::DECIMAL => Self::decimal(descr.type_scale(), descr.type_precision()),
            ConvertedType::DATE => Err(unsupported("dates")),
            ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS => Err(unsupported("times")),
            ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS => {
                Err(unsupported("timestamps"))
            }
            ConvertedType::INTERVAL => Err(unsupported("intervals")),
            other => Err(TableError::OtherType {
                name: format!("{other:?}"),
            }),
        }
    }

    fn of_physical(descr: &ColumnDescriptor, is_unsigned: bool) -> Result<Self, TableError> {
        Ok(match descr.physical_type() {
            Type::BOOLEAN => Self::Numbers(NumberType::Bool),
            Type::INT32 if is_unsigned => Self::Numbers(NumberType::U32),
            Type::INT32 => Self::Numbers(NumberType::I32),
            Type::INT64 if is_unsigned => Self::Numbers(NumberType::U64),
            Type::INT64 => Self::Numbers(NumberType::I64),
            Type::FLOAT => Self::Numbers(NumberType::F32),
            Type::DOUBLE => Self::Numbers(NumberType::F64),
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => Self::Bytes,
            Type::INT96 => return Err(unsupported("INT96 timestamps")),
        })
    }

    fn decimal(scale: i32, precision: i32) -> Result<Self, TableError> {
        match u32::try_from(scale) {
            Ok(scale) if (1..=DIGITS_MAX).contains(&precision) && scale <= precision as u32 => {
                Ok(Self::Decimal { scale })
            }
            _ => Err(TableError::Decimal { precision, scale }),
        }
    }
}

const MAPS: TableError = TableError::Types { types: "maps" };

fn unsupported(types: &'static str) -> TableError {
    TableError::Convertible { types }
}

fn logical_type(of: &LogicalType) -> TableError {
    TableError::LogicalType {
        name: format!("{of:?}"),
    }
}

/// Refuses columns inside groups whose meaning is not that of a struct or a list.
fn check_groups(schema: &SchemaDescriptor, descr: &ColumnDescriptor) -> Result<(), TableError> {
    let mut group: &types::Type = schema.root_schema();
    for part in descr.path().parts() {
        let mut fields = group.get_fields().iter();
        let Some(field) = fields.find(|field| field.name() == part) else {
            return Err(TableError::NotInSchema);
        };
        if field.is_primitive() {
            return Ok(());
        }
        let info = field.get_basic_info();
        match info.logical_type_ref() {
            None | Some(LogicalType::List) => {}
            Some(LogicalType::Map) => return Err(MAPS),
            Some(other) => return Err(logical_type(other)),
        }
        if matches!(
            info.converted_type(),
            ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE
        ) {
            return Err(MAPS);
        }
        group = field;
    }
    Ok(())
}

/// Returns a decimal as the nearest double.
pub(super) fn decimal_to_f64(unscaled: i128, scale: u32) -> f64 {
    // Up to these limits both operands are exact, so that their quotient is correctly rounded.
    if unscaled.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS && scale <= 22 {
        return unscaled as f64 / 10_u128.pow(scale) as f64;
    }
    let text = format!("{unscaled}e-{scale}");
    text.parse()
        .expect("an integer with an exponent is a number")
}

/// Parses a big-endian integer in two's complement; `None` if it is empty or exceeds 128 bits.
pub(super) fn big_endian(bytes: &[u8]) -> Option<i128> {
    let sign = bytes
        .first()
        .map(|&first| if first & 0x80 == 0 { 0 } else { 0xff })?;
    let mut whole = [sign; 16];
    let start = whole.len().checked_sub(bytes.len())?;
    whole[start..].copy_from_slice(bytes);
    Some(i128::from_be_bytes(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_become_the_nearest_double() {
        for (unscaled, scale, expected) in [
            (57, 2, 0.57),
            (-125, 2, -1.25),
            (0, 0, 0.0),
            (9_007_199_254_740_993, 5, 90_071_992_547.409_93),
            (i128::MAX, 38, 1.701_411_834_604_692_3),
            (1, 38, 1e-38),
        ] {
            assert_eq!(decimal_to_f64(unscaled, scale), expected);
        }
    }

    #[test]
    fn integers_are_read_from_any_number_of_bytes() {
        for (bytes, expected) in [
            (&[][..], None),
            (&[0x39], Some(57)),
            (&[0xff, 0x83], Some(-125)),
            (&[0xff; 16], Some(-1)),
            (&[0; 17], None),
        ] {
            assert_eq!(big_endian(bytes), expected);
        }
    }
}
