//! Runs `ronde` in a temporary folder, reads its output and controls its processes.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The longest wait before a test fails, for a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// How long the last output of a process that has ended is waited for.
const READ_MAX: Duration = Duration::from_secs(10);

/// How many last lines of an output a failure shows.
const LINES_SHOWN: usize = 40;

/// The command under test.
pub(crate) const RONDE: &str = env!("CARGO_BIN_EXE_ronde");

/// The result of a process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Fails the test unless the command ended with `code` and printed all of `words` to standard
    /// error.
    #[track_caller]
    pub(crate) fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} in\n{}", self.stderr);
        }
        self
    }

    /// Returns the events of a run with `--json`, after checking and removing the header.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        events(&self.stdout)
    }

    /// Returns the events in which workers report the bytes that they have read, one per epoch and worker.
    #[cfg(feature = "full")]
    pub(crate) fn data_read(&self) -> Vec<Value> {
        let events = self.events();
        of_kind(&events, "data_read").cloned().collect()
    }

    /// Returns the hash of the trained model, from the events.
    #[track_caller]
    pub(crate) fn blake3(&self) -> String {
        let events = self.events();
        let saved = of_kind(&events, "model_saved").next();
        let saved = saved.unwrap_or_else(|| panic!("no model was saved: {self:#?}"));
        saved["blake3"].as_str().unwrap().to_owned()
    }
}

/// Parses lines of JSON and removes the header.
#[track_caller]
pub(crate) fn events(text: &str) -> Vec<Value> {
    let mut values = text.lines().map(|line| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    });
    let header = values.next().expect("a header");
    assert_eq!(header["format"], "ronde.events", "{header}");
    values.collect()
}

/// Returns the events of one kind.
pub(crate) fn of_kind<'a>(events: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["event"] == kind)
}

/// A temporary folder for one test, in which commands run.
pub(crate) struct TestFolder(TempDir);

impl TestFolder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Lists a folder like [`TestFolder::list`], without the flight records of a failed run.
    pub(crate) fn results(&self, folder: &str) -> Vec<String> {
        let mut names = self.list(folder);
        names.retain(|name| name != "flight");
        names
    }

    /// Returns the sorted names in a subfolder, or nothing when it does not exist.
    pub(crate) fn list(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path().join(folder)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// Runs `ronde` to its end with a clean environment.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.start(RONDE, arguments, &[]).wait()
    }

    /// Starts a program with variables on top of a clean environment.
    pub(crate) fn start(
        &self,
        program: impl AsRef<Path>,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Running {
        let mut command = Command::new(program.as_ref());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("RONDE_") || name.starts_with("RUST_") || name.ends_with("_THREADS")
            {
                command.env_remove(&*name);
            }
        }
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", self.path().join(".cache"))
            .envs(variables.iter().copied())
            .current_dir(self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = Collected::of(child.stdout.take().unwrap());
        let stderr = Collected::of(child.stderr.take().unwrap());
        Running {
            child,
            stdout,
            stderr,
        }
    }
}

