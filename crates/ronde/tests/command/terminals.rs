//! Output on terminals of several widths and kinds.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{RONDE, TestFolder};

/// Opens a terminal: returns the end of its user and that of programs.
pub(crate) fn open_terminal(columns: u16) -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    // Not the controlling terminal of the tests.
    let terminal = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, terminal, Mode::empty()).unwrap();
    (File::from(master), File::from(terminal))
}

/// Runs `ronde` with a terminal as standard error, and returns all that was written to it.
fn on_terminal(columns: u16, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let dir = TestFolder::new();
    let (mut master, terminal) = open_terminal(columns);
    let mut command = Command::new(RONDE);
    command
        .args(arguments)
        .env_remove("NO_COLOR")
        .env("TERM", "xterm-256color")
        .envs(variables.iter().copied())
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(terminal));
    let mut child = command.spawn().unwrap();
    // Otherwise this process would keep the terminal open.
    drop(command);
    let mut written = Vec::new();
    // The read fails when the last process has closed the terminal.
    let _ = master.read_to_end(&mut written);
    child.wait().unwrap();
    String::from_utf8_lossy(&written).replace("\r\n", "\n")
}

const TRAIN: [&str; 5] = [
    "train",
    "--set",
    "train.epochs=6",
    "--set",
    "model.channels=16",
];

#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let text = on_terminal(80, &[("TERM", "dumb")], &TRAIN);
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let steps = text
        .lines()
        .filter(|line| line.starts_with("step "))
        .count();
    assert!(steps >= 2, "{text}");
    assert!(text.contains("\ndigits finished in "), "{text}");
}

#[test]
fn narrow_terminals_show_speed_and_time_left_and_no_line_of_the_summary_wraps() {
    for columns in [60, 80, 160] {
        let text = on_terminal(columns, &[], &TRAIN);
        assert!(text.contains("images/s"), "{columns}: {text}");
        assert!(text.contains(" left"), "{columns}: {text}");
        let (_, summary) = text.rsplit_once("digits finished in ").expect("a summary");
        for line in summary.lines() {
            // Paths cannot be shortened.
            let is_path = line.contains(".safetensors") || line.contains(".json");
            let width = line.chars().count();
            assert!(is_path || width <= columns.into(), "{columns}: {line:?}");
        }
    }
}

#[test]
fn colour_is_used_on_terminals_unless_it_is_refused() {
    let bad = ["train", "--set", "train.epochs=x"];
    let is_coloured = |variables: &[(&str, &str)], extra: &[&str]| {
        let arguments = [&bad[..], extra].concat();
        let text = on_terminal(80, variables, &arguments);
        assert!(text.contains("epochs"), "{text}");
        text.contains("\u{1b}[")
    };
    assert!(is_coloured(&[], &[]));
    assert!(!is_coloured(&[("NO_COLOR", "1")], &[]));
    assert!(!is_coloured(&[("TERM", "dumb")], &[]));
    assert!(!is_coloured(&[], &["--color=never"]));
    assert!(is_coloured(&[("NO_COLOR", "1")], &["--color=always"]));
}
