//! [`RunLibrary`]: the runs of a folder, followed by a thread while they grow.

mod newest_start;
mod summary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::DashboardError;
use crate::follow::EventFollower;
use crate::history::RunHistory;
use ronde_tracking::is_running;

use newest_start::NewestStart;

pub use summary::RunSummary;

/// The name of the event file in the folder of a run.
pub(crate) const EVENT_FILE: &str = "events.jsonl";
/// Largest number of runs of a folder that are listed.
const RUNS_MAX: usize = 5_000;
/// Largest number of runs whose history is kept.
const HISTORIES_MAX: usize = 200;
/// Bytes that are read of one run before the next one.
const SLICE_BYTES: usize = 4 << 20;
/// Time between two parts, in which requests are answered.
const BETWEEN_SLICES: Duration = Duration::from_millis(1);
/// Time after the last request for which a run is followed.
const FOLLOWED_FOR: Duration = Duration::from_secs(60);

/// The runs of a folder.
///
/// Opening it reads 64 kB at both ends of each event file. The whole file of a run is read when its history is requested
/// for the first time, and then followed for as long as it is requested. The memory is bounded: see [`RunHistory`].
pub struct RunLibrary {
    shared: Arc<SharedLibrary>,
    thread: Option<JoinHandle<()>>,
    label: String,
}

/// A run with its history, at one moment.
pub struct RunSnapshot<'a> {
    /// The summary.
    pub summary: &'a RunSummary,
    /// The history.
    pub history: &'a RunHistory,
    /// The folder of the run.
    pub folder: &'a Path,
}

struct SharedLibrary {
    root: PathBuf,
    state: Mutex<LibraryState>,
    requested: Condvar,
}

#[derive(Default)]
struct LibraryState {
    runs: BTreeMap<String, RunEntry>,
    version: u64,
    problem: Option<String>,
    closing: bool,
}

struct RunEntry {
    folder: PathBuf,
    summary: RunSummary,
    /// Modification time and length of the event file at the last look.
    seen: Option<(f64, u64)>,
    is_running: bool,
    followed: Option<FollowedRun>,
    /// The newest start of an attempt, for summaries without a history.
    newest_start: NewestStart,
    requested: Option<Instant>,
}

struct FollowedRun {
    follower: EventFollower,
    history: Box<RunHistory>,
    at_end: bool,
}

impl SharedLibrary {
    fn lock(&self) -> MutexGuard<'_, LibraryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunLibrary {
    /// Opens a folder of runs, or the folder of one run.
    ///
    /// # Errors
    /// [`DashboardError::Folder`] if the folder cannot be read, [`DashboardError::Start`] if the thread cannot be started.
    pub fn open(root: &Path) -> Result<Self, DashboardError> {
        std::fs::read_dir(root).map_err(|cause| DashboardError::Folder {
            path: root.to_owned(),
            cause,
        })?;
        let shared = Arc::new(SharedLibrary {
            root: root.to_owned(),
            state: Mutex::default(),
            requested: Condvar::new(),
        });
        scan(&shared);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("runs".to_owned())
            .spawn(move || follow(&of_thread))
            .map_err(|cause| DashboardError::Start { cause })?;
        Ok(Self {
            label: root.display().to_string(),
            shared,
            thread: Some(thread),
        })
    }

    /// Shows `label` instead of the folder.
    #[must_use]
    pub fn labelled(mut self, label: String) -> Self {
        self.label = label;
        self
    }

    /// Returns the text that displays show for the whole library: its folder unless there is another label.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns a number that changes with every change of a run, the summaries of all runs with the newest first, and why the
    /// folder cannot be read, if it cannot.
    #[must_use]
    pub fn summaries(&self) -> (u64, Vec<RunSummary>, Option<String>) {
        let state = self.shared.lock();
        let mut summaries: Vec<_> = state.runs.values().map(|run| run.summary.clone()).collect();
        summaries.sort_by(|a, b| b.updated_t.total_cmp(&a.updated_t).then(a.id.cmp(&b.id)));
        (state.version, summaries, state.problem.clone())
    }

