//! Hashes that detect replicas of a state that are no longer equal.
//!
//! Each commit hashes one part, in rotation, so that the whole state is covered every `parts` commits at
//! `1 / parts` of the cost; in addition the whole state is hashed every `full_every` commits. xxh3 runs at about
//! memory speed. It detects accidental differences, not manipulation, which the transport prevents.

use std::fmt;
use std::hash::Hasher;
use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::layout::ARENA_ALIGNMENT;
use crate::rank::Step;
use crate::shards::even_range;

/// The schedule of hashing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightHash {
    /// The number of parts, at least 1.
    pub parts: u64,
    /// The interval in steps between hashes of the whole state; 0: never.
    pub full_every: u64,
}

impl WeightHash {
    /// Returns the elements of a flat state of length `len` that are hashed after `step`.
    #[must_use]
    pub fn covered(&self, step: Step, len: usize) -> Range<usize> {
        if self.full_every > 0 && (step.0 + 1).is_multiple_of(self.full_every) {
            return 0..len;
        }
        let blocks = len.div_ceil(ARENA_ALIGNMENT) as u64;
        let parts = self.parts.max(1);
        let part = even_range(blocks, parts, step.0 % parts);
        let element = |block: u64| (block as usize * ARENA_ALIGNMENT).min(len);
        element(part.start)..element(part.end)
    }

    /// Returns the digest of a state, given in parts, after `step`.
    #[must_use]
    pub fn digest(&self, step: Step, state: &[&[f32]]) -> u64 {
        let covered = self.covered(step, state.iter().map(|part| part.len()).sum());
        let mut begin = 0;
        let parts = state.iter().map(|part| {
            let clamped = |at: usize| at.clamp(begin, begin + part.len()) - begin;
            let covered = &part[clamped(covered.start)..clamped(covered.end)];
            begin += part.len();
            covered
        });
        hash_parts(parts)
    }
}

/// The xxh3 hash of values in sequence.
#[derive(Clone)]
pub struct RunningHash {
    hasher: XxHash3_64,
}

impl fmt::Debug for RunningHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningHash({:016x})", self.finish())
    }
}

impl Default for RunningHash {
    fn default() -> Self {
        Self {
            hasher: XxHash3_64::new(),
        }
    }
}

impl RunningHash {
    /// Adds the bits of values.
    pub fn add(&mut self, values: &[f32]) {
        self.hasher.write(bytemuck::cast_slice(values));
    }

    /// Returns the hash of all values so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.hasher.finish()
    }
}

/// Returns the xxh3 hash of the bits of values that are given in parts.
#[must_use]
pub fn hash_parts<'a>(parts: impl Iterator<Item = &'a [f32]>) -> u64 {
    let mut hash = RunningHash::default();
    parts.for_each(|values| hash.add(values));
    hash.finish()
}

/// Returns the xxh3 hash of the bits of `values`.
#[must_use]
pub fn hash(values: &[f32]) -> u64 {
    XxHash3_64::oneshot(bytemuck::cast_slice(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_cover_everything_and_any_flipped_bit_is_detected() {
        let hashing = WeightHash {
            parts: 5,
            full_every: 0,
        };
        let mut state: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut covered = [0; 1000];
        for step in 0..5 {
            hashing
                .covered(Step(step), 1000)
                .for_each(|i| covered[i] += 1);
        }
        assert!(covered.iter().all(|&times| times == 1));
        for flipped in [0, 63, 64, 500, 999] {
            let digests = |state: &[f32]| -> Vec<u64> {
                let (first, rest) = state.split_at(300);
                let of = |step| hashing.digest(Step(step), &[first, &[], rest]);
                (0..5).map(of).collect()
            };
            let before = digests(&state);
            state[flipped] = f32::from_bits(state[flipped].to_bits() ^ 1);
            let after = digests(&state);
            let whole = (0..5).map(|step| hashing.digest(Step(step), &[&state]));
            assert!(whole.eq(after.iter().copied()));
            assert_eq!(before.iter().zip(&after).filter(|(a, b)| a != b).count(), 1);
        }
    }

    #[test]
    fn the_whole_state_is_hashed_at_intervals() {
        let hashing = WeightHash {
            parts: 4,
            full_every: 3,
        };
        assert_eq!(hashing.covered(Step(2), 500), 0..500);
        assert_ne!(hashing.covered(Step(3), 500), 0..500);
    }
}
