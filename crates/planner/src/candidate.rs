//! [`LayoutCandidate`]: a layout of a model with its buckets and its memory, for a forecast.

use std::ops::Range;

use ronde_core::GroupRank;
use ronde_core::step_layout::StepLayout;
use ronde_schedule::{ProgramShape, ShardOrder, StageShape};

use crate::choice::LayoutChoice;

/// The layers that share a bucket, and the number of their elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketShape {
    /// The stage that has the layers.
    pub stage: usize,
    /// The layers.
    pub layers: Range<usize>,
    /// Their parameters and buffers: those that belong to no part, then those of each part. Each of these is reduced on its own.
    pub regions: Vec<RegionShape>,
}

/// The elements of a bucket that belong to one part of layers, or to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionShape {
    /// Their number.
    pub elements: usize,
    /// The number of elements that each rank with the same layers updates, if they divide the state.
    pub slices: Vec<usize>,
}

impl BucketShape {
    /// Returns the elements of each region that a worker with some parts has; regions without elements are left out.
    pub(crate) fn own_regions(&self, own: &Range<u32>) -> impl Iterator<Item = usize> + use<'_> {
        let (start, end) = (own.start as usize, own.end as usize);
        let regions = self.regions.iter().enumerate();
        let own = regions
            .filter(move |(region, _)| *region == 0 || (start + 1..end + 1).contains(region));
        own.map(|(_, region)| region.elements)
            .filter(|elements| *elements > 0)
    }
}

/// A layout for a forecast.
#[derive(Debug, Clone)]
pub struct LayoutCandidate {
    /// The choice that it follows from.
    pub choice: LayoutChoice,
    /// The layers and shards of each rank.
    pub layout: StepLayout,
    /// The buckets in the order of the backward pass.
    pub buckets: Vec<BucketShape>,
    /// The layers that compute their activations again in the backward pass, besides those that did so when they were measured.
    pub recomputed: Range<usize>,
    /// The bytes that a worker needs, for each worker of a replica of the model: by its coordinate in the pipeline, then by that
    /// along the tensor axis.
    pub memory_bytes: Vec<u64>,
}

impl LayoutCandidate {
    /// Returns the step of the pipeline of a replica.
    pub(crate) fn program_shape(&self, replica: usize, in_lock_step: bool) -> ProgramShape {
        let layout = &self.layout;
        let buckets_of = |stage: usize| {
            let is_later = |bucket: &BucketShape| bucket.stage > stage;
            let first = self.buckets.partition_point(is_later);
            let is_own_or_later = |bucket: &BucketShape| bucket.stage >= stage;
            first..self.buckets.partition_point(is_own_or_later)
        };
        let stages = layout.stages().iter().enumerate();
        let stages = stages.map(|(index, stage)| StageShape {
            column: stage.column,
            buckets: buckets_of(index),
            cost: 1,
        });
        let run = |replica: usize| layout.shards().run(GroupRank(replica as u32));
        let gathers = self.choice.zero == 3 && layout.replicas() > 1;
        let most = || {
            (0..layout.replicas())
                .map(|replica| run(replica).len() as u32)
                .max()
        };
        ProgramShape {
            stages: stages.collect(),
            shards: run(replica),
            order: match in_lock_step {
                true => ShardOrder::LockStep,
                false => self.choice.order,
            },
            together: 1,
            gather_rounds: gathers.then(most).flatten(),
        }
    }
}
