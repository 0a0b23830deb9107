//! [`Lineage`]: who has gone on from which step, so that what fenced workers publish late does not count.

use ronde_core::{Generation, Step};
use ronde_store::{Condition, ObjectName, Store, StoreExt};
use serde::{Deserialize, Serialize};

use crate::envelope::{self, Kind};
use crate::{CheckpointError, Fence, names};

const KIND: Kind = Kind {
    format: ("ronde.lineage", 1),
    key: "lineage",
};
const FILE_BYTES_MAX: u64 = 1 << 22;
/// The oldest claims are forgotten beyond this many.
const CLAIMS_MAX: usize = 1024;
/// Attempts to write while others write, too.
const ATTEMPTS: usize = 64;

/// Somebody goes on from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Who.
    pub fence: Fence,
    /// The number of committed steps that they go on from.
    pub from: Step,
}

/// All claims, in the order of their fences.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    claims: Vec<Claim>,
}

impl Lineage {
    /// Reads the claims; none when nobody has claimed anything.
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

    /// The claims.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Claims `fence`, which a coordinator gave: from now on nothing under a lower one counts beyond step `from`.
    /// Claiming the same again is done already.
    ///
    /// # Errors
    /// [`CheckpointError::Superseded`] when a higher fence has been claimed; [`CheckpointError::Claim`] when this one was
    /// claimed from another step; [`CheckpointError::Store`].
    pub fn claim(store: &dyn Store, fence: Fence, from: Step) -> Result<(), CheckpointError> {
        change(store, |lineage| {
            match lineage.claims.iter().max_by_key(|claim| claim.fence) {
                Some(newest) if newest.fence > fence => Err(CheckpointError::Superseded {
                    step: from,
                    mine: fence,
                    theirs: newest.fence,
                }),
                Some(newest) if newest.fence == fence && newest.from == from => Ok(None),
                Some(newest) if newest.fence == fence => Err(CheckpointError::Claim {
                    fence,
                    problem: format!(
                        "was claimed from step {} already, now from {from}",
                        newest.from
                    ),
                }),
                _ => Ok(Some(Claim { fence, from })),
            }
        })
        .map(|_| ())
    }

    /// Claims a term above all others, where no coordinator gives one. Two callers never get the same.
    ///
    /// # Errors
    /// [`CheckpointError::Store`].
    pub fn claim_next(
        store: &dyn Store,
        generation: Generation,
        from: Step,
    ) -> Result<Fence, CheckpointError> {
        let claimed = change(store, |lineage| {
            let newest = lineage.claims.iter().map(|claim| claim.fence.term).max();
            let fence = Fence {
                term: newest.map_or(1, |term| term + 1),
                generation,
            };
            Ok(Some(Claim { fence, from }))
        })?;
        claimed
            .map(|claim| claim.fence)
            .ok_or_else(|| CheckpointError::invalid("claim", "nothing was claimed"))
    }

    /// Who, if anybody, has cut off what was published under `fence` as `step`.
    #[must_use]
    pub fn cut_off_by(&self, fence: Fence, step: Step) -> Option<Fence> {
        self.claims
            .iter()
            .find(|claim| claim.fence > fence && claim.from < step)
            .map(|claim| claim.fence)
    }

    /// Whether `fence` has been claimed.
    #[must_use]
    pub fn knows(&self, fence: Fence) -> bool {
        self.claims.iter().any(|claim| claim.fence == fence)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        envelope::decode(KIND, bytes)
            .map_err(|problem| CheckpointError::damaged(names::LINEAGE, problem))
    }

    /// What is known when the file is damaged: that somebody wrote objects under these fences.
    fn guessed(store: &dyn Store) -> Result<Self, CheckpointError> {
        let entries = store.list(None)?;
        let fences = entries
            .iter()
            .filter_map(|entry| names::fence_of(&entry.name));
        // From no step: a guess must not cut anything off.
        let claims = fences.max().map(|fence| Claim {
            fence,
            from: Step(u64::MAX),
        });
        Ok(Self {
            claims: claims.into_iter().collect(),
        })
    }
}

/// Adds what `decide` wants to the claims, again when somebody else changed them meanwhile.
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
        lineage.claims.push(claim);
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
