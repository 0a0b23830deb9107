//! `ronde data`: what is in files of samples, and packing folders into shards.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ronde_data::format::{FormatConfig, FormatKind, FormatTable, NumberType};
use ronde_data::inspect::{Inspection, inspect};
use ronde_data::pack::{PackSettings, pack};
use ronde_data::{DataError, Opening};
use ronde_monitor::render::{bytes, count};
use serde_json::json;

use super::{data_news, exit};

/// Arguments of `ronde data`.
#[derive(Args)]
pub(crate) struct DataArguments {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Subcommand)]
enum DataCommand {
    /// Show what is in files of samples: format, fields, counts, the first samples, what cannot be used.
    Inspect(InspectArguments),
    /// Pack a folder of images (a folder for each class) or of texts into shards that are read fast.
    Pack(PackArguments),
}

#[derive(Args)]
struct InspectArguments {
    /// Files, folders, or addresses (`s3://bucket/train-*`), with wildcards.
    #[arg(required = true)]
    addresses: Vec<String>,
    /// `tfrecord`, `webdataset`, `parquet`, `folder`, `csv`, `npy`, `npz`, `tokens` or `text`; else told by the files' names.
    #[arg(long, value_parser = kind)]
    format: Option<FormatKind>,
    /// What tokens are: `u8`, `u16` or `u32`.
    #[arg(long, value_parser = number_type)]
    dtype: Option<NumberType>,
    /// The `tokenizer.json` that makes tokens of text.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// How many of the first samples are shown.
    #[arg(long, default_value_t = 5, value_name = "N")]
    samples: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct PackArguments {
    /// The folder, or an address (`s3://bucket/images`).
    from: String,
    /// Where shards are written: a folder, or an address.
    to: String,
    /// `tfrecord`, `webdataset` or `parquet`.
    #[arg(long, default_value = "tfrecord", value_parser = kind)]
    format: FormatKind,
    /// Names of shards begin so: `train` makes `train-00000-of-00016`.
    #[arg(long, default_value = "train")]
    prefix: String,
    /// Bytes of a shard, about: `256MiB`, `1GiB`.
    #[arg(long, default_value = "256MiB", value_parser = size)]
    shard_size: u64,
    /// Threads; without it one for each processor.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The number of the first class; TensorFlow's ImageNet begins with 1.
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_label: i64,
    /// Keep the order of the files' names; else neighbours are of all classes.
    #[arg(long)]
    keep_order: bool,
    /// Replace shards of this name that are there.
    #[arg(long)]
    force: bool,
}

fn kind(name: &str) -> Result<FormatKind, String> {
    name.parse()
}

fn number_type(name: &str) -> Result<NumberType, String> {
    match name {
        "u8" => Ok(NumberType::U8),
        "u16" => Ok(NumberType::U16),
        "u32" => Ok(NumberType::U32),
        _ => Err("tokens are u8, u16 or u32".to_owned()),
    }
}

/// A count of bytes: `1048576`, `256MiB`, `1GiB`, `500MB`.
fn size(text: &str) -> Result<u64, String> {
    let end = text.find(|sign: char| !sign.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => {
            return Err(format!(
                "{unit:?} is no unit; KiB, MiB, GiB, KB, MB and GB are"
            ));
        }
    };
    let number = number
        .parse()
        .map_err(|_| "expected a number, as in 256MiB")?;
    unit.checked_mul(number)
        .ok_or_else(|| "too many bytes".to_owned())
}

pub(crate) fn data(arguments: &DataArguments) -> i32 {
    let surroundings = ronde::environment::surroundings();
    let opening = surroundings.opening(Path::new(""), 0, data_news::show(false));
    let done = match &arguments.command {
        DataCommand::Inspect(arguments) => look(arguments, &opening),
        DataCommand::Pack(arguments) => run_pack(arguments, &opening),
    };
    match done {
        Ok(()) => exit::DONE,
        Err(Failed::Data(error)) => {
            eprintln!("error: {error}");
            if let DataError::NotBuilt { .. } = &*error {
                eprintln!("  hint: cargo build --release --features full");
            }
            match error.recovery() {
                ronde_core::Recovery::Retry => exit::GAVE_UP,
                _ => exit::USER_ERROR,
            }
        }
        Err(Failed::Output(error)) => {
            eprintln!("error: standard output: {error}");
            exit::GAVE_UP
        }
    }
}

enum Failed {
    Data(Box<DataError>),
    Output(std::io::Error),
}

impl From<DataError> for Failed {
    fn from(error: DataError) -> Self {
        Self::Data(Box::new(error))
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

fn look(arguments: &InspectArguments, opening: &Opening) -> Result<(), Failed> {
    let kind = match (arguments.format, arguments.dtype, &arguments.tokenizer) {
        (None, Some(_), _) => Some(FormatKind::Tokens),
        (None, None, Some(_)) => Some(FormatKind::Text),
        (kind, _, _) => kind,
    };
    let format = kind.map(|kind| {
        FormatConfig::Table(FormatTable {
            dtype: arguments.dtype,
            tokenizer: arguments.tokenizer.clone(),
            ..FormatTable::of(kind)
        })
    });
    let found = inspect(
        &arguments.addresses,
        format.as_ref(),
        arguments.samples,
        opening,
    )?;
    let out = &mut std::io::stdout().lock();
    match arguments.json {
        true => writeln!(out, "{}", as_json(&found))?,
        false => show(&found, out)?,
    }
    Ok(())
}

fn as_json(found: &Inspection) -> serde_json::Value {
    let fields = || found.fields.iter().map(|(name, _)| name.clone());
    let first = found.first.iter().map(|sample| {
        let there = fields().zip(sample).filter(|(_, value)| !value.is_empty());
        there
            .map(|(name, value)| (name, value.clone().into()))
            .collect::<serde_json::Map<_, _>>()
    });
    let bad = found.bad.iter().map(|bad| {
        json!({
            "file": bad.file,
            "offset": bad.offset,
            "record": bad.record,
            "problem": bad.problem,
        })
    });
    json!({
        "format": found.format,
        "files": found.files,
        "bytes": found.bytes,
        "samples": found.samples,
        "block_samples": found.block_samples,
        "identity": found.identity,
        "fields": fields().collect::<Vec<_>>(),
        "first": first.collect::<Vec<_>>(),
        "bad": bad.collect::<Vec<_>>(),
        "bad_count": found.bad_count,
        "warnings": found.warnings,
    })
}

fn show(found: &Inspection, out: &mut impl Write) -> std::io::Result<()> {
    for (name, value) in [
        ("format", found.format.clone()),
        (
            "files",
            format!("{}, {}", count(found.files as u64), bytes(found.bytes)),
        ),
        ("samples", count(found.samples)),
        (
            "read at once",
            format!("{} at most", count(found.block_samples)),
        ),
        ("identity", found.identity.clone()),
    ] {
        writeln!(out, "{name:<12}  {value}")?;
    }
    for (at, sample) in found.first.iter().enumerate() {
        writeln!(out, "\nsample {at}")?;
        let width = found
            .fields
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        for ((name, _), value) in found.fields.iter().zip(sample) {
            let value = if value.is_empty() { "-" } else { value };
            writeln!(out, "  {name:<width$}  {value}")?;
        }
    }
    if found.bad_count > 0 {
        writeln!(out, "\n{} records cannot be used:", count(found.bad_count))?;
        for bad in &found.bad {
            writeln!(out, "  {bad}")?;
        }
        if found.bad_count > found.bad.len() as u64 {
            writeln!(
                out,
                "  and {} more",
                count(found.bad_count - found.bad.len() as u64)
            )?;
        }
    }
    for warning in &found.warnings {
        writeln!(out, "note: {warning}")?;
    }
    Ok(())
}

fn run_pack(arguments: &PackArguments, opening: &Opening) -> Result<(), Failed> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = PackSettings {
        from: arguments.from.clone(),
        to: arguments.to.clone(),
        format: arguments.format,
        prefix: arguments.prefix.clone(),
        shard_bytes: arguments.shard_size,
        threads: arguments.threads.unwrap_or(threads).max(1),
        first_label: arguments.first_label,
        keeps_order: arguments.keep_order,
        force: arguments.force,
    };
    let packed = pack(&settings, opening)?;
    eprintln!(
        "packed {} samples into {} shards, {}, in {}",
        count(packed.samples as u64),
        count(packed.shards as u64),
        bytes(packed.bytes),
        settings.to
    );
    if !packed.classes.is_empty() {
        eprintln!(
            "{} classes, from {:?} on",
            packed.classes.len(),
            packed.classes[0]
        );
    }
    write!(std::io::stdout().lock(), "{}", packed.run_file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("7", 7),
            ("2KiB", 2048),
            ("1GiB", 1 << 30),
            ("3MB", 3_000_000),
        ] {
            assert_eq!(size(text), Ok(bytes));
        }
        for wrong in ["", "MiB", "1TB", "-1", "99999999999GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
