//! `ronde flight`: reports the operations of all ranks from their flight records.

use std::path::{Path, PathBuf};

use clap::Args;
use ronde::comm::{FlightRecord, merge_report};
use ronde_train::flight_records::FlightRecordWriter;

use crate::command::console::{message, print};
use crate::command::exit;
use crate::command::pasted::path_word;

/// Arguments of `ronde flight`.
#[derive(Args)]
pub(crate) struct FlightArguments {
    /// Folder of a run or of its flight records.
    folder: PathBuf,
}

/// Prints the merged report of a folder's records.
pub(crate) fn flight(arguments: &FlightArguments) -> i32 {
    let folder = &arguments.folder;
    match merged(folder) {
        Ok(Some(report)) => print(report),
        Ok(None) => {
            let shown = folder.display();
            message!(
                "error: no flight records in {shown} or {shown}/{}",
                FlightRecordWriter::FOLDER
            );
            message!(
                "  help: ranks write them when their group fails; workers of `ronde train` also on SIGUSR1: \
                 `kill -USR1 PID`, with a process id from `ronde status`"
            );
            exit::USER_ERROR
        }
        Err(error) => {
            message!("error: {error}");
            exit::USER_ERROR
        }
    }
}

/// Creates the folder for the records of a new run and removes those of an earlier run. Returns its absolute path.
///
/// # Errors
/// A message with a help line.
pub(crate) fn start(folder: &Path) -> Result<PathBuf, String> {
    let made = std::fs::create_dir_all(folder)
        .and_then(|()| FlightRecord::remove_all(folder))
        .and_then(|()| folder.canonicalize());
    made.map_err(|error| {
        let shown = folder.display();
        format!("cannot use {shown} for flight records: {error}\n  help: choose another folder")
    })
}

/// Prints the report of a failed run's flight records, if there are any.
pub(crate) fn show(folder: &Path) {
    match merged(folder) {
        Ok(Some(report)) => {
            message!(
                "last operations of the ranks (`ronde flight {}`):",
                path_word(folder)
            );
            for line in report.lines() {
                message!("  {line}");
            }
        }
        Ok(None) => {}
        Err(error) => message!("note: cannot read the flight records: {error}"),
    }
}

/// Returns the report of the records in a folder or in its subfolder for them, or `None` when there are none.
///
/// # Errors
/// A file cannot be read or is not a valid record.
pub(crate) fn merged(folder: &Path) -> std::io::Result<Option<String>> {
    for folder in [&folder.join(FlightRecordWriter::FOLDER), folder] {
        let records = FlightRecord::read_all(folder)?;
        if !records.is_empty() {
            return Ok(Some(merge_report(&records)));
        }
    }
    Ok(None)
}
