//! [`SshConnection`]: commands on one host by the system's `ssh`, with limits and explained failures.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::changed_key::ChangedKey;
use crate::error::SubmitError;
use crate::limited::wait;
use crate::process_folder::create_private;
use crate::shell_words;

/// The exit code of `ssh` for its own failures.
const SSH_FAILED: i32 = 255;
/// The maximum length of the path of a socket, less the 17 characters that `ssh` adds for a moment.
const SOCKET_PATH_MAX: usize = 104 - 17;
/// The length of the name of a socket: a hash of the host in hexadecimal digits, and a short one of the options.
const SOCKET_NAME: usize = 40 + 9;
/// The line after which a script prints the text for this program.
pub(super) const MARK: &str = "ronde-begins";
/// The maximum size of an answer that is kept.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// The maximum length of the output of a failed command in a message.
const PROBLEM_BYTES: usize = 2000;
/// Arguments of every `ssh`: no questions, a limit for connecting, and an end soon after a link is cut.
const ARGUMENTS: [&str; 11] = [
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
    "-o",
    "LogLevel=ERROR",
];

/// Parts of messages of `ssh` and of remote shells, and the next action for each.
const HELP: [(&str, &str); 14] = [
    (
        "Host key verification failed",
        "the key of the host is not known: check it, and accept it once with `ssh HOST`",
    ),
    (
        "Permission denied (",
        "`ssh HOST` must log in without a password: add your key to its `authorized_keys`, such as with `ssh-copy-id HOST`",
    ),
    (
        "Too many authentication failures",
        "name the key for this host with `IdentityFile` and `IdentitiesOnly yes` in `~/.ssh/config`",
    ),
    (
        "Unable to negotiate",
        "this ssh and the server have no method in common: update the older one",
    ),
    (
        "Bad configuration option",
        "correct the configuration of ssh, or `options` of the target",
    ),
    (
        "Can't open user config file",
        "correct the path after `-F` in `options` of the target",
    ),
    (
        "Could not resolve hostname",
        "check the name, or add the host to `~/.ssh/config`",
    ),
    (
        "Connection refused",
        "no SSH server answers there: check the host and the port",
    ),
    (
        "No space left on device",
        "the disk is full: free some space, or set `folder` of the target to another disk",
    ),
    (
        "Disk quota exceeded",
        "your share of the disk is full: free some space, or set `folder` of the target to another disk",
    ),
    (
        // Some shells report no more about a full disk.
        "I/O error",
        "the disk is full or damaged: free some space, or set `folder` of the target to another disk",
    ),
    (
        "Permission denied",
        "the folder cannot be written: set `folder` of the target to another one",
    ),
    (
        "Read-only file system",
        "the folder cannot be written: set `folder` of the target to another one",
    ),
    (
        "not found",
        "`tar` and a POSIX shell are needed on the host",
    ),
];

/// Those of them that may pass without a change: a server that is started again, and a network without names for a while.
const TEMPORARY: [&str; 2] = ["Connection refused", "Could not resolve hostname"];

