//! Writes tables of predictions as Parquet, and joins such files without reading their values.

use std::fs::File;

use crate::columns::Column;
use crate::error::ServeError;

#[cfg(not(feature = "full"))]
pub(crate) fn encode(_: &[Column]) -> Result<Vec<u8>, ServeError> {
    Err(not_built())
}

#[cfg(not(feature = "full"))]
pub(crate) fn join(_: Vec<File>, _: &mut File) -> Result<(), ServeError> {
    Err(not_built())
}

#[cfg(not(feature = "full"))]
fn not_built() -> ServeError {
    ServeError::NotBuilt { format: "Parquet" }
}

#[cfg(feature = "full")]
pub(crate) use full::{encode, join};

#[cfg(feature = "full")]
mod full {
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::column::writer::ColumnCloseResult;
    use parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int32Type, Int64Type};
    use parquet::errors::ParquetError;
    use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::parser::parse_message_type;

    use super::{Column, File, ServeError};
    use crate::columns::TableValues;

    fn failed(error: ParquetError) -> ServeError {
        ServeError::Encode {
            cause: std::io::Error::other(error),
        }
    }

    fn properties() -> WriterPropertiesPtr {
        let builder = WriterProperties::builder()
            .set_created_by("ronde".to_owned())
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false);
        Arc::new(builder.build())
    }

    /// Returns a file with one row group.
    pub(crate) fn encode(columns: &[Column]) -> Result<Vec<u8>, ServeError> {
        let schema = parse_message_type(&schema(columns)).map_err(failed)?;
        let writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), properties());
        let mut writer = writer.map_err(failed)?;
        let mut rows = writer.next_row_group().map_err(failed)?;
        for column in columns {
            write(&mut rows, &column.values).map_err(failed)?;
        }
        rows.close().map_err(failed)?;
        writer.into_inner().map_err(failed)
    }

    /// Writes the row groups of files with the same columns into one file.
    pub(crate) fn join(parts: Vec<File>, to: &mut File) -> Result<(), ServeError> {
        let mut writer: Option<SerializedFileWriter<&mut File>> = None;
        let mut to = Some(to);
        for part in parts {
            let bytes = part.try_clone().map_err(|error| failed(error.into()))?;
            let reader = SerializedFileReader::new(part).map_err(failed)?;
            if let Some(to) = to.take() {
                let schema = reader.metadata().file_metadata().schema_descr();
                let created = SerializedFileWriter::new(to, schema.root_schema_ptr(), properties());
                writer = Some(created.map_err(failed)?);
            }
            let Some(writer) = &mut writer else { continue };
            for group in reader.metadata().row_groups() {
                append(writer, group, &bytes).map_err(failed)?;
            }
        }
        match writer {
            Some(writer) => writer.close().map(drop).map_err(failed),
            None => Ok(()),
        }
    }

    fn append(
        writer: &mut SerializedFileWriter<&mut File>,
        group: &parquet::file::metadata::RowGroupMetaData,
        bytes: &File,
    ) -> Result<(), ParquetError> {
        let mut rows = writer.next_row_group()?;
        for column in group.columns() {
            let closed = ColumnCloseResult {
                bytes_written: column.compressed_size() as u64,
                rows_written: group.num_rows() as u64,
                metadata: column.clone(),
                bloom_filter: None,
                column_index: None,
                offset_index: None,
            };
            rows.append_column(bytes, closed)?;
        }
        rows.close().map(drop)
    }

    /// Returns the schema. Lists have the three levels that the format specifies.
    fn schema(columns: &[Column]) -> String {
        let mut text = "message schema {\n".to_owned();
        for Column {
            name,
            plural,
            values,
            ..
        } in columns
        {
            let list = |kind: &str| {
                format!(
                    "required group {plural} (LIST) {{ repeated group list {{ required {kind} element; }} }}\n"
                )
            };
            text.push_str(&match values {
                TableValues::Integers(_) => format!("required int64 {name};\n"),
                TableValues::Floats(_) => format!("required float {name};\n"),
                TableValues::Texts(_) => format!("required binary {name} (UTF8);\n"),
                TableValues::IntegerLists(_) => list("int32"),
                TableValues::FloatLists(_) => list("float"),
                TableValues::LongLists(_) => list("int64"),
                TableValues::TextLists(_) => {
                    list("binary").replace(" element;", " element (UTF8);")
                }
            });
        }
        text.push('}');
        text
    }

    fn write(
        rows: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
        values: &TableValues,
    ) -> Result<(), ParquetError> {
        match values {
            TableValues::Integers(values) => {
                write_levels::<Int64Type>(rows, values, None::<std::iter::Empty<usize>>)
            }
            TableValues::Floats(values) => {
                write_levels::<FloatType>(rows, values, None::<std::iter::Empty<usize>>)
            }
            TableValues::Texts(values) => {
                let values: Vec<ByteArray> = values
                    .iter()
                    .map(|text| ByteArray::from(text.as_str()))
                    .collect();
                write_levels::<ByteArrayType>(rows, &values, None::<std::iter::Empty<usize>>)
            }
            TableValues::IntegerLists(lists) => {
                let values: Vec<i32> = lists.iter().flatten().map(|&value| value as i32).collect();
                write_levels::<Int32Type>(rows, &values, Some(lists.iter().map(Vec::len)))
            }
            TableValues::FloatLists(lists) => {
                write_levels::<FloatType>(rows, &lists.concat(), Some(lists.iter().map(Vec::len)))
            }
            TableValues::LongLists(lists) => {
                write_levels::<Int64Type>(rows, &lists.concat(), Some(lists.iter().map(Vec::len)))
            }
            TableValues::TextLists(lists) => {
                let values: Vec<ByteArray> = lists
                    .iter()
                    .flatten()
                    .map(|text| ByteArray::from(text.as_str()))
                    .collect();
                write_levels::<ByteArrayType>(rows, &values, Some(lists.iter().map(Vec::len)))
            }
        }
    }

    /// Writes a column, of lists if their lengths are given: an element repeats its list unless it is the first one, and
    /// an empty list has an undefined element.
    fn write_levels<T: DataType>(
        rows: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
        values: &[T::T],
        lengths: Option<impl Iterator<Item = usize>>,
    ) -> Result<(), ParquetError> {
        let mut column = rows
            .next_column()?
            .ok_or_else(|| ParquetError::General("the schema has fewer columns".to_owned()))?;
        let levels = lengths.map(|lengths| {
            let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
            for length in lengths {
                repetitions.push(0_i16);
                repetitions.extend((1..length).map(|_| 1_i16));
                definitions.push(i16::from(length > 0));
                definitions.extend((1..length).map(|_| 1_i16));
            }
            (definitions, repetitions)
        });
        let (definitions, repetitions) = match &levels {
            Some((definitions, repetitions)) => (Some(&definitions[..]), Some(&repetitions[..])),
            None => (None, None),
        };
        column
            .typed::<T>()
            .write_batch(values, definitions, repetitions)?;
        column.close()
    }

    #[cfg(test)]
    mod tests {
        use std::io::Write;

        use super::*;
        use crate::output::OutputFormat;
        use crate::predicted_sample::PredictedSample;
        use crate::prediction::{FoundBox, Prediction};

        fn rows(samples: std::ops::Range<u64>) -> Vec<PredictedSample> {
            let found = |sample: u64| FoundBox {
                class: sample as u32,
                probability: 0.5,
                top: 0.0,
                left: 0.0,
                bottom: 1.0,
                right: 1.0,
            };
            let row = |sample: u64| PredictedSample {
                sample,
                origin: None,
                prediction: Prediction::Boxes {
                    boxes: vec![found(sample); sample as usize % 3],
                },
            };
            samples.map(row).collect()
        }

        #[test]
        fn joined_files_have_the_rows_of_all_parts() {
            let folder = tempfile::tempdir().unwrap();
            let part = |samples| {
                let mut file = tempfile::tempfile_in(folder.path()).unwrap();
                let bytes = OutputFormat::Parquet.encode(&rows(samples)).unwrap();
                file.write_all(&bytes).unwrap();
                file
            };
            let parts = vec![part(0..4), part(4..6)];
            let path = folder.path().join("all.parquet");
            join(parts, &mut File::create(&path).unwrap()).unwrap();
            let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
            let rows: Vec<String> = reader
                .get_row_iter(None)
                .unwrap()
                .map(|row| row.unwrap().to_string())
                .collect();
            assert_eq!(rows.len(), 6);
            assert!(
                rows[0].starts_with("{sample: 0, box_classes: []"),
                "{}",
                rows[0]
            );
            assert!(
                rows[5].starts_with("{sample: 5, box_classes: [5, 5]"),
                "{}",
                rows[5]
            );
        }
    }
}