    /// Returns the number of [`RunLibrary::summaries`].
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.lock().version
    }

    /// Passes a run with the part of its history that was read so far to `visit`, and follows it. Returns `None` if there is no
    /// such run. `visit` must be short: it holds the lock of the library.
    pub fn visit<T>(&self, id: &str, visit: impl FnOnce(RunSnapshot<'_>) -> T) -> Option<T> {
        let mut state = self.shared.lock();
        let run = state.runs.get_mut(id)?;
        run.requested = Some(ronde_clock::now());
        let followed = run.followed.get_or_insert_with(|| FollowedRun {
            follower: EventFollower::new(&run.folder.join(EVENT_FILE)),
            history: Box::default(),
            at_end: false,
        });
        if !followed.at_end {
            self.shared.requested.notify_all();
        }
        Some(visit(RunSnapshot {
            summary: &run.summary,
            history: &followed.history,
            folder: &run.folder,
        }))
    }
}

impl Drop for RunLibrary {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.requested.notify_all();
        if let Some(thread) = self.thread.take() {
            // It only reads, and ends after its present slice.
            let _ = thread.join();
        }
    }
}

/// The time between two looks at the files.
pub(crate) const POLL: Duration = Duration::from_millis(500);

/// Follows the runs until the library is closed.
fn follow(shared: &SharedLibrary) {
    loop {
        let next_scan = ronde_clock::now() + POLL;
        scan(shared);
        loop {
            let (reads_more, ids) = {
                let state = shared.lock();
                if state.closing {
                    return;
                }
                let waiting: Vec<String> = state
                    .runs
                    .iter()
                    .filter(|(_, run)| run.followed.as_ref().is_some_and(|run| !run.at_end))
                    .map(|(id, _)| id.clone())
                    .collect();
                (!waiting.is_empty(), waiting)
            };
            for id in ids {
                read_slice(shared, &id);
                // Requests take the lock in between.
                ronde_clock::pause(BETWEEN_SLICES);
            }
            let left = next_scan.saturating_duration_since(ronde_clock::now());
            if left.is_zero() {
                break;
            }
            if !reads_more {
                let state = shared.lock();
                let waited = shared.requested.wait_timeout(state, left);
                drop(waited);
            }
        }
    }
}

/// Lists the runs of the folder and updates those whose files have changed.
fn scan(shared: &SharedLibrary) {
    let (found, problem) = match run_folders(&shared.root) {
        Ok(found) => (found, None),
        Err(error) => (BTreeMap::new(), Some(error.to_string())),
    };
    {
        let mut state = shared.lock();
        let before = state.runs.len();
        state.runs.retain(|id, _| found.contains_key(id));
        if state.runs.len() != before || state.problem != problem {
            state.version += 1;
        }
        state.problem = problem;
    }
    for (id, folder) in found {
        let path = folder.join(EVENT_FILE);
        let seen = path.metadata().ok().map(|data| {
            let modified = data
                .modified()
                .map_or(0.0, |date| ronde_clock::since_1970(date).as_secs_f64());
            (modified, data.len())
        });
        let (is_known, is_followed, is_over, was_running) = {
            let state = shared.lock();
            let run = state.runs.get(&id);
            let is_known = run.is_some_and(|run| run.seen == seen);
            let is_followed = run.is_some_and(|run| run.followed.is_some());
            // A finished run whose file has not changed cannot be running.
            let is_over = is_known && run.is_some_and(|run| run.summary.phase == "finished");
            (
                is_known,
                is_followed,
                is_over,
                run.map(|run| run.is_running),
            )
        };
        let runs = !is_over && is_running(&folder);
        if is_known && was_running == Some(runs) {
            continue;
        }
        let mut start = take_newest_start(shared, &id);
        let summary = match is_followed {
            true => None,
            false => Some(RunSummary::read(&id, &folder, (seen, runs), &mut start)),
        };
        let mut state = shared.lock();
        state.version += 1;
        let version = state.version;
        let run = state.runs.entry(id.clone()).or_insert_with(|| RunEntry {
            folder,
            summary: RunSummary::default(),
            seen: None,
            is_running: runs,
            followed: None,
            newest_start: NewestStart::default(),
            requested: None,
        });
        (run.seen, run.is_running, run.newest_start) = (seen, runs, start);
        match (summary, &mut run.followed) {
            (Some(summary), _) => run.summary = summary,
            (None, Some(followed)) => {
                // The summary follows when the new events are read.
                followed.at_end = false;
            }
            (None, None) => {}
        }
        run.summary.version = version;
    }
    forget(&mut shared.lock());
}

