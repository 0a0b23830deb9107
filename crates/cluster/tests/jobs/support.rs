//! Shared helpers of the tests with real processes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_cluster::{
    JobOutcome, LaunchSpec, Launcher, LocalLauncher, LogSink, OutputStream, StopFlag, supervise,
};
use ronde_core::{Event, Rank, Tracker, WorldSize};

/// Keeps lines and events.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) lines: Mutex<Vec<(u32, OutputStream, String)>>,
    pub(crate) events: Mutex<Vec<Event>>,
    /// Places and processes of the workers that were started.
    pub(crate) started: Mutex<Vec<(u32, u32)>>,
}

impl LogSink for Recorder {
    fn line(&self, rank: Rank, stream: OutputStream, line: &str) {
        let line = (rank.0, stream, line.to_owned());
        self.lines.lock().unwrap().push(line);
    }
}

impl Tracker for Recorder {
    fn record(&self, event: Event) {
        match event {
            Event::WorkerStarted { place, pid, .. } => {
                self.started.lock().unwrap().push((place, pid));
            }
            event => self.events.lock().unwrap().push(event),
        }
    }
}

impl Recorder {
    /// The lines of one rank and stream.
    pub(crate) fn of(&self, rank: u32, stream: OutputStream) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines
            .iter()
            .filter(|(r, s, _)| *r == rank && *s == stream)
            .map(|(_, _, line)| line.clone())
            .collect()
    }

    /// Parses the ranks' own output: `pid 1234` gives 1234.
    pub(crate) fn number(&self, rank: u32, word: &str) -> Option<i32> {
        let lines = self.of(rank, OutputStream::Stdout);
        let mut found = lines.iter().filter_map(|line| line.strip_prefix(word));
        found.next()?.trim().parse().ok()
    }
}

/// A job of shell scripts.
pub(crate) fn shell(ranks: u32, script: &str) -> LaunchSpec {
    let arguments = vec!["-c".into(), script.into()];
    spec("/bin/sh", arguments, ranks)
}

/// A job of workers of the example `launch`.
pub(crate) fn workers(ranks: u32, how: &str) -> LaunchSpec {
    let mut spec = spec(example(), vec!["work".into(), how.into()], ranks);
    spec.rendezvous_required = true;
    spec.task = "the task".into();
    spec
}

fn spec(
    program: impl Into<std::ffi::OsString>,
    arguments: Vec<std::ffi::OsString>,
    ranks: u32,
) -> LaunchSpec {
    let mut spec = LaunchSpec::new(program, arguments, WorldSize::new(ranks).unwrap());
    spec.stop_grace = Duration::from_secs(120);
    spec.settings.rendezvous = Duration::from_secs(120);
    spec.watchdog = Some((example().into(), vec!["watchdog".into()]));
    spec
}

/// The example `launch`, which cargo builds with the tests.
pub(crate) fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    folder.join("examples/launch")
}

/// Runs a job to its end.
pub(crate) fn run(spec: &LaunchSpec) -> (JobOutcome, Arc<Recorder>) {
    run_with(spec, &mut LocalLauncher::new(), |_, _| {})
}

/// Runs a job while `meanwhile` looks on in another thread.
pub(crate) fn run_with(
    spec: &LaunchSpec,
    launcher: &mut dyn Launcher,
    meanwhile: impl FnOnce(&Recorder, &StopFlag) + Send,
) -> (JobOutcome, Arc<Recorder>) {
    let (recorder, stop) = (Arc::<Recorder>::default(), StopFlag::new());
    let log: Arc<dyn LogSink> = recorder.clone();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(&recorder, &stop));
        supervise(spec, launcher, &*recorder, &log, &stop)
    });
    (outcome, recorder)
}

/// Waits until something is there; a watchdog's limit, not an expectation of speed.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..12_000 {
        if let Some(found) = look() {
            return found;
        }
        pause();
    }
    panic!("waited in vain for {what}");
}

#[expect(clippy::disallowed_methods, reason = "a test looks again and again")]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// Whether a process runs; a zombie does not.
pub(crate) fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// Sends a signal.
pub(crate) fn kill(pid: i32, signal: &str) {
    let status = std::process::Command::new("kill")
        .args([&format!("-{signal}"), "--", &pid.to_string()])
        .status();
    assert!(status.unwrap().success(), "kill -{signal} {pid}");
}
