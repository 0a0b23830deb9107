//! Buckets: layers whose gradients are reduced together, last layer first.
//!
//! A bucket is one range of the flat state, made of whole layers, so that a layer's backward pass
//! writes directly into the buffer that is sent. Small adjacent layers share a bucket up to a size; a
//! larger layer has a separate bucket. If layers are divided into parts, the same layers have a bucket in each region of the
//! flat state, and a rank has those of its parts. Buckets never change the trained bits, because every element is
//! summed over shards separately.

use std::ops::Range;

use ronde_core::exact::{ExactSum, Node, TreeSum, cover};
use ronde_core::norm::BLOCK;
use ronde_core::step_layout::PipelineStage;
use ronde_core::{Buffer, CollectiveError, Collectives, DType, Operation, Work};

use crate::sparse_sum::SparseSum;

/// The bytes from which a bucket is long.
const LONG_BUCKET: usize = 8 << 20;

/// The layers of a bucket and its range of the flat state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    /// The stage of the pipeline that has the layers.
    pub stage: usize,
    /// The layers in backward order: the last layer of the range is first.
    pub layers: Range<usize>,
    /// The region of the flat state: 0 for tensors that belong to no part, then one for each part of the layers.
    pub region: usize,
    /// The elements of the flat state.
    pub elements: Range<usize>,
}

/// Groups layers into buckets. `regions` has the range of each layer in each region of the flat state, which is laid out in
/// backward order, with the last layer first. Buckets of all regions have the same layers, and the size is that of all together.
/// A bucket ends at the first layer of each of `stages`, which are in order. Returns the buckets of the last layers first, those
/// of the same layers in the order of the regions.
#[must_use]
pub fn plan(
    regions: &[Vec<Range<usize>>],
    stages: &[PipelineStage],
    bucket_bytes_max: usize,
) -> Vec<BucketPlan> {
    let layers = regions.first().map_or(0, Vec::len);
    let mut groups: Vec<(usize, Range<usize>, usize)> = Vec::new();
    for layer in (0..layers).rev() {
        let stage = stages.partition_point(|stage| stage.layers.end <= layer);
        let elements: usize = regions.iter().map(|region| region[layer].len()).sum();
        if let Some((of, layers, sum)) = groups.last_mut()
            && *of == stage
            && (*sum + elements) * DType::F32.size() <= bucket_bytes_max
        {
            layers.start = layer;
            *sum += elements;
        } else {
            groups.push((stage, layer..layer + 1, elements));
        }
    }
    let of_group = |(stage, layers, _): (usize, Range<usize>, usize)| {
        let each = regions.iter().enumerate();
        each.map(move |(region, ranges)| BucketPlan {
            stage,
            layers: layers.clone(),
            region,
            elements: ranges[layers.end - 1].start..ranges[layers.start].end,
        })
    };
    groups.into_iter().flat_map(of_group).collect()
}

/// Returns how many buckets of about `bytes` of a divided state are in memory at once, while gradients are reduced and weights
/// gathered. Long ones keep a link busy with two.
#[must_use]
pub fn buckets_in_flight(bytes: usize) -> usize {
    if bytes > LONG_BUCKET { 2 } else { 3 }
}

