//! The saver's thread: hashes the parts of the copied slices and writes them as one object.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use ronde_clock::Stopwatch;
use ronde_core::background_spans::BackgroundSpans;
use ronde_core::spans::SpanKind;
use ronde_store::{ObjectName, Store};

use crate::error::{CheckpointError, ThreadFailure};
use crate::manifest::{Digest, PartRecord, SliceRecord};
use crate::saved_part::SavedPart;

/// The bytes of one write.
const WRITE_BYTES: usize = 4 << 20;

/// A copy of slices to write.
pub(crate) struct WriteTask {
    pub(crate) name: ObjectName,
    /// The result so far; slices and times are filled in while writing.
    pub(crate) part: SavedPart,
    pub(crate) pieces: Vec<CopiedSlice>,
    /// The concatenated slices.
    pub(crate) buffer: Vec<u8>,
}

/// A copied slice and its parts.
pub(crate) struct CopiedSlice {
    pub(crate) vector: String,
    pub(crate) start: u64,
    pub(crate) elements: u64,
    pub(crate) element_bytes: usize,
    pub(crate) parts: Vec<(Option<String>, u64)>,
}

/// The result of a write; the buffer is returned in any case.
pub(crate) struct WriteResult {
    pub(crate) result: Result<SavedPart, CheckpointError>,
    pub(crate) buffer: Vec<u8>,
}

/// Writes tasks until the channel closes.
pub(crate) fn serve(
    store: &dyn Store,
    (jobs, outcomes): (&Receiver<WriteTask>, &SyncSender<WriteResult>),
    give_up: &AtomicBool,
    spans: &BackgroundSpans,
) {
    while let Ok(mut job) = jobs.recv() {
        let buffer = std::mem::take(&mut job.buffer);
        let (span, step) = (spans.begin(), job.part.step);
        let result = write(store, job, &buffer, give_up);
        spans.end(span, SpanKind::WriteCheckpoint, 0, step.0);
        if outcomes.send(WriteResult { result, buffer }).is_err() {
            return;
        }
    }
}

fn write(
    store: &dyn Store,
    job: WriteTask,
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
                    cause: ThreadFailure::Dropped,
                });
            }
            let (bytes, behind) = rest.split_at(elements as usize * piece.element_bytes);
            rest = behind;
            offset += bytes.len();
            let watch = Stopwatch::start();
            let blake3 = Digest::of(bytes);
            let hashed = watch.elapsed_s();
            // Small tensors are written together.
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
