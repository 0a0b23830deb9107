//! [`Checkpoint`]: a published checkpoint, opened for reading; everything read is verified.

use std::sync::Arc;

use ronde_core::{Buffer, PlanIdentity, Step};
use ronde_store::{ObjectName, Store, StoreError, StoreExt};

use crate::catalog::read_manifest;
use crate::error::CheckpointError;
use crate::manifest::{Digest, Manifest};
use crate::reading::{self, ReadTarget, batches};

/// A checkpoint whose manifest has been read and checked. Slices are read on demand.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    store: Arc<dyn Store>,
    manifest: Manifest,
}

/// A range of elements to read, and the memory to read them into.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The name of the vector.
    pub vector: &'a str,
    /// The first element.
    pub start: u64,
    /// The destination; its length determines the number of elements.
    pub into: &'a mut [u8],
}

/// A whole vector in memory.
#[derive(Debug)]
pub struct LoadedVector {
    /// The name of the vector.
    pub name: String,
    /// The elements.
    pub values: Buffer,
}

impl Checkpoint {
    /// Opens the checkpoint of a step, even if a later claim cuts it off.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] when its manifest is damaged; [`CheckpointError::Store`], also when it has no manifest.
    pub fn open(store: Arc<dyn Store>, step: Step) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(&*store, step)?;
        Ok(Self { store, manifest })
    }

    pub(crate) fn of(store: Arc<dyn Store>, manifest: Manifest) -> Self {
        Self { store, manifest }
    }

    /// Returns the manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the number of committed steps.
    #[must_use]
    pub fn step(&self) -> Step {
        self.manifest.step
    }

    /// Returns an error unless the checkpoint was saved under the plan `mine`. The world size is not part of a plan.
    ///
    /// # Errors
    /// [`CheckpointError::OtherPlan`], naming the parts that differ.
    pub fn check_plan(&self, mine: &PlanIdentity) -> Result<(), CheckpointError> {
        let earlier = self.manifest.identity();
        if mine.continues_from(&earlier, self.manifest.step) {
            return Ok(());
        }
        mine.changes_since(&earlier).map_or(Ok(()), |difference| {
            Err(CheckpointError::OtherPlan {
                step: self.manifest.step,
                difference,
            })
        })
    }

    /// Reads the cursor: opaque bytes of the training loop.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`]; [`CheckpointError::Store`].
    pub fn cursor(&self) -> Result<Vec<u8>, CheckpointError> {
        let record = &self.manifest.cursor;
        let damaged = |problem: String| CheckpointError::damaged(&record.name, problem);
        let bytes = match self
            .store
            .get(&ObjectName::new(&record.name)?, record.bytes)
        {
            Err(error) if error.is_not_found() => {
                return Err(damaged("the file is missing".to_owned()));
            }
            Err(StoreError::Damaged { problem, .. }) => return Err(damaged(problem)),
            other => other?,
        };
        let found = Digest::of(&bytes);
        if found != record.blake3 {
            return Err(damaged(format!(
                "its blake3 is {found}, but {} was saved",
                record.blake3
            )));
        }
        Ok(bytes)
    }

    /// Reads all files, compares them with their digests and returns all damage.
    ///
    /// # Errors
    /// Errors other than damage, for example an unreachable store.
    pub fn verify(&self, threads: usize) -> Result<Vec<CheckpointError>, CheckpointError> {
        let work = batches(&self.manifest)
            .into_iter()
            .map(|batch| (batch, ReadTarget::Nowhere))
            .collect();
        let mut damage = match self.cursor() {
            Ok(_) => Vec::new(),
            Err(error) if error.is_damage() => vec![error],
            Err(error) => return Err(error),
        };
        damage.extend(reading::read(
            &*self.store,
            &self.manifest,
            work,
            threads,
            false,
        )?);
        Ok(damage)
    }

    /// Reads any ranges of any vectors with `threads` threads. Every part that overlaps a range is verified, so up to 8 MiB
    /// beyond each end of a range are read in each slice.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], naming file and tensor; the contents of the destination are then unspecified.
    /// [`CheckpointError::Invalid`] for a range outside the vector; [`CheckpointError::Store`].
    pub fn read_into(
        &self,
        requests: &mut [ReadRequest<'_>],
        threads: usize,
    ) -> Result<(), CheckpointError> {
        let mut work = Vec::new();
        for request in requests {
            self.plan(request, &mut work)?;
        }
        let damage = reading::read(&*self.store, &self.manifest, work, threads, true)?;
        damage.into_iter().next().map_or(Ok(()), Err)
    }

    /// Reads all vectors in the manifest's order.
    ///
    /// # Errors
    /// As [`Checkpoint::read_into`].
    pub fn load(&self, threads: usize) -> Result<Vec<LoadedVector>, CheckpointError> {
        let mut loaded: Vec<LoadedVector> = self
            .manifest
            .vectors
            .iter()
            .map(|vector| LoadedVector {
                name: vector.name.clone(),
                values: Buffer::host(vector.dtype, vector.elements as usize),
            })
            .collect();
        let mut requests: Vec<ReadRequest<'_>> = loaded
            .iter_mut()
            .map(|vector| ReadRequest {
                vector: &vector.name,
                start: 0,
                into: vector.values.bytes_mut(),
            })
            .collect();
        self.read_into(&mut requests, threads)?;
        Ok(loaded)
    }

    /// Splits a request at the boundaries of batches.
    fn plan<'m, 'r>(
        &'m self,
        request: &'r mut ReadRequest<'_>,
        work: &mut Vec<(reading::PartBatch<'m>, ReadTarget<'r>)>,
    ) -> Result<(), CheckpointError> {
        let vector = self.manifest.vector(request.vector)?;
        let size = vector.dtype.size();
        let elements = (request.into.len() / size) as u64;
        let end = request.start.checked_add(elements);
        let Some(end) =
            end.filter(|end| *end <= vector.elements && request.into.len().is_multiple_of(size))
        else {
            return Err(CheckpointError::invalid(
                format!("range of vector {}", vector.name),
                format!(
                    "{} bytes from element {} do not fit {} elements of type {}",
                    request.into.len(),
                    request.start,
                    vector.elements,
                    vector.dtype
                ),
            ));
        };
        let mut wanted: Vec<_> = batches(&self.manifest)
            .into_iter()
            .filter(|batch| {
                batch.vector == vector.name && batch.start < end && batch.end() > request.start
            })
            .collect();
        // The slices of a manifest cover each vector exactly once, so these batches are contiguous.
        wanted.sort_by_key(|batch| batch.start);
        let mut rest: &mut [u8] = request.into;
        for batch in wanted {
            let from = batch.start.max(request.start);
            let bytes = (batch.end().min(end) - from) as usize * size;
            let (into, later) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = later;
            let target = if bytes as u64 == batch.elements * size as u64 {
                ReadTarget::Whole(into)
            } else {
                ReadTarget::Piece {
                    from: (from - batch.start) as usize * size,
                    into,
                }
            };
            work.push((batch, target));
        }
        Ok(())
    }
}
