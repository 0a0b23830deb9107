//! Prints every record of some files field by field, for comparison by other programs: `records KIND FILE..`.
//!
//! A line `record` for each record, then a line per field: its name, `bytes`, `list` or the type of its numbers, and the
//! bytes in hexadecimal digits (of a list separated by commas).

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use ronde_data::DataError;
use ronde_data::format::{FormatConfig, FormatTable, NumberType, ScanItem, SharedBytes, Value};
use ronde_data::source::{FolderNames, expand};
use ronde_store::{Opener, RemoteSettings, StoredObject};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().ok_or("records KIND FILE..")?;
    // Tokens have two bytes here.
    let dtype = (kind == "tokens").then_some(NumberType::U16);
    let config = FormatConfig::Table(FormatTable {
        dtype,
        ..FormatTable::of(kind.parse()?)
    });
    let files: Vec<String> = arguments.collect();
    let sources = expand(
        &files,
        Path::new(""),
        &Opener::new(RemoteSettings::default()),
        FolderNames::All,
    )?
    .files;
    let locations: Vec<String> = sources.iter().map(|file| file.location()).collect();
    let locations: Vec<&str> = locations.iter().map(String::as_str).collect();
    let format = FormatConfig::format(Some(&config), &locations, None)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for source in &sources {
        let object: Arc<dyn StoredObject> = source.open()?.into();
        let file = format.open(object.clone())?;
        let mut extents = Vec::new();
        file.scan(&mut |found| {
            match found {
                ScanItem::Extent(extent) => extents.push(extent),
                ScanItem::Even(even) => {
                    let mut record = 0;
                    while let Some((extent, _)) = even.locate(record) {
                        extents.push(extent);
                        record += u64::from(extent.records);
                    }
                }
                ScanItem::Bad { record, .. } => return Err(DataError::Record(record)),
                ScanItem::Progress => {}
            }
            Ok(())
        })?;
        for extent in extents {
            let mut pieces = Vec::new();
            for range in file.ranges(&extent) {
                let mut bytes = vec![0; usize::try_from(range.end - range.start)?];
                object.read_at(range.start, &mut bytes)?;
                pieces.push(SharedBytes::from(bytes));
            }
            let records = file.parse(&extent, pieces)?;
            for number in 0..extent.records {
                writeln!(out, "record")?;
                for (name, value) in &records.record(number)?.fields {
                    print(&mut out, name, value)?;
                }
            }
        }
    }
    Ok(())
}

fn print(out: &mut impl Write, name: &str, value: &Value<'_>) -> std::io::Result<()> {
    match value {
        Value::Bytes(bytes) => writeln!(out, "{name}\tbytes\t{}", hex(bytes)),
        Value::Numbers { dtype, bytes } => {
            writeln!(out, "{name}\t{}\t{}", dtype.name(), hex(bytes))
        }
        Value::List(list) => {
            let all: Vec<String> = list.iter().map(|bytes| hex(bytes)).collect();
            writeln!(out, "{name}\tlist\t{}\t{}", list.len(), all.join(","))
        }
        other => writeln!(out, "{name}\t{}", other.kind()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
