//! [`publish`]: publishes the parts of all ranks as a checkpoint with one conditional put.

use std::collections::BTreeMap;

use ronde_core::{DataSignature, Epoch, PlanIdentity, Step, WorldSize};
use ronde_store::{Condition, ObjectName, Store, StoreError, StoreExt};

use crate::catalog::missing;
use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::lineage::Lineage;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::manifest::{Digest, FileRecord, Manifest};
use crate::names;
use crate::saved_part::SavedPart;
use crate::vector::StateVector;

/// The maximum number of attempts when other processes write at the same time.
const ATTEMPTS: usize = 16;

/// The contents of a checkpoint beside the slices.
#[derive(Debug, Clone, Copy)]
pub struct PublishRequest<'a> {
    /// The name of the training run.
    pub run: &'a str,
    /// The number of committed steps.
    pub step: Step,
    /// The epoch of the next step.
    pub epoch: Epoch,
    /// The fence; it must have been claimed (see [`Lineage`]).
    pub fence: Fence,
    /// The number of ranks that saved.
    pub world_size: WorldSize,
    /// The plan.
    pub identity: &'a PlanIdentity,
    /// The names and the units of the model's inputs and outputs.
    pub signature: &'a DataSignature,
    /// The vectors of the state, the same on all ranks.
    pub vectors: &'a [StateVector],
    /// Opaque bytes of the training loop, the same on all ranks.
    pub cursor: &'a [u8],
    /// The time, in milliseconds since 1970.
    pub saved_unix_ms: u64,
}

/// The result of a successful [`publish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The checkpoint was published.
    New,
    /// The same checkpoint had already been published.
    Already,
    /// The checkpoint replaced one with a lower fence, or a damaged one.
    Replaced,
}

/// Writes the manifest after checking that all files exist. Called by one rank with the parts of all ranks.
///
/// Cost: one listing of the step's folder, reads of the claims and of an earlier manifest, writes of cursor and manifest.
///
/// # Errors
/// [`CheckpointError::Parts`] when the parts do not cover the state or a file is missing from the store;
/// [`CheckpointError::Claim`] when the fence was not claimed; [`CheckpointError::Superseded`] when a newer fence has been
/// claimed; [`CheckpointError::OtherContents`], [`CheckpointError::OtherPlan`] when the step was published with other
/// contents; [`CheckpointError::Store`].
pub fn publish(
    store: &dyn Store,
    what: &PublishRequest<'_>,
    parts: &[SavedPart],
) -> Result<PublishOutcome, CheckpointError> {
    let manifest = assemble(what, parts)?;
    let wrong = |problem| CheckpointError::Parts {
        step: what.step,
        problem,
    };
    manifest.check().map_err(|error| wrong(error.to_string()))?;
    check_claim(store, what)?;
    let name = ObjectName::new(&manifest.cursor.name)?;
    store.put(&name, what.cursor)?;
    let files = folder(store, what.step)?;
    if let Some(error) = missing(&files, &manifest) {
        return Err(wrong(format!(
            "{error}; check that all ranks write to the same store"
        )));
    }
    put(store, what, &manifest)
}

