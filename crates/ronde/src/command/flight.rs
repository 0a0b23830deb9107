//! `ronde flight`: what the ranks of a run were doing, from their flight records, in words.

use std::path::{Path, PathBuf};

use clap::Args;
use ronde::comm::{FlightRecord, merge_report};
use ronde_train::flights::Flights;

use super::exit;

/// Arguments of `ronde flight`.
#[derive(Args)]
pub(crate) struct FlightArguments {
    /// Folder of a run, or of flight records.
    folder: PathBuf,
}

/// Prints the merged report of a folder's records.
pub(crate) fn flight(arguments: &FlightArguments) -> i32 {
    let folder = &arguments.folder;
    match merged(folder) {
        Ok(Some(report)) => {
            print!("{report}");
            exit::DONE
        }
        Ok(None) => {
            let shown = folder.display();
            eprintln!(
                "error: no flight records in {shown} or {shown}/{}",
                Flights::FOLDER
            );
            eprintln!(
                "  hint: ranks write them when their group fails; \
                 workers of `ronde train` also at `pkill -USR1 -f 'ronde __worker'`"
            );
            exit::USER_ERROR
        }
        Err(error) => {
            eprintln!("error: {error}");
            exit::USER_ERROR
        }
    }
}

/// Makes a folder for the records of a run that starts, without those of an earlier run; absolute.
///
/// # Errors
/// A message with a hint.
pub(crate) fn start(folder: &Path) -> Result<PathBuf, String> {
    let made = std::fs::create_dir_all(folder)
        .and_then(|()| FlightRecord::remove_all(folder))
        .and_then(|()| folder.canonicalize());
    made.map_err(|error| {
        let shown = folder.display();
        format!("flight records cannot go to {shown}: {error}\n  hint: name another folder")
    })
}

/// Shows what the ranks of a run that failed were doing, if they have written it.
pub(crate) fn show(folder: &Path) {
    match merged(folder) {
        Ok(Some(report)) => {
            eprintln!(
                "what the ranks were doing (`ronde flight {}`):",
                folder.display()
            );
            for line in report.lines() {
                eprintln!("  {line}");
            }
        }
        Ok(None) => {}
        Err(error) => eprintln!("note: the flight records cannot be read: {error}"),
    }
}

/// The report of the records in a folder or in its part for them; `None` when there are none.
///
/// # Errors
/// A file cannot be read or is no record.
pub(crate) fn merged(folder: &Path) -> std::io::Result<Option<String>> {
    for folder in [&folder.join(Flights::FOLDER), folder] {
        let records = FlightRecord::read_all(folder)?;
        if !records.is_empty() {
            return Ok(Some(merge_report(&records)));
        }
    }
    Ok(None)
}
