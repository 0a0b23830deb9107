//! Layers in parts: the exchange with the ranks that compute the other parts, and the buckets of the same layers.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_core::exact::ExactSum;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Operation, Shard};
use ronde_engine::{EngineError, LayerExt, LayerSetting, NotSummed, PartExchange, PartPlace};

use super::{ComputeClock, SynchronousStrategy};
use crate::bucket::BucketPlan;
use crate::error::ParallelError;

/// The rest of an exchange for the strategy.
#[derive(Default)]
struct ExchangeLog {
    failed: Option<CollectiveError>,
    waited_s: f64,
}

/// The exchange among the ranks that have the same layers and shards, and different parts.
pub(super) struct GroupParts {
    group: Arc<dyn Group>,
    sum: ExactSum,
    clock: Option<ComputeClock>,
    log: Mutex<ExchangeLog>,
}

impl GroupParts {
    fn new(
        group: Arc<dyn Group>,
        layout: &StepLayout,
        parts: u32,
        clock: Option<ComputeClock>,
    ) -> Option<Self> {
        let ends = (0..layout.tensors()).map(|tensor| layout.parts_at(tensor, parts).end);
        let bounds = std::iter::once(0).chain(ends).collect();
        Some(Self {
            group,
            sum: ExactSum::new(bounds)?,
            clock,
            log: Mutex::default(),
        })
    }

    fn log(&self) -> MutexGuard<'_, ExchangeLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, operation: Operation, parts: &[Vec<f32>]) -> Result<Vec<f32>, NotSummed> {
        let now = || self.clock.map_or(0.0, |clock| clock());
        let begun = now();
        let buffer = self.joined(parts);
        let done = buffer.and_then(|buffer| self.group.start_and_wait(operation, buffer));
        let mut log = self.log();
        log.waited_s += now() - begun;
        match done {
            Ok(values) => Ok(values.as_slice::<f32>().to_vec()),
            Err(error) => {
                log.failed = Some(error);
                Err(NotSummed)
            }
        }
    }

    fn joined(&self, parts: &[Vec<f32>]) -> Result<Buffer, CollectiveError> {
        let elements = parts.iter().map(Vec::len).sum();
        let mut buffer = self.group.allocate(DType::F32, elements)?;
        let mut rest = buffer.as_mut_slice::<f32>();
        for part in parts {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = after;
        }
        Ok(buffer)
    }
}

impl PartExchange for GroupParts {
    fn sum(&self, subtrees: Vec<Vec<f32>>) -> Result<Vec<f32>, NotSummed> {
        self.run(Operation::ExactSum(self.sum.clone()), &subtrees)
    }

    fn sum_scattered(
        &self,
        subtrees: Vec<Vec<f32>>,
        elements: &[usize],
    ) -> Result<Vec<f32>, NotSummed> {
        let of_rank = |rank: usize| {
            let parts = self.sum.run(GroupRank(rank as u32));
            let own = &elements[parts.start as usize..parts.end as usize];
            own.iter().sum()
        };
        let scatter = Operation::ExactSumScatter {
            sum: self.sum.clone(),
            lens: (0..self.sum.size()).map(of_rank).collect(),
        };
        self.run(scatter, &subtrees)
    }

    fn gather(&self, own: Vec<f32>) -> Result<Vec<f32>, NotSummed> {
        self.run(Operation::AllGather, &[own])
    }
}

/// The gradient of one shard for the layers of a unit: a buffer for each bucket, and with several of them the memory into which
/// the layers write.
pub(super) struct UnitGradient {
    buffers: Vec<(usize, Buffer)>,
    joined: Vec<f32>,
}

impl UnitGradient {
    /// Returns the memory of the gradient: see [`SynchronousStrategy::unit_ranges`].
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        match &mut self.buffers[..] {
            [(_, buffer)] => buffer.as_mut_slice(),
            _ => &mut self.joined,
        }
    }
}

/// A unit is the layers of a bucket. Its passes run at once, whatever the number of buckets that these layers have.
impl SynchronousStrategy {
    /// Sets the parts that this rank computes, and their exchange.
    pub(super) fn place_parts(&mut self) {
        let parts = self.chain.parts();
        let own = self.layout.own_parts(self.groups.all.rank(), parts);
        let group = self.groups.parts.clone();
        self.exchange = group
            .and_then(|group| GroupParts::new(group, &self.layout, parts, self.clock))
            .map(Arc::new);
        let place = match &self.exchange {
            Some(exchange) => PartPlace::shared(own, parts, exchange.clone()),
            // All parts, or the ranks are not connected yet.
            None => PartPlace::planned(own, parts),
        };
        self.chain.set_parts(&place);
        self.parts = place;
        // Outputs that different ranks have are not joined if the loss does not need that.
        let has_loss_in_parts = self.config.loss.in_parts().is_some();
        self.output_parts = None;
        if let Some(last) = self.chain.layers_mut().last_mut() {
            self.output_parts = last
                .facts()
                .output_parts
                .clone()
                .filter(|_| has_loss_in_parts);
            let is_apart = self.output_parts.is_some() && self.exchange.is_some();
            last.set(LayerSetting::OutputApart(is_apart));
        }
    }

