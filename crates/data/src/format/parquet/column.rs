//! [`ParquetColumn`]: the values of one column, row by row.

use std::borrow::Cow;
use std::collections::HashSet;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{AsBytes, ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;

use super::super::{NumberType, Value};
use super::column_type::{ColumnType, big_endian, decimal_to_f64};
use super::error::TableError;

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

fn mismatch() -> ParquetError {
    ParquetError::General("its values are not of the type in the schema".to_owned())
}

impl ParquetColumn {
    /// Reads all rows.
    pub(super) fn read(
        name: &str,
        descr: &ColumnDescriptor,
        kind: ColumnType,
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
        match reader {
            ColumnReader::BoolColumnReader(reader) => {
                let values = read(reader, rows)?;
                column.numbers(descr, kind, values, rows, |value| [u8::from(value)])
            }
            ColumnReader::Int32ColumnReader(reader) => {
                let values = read(reader, rows)?;
                match kind {
                    ColumnType::Decimal { .. } => {
                        column.decimals(descr, kind, values, rows, |&value| Some(value.into()))
                    }
                    _ => column.numbers(descr, kind, values, rows, i32::to_le_bytes),
                }
            }
            ColumnReader::Int64ColumnReader(reader) => {
                let values = read(reader, rows)?;
                match kind {
                    ColumnType::Decimal { .. } => {
                        column.decimals(descr, kind, values, rows, |&value| Some(value.into()))
                    }
                    _ => column.numbers(descr, kind, values, rows, i64::to_le_bytes),
                }
            }
            ColumnReader::FloatColumnReader(reader) => {
                column.numbers(descr, kind, read(reader, rows)?, rows, f32::to_le_bytes)
            }
            ColumnReader::DoubleColumnReader(reader) => {
                column.numbers(descr, kind, read(reader, rows)?, rows, f64::to_le_bytes)
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                column.byte_arrays(descr, kind, read(reader, rows)?, rows, |value| value)
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                column.byte_arrays(descr, kind, read(reader, rows)?, rows, ByteArray::from)
            }
            _ => Err(mismatch()),
        }?;
        Ok(column)
    }

    fn numbers<T: Copy, const N: usize>(
        &mut self,
        descr: &ColumnDescriptor,
        kind: ColumnType,
        read: ColumnLevels<T>,
        rows: usize,
        bytes: impl Fn(T) -> [u8; N],
    ) -> Result<(), ParquetError> {
        let ColumnType::Numbers(dtype) = kind else {
            return Err(mismatch());
        };
        self.values = ColumnValues::Numbers {
            dtype,
            bytes: read.values.iter().flat_map(|&value| bytes(value)).collect(),
        };
        self.rows(descr, &read, rows)
    }

    fn decimals<T>(
        &mut self,
        descr: &ColumnDescriptor,
        kind: ColumnType,
        read: ColumnLevels<T>,
        rows: usize,
        unscaled: impl Fn(&T) -> Option<i128>,
    ) -> Result<(), ParquetError> {
        let ColumnType::Decimal { scale } = kind else {
            return Err(mismatch());
        };
        let mut bytes = Vec::with_capacity(8 * read.values.len());
        for value in &read.values {
            let unscaled = unscaled(value)
                .ok_or_else(|| ParquetError::General("a decimal exceeds 128 bits".to_owned()))?;
            bytes.extend_from_slice(&decimal_to_f64(unscaled, scale).to_le_bytes());
        }
        let dtype = NumberType::F64;
        self.values = ColumnValues::Numbers { dtype, bytes };
        self.rows(descr, &read, rows)
    }

    fn byte_arrays<T: AsBytes>(
        &mut self,
        descr: &ColumnDescriptor,
        kind: ColumnType,
        mut read: ColumnLevels<T>,
        rows: usize,
        bytes: impl Fn(T) -> ByteArray,
    ) -> Result<(), ParquetError> {
        match kind {
            ColumnType::Decimal { .. } => self.decimals(descr, kind, read, rows, |value| {
                big_endian(value.as_bytes())
            }),
            ColumnType::Numbers(dtype) => {
                let each = read.values.iter().map(AsBytes::as_bytes);
                if each.clone().any(|value| value.len() != dtype.bytes()) {
                    return Err(mismatch());
                }
                let bytes = each.flatten().copied().collect();
                self.values = ColumnValues::Numbers { dtype, bytes };
                self.rows(descr, &read, rows)
            }
            ColumnType::Bytes => {
                self.rows(descr, &read, rows)?;
                let values = std::mem::take(&mut read.values);
                self.values = ColumnValues::Bytes(values.into_iter().map(bytes).collect());
                Ok(())
            }
        }
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
    pub(super) fn value(&self, row: usize) -> Result<Option<Value<'_>>, TableError> {
        if self.with_null.contains(&row) {
            return Err(TableError::Null {
                name: self.name.clone(),
            });
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
                    bytes: Cow::Borrowed(bytes.ok_or(TableError::ColumnCutOff)?),
                }
            }
            ColumnValues::Bytes(all) => {
                let values = all.get(start..end).ok_or(TableError::ColumnCutOff)?;
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
