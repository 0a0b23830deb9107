//! [`Reducer`]: the buckets of a rank in a group, from the gradient of a shard to the reduced gradient.
//!
//! A unit is the layers of a bucket. Its passes run at once, whatever the number of buckets that these layers have: one for each part
//! of the layers.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::{Buffer, CollectiveError, Group};

use super::SynchronousConfig;
use super::mesh::MeshPosition;
use super::state_slices::StateSlices;
use super::timer::StepTimer;
use crate::bucket::{self, Bucket, BucketPlan, buckets_in_flight};
use crate::compression::{CompressedExchange, CompressionState, SentGradient};
use crate::error::ParallelError;
use crate::state::StateOutline;
use crate::step_method::{GradientPart, ReducedGradient};
use crate::zero::ZeroLevel;

/// The buckets whose contributions are under way while the backward pass continues. All ranks start the second exchange of a
/// bucket at the same point of a step.
const IN_FLIGHT: usize = 2;

/// The gradient of one shard for the layers of a unit: a buffer for each bucket, and with several of them the memory into which
/// the layers write.
pub(super) struct UnitGradient {
    buffers: Vec<(usize, Buffer)>,
    joined: Vec<f32>,
}

impl UnitGradient {
    /// Returns the memory of the gradient: see [`Reducer::unit_ranges`].
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        match &mut self.buffers[..] {
            [(_, buffer)] => buffer.as_mut_slice(),
            _ => &mut self.joined,
        }
    }
}

/// The reductions of a rank. The buckets are in the memory of its group.
pub(super) struct Reducer {
    mesh: Arc<MeshPosition>,
    outline: Arc<StateOutline>,
    buckets: Vec<Bucket>,
    /// The exchange of gradients in a short form.
    compressed: Option<CompressedExchange>,
    /// Whether the memory of a bucket is released as soon as its slice is reduced.
    releases: bool,
    /// Memory for the gradient of layers that have several buckets.
    joined: Vec<f32>,
}

impl Reducer {
    /// Creates the buckets of all stages.
    pub(super) fn new(
        mesh: Arc<MeshPosition>,
        config: &SynchronousConfig,
        slices: &StateSlices,
    ) -> Self {
        let outline = slices.weights.tensors_outline().clone();
        let (layout, shards) = (&mesh.layout, mesh.layout.shards());
        let sums_sparsely = config.sums_sparsely(&mesh.all.hosts());
        let tensors = outline.tensors.iter();
        let tensors: Vec<Range<usize>> = tensors.map(|tensor| tensor.range.clone()).collect();
        let is_scattered = config.zero.is_sharded() && layout.replicas() > 1;
        let plans = bucket::plan(&outline.regions, layout.stages(), config.bucket_bytes_max);
        let buckets = plans.into_iter().map(|plan| {
            let updating = layout.updating();
            let mut own = vec![plan.elements.start..plan.elements.start; updating.start];
            own.extend(bucket::slices(&plan.elements, &tensors, updating.len()));
            let has_tables = outline.has_tables[plan.layers.clone()].contains(&true);
            let bucket = Bucket::new(plan, own, is_scattered, shards.shards());
            match &config.compression {
                Some(compression) => bucket.divided_by(compression.senders),
                None => bucket.with_sparse_sums(sums_sparsely && has_tables),
            }
        });
        let buckets: Vec<Bucket> = buckets.collect();
        let ranges = buckets.iter().map(|bucket| bucket.plan.elements.clone());
        let compressed = slices
            .compression
            .as_ref()
            .map(|state| CompressedExchange::new(state, &slices.weights, shards, ranges));
        Self {
            outline,
            buckets,
            compressed,
            releases: config.zero >= ZeroLevel::Gradients,
            joined: Vec::new(),
            mesh,
        }
    }

    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns the ranks with the same layers.
    pub(super) fn same_layers(&self) -> Result<&Arc<dyn Group>, ParallelError> {
        self.mesh.same_layers()
    }

    /// Returns whether a rank holds a part of the state only.
    pub(super) fn is_divided(&self) -> bool {
        self.mesh.layout.divides_model() || self.buckets.iter().any(Bucket::is_scattered)
    }

    /// Returns the indices of the buckets of this rank's layers and parts, in backward order.
    pub(super) fn own_buckets(&self) -> Vec<usize> {
        let column = self.mesh.place().map(|place| place.column);
        let regions = self.mesh.regions_of(self.mesh.rank());
        let is_own = |index: &usize| {
            let BucketPlan { stage, region, .. } = &self.buckets[*index].plan;
            Some(self.mesh.layout.stages()[*stage].column) == column && regions.contains(region)
        };
        (0..self.buckets.len()).filter(is_own).collect()
    }

