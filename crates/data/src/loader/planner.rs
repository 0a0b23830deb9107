//! [`Planner`]: cuts the samples of a rank, in the order in which they are due, into units that are fetched at once.

use std::ops::Range;

use ronde_core::batch::BatchPlan;
use ronde_core::order::SampleOrder;
use ronde_core::{Epoch, Shard, Step};

use super::LoaderPlan;
use crate::Dataset;

/// A batch whose samples are known.
#[derive(Debug)]
pub(super) struct PlannedBatch {
    /// Number of the step among those of the loader.
    pub index: u64,
    pub epoch: Epoch,
    pub shard: Shard,
    pub sample_ids: Vec<u64>,
    /// Number of its first sample among all samples of the loader.
    pub first: u64,
}

/// Samples that are fetched at once, and the batches that are complete with them.
#[derive(Debug, Default)]
pub(super) struct Unit {
    /// Number of the first one among all samples of the loader.
    pub first: u64,
    pub samples: Vec<u64>,
    pub batches: Vec<PlannedBatch>,
    /// Number of the first sample that later batches use.
    pub needed_from: u64,
}

/// Goes through the steps once.
#[derive(Debug)]
pub(super) struct Planner {
    plan: LoaderPlan,
    /// Bytes of a sample, and of a unit; `None` where reading neighbours at once is of no use.
    sizes: Option<(u64, u64)>,
    order: Option<(Epoch, SampleOrder)>,
    /// Step and shard that are next, and the batch that is begun.
    index: u64,
    shard: u32,
    open: Option<Open>,
    /// Samples planned up to now.
    planned: u64,
}

/// A batch of which some positions are still to be planned.
#[derive(Debug)]
struct Open {
    batch: PlannedBatch,
    order: SampleOrder,
    positions: Range<u64>,
}

impl Planner {
    pub(super) fn new(dataset: &dyn Dataset, plan: LoaderPlan, unit_bytes: u64) -> Self {
        let sizes = dataset
            .locality()
            .map(|locality| (locality.sample_bytes.max(1), unit_bytes));
        Self {
            sizes,
            order: None,
            index: 0,
            shard: plan.run.start,
            open: None,
            planned: 0,
            plan,
        }
    }

    /// Whether neighbours are read at once.
    pub(super) fn is_stored(&self) -> bool {
        self.sizes.is_some()
    }

    /// The step that the next unit begins with; `None` after the last one.
    pub(super) fn next_index(&self) -> Option<u64> {
        let open = self.open.as_ref().map(|open| open.batch.index);
        open.or_else(|| (self.index < self.plan.count()).then_some(self.index))
    }

    /// The next unit: the rest of a window of the order, a whole step where samples do not lie together, or as much as
    /// fits.
    pub(super) fn next_unit(&mut self) -> Unit {
        let mut unit = Unit {
            first: self.planned,
            ..Unit::default()
        };
        let (mut window, mut is_full) = (None, false);
        while !is_full {
            let Some(mut open) = self.open.take().or_else(|| self.begin()) else {
                break;
            };
            let mut is_elsewhere = false;
            while let Some(position) = open.positions.next() {
                let end = open.order.window_end(position);
                is_elsewhere = !unit.samples.is_empty() && end != window;
                if is_elsewhere {
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
            if is_elsewhere || !open.positions.is_empty() {
                self.open = Some(open);
                break;
            }
            unit.batches.push(open.batch);
            is_full |= self.sizes.is_none() && self.shard == self.plan.run.start;
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

    /// Begins the next batch.
    fn begin(&mut self) -> Option<Open> {
        if self.index >= self.plan.count() {
            return None;
        }
        let (index, shard) = (self.index, Shard(self.shard));
        self.shard += 1;
        if self.shard == self.plan.run.end {
            (self.index, self.shard) = (index + 1, self.plan.run.start);
        }
        let batches: &BatchPlan = &self.plan.batches;
        let step: Step = self.plan.step(index);
        let global = batches.batch(step);
        let within = self.plan.shards.samples(shard, global.samples());
        let start = global.positions.start;
        let order = match self.order {
            Some((epoch, order)) if epoch == global.epoch => order,
            _ => batches.order(global.epoch),
        };
        self.order = Some((global.epoch, order));
        Some(Open {
            batch: PlannedBatch {
                index,
                epoch: global.epoch,
                shard,
                sample_ids: Vec::with_capacity((within.end - within.start) as usize),
                first: self.planned,
            },
            order,
            positions: start + within.start..start + within.end,
        })
    }
}
