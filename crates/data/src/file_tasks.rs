//! [`run_file_tasks`]: runs one task per file, divided among threads and among processes that share a folder.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_clock::{Stopwatch, pause};

use crate::error::DataError;

/// The delay before trying again to lock files that other processes have locked.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// An exclusive claim on a file's task. The operating system releases it when the process ends.
pub(crate) struct TaskClaim {
    lock: PathBuf,
    _file: File,
}

impl TaskClaim {
    /// Takes the claim by creating and locking the file `lock`; returns `None` while another process or thread has it.
    pub(crate) fn take(lock: PathBuf) -> Result<Option<Self>, DataError> {
        let failed = |cause| failed("lock", &lock, cause);
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true);
        let file = options.open(&lock).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { lock, _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(cause)) => Err(failed(cause)),
        }
    }
}

impl Drop for TaskClaim {
    fn drop(&mut self) {
        // A waiting process looks for the output first, so a lock file that cannot be removed does no harm.
        let _ = std::fs::remove_file(&self.lock);
    }
}

/// Returns the error of a failed operation on a stored index or token file.
pub(crate) fn failed(operation: &'static str, path: &Path, cause: std::io::Error) -> DataError {
    DataError::Index {
        operation,
        path: path.to_owned(),
        cause,
    }
}

/// A task that runs once for each of several files.
pub(crate) trait FileTask: Sync {
    /// The output for one file.
    type Output: Send;

    /// Returns the stored output of an earlier run, if any.
    fn stored(&self, number: usize) -> Option<Self::Output>;

    /// Claims the task; [`ClaimOutcome::Busy`] while another process has it.
    fn claim(&self, number: usize) -> ClaimOutcome;

    /// Returns how long to wait for another process that has claimed the task.
    fn wait_limit(&self, number: usize) -> Duration;

    /// Runs the task and stores its output. Calls [`Cancellation::check`] from time to time.
    fn run(
        &self,
        number: usize,
        claim: Option<&TaskClaim>,
        cancellation: &Cancellation<'_>,
    ) -> Result<Self::Output, DataError>;

    /// Receives the output of a file and whether it was computed here. An error cancels the remaining tasks.
    fn finished(
        &self,
        number: usize,
        output: &Self::Output,
        is_computed_here: bool,
    ) -> Result<(), DataError>;
}

/// The cancellation state of a task: set when the task of another file fails.
pub(crate) struct Cancellation<'a> {
    is_cancelled: &'a AtomicBool,
    was_reported: Cell<bool>,
}

impl Cancellation<'_> {
    /// Returns an error when the task of the file at `location` is cancelled.
    ///
    /// # Errors
    /// The task is cancelled. [`run_file_tasks`] drops this error and returns that of the other file.
    pub(crate) fn check(&self, location: &str) -> Result<(), DataError> {
        if !self.is_cancelled.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.was_reported.set(true);
        Err(DataError::format(
            location,
            "cancelled because of an error in another file",
        ))
    }
}

/// The result of an attempt to claim a task.
pub(crate) enum ClaimOutcome {
    /// The claim was taken.
    Claimed(TaskClaim),
    /// Another process or thread has it.
    Busy,
    /// Claims are unavailable, because outputs cannot be stored.
    Unavailable,
}

/// Runs a task for the files `0..count` on `threads` threads. Tasks that other processes have claimed are last.
///
/// # Errors
/// The error of the file with the lowest number among those that were started.
pub(crate) fn run_file_tasks<T: FileTask>(
    task: &T,
    count: usize,
    threads: usize,
    name: &str,
) -> Result<Vec<T::Output>, DataError> {
    let runner = TaskRunner {
        task,
        is_cancelled: AtomicBool::new(false),
        state: Mutex::new(RunnerState {
            pending: (0..count).map(|file| (file, None)).collect(),
            outputs: (0..count).map(|_| None).collect(),
            error: None,
        }),
    };
    std::thread::scope(|scope| {
        for number in 1..threads.clamp(1, count.max(1)) {
            let thread = std::thread::Builder::new().name(format!("ronde-{name}-{number}"));
            // A thread that cannot be started only makes the run slower.
            let _ = thread.spawn_scoped(scope, || runner.run());
        }
        runner.run();
    });
    let state = runner.state.into_inner();
    let state = state.unwrap_or_else(PoisonError::into_inner);
    match state.error {
        Some((_, error)) => Err(error),
        None => {
            let outputs = state.outputs.into_iter();
            let outputs = outputs.map(|output| {
                output.expect("every task has an output when none is pending or failed")
            });
            Ok(outputs.collect())
        }
    }
}

