//! Weights that no rank keeps: those of a bucket are gathered for its passes, and released after them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::weight_hash::RunningHash;
use ronde_core::{Buffer, Step, Work};
use ronde_engine::{LayerExt, SharedState, StateChange};

use super::passes::Passes;
use super::{Connected, SynchronousStrategy};
use crate::error::ParallelError;

impl Passes<'_> {
    /// Starts to gather the weights of the layers of a unit.
    pub(super) fn start_layers(&mut self, unit: usize) -> Result<(), ParallelError> {
        for index in self.reducer.buckets_of_unit(unit) {
            let started = self.reducer.start_gathering(index, &self.slices.weights)?;
            self.program.gathering.insert(index, started);
        }
        Ok(())
    }

    /// Waits for the weights of the layers of a unit, one bucket after the other; `None` unless they are being gathered.
    fn gathered(&mut self, unit: usize) -> Result<Option<SharedState>, ParallelError> {
        let mut buckets = Vec::new();
        for index in self.reducer.buckets_of_unit(unit) {
            if let Some(work) = self.program.gathering.remove(&index) {
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
        for layer in self.reducer.unit(unit).layers.clone() {
            let ranges = self.reducer.unit_ranges(unit, layer);
            self.model.chain.layers_mut()[layer].load_shared(&weights, &ranges);
        }
        Ok(())
    }

    /// Drops the gathered weights of a unit.
    pub(super) fn suspend_layers(&mut self, unit: usize) -> Result<(), ParallelError> {
        // A rank with fewer shards took part for the others.
        self.gathered(unit)?;
        for layer in self.reducer.unit(unit).layers.clone() {
            self.model.chain.layers_mut()[layer].state(StateChange::Suspend);
        }
        Ok(())
    }

    fn wait_for_weights(
        &mut self,
        index: usize,
        work: Box<dyn Work>,
    ) -> Result<Buffer, ParallelError> {
        let start_s = self.timer.now();
        let weights = work.wait();
        self.timer.waited_since(start_s);
        weights.map_err(|source| self.reducer.bucket_error(index, source))
    }
}

impl SynchronousStrategy {
    /// Receives the weights of this rank's layers from the ranks that update them, from element `first` on, and loads them. If weights
    /// are gathered for each pass, only those are received whose hash is compared after `step`.
    pub(crate) fn gather(&mut self, first: usize, step: Option<Step>) -> Result<(), ParallelError> {
        if self.connected.program.gathers_weights {
            self.load_layers();
            return self.hash_gathered(step);
        }
        let reducer = &self.connected.reducer;
        let mut own = reducer.own_buckets();
        if own
            .iter()
            .any(|&index| reducer.buckets()[index].is_scattered())
        {
            self.model.chain.release_state();
            own.retain(|&index| reducer.buckets()[index].plan.elements.end > first);
            let (state, gathered) = (&mut self.slices.weights, &mut self.slices.gathered);
            reducer.gather_each(&own, state, |state, index, weights| {
                let elements = &reducer.buckets()[index].plan.elements;
                if let Some(values) = state.get_mut(elements) {
                    values.copy_from_slice(weights);
                }
                if elements.start <= *gathered {
                    *gathered = elements.end.max(*gathered);
                }
            })?;
        }
        self.slices.gathered = self.slices.weights.len();
        self.load_layers();
        Ok(())
    }

    /// Gathers the weights that are hashed after `step`, or all of them without one, and keeps the hash. Elements that this
    /// rank holds count as it has them, so the hash also compares second copies.
    fn hash_gathered(&mut self, step: Option<Step>) -> Result<(), ParallelError> {
        let Connected { mesh, reducer, .. } = &self.connected;
        let computed = mesh.computed(self.slices.weights.tensors_outline());
        let covered = match step {
            Some(step) => self.config.hashing.covered(step, computed.len()),
            None => 0..computed.len(),
        };
        // The elements of each bucket that are hashed.
        let hashed = |index: usize| -> Option<(usize, Range<usize>)> {
            let elements = &reducer.buckets()[index].plan.elements;
            let at = computed.locate(elements)?;
            let (start, end) = (covered.start.max(at.start), covered.end.min(at.end));
            let first = elements.start;
            (start < end).then(|| (index, first + start - at.start..first + end - at.start))
        };
        // In the order of the flat state, as the hash of a rank that has all weights.
        let mut own = reducer.own_buckets();
        own.sort_by_key(|&index| reducer.buckets()[index].plan.elements.start);
        let hashed: BTreeMap<usize, Range<usize>> =
            own.iter().copied().filter_map(hashed).collect();
        own.retain(|index| hashed.contains_key(index));
        let mut hash = RunningHash::default();
        let held = self.slices.held().clone();
        let state = &mut self.slices.weights;
        reducer.gather_each(&own, state, |state, index, weights| {
            let base = reducer.buckets()[index].plan.elements.start;
            let elements = &hashed[&index];
            let mut at = elements.start;
            for own in held.within(elements) {
                hash.add(&weights[at - base..own.start - base]);
                hash.add(state.get(&own).unwrap_or_default());
                at = own.end;
            }
            hash.add(&weights[at - base..elements.end - base]);
        })?;
        self.slices.gathered_digest = hash.finish();
        Ok(())
    }
}
