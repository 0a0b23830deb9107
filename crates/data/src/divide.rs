//! [`divide`]: work on many files that threads, and processes that share a folder, divide among each other.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::DataError;
use crate::clock::{Stopwatch, pause};

/// How long is waited before locks of others are tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// The right to work on a file; it ends with the process at the latest.
pub(crate) struct Claim {
    lock: PathBuf,
    _file: File,
}

impl Claim {
    /// Takes the right that stands for `lock`, a file that is made; `None` while another process, or thread, has it.
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

impl Drop for Claim {
    fn drop(&mut self) {
        // Whoever waits for it looks for what was made first; a name that stays harms nobody.
        let _ = std::fs::remove_file(&self.lock);
    }
}

/// What went wrong with something that is kept.
pub(crate) fn failed(operation: &'static str, path: &Path, cause: std::io::Error) -> DataError {
    DataError::Index {
        operation,
        path: path.to_owned(),
        cause,
    }
}

/// What is to be done for each of some files.
pub(crate) trait Chore: Sync {
    /// What comes of a file.
    type Made: Send;

    /// What was kept of an earlier time.
    fn known(&self, number: usize) -> Option<Self::Made>;

    /// The right to do it: [`Claimed::Elsewhere`] while another process has it.
    fn claim(&self, number: usize) -> Claimed;

    /// How long another process that has the right is waited for.
    fn patience(&self, number: usize) -> Duration;

    /// Does it, and keeps what comes of it. Asks now and then whether all [`is_over`](Over::check).
    fn make(
        &self,
        number: usize,
        claim: Option<&Claim>,
        over: &Over<'_>,
    ) -> Result<Self::Made, DataError>;

    /// Is told what came of a file, and whether it was made here; may end all with an error.
    fn done(&self, number: usize, made: &Self::Made, is_made_here: bool) -> Result<(), DataError>;
}

/// Whether an error in another file has made work on this one useless.
pub(crate) struct Over<'a> {
    is_over: &'a AtomicBool,
    was_told: Cell<bool>,
}

impl Over<'_> {
    /// Goes on, or ends the work on the file at `location`.
    ///
    /// # Errors
    /// It is over; this error is told to nobody, the other file's is.
    pub(crate) fn check(&self, location: &str) -> Result<(), DataError> {
        if !self.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.was_told.set(true);
        Err(DataError::Format {
            file: location.to_owned(),
            problem: "work on it was ended by an error in another file".to_owned(),
        })
    }
}

/// What became of asking for a right.
pub(crate) enum Claimed {
    /// It is had.
    Here(Claim),
    /// Another process, or thread, has it.
    Elsewhere,
    /// There is no such right: nothing can be kept.
    Nowhere,
}

/// Does a chore for the files `0..count` on `threads` threads. What others have in hands comes last.
///
/// # Errors
/// The first one, in the order of the files as far as they were begun.
pub(crate) fn divide<C: Chore>(
    chore: &C,
    count: usize,
    threads: usize,
    name: &str,
) -> Result<Vec<C::Made>, DataError> {
    let work = Work {
        chore,
        is_over: AtomicBool::new(false),
        state: Mutex::new(State {
            pending: (0..count).map(|file| (file, None)).collect(),
            made: (0..count).map(|_| None).collect(),
            error: None,
        }),
    };
    std::thread::scope(|scope| {
        for number in 1..threads.clamp(1, count.max(1)) {
            let thread = std::thread::Builder::new().name(format!("ronde-{name}-{number}"));
            // With fewer threads it only takes longer.
            let _ = thread.spawn_scoped(scope, || work.run());
        }
        work.run();
    });
    let state = work.state.into_inner();
    let state = state.unwrap_or_else(PoisonError::into_inner);
    match state.error {
        Some((_, error)) => Err(error),
        None => {
            let made = state.made.into_iter();
            let made =
                made.map(|made| made.expect("all is done when nothing is left and nothing failed"));
            Ok(made.collect())
        }
    }
}

