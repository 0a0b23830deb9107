//! `ronde checkpoint`: lists, shows, verifies and exports checkpoints.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use ronde_checkpoint::{
    Checkpoint, CheckpointEntry, CheckpointError, CheckpointStatus, Lineage, Manifest,
    VerifiedCheckpoint, list, to_safetensors, verify_all,
};
use ronde_core::layout::Role;
use ronde_core::{NameList, Step};
use ronde_report::TextTable;
use ronde_store::Store;
use ronde_submit::shell_word;
use ronde_tracking::render::{bytes, count};
use ronde_train::config::Override;

use crate::command::console::{Printable, message};
use crate::command::exit;
use crate::command::run::resume;

/// Number of reading threads.
const THREADS: usize = 4;

/// The maximum number of steps in a message.
const STEPS_LISTED_MAX: usize = 10;

/// Arguments of `ronde checkpoint`.
#[derive(Args)]
pub(crate) struct CheckpointArguments {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Subcommand)]
enum CheckpointCommand {
    /// List the checkpoints, newest first, with their status.
    Ls(CheckpointLocation),
    /// Show the contents of a checkpoint.
    Show(CheckpointSelection),
    /// Compare all checkpoints, or one, with their hashes; exit code 3 on any damage.
    Verify(VerifySelection),
    /// Write the tensors of a checkpoint as a safetensors file.
    Export {
        #[command(flatten)]
        selection: CheckpointSelection,
        /// Vector of the state to export: `weights`, or an optimizer's as listed by `show`.
        #[arg(long, default_value = "weights")]
        vector: String,
        /// Output file.
        #[arg(short, long, default_value = "checkpoint.safetensors")]
        output: PathBuf,
    },
}

/// The location of checkpoints.
#[derive(Args)]
struct CheckpointLocation {
    /// Folder or address (`s3://bucket/prefix`, `az://container/prefix`) of a run, or of its checkpoints.
    address: String,
    /// Encryption key: `file:PATH` or `variable:NAME`.
    #[arg(long, value_name = "KEY")]
    encrypt: Option<String>,
}

/// Selects one checkpoint.
#[derive(Args)]
struct CheckpointSelection {
    #[command(flatten)]
    location: CheckpointLocation,
    /// Step of the checkpoint [default: the newest complete one].
    #[arg(long)]
    step: Option<u64>,
}

/// Selects all checkpoints or one.
#[derive(Args)]
struct VerifySelection {
    #[command(flatten)]
    location: CheckpointLocation,
    /// Step of the checkpoint [default: all].
    #[arg(long)]
    step: Option<u64>,
}

/// An exit code and an error message.
struct CheckpointFailure(i32, String);

impl From<CheckpointError> for CheckpointFailure {
    fn from(error: CheckpointError) -> Self {
        Self(exit::GAVE_UP, format!("error: {error}"))
    }
}

impl From<std::io::Error> for CheckpointFailure {
    fn from(error: std::io::Error) -> Self {
        Self(
            exit::GAVE_UP,
            format!("error: cannot write standard output: {error}"),
        )
    }
}

pub(crate) fn checkpoint(arguments: &CheckpointArguments) -> i32 {
    let done = match &arguments.command {
        CheckpointCommand::Ls(location) => ls(location),
        CheckpointCommand::Show(selection) => show(selection),
        CheckpointCommand::Verify(selection) => verify(selection),
        CheckpointCommand::Export {
            selection,
            vector,
            output,
        } => export(selection, vector, output),
    };
    match done {
        Ok(()) => exit::DONE,
        Err(CheckpointFailure(code, message)) => {
            message!("{message}");
            code
        }
    }
}

impl CheckpointLocation {
    fn open(&self) -> Result<Arc<dyn Store>, CheckpointFailure> {
        let wrong = |message: String| CheckpointFailure(exit::USER_ERROR, message);
        let inside = Path::new(&self.address).join("checkpoints");
        let remote = self.address.contains("://");
        let address = match inside.is_dir() && !remote {
            true => inside.display().to_string(),
            false => self.address.clone(),
        };
        if !remote && !Path::new(&address).is_dir() {
            let message = format!(
                "error: no such folder: {address}\n  \
                 help: pass the folder of a run, such as runs/digits, or the folder or address of its checkpoints"
            );
            return Err(wrong(message));
        }
        let key = self.encrypt.iter();
        let overrides: Vec<Override> = key
            .map(|key| Override::Set(format!("checkpoint.encrypt={key:?}")))
            .collect();
        resume::open_stored(&address, &overrides)
            .map(|(_, store)| store)
            .map_err(wrong)
    }
}

impl CheckpointSelection {
    fn open(&self) -> Result<Checkpoint, CheckpointFailure> {
        let store = self.location.open()?;
        let step = match self.step {
            Some(step) => Step(step),
            None => newest(&store, &self.location.address)?,
        };
        open_step(&store, step, &self.location.address)
    }
}

