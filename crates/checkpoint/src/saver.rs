//! [`Saver`]: one rank's side of a save; the caller is held up for the copy only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytemuck::cast_slice;
use ronde_core::{Rank, Step, WorldSize};
use ronde_store::Store;
use serde::{Deserialize, Serialize};

use crate::clock::Stopwatch;
use crate::vector::check_all;
use crate::writer::{Job, Outcome, Piece};
use crate::{CheckpointError, Fence, SliceFile, Vector, cutting, names, writer};

/// A run of a vector's elements in memory.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a> {
    /// Name of the vector.
    pub vector: &'a str,
    /// First element in the vector.
    pub start: u64,
    /// The elements, as they lie in memory.
    pub bytes: &'a [u8],
}

impl<'a> Slice<'a> {
    /// Elements `start..` of an f32 vector.
    #[must_use]
    pub fn f32(vector: &'a str, start: u64, values: &'a [f32]) -> Self {
        Self {
            vector,
            start,
            bytes: cast_slice(values),
        }
    }
}

/// What a rank saves.
#[derive(Debug, Clone, Copy)]
pub struct Save<'a> {
    /// Committed steps.
    pub step: Step,
    /// The authority.
    pub fence: Fence,
    /// Who saves.
    pub rank: Rank,
    /// Of how many.
    pub world_size: WorldSize,
    /// All vectors of the state, the same on all ranks.
    pub vectors: &'a [Vector],
    /// This rank's slices. Those of all ranks cover every vector once.
    pub slices: &'a [Slice<'a>],
}

/// What holding up the caller cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Copied {
    /// Bytes copied.
    pub bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
}

/// One rank's file, written and durable. Small; it goes to the rank that publishes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPart {
    /// Committed steps.
    pub step: Step,
    /// The authority.
    pub fence: Fence,
    /// Who saved.
    pub rank: Rank,
    /// Of how many.
    pub world_size: WorldSize,
    /// The file and what is in it.
    pub file: SliceFile,
    /// Seconds of hashing.
    pub hashing_s: f64,
    /// Seconds of writing, encryption included.
    pub writing_s: f64,
}

impl SavedPart {
    /// As bytes for other ranks: JSON, about 150 bytes for each part of a slice.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] when a number cannot be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        serde_json::to_vec(self)
            .map_err(|error| CheckpointError::invalid("saved part", error.to_string()))
    }

    /// From another rank's bytes.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`], saying where they cannot be read.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CheckpointError> {
        serde_json::from_slice(bytes)
            .map_err(|error| CheckpointError::invalid("saved part", error.to_string()))
    }
}

/// Copies slices and has a thread hash and write them. One save at a time.
///
/// Memory: one copy of the rank's slices, kept for the next save. Dropping it gives up a save under way, after the write
/// that the thread is in; nothing of it is visible then.
#[derive(Debug)]
pub struct Saver {
    jobs: Option<SyncSender<Job>>,
    outcomes: Receiver<Outcome>,
    reserved: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<()>>,
    give_up: Arc<AtomicBool>,
    buffer: Vec<u8>,
    under_way: Option<Step>,
}

impl Saver {
    /// Starts the thread `ronde-checkpoint`, which writes to `store`. It first makes memory for `reserve_bytes` of slices
    /// ready, so that the first copy is as fast as the later ones; 0 leaves that to the first copy.
    ///
    /// # Errors
    /// [`CheckpointError::Thread`].
    pub fn start(store: Arc<dyn Store>, reserve_bytes: usize) -> Result<Self, CheckpointError> {
        let (jobs, accepted) = mpsc::sync_channel(1);
        let (done, outcomes) = mpsc::sync_channel(1);
        let (ready, reserved) = mpsc::sync_channel(1);
        let give_up = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&give_up);
        let thread = std::thread::Builder::new()
            .name("ronde-checkpoint".to_owned())
            .spawn(move || {
                // Written to, so that its pages are there.
                let _ = ready.send(vec![1; reserve_bytes]);
                writer::serve(&*store, &accepted, &done, &told);
            })
            .map_err(|error| CheckpointError::Thread {
                problem: error.to_string(),
            })?;
        Ok(Self {
            jobs: Some(jobs),
            outcomes,
            reserved,
            thread: Some(thread),
            give_up,
            buffer: Vec::new(),
            under_way: None,
        })
    }

    /// The step that is being saved, if any.
    #[must_use]
    pub fn under_way(&self) -> Option<Step> {
        self.under_way
    }

    /// Copies the slices and returns; hashing and writing go on behind.
    ///
    /// # Errors
    /// [`CheckpointError::Busy`] while an earlier save has not been waited for; [`CheckpointError::Invalid`] when a slice
    /// does not fit its vector, or the rank the world.
    pub fn begin(&mut self, save: &Save<'_>) -> Result<Copied, CheckpointError> {
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
        if let Ok(reserved) = self.reserved.try_recv() {
            buffer = reserved;
        }
        buffer.clear();
        buffer.reserve(save.slices.iter().map(|slice| slice.bytes.len()).sum());
        for slice in save.slices {
            buffer.extend_from_slice(slice.bytes);
        }
        let copied = Copied {
            bytes: buffer.len() as u64,
            seconds: watch.elapsed_s(),
        };
        let job = Job {
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

    /// How the save under way ended, if it has; never blocks.
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

    /// Waits for the end of the save under way, for `limit` at most.
    ///
    /// # Errors
    /// [`CheckpointError::Timeout`], after which it may be waited for again; [`CheckpointError::Invalid`] when no save is
    /// under way; what kept the file from being written.
    pub fn wait(&mut self, limit: Duration) -> Result<SavedPart, CheckpointError> {
        let Some(step) = self.under_way else {
            return Err(CheckpointError::invalid("wait", "no save is under way"));
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

    fn take(&mut self, outcome: Outcome) -> Result<SavedPart, CheckpointError> {
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
            // A panic of the thread was told as a lost channel, or nobody asked.
            let _ = thread.join();
        }
    }
}

fn ended() -> CheckpointError {
    CheckpointError::Thread {
        problem: "it has ended".to_owned(),
    }
}

/// Checks the slices of a save and cuts them.
fn pieces(save: &Save<'_>) -> Result<Vec<Piece>, CheckpointError> {
    check_all(save.vectors).map_err(|problem| CheckpointError::invalid("vectors", problem))?;
    if save.rank.0 >= save.world_size.get() {
        return Err(CheckpointError::invalid(
            format!("rank {}", save.rank),
            format!("there are {} ranks", save.world_size.get()),
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
                .ok_or_else(|| CheckpointError::invalid(what(), "there is no such vector"))?;
            let size = vector.dtype.size();
            let elements = (slice.bytes.len() / size) as u64;
            let end = slice.start.checked_add(elements);
            if slice.bytes.len() % size != 0 || end.is_none_or(|end| end > vector.elements) {
                return Err(CheckpointError::invalid(
                    what(),
                    format!(
                        "{} bytes from element {} do not fit {} elements of {}",
                        slice.bytes.len(),
                        slice.start,
                        vector.elements,
                        vector.dtype
                    ),
                ));
            }
            Ok(Piece {
                vector: slice.vector.to_owned(),
                start: slice.start,
                elements,
                element_bytes: size,
                parts: cutting::parts(vector, slice.start, elements),
            })
        })
        .collect()
}
