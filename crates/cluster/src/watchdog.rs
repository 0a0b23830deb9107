//! The watchdog: a small process that outlives a launcher killed with SIGKILL and ends its ranks.
//!
//! The launcher writes lines to the watchdog's standard input: `+ 1234` for a new process group, `-
//! 1234` for one that is gone, `done` at the end. If the input ends without `done`, the launcher
//! has died, and every remaining group gets SIGKILL, so that no grandchildren remain. So does every
//! process with the job's token in its environment, which the launcher writes as `token 12ab...`,
//! because it may have left its group.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

use crate::child;
use crate::descendants;
use crate::groups;
use crate::launcher::StopSignal;

/// Maximum length of a valid line.
const LINE_BYTES_MAX: u64 = 128;
/// The start of the line with the job's token.
const TOKEN: &str = "token ";
/// Maximum number of groups.
const GROUPS_MAX: usize = 65_536;
/// Time that the watchdog may take to end after `done`.
const END_MAX: Duration = Duration::from_secs(2);

/// Runs the watchdog until the launcher is done, or has died and its ranks were killed. Returns the
/// number of groups that were killed.
pub fn run(input: impl Read) -> usize {
    let mut input = std::io::BufReader::new(input);
    let mut left = BTreeSet::new();
    let mut token = None;
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
            (line, _) if line.starts_with(TOKEN) => token = Some(line[TOKEN.len()..].to_owned()),
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
    killed + token.map_or(0, |token| kill_descendants(&token))
}

/// Kills all processes with the job's token, also those that they start meanwhile. Returns their number.
fn kill_descendants(token: &str) -> usize {
    let mut killed = BTreeSet::new();
    let deadline = ronde_clock::now() + END_MAX;
    loop {
        let running = descendants::running(token).unwrap_or_default();
        if running.is_empty() || ronde_clock::now() >= deadline {
            return killed.len();
        }
        for process in running {
            process.signal(StopSignal::Kill);
            while process.is_running() && ronde_clock::now() < deadline {
                ronde_clock::pause(Duration::from_millis(2));
            }
            killed.insert(process);
        }
    }
}

/// Parses `+ 1234` or `- 1234`. Group 1 never belongs to a job.
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
    /// Starts the watchdog in its own session.
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

    /// Passes the job's token, with which processes outside of the groups are found.
    pub(crate) fn set_token(&mut self, token: &str) {
        self.write(&format!("{TOKEN}{token}\n"));
    }

    /// Adds a group.
    pub(crate) fn add(&mut self, group: u32) {
        self.write(&format!("+ {group}\n"));
    }

    /// Removes a group that is gone.
    pub(crate) fn remove(&mut self, group: u32) {
        self.write(&format!("- {group}\n"));
    }

    fn write(&mut self, line: &str) {
        // If the watchdog has ended, the ranks still end with their parent.
        if let Some(pipe) = &mut self.pipe
            && pipe.write_all(line.as_bytes()).is_err()
        {
            self.pipe = None;
        }
    }
}

impl Drop for Watchdog {
    /// Sends `done`, except during a panic, and reaps the watchdog.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.write("done\n");
        }
        self.pipe = None;
        let deadline = ronde_clock::now() + END_MAX;
        while matches!(self.child.try_wait(), Ok(None)) {
            if ronde_clock::now() >= deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            ronde_clock::pause(Duration::from_millis(2));
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
    fn only_groups_that_remain_at_the_end_of_the_input_are_killed() {
        let ((mut left, a), (mut removed, b)) = (sleeper(), sleeper());
        let input = format!("+ {a}\nnonsense\n+ {b}\n+ -1\n+ 1\n- {b}\n");
        assert_eq!(run(input.as_bytes()), 1);
        left.wait().unwrap();
        assert!(removed.try_wait().unwrap().is_none());
        let input = format!("+ {b}\ndone\n");
        assert_eq!(run(input.as_bytes()), 0);
        assert!(removed.try_wait().unwrap().is_none());
        removed.kill().unwrap();
        removed.wait().unwrap();
    }

    #[test]
    fn processes_outside_of_the_groups_are_killed_by_the_token() {
        let token = "c3".repeat(32);
        let mut command = Command::new("sleep");
        command
            .arg("600")
            .env(crate::variables::RONDE_TOKEN, &token);
        child::in_own_session(&mut command);
        let mut left = command.spawn().unwrap();
        assert_eq!(run(format!("token {token}\ndone\n").as_bytes()), 0);
        assert!(left.try_wait().unwrap().is_none());
        assert_eq!(run(format!("token {token}\n").as_bytes()), 1);
        left.wait().unwrap();
    }

    #[test]
    fn only_valid_lines_are_parsed() {
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