/// The state shared by the threads of [`run_file_tasks`].
struct TaskRunner<'a, T: FileTask> {
    task: &'a T,
    is_cancelled: AtomicBool,
    state: Mutex<RunnerState<T::Output>>,
}

struct RunnerState<O> {
    /// The numbers of files that no thread here works on, each with the time since another process was found to work on it.
    pending: VecDeque<(usize, Option<Stopwatch>)>,
    outputs: Vec<Option<O>>,
    /// The first error with the number of its file.
    error: Option<(usize, DataError)>,
}

impl<T: FileTask> TaskRunner<'_, T> {
    fn state(&self) -> MutexGuard<'_, RunnerState<T::Output>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let next = self.state().pending.pop_front();
            let Some((number, waited)) = next else { return };
            if self.is_cancelled.load(Ordering::Relaxed) {
                return;
            }
            let is_tried_again = waited.is_some();
            match self.run_one(number, waited.as_ref()) {
                Ok(Some((output, is_computed_here))) => {
                    self.finish(number, output, is_computed_here);
                }
                Ok(None) => {
                    let waited = waited.unwrap_or_else(Stopwatch::start);
                    self.state().pending.push_back((number, Some(waited)));
                    if is_tried_again {
                        pause(RETRY_DELAY);
                    }
                }
                Err(error) => self.fail(number, error),
            }
        }
    }

    /// Returns the output of a file and whether it was computed here; `None` while another process works on it, and when
    /// the task is cancelled.
    fn run_one(
        &self,
        number: usize,
        waited: Option<&Stopwatch>,
    ) -> Result<Option<(T::Output, bool)>, DataError> {
        if let Some(output) = self.task.stored(number) {
            return Ok(Some((output, false)));
        }
        let run = |claim| {
            let cancellation = Cancellation {
                is_cancelled: &self.is_cancelled,
                was_reported: Cell::new(false),
            };
            match self.task.run(number, claim, &cancellation) {
                Err(_) if cancellation.was_reported.get() => Ok(None),
                output => output.map(|output| Some((output, true))),
            }
        };
        match self.task.claim(number) {
            ClaimOutcome::Claimed(claim) => match self.task.stored(number) {
                Some(output) => Ok(Some((output, false))),
                None => run(Some(&claim)),
            },
            ClaimOutcome::Busy => {
                let limit = self.task.wait_limit(number);
                match waited.is_some_and(|waited| waited.elapsed() > limit) {
                    // The process that has the claim hangs.
                    true => run(None),
                    false => Ok(None),
                }
            }
            ClaimOutcome::Unavailable => run(None),
        }
    }

    fn finish(&self, number: usize, output: T::Output, is_computed_here: bool) {
        match self.task.finished(number, &output, is_computed_here) {
            Ok(()) => self.state().outputs[number] = Some(output),
            Err(error) => self.fail(number, error),
        }
    }

    fn fail(&self, number: usize, error: DataError) {
        let mut state = self.state();
        let earlier = state.error.as_ref();
        if earlier.is_none_or(|(first, _)| number < *first) {
            state.error = Some((number, error));
        }
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files: the task of the first one runs until it is cancelled, that of the second one fails.
    struct SecondFileFails {
        is_begun: AtomicBool,
    }

    impl FileTask for SecondFileFails {
        type Output = ();

        fn stored(&self, _: usize) -> Option<()> {
            None
        }

        fn claim(&self, _: usize) -> ClaimOutcome {
            ClaimOutcome::Unavailable
        }

        fn wait_limit(&self, _: usize) -> Duration {
            Duration::ZERO
        }

        fn run(
            &self,
            number: usize,
            _: Option<&TaskClaim>,
            cancellation: &Cancellation<'_>,
        ) -> Result<(), DataError> {
            if number == 0 {
                self.is_begun.store(true, Ordering::Relaxed);
                loop {
                    cancellation.check("first")?;
                    std::thread::yield_now();
                }
            }
            while !self.is_begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Err(DataError::Format {
                file: "second".to_owned(),
                problem: "it is bad".to_owned(),
            })
        }

        fn finished(&self, _: usize, (): &(), _: bool) -> Result<(), DataError> {
            Ok(())
        }
    }

    #[test]
    fn the_error_of_the_failed_file_is_returned_not_that_of_a_cancelled_one() {
        let task = SecondFileFails {
            is_begun: AtomicBool::new(false),
        };
        let error = run_file_tasks(&task, 2, 2, "test").unwrap_err();
        assert!(error.to_string().contains("second"), "{error}");
    }
}
