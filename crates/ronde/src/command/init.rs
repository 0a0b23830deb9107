//! `ronde init`: writes a commented run file to start from.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

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
    let written = std::fs::File::create_new(path)
        .and_then(|mut file| file.write_all(ronde_train::config::DEFAULT_RUN_FILE.as_bytes()));
    match written {
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
            exit::USER_ERROR
        }
    }
}
