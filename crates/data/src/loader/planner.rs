//! [`BatchPlanner`]: divides the samples of a rank, in the order in which they are due, into units that are fetched together.

use std::ops::Range;

use ronde_core::batch::BatchPlan;
use ronde_core::order::SampleOrder;
use ronde_core::rounds::{InnerStep, InnerSteps, RoundPlan};
use ronde_core::{Epoch, Shard, Step};

use super::LoaderPlan;
use crate::dataset::Dataset;

/// A batch with the numbers of its samples.
#[derive(Debug)]
pub(super) struct PlannedBatch {
    /// The index of the step among the loader's steps.
    pub index: u64,
    pub epoch: Epoch,
    pub shard: Shard,
    pub sample_ids: Vec<u64>,
    /// The index of its first sample among all samples of the loader.
    pub first: u64,
}

/// Samples that are fetched together, and the batches that they complete.
#[derive(Debug, Default)]
pub(super) struct FetchUnit {
    /// The index of the first sample among all samples of the loader.
    pub first: u64,
    pub samples: Vec<u64>,
    pub batches: Vec<PlannedBatch>,
    /// The index of the first sample that later batches use.
    pub needed_from: u64,
}

/// An iterator over the fetch units of all steps.
#[derive(Debug)]
pub(super) struct BatchPlanner {
    plan: LoaderPlan,
    /// The bytes of a sample and of a unit; `None` if reading neighbours together is not faster.
    sizes: Option<(u64, u64)>,
    order: Option<(Epoch, SampleOrder)>,
    /// The inner steps that are left; `None`: whole steps are planned.
    inner: Option<InnerWalk>,
    /// The shards of each step.
    run: Range<u32>,
    /// The number of steps.
    count: u64,
    /// The next step and shard, and the incomplete batch.
    index: u64,
    shard: u32,
    open: Option<OpenBatch>,
    /// The number of samples planned so far.
    planned: u64,
}

/// The inner steps of rounds.
#[derive(Debug)]
struct InnerWalk {
    rounds: RoundPlan,
    left: InnerSteps,
    /// The step whose micro-batches are being planned.
    step: Option<InnerStep>,
}

/// A batch that has positions left to plan.
#[derive(Debug)]
struct OpenBatch {
    batch: PlannedBatch,
    order: SampleOrder,
    positions: Range<u64>,
}

impl BatchPlanner {
    pub(super) fn new(
        dataset: &dyn Dataset,
        plan: LoaderPlan,
        inner: Option<(RoundPlan, InnerSteps)>,
        unit_bytes: u64,
    ) -> Self {
        let locality = dataset.description().locality;
        let sizes = locality.map(|locality| (locality.sample_bytes.max(1), unit_bytes));
        let inner = inner.map(|(rounds, left)| InnerWalk {
            rounds,
            left,
            step: None,
        });
        let run = match &inner {
            Some(inner) => 0..inner.rounds.parts(),
            None => plan.run.clone(),
        };
        Self {
            sizes,
            order: None,
            index: 0,
            shard: run.start,
            count: match &inner {
                Some(inner) => inner.left.remaining(),
                None => plan.count(),
            },
            run,
            inner,
            open: None,
            planned: 0,
            plan,
        }
    }

    /// Returns whether the set is read from storage rather than from memory.
    pub(super) fn is_stored(&self) -> bool {
        self.sizes.is_some()
    }

    /// Returns the step of the first sample of the next unit; `None` after the last unit.
    pub(super) fn next_index(&self) -> Option<u64> {
        let open = self.open.as_ref().map(|open| open.batch.index);
        open.or_else(|| (self.index < self.count).then_some(self.index))
    }

    /// Returns the next unit: the rest of a shuffle window, at most the unit size; a whole step for sets in memory.
    pub(super) fn next_unit(&mut self) -> FetchUnit {
        let mut unit = FetchUnit {
            first: self.planned,
            ..FetchUnit::default()
        };
        let (mut window, mut is_full) = (None, false);
        while !is_full {
            let Some(mut open) = self.open.take().or_else(|| self.begin()) else {
                break;
            };
            let mut is_other_window = false;
            while let Some(position) = open.positions.next() {
                let end = open.order.window_end(position);
                is_other_window = !unit.samples.is_empty() && end != window;
                if is_other_window {
                    open.positions.start = position;
                    break;
                }
                window = end;
                let sample = open.order.sample(position);
                unit.samples.push(sample);
                open.batch.sample_ids.push(sample);
                self.planned += 1;
                is_full = self.is_full(unit.samples.len());
                if is_full {
                    break;
                }
            }
            if is_other_window || !open.positions.is_empty() {
                self.open = Some(open);
                break;
            }
            unit.batches.push(open.batch);
            is_full |= self.sizes.is_none() && self.shard == self.run.start;
        }
        unit.needed_from = match &self.open {
            Some(open) => open.batch.first,
            None => self.planned,
        };
        unit
    }

    fn is_full(&self, samples: usize) -> bool {
        self.sizes
            .is_some_and(|(each, most)| samples as u64 * each >= most)
    }

    /// Starts the next batch.
    fn begin(&mut self) -> Option<OpenBatch> {
        if self.index >= self.count {
            return None;
        }
        let (index, shard) = (self.index, Shard(self.shard));
        let (step, positions) = self.positions(shard)?;
        self.shard += 1;
        if self.shard == self.run.end {
            (self.index, self.shard) = (index + 1, self.run.start);
        }
        let batches: &BatchPlan = &self.plan.batches;
        let global = batches.batch(step);
        let order = match self.order {
            Some((epoch, order)) if epoch == global.epoch => order,
            _ => batches.order(global.epoch),
        };
        self.order = Some((global.epoch, order));
        Some(OpenBatch {
            batch: PlannedBatch {
                index,
                epoch: global.epoch,
                shard,
                sample_ids: Vec::with_capacity((positions.end - positions.start) as usize),
                first: self.planned,
            },
            order,
            positions,
        })
    }

    /// Returns the step of the plan that a batch belongs to, and the batch's positions in the order of the epoch.
    fn positions(&mut self, shard: Shard) -> Option<(Step, Range<u64>)> {
        if let Some(inner) = &mut self.inner {
            if shard.0 == 0 {
                inner.step = inner.left.next();
            }
            let step = inner.step?;
            return Some((step.round, inner.rounds.positions(step, shard.0)));
        }
        let step = self.plan.step(self.index);
        let global = self.plan.batches.batch(step);
        let within = self.plan.shards.samples(shard, global.samples());
        let start = global.positions.start;
        Some((step, start + within.start..start + within.end))
    }
}
