//! The saver's thread: hashes the parts of a copy and writes them as one object.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use ronde_store::{ObjectName, Store};

use crate::clock::Stopwatch;
use crate::{CheckpointError, Digest, PartRecord, SavedPart, SliceRecord};

/// Bytes that are written at once.
const WRITE_BYTES: usize = 4 << 20;

/// A copy to be written.
pub(crate) struct Job {
    pub(crate) name: ObjectName,
    /// What is known already; slices and times are filled in.
    pub(crate) part: SavedPart,
    pub(crate) pieces: Vec<Piece>,
    /// The slices one after the other.
    pub(crate) buffer: Vec<u8>,
}

/// A slice of the copy and how it is cut.
pub(crate) struct Piece {
    pub(crate) vector: String,
    pub(crate) start: u64,
    pub(crate) elements: u64,
    pub(crate) element_bytes: usize,
    pub(crate) parts: Vec<(Option<String>, u64)>,
}

/// What became of a job; the buffer comes back in any case.
pub(crate) struct Outcome {
    pub(crate) result: Result<SavedPart, CheckpointError>,
    pub(crate) buffer: Vec<u8>,
}

/// Takes jobs until nobody sends any.
pub(crate) fn serve(
    store: &dyn Store,
    jobs: &Receiver<Job>,
    outcomes: &SyncSender<Outcome>,
    give_up: &AtomicBool,
) {
    while let Ok(mut job) = jobs.recv() {
        let buffer = std::mem::take(&mut job.buffer);
        let result = write(store, job, &buffer, give_up);
        if outcomes.send(Outcome { result, buffer }).is_err() {
            return;
        }
    }
}

fn write(
    store: &dyn Store,
    job: Job,
    buffer: &[u8],
    give_up: &AtomicBool,
) -> Result<SavedPart, CheckpointError> {
    let mut part = job.part;
    let mut upload = store.create(&job.name)?;
    let mut rest = buffer;
    let mut offset = 0;
    let mut written = 0;
    for piece in job.pieces {
        let mut parts = Vec::with_capacity(piece.parts.len());
        let slice_offset = offset;
        for (tensor, elements) in piece.parts {
            if give_up.load(Ordering::Relaxed) {
                return Err(CheckpointError::Thread {
                    problem: "the saver was dropped".to_owned(),
                });
            }
            let (bytes, behind) = rest.split_at(elements as usize * piece.element_bytes);
            rest = behind;
            offset += bytes.len();
            let watch = Stopwatch::start();
            let blake3 = Digest::of(bytes);
            let hashed = watch.elapsed_s();
            // Small tensors go together.
            if offset - written >= WRITE_BYTES {
                upload.write(&buffer[written..offset])?;
                written = offset;
            }
            part.hashing_s += hashed;
            part.writing_s += watch.elapsed_s() - hashed;
            parts.push(PartRecord {
                tensor,
                elements,
                blake3,
            });
        }
        part.file.slices.push(SliceRecord {
            vector: piece.vector,
            start: piece.start,
            elements: piece.elements,
            offset: slice_offset as u64,
            parts,
        });
    }
    let watch = Stopwatch::start();
    upload.write(&buffer[written..])?;
    upload.publish()?;
    part.writing_s += watch.elapsed_s();
    part.file.name = job.name.to_string();
    Ok(part)
}
