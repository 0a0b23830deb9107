//! Output options of all commands, and messages that do not fail when standard error is closed or full.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::{Args, ValueEnum};
use ronde::environment;
use ronde_tracking::Verbosity;
use ronde_tracking::render::printable;

use super::exit;

/// Output options that all commands accept.
#[derive(Args)]
#[command(next_help_heading = "Output options")]
pub(crate) struct ConsoleArguments {
    /// Use colour: auto, always or never; auto respects NO_COLOR and TERM=dumb.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true
    )]
    color: ColourChoice,
    /// Print errors and warnings only.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print more: the workers and their times, the engine and CPU features.
    #[arg(short, long, global = true)]
    verbose: bool,
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ColourChoice {
    Auto,
    Always,
    Never,
}

/// The output options of this process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Console {
    /// Whether messages may contain colour.
    pub(crate) colour: bool,
    /// Whether standard error is a terminal on which lines can be redrawn.
    pub(crate) redraws: bool,
    pub(crate) verbosity: Verbosity,
}

static CONSOLE: OnceLock<Console> = OnceLock::new();

impl ConsoleArguments {
    /// Makes these the options of this process. Called once, before any output.
    pub(crate) fn apply(&self) {
        let is_terminal = std::io::stderr().is_terminal();
        let redraws = is_terminal && !environment::terminal_is_dumb();
        let colour = match self.color {
            ColourChoice::Always => true,
            ColourChoice::Never => false,
            ColourChoice::Auto => redraws && !environment::refuses_colour(),
        };
        let verbosity = match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        };
        let console = Console {
            colour,
            redraws,
            verbosity,
        };
        // A second call would have no effect.
        let _ = CONSOLE.set(console);
    }
}

/// Returns the output options of this process.
pub(crate) fn console() -> Console {
    CONSOLE.get().copied().unwrap_or_default()
}

/// Prints an error, a warning or a result to standard error, also with `--quiet`.
macro_rules! message {
    ($($argument:tt)*) => {
        $crate::command::console::write_message(format_args!($($argument)*))
    };
}

/// Prints information to standard error, unless `--quiet` is set.
macro_rules! info {
    ($($argument:tt)*) => {
        if $crate::command::console::console().verbosity > ronde_tracking::Verbosity::Quiet {
            $crate::command::console::write_message(format_args!($($argument)*));
        }
    };
}

pub(crate) use {info, message};

/// Prints a line to standard error. Errors are ignored: a closed or full standard error must not change the exit code.
pub(crate) fn write_message(text: Arguments<'_>) {
    let text = format!("{}\n", safe(&text.to_string(), console().colour));
    let written = std::io::stderr().write_all(text.as_bytes());
    if !text.starts_with("error") {
        return;
    }
    let is_unwritten = written.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe);
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    if is_unwritten {
        errors.unwritten.get_or_insert(text);
    } else {
        errors.last = Some(text);
    }
}

/// Prints the result of a command with a line break, and returns the exit code. A reader that has closed the pipe, such as
/// `head`, has what it wants.
pub(crate) fn print(text: impl Display) -> i32 {
    let text = text.to_string();
    let line_break = if text.ends_with('\n') { "" } else { "\n" };
    let mut out = Printable(std::io::stdout());
    match write!(out, "{text}{line_break}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            message!("error: cannot write standard output: {error}");
            exit::GAVE_UP
        }
        _ => exit::DONE,
    }
}

/// The errors that this process has reported.
struct ReportedErrors {
    /// The first one that could not be written to standard error.
    unwritten: Option<String>,
    /// The last one that was written.
    last: Option<String>,
}

static ERRORS: Mutex<ReportedErrors> = Mutex::new(ReportedErrors {
    unwritten: None,
    last: None,
});

/// Returns the error that has ended this process: the first one that could not be written to standard error, such as that of a job
/// whose disk is full, or the last one.
pub(crate) fn final_error() -> Option<String> {
    let errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = errors.unwritten.as_ref().or(errors.last.as_ref());
    found.map(|text| text.trim_end().to_owned())
}

/// Escapes control characters, except colours if they are enabled.
fn safe(text: &str, colour: bool) -> String {
    let mut safe = String::new();
    for (at, part) in text.split('\u{1b}').enumerate() {
        if at == 0 {
            safe.push_str(&printable(part));
            continue;
        }
        let end = part.find(|sign: char| !matches!(sign, '[' | ';' | '0'..='9'));
        let is_colour =
            part.starts_with('[') && end.is_some_and(|end| part[end..].starts_with('m'));
        safe.push_str(if colour && is_colour {
            "\u{1b}"
        } else {
            "\\u{1b}"
        });
        safe.push_str(&printable(part));
    }
    safe
}

/// A writer that escapes control characters in formatted text.
pub(crate) struct Printable<W>(pub(crate) W);

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }

    fn write_fmt(&mut self, text: Arguments<'_>) -> std::io::Result<()> {
        self.0.write_all(printable(&text.to_string()).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_reach_the_terminal_and_only_if_enabled() {
        let text = "\u{1b}[1;31merror\u{1b}[0m: \u{1b}[2Jx\u{1b}]0;title\u{7}";
        assert_eq!(
            safe(text, true),
            "\u{1b}[1;31merror\u{1b}[0m: \\u{1b}[2Jx\\u{1b}]0;title\\u{7}"
        );
        assert!(!safe(text, false).contains('\u{1b}'));
        let mut written = Vec::new();
        let name = "a\u{1b}[2Jb";
        writeln!(Printable(&mut written), "name: {name}").unwrap();
        assert_eq!(written, b"name: a\\u{1b}[2Jb\n");
    }
}
