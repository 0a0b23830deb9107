//! Starting `ronde` in a folder of its own, reading what it says, and looking after its processes.

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

/// Turns of ten milliseconds after which a test gives up: two minutes, for a machine that is busy.
const TURNS_MAX: u32 = 12_000;

/// The command under test.
pub(crate) const RONDE: &str = env!("CARGO_BIN_EXE_ronde");

/// One ended process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Fails the test unless the command ended with `code` and said all of `words` on standard
    /// error.
    #[track_caller]
    pub(crate) fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} in\n{}", self.stderr);
        }
        self
    }

    /// The events of a run with `--json`; the header has been checked and left out.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        events(&self.stdout)
    }

    /// The events in which workers tell what they have read, one for each epoch.
    #[cfg(feature = "full")]
    pub(crate) fn data_read(&self) -> Vec<Value> {
        let events = self.events();
        of_kind(&events, "data_read").cloned().collect()
    }

    /// The hash of the trained model, from the events.
    #[track_caller]
    pub(crate) fn blake3(&self) -> String {
        let events = self.events();
        let saved = of_kind(&events, "model_saved").next();
        let saved = saved.unwrap_or_else(|| panic!("no model was saved: {self:#?}"));
        saved["blake3"].as_str().unwrap().to_owned()
    }
}

/// Lines of JSON, without the header.
#[track_caller]
pub(crate) fn events(text: &str) -> Vec<Value> {
    let mut values = text.lines().map(|line| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    });
    let header = values.next().expect("a header");
    assert_eq!(header["format"], "ronde.events", "{header}");
    values.collect()
}

/// The events of one kind.
pub(crate) fn of_kind<'a>(events: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["event"] == kind)
}

/// A folder for one test, and the commands that run in it.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// As [`Place::list`], without the flight records that a failure may leave.
    pub(crate) fn results(&self, folder: &str) -> Vec<String> {
        let mut names = self.list(folder);
        names.retain(|name| name != "flight");
        names
    }

    /// Names of all that lies in a folder of the place; empty when there is no such folder.
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

    /// Runs a command to its end, `ronde` for one, with a clean environment.
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

/// An output that a thread collects.
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

    /// Whether the lines that have come hold `text` so many times. Those before `seen` are counted in
    /// `found` already.
    fn has(&self, text: &str, times: usize, (seen, found): &mut (usize, usize)) -> bool {
        let bytes = self.text.lock().unwrap();
        let new = &bytes[*seen..];
        let end = new.iter().rposition(|byte| *byte == b'\n');
        let lines = String::from_utf8_lossy(&new[..end.map_or(0, |end| end + 1)]);
        *found += lines.matches(text).count();
        *seen += end.map_or(0, |end| end + 1);
        *found >= times
    }

    fn end(&mut self) -> String {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.text()
    }
}

/// A process of a test; killed when the test is done with it.
pub(crate) struct Running {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl Running {
    /// Waits for the end; the code is 128 + signal when a signal ended it.
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

    /// Waits until a run with `--json` has committed `steps` steps; its worker processes by rank.
    #[track_caller]
    pub(crate) fn after_steps(&mut self, steps: u64) -> BTreeMap<u32, u32> {
        let committed = format!("\"event\":\"step_committed\",\"step\":{steps},");
        let mut so_far = (0, 0);
        until("steps are committed", || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.stderr.text());
            self.stdout.has(&committed, 1, &mut so_far)
        });
        self.workers()
    }

    /// Waits until standard output holds `text` so many times.
    #[track_caller]
    pub(crate) fn says(&mut self, text: &str, times: usize) {
        let mut so_far = (0, 0);
        until(text, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.stderr.text());
            self.stdout.has(text, times, &mut so_far)
        });
    }

    /// Waits until standard error holds `text` so many times.
    #[track_caller]
    pub(crate) fn tells(&mut self, text: &str, times: usize) {
        let mut so_far = (0, 0);
        until(text, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.stderr.text());
            self.stderr.has(text, times, &mut so_far)
        });
    }

    /// The worker processes by place, which is the rank that they began with.
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
        // Mostly it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// State and parent of a process; `None` when it is gone.
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

/// Waits until something is so; a watchdog, not a measure of speed.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "a watchdog of a test waits")]
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..TURNS_MAX {
        if so() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("given up: {what}");
}

/// An example of this crate, which `cargo test` has built beside the tests.
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
