//! `ronde data`: inspects data files and packs folders into shards.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ronde_data::format::{FormatConfig, FormatKind, FormatTable, NumberType};
use ronde_data::inspect::{Inspection, inspect};
use ronde_data::pack::{PackSettings, pack};
use ronde_data::{DataError, OpenContext};
use ronde_report::TextTable;
use ronde_tracking::render::{bytes, count};
use serde_json::json;

use crate::command::console::{Printable, message};
use crate::command::data::progress;
use crate::command::exit;

/// Arguments of `ronde data`.
#[derive(Args)]
pub(crate) struct DataArguments {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Subcommand)]
enum DataCommand {
    /// Show format, fields, size, first samples and unusable records of data files.
    Inspect(InspectArguments),
    /// Pack a folder of images (one subfolder per class) or of texts into shards for fast reading.
    Pack(PackArguments),
}

#[derive(Args)]
struct InspectArguments {
    /// Files, folders, or addresses (`s3://bucket/train-*`), with wildcards.
    #[arg(required = true)]
    addresses: Vec<String>,
    /// `tfrecord`, `webdataset`, `parquet`, `folder`, `csv`, `npy`, `npz`, `tokens` or `text` [default: from the file
    /// names].
    #[arg(long, value_parser = kind)]
    format: Option<FormatKind>,
    /// Type of tokens: `u8`, `u16` or `u32`.
    #[arg(long, value_parser = number_type)]
    dtype: Option<NumberType>,
    /// Whether the first line of CSV is a heading [default: it is if none of its fields is a number].
    #[arg(long, value_name = "BOOLEAN")]
    header: Option<bool>,
    /// `tokenizer.json` for text.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Number of samples to show.
    #[arg(long, default_value_t = 5, value_name = "N")]
    samples: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct PackArguments {
    /// Input folder or address (`s3://bucket/images`).
    from: String,
    /// Output folder or address.
    to: String,
    /// Format of the shards: `tfrecord`, `webdataset` or `parquet`.
    #[arg(long, default_value = "tfrecord", value_parser = kind)]
    format: FormatKind,
    /// Prefix of the shard names: `train` gives `train-00000-of-00016`.
    #[arg(long, default_value = "train")]
    prefix: String,
    /// Approximate size of a shard: `256MiB`, `1GiB`.
    #[arg(long, default_value = "256MiB", value_parser = size)]
    shard_size: u64,
    /// Number of threads [default: number of processors].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Label of the first class; 1 in TensorFlow's ImageNet.
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_label: i64,
    /// Keep the order of the file names instead of mixing the classes.
    #[arg(long)]
    keep_order: bool,
    /// Replace existing shards of this name.
    #[arg(long)]
    force: bool,
}

fn kind(name: &str) -> Result<FormatKind, ronde_core::InvalidValue> {
    name.parse()
}

fn number_type(name: &str) -> Result<NumberType, String> {
    match name {
        "u8" => Ok(NumberType::U8),
        "u16" => Ok(NumberType::U16),
        "u32" => Ok(NumberType::U32),
        _ => Err("expected u8, u16 or u32".to_owned()),
    }
}

/// Parses a number of bytes: `1048576`, `256MiB`, `1GiB`, `500MB`.
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
                "invalid unit `{unit}`: expected KiB, MiB, GiB, KB, MB or GB"
            ));
        }
    };
    let number = number
        .parse()
        .map_err(|_| "expected a number with a unit, such as 256MiB")?;
    unit.checked_mul(number)
        .ok_or_else(|| "too many bytes".to_owned())
}

pub(crate) fn data(arguments: &DataArguments) -> i32 {
    let surroundings = ronde::environment::surroundings();
    let opening = surroundings.opening(Path::new(""), 0, progress::show(false));
    let done = match &arguments.command {
        DataCommand::Inspect(arguments) => run_inspect(arguments, &opening),
        DataCommand::Pack(arguments) => run_pack(arguments, &opening),
    };
    match done {
        Ok(()) => exit::DONE,
        Err(DataFailure::Data(error)) => {
            message!("error: {error}");
            if let DataError::NotBuilt { .. } = &*error {
                message!("  help: cargo build --release --features full");
            }
            match error.recovery() {
                ronde_core::Recovery::Retry => exit::GAVE_UP,
                _ => exit::USER_ERROR,
            }
        }
        Err(DataFailure::Output(error)) => {
            message!("error: cannot write standard output: {error}");
            exit::GAVE_UP
        }
    }
}

enum DataFailure {
    Data(Box<DataError>),
    Output(std::io::Error),
}

impl From<DataError> for DataFailure {
    fn from(error: DataError) -> Self {
        Self::Data(Box::new(error))
    }
}

impl From<std::io::Error> for DataFailure {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

fn run_inspect(arguments: &InspectArguments, opening: &OpenContext) -> Result<(), DataFailure> {
    let implied = [
        (arguments.dtype.is_some(), FormatKind::Tokens),
        (arguments.tokenizer.is_some(), FormatKind::Text),
        (arguments.header.is_some(), FormatKind::Csv),
    ];
    let implied = implied.into_iter().find(|(is_given, _)| *is_given);
    let kind = arguments.format.or(implied.map(|(_, kind)| kind));
    let format = kind.map(|kind| {
        FormatConfig::Table(FormatTable {
            dtype: arguments.dtype,
            header: arguments.header,
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
    let out = &mut Printable(std::io::stdout().lock());
    match arguments.json {
        true => writeln!(out, "{}", as_json(&found))?,
        false => show(&found, out)?,
    }
    if found.samples == 0 {
        return Err(DataFailure::from(DataError::Empty {
            addresses: arguments.addresses.join(", "),
        }));
    }
    Ok(())
}

fn as_json(found: &Inspection) -> serde_json::Value {
    let fields = || found.fields.iter().map(|(name, _)| name.clone());
    let first = found.first.iter().map(|sample| {
        let present = fields().zip(sample).filter(|(_, value)| !value.is_empty());
        present
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
            "block",
            format!("up to {} samples", count(found.block_samples)),
        ),
        ("identity", found.identity.clone()),
    ] {
        writeln!(out, "{name:<12}  {value}")?;
    }
    for (at, sample) in found.first.iter().enumerate() {
        writeln!(out, "\nsample {at}")?;
        let mut table = TextTable::without_head().indented(2);
        for ((name, _), value) in found.fields.iter().zip(sample) {
            table.row([name.as_str(), if value.is_empty() { "-" } else { value }]);
        }
        writeln!(out, "{table}")?;
    }
    if found.bad_count > 0 {
        writeln!(out, "\n{} unusable records:", count(found.bad_count))?;
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

fn run_pack(arguments: &PackArguments, opening: &OpenContext) -> Result<(), DataFailure> {
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
    message!(
        "packed {} samples into {} shards, {}, in {}",
        count(packed.samples as u64),
        count(packed.shards as u64),
        bytes(packed.bytes),
        settings.to
    );
    if !packed.classes.is_empty() {
        message!(
            "{} classes, the first one is {:?}",
            packed.classes.len(),
            packed.classes[0]
        );
    }
    write!(Printable(std::io::stdout().lock()), "{}", packed.run_file)?;
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
