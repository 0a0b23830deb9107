//! [`publish`]: the parts of all ranks become a checkpoint, by one conditional put.

use std::collections::BTreeMap;

use ronde_core::{Epoch, PlanIdentity, Step, WorldSize};
use ronde_store::{Condition, ObjectName, Store, StoreError, StoreExt};

use crate::catalog::missing;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::{
    CheckpointError, Digest, Fence, FileRecord, Lineage, Manifest, SavedPart, Vector, names,
};

/// Attempts to write while others write, too.
const ATTEMPTS: usize = 16;

/// What a checkpoint says beside the slices.
#[derive(Debug, Clone, Copy)]
pub struct Publish<'a> {
    /// Name of the training run.
    pub run: &'a str,
    /// Committed steps.
    pub step: Step,
    /// The epoch in which the next step lies.
    pub epoch: Epoch,
    /// The authority; it has been claimed (see [`Lineage`]).
    pub fence: Fence,
    /// How many ranks saved.
    pub world_size: WorldSize,
    /// The plan.
    pub identity: &'a PlanIdentity,
    /// The state's vectors, as every rank knows them.
    pub vectors: &'a [Vector],
    /// What only the training loop understands; the same on all ranks.
    pub cursor: &'a [u8],
    /// The time, in milliseconds since 1970.
    pub saved_unix_ms: u64,
}

/// How publishing ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The checkpoint is there.
    New,
    /// The same had been published already.
    Already,
    /// It took the place of an older authority's, or of a damaged one.
    Replaced,
}

/// Puts the manifest, after making sure that all files are there. Called by one rank with the parts of all of them.
///
/// Cost: one listing of the step's folder, the claims and an earlier manifest read, cursor and manifest written.
///
/// # Errors
/// [`CheckpointError::Parts`] when the parts do not cover the state or a file cannot be seen;
/// [`CheckpointError::Claim`] when the fence was not claimed; [`CheckpointError::Superseded`] when a newer authority has
/// taken over; [`CheckpointError::OtherContents`], [`CheckpointError::OtherPlan`] when the step holds something else;
/// [`CheckpointError::Store`].
pub fn publish(
    store: &dyn Store,
    what: &Publish<'_>,
    parts: &[SavedPart],
) -> Result<Published, CheckpointError> {
    let manifest = assemble(what, parts)?;
    let wrong = |problem| CheckpointError::Parts {
        step: what.step,
        problem,
    };
    manifest.check().map_err(wrong)?;
    check_claim(store, what)?;
    let name = ObjectName::new(&manifest.cursor.name)?;
    store.put(&name, what.cursor)?;
    let files = folder(store, what.step)?;
    if let Some(error) = missing(&files, &manifest) {
        return Err(wrong(format!(
            "{error}, as this rank sees the store; do all ranks write to the same place?"
        )));
    }
    put(store, what, &manifest)
}

fn assemble(what: &Publish<'_>, parts: &[SavedPart]) -> Result<Manifest, CheckpointError> {
    let wrong = |problem: String| CheckpointError::Parts {
        step: what.step,
        problem,
    };
    let mut ordered: Vec<Option<&SavedPart>> = vec![None; what.world_size.len()];
    for part in parts {
        let place = ordered.get_mut(part.rank.index());
        match place {
            Some(place) if place.is_none() => *place = Some(part),
            _ => {
                return Err(wrong(format!(
                    "rank {} is there twice or not one of {}",
                    part.rank,
                    what.world_size.get()
                )));
            }
        }
        if (part.step, part.fence, part.world_size) != (what.step, what.fence, what.world_size) {
            return Err(wrong(format!(
                "rank {} saved step {} under {} as one of {}",
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
                .ok_or_else(|| wrong(format!("that of rank {rank} is missing")))
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
        vectors: what.vectors.to_vec(),
        cursor: FileRecord {
            name: names::cursor(what.step, what.fence, &attempt)?.to_string(),
            bytes: what.cursor.len() as u64,
            blake3: Digest::of(what.cursor),
        },
        files,
    })
}

fn check_claim(store: &dyn Store, what: &Publish<'_>) -> Result<(), CheckpointError> {
    let lineage = Lineage::read(store)?;
    if let Some(theirs) = lineage.cut_off_by(what.fence, what.step) {
        return Err(CheckpointError::Superseded {
            step: what.step,
            mine: what.fence,
            theirs,
        });
    }
    if !lineage.knows(what.fence) {
        return Err(CheckpointError::Claim {
            fence: what.fence,
            problem: "has not been claimed, so nothing may be published under it".to_owned(),
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

/// Puts the manifest unless what is there speaks against it; looks again when somebody else was faster.
fn put(
    store: &dyn Store,
    what: &Publish<'_>,
    manifest: &Manifest,
) -> Result<Published, CheckpointError> {
    let name = names::manifest(what.step)?;
    let bytes = manifest.encode()?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let (condition, outcome) = match store.get_versioned(&name, MANIFEST_BYTES_MAX)? {
            None => (Condition::Absent, Published::New),
            Some(there) => {
                if let Some(theirs) = decode(what.step, there.contents)?
                    && may_replace(what, manifest, &theirs)? == Published::Already
                {
                    return Ok(Published::Already);
                }
                (Condition::Unchanged(there.version), Published::Replaced)
            }
        };
        match store.put_if(&name, &bytes, &condition) {
            Ok(_) => return Ok(outcome),
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The manifest that is there; none when it is damaged.
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

/// Whether `mine` takes the place of `theirs`, or is done already.
fn may_replace(
    what: &Publish<'_>,
    mine: &Manifest,
    theirs: &Manifest,
) -> Result<Published, CheckpointError> {
    if let Some(difference) = what.identity.difference(&theirs.identity()) {
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
        }),
        std::cmp::Ordering::Less => Ok(Published::Already),
        std::cmp::Ordering::Greater => Ok(Published::Replaced),
        std::cmp::Ordering::Equal => match difference {
            Some(difference) => Err(CheckpointError::OtherContents {
                step: what.step,
                fence: what.fence,
                difference,
            }),
            // The same call again; other files of the same contents are fresher and take over.
            None if mine.files == theirs.files => Ok(Published::Already),
            None => Ok(Published::Replaced),
        },
    }
}

/// What differs in contents between two manifests of one plan, whatever their files are called.
fn difference(mine: &Manifest, theirs: &Manifest) -> Option<String> {
    if mine.vectors != theirs.vectors {
        return Some("the vectors differ".to_owned());
    }
    if mine.cursor.blake3 != theirs.cursor.blake3 {
        return Some("the cursors differ".to_owned());
    }
    if mine.files.len() != theirs.files.len() {
        return Some(format!(
            "{} ranks saved here and {} there",
            mine.files.len(),
            theirs.files.len()
        ));
    }
    mine.files.iter().zip(&theirs.files).find_map(|(a, b)| {
        (a.slices != b.slices).then(|| format!("the slices of rank {} differ", a.rank))
    })
}