/// The standard input of a remote command.
pub(super) enum Input<'a> {
    Nothing,
    /// A short text, which does not appear in any list of processes.
    Bytes(&'a [u8]),
    File(&'a Path),
    /// The output of a program of this machine.
    Output(Child),
}

/// A host, and how to reach it.
pub(super) struct SshConnection {
    host: String,
    arguments: Vec<String>,
}

impl SshConnection {
    /// Names a host. Commands to it share one connection through a socket in `sockets`, unless its path is too long.
    pub(super) fn new(host: &str, options: &[String], sockets: &Path) -> Self {
        // The first value of an option counts, so that of the user does.
        let mut arguments = options.to_vec();
        arguments.extend(ARGUMENTS.map(str::to_owned));
        let is_short = sockets.as_os_str().len() + 1 + SOCKET_NAME < SOCKET_PATH_MAX;
        if is_short && create_private(sockets).is_ok() {
            // The options may name another key or configuration, with which the same host may not let this user in.
            let options = blake3::hash(options.join("\0").as_bytes()).to_hex();
            let path = sockets.join(format!("{}-%C", &options[..8]));
            for option in [
                "ControlMaster=auto".to_owned(),
                "ControlPersist=30".to_owned(),
                format!("ControlPath={}", path.display()),
            ] {
                arguments.extend(["-o".to_owned(), option]);
            }
        }
        Self {
            host: host.to_owned(),
            arguments,
        }
    }

    /// Returns a part of a file name that no other process and no other host uses at the same time.
    pub(super) fn mark(&self) -> String {
        let host = blake3::hash(self.host.as_bytes()).to_hex();
        format!(
            "{}-{}-{}",
            &host[..8],
            std::process::id(),
            ronde_clock::unix_ms()
        )
    }

    /// Returns the call of a remote command line. A shell waits for it: `ssh` reports a command that a signal has ended as a
    /// connection that has failed.
    fn ssh(&self, remote: &str) -> Command {
        let waits = shell_words::join(["sh", "-c", &format!("{remote}\nexit $?")]);
        let mut command = Command::new("ssh");
        command
            .args(&self.arguments)
            .arg("--")
            .arg(&self.host)
            .arg(waits);
        command
    }

    /// Returns the words of a call, for display.
    pub(super) fn words(&self, remote: &str) -> String {
        format!("ssh {} {remote}", self.host)
    }

    /// Runs a remote command line within `limit` and returns its output.
    ///
    /// # Errors
    /// The connection or the command fails, with its output and a hint.
    pub(super) fn call(
        &self,
        remote: &str,
        input: Input<'_>,
        limit: Duration,
    ) -> Result<String, SubmitError> {
        let failed = |error: std::io::Error| SubmitError::Program {
            program: "ssh".to_owned(),
            problem: error.to_string(),
        };
        // A file: the process that keeps a shared connection may hold standard error open.
        let mut problems = tempfile::tempfile().map_err(failed)?;
        let mut command = self.ssh(remote);
        let mut source = None;
        let mut bytes: &[u8] = &[];
        match input {
            Input::Nothing => drop(command.stdin(Stdio::null())),
            Input::Bytes(text) => {
                bytes = text;
                command.stdin(Stdio::piped());
            }
            Input::File(path) => {
                let file = File::open(path).map_err(SubmitError::file("read", path))?;
                command.stdin(file);
            }
            Input::Output(mut child) => {
                if let Some(output) = child.stdout.take() {
                    command.stdin(output);
                }
                source = Some(child);
            }
        }
        command.stdout(Stdio::piped());
        command.stderr(problems.try_clone().map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that fails at once does not read it.
            let _ = stdin.write_all(bytes);
        }
        let stdout = child.stdout.take();
        let reader = std::thread::spawn(move || {
            let mut answer = Vec::new();
            let read = stdout.map(|out| out.take(ANSWER_BYTES_MAX).read_to_end(&mut answer));
            read.map(|_| answer).unwrap_or_default()
        });
        let status = wait(&mut child, limit);
        let source = source.map(|mut source| wait(&mut source, Duration::from_secs(1)));
        let Some(status) = status else {
            return Err(self.temporary(format!("no answer within {} s", limit.as_secs())));
        };
        let answer = reader.join().unwrap_or_default();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        self.judge(status, source, answer, &text_of(&mut problems))
    }

    /// Returns the answer of a command that has succeeded. `source` is the end of the program that wrote its input.
    fn judge(
        &self,
        status: i32,
        source: Option<Option<i32>>,
        answer: String,
        problems: &str,
    ) -> Result<String, SubmitError> {
        match (status, source) {
            (0, None | Some(Some(0))) => Ok(answer),
            (0, Some(_)) => Err(self.failed("the data for the host could not be read".to_owned())),
            (SSH_FAILED, _) => Err(self.explained(problems, true)),
            (code, _) => {
                let answer = answer.split(MARK).next().unwrap_or_default();
                let text = [problems.trim(), answer.trim()].join("\n");
                let shown = match text.trim() {
                    "" => match code.checked_sub(128) {
                        Some(signal @ 1..) => format!("a command was ended by signal {signal}"),
                        _ => format!("a command ended with exit code {code}"),
                    },
                    text => text.to_owned(),
                };
                Err(self.explained(&shown, false))
            }
        }
    }

    /// Starts a remote command line whose output is the input of another one.
    pub(super) fn output(&self, remote: &str) -> Result<Child, SubmitError> {
        let mut command = self.ssh(remote);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().map_err(|error| SubmitError::Program {
            program: "ssh".to_owned(),
            problem: error.to_string(),
        })
    }

    /// Runs a remote command line and writes its output to `out` while it runs. Returns its exit code.
    pub(super) fn stream(&self, remote: &str, out: &mut dyn Write) -> Result<i32, SubmitError> {
        let failed = |error: std::io::Error| SubmitError::Program {
            program: "ssh".to_owned(),
            problem: error.to_string(),
        };
        let mut problems = tempfile::tempfile().map_err(failed)?;
        let mut command = self.ssh(remote);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(problems.try_clone().map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut stdout) = child.stdout.take() {
            let mut buffer = vec![0; 1 << 16];
            loop {
                let read = stdout.read(&mut buffer).map_err(failed)?;
                if read == 0 {
                    break;
                }
                let written = out.write_all(&buffer[..read]).and_then(|()| out.flush());
                if let Err(error) = written {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(
                        SubmitError::file("write", Path::new("the standard output"))(error),
                    );
                }
            }
        }
        match child.wait().map_err(failed)?.code() {
            Some(SSH_FAILED) => Err(self.explained(&text_of(&mut problems), true)),
            None => Err(self.temporary("the connection was lost".to_owned())),
            Some(code) => Ok(code),
        }
    }

    /// Runs a remote command line with the standard output and error of this process. Returns its exit code.
    pub(super) fn run(&self, remote: &str) -> Result<i32, SubmitError> {
        let status = self.ssh(remote).stdin(Stdio::null()).status();
        let status = status.map_err(|error| SubmitError::Program {
            program: "ssh".to_owned(),
            problem: error.to_string(),
        })?;
        match status.code() {
            Some(SSH_FAILED) | None => Err(self.temporary("the connection failed".to_owned())),
            Some(code) => Ok(code),
        }
    }

    /// Parses the answer of `ronde` on the host: the last line of its output.
    pub(super) fn parse<T: DeserializeOwned>(&self, answer: &str) -> Result<T, SubmitError> {
        let line = answer.lines().rev().find(|line| !line.trim().is_empty());
        let parsed = serde_json::from_str(line.unwrap_or_default());
        parsed.map_err(|error| {
            let answer: String = answer.chars().take(200).collect();
            self.failed(format!(
                "its answer `{}` is not valid: {error}",
                answer.escape_debug()
            ))
        })
    }

    /// Returns an error about this host.
    pub(super) fn failed(&self, problem: String) -> SubmitError {
        SubmitError::Host {
            host: self.host.clone(),
            problem,
            help: None,
            is_temporary: false,
        }
    }

    fn temporary(&self, problem: String) -> SubmitError {
        SubmitError::Host {
            host: self.host.clone(),
            problem,
            help: None,
            is_temporary: true,
        }
    }

    /// Returns an error with the output of `ssh` or of a command, and the hint for it.
    fn explained(&self, text: &str, is_connection: bool) -> SubmitError {
        let text = text.replace('\r', "");
        if let Some(changed) = ChangedKey::find(&text).filter(|_| is_connection) {
            return SubmitError::Host {
                host: self.host.clone(),
                problem: changed.problem(),
                help: Some(changed.help(&self.host)),
                is_temporary: false,
            };
        }
        let text = text.trim();
        let end = text
            .char_indices()
            .nth(PROBLEM_BYTES)
            .map_or(text.len(), |(at, _)| at);
        let found = HELP.iter().find(|(part, _)| text.contains(part));
        let is_temporary = is_connection && found.is_none_or(|(part, _)| TEMPORARY.contains(part));
        SubmitError::Host {
            host: self.host.clone(),
            problem: match &text[..end] {
                "" => "the connection was lost".to_owned(),
                text => text.to_owned(),
            },
            help: found.map(|(_, help)| help.replace("HOST", &self.host)),
            is_temporary,
        }
    }
}

/// Returns the text in a file, or an empty one if it cannot be read.
fn text_of(file: &mut File) -> String {
    let read = file.rewind().and_then(|()| {
        let mut text = Vec::new();
        // More is not shown.
        let bytes = PROBLEM_BYTES as u64 * 4;
        Read::take(file, bytes).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    });
    read.unwrap_or_default()
}

/// Calls a function for all items at the same time.
pub(super) fn each<T: Sync, R: Send>(items: &[T], call: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = items
            .iter()
            .map(|item| scope.spawn(move || call(item)))
            .collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect()
    })
}

