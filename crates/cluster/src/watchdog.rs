//! The watchdog: a small process that outlives a launcher killed with SIGKILL and ends its ranks.
//!
//! The launcher writes lines to its standard input: `+ 1234` for a new process group, `- 1234` for
//! one that is gone, `done` at the end. When the input ends without `done`, the launcher is dead and
//! every group that is left gets SIGKILL, so that not even grandchildren stay.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

use crate::child;
use crate::clock;
use crate::groups;
use crate::launcher::StopSignal;

/// Longest line that makes sense.
const LINE_BYTES_MAX: u64 = 64;
/// Most groups that are remembered.
const GROUPS_MAX: usize = 65_536;
/// How long the watchdog may take to end once told that all is done.
const END_MAX: Duration = Duration::from_secs(2);

/// Runs the watchdog: returns when the launcher says that it is done, or is dead and its ranks have
/// been killed. Returns the count of groups that were killed.
pub fn run(input: impl Read) -> usize {
    let mut input = std::io::BufReader::new(input);
    let mut left = BTreeSet::new();
    loop {
        let mut line = String::new();
        let ended = match input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => true,
            Ok(_) => !line.ends_with('\n'),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => true,
        };
        if ended {
            break;
        }
        match (line.trim_end(), parse(&line)) {
            ("done", _) => return 0,
            (_, Some((true, group))) if left.len() < GROUPS_MAX => {
                left.insert(group);
            }
            (_, Some((false, group))) => {
                left.remove(&group);
            }
            _ => {}
        }
    }
    let groups = left.iter().filter_map(|&group| Pid::from_raw(group));
    let mut killed = 0;
    for group in groups.filter(|&group| groups::alive(group)) {
        groups::signal(group, StopSignal::Kill);
        killed += 1;
    }
    killed
}

/// `+ 1234` or `- 1234`. Group 1 is never one of ours.
fn parse(line: &str) -> Option<(bool, i32)> {
    let (sign, number) = line.trim_end().split_once(' ')?;
    let group = number.parse().ok().filter(|&group: &i32| group > 1)?;
    match sign {
        "+" => Some((true, group)),
        "-" => Some((false, group)),
        _ => None,
    }
}

/// The launcher's side: a watchdog process and the pipe to it.
pub(crate) struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts the watchdog in a session of its own.
    pub(crate) fn start((program, arguments): &(OsString, Vec<OsString>)) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        child::in_own_session(&mut command);
        let mut child = command.spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// A group to look after.
    pub(crate) fn add(&mut self, group: u32) {
        self.say(&format!("+ {group}\n"));
    }

    /// A group that is gone.
    pub(crate) fn remove(&mut self, group: u32) {
        self.say(&format!("- {group}\n"));
    }

    fn say(&mut self, line: &str) {
        // A watchdog that has ended cannot be told anything; the ranks still end with their parent.
        if let Some(pipe) = &mut self.pipe
            && pipe.write_all(line.as_bytes()).is_err()
        {
            self.pipe = None;
        }
    }
}

impl Drop for Watchdog {
    /// Says that all is done (unless this is a panic: then it isn't), and reaps it.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.say("done\n");
        }
        self.pipe = None;
        let deadline = clock::now() + END_MAX;
        while matches!(self.child.try_wait(), Ok(None)) {
            if clock::now() >= deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            clock::pause(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    fn sleeper() -> (Child, u32) {
        let child = Command::new("sleep")
            .arg("600")
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = child.id();
        (child, pid)
    }

    #[test]
    fn what_is_left_at_the_end_of_the_input_is_killed_and_nothing_else() {
        let ((mut left, a), (mut removed, b)) = (sleeper(), sleeper());
        let words = format!("+ {a}\nnonsense\n+ {b}\n+ -1\n+ 1\n- {b}\n");
        assert_eq!(run(words.as_bytes()), 1);
        left.wait().unwrap();
        assert!(removed.try_wait().unwrap().is_none());
        let words = format!("+ {b}\ndone\n");
        assert_eq!(run(words.as_bytes()), 0);
        assert!(removed.try_wait().unwrap().is_none());
        removed.kill().unwrap();
        removed.wait().unwrap();
    }

    #[test]
    fn lines_are_read_strictly() {
        let cases = [
            ("+ 12\n", Some((true, 12))),
            ("- 12\n", Some((false, 12))),
            ("+ 0\n", None),
            ("+ -5\n", None),
            ("* 12\n", None),
            ("+12\n", None),
            ("+ 99999999999\n", None),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }
}
