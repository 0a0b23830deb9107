//! Buckets: layers whose gradients are reduced together, last layer first.
//!
//! A bucket is one range of the flat state, made of whole layers, so that a layer's backward pass
//! writes directly into the buffer that is sent. Small adjacent layers share a bucket up to a size; a
//! larger layer has a separate bucket. Buckets never change the trained bits, because every element is
//! summed over shards separately.

use std::ops::Range;

use ronde_core::exact::{Node, TreeSum};
use ronde_core::{Buffer, CollectiveError, Collectives, DType, Operation, Work};

/// The layers of a bucket and its range of the flat state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    /// The layers in backward order: the last layer of the range is first.
    pub layers: Range<usize>,
    /// The elements of the flat state.
    pub elements: Range<usize>,
}

/// Groups layers into buckets. `layer_elements[i]` is the range of layer `i` in the flat state, which
/// is laid out in backward order, with the last layer first. Returns buckets in backward order.
#[must_use]
pub fn plan(layer_elements: &[Range<usize>], bucket_bytes_max: usize) -> Vec<BucketPlan> {
    let mut buckets: Vec<BucketPlan> = Vec::new();
    for (layer, elements) in layer_elements.iter().enumerate().rev() {
        if let Some(bucket) = buckets.last_mut()
            && (elements.end - bucket.elements.start) * DType::F32.size() <= bucket_bytes_max
        {
            bucket.layers.start = layer;
            bucket.elements.end = elements.end;
        } else {
            buckets.push(BucketPlan {
                layers: layer..layer + 1,
                elements: elements.clone(),
            });
        }
    }
    buckets
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

/// A bucket during a step: sums shard gradients over all shards of all ranks.
pub(crate) struct Bucket {
    pub(crate) plan: BucketPlan,
    sum: TreeSum,
    free: Vec<Buffer>,
    in_flight: Option<Box<dyn Work>>,
}

impl Bucket {
    pub(crate) fn new(plan: BucketPlan, shards: u32) -> Self {
        Self {
            plan,
            sum: TreeSum::new(shards),
            free: Vec::new(),
            in_flight: None,
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
            None => group.allocate(DType::F32, self.len()),
        }
    }

    /// Returns a reduced buffer to the bucket for the next step.
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        if buffer.len() == self.len() {
            self.free.push(buffer);
        }
    }

    /// Adds a shard's gradient along the tree.
    pub(crate) fn add_shard(&mut self, shard: u32, gradient: Buffer) {
        let free = self.sum.add_shard(shard, gradient);
        self.free.extend(free);
    }

    /// Starts the reduction of the added gradients over ranks.
    pub(crate) fn start(
        &mut self,
        group: &dyn Collectives,
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let subtrees = self.sum.take();
        let buffer = joined(group, subtrees, self.len(), &mut self.free)?;
        self.in_flight = Some(group.start(operation, buffer)?);
        Ok(())
    }

    /// Waits for the reduction; `None` if none was started.
    pub(crate) fn wait(&mut self) -> Option<Result<Buffer, CollectiveError>> {
        self.in_flight.take().map(Work::wait)
    }

    /// Discards an aborted step.
    pub(crate) fn reset(&mut self) {
        self.free
            .extend(self.sum.take().into_iter().map(|(_, sum)| sum));
        self.in_flight = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            bytes in 1_usize..4000,
        ) {
            let ranges = layout(&lengths);
            let buckets = plan(&ranges, bytes);
            let mut element = 0;
            let mut layer = lengths.len();
            for bucket in &buckets {
                prop_assert_eq!(bucket.elements.start, element);
                prop_assert_eq!(bucket.layers.end, layer);
                let sum: usize = lengths[bucket.layers.clone()].iter().sum();
                prop_assert_eq!(bucket.elements.len(), sum);
                prop_assert!(bucket.layers.len() == 1 || sum * 4 <= bytes);
                element = bucket.elements.end;
                layer = bucket.layers.start;
            }
            prop_assert_eq!(layer, 0);
            prop_assert_eq!(element, lengths.iter().sum::<usize>());
        }
    }
}