    /// Returns the error behind a failed pass of a shard.
    pub(super) fn pass_error(&self, shard: Shard, source: EngineError) -> ParallelError {
        let exchange = self.exchange.as_ref();
        let failed = exchange.and_then(|exchange| exchange.log().failed.take());
        match (source, failed) {
            (EngineError::NotSummed { layer }, Some(source)) => {
                ParallelError::LayerSum { layer, source }
            }
            (source, _) => ParallelError::Engine { shard, source },
        }
    }

    /// Adds the time of exchanges to that in which this rank waited.
    pub(super) fn count_exchanges(&mut self) {
        if let Some(exchange) = &self.exchange {
            self.times.waited_s += std::mem::take(&mut exchange.log().waited_s);
        }
    }

    /// Returns the layers of a unit, as those of its first bucket.
    pub(super) fn unit(&self, unit: usize) -> &BucketPlan {
        &self.buckets[unit * self.state.regions().len()].plan
    }

    /// Returns this rank's buckets of a unit, in the order of their regions.
    pub(super) fn buckets_of_unit(&self, unit: usize) -> Vec<usize> {
        let regions = self.state.regions().len();
        let own = self.own_regions();
        let regions = (0..regions).filter(|region| own.contains(region));
        let first = unit * self.state.regions().len();
        regions.map(|region| first + region).collect()
    }

    /// Returns the units of a stage.
    pub(super) fn units_of_stage(&self, stage: usize) -> Range<usize> {
        // In backward order, the units of later stages are first.
        let regions = self.state.regions().len();
        let is_later = |bucket: &crate::bucket::Bucket| bucket.plan.stage > stage;
        let first = self.buckets.partition_point(is_later);
        let is_own_or_later = |bucket: &crate::bucket::Bucket| bucket.plan.stage >= stage;
        first / regions..self.buckets.partition_point(is_own_or_later) / regions
    }

    /// Returns the places of a layer's tensors in the joined buckets of this rank of a unit, in the order of the layer's layout;
    /// empty for tensors of other parts.
    pub(super) fn unit_ranges(&self, unit: usize, layer: usize) -> Vec<Range<usize>> {
        let mut before = 0;
        let mut places = Vec::new();
        for index in self.buckets_of_unit(unit) {
            let elements = self.buckets[index].plan.elements.clone();
            places.push((elements.clone(), before));
            before += elements.len();
        }
        let place = |tensor: &Range<usize>| {
            let is_in = |elements: &Range<usize>| {
                elements.start <= tensor.start && tensor.end <= elements.end
            };
            let found = places.iter().find(|(elements, _)| is_in(elements));
            found.map_or(0..0, |(elements, before)| {
                let start = before + tensor.start - elements.start;
                start..start + tensor.len()
            })
        };
        self.state.layer_ranges(layer).iter().map(place).collect()
    }

    /// Returns memory for the gradient of a shard.
    pub(super) fn take_unit(&mut self, unit: usize) -> Result<UnitGradient, ParallelError> {
        let own = self.buckets_of_unit(unit).into_iter();
        let buffers = own.map(|index| Ok((index, self.take_buffer(index)?)));
        let buffers: Vec<(usize, Buffer)> = buffers.collect::<Result<_, ParallelError>>()?;
        let mut joined = Vec::new();
        if buffers.len() != 1 {
            joined = std::mem::take(&mut self.joined);
            joined.resize(buffers.iter().map(|(_, buffer)| buffer.len()).sum(), 0.0);
        }
        Ok(UnitGradient { buffers, joined })
    }

    /// Adds the gradient of a shard, or of those of a subtree, to the sums of its buckets.
    pub(super) fn add_unit(&mut self, shards: &Range<u32>, gradient: UnitGradient) {
        let UnitGradient { buffers, joined } = gradient;
        let is_joined = buffers.len() != 1;
        let mut rest = &joined[..];
        for (index, mut buffer) in buffers {
            if is_joined {
                let (own, after) = rest.split_at(buffer.len());
                buffer.as_mut_slice::<f32>().copy_from_slice(own);
                rest = after;
            }
            self.buckets[index].add_shards(shards, buffer);
        }
        if is_joined {
            self.joined = joined;
        }
    }
}
