//! [`Batches`]: the samples of each step, and their division into logical shards.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use ronde::core::Step;
use ronde::core::batch::BatchPlan;
use ronde::core::shards::even_range;

/// The samples of each step. They follow the shuffled order of an epoch, which depends on the seed and on nothing else.
#[pyclass(frozen)]
pub(crate) struct Batches {
    pub(crate) plan: BatchPlan,
    pub(crate) shards: u32,
}

#[pymethods]
impl Batches {
    /// Divides each epoch of `samples` samples into batches of `batch`, and each batch into `shards` logical shards.
    #[new]
    #[pyo3(signature = (samples, batch, shards, *, seed = 0, shuffle = true, drop_last = true))]
    fn new(
        samples: u64,
        batch: u64,
        shards: u32,
        seed: u64,
        shuffle: bool,
        drop_last: bool,
    ) -> PyResult<Self> {
        let wrong = |problem: String| Err(PyValueError::new_err(problem));
        if batch == 0 || shards == 0 {
            return wrong("`batch` and `shards` must be at least 1".to_owned());
        }
        match BatchPlan::new(samples, batch, drop_last, shuffle, seed) {
            Some(plan) => Ok(Self { plan, shards }),
            None => wrong(format!(
                "an epoch of {samples} samples has no batch of {batch}: choose a smaller `batch`, or `drop_last=False`"
            )),
        }
    }

    /// The number of logical shards of a batch.
    #[getter]
    fn shards(&self) -> u32 {
        self.shards
    }

    /// The number of steps of an epoch.
    #[getter]
    fn steps_per_epoch(&self) -> u64 {
        self.plan.steps_per_epoch()
    }

    /// Returns the epoch of a step.
    fn epoch(&self, step: u64) -> u64 {
        self.plan.batch(Step(step)).epoch.0
    }

    /// Returns the number of samples of each shard of a step. They differ by at most one, and are zero for some shards of a
    /// batch that has fewer samples than shards.
    fn counts(&self, step: u64) -> Vec<u64> {
        let samples = self.plan.batch(Step(step)).samples();
        let of = |shard| even_range(samples, self.shards.into(), u64::from(shard));
        (0..self.shards)
            .map(of)
            .map(|range| range.end - range.start)
            .collect()
    }

    /// Returns the numbers of the samples of a shard of a step.
    fn samples(&self, step: u64, shard: u32) -> PyResult<Vec<u64>> {
        if shard >= self.shards {
            let shards = self.shards;
            return Err(PyIndexError::new_err(format!(
                "there is no shard {shard}: a batch has {shards}, numbered from 0"
            )));
        }
        let batch = self.plan.batch(Step(step));
        let order = self.plan.order(batch.epoch);
        let within = even_range(batch.samples(), self.shards.into(), shard.into());
        let start = batch.positions.start;
        Ok(within
            .map(|position| order.sample(start + position))
            .collect())
    }
}
