//! [`Checkpoint`]: a published checkpoint, opened for reading; everything read is verified.

use std::sync::Arc;

use ronde_core::{Buffer, PlanIdentity, Step};
use ronde_store::{ObjectName, Store, StoreError, StoreExt};

use crate::catalog::read_manifest;
use crate::reading::{self, Target, batches};
use crate::{CheckpointError, Digest, Manifest};

/// A checkpoint whose manifest has been read and checked. Slices are read when asked for.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    store: Arc<dyn Store>,
    manifest: Manifest,
}

/// Elements that are wanted, and the memory that they go to.
#[derive(Debug)]
pub struct ReadInto<'a> {
    /// Name of the vector.
    pub vector: &'a str,
    /// First element.
    pub start: u64,
    /// As many bytes as the elements have.
    pub into: &'a mut [u8],
}

/// A whole vector in memory.
#[derive(Debug)]
pub struct LoadedVector {
    /// Its name.
    pub name: String,
    /// Its elements.
    pub values: Buffer,
}

impl Checkpoint {
    /// Opens the checkpoint of a step, whether it counts or not.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] when its manifest is; [`CheckpointError::Store`], also when there is none.
    pub fn open(store: Arc<dyn Store>, step: Step) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(&*store, step)?;
        Ok(Self { store, manifest })
    }

    pub(crate) fn of(store: Arc<dyn Store>, manifest: Manifest) -> Self {
        Self { store, manifest }
    }

    /// What it consists of.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Committed steps.
    #[must_use]
    pub fn step(&self) -> Step {
        self.manifest.step
    }

    /// Refuses another plan than `mine`. The world size is no part of a plan.
    ///
    /// # Errors
    /// [`CheckpointError::OtherPlan`], naming the parts that differ.
    pub fn check_plan(&self, mine: &PlanIdentity) -> Result<(), CheckpointError> {
        mine.difference(&self.manifest.identity())
            .map_or(Ok(()), |difference| {
                Err(CheckpointError::OtherPlan {
                    step: self.manifest.step,
                    difference,
                })
            })
    }

    /// What only the training loop understands.
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
            Err(error) if error.is_not_found() => return Err(damaged("it is missing".to_owned())),
            Err(StoreError::Damaged { problem, .. }) => return Err(damaged(problem)),
            other => other?,
        };
        let found = Digest::of(&bytes);
        if found != record.blake3 {
            return Err(damaged(format!(
                "its blake3 is {found}, not {}, as was saved",
                record.blake3
            )));
        }
        Ok(bytes)
    }

    /// Reads everything and compares it with the digests; gives all damage that there is.
    ///
    /// # Errors
    /// What is not damage: the store cannot be reached and the like.
    pub fn verify(&self, threads: usize) -> Result<Vec<CheckpointError>, CheckpointError> {
        let work = batches(&self.manifest)
            .into_iter()
            .map(|batch| (batch, Target::Nowhere))
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

    /// Reads any ranges of any vectors, by `threads` threads. What overlaps a range is verified; the bytes read beyond it
    /// are at most 8 MiB at each end of a slice.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], naming file and tensor; the memory then holds anything.
    /// [`CheckpointError::Invalid`] for a range that the vector does not have; [`CheckpointError::Store`].
    pub fn read_into(
        &self,
        requests: &mut [ReadInto<'_>],
        threads: usize,
    ) -> Result<(), CheckpointError> {
        let mut work = Vec::new();
        for request in requests {
            self.plan(request, &mut work)?;
        }
        let damage = reading::read(&*self.store, &self.manifest, work, threads, true)?;
        damage.into_iter().next().map_or(Ok(()), Err)
    }

    /// Reads all vectors whole, in the manifest's order.
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
        let mut requests: Vec<ReadInto<'_>> = loaded
            .iter_mut()
            .map(|vector| ReadInto {
                vector: &vector.name,
                start: 0,
                into: vector.values.bytes_mut(),
            })
            .collect();
        self.read_into(&mut requests, threads)?;
        Ok(loaded)
    }

    /// Cuts a request at the borders of batches.
    fn plan<'m, 'r>(
        &'m self,
        request: &'r mut ReadInto<'_>,
        work: &mut Vec<(reading::Batch<'m>, Target<'r>)>,
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
                    "{} bytes from element {} do not fit {} elements of {}",
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
        // The slices of a manifest cover each vector once, so these follow each other without gaps.
        wanted.sort_by_key(|batch| batch.start);
        let mut rest: &mut [u8] = request.into;
        for batch in wanted {
            let from = batch.start.max(request.start);
            let bytes = (batch.end().min(end) - from) as usize * size;
            let (into, later) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = later;
            let target = if bytes as u64 == batch.elements * size as u64 {
                Target::Whole(into)
            } else {
                Target::Piece {
                    from: (from - batch.start) as usize * size,
                    into,
                }
            };
            work.push((batch, target));
        }
        Ok(())
    }
}
