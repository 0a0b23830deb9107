//! Reads and verifies slices in batches of parts with several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ronde_store::{ObjectName, Store, StoreError, StoredObject};

use crate::cutting::PART_BYTES_MAX;
use crate::error::{CheckpointError, ThreadFailure};
use crate::manifest::{Digest, Manifest, PartRecord, SliceFile};

/// Consecutive parts of a slice that are read together.
pub(crate) struct PartBatch<'m> {
    pub(crate) file: usize,
    pub(crate) vector: &'m str,
    /// The first byte in the file.
    pub(crate) offset: u64,
    /// The first element in the vector.
    pub(crate) start: u64,
    pub(crate) elements: u64,
    element_bytes: u64,
    parts: &'m [PartRecord],
}

impl PartBatch<'_> {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.elements
    }
}

/// The destination of a batch.
pub(crate) enum ReadTarget<'d> {
    /// No destination: the batch is only verified.
    Nowhere,
    /// The memory for the whole batch.
    Whole(&'d mut [u8]),
    /// The memory for the bytes of the batch that start at `from`.
    Piece { from: usize, into: &'d mut [u8] },
}

/// Returns all batches of a manifest's slices in the order of files.
pub(crate) fn batches(manifest: &Manifest) -> Vec<PartBatch<'_>> {
    let mut batches = Vec::new();
    for (file, record) in manifest.files.iter().enumerate() {
        for slice in &record.slices {
            let Some(vector) = manifest.vectors.iter().find(|v| v.name == slice.vector) else {
                continue;
            };
            let element_bytes = vector.dtype.size() as u64;
            let (mut offset, mut start, mut rest) = (slice.offset, slice.start, &slice.parts[..]);
            while !rest.is_empty() {
                let mut elements = 0;
                let count = rest
                    .iter()
                    .take_while(|part| {
                        let fits = elements == 0
                            || (elements + part.elements) * element_bytes <= PART_BYTES_MAX;
                        elements += if fits { part.elements } else { 0 };
                        fits
                    })
                    .count();
                let (parts, later) = rest.split_at(count);
                batches.push(PartBatch {
                    file,
                    vector: &slice.vector,
                    offset,
                    start,
                    elements,
                    element_bytes,
                    parts,
                });
                offset += elements * element_bytes;
                start += elements;
                rest = later;
            }
        }
    }
    batches
}

/// Reads and verifies batches. Returns all damage in the order of the batches, or only the damage that was found first.
///
/// # Errors
/// Errors other than damage.
pub(crate) fn read(
    store: &dyn Store,
    manifest: &Manifest,
    work: Vec<(PartBatch<'_>, ReadTarget<'_>)>,
    threads: usize,
    stop_at_damage: bool,
) -> Result<Vec<CheckpointError>, CheckpointError> {
    let mut damage = Vec::new();
    let objects = open_used(store, manifest, &work, &mut damage)?;
    let threads = threads.clamp(1, work.len().max(1));
    let queue = Mutex::new(work.into_iter().enumerate());
    let found = Mutex::new(damage);
    let stop = AtomicBool::new(false);
    let worker = || -> Result<(), CheckpointError> {
        let mut scratch = Vec::new();
        loop {
            let next = queue.lock().map_or(None, |mut queue| queue.next());
            let Some((index, (batch, target))) = next else {
                return Ok(());
            };
            let Some(object) = &objects[batch.file] else {
                continue;
            };
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let file = &manifest.files[batch.file];
            let result = read_batch(&**object, file, &batch, target, &mut scratch);
            if result
                .as_ref()
                .map_or(true, |new| !new.is_empty() && stop_at_damage)
            {
                stop.store(true, Ordering::Relaxed);
            }
            let new = result?.into_iter().map(|damage| (index, damage));
            if let Ok(mut found) = found.lock() {
                found.extend(new);
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mine = worker();
        others.into_iter().fold(mine, |result, other| {
            let theirs = other.join().unwrap_or(Err(CheckpointError::Thread {
                cause: ThreadFailure::Panicked,
            }));
            result.and(theirs)
        })
    })?;
    let mut found = found
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, error)| error).collect())
}