    /// Returns the layers of a unit, which are the layers of its first bucket.
    pub(super) fn unit(&self, unit: usize) -> &BucketPlan {
        &self.buckets[unit * self.outline.regions.len()].plan
    }

    /// Returns this rank's buckets of a unit, in the order of their regions.
    pub(super) fn buckets_of_unit(&self, unit: usize) -> Vec<usize> {
        let own = self.mesh.regions_of(self.mesh.rank());
        let count = self.outline.regions.len();
        let regions = (0..count).filter(|region| own.contains(region));
        regions.map(|region| unit * count + region).collect()
    }

    /// Returns the units of a stage.
    pub(super) fn units_of_stage(&self, stage: usize) -> Range<usize> {
        // In backward order, the units of later stages are first.
        let regions = self.outline.regions.len();
        let is_later = |bucket: &Bucket| bucket.plan.stage > stage;
        let first = self.buckets.partition_point(is_later);
        let is_own_or_later = |bucket: &Bucket| bucket.plan.stage >= stage;
        first / regions..self.buckets.partition_point(is_own_or_later) / regions
    }

    /// Returns the ranges of a layer's tensors in the joined buckets of this rank of a unit, in the order of the layer's layout;
    /// empty for tensors of other parts.
    pub(super) fn unit_ranges(&self, unit: usize, layer: usize) -> Vec<Range<usize>> {
        let mut before = 0;
        let mut offsets = Vec::new();
        for index in self.buckets_of_unit(unit) {
            let elements = self.buckets[index].plan.elements.clone();
            offsets.push((elements.clone(), before));
            before += elements.len();
        }
        let range = |tensor: &Range<usize>| {
            let is_in = |elements: &Range<usize>| {
                elements.start <= tensor.start && tensor.end <= elements.end
            };
            let found = offsets.iter().find(|(elements, _)| is_in(elements));
            found.map_or(0..0, |(elements, before)| {
                let start = before + tensor.start - elements.start;
                start..start + tensor.len()
            })
        };
        let tensors = self.outline.layer_ranges[layer].iter();
        tensors.map(range).collect()
    }

    /// Returns a buffer of a bucket for one shard's gradient.
    pub(super) fn take_buffer(&mut self, index: usize) -> Result<Buffer, ParallelError> {
        let group = self.mesh.same_layers()?;
        let taken = self.buckets[index].take_buffer(&**group);
        taken.map_err(|source| self.bucket_error(index, source))
    }

