//! `ronde init`: writes a commented run file to start from.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use ronde_train::config::DEFAULT_RUN_FILE;

use super::exit;

/// Arguments of `ronde init`.
#[derive(Args)]
pub(crate) struct InitArguments {
    /// Where to write it; an existing file is left alone.
    #[arg(default_value = "ronde.toml")]
    path: PathBuf,
}

pub(crate) fn init(arguments: &InitArguments) -> i32 {
    let path = &arguments.path;
    match write(path) {
        Ok(()) => {
            eprintln!(
                "wrote {}; train it with: ronde train {}",
                path.display(),
                path.display()
            );
            exit::DONE
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            eprintln!("error: {} exists already and is left alone", path.display());
            eprintln!("  hint: ronde init another-name.toml");
            exit::USER_ERROR
        }
        Err(error) => {
            eprintln!("error: cannot write {}: {error}", path.display());
            eprintln!("  hint: is its folder there, writable and not full?");
            exit::USER_ERROR
        }
    }
}

/// Writes a new file, whole or not at all.
fn write(path: &Path) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(DEFAULT_RUN_FILE.as_bytes())
        .inspect_err(|_| {
            // The write error is what matters; the piece that was written is removed if possible.
            let _ = std::fs::remove_file(path);
        })
}
