//! Writes tables of images in the layout of Hugging Face's tools: a struct of bytes and path, and a label.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::{PackItem, PackTask, image, invalid, read};
use crate::error::DataError;

/// The maximum bytes of a row group; readers read a whole group at once.
const GROUP_BYTES: usize = 8 << 20;

const IMAGES: &str = "message schema {
    required group image { required binary bytes; required binary path (UTF8); }
    required int64 label;
    required binary class (UTF8);
}";
const LABELLED_TEXTS: &str = "message schema {
    required binary text (UTF8);
    required binary path (UTF8);
    required int64 label;
    required binary class (UTF8);
}";
const TEXTS: &str = "message schema {
    required binary text (UTF8);
    required binary path (UTF8);
}";

/// Returns a shard as a table; `None` when `continues` returns false.
pub(super) fn table(
    job: &PackTask<'_>,
    items: Range<usize>,
    continues: &dyn Fn() -> bool,
) -> Result<Option<Vec<u8>>, DataError> {
    let failed = |error: ParquetError| invalid("Parquet", error.to_string());
    let is_labelled = job.items.iter().all(|item| item.class.is_some());
    let schema = match (job.is_text, is_labelled) {
        (false, _) => IMAGES,
        (true, true) => LABELLED_TEXTS,
        (true, false) => TEXTS,
    };
    let schema = Arc::new(parse_message_type(schema).map_err(failed)?);
    // Images are already compressed.
    let compression = match job.is_text {
        true => Compression::SNAPPY,
        false => Compression::UNCOMPRESSED,
    };
    let properties = WriterProperties::builder()
        .set_created_by("ronde".to_owned())
        .set_compression(compression)
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(1 << 20)
        .build();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).map_err(failed)?;
    let (mut group, mut bytes) = (Vec::new(), 0);
    for number in items.clone() {
        let item = &job.items[number];
        let contents = read(item)?;
        match job.is_text {
            false => drop(image::picture(item, &contents)?),
            true => drop(std::str::from_utf8(&contents).map_err(|error| {
                invalid(&item.file.location(), format!("not valid UTF-8: {error}"))
            })?),
        }
        bytes += contents.len();
        group.push((item, contents));
        if bytes >= GROUP_BYTES || number + 1 == items.end {
            let mut rows = writer.next_row_group().map_err(failed)?;
            write_group(&mut rows, &group, is_labelled).map_err(failed)?;
            rows.close().map_err(failed)?;
            (group, bytes) = (Vec::new(), 0);
        }
        if !continues() {
            return Ok(None);
        }
    }
    writer.into_inner().map(Some).map_err(failed)
}

fn write_group(
    rows: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    group: &[(&PackItem, Vec<u8>)],
    is_labelled: bool,
) -> Result<(), ParquetError> {
    let contents = group
        .iter()
        .map(|(_, contents)| ByteArray::from(&contents[..]))
        .collect();
    let paths = group
        .iter()
        .map(|(item, _)| ByteArray::from(item.file.name()))
        .collect();
    bytes(rows, contents)?;
    bytes(rows, paths)?;
    if is_labelled {
        let class = |(item, _): &(&PackItem, Vec<u8>)| item.class.clone().unwrap_or_default();
        let (labels, names): (Vec<i64>, Vec<String>) = group.iter().map(class).unzip();
        let mut column = rows.next_column()?.ok_or_else(missing)?;
        column
            .typed::<Int64Type>()
            .write_batch(&labels, None, None)?;
        column.close()?;
        bytes(
            rows,
            names
                .iter()
                .map(|name| ByteArray::from(name.as_str()))
                .collect(),
        )?;
    }
    Ok(())
}

fn missing() -> ParquetError {
    ParquetError::General("the schema has fewer columns".to_owned())
}

fn bytes(
    rows: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: Vec<ByteArray>,
) -> Result<(), ParquetError> {
    let mut column = rows.next_column()?.ok_or_else(missing)?;
    column
        .typed::<ByteArrayType>()
        .write_batch(&values, None, None)?;
    column.close()
}