/// Opens the checkpoint of a step. If there is none, the message has the steps that have one.
fn open_step(
    store: &Arc<dyn Store>,
    step: Step,
    address: &str,
) -> Result<Checkpoint, CheckpointFailure> {
    let error = match Checkpoint::open(Arc::clone(store), step) {
        Err(CheckpointError::Store(error)) if error.is_not_found() => error,
        opened => return Ok(opened?),
    };
    let all = list(&**store)?;
    let steps = all.iter().filter(|listed| listed.manifest.is_some());
    let steps: Vec<String> = steps.map(|listed| listed.step.to_string()).collect();
    if steps.is_empty() {
        return Err(CheckpointError::Store(error).into());
    }
    let more = match steps.len() > STEPS_LISTED_MAX {
        true => ", ...",
        false => "",
    };
    let message = format!(
        "error: no checkpoint of step {step} in {address}\n  help: there are checkpoints of step {}{more}",
        steps
            .iter()
            .take(STEPS_LISTED_MAX)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    );
    Err(CheckpointFailure(exit::USER_ERROR, message))
}

/// Returns the step of the newest complete checkpoint.
fn newest(store: &Arc<dyn Store>, address: &str) -> Result<Step, CheckpointFailure> {
    let all = list(&**store)?;
    let is_complete = |listed: &&CheckpointEntry| listed.status == CheckpointStatus::Complete;
    all.iter()
        .find(is_complete)
        .map(|listed| listed.step)
        .ok_or_else(|| {
            let message = format!(
                "error: no complete checkpoint in {address}\n  help: see `ronde checkpoint ls {}`",
                shell_word(address)
            );
            CheckpointFailure(exit::USER_ERROR, message)
        })
}

fn ls(location: &CheckpointLocation) -> Result<(), CheckpointFailure> {
    let store = location.open()?;
    let all = list(&*store)?;
    let mut out = Printable(std::io::stdout().lock());
    let mut table = TextTable::new(["step", "size", "workers", "saved", "status"]).right(0..3);
    for listed in &all {
        let manifest = listed.manifest.as_ref();
        let standing = match &listed.status {
            CheckpointStatus::Complete => "complete".to_owned(),
            CheckpointStatus::Unpublished => "incomplete: the save has not finished".into(),
            CheckpointStatus::Damaged(why) => format!("damaged: {why}"),
            CheckpointStatus::CutOff(why) => format!("superseded: {why}"),
            CheckpointStatus::OtherVersion(why) => format!("not supported: {why}"),
            CheckpointStatus::Locked(why) => format!("locked: {why}"),
        };
        table.row([
            count(listed.step.0),
            bytes(listed.bytes),
            manifest.map_or_else(|| "-".to_owned(), |m| m.world_size.to_string()),
            manifest.map_or_else(|| "-".to_owned(), |m| time(m.saved_unix_ms)),
            standing,
        ]);
    }
    writeln!(out, "{table}")?;
    if all.is_empty() {
        writeln!(out, "no checkpoints")?;
    }
    if let Err(error) = Lineage::read(&*store) {
        message!("warning: {error}; all checkpoints are treated as valid until the run is resumed");
    }
    Ok(())
}

fn show(selection: &CheckpointSelection) -> Result<(), CheckpointFailure> {
    let checkpoint = selection.open()?;
    let manifest: &Manifest = checkpoint.manifest();
    let mut out = Printable(std::io::stdout().lock());
    for (name, value) in [
        ("run", manifest.run.clone()),
        ("steps", manifest.step.to_string()),
        ("epoch", manifest.epoch.to_string()),
        ("saved", time(manifest.saved_unix_ms)),
        ("workers", manifest.world_size.to_string()),
        ("fence", manifest.fence.to_string()),
        ("bytes", bytes(manifest.bytes())),
    ] {
        writeln!(out, "{name:<10}  {value}")?;
    }
    let signature = &manifest.signature;
    for (name, names) in [
        ("columns", &signature.columns),
        ("classes", &signature.class_names),
    ] {
        if !names.is_empty() {
            writeln!(out, "{name:<10}  {}", NameList(names))?;
        }
    }
    for vector in &manifest.vectors {
        let of = |role| vector.tensors.iter().filter(|t| t.role == role).count();
        writeln!(
            out,
            "{:<10}  {}: {} elements of {}, {} parameters and {} buffers",
            "vector",
            vector.name,
            count(vector.elements),
            vector.dtype,
            of(Role::Parameter),
            of(Role::Buffer),
        )?;
    }
    for file in &manifest.files {
        let name = format!("rank {}", file.rank);
        writeln!(out, "{name:<10}  {} ({})", file.name, bytes(file.bytes))?;
    }
    for (name, value) in &manifest.plan {
        writeln!(out, "{:<10}  {name} = {value}", "plan")?;
    }
    Ok(())
}

fn verify(selection: &VerifySelection) -> Result<(), CheckpointFailure> {
    match selection.step {
        Some(step) => verify_one(&selection.location, Step(step)),
        None => verify_everything(&selection.location),
    }
}

