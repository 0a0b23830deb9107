//! Weights that no rank keeps: those of a bucket are gathered for its passes, and released after them.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::weight_hash::RunningHash;
use ronde_core::{Buffer, Step, Work};
use ronde_engine::{LayerExt, SharedState, StateChange};

use super::SynchronousStrategy;
use crate::error::ParallelError;
use crate::zero::ZeroLevel;

impl SynchronousStrategy {
    /// Returns whether ranks hold parts of the weights only, and gather those that they compute with.
    pub(super) fn gathers_weights(&self) -> bool {
        self.config.zero == ZeroLevel::Weights && self.layout.replicas() > 1
    }

    /// Starts to gather the weights of the layers of a unit.
    pub(super) fn start_layers(&mut self, unit: usize) -> Result<(), ParallelError> {
        for index in self.buckets_of_unit(unit) {
            let group = self.same_layers()?;
            let started = self.start_gathering(&**group, index);
            let started = started.map_err(|source| self.bucket_error(index, source))?;
            self.gathering.insert(index, started);
        }
        Ok(())
    }

    /// Waits for the weights of the layers of a unit, one bucket after the other; `None` unless they are being gathered.
    fn gathered(&mut self, unit: usize) -> Result<Option<SharedState>, ParallelError> {
        let mut buckets = Vec::new();
        for index in self.buckets_of_unit(unit) {
            if let Some(work) = self.gathering.remove(&index) {
                buckets.push(self.wait_for_weights(index, work)?);
            }
        }
        if buckets.len() > 1 {
            let slices: Vec<&[f32]> = buckets.iter().map(Buffer::as_slice).collect();
            return Ok(Some(Arc::new(slices.concat())));
        }
        let only = buckets.pop();
        Ok(only.map(|weights| Arc::new(weights) as SharedState))
    }

    /// Loads the weights of a unit into its layers, if they are being gathered.
    pub(super) fn finish_layers(&mut self, unit: usize) -> Result<(), ParallelError> {
        let Some(weights) = self.gathered(unit)? else {
            return Ok(());
        };
        for layer in self.unit(unit).layers.clone() {
            let ranges = self.unit_ranges(unit, layer);
            self.chain.layers_mut()[layer].load_shared(&weights, &ranges);
        }
        Ok(())
    }

    /// Drops the gathered weights of a unit.
    pub(super) fn suspend_layers(&mut self, unit: usize) -> Result<(), ParallelError> {
        // A rank with fewer shards took part for the others.
        self.gathered(unit)?;
        for layer in self.unit(unit).layers.clone() {
            self.chain.layers_mut()[layer].state(StateChange::Suspend);
        }
        Ok(())
    }

    fn wait_for_weights(
        &mut self,
        index: usize,
        work: Box<dyn Work>,
    ) -> Result<Buffer, ParallelError> {
        let begun = self.now();
        let weights = work.wait();
        self.times.waited_s += self.now() - begun;
        weights.map_err(|source| self.bucket_error(index, source))
    }

    /// Gathers the weights that are hashed after `step`, or all of them without one, and keeps the hash. Elements that this
    /// rank holds count as it has them, so the hash also compares second copies.
    pub(super) fn hash_gathered(&mut self, step: Option<Step>) -> Result<(), ParallelError> {
        let computed = self.computed();
        let covered = match step {
            Some(step) => self.config.hashing.covered(step, computed.len()),
            None => 0..computed.len(),
        };
        // The elements of each bucket that are hashed.
        let hashed = |index: &usize| -> Option<(usize, Range<usize>)> {
            let elements = self.buckets[*index].plan.elements.clone();
            let at = computed.locate(&elements)?;
            let (start, end) = (covered.start.max(at.start), covered.end.min(at.end));
            let first = elements.start;
            (start < end).then(|| (*index, first + start - at.start..first + end - at.start))
        };
        // In the order of the flat state, as the hash of a rank that has all weights.
        let mut own = self.own_buckets();
        own.sort_by_key(|&index| self.buckets[index].plan.elements.start);
        let hashed: Vec<_> = own.iter().filter_map(hashed).collect();
        let mut hash = RunningHash::default();
        let buckets: Vec<usize> = hashed.iter().map(|(index, _)| *index).collect();
        let mut hashed = hashed.into_iter();
        self.gather_each(&buckets, |this, index, weights| {
            let Some((_, elements)) = hashed.next() else {
                return;
            };
            let base = this.buckets[index].plan.elements.start;
            let mut at = elements.start;
            for own in this.held.within(&elements) {
                hash.add(&weights[at - base..own.start - base]);
                hash.add(this.state.get(&own).unwrap_or_default());
                at = own.end;
            }
            hash.add(&weights[at - base..elements.end - base]);
        })?;
        self.gathered_digest = hash.finish();
        Ok(())
    }
}
