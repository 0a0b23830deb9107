//! [`Saver`]: saves one rank's slices; it blocks the caller only while copying them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytemuck::cast_slice;
use ronde_clock::Stopwatch;
use ronde_core::background_spans::BackgroundSpans;
use ronde_core::{Rank, Step, WorldSize};
use ronde_store::Store;

use crate::error::{CheckpointError, ThreadFailure};
use crate::fence::Fence;
use crate::manifest::SliceFile;
use crate::saved_part::SavedPart;
use crate::vector::StateVector;
use crate::vector::check_all;
use crate::writer::{CopiedSlice, WriteResult, WriteTask};
use crate::{cutting, names, writer};

/// A contiguous range of a vector's elements in memory.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a> {
    /// The name of the vector.
    pub vector: &'a str,
    /// The first element in the vector.
    pub start: u64,
    /// The elements' bytes in memory order.
    pub bytes: &'a [u8],
}

impl<'a> Slice<'a> {
    /// Returns a slice of an f32 vector that begins at element `start`.
    #[must_use]
    pub fn f32(vector: &'a str, start: u64, values: &'a [f32]) -> Self {
        Self {
            vector,
            start,
            bytes: cast_slice(values),
        }
    }
}

/// One rank's part of a save.
#[derive(Debug, Clone, Copy)]
pub struct SaveRequest<'a> {
    /// The number of committed steps.
    pub step: Step,
    /// The fence.
    pub fence: Fence,
    /// The rank that saves.
    pub rank: Rank,
    /// The number of ranks.
    pub world_size: WorldSize,
    /// All vectors of the state, the same on all ranks.
    pub vectors: &'a [StateVector],
    /// This rank's slices. The slices of all ranks cover every vector exactly once.
    pub slices: &'a [Slice<'a>],
}

/// The cost of copying slices, during which the caller was blocked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyCost {
    /// The copied bytes.
    pub bytes: u64,
    /// The duration in seconds.
    pub seconds: f64,
}

/// Copies slices, and hashes and writes them in a thread. Runs one save at a time.
///
/// Memory: one copy of the rank's slices, reused by the next save. Dropping the saver aborts a running save after the
/// current write; no object of an aborted save becomes visible.
#[derive(Debug)]
pub struct Saver {
    jobs: Option<SyncSender<WriteTask>>,
    outcomes: Receiver<WriteResult>,
    /// The memory that the thread allocates, until the first save takes it.
    reserved: Option<Receiver<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    give_up: Arc<AtomicBool>,
    buffer: Vec<u8>,
    under_way: Option<Step>,
}

impl Saver {
    /// Starts the thread `ronde-checkpoint`, which writes to `store`. The thread first allocates memory for `reserve_bytes` of
    /// slices, so that the first copy is as fast as later ones; 0 allocates it at the first copy, which waits until the thread has
    /// allocated.
    ///
    /// # Errors
    /// [`CheckpointError::Thread`].
    pub fn start(store: Arc<dyn Store>, reserve_bytes: usize) -> Result<Self, CheckpointError> {
        Self::start_recorded(store, reserve_bytes, Arc::new(BackgroundSpans::off()))
    }