fn verify_one(location: &CheckpointLocation, step: Step) -> Result<(), CheckpointFailure> {
    let store = location.open()?;
    let checkpoint = open_step(&store, step, &location.address)?;
    let damage = checkpoint.verify(THREADS)?;
    if !damage.is_empty() {
        // Reports that there is no checkpoint if a running job has removed it meanwhile.
        open_step(&store, step, &location.address)?;
    } else {
        let line = intact(step, checkpoint.manifest());
        writeln!(Printable(std::io::stdout().lock()), "{line}")?;
        return Ok(());
    }
    let mut lines = vec![format!("error: checkpoint at step {step} is damaged")];
    lines.extend(damage.iter().map(|error| format!("  {error}")));
    Err(CheckpointFailure(exit::GAVE_UP, lines.join("\n")))
}

/// Verifies all checkpoints and the record of claims. Prints the intact ones; all damage is the error.
fn verify_everything(location: &CheckpointLocation) -> Result<(), CheckpointFailure> {
    let store = location.open()?;
    let report = verify_all(&store, THREADS)?;
    let mut out = Printable(std::io::stdout().lock());
    for entry in report.intact() {
        if let Some(manifest) = &entry.manifest {
            writeln!(out, "{}", intact(entry.step, manifest))?;
        }
    }
    let mut problems = Vec::new();
    for checkpoint in &report.checkpoints {
        let step = checkpoint.entry.step;
        match &checkpoint.entry.status {
            CheckpointStatus::Unpublished => {
                writeln!(
                    out,
                    "step {step} has no checkpoint: the save has not finished"
                )?;
            }
            CheckpointStatus::Locked(problem) | CheckpointStatus::OtherVersion(problem) => {
                problems.push(format!(
                    "error: cannot verify checkpoint at step {step}: {problem}"
                ));
            }
            _ => {}
        }
        if !checkpoint.damage.is_empty() {
            problems.push(format!("error: checkpoint at step {step} is damaged"));
            problems.extend(
                checkpoint
                    .damage
                    .iter()
                    .map(|problem| format!("  {problem}")),
            );
        }
    }
    if let Some(problem) = &report.lineage_damage {
        problems.push(format!("error: {problem}"));
    }
    let has_intact = report.intact().next().is_some();
    if problems.is_empty() && has_intact {
        return Ok(());
    }
    let address = &location.address;
    let all = &report.checkpoints;
    let is_other_version =
        |one: &VerifiedCheckpoint| matches!(one.entry.status, CheckpointStatus::OtherVersion(_));
    if !report.is_damaged() && !has_intact && all.iter().any(is_other_version) {
        return Err(CheckpointFailure(exit::USER_ERROR, problems.join("\n")));
    }
    if !report.is_damaged() && !has_intact {
        problems.push(format!(
            "error: no complete checkpoint in {address}\n  help: see `ronde checkpoint ls {}`",
            shell_word(address)
        ));
        return Err(CheckpointFailure(exit::USER_ERROR, problems.join("\n")));
    }
    if !has_intact {
        let key = match &location.encrypt {
            Some(_) => "",
            None => "if the checkpoints are encrypted, pass --encrypt; otherwise ",
        };
        problems.push(format!(
            "  help: no checkpoint in {address} can be used: {key}restore its files from a copy, or start a new run"
        ));
    }
    Err(CheckpointFailure(exit::GAVE_UP, problems.join("\n")))
}

fn intact(step: Step, manifest: &Manifest) -> String {
    format!(
        "checkpoint at step {step} is intact: {} in {} files, all hashes match",
        bytes(manifest.bytes()),
        manifest.files.len()
    )
}

fn export(
    selection: &CheckpointSelection,
    vector: &str,
    output: &Path,
) -> Result<(), CheckpointFailure> {
    let checkpoint = selection.open()?;
    let contents = to_safetensors(&checkpoint, vector, THREADS).map_err(|error| match error {
        // No vector of the checkpoint has this name.
        CheckpointError::Invalid { .. } => {
            CheckpointFailure(exit::USER_ERROR, format!("error: {error}"))
        }
        error => error.into(),
    })?;
    ronde_saved_model::publish(output, &contents)
        .map_err(|error| CheckpointFailure(exit::USER_ERROR, format!("error: {error}")))?;
    writeln!(
        Printable(std::io::stdout().lock()),
        "{} at step {}: {}, blake3 {}",
        vector,
        checkpoint.step(),
        output.display(),
        blake3::hash(&contents).to_hex()
    )?;
    Ok(())
}

/// Formats a time in UTC, to the minute.
pub(crate) fn time(unix_ms: u64) -> String {
    let minutes = unix_ms / 60_000;
    let (days, minute) = (minutes / 1440, minutes % 1440);
    // The civil calendar from a number of days; Hinnant, "chrono-compatible low-level date algorithms".
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}",
        minute / 60,
        minute % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_use_the_civil_calendar() {
        for (unix_s, shown) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (1_709_251_199, "2024-02-29 23:59"),
            (1_798_761_600, "2027-01-01 00:00"),
        ] {
            assert_eq!(time(unix_s * 1000), shown);
        }
    }
}