/// An output stream that a thread collects.
struct Collected {
    text: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Collected {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&text);
        let thread = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        Self {
            text,
            thread: Some(thread),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// Returns whether the complete lines so far contain `text` at least `times` times. Those before `seen` are
    /// already counted in `found`.
    fn has(&self, text: &str, times: usize, (seen, found): &mut (usize, usize)) -> bool {
        let bytes = self.text.lock().unwrap();
        let new = &bytes[*seen..];
        let end = new.iter().rposition(|byte| *byte == b'\n');
        let lines = String::from_utf8_lossy(&new[..end.map_or(0, |end| end + 1)]);
        *found += lines.matches(text).count();
        *seen += end.map_or(0, |end| end + 1);
        *found >= times
    }

    #[track_caller]
    fn end(&mut self) -> String {
        if let Some(thread) = self.thread.take() {
            until("no process has the output of the command any more", || {
                thread.is_finished()
            });
            thread.join().unwrap();
        }
        self.text()
    }
}

/// A process of a test; killed when dropped.
pub(crate) struct Running {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl Running {
    /// Waits for the end. The code is 128 + the signal when a signal ended it.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        let mut status = None;
        until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        Ended {
            code: status
                .code()
                .unwrap_or_else(|| 128 + signal.unwrap_or_default()),
            stdout: self.stdout.end(),
            stderr: self.stderr.end(),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal again and again until the process has ended.
    pub(crate) fn repeat_until_end(&mut self, signal: Signal) {
        until("the signals end the command", || {
            let has_ended = self.child.try_wait().unwrap().is_some();
            if !has_ended {
                self.signal(signal);
            }
            has_ended
        });
    }

    /// Waits until a run with `--json` has committed `steps` steps, and returns its worker processes by rank.
    #[track_caller]
    pub(crate) fn after_steps(&mut self, steps: u64) -> BTreeMap<u32, u32> {
        let committed = format!("\"event\":\"step_committed\",\"step\":{steps},");
        self.wait_stdout(&committed, 1);
        self.workers()
    }

    /// Returns the standard output of the process so far.
    pub(crate) fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Returns the standard error of the process so far.
    #[cfg(feature = "full")]
    pub(crate) fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until standard output contains `text` `times` times.
    #[track_caller]
    pub(crate) fn wait_stdout(&mut self, text: &str, times: usize) {
        self.wait_output(|running| &running.stdout, text, times);
    }

    /// Waits until standard error contains `text` `times` times.
    #[track_caller]
    pub(crate) fn wait_stderr(&mut self, text: &str, times: usize) {
        self.wait_output(|running| &running.stderr, text, times);
    }

    /// Waits until an output contains `text` `times` times, and fails once the process has ended without it.
    #[track_caller]
    fn wait_output(&mut self, output: fn(&Self) -> &Collected, text: &str, times: usize) {
        let mut so_far = (0, 0);
        let mut ended = None;
        until(text, || {
            ended = self.child.try_wait().unwrap();
            output(self).has(text, times, &mut so_far) || ended.is_some()
        });
        let Some(status) = ended else { return };
        // The last lines of a process may be read after its end.
        let has_text = || output(self).has(text, times, &mut so_far);
        if !holds_within(READ_MAX, has_text) {
            let lines = |output: &Collected| {
                let text = output.text();
                let first = text.lines().count().saturating_sub(LINES_SHOWN);
                text.lines().skip(first).collect::<Vec<_>>().join("\n")
            };
            let (out, err) = (lines(&self.stdout), lines(&self.stderr));
            panic!("no {text:?} before the end, {status}; stderr:\n{err}\nstdout:\n{out}");
        }
    }

    /// Returns the processes that this process has started and that have not ended.
    pub(crate) fn children(&self) -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let is_child = |pid: &u32| {
            state(*pid).is_some_and(|(state, parent)| state != 'Z' && parent == self.child.id())
        };
        pids.filter(is_child).collect()
    }

    /// Returns the worker processes by slot, which is the rank that they started with.
    pub(crate) fn workers(&self) -> BTreeMap<u32, u32> {
        let mut workers = BTreeMap::new();
        for entry in std::fs::read_dir("/proc").unwrap() {
            let name = entry.unwrap().file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let rank = environment
                .split(|&byte| byte == 0)
                .find_map(|variable| std::str::from_utf8(variable).ok()?.strip_prefix("RANK="));
            if let (Some((_, parent)), Some(rank)) = (state(pid), rank)
                && parent == self.child.id()
            {
                workers.insert(rank.parse().unwrap(), pid);
            }
        }
        workers
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Sends SIGTERM to a process that may have ended.
pub(crate) fn terminate(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::TERM);
}

/// Waits until a process is stopped.
#[track_caller]
pub(crate) fn stopped(pid: u32) {
    until("the process is stopped", || {
        state(pid).is_some_and(|(state, _)| state == 'T')
    });
}

/// Returns the state and the parent of a process, or `None` when it has ended.
fn state(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Waits until the processes have ended.
#[track_caller]
pub(crate) fn gone(pids: impl IntoIterator<Item = u32>) {
    for pid in pids {
        until("a process is gone", || {
            state(pid).is_none_or(|(state, _)| state == 'Z')
        });
    }
}

/// Waits until a condition holds; the limit is a watchdog, not a measure of speed.
#[track_caller]
pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(WAIT_MAX, condition), "timed out: {what}");
}

/// Waits until a condition holds, and returns false at the limit.
#[expect(clippy::disallowed_methods, reason = "a watchdog of a test waits")]
pub(crate) fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    // A condition may run commands, so polls are not counted.
    let start = std::time::Instant::now();
    while start.elapsed() < limit {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Returns the path of an example of this crate, which `cargo test` builds beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join(name);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// Copies the files of a model, without the run file, the data and the records of its run.
#[cfg(feature = "full")]
pub(crate) fn copy_model(dir: &TestFolder, from: &str, to: &str) {
    let (from, to) = (dir.path().join(from), dir.path().join(to));
    std::fs::create_dir(&to).unwrap();
    for name in ["model.json", "model.safetensors"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let name = ronde_saved_model::TOKENIZER_FILE;
    if from.join(name).exists() {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}