/// What is shared by the threads.
struct Work<'a, C: Chore> {
    chore: &'a C,
    is_over: AtomicBool,
    state: Mutex<State<C::Made>>,
}

struct State<T> {
    /// Numbers of files that nobody here works on; behind each how long others have had it.
    pending: VecDeque<(usize, Option<Stopwatch>)>,
    made: Vec<Option<T>>,
    /// With the number of its file, so that the first one is told.
    error: Option<(usize, DataError)>,
}

impl<C: Chore> Work<'_, C> {
    fn state(&self) -> MutexGuard<'_, State<C::Made>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let next = self.state().pending.pop_front();
            let Some((number, waited)) = next else { return };
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let is_tried_again = waited.is_some();
            match self.one(number, waited.as_ref()) {
                Ok(Some((made, is_made_here))) => self.done(number, made, is_made_here),
                Ok(None) => {
                    let waited = waited.unwrap_or_else(Stopwatch::start);
                    self.state().pending.push_back((number, Some(waited)));
                    if is_tried_again {
                        pause(PAUSE);
                    }
                }
                Err(error) => self.fail(number, error),
            }
        }
    }

    /// What comes of a file, and whether it was made here; `None` while another process has it in hands, and when
    /// all is over.
    fn one(
        &self,
        number: usize,
        waited: Option<&Stopwatch>,
    ) -> Result<Option<(C::Made, bool)>, DataError> {
        if let Some(made) = self.chore.known(number) {
            return Ok(Some((made, false)));
        }
        let make = |claim| {
            let over = Over {
                is_over: &self.is_over,
                was_told: Cell::new(false),
            };
            match self.chore.make(number, claim, &over) {
                Err(_) if over.was_told.get() => Ok(None),
                made => made.map(|made| Some((made, true))),
            }
        };
        match self.chore.claim(number) {
            Claimed::Here(claim) => match self.chore.known(number) {
                Some(made) => Ok(Some((made, false))),
                None => make(Some(&claim)),
            },
            Claimed::Elsewhere => {
                let patience = self.chore.patience(number);
                match waited.is_some_and(|waited| waited.elapsed() > patience) {
                    // Whoever has it hangs.
                    true => make(None),
                    false => Ok(None),
                }
            }
            Claimed::Nowhere => make(None),
        }
    }

    fn done(&self, number: usize, made: C::Made, is_made_here: bool) {
        match self.chore.done(number, &made, is_made_here) {
            Ok(()) => self.state().made[number] = Some(made),
            Err(error) => self.fail(number, error),
        }
    }

    fn fail(&self, number: usize, error: DataError) {
        let mut state = self.state();
        let earlier = state.error.as_ref();
        if earlier.is_none_or(|(first, _)| number < *first) {
            state.error = Some((number, error));
        }
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files: work on the first one goes on until it is told that all is over, the second one is bad.
    struct OneIsBad {
        is_begun: AtomicBool,
    }

    impl Chore for OneIsBad {
        type Made = ();

        fn known(&self, _: usize) -> Option<()> {
            None
        }

        fn claim(&self, _: usize) -> Claimed {
            Claimed::Nowhere
        }

        fn patience(&self, _: usize) -> Duration {
            Duration::ZERO
        }

        fn make(&self, number: usize, _: Option<&Claim>, over: &Over<'_>) -> Result<(), DataError> {
            if number == 0 {
                self.is_begun.store(true, Ordering::Relaxed);
                loop {
                    over.check("first")?;
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

        fn done(&self, _: usize, (): &(), _: bool) -> Result<(), DataError> {
            Ok(())
        }
    }

    #[test]
    fn the_error_is_that_of_the_bad_file_not_of_one_that_was_broken_off() {
        let chore = OneIsBad {
            is_begun: AtomicBool::new(false),
        };
        let error = divide(&chore, 2, 2, "test").unwrap_err();
        assert!(error.to_string().contains("second"), "{error}");
    }
}
