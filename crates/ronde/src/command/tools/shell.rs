//! `ronde completions` and `ronde man`: generated from the definition of the command line.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::command::console::{info, message, print};
use crate::command::exit;

/// Arguments of `ronde completions`.
#[derive(Args)]
pub(crate) struct CompletionsArguments {
    /// Shell: bash, elvish, fish, powershell or zsh.
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

/// Arguments of `ronde man`.
#[derive(Args)]
pub(crate) struct ManArguments {
    /// Folder for a page of each subcommand [default: print the page of `ronde`].
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Prints the completion script for a shell.
pub(crate) fn completions(arguments: &CompletionsArguments, mut command: Command) -> i32 {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "ronde", &mut script);
    print(String::from_utf8_lossy(&script))
}

/// Prints the manual page, or writes those of all subcommands to a folder.
pub(crate) fn man(arguments: &ManArguments, mut command: Command) -> i32 {
    // Makes the global options part of the subcommands.
    command.build();
    let result = match &arguments.folder {
        Some(folder) => std::fs::create_dir_all(folder)
            .and_then(|()| write_pages(folder, &command, "ronde"))
            .map(|()| info!("wrote manual pages to {}", folder.display())),
        None => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(command).render(&mut page);
            return rendered.map_or(exit::GAVE_UP, |()| print(String::from_utf8_lossy(&page)));
        }
    };
    match result {
        Ok(()) => exit::DONE,
        Err(error) => {
            let folder = arguments.folder.as_deref().unwrap_or(Path::new("."));
            message!(
                "error: cannot write manual pages to {}: {error}\n  help: choose another folder",
                folder.display()
            );
            exit::USER_ERROR
        }
    }
}

/// Writes the page of a command and those of its visible subcommands.
fn write_pages(folder: &Path, command: &Command, name: &str) -> std::io::Result<()> {
    for subcommand in command.get_subcommands() {
        if !subcommand.is_hide_set() && subcommand.get_name() != "help" {
            let name = format!("{name}-{}", subcommand.get_name());
            write_pages(folder, subcommand, &name)?;
        }
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(name)
        .render(&mut page)?;
    std::fs::write(folder.join(format!("{name}.1")), page)
}
