//! `ronde init`: writes a commented run file as a starting point.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use ronde_train::config::DEFAULT_RUN_FILE;

use crate::command::console::{info, message};
use crate::command::exit;
use crate::command::pasted::path_word;

/// Arguments of `ronde init`.
#[derive(Args)]
pub(crate) struct InitArguments {
    /// Path of the new file; an existing file is not changed.
    #[arg(default_value = "ronde.toml")]
    path: PathBuf,
}

pub(crate) fn init(arguments: &InitArguments) -> i32 {
    let path = &arguments.path;
    match write(path) {
        Ok(()) => {
            info!(
                "wrote {}; train with: ronde train {}",
                path.display(),
                path_word(path)
            );
            exit::DONE
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            message!(
                "error: cannot write {}: the file exists already",
                path.display()
            );
            message!("  help: choose another name, such as `ronde init another.toml`");
            exit::USER_ERROR
        }
        Err(error) => {
            message!("error: cannot write {}: {error}", path.display());
            message!("  help: check that its folder exists, is writable and has free space");
            exit::USER_ERROR
        }
    }
}

/// Writes a new file, either completely or not at all.
fn write(path: &Path) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(DEFAULT_RUN_FILE.as_bytes())
        .inspect_err(|_| {
            // The write error is returned; the incomplete file is removed if possible.
            let _ = std::fs::remove_file(path);
        })
}