/// Divides a bucket among ranks: returns the slice of each rank, nearly even, in the order of ranks. Slices begin at blocks
/// of the norm, which begin anew at each of `tensors` (the ranges of the flat state in order), so that the sums of a block
/// have one owner.
#[must_use]
pub fn slices(
    elements: &Range<usize>,
    tensors: &[Range<usize>],
    ranks: usize,
) -> Vec<Range<usize>> {
    let border = |rank: usize| {
        let wanted =
            elements.start + (elements.len() as u128 * rank as u128 / ranks as u128) as usize;
        let after = tensors.partition_point(|tensor| tensor.start <= wanted);
        let start = match after.checked_sub(1) {
            Some(index) => tensors[index].start.max(elements.start),
            None => elements.start,
        };
        let next = tensors
            .get(after)
            .map_or(elements.end, |tensor| tensor.start);
        let below = start + (wanted - start) / BLOCK * BLOCK;
        let above = (below + BLOCK).min(next).min(elements.end);
        if wanted - below <= above - wanted {
            below
        } else {
            above
        }
    };
    let borders = (0..=ranks).map(|rank| match rank {
        0 => elements.start,
        _ if rank == ranks => elements.end,
        _ => border(rank),
    });
    let borders: Vec<usize> = borders.collect();
    borders.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Concatenates subtrees of a sum of `len` elements, as an exact sum requires them. Several subtrees are
/// copied, and their buffers are added to `free`.
pub(crate) fn joined(
    group: &dyn Collectives,
    subtrees: Vec<(Node, Buffer)>,
    len: usize,
    free: &mut Vec<Buffer>,
) -> Result<Buffer, CollectiveError> {
    let mut subtrees: Vec<Buffer> = subtrees.into_iter().map(|(_, sum)| sum).collect();
    if subtrees.len() == 1 {
        return Ok(subtrees.remove(0));
    }
    let dtype = subtrees.first().map_or(DType::F32, Buffer::dtype);
    let mut all = group.allocate(dtype, len * subtrees.len())?;
    let mut rest = all.bytes_mut();
    for subtree in &subtrees {
        let (to, after) = rest.split_at_mut(subtree.bytes().len());
        to.copy_from_slice(subtree.bytes());
        rest = after;
    }
    free.append(&mut subtrees);
    Ok(all)
}

/// A reduction that is under way.
enum Reduction {
    /// The reduction of all elements.
    Dense(Box<dyn Work>),
    /// The sum of blocks that are not zero, with this rank's subtrees and the operation that reduces all elements.
    Sparse {
        sum: SparseSum,
        subtrees: Vec<(Node, Buffer)>,
        operation: Operation,
    },
}

/// A bucket during a step: sums shard gradients over all shards of all ranks.
pub(crate) struct Bucket {
    pub(crate) plan: BucketPlan,
    /// The slice of each rank that has the layers.
    slices: Vec<Range<usize>>,
    /// Whether each of these ranks receives the sum of its slice only.
    is_scattered: bool,
    /// The sum of the shards of each sender; one over all shards unless sums are compressed.
    sums: Vec<TreeSum>,
    /// The number of shards of a sender.
    width: u32,
    free: Vec<Buffer>,
    /// The number of buffers for gradients that the bucket has taken from the group and not released.
    allocated: usize,
    in_flight: Option<Reduction>,
    /// Whether most elements of a gradient are zero, so that a sparse sum is tried.
    is_sparse: bool,
    /// A reduced slice that was copied out of the bucket's memory.
    reduced: Option<Buffer>,
}

impl Bucket {
    pub(crate) fn new(
        plan: BucketPlan,
        slices: Vec<Range<usize>>,
        is_scattered: bool,
        shards: u32,
    ) -> Self {
        Self {
            plan,
            slices,
            is_scattered,
            sums: vec![TreeSum::new(shards)],
            width: shards,
            free: Vec::new(),
            allocated: 0,
            in_flight: None,
            is_sparse: false,
            reduced: None,
        }
    }

    /// Sums only blocks that are not zero, if that sends fewer bytes.
    pub(crate) fn with_sparse_sums(self, is_sparse: bool) -> Self {
        Self { is_sparse, ..self }
    }

    /// Adds the shards of each of `senders` separately from now on; see [`Bucket::take_senders`]. Their number divides that of
    /// the shards.
    pub(crate) fn divided_by(mut self, senders: u32) -> Self {
        self.width = (self.width / senders.max(1)).max(1);
        self.sums = (0..senders).map(|_| TreeSum::new(self.width)).collect();
        self
    }

    /// Takes the sums of the senders whose shards were added, with the number of the sender, in order.
    pub(crate) fn take_senders(&mut self) -> Vec<(u32, Buffer)> {
        let each = (0..).zip(&mut self.sums);
        let added = each.flat_map(|(sender, sum)| sum.take().into_iter().map(move |s| (sender, s)));
        added.map(|(sender, (_, sum))| (sender, sum)).collect()
    }

    /// Returns the elements of the flat state whose sum a rank receives, given its coordinate along the data axis.
    pub(crate) fn received_by(&self, replica: usize) -> Range<usize> {
        match self.is_scattered {
            true => self.slice_of(replica),
            false => self.plan.elements.clone(),
        }
    }

    /// Returns the slice of a rank, given its coordinate along the data axis.
    pub(crate) fn slice_of(&self, replica: usize) -> Range<usize> {
        self.slices[replica].clone()
    }

    pub(crate) fn is_scattered(&self) -> bool {
        self.is_scattered
    }

    /// Returns the operation that reduces the bucket.
    pub(crate) fn reduction(&self, sum: ExactSum) -> Operation {
        match self.is_scattered {
            true => Operation::ExactSumScatter {
                sum,
                lens: self.slices.iter().map(Range::len).collect(),
            },
            false => Operation::ExactSum(sum),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.plan.elements.len()
    }

    /// Returns a buffer for one shard's gradient, either recycled with old contents or new.
    pub(crate) fn take_buffer(
        &mut self,
        group: &dyn Collectives,
    ) -> Result<Buffer, CollectiveError> {
        match self.free.pop() {
            Some(buffer) => Ok(buffer),
            None => {
                // The sum of a sender stays on this rank.
                let buffer = match self.sums.len() {
                    1 => group.allocate(DType::F32, self.len())?,
                    _ => Buffer::host(DType::F32, self.len()),
                };
                self.allocated += 1;
                Ok(buffer)
            }
        }
    }

    /// Returns a reduced buffer to the bucket for the next step. The result of several subtrees has separate memory,
    /// which is released: the buffers of the subtrees are free already.
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        if buffer.len() == self.len() && self.free.len() < self.allocated {
            self.free.push(buffer);
        }
    }

    /// Returns the shards of a run that are added together, each the leaves of a subtree, in order.
    pub(crate) fn subtrees(&self, mut run: Range<u32>) -> Vec<Range<u32>> {
        let mut found = Vec::new();
        while !run.is_empty() {
            let first = run.start / self.width * self.width;
            let end = run.end.min(first + self.width);
            let nodes = cover(run.start - first..end - first, self.width).into_iter();
            let shards = nodes.map(|node| node.shards(self.width));
            found.extend(shards.map(|shards| first + shards.start..first + shards.end));
            run.start = end;
        }
        found
    }

    /// Adds the gradient of one shard, or of those of a [subtree](Self::subtrees), along the tree.
    pub(crate) fn add_shards(&mut self, shards: &Range<u32>, gradient: Buffer) {
        let sender = (shards.start / self.width) as usize;
        let first = shards.start % self.width;
        let nodes = cover(first..first + shards.len() as u32, self.width);
        assert_eq!(nodes.len(), 1, "shards {shards:?} are not a subtree");
        let free = self.sums[sender].add(nodes[0], gradient);
        self.free.extend(free);
    }

    /// Adds a shard's gradient along the tree.
    pub(crate) fn add_shard(&mut self, shard: u32, gradient: Buffer) {
        self.add_shards(&(shard..shard + 1), gradient);
    }

    /// Starts the reduction of the added gradients over ranks.
    pub(crate) fn start(
        &mut self,
        group: &dyn Collectives,
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let subtrees = self.sums.iter_mut().flat_map(TreeSum::take);
        let subtrees: Vec<(Node, Buffer)> = subtrees.collect();
        let sum = match &operation {
            Operation::ExactSum(sum) | Operation::ExactSumScatter { sum, .. } => Some(sum),
            _ => None,
        };
        self.in_flight = Some(match sum.filter(|_| self.is_sparse && group.size() > 1) {
            Some(sum) => Reduction::Sparse {
                sum: SparseSum::start(
                    group,
                    sum.clone(),
                    &subtrees,
                    self.len(),
                    self.is_scattered,
                )?,
                subtrees,
                operation,
            },
            None => {
                let buffer = joined(group, subtrees, self.len(), &mut self.free)?;
                Reduction::Dense(group.start(operation, buffer)?)
            }
        });
        Ok(())
    }

    /// Waits for the reduction; `None` if none was started.
    pub(crate) fn wait(
        &mut self,
        group: &dyn Collectives,
    ) -> Option<Result<Buffer, CollectiveError>> {
        match self.reduced.take() {
            Some(slice) => Some(Ok(slice)),
            None => {
                let reduction = self.in_flight.take()?;
                Some(self.finish(group, reduction))
            }
        }
    }

    fn finish(
        &mut self,
        group: &dyn Collectives,
        reduction: Reduction,
    ) -> Result<Buffer, CollectiveError> {
        let (sum, mut subtrees, operation) = match reduction {
            Reduction::Dense(work) => return work.wait(),
            Reduction::Sparse {
                sum,
                subtrees,
                operation,
            } => (sum, subtrees, operation),
        };
        let Some(sum) = sum.wait(group)? else {
            let buffer = joined(group, subtrees, self.len(), &mut self.free)?;
            return group.start_and_wait(operation, buffer);
        };
        let own = match self.is_scattered {
            true => self.slice_of(group.rank().index()),
            false => self.plan.elements.clone(),
        };
        let whole = (own.len() == self.len()).then(|| subtrees.pop()).flatten();
        let mut buffer = match whole {
            Some((_, buffer)) => buffer,
            None => Buffer::copy_of(&vec![0.0_f32; own.len()]),
        };
        sum.write(own.start - self.plan.elements.start, buffer.as_mut_slice());
        self.free
            .extend(subtrees.into_iter().map(|(_, buffer)| buffer));
        Ok(buffer)
    }

    /// Waits for the reduction, copies the slice out of the bucket's memory and releases that. Does nothing unless a
    /// reduction is under way.
    pub(crate) fn release(&mut self, group: &dyn Collectives) -> Result<(), CollectiveError> {
        let Some(reduction) = self.in_flight.take() else {
            return Ok(());
        };
        let sum = self.finish(group, reduction)?;
        self.reduced = Some(Buffer::copy_of(sum.as_slice::<f32>()));
        // The next step takes memory again; meanwhile other buckets use it.
        self.free.clear();
        self.allocated = 0;
        Ok(())
    }

    /// Discards an aborted step.
    pub(crate) fn reset(&mut self) {
        for sum in &mut self.sums {
            self.free.extend(sum.take().into_iter().map(|(_, sum)| sum));
        }
        self.in_flight = None;
        self.reduced = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use ronde_comm::testing;
    use ronde_core::layout::Arena;

    use super::*;

    /// With three ranks, some hold several subtrees: their sum is a new buffer in each step.
    #[test]
    fn the_number_of_buffers_does_not_grow_with_the_steps() {
        const LEN: usize = 1_000;
        let bounds = [0, 3, 6, 8];
        testing::spawn_ranks(3, Duration::from_secs(60), move |group| {
            let rank = group.rank().0 as usize;
            let stage = PipelineStage {
                layers: 0..1,
                column: 0,
            };
            let plan = plan(&[layout(&[LEN])], &[stage], 1).remove(0);
            let mut bucket = Bucket::new(plan, vec![0..LEN; 3], false, 8);
            for _ in 0..20 {
                for shard in bounds[rank]..bounds[rank + 1] {
                    let gradient = bucket.take_buffer(&group)?;
                    bucket.add_shard(shard, gradient);
                }
                let sum = ExactSum::new(bounds.to_vec()).expect("valid bounds");
                bucket.start(&group, Operation::ExactSum(sum))?;
                let reduced = bucket.wait(&group).expect("a reduction was started")?;
                bucket.recycle(reduced);
                assert!(bucket.free.len() <= 3, "rank {rank}: {}", bucket.free.len());
                assert_eq!(bucket.free.len(), bucket.allocated, "rank {rank}");
            }
            Ok::<_, CollectiveError>(())
        });
    }

    /// Lays layers of the given lengths out in backward order.
    fn layout(lengths: &[usize]) -> Vec<Range<usize>> {
        let mut at = 0;
        let mut ranges = vec![0..0; lengths.len()];
        for (layer, &length) in lengths.iter().enumerate().rev() {
            ranges[layer] = at..at + length;
            at += length;
        }
        ranges
    }

    proptest! {
        #[test]
        fn buckets_are_whole_layers_in_backward_order_and_cover_all(
            lengths in prop::collection::vec(0_usize..500, 1..30),
            cut in 0_usize..30,
            bytes in 1_usize..4000,
        ) {
            let ranges = layout(&lengths);
            let cut = cut.min(lengths.len());
            let stages = [0..cut, cut..lengths.len()].map(|layers| PipelineStage { layers, column: 0 });
            let buckets = plan(std::slice::from_ref(&ranges), &stages, bytes);
            let mut element = 0;
            let mut layer = lengths.len();
            for bucket in &buckets {
                prop_assert_eq!(bucket.elements.start, element);
                prop_assert_eq!(bucket.layers.end, layer);
                let stage = usize::from(bucket.layers.start >= cut);
                prop_assert_eq!(bucket.stage, stage);
                prop_assert!(stage == 1 || bucket.layers.end <= cut, "one stage");
                let sum: usize = lengths[bucket.layers.clone()].iter().sum();
                prop_assert_eq!(bucket.elements.len(), sum);
                prop_assert!(bucket.layers.len() == 1 || sum * 4 <= bytes);
                element = bucket.elements.end;
                layer = bucket.layers.start;
            }
            prop_assert_eq!(layer, 0);
            prop_assert_eq!(element, lengths.iter().sum::<usize>());
        }

        #[test]
        fn slices_cover_a_bucket_and_begin_at_blocks(
            lengths in prop::collection::vec(0_usize..20_000, 1..20),
            cut in (0_usize..20, 0_usize..20),
            ranks in 1_usize..9,
        ) {
            let arena = Arena::new(lengths.iter().copied());
            let tensors = arena.ranges();
            let first = cut.0.min(cut.1).min(tensors.len() - 1);
            let end = tensors.get(cut.0.max(cut.1) + 1).map_or(arena.len(), |tensor| tensor.start);
            let elements = tensors[first].start..end.max(tensors[first].start);
            let slices = slices(&elements, tensors, ranks);
            prop_assert_eq!(slices.len(), ranks);
            prop_assert_eq!(slices[0].start, elements.start);
            prop_assert_eq!(slices[ranks - 1].end, elements.end);
            for pair in slices.windows(2) {
                let border = pair[0].end;
                prop_assert_eq!(border, pair[1].start);
                prop_assert!(pair[0].start <= border);
                let tensor = tensors.iter().rev().find(|tensor| tensor.start <= border);
                let offset = border - tensor.map_or(0, |tensor| tensor.start);
                prop_assert!(border == elements.end || offset % BLOCK == 0, "{border}");
                prop_assert!(pair[0].len() <= elements.len() / ranks + 2 * BLOCK);
            }
        }
    }
}