/// Starts `tar` with a list of files of a folder, for [`Input::Output`].
pub(super) fn tar(base: &Path, files: &[PathBuf]) -> Result<Child, SubmitError> {
    let failed = |error: std::io::Error| SubmitError::Program {
        program: "tar".to_owned(),
        problem: error.to_string(),
    };
    let mut list = tempfile::tempfile().map_err(failed)?;
    for file in files {
        list.write_all(file.as_os_str().as_encoded_bytes())
            .and_then(|()| list.write_all(&[0]))
            .map_err(failed)?;
    }
    list.rewind().map_err(failed)?;
    Command::new("tar")
        .args(["-c", "-h", "-f", "-", "-C"])
        .arg(base)
        .args(["--null", "--no-recursion", "-T", "-"])
        .stdin(list)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use ronde_core::Recovery;

    use super::*;

    #[test]
    fn failures_of_ssh_and_of_the_host_are_explained() {
        let dir = tempfile::tempdir().unwrap();
        let connection = SshConnection::new("gpu1", &[], dir.path());
        for (text, help) in [
            (
                "Host key verification failed.",
                "accept it once with `ssh gpu1`",
            ),
            (
                "me@gpu1: Permission denied (publickey).",
                "ssh-copy-id gpu1",
            ),
            (
                "cat: write error: No space left on device",
                "the disk is full",
            ),
            (
                "mkdir: cannot create directory '/x': Permission denied",
                "set `folder`",
            ),
            (
                "ssh: connect to host gpu1 port 22: Connection refused",
                "no SSH server",
            ),
        ] {
            let error = connection.explained(text, true).to_string();
            assert!(error.contains(help) && error.contains(text), "{error}");
        }
        for (text, recovery) in [
            ("", Recovery::Retry),
            (
                "ssh: connect to host gpu1 port 22: Connection timed out",
                Recovery::Retry,
            ),
            (
                "ssh: connect to host gpu1 port 22: No route to host",
                Recovery::Retry,
            ),
            (
                "ssh: connect to host gpu1 port 22: Connection refused",
                Recovery::Retry,
            ),
            (
                "ssh: Could not resolve hostname gpu1: Name or service not known",
                Recovery::Retry,
            ),
            ("Host key verification failed.", Recovery::Abort),
            ("me@gpu1: Permission denied (publickey).", Recovery::Abort),
            (
                "Received disconnect from 10.0.0.1: 2: Too many authentication failures",
                Recovery::Abort,
            ),
            (
                "command-line: line 0: Bad configuration option: x",
                Recovery::Abort,
            ),
        ] {
            assert_eq!(
                connection.explained(text, true).recovery(),
                recovery,
                "{text}"
            );
        }
    }

    #[test]
    fn lines_for_this_program_are_not_part_of_a_message() {
        let connection = SshConnection::new("gpu1", &[], Path::new(""));
        let answer = format!("Welcome\n{MARK}\nfolder /home/me/ronde\naddress 10.0.0.1\n");
        let problems = "ronde: 11: printf: printf: I/O error\r\n";
        let judged = connection.judge(71, None, answer, problems).unwrap_err();
        assert_eq!(
            judged.to_string(),
            "cannot use host `gpu1`: ronde: 11: printf: printf: I/O error\nWelcome\n  \
             help: the disk is full or damaged: free some space, or set `folder` of the target to another disk"
        );
        let silent = connection.judge(71, None, format!("{MARK}\nfolder /x\n"), "");
        assert_eq!(
            silent.unwrap_err().to_string(),
            "cannot use host `gpu1`: a command ended with exit code 71"
        );
    }

    #[test]
    fn a_changed_key_of_a_host_is_one_line_and_no_reason_to_try_again() {
        let connection = SshConnection::new("gpu1", &[], Path::new(""));
        let banner = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n\
            Offending RSA key in /etc/ssh/ssh_known_hosts:1\r\n\
            Host key for gpu1 has changed and you have requested strict checking.\r\n";
        let error = connection.explained(banner, true);
        assert_eq!(error.recovery(), Recovery::Abort);
        assert_eq!(
            error.to_string(),
            "cannot use host `gpu1`: its host key has changed: line 1 of /etc/ssh/ssh_known_hosts has another key for \
             `gpu1`\n  help: find out why; then `ssh-keygen -f /etc/ssh/ssh_known_hosts -R gpu1` forgets the old one, \
             and `ssh gpu1` accepts the new one"
        );
    }

    #[test]
    fn options_of_the_user_come_first_and_a_host_is_never_an_option() {
        let options = ["-p".to_owned(), "2222".to_owned()];
        let connection = SshConnection::new("gpu1", &options, Path::new("/proc/none"));
        let command = connection.ssh("true");
        let words: Vec<_> = command
            .get_args()
            .map(|word| word.to_str().unwrap())
            .collect();
        assert_eq!(words[..3], ["-p", "2222", "-T"]);
        assert_eq!(
            words[words.len() - 3..],
            ["--", "gpu1", "sh -c 'true\nexit $?'"]
        );
    }
}
