//! [`ParquetColumn`]: the values of one column, row by row.

use std::borrow::Cow;
use std::collections::HashSet;

use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescriptor;

use super::super::{NumberType, Value};

/// The values of a column.
enum ColumnValues {
    Numbers { dtype: NumberType, bytes: Vec<u8> },
    Bytes(Vec<ByteArray>),
}

/// A column of a row group.
pub(super) struct ParquetColumn {
    pub(super) name: String,
    values: ColumnValues,
    /// The index of each row's first value, and the number of all values; empty if every row has exactly one.
    starts: Vec<u32>,
    is_list: bool,
    /// The rows whose list contains a null.
    with_null: HashSet<usize>,
}

/// Returns whether a column has a supported type: all but `INT96`, a deprecated timestamp.
pub(super) fn is_read(metadata: &ParquetMetaData, column: usize) -> bool {
    let column = metadata.file_metadata().schema_descr().column(column);
    column.physical_type() != Type::INT96
}

fn number_type(descr: &ColumnDescriptor) -> Option<NumberType> {
    let is_half = matches!(descr.logical_type_ref(), Some(LogicalType::Float16));
    let converted = descr.converted_type();
    let is_unsigned = matches!(
        converted,
        ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
    );
    match descr.physical_type() {
        Type::BOOLEAN => Some(NumberType::Bool),
        Type::INT32 if is_unsigned => Some(NumberType::U32),
        Type::INT32 => Some(NumberType::I32),
        Type::INT64 if is_unsigned => Some(NumberType::U64),
        Type::INT64 => Some(NumberType::I64),
        Type::FLOAT => Some(NumberType::F32),
        Type::DOUBLE => Some(NumberType::F64),
        Type::FIXED_LEN_BYTE_ARRAY if is_half => Some(NumberType::F16),
        _ => None,
    }
}

/// Levels and values of a column in the format's encoding.
struct ColumnLevels<T> {
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Vec<T>,
}

fn read<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    rows: usize,
) -> Result<ColumnLevels<T::T>, ParquetError> {
    let mut read = ColumnLevels {
        definitions: Vec::new(),
        repetitions: Vec::new(),
        values: Vec::new(),
    };
    let (count, ..) = reader.read_records(
        rows,
        Some(&mut read.definitions),
        Some(&mut read.repetitions),
        &mut read.values,
    )?;
    match count == rows {
        true => Ok(read),
        false => Err(ParquetError::EOF(format!("{count} rows instead of {rows}"))),
    }
}

impl ParquetColumn {
    /// Reads all rows.
    pub(super) fn read(
        name: &str,
        descr: &ColumnDescriptor,
        reader: ColumnReader,
        rows: usize,
    ) -> Result<Self, ParquetError> {
        let mut column = Self {
            name: name.to_owned(),
            values: ColumnValues::Bytes(Vec::new()),
            starts: Vec::new(),
            is_list: descr.max_rep_level() > 0,
            with_null: HashSet::new(),
        };
        let dtype = number_type(descr);
        match (reader, dtype) {
            (ColumnReader::BoolColumnReader(reader), Some(dtype)) => {
                column.numbers(descr, dtype, read(reader, rows)?, rows, |value| {
                    [u8::from(value)]
                })
            }
            (ColumnReader::Int32ColumnReader(reader), Some(dtype)) => {
                column.numbers(descr, dtype, read(reader, rows)?, rows, i32::to_le_bytes)
            }
            (ColumnReader::Int64ColumnReader(reader), Some(dtype)) => {
                column.numbers(descr, dtype, read(reader, rows)?, rows, i64::to_le_bytes)
            }
            (ColumnReader::FloatColumnReader(reader), Some(dtype)) => {
                column.numbers(descr, dtype, read(reader, rows)?, rows, f32::to_le_bytes)
            }
            (ColumnReader::DoubleColumnReader(reader), Some(dtype)) => {
                column.numbers(descr, dtype, read(reader, rows)?, rows, f64::to_le_bytes)
            }
            (ColumnReader::ByteArrayColumnReader(reader), _) => {
                let mut read = read(reader, rows)?;
                let done = column.rows(descr, &read, rows);
                column.values = ColumnValues::Bytes(std::mem::take(&mut read.values));
                done
            }
            (ColumnReader::FixedLenByteArrayColumnReader(reader), dtype) => {
                let read = read(reader, rows)?;
                let values = read.values.iter().map(|value| value.data());
                column.values = match dtype {
                    Some(dtype) => ColumnValues::Numbers {
                        dtype,
                        bytes: values.flatten().copied().collect(),
                    },
                    None => ColumnValues::Bytes(values.map(ByteArray::from).collect()),
                };
                column.rows(descr, &read, rows)
            }
            _ => Err(ParquetError::NYI("an unsupported type".to_owned())),
        }?;
        Ok(column)
    }

    fn numbers<T: Copy, const N: usize>(
        &mut self,
        descr: &ColumnDescriptor,
        dtype: NumberType,
        read: ColumnLevels<T>,
        rows: usize,
        bytes: impl Fn(T) -> [u8; N],
    ) -> Result<(), ParquetError> {
        self.values = ColumnValues::Numbers {
            dtype,
            bytes: read.values.iter().flat_map(|&value| bytes(value)).collect(),
        };
        self.rows(descr, &read, rows)
    }

    /// Assigns the values to rows.
    fn rows<T>(
        &mut self,
        descr: &ColumnDescriptor,
        read: &ColumnLevels<T>,
        rows: usize,
    ) -> Result<(), ParquetError> {
        let most = descr.max_def_level();
        if most == 0 || (!self.is_list && read.values.len() == rows) {
            return Ok(());
        }
        let levels = read.definitions.len();
        let mut starts = Vec::with_capacity(rows + 1);
        let mut value = 0_u32;
        for at in 0..levels {
            if !self.is_list || read.repetitions.get(at) == Some(&0) {
                starts.push(value);
            }
            let definition = read.definitions[at];
            if definition == most {
                value += 1;
            } else if self.is_list && definition >= descr.repeated_ancestor_def_level() {
                self.with_null.insert(starts.len().saturating_sub(1));
            }
        }
        starts.push(value);
        if starts.len() != rows + 1 || value as usize != read.values.len() {
            return Err(ParquetError::General(
                "levels and values do not match".to_owned(),
            ));
        }
        self.starts = starts;
        Ok(())
    }

    /// Returns the value of a row; `None` for null.
    pub(super) fn value(&self, row: usize) -> Result<Option<Value<'_>>, String> {
        if self.with_null.contains(&row) {
            return Err(format!("the list in column {:?} has a null", self.name));
        }
        let (start, end) = match self.starts.is_empty() {
            true => (row, row + 1),
            false => (self.starts[row] as usize, self.starts[row + 1] as usize),
        };
        if start == end && !self.is_list {
            return Ok(None);
        }
        Ok(Some(match &self.values {
            ColumnValues::Numbers { dtype, bytes } => {
                let width = dtype.bytes();
                let bytes = bytes.get(start * width..end * width);
                Value::Numbers {
                    dtype: *dtype,
                    bytes: Cow::Borrowed(bytes.ok_or("the column is cut off")?),
                }
            }
            ColumnValues::Bytes(all) => {
                let values = all.get(start..end).ok_or("the column is cut off")?;
                match values {
                    [one] if !self.is_list => Value::Bytes(Cow::Borrowed(one.data())),
                    values => Value::List(
                        values
                            .iter()
                            .map(|bytes| Cow::Borrowed(bytes.data()))
                            .collect(),
                    ),
                }
            }
        }))
    }
}
