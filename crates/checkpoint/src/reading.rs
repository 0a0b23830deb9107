//! Reading slices in batches of parts, each part verified, by several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ronde_store::{ObjectName, Store, StoreError, StoredObject};

use crate::cutting::PART_BYTES_MAX;
use crate::{CheckpointError, Digest, Manifest, PartRecord, SliceFile};

/// Consecutive parts of a slice that are read at once.
pub(crate) struct Batch<'m> {
    pub(crate) file: usize,
    pub(crate) vector: &'m str,
    /// First byte in the file.
    pub(crate) offset: u64,
    /// First element in the vector.
    pub(crate) start: u64,
    pub(crate) elements: u64,
    element_bytes: u64,
    parts: &'m [PartRecord],
}

impl Batch<'_> {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.elements
    }
}

/// Where a batch goes.
pub(crate) enum Target<'d> {
    /// Nowhere: it is verified only.
    Nowhere,
    /// All of it.
    Whole(&'d mut [u8]),
    /// What lies from byte `from` on.
    Piece { from: usize, into: &'d mut [u8] },
}

/// All batches of a manifest's slices, in the order of files.
pub(crate) fn batches(manifest: &Manifest) -> Vec<Batch<'_>> {
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
                batches.push(Batch {
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

/// Reads and verifies batches; gives all damage in the order of the batches, or only what the first thread met.
///
/// # Errors
/// What is not damage.
pub(crate) fn read(
    store: &dyn Store,
    manifest: &Manifest,
    work: Vec<(Batch<'_>, Target<'_>)>,
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
            let theirs = other.join().unwrap_or_else(|_| {
                Err(CheckpointError::Thread {
                    problem: "a reader panicked".to_owned(),
                })
            });
            result.and(theirs)
        })
    })?;
    let mut found = found
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, error)| error).collect())
}

type Opened = Option<Box<dyn StoredObject>>;

/// Opens the files that the work is about; those that cannot be used are left out and told.
fn open_used(
    store: &dyn Store,
    manifest: &Manifest,
    work: &[(Batch<'_>, Target<'_>)],
    damage: &mut Vec<(usize, CheckpointError)>,
) -> Result<Vec<Opened>, CheckpointError> {
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
            return Err(CheckpointError::damaged(&file.name, "it is missing"));
        }
        other => other?,
    };
    if object.bytes() != file.bytes {
        return Err(CheckpointError::damaged(
            &file.name,
            format!("it has {} bytes instead of {}", object.bytes(), file.bytes),
        ));
    }
    Ok(object)
}

/// Reads a batch to its target and gives the damage in it.
fn read_batch(
    object: &dyn StoredObject,
    file: &SliceFile,
    batch: &Batch<'_>,
    target: Target<'_>,
    scratch: &mut Vec<u8>,
) -> Result<Vec<CheckpointError>, CheckpointError> {
    let get = |into: &mut [u8]| match object.read_at(batch.offset, into) {
        Ok(()) => Ok(damage(into, file, batch)),
        Err(StoreError::Damaged { problem, .. }) => Ok(vec![unreadable(problem, file, batch)]),
        Err(error) => Err(error.into()),
    };
    if let Target::Whole(into) = target {
        return get(into);
    }
    scratch.resize((batch.elements * batch.element_bytes) as usize, 0);
    let damage = get(scratch)?;
    if let Target::Piece { from, into } = target {
        into.copy_from_slice(&scratch[from..from + into.len()]);
    }
    Ok(damage)
}

/// The parts whose digests differ.
fn damage(bytes: &[u8], file: &SliceFile, batch: &Batch<'_>) -> Vec<CheckpointError> {
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
                problem: format!("its blake3 is {found}, not {}, as was saved", part.blake3),
            });
        }
    }
    damage
}

/// Damage that the store found, with the tensors that it may concern.
fn unreadable(problem: String, file: &SliceFile, batch: &Batch<'_>) -> CheckpointError {
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