type OpenSliceFile = Option<Box<dyn StoredObject>>;

/// Opens the files that the work needs; unusable ones are left out and reported as damage.
fn open_used(
    store: &dyn Store,
    manifest: &Manifest,
    work: &[(PartBatch<'_>, ReadTarget<'_>)],
    damage: &mut Vec<(usize, CheckpointError)>,
) -> Result<Vec<OpenSliceFile>, CheckpointError> {
    let mut used = vec![false; manifest.files.len()];
    for (batch, _) in work {
        used[batch.file] = true;
    }
    let files = manifest.files.iter().zip(used);
    files
        .map(|(file, is_used)| {
            if !is_used {
                return Ok(None);
            }
            match open(store, file) {
                Err(error) if error.is_damage() => {
                    damage.push((0, error));
                    Ok(None)
                }
                other => other.map(Some),
            }
        })
        .collect()
}

fn open(store: &dyn Store, file: &SliceFile) -> Result<Box<dyn StoredObject>, CheckpointError> {
    let object = match store.open(&ObjectName::new(&file.name)?) {
        Err(error) if error.is_not_found() => {
            return Err(CheckpointError::damaged(&file.name, "the file is missing"));
        }
        other => other?,
    };
    if object.bytes() != file.bytes {
        return Err(CheckpointError::damaged(
            &file.name,
            format!("expected {} bytes, found {}", file.bytes, object.bytes()),
        ));
    }
    Ok(object)
}

/// Reads a batch to its destination and returns its damage.
fn read_batch(
    object: &dyn StoredObject,
    file: &SliceFile,
    batch: &PartBatch<'_>,
    target: ReadTarget<'_>,
    scratch: &mut Vec<u8>,
) -> Result<Vec<CheckpointError>, CheckpointError> {
    let get = |into: &mut [u8]| match object.read_at(batch.offset, into) {
        Ok(()) => Ok(damage(into, file, batch)),
        Err(StoreError::Damaged { problem, .. }) => Ok(vec![unreadable(problem, file, batch)]),
        Err(error) => Err(error.into()),
    };
    if let ReadTarget::Whole(into) = target {
        return get(into);
    }
    scratch.resize((batch.elements * batch.element_bytes) as usize, 0);
    let damage = get(scratch)?;
    if let ReadTarget::Piece { from, into } = target {
        into.copy_from_slice(&scratch[from..from + into.len()]);
    }
    Ok(damage)
}

/// Returns an error for each part whose digest differs.
fn damage(bytes: &[u8], file: &SliceFile, batch: &PartBatch<'_>) -> Vec<CheckpointError> {
    let mut rest = bytes;
    let mut damage = Vec::new();
    for part in batch.parts {
        let (mine, later) = rest.split_at((part.elements * batch.element_bytes) as usize);
        rest = later;
        let found = Digest::of(mine);
        if found != part.blake3 {
            damage.push(CheckpointError::Damaged {
                file: file.name.clone(),
                tensor: Some(tensor(part.tensor.as_deref(), batch.vector)),
                problem: format!("its blake3 is {found}, but {} was saved", part.blake3),
            });
        }
    }
    damage
}

/// Returns damage that the store reported, with the tensors that it may affect.
fn unreadable(problem: String, file: &SliceFile, batch: &PartBatch<'_>) -> CheckpointError {
    let first = batch.parts.first().and_then(|part| part.tensor.as_deref());
    let last = batch.parts.last().and_then(|part| part.tensor.as_deref());
    let tensor = if first == last {
        tensor(first, batch.vector)
    } else {
        let name = |tensor: Option<&str>| tensor.unwrap_or("its start").to_owned();
        format!("{} to {} of {}", name(first), name(last), batch.vector)
    };
    CheckpointError::Damaged {
        file: file.name.clone(),
        tensor: Some(tensor),
        problem,
    }
}

fn tensor(tensor: Option<&str>, vector: &str) -> String {
    tensor.map_or_else(
        || vector.to_owned(),
        |tensor| format!("{tensor} of {vector}"),
    )
}
