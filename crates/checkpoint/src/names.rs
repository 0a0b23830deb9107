//! Builds and parses the names of a checkpoint's objects.

use ronde_core::{Generation, Rank, Step, WorldSize};
use ronde_store::{ObjectName, StoreError};

use crate::fence::Fence;

/// The name of the file of claims.
pub(crate) const LINEAGE: &str = "lineage.json";
const MANIFEST: &str = "manifest.json";

/// Returns `step-00001234`.
pub(crate) fn folder(step: Step) -> Result<ObjectName, StoreError> {
    ObjectName::new(format!("step-{:08}", step.0))
}

/// Returns `step-00001234/manifest.json`.
pub(crate) fn manifest(step: Step) -> Result<ObjectName, StoreError> {
    folder(step)?.join(MANIFEST)
}

/// Returns `step-00001234/g0003-t0002/rank-00002-of-00004-6f0c2a91d3e4.slice`.
pub(crate) fn slice(
    step: Step,
    fence: Fence,
    rank: Rank,
    world_size: WorldSize,
    attempt: &str,
) -> Result<ObjectName, StoreError> {
    fence_folder(step, fence)?.join(&format!(
        "rank-{:05}-of-{:05}-{attempt}.slice",
        rank.0,
        world_size.get()
    ))
}

/// Returns `step-00001234/g0003-t0002/cursor-6f0c2a91d3e4.bin`.
pub(crate) fn cursor(step: Step, fence: Fence, attempt: &str) -> Result<ObjectName, StoreError> {
    fence_folder(step, fence)?.join(&format!("cursor-{attempt}.bin"))
}

fn fence_folder(step: Step, fence: Fence) -> Result<ObjectName, StoreError> {
    folder(step)?.join(&format!("g{:04}-t{:04}", fence.generation.0, fence.term))
}

/// Returns the step that an object belongs to.
pub(crate) fn step_of(name: &ObjectName) -> Option<Step> {
    let digits = name.as_str().split('/').next()?.strip_prefix("step-")?;
    let step = Step(digits.parse().ok()?);
    // Only the spelling that this crate writes is accepted.
    name.is_in(&folder(step).ok()?).then_some(step)
}

/// Returns the fence under which an object was written.
pub(crate) fn fence_of(name: &ObjectName) -> Option<Fence> {
    let (generation, term) = name.as_str().split('/').nth(1)?.split_once("-t")?;
    Some(Fence {
        term: term.parse().ok()?,
        generation: Generation(generation.strip_prefix('g')?.parse().ok()?),
    })
}

/// Returns a suffix that no other attempt to save has used: 48 random bits in hexadecimal.
pub(crate) fn attempt() -> String {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds the keys of hash maps from the operating system's random numbers.
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    format!("{:012x}", random >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_parsed_back() {
        let fence = Fence {
            term: 12_345,
            generation: Generation(7),
        };
        let world = WorldSize::new(4).unwrap();
        for step in [0, 1234, 99_999_999, 100_000_000, u64::MAX] {
            let name = slice(Step(step), fence, Rank(2), world, &attempt()).unwrap();
            assert_eq!(step_of(&name), Some(Step(step)));
            assert_eq!(fence_of(&name), Some(fence));
        }
        let manifest = manifest(Step(5)).unwrap();
        assert_eq!(manifest.as_str(), "step-00000005/manifest.json");
        assert_eq!(fence_of(&manifest), None);
        for foreign in ["step-5/manifest.json", "step-x/y", "lineage.json", "a/b"] {
            assert_eq!(step_of(&ObjectName::new(foreign).unwrap()), None);
        }
        assert_ne!(attempt(), attempt());
    }
}