    /// Adds the gradient of a shard to the sum of a bucket.
    pub(super) fn add_shard(&mut self, index: usize, shard: u32, gradient: Buffer) {
        self.buckets[index].add_shard(shard, gradient);
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

    /// Returns the shards of a run whose gradients a unit adds together: see [`Bucket::subtrees`].
    pub(super) fn subtrees(&self, unit: usize, run: Range<u32>) -> Vec<Range<u32>> {
        // Buckets of one unit are added along the same tree.
        let first = self.buckets_of_unit(unit).first().copied();
        first.map_or_else(Vec::new, |first| self.buckets[first].subtrees(run))
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

    /// Starts the sum of a bucket over all shards of all ranks.
    pub(super) fn start(
        &mut self,
        index: usize,
        compression: Option<&CompressionState>,
        timer: &mut StepTimer,
    ) -> Result<(), ParallelError> {
        if let Some(state) = compression {
            return self.start_compressed(index, state);
        }
        let mesh = self.mesh.clone();
        let operation = self.buckets[index].reduction(mesh.layout.shards().exact_sum());
        let started = self.buckets[index].start(&**mesh.same_layers()?, operation);
        started.map_err(|source| self.bucket_error(index, source))?;
        let own = self.own_buckets();
        let position = own.iter().position(|&own| own == index);
        // One more is filled while these are reduced.
        let reduced = buckets_in_flight(4 * self.buckets[index].len()) - 1;
        if let Some(position) = position
            && let Some(last) = position.checked_sub(reduced)
        {
            // Nothing is done twice; before a long bucket there may be two.
            for &earlier in &own[last.saturating_sub(1)..=last] {
                self.release(earlier, timer)?;
            }
        }
        Ok(())
    }

    /// Releases the memory of a bucket as soon as its slice is reduced, if gradients are divided.
    fn release(&mut self, index: usize, timer: &mut StepTimer) -> Result<(), ParallelError> {
        if !self.releases || !self.buckets[index].is_scattered() {
            return Ok(());
        }
        let start_s = timer.now();
        let group = self.mesh.same_layers()?;
        let released = self.buckets[index].release(&**group);
        timer.waited_since(start_s);
        released.map_err(|source| self.bucket_error(index, source))
    }

    /// Sends the gradients of a bucket in a short form.
    fn start_compressed(
        &mut self,
        index: usize,
        state: &CompressionState,
    ) -> Result<(), ParallelError> {
        let group = self.mesh.same_layers()?.clone();
        let sums = self.buckets[index].take_senders();
        let exchange = self.compressed.as_mut().ok_or_else(not_started)?;
        if let Some(sender) = exchange.missing(state, index, &sums) {
            let problem = format!("the residuals of sender {sender} are not on this worker");
            return Err(ParallelError::OutOfOrder { problem });
        }
        let started = exchange.start(state, index, sums, &*group);
        started.map_err(|source| self.bucket_error(index, source))?;
        self.gather_compressed(IN_FLIGHT, state)
    }

    /// Waits for contributions and starts the second exchange of their buckets, until `rest` buckets are left.
    fn gather_compressed(
        &mut self,
        rest: usize,
        state: &CompressionState,
    ) -> Result<(), ParallelError> {
        let group = self.mesh.same_layers()?.clone();
        while let Some(exchange) = &mut self.compressed
            && let Some((index, gathered)) = exchange.gather_next(state, rest, &*group)
        {
            gathered.map_err(|source| self.bucket_error(index, source))?;
        }
        Ok(())
    }

    /// Waits for the sums of all buckets of this rank.
    pub(super) fn wait(
        &mut self,
        compression: Option<&CompressionState>,
        timer: &mut StepTimer,
    ) -> Result<ReducedGradient, ParallelError> {
        if let Some(state) = compression {
            return self.wait_compressed(state);
        }
        let place = self.mesh.place();
        let replica = place.map_or(0, |place| place.replica);
        // Ranks with different parts have the same gradient of undivided tensors.
        let is_first = place.is_none_or(|place| place.tensor == 0);
        let is_divided = self.is_divided();
        let mut parts = Vec::new();
        for index in self.own_buckets() {
            self.release(index, timer)?;
            let bucket = &self.buckets[index];
            let reports = bucket.plan.region > 0 || is_first;
            let is_owned = reports && (bucket.is_scattered() || replica == 0) || !is_divided;
            parts.push(GradientPart {
                elements: bucket.received_by(replica),
                sum: self.wait_for(index)?,
                is_owned,
            });
        }
        Ok(ReducedGradient::of(parts))
    }

    /// Waits for the sum of a bucket.
    pub(super) fn wait_for(&mut self, index: usize) -> Result<Buffer, ParallelError> {
        let group = self.mesh.same_layers()?;
        let sum = self.buckets[index].wait(&**group).ok_or_else(not_started)?;
        sum.map_err(|source| self.bucket_error(index, source))
    }

    fn wait_compressed(
        &mut self,
        state: &CompressionState,
    ) -> Result<ReducedGradient, ParallelError> {
        self.gather_compressed(0, state)?;
        let mut parts = Vec::new();
        for index in self.own_buckets() {
            let mut sum = self.take_buffer(index)?;
            let exchange = self.compressed.as_mut().ok_or_else(not_started)?;
            let finished = exchange.finish(state, index, sum.as_mut_slice());
            let finished = finished.ok_or_else(not_started)?;
            finished.map_err(|source| self.bucket_error(index, source))?;
            parts.push(GradientPart {
                elements: self.buckets[index].plan.elements.clone(),
                sum,
                is_owned: true,
            });
        }
        let exchange = self.compressed.as_mut();
        let sent = exchange.map_or_else(SentGradient::default, CompressedExchange::take_sent);
        Ok(ReducedGradient { parts, sent })
    }

    /// Returns memory that is not used any more to the buckets of these elements, for the next step.
    pub(super) fn recycle(&mut self, parts: impl IntoIterator<Item = (Range<usize>, Buffer)>) {
        for (elements, memory) in parts {
            let mut buckets = self.buckets.iter_mut();
            if let Some(bucket) = buckets.find(|bucket| bucket.plan.elements == elements) {
                bucket.recycle(memory);
            }
        }
    }

    /// Discards an aborted step.
    pub(super) fn reset(&mut self) {
        self.buckets.iter_mut().for_each(Bucket::reset);
        if let Some(exchange) = &mut self.compressed {
            exchange.reset();
        }
    }

    pub(super) fn bucket_error(&self, index: usize, source: CollectiveError) -> ParallelError {
        let elements = &self.buckets[index].plan.elements;
        let tensors = self.outline.tensors.iter();
        let names = tensors
            .filter(|tensor| elements.contains(&tensor.range.start))
            .map(|tensor| tensor.entry.name.as_str());
        let names: Vec<&str> = names.collect();
        let tensors = match (names.first(), names.last()) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            _ => "no tensor".to_owned(),
        };
        ParallelError::Collective {
            bucket: index + 1,
            buckets: self.buckets.len(),
            tensors,
            source,
        }
    }
}

fn not_started() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no reduction was started".to_owned(),
    }
}