fn assemble(what: &PublishRequest<'_>, parts: &[SavedPart]) -> Result<Manifest, CheckpointError> {
    let wrong = |problem: String| CheckpointError::Parts {
        step: what.step,
        problem,
    };
    let mut ordered: Vec<Option<&SavedPart>> = vec![None; what.world_size.len()];
    for part in parts {
        let slot = ordered.get_mut(part.rank.index());
        match slot {
            Some(slot) if slot.is_none() => *slot = Some(part),
            _ => {
                return Err(wrong(format!(
                    "rank {} appears twice or exceeds the world size {}",
                    part.rank,
                    what.world_size.get()
                )));
            }
        }
        if (part.step, part.fence, part.world_size) != (what.step, what.fence, what.world_size) {
            return Err(wrong(format!(
                "rank {} saved step {} under {} with world size {}",
                part.rank,
                part.step,
                part.fence,
                part.world_size.get()
            )));
        }
    }
    let files = ordered
        .iter()
        .enumerate()
        .map(|(rank, part)| {
            part.map(|part| part.file.clone())
                .ok_or_else(|| wrong(format!("the part of rank {rank} is missing")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let attempt = names::attempt();
    Ok(Manifest {
        run: what.run.to_owned(),
        step: what.step,
        epoch: what.epoch,
        fence: what.fence,
        world_size: what.world_size.get(),
        saved_unix_ms: what.saved_unix_ms,
        plan: what
            .identity
            .parts()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        signature: what.signature.clone(),
        vectors: what.vectors.to_vec(),
        cursor: FileRecord {
            name: names::cursor(what.step, what.fence, &attempt)?.to_string(),
            bytes: what.cursor.len() as u64,
            blake3: Digest::of(what.cursor),
        },
        files,
    })
}

fn check_claim(store: &dyn Store, what: &PublishRequest<'_>) -> Result<(), CheckpointError> {
    let lineage = Lineage::read(store)?;
    if let Some(newer) = lineage.cut_off_by(what.fence, what.step) {
        return Err(CheckpointError::superseded(what.step, what.fence, newer));
    }
    if !lineage.knows(what.fence) {
        return Err(CheckpointError::Claim {
            fence: what.fence,
            problem: "has not been claimed, so no checkpoint can be published under it".to_owned(),
        });
    }
    Ok(())
}

fn folder(store: &dyn Store, step: Step) -> Result<BTreeMap<ObjectName, u64>, CheckpointError> {
    let entries = store.list(Some(&names::folder(step)?))?;
    Ok(entries
        .into_iter()
        .map(|entry| (entry.name, entry.bytes))
        .collect())
}

/// Writes the manifest unless the stored one forbids it; retries when another process has changed it in between.
fn put(
    store: &dyn Store,
    what: &PublishRequest<'_>,
    manifest: &Manifest,
) -> Result<PublishOutcome, CheckpointError> {
    let name = names::manifest(what.step)?;
    let bytes = manifest.encode()?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let (condition, outcome) = match store.get_versioned(&name, MANIFEST_BYTES_MAX)? {
            None => (Condition::Absent, PublishOutcome::New),
            Some(there) => {
                if let Some(theirs) = decode(what.step, there.contents)?
                    && may_replace(what, manifest, &theirs)? == PublishOutcome::Already
                {
                    return Ok(PublishOutcome::Already);
                }
                (
                    Condition::Unchanged(there.version),
                    PublishOutcome::Replaced,
                )
            }
        };
        match store.put_if(&name, &bytes, &condition) {
            Ok(_) => return Ok(outcome),
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Decodes the stored manifest; `None` when it is damaged.
fn decode(
    step: Step,
    contents: Result<Vec<u8>, StoreError>,
) -> Result<Option<Manifest>, CheckpointError> {
    match contents.map_err(CheckpointError::from) {
        Ok(bytes) => Ok(Manifest::decode(step, &bytes).ok()),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decides whether `mine` replaces `theirs` or has already been published.
fn may_replace(
    what: &PublishRequest<'_>,
    mine: &Manifest,
    theirs: &Manifest,
) -> Result<PublishOutcome, CheckpointError> {
    let earlier = theirs.identity();
    if !what.identity.continues_from(&earlier, what.step)
        && let Some(difference) = what.identity.difference(&earlier)
    {
        return Err(CheckpointError::OtherPlan {
            step: what.step,
            difference,
        });
    }
    let difference = difference(mine, theirs);
    match mine.fence.cmp(&theirs.fence) {
        std::cmp::Ordering::Less if difference.is_some() => Err(CheckpointError::Superseded {
            step: what.step,
            mine: mine.fence,
            theirs: theirs.fence,
            run: Some(format!("run `{}`", theirs.run)),
        }),
        std::cmp::Ordering::Less => Ok(PublishOutcome::Already),
        std::cmp::Ordering::Greater => Ok(PublishOutcome::Replaced),
        std::cmp::Ordering::Equal => match difference {
            Some(difference) => Err(CheckpointError::OtherContents {
                step: what.step,
                fence: what.fence,
                difference,
            }),
            // The same files: this call is a repetition. Other files with the same contents are newer and replace them.
            None if mine.files == theirs.files => Ok(PublishOutcome::Already),
            None => Ok(PublishOutcome::Replaced),
        },
    }
}

/// Returns the first difference in contents between two manifests of one plan. Ignores the names of files.
fn difference(mine: &Manifest, theirs: &Manifest) -> Option<String> {
    if mine.vectors != theirs.vectors {
        return Some("the vectors differ".to_owned());
    }
    if mine.cursor.blake3 != theirs.cursor.blake3 {
        return Some("the cursors differ".to_owned());
    }
    if mine.files.len() != theirs.files.len() {
        return Some(format!(
            "saved by {} ranks here and by {} there",
            mine.files.len(),
            theirs.files.len()
        ));
    }
    mine.files.iter().zip(&theirs.files).find_map(|(a, b)| {
        (a.slices != b.slices).then(|| format!("the slices of rank {} differ", a.rank))
    })
}
