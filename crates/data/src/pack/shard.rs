//! Writes one shard, file by file.

use ronde_store::{ObjectName, Upload};

use super::{PackItem, PackTask, image, read, tar};
use crate::error::DataError;
use crate::format::FormatKind;
use crate::format::tfrecord::write::{example, frame};

/// The bytes of one write.
const WRITE_BYTES: usize = 1 << 20;

/// Writes and publishes a shard and returns its bytes. Calls `continues` after each file, and publishes nothing when it
/// returns false.
pub(super) fn write(
    job: &PackTask<'_>,
    shard: usize,
    continues: &dyn Fn() -> bool,
) -> Result<u64, DataError> {
    let name = ObjectName::new(job.name(shard))?;
    let mut out = ShardWriter {
        upload: job.store.create(&name)?,
        buffer: Vec::new(),
        bytes: 0,
    };
    let (start, end) = (job.cuts[shard], job.cuts[shard + 1]);
    #[cfg(feature = "full")]
    if job.settings.format == FormatKind::Parquet {
        return match super::parquet::table(job, start..end, continues)? {
            Some(table) => {
                out.buffer = table;
                out.publish()
            }
            None => Ok(0),
        };
    }
    for (number, item) in job.items[start..end].iter().enumerate() {
        let bytes = read(item)?;
        match job.settings.format {
            FormatKind::WebDataset => members(job, item, start + number, &bytes, &mut out.buffer)?,
            _ => frame(
                &mut out.buffer,
                &example(&image::record(item, &bytes, job.is_text)?),
            ),
        }
        if out.buffer.len() >= WRITE_BYTES {
            out.flush()?;
        }
        if !continues() {
            return Ok(0);
        }
    }
    if job.settings.format == FormatKind::WebDataset {
        tar::end(&mut out.buffer);
    }
    out.publish()
}

struct ShardWriter {
    upload: Box<dyn Upload>,
    buffer: Vec<u8>,
    bytes: u64,
}

impl ShardWriter {
    fn flush(&mut self) -> Result<(), DataError> {
        self.upload.write(&self.buffer)?;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn publish(mut self) -> Result<u64, DataError> {
        self.flush()?;
        self.upload.publish()?;
        Ok(self.bytes)
    }
}

/// Appends the members of a record; `number` is unique in the set.
fn members(
    job: &PackTask<'_>,
    item: &PackItem,
    number: usize,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), DataError> {
    let mut add = |field: &str, contents: &[u8]| {
        tar::member(out, &format!("{number:09}.{field}"), contents);
    };
    if job.is_text {
        add("txt", bytes);
    } else {
        image::picture(item, bytes)?;
        add(&job.field, bytes);
    }
    if let Some((class, name)) = &item.class {
        add("cls", class.to_string().as_bytes());
        add(
            if job.is_text { "class.txt" } else { "txt" },
            name.as_bytes(),
        );
    }
    Ok(())
}
