//! [`Lineage`]: the record of which fence resumed from which step, so that late checkpoints of superseded workers are
//! ignored.

use ronde_core::{Generation, Step};
use ronde_store::{Condition, ObjectName, Store, StoreExt};
use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::envelope::{self, FileFormat};
use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::names;

const KIND: FileFormat = FileFormat {
    format: ("ronde.lineage", 1),
    key: "lineage",
};
const FILE_BYTES_MAX: u64 = 1 << 22;
/// The maximum number of claims; the oldest ones are dropped.
const CLAIMS_MAX: usize = 1024;
/// The maximum number of attempts when other processes write at the same time.
const ATTEMPTS: usize = 64;

/// All claims in the order of their fences.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    claims: Vec<Claim>,
}

impl Lineage {
    /// Reads the claims; a missing file means that there are none.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`]; [`CheckpointError::Store`].
    pub fn read(store: &dyn Store) -> Result<Self, CheckpointError> {
        let name = ObjectName::new(names::LINEAGE)?;
        match store.get(&name, FILE_BYTES_MAX) {
            Err(error) if error.is_not_found() => Ok(Self::default()),
            other => Self::decode(&other?),
        }
    }

    /// Returns the claims.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Claims `fence`, which a coordinator has assigned, for `run`, a text for messages. From now on, checkpoints beyond step
    /// `from` under a lower fence are cut off. Repeating a claim has no effect.
    ///
    /// # Errors
    /// [`CheckpointError::Superseded`] when a higher fence has been claimed; [`CheckpointError::Claim`] when this one was
    /// claimed from another step; [`CheckpointError::Store`].
    pub fn claim(
        store: &dyn Store,
        fence: Fence,
        from: Step,
        run: &str,
    ) -> Result<(), CheckpointError> {
        change(store, |lineage| {
            match lineage.claims.iter().max_by_key(|claim| claim.fence) {
                Some(newest) if newest.fence > fence => {
                    Err(CheckpointError::superseded(from, fence, newest))
                }
                Some(newest) if newest.fence == fence && newest.from == from => Ok(None),
                Some(newest) if newest.fence == fence => Err(CheckpointError::Claim {
                    fence,
                    problem: format!(
                        "was already claimed from step {}, and cannot be claimed from step {from}",
                        newest.from
                    ),
                }),
                _ => Ok(Some(Claim::new(fence, from, run))),
            }
        })
        .map(|_| ())
    }

    /// Claims a term above all others, for runs in which no coordinator assigns one. Two callers never get the same term.
    ///
    /// # Errors
    /// [`CheckpointError::Store`].
    pub fn claim_next(
        store: &dyn Store,
        generation: Generation,
        from: Step,
        run: &str,
    ) -> Result<Fence, CheckpointError> {
        let claimed = change(store, |lineage| {
            let newest = lineage.claims.iter().map(|claim| claim.fence.term).max();
            let fence = Fence {
                term: newest.map_or(1, |term| term + 1),
                generation,
            };
            Ok(Some(Claim::new(fence, from, run)))
        })?;
        claimed
            .map(|claim| claim.fence)
            .ok_or_else(|| CheckpointError::invalid("claim", "no fence was claimed"))
    }

    /// Returns the claim that cuts off the checkpoint of `step` published under `fence`, if any.
    #[must_use]
    pub fn cut_off_by(&self, fence: Fence, step: Step) -> Option<&Claim> {
        self.claims
            .iter()
            .find(|claim| claim.fence > fence && claim.from < step)
    }

    /// Returns whether `fence` has been claimed.
    #[must_use]
    pub fn knows(&self, fence: Fence) -> bool {
        self.claims.iter().any(|claim| claim.fence == fence)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        envelope::decode(KIND, bytes)
            .map_err(|problem| CheckpointError::damaged(names::LINEAGE, problem.to_string()))
    }

    /// Estimates the claims when the file is damaged, from the fences in the names of stored objects.
    fn guessed(store: &dyn Store) -> Result<Self, CheckpointError> {
        let entries = store.list(None)?;
        let fences = entries
            .iter()
            .filter_map(|entry| names::fence_of(&entry.name));
        // The largest step number, because an estimate must not cut off any checkpoint.
        let claims = fences.max().map(|fence| Claim {
            fence,
            from: Step(u64::MAX),
            run: None,
        });
        Ok(Self {
            claims: claims.into_iter().collect(),
        })
    }
}

/// Adds the claim that `decide` returns, and retries when another process has changed the file in between.
fn change(
    store: &dyn Store,
    decide: impl Fn(&Lineage) -> Result<Option<Claim>, CheckpointError>,
) -> Result<Option<Claim>, CheckpointError> {
    let name = ObjectName::new(names::LINEAGE)?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let (mut lineage, condition) = match store.get_versioned(&name, FILE_BYTES_MAX)? {
            None => (Lineage::default(), Condition::Absent),
            Some(there) => {
                let read = there.contents.map_err(CheckpointError::from);
                let lineage = match read.and_then(|bytes| Lineage::decode(&bytes)) {
                    Err(error) if error.is_damage() => Lineage::guessed(store)?,
                    other => other?,
                };
                (lineage, Condition::Unchanged(there.version))
            }
        };
        let Some(claim) = decide(&lineage)? else {
            return Ok(None);
        };
        lineage.claims.push(claim.clone());
        lineage.claims.sort_by_key(|claim| claim.fence);
        let surplus = lineage.claims.len().saturating_sub(CLAIMS_MAX);
        lineage.claims.drain(..surplus);
        let bytes = envelope::encode(KIND, &lineage)
            .map_err(|error| CheckpointError::invalid("lineage", error.to_string()))?;
        match store.put_if(&name, &bytes, &condition) {
            Ok(_) => return Ok(Some(claim)),
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
}