    /// Starts the thread, and records its saves in `spans`.
    ///
    /// # Errors
    /// As [`Saver::start`].
    pub fn start_recorded(
        store: Arc<dyn Store>,
        reserve_bytes: usize,
        spans: Arc<BackgroundSpans>,
    ) -> Result<Self, CheckpointError> {
        let (jobs, accepted) = mpsc::sync_channel(1);
        let (done, outcomes) = mpsc::sync_channel(1);
        let (ready, reserved) = mpsc::sync_channel(1);
        let give_up = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&give_up);
        let thread = std::thread::Builder::new()
            .name("ronde-checkpoint".to_owned())
            .spawn(move || {
                // Filled with ones, so that the pages are mapped.
                let _ = ready.send(vec![1; reserve_bytes]);
                writer::serve(&*store, (&accepted, &done), &told, &spans);
            })
            .map_err(|error| CheckpointError::Thread {
                cause: ThreadFailure::Start(error),
            })?;
        Ok(Self {
            jobs: Some(jobs),
            outcomes,
            reserved: Some(reserved),
            thread: Some(thread),
            give_up,
            buffer: Vec::new(),
            under_way: None,
        })
    }

    /// Returns the step that is being saved, if any.
    #[must_use]
    pub fn under_way(&self) -> Option<Step> {
        self.under_way
    }

    /// Copies the slices and returns; hashing and writing continue in the background.
    ///
    /// # Errors
    /// [`CheckpointError::Busy`] while an earlier save has not been waited for; [`CheckpointError::Invalid`] when a slice
    /// does not fit its vector, or the rank the world.
    pub fn begin(&mut self, save: &SaveRequest<'_>) -> Result<CopyCost, CheckpointError> {
        if let Some(step) = self.under_way {
            return Err(CheckpointError::Busy { step });
        }
        let watch = Stopwatch::start();
        let pieces = pieces(save)?;
        let name = names::slice(
            save.step,
            save.fence,
            save.rank,
            save.world_size,
            &names::attempt(),
        )?;
        let mut buffer = std::mem::take(&mut self.buffer);
        // Waiting for the rest of the allocation takes no longer than a second one, and no more memory.
        if let Some(reserved) = self.reserved.take() {
            buffer = reserved.recv().unwrap_or_default();
        }
        buffer.clear();
        let needed = save.slices.iter().map(|slice| slice.bytes.len()).sum();
        if buffer.capacity() < needed {
            // Freed first, so that memory never holds two copies.
            drop(std::mem::take(&mut buffer));
            buffer.reserve_exact(needed);
        }
        for slice in save.slices {
            buffer.extend_from_slice(slice.bytes);
        }
        let copied = CopyCost {
            bytes: buffer.len() as u64,
            seconds: watch.elapsed_s(),
        };
        let job = WriteTask {
            name,
            part: SavedPart {
                step: save.step,
                fence: save.fence,
                rank: save.rank,
                world_size: save.world_size,
                file: SliceFile {
                    name: String::new(),
                    rank: save.rank.0,
                    bytes: copied.bytes,
                    slices: Vec::new(),
                },
                hashing_s: 0.0,
                writing_s: 0.0,
            },
            pieces,
            buffer,
        };
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            return Err(ended());
        }
        self.under_way = Some(save.step);
        Ok(copied)
    }

    /// Returns the result of the running save if it has ended; never blocks.
    pub fn poll(&mut self) -> Option<Result<SavedPart, CheckpointError>> {
        self.under_way?;
        match self.outcomes.try_recv() {
            Ok(outcome) => Some(self.take(outcome)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.under_way = None;
                Some(Err(ended()))
            }
        }
    }

    /// Waits at most `limit` for the end of the running save.
    ///
    /// # Errors
    /// [`CheckpointError::Timeout`], after which the caller may wait again; [`CheckpointError::Invalid`] when no save is
    /// running; the error of the save.
    pub fn wait(&mut self, limit: Duration) -> Result<SavedPart, CheckpointError> {
        let Some(step) = self.under_way else {
            return Err(CheckpointError::invalid("wait", "no save is running"));
        };
        match self.outcomes.recv_timeout(limit) {
            Ok(outcome) => self.take(outcome),
            Err(RecvTimeoutError::Timeout) => Err(CheckpointError::Timeout {
                step,
                limit_s: limit.as_secs_f64(),
            }),
            Err(RecvTimeoutError::Disconnected) => {
                self.under_way = None;
                Err(ended())
            }
        }
    }

    fn take(&mut self, outcome: WriteResult) -> Result<SavedPart, CheckpointError> {
        self.under_way = None;
        self.buffer = outcome.buffer;
        outcome.result
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.give_up.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported as a closed channel if a caller was waiting.
            let _ = thread.join();
        }
    }
}

fn ended() -> CheckpointError {
    CheckpointError::Thread {
        cause: ThreadFailure::Ended,
    }
}

/// Checks the slices of a save and splits them into parts.
fn pieces(save: &SaveRequest<'_>) -> Result<Vec<CopiedSlice>, CheckpointError> {
    check_all(save.vectors).map_err(|problem| CheckpointError::invalid("vectors", problem))?;
    if save.rank.0 >= save.world_size.get() {
        return Err(CheckpointError::invalid(
            format!("rank {}", save.rank),
            format!("the world size is {}", save.world_size.get()),
        ));
    }
    save.slices
        .iter()
        .map(|slice| {
            let what = || format!("slice of vector {}", slice.vector);
            let vector = save
                .vectors
                .iter()
                .find(|vector| vector.name == slice.vector)
                .ok_or_else(|| CheckpointError::invalid(what(), "no such vector"))?;
            let size = vector.dtype.size();
            let elements = (slice.bytes.len() / size) as u64;
            let end = slice.start.checked_add(elements);
            if slice.bytes.len() % size != 0 || end.is_none_or(|end| end > vector.elements) {
                return Err(CheckpointError::invalid(
                    what(),
                    format!(
                        "{} bytes from element {} do not fit {} elements of type {}",
                        slice.bytes.len(),
                        slice.start,
                        vector.elements,
                        vector.dtype
                    ),
                ));
            }
            Ok(CopiedSlice {
                vector: slice.vector.to_owned(),
                start: slice.start,
                elements,
                element_bytes: size,
                parts: cutting::parts(vector, slice.start, elements),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use ronde_store::LocalStore;

    use super::*;

    #[test]
    fn a_first_save_uses_the_memory_that_is_still_being_allocated() {
        const RESERVED: usize = 64 << 20;
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(LocalStore::new(folder.path()));
        let mut saver = Saver::start(store, RESERVED).unwrap();
        for step in [1, 2] {
            let save = SaveRequest {
                step: Step(step),
                fence: Fence::default(),
                rank: Rank(0),
                world_size: WorldSize::ONE,
                vectors: &[],
                slices: &[],
            };
            saver.begin(&save).unwrap();
            saver.wait(Duration::from_secs(60)).unwrap();
            assert!(saver.buffer.capacity() >= RESERVED);
        }
    }
}
