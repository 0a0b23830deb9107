//! Commands that show something or wait for others: each ends with its terminal, with the end of its input and on SIGTERM.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::jobs::ronde;
use crate::support::{RONDE, TestFolder, send, until};
use crate::terminals::open_terminal;

/// Why a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Its terminal hangs up; the system sends SIGHUP to the session of the command.
    HangUp,
    /// The terminal that has it in the background hangs up: its input ends, and there is no signal.
    EndOfInput,
    /// SIGTERM, while the terminal accepts no output because its user reads nothing.
    Terminated,
}

/// The exit codes of a command that is done when it ends, for each ending.
const DONE: [(Ending, i32); 3] = [
    (Ending::HangUp, 0),
    (Ending::Terminated, 0),
    (Ending::EndOfInput, 0),
];
/// Those of servers, which outlive a terminal that they do not lead.
const DONE_SERVERS: &[(Ending, i32)] = DONE.split_at(2).0;
/// Those of a command that waits for something, which has not happened.
const INTERRUPTED: [(Ending, i32); 3] = [
    (Ending::HangUp, 129),
    (Ending::Terminated, 143),
    (Ending::EndOfInput, 129),
];

/// A command on a terminal; killed when dropped.
struct OnTerminal {
    child: Child,
    user: File,
    /// The bytes read so far.
    shown: String,
}

impl OnTerminal {
    /// Starts a command; `is_session`: it leads a session whose controlling terminal it has.
    fn start(dir: &TestFolder, arguments: &[&str], is_session: bool) -> Self {
        let (user, terminal) = open_terminal(100);
        // The tests may run under `nohup`, whose children ignore SIGHUP.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP");
        if is_session {
            command.args(["setsid", "--ctty"]);
        }
        command
            .arg(RONDE)
            .args(arguments)
            .env("TERM", "xterm-256color")
            .env("XDG_STATE_HOME", dir.path().join(".state"))
            .env("XDG_CONFIG_HOME", dir.path().join(".config"))
            .current_dir(dir.path())
            .stdin(OwnedFd::from(terminal.try_clone().unwrap()))
            .stdout(OwnedFd::from(terminal.try_clone().unwrap()))
            .stderr(OwnedFd::from(terminal));
        let child = command.spawn().unwrap();
        Self {
            child,
            user,
            shown: String::new(),
        }
    }

    /// Waits until the command runs, and has shown `text`.
    fn ready(&mut self, text: &str) {
        let program = format!("/proc/{}/exe", self.child.id());
        until("the command runs", || {
            std::fs::read_link(&program).is_ok_and(|path| path == std::path::Path::new(RONDE))
        });
        until(text, || {
            let mut ready = [PollFd::new(&self.user, PollFlags::IN)];
            let no_time = Timespec::try_from(Duration::ZERO).unwrap();
            if poll(&mut ready, Some(&no_time)).unwrap() > 0 {
                let mut bytes = [0; 4096];
                let length = self.user.read(&mut bytes).unwrap_or(0);
                self.shown += &String::from_utf8_lossy(&bytes[..length]);
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.shown);
            self.shown.contains(text)
        });
    }

    /// Ends the command, and returns its exit code: 128 + the signal when a signal ended it.
    fn end(mut self, ending: Ending, what: &str) -> i32 {
        let user = match ending {
            Ending::HangUp | Ending::EndOfInput => None,
            Ending::Terminated => {
                send(self.child.id(), Signal::TERM);
                Some(self.user.try_clone().unwrap())
            }
        };
        let nothing = File::open("/dev/null").unwrap();
        drop(std::mem::replace(&mut self.user, nothing));
        let mut status = None;
        until(what, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        drop(user);
        let status = status.unwrap();
        let signal = status.signal().unwrap_or_default();
        status.code().unwrap_or(128 + signal)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a command for each ending and ends it. Before, it must have shown `text`.
fn ends(dir: &TestFolder, arguments: &[&str], text: &str, endings: &[(Ending, i32)]) {
    for (ending, code) in endings {
        let is_session = *ending != Ending::EndOfInput;
        let mut command = OnTerminal::start(dir, arguments, is_session);
        command.ready(text);
        let what = format!("{arguments:?} ends by {ending:?}");
        assert_eq!(command.end(*ending, &what), *code, "{what}");
    }
}

#[test]
fn displays_and_servers_end_with_their_terminal_and_on_request() {
    let dir = TestFolder::new();
    dir.run(&["train", "--set", "train.epochs=1"])
        .expect(0, &[]);
    ends(&dir, &["top"], "digits", &DONE);
    let dashboard = ["dashboard", "--listen", "127.0.0.1:0"];
    ends(&dir, &dashboard, "://", DONE_SERVERS);
    let serve = ["serve", "runs/digits", "--listen", "127.0.0.1:0"];
    ends(&dir, &serve, "://", DONE_SERVERS);
}

#[test]
fn commands_that_wait_for_a_job_end_with_their_terminal_and_on_request() {
    let dir = TestFolder::new();
    let long = ["--set", "train.epochs=100000"];
    ronde(&dir, &["submit", "-n", "1", long[0], long[1]]).expect(0, &[]);
    ends(&dir, &["logs", "-f", "digits"], "step ", &INTERRUPTED);
    ends(&dir, &["wait", "digits"], "", &INTERRUPTED);
    ends(&dir, &["jobs", "--watch"], "running", &INTERRUPTED);
    ends(&dir, &["top", ".state/ronde/jobs/digits"], "results", &DONE);
    without_a_terminal(&dir);
    ronde(&dir, &["cancel", "digits"]).expect(0, &[]);
    let watched = ronde(&dir, &["jobs", "--watch"]).expect(0, &[]);
    assert!(watched.stdout.contains("cancelled"), "{watched:?}");
}

/// Commands whose output is a pipe end when its reader closes it, also without further output, and on SIGTERM.
fn without_a_terminal(dir: &TestFolder) {
    let top = ["top", ".state/ronde/jobs/digits"];
    for arguments in [&["logs", "-f", "digits"][..], &["jobs", "--watch"], &top] {
        for is_signal in [false, true] {
            let mut child = Command::new(RONDE)
                .args(arguments)
                .env("XDG_STATE_HOME", dir.path().join(".state"))
                .env("XDG_CONFIG_HOME", dir.path().join(".config"))
                .current_dir(dir.path())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut reader = child.stdout.take().unwrap();
            reader.read_exact(&mut [0]).unwrap();
            match is_signal {
                true => send(child.id(), Signal::TERM),
                false => drop(reader),
            }
            until("a command without a reader ends", || {
                child.try_wait().unwrap().is_some()
            });
        }
    }
}