/// Takes what is known about the newest start of an attempt out of the library, while the file is read without its lock.
fn take_newest_start(shared: &SharedLibrary, id: &str) -> NewestStart {
    let mut state = shared.lock();
    let run = state.runs.get_mut(id);
    run.map_or_else(NewestStart::default, |run| {
        std::mem::take(&mut run.newest_start)
    })
}

/// Forgets the histories that were not requested for a while, if there are many; they are read again on request.
fn forget(state: &mut LibraryState) {
    let now = ronde_clock::now();
    let mut followed: Vec<(Option<Instant>, String)> = state
        .runs
        .iter()
        .filter(|(_, run)| run.followed.is_some())
        .map(|(id, run)| (run.requested, id.clone()))
        .collect();
    followed.sort();
    let surplus = followed.len().saturating_sub(HISTORIES_MAX);
    for (at, (requested, id)) in followed.into_iter().enumerate() {
        let is_old = requested.is_none_or(|at| now.duration_since(at) > FOLLOWED_FOR);
        if let Some(run) = state.runs.get_mut(&id)
            && (at < surplus || is_old && !run.summary.is_complete())
        {
            run.followed = None;
        }
    }
}

/// Reads the next part of a run.
fn read_slice(shared: &SharedLibrary, id: &str) {
    let mut state = shared.lock();
    let state = &mut *state;
    let Some(run) = state.runs.get_mut(id) else {
        return;
    };
    let Some(followed) = &mut run.followed else {
        return;
    };
    let FollowedRun {
        follower,
        history,
        at_end,
    } = followed;
    let progress = follower.read(SLICE_BYTES, &mut |t, event| history.apply(t, event));
    match progress {
        Ok(progress) => {
            *at_end = progress.at_end;
            if progress.restarted {
                **history = RunHistory::default();
            }
            run.summary.problem = None;
        }
        Err(error) => {
            // The file was removed or its rights were taken away: the read part stays visible.
            run.summary.problem = Some(format!("cannot read {EVENT_FILE}: {error}"));
            *at_end = true;
        }
    }
    if *at_end {
        run.summary.update(&history.view, run.seen, run.is_running);
    }
    run.summary.started_t = history.times.map(|times| times.0).or(run.summary.started_t);
    run.summary.damaged_lines = follower.damaged();
    let length = run.seen.map_or(0, |(_, length)| length);
    run.summary.read_share = match (*at_end, length) {
        (true, _) | (_, 0) => 1.0,
        (false, length) => (follower.offset() as f64 / length as f64).min(1.0),
    };
    state.version += 1;
    run.summary.version = state.version;
}

/// Returns the folders of runs by their names: the children that have an event file, or the folder itself.
fn run_folders(root: &Path) -> std::io::Result<BTreeMap<String, PathBuf>> {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    if root.join(EVENT_FILE).exists() {
        let path = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        return Ok(BTreeMap::from([(name(&path), root.to_owned())]));
    }
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        // An event file without rights is listed with its problem.
        if path.join(EVENT_FILE).symlink_metadata().is_ok() && found.len() < RUNS_MAX {
            found.insert(name(&path), path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
