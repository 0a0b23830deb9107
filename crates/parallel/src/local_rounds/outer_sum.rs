//! [`OuterSum`]: the exact sum of the contributions of all replicas, in the form of the settings.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::exact::ExactSum;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Buffer, CollectiveError, DType, Group, Operation, Step};

use super::LocalRoundsConfig;
use crate::bucket::{Bucket, BucketPlan};
use crate::compression::{Codec, CodedSum, CompressedExchange, SentGradient};
use crate::distributed::DistributedVector;
use crate::error::ParallelError;
use crate::strategy::GradientPart;
use crate::strategy::{HeldVector, HeldVectorMut, Strategy};
use crate::synchronous::SynchronousStrategy;

/// The sums over a part of the state: see [`super::fragments`].
struct FragmentSum {
    elements: Range<usize>,
    /// The sum of the contributions, if they are sent in a short form whose errors are dropped.
    coded: Option<CodedSum>,
    /// The contributions of this rank's replicas, if they are sent with residuals.
    leaves: Vec<(u32, Buffer)>,
    /// The buckets of the weights, unless these are sent in a short form, then those of each averaged state.
    buckets: Vec<Bucket>,
}

/// The sums of one rank.
#[derive(Default)]
pub(super) struct OuterSum {
    format: Codec,
    fragment_count: u32,
    fragments: Vec<FragmentSum>,
    /// The exchange with residuals, if the settings have it. Its ranges are the fragments.
    compressed: Option<CompressedExchange>,
    /// Memory for a contribution that is sent in a short form.
    scratch: Vec<f32>,
}

fn not_begun() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no sum over replicas was begun".to_owned(),
    }
}

fn exchange_failed(source: CollectiveError) -> ParallelError {
    ParallelError::Exchange {
        action: "sum the displacements of the replicas".to_owned(),
        source,
    }
}

impl OuterSum {
    /// Creates the sums of a run that begins. With each weight, `averaged` states of the inner optimizer are summed.
    pub(super) fn new(
        config: LocalRoundsConfig,
        inner: &SynchronousStrategy,
        averaged: usize,
        (group, layout): (&Arc<dyn Group>, &StepLayout),
    ) -> Self {
        let compressed = config.compression.map(|config| {
            let shards = (layout.shards(), group.rank());
            CompressedExchange::new(config, inner.seeds(), inner.state(), shards)
        });
        let mut this = Self {
            format: config.outer_format,
            fragment_count: config.fragments(),
            fragments: Vec::new(),
            compressed,
            scratch: Vec::new(),
        };
        this.arrange(inner, averaged, layout);
        this
    }

    /// Enters a layout, with buckets in the memory of another group.
    pub(super) fn arrange(
        &mut self,
        inner: &SynchronousStrategy,
        averaged: usize,
        layout: &StepLayout,
    ) {
        let state = inner.state();
        let fragments = super::fragments(state, self.fragment_count);
        if let Some(compressed) = &mut self.compressed {
            compressed.arrange(state, layout.shards(), fragments.iter().cloned());
        }
        let format = self.format;
        let is_short = format != Codec::F32 || self.compressed.is_some();
        let replicas = layout.shards().shards();
        let plans = match fragments.len() {
            1 => inner.bucket_plans(),
            _ => fragments.iter().cloned().map(plan_of).collect(),
        };
        let first = usize::from(is_short);
        let of_fragment = |elements: Range<usize>| {
            let within = plans.iter().filter(|plan| {
                plan.elements.start >= elements.start && plan.elements.end <= elements.end
            });
            let within: Vec<&BucketPlan> = within.collect();
            let shifted = (first..=averaged).flat_map(|vector| {
                let shift = vector * state.len();
                within.iter().map(move |plan| BucketPlan {
                    elements: plan.elements.start + shift..plan.elements.end + shift,
                    ..(*plan).clone()
                })
            });
            let buckets = shifted.map(|plan| Bucket::new(plan, Vec::new(), false, replicas));
            FragmentSum {
                coded: (format != Codec::F32)
                    .then(|| CodedSum::new(state, elements.clone(), format, layout.ranks())),
                leaves: Vec::new(),
                buckets: buckets.collect(),
                elements,
            }
        };
        self.fragments = fragments.into_iter().map(of_fragment).collect();
    }

    /// Returns the elements of a fragment.
    pub(super) fn elements(&self, fragment: usize) -> Range<usize> {
        self.fragments[fragment].elements.clone()
    }

    /// Returns the number of sums of all fragments.
    pub(super) fn parts(&self) -> usize {
        let each = self.fragments.iter();
        each.map(|fragment| fragment.buckets.len().max(1)).sum()
    }

    /// Returns the vectors of the state that belong to the exchange.
    pub(super) fn vectors(&self) -> impl Iterator<Item = HeldVector<'_>> {
        self.compressed.iter().flat_map(CompressedExchange::vectors)
    }

    /// Returns the same vectors, mutable.
    pub(super) fn vectors_mut(&mut self) -> impl Iterator<Item = HeldVectorMut<'_>> {
        let compressed = self.compressed.iter_mut();
        compressed.flat_map(CompressedExchange::vectors_mut)
    }

    /// Returns the residuals, if there are any.
    pub(super) fn residuals(&self) -> Option<&DistributedVector> {
        self.compressed.as_ref().map(CompressedExchange::residuals)
    }

    /// Returns the residuals, mutable.
    pub(super) fn residuals_mut(&mut self) -> Option<&mut DistributedVector> {
        let compressed = self.compressed.as_mut();
        compressed.map(CompressedExchange::residuals_mut)
    }

    /// Discards all contributions.
    pub(super) fn reset(&mut self) {
        for fragment in &mut self.fragments {
            fragment.buckets.iter_mut().for_each(Bucket::reset);
            fragment.leaves.clear();
            if let Some(coded) = &mut fragment.coded {
                coded.reset();
            }
        }
        if let Some(compressed) = &mut self.compressed {
            compressed.reset();
        }
    }

    /// Adds the contribution of the next replica, which `write` writes into memory for elements of the weights, and after them of the
    /// averaged states.
    pub(super) fn add(
        &mut self,
        (fragment, replica): (usize, u32),
        group: &dyn Group,
        write: &dyn Fn(&Range<usize>, &mut [f32]),
    ) -> Result<(), ParallelError> {
        let fragment = &mut self.fragments[fragment];
        let elements = &fragment.elements;
        if let Some(coded) = &mut fragment.coded {
            self.scratch.resize(elements.len(), 0.0);
            write(elements, &mut self.scratch);
            coded.add(&mut self.scratch, false);
        }
        if self.compressed.is_some() {
            let mut leaf = Buffer::host(DType::F32, elements.len());
            write(elements, leaf.as_mut_slice());
            fragment.leaves.push((replica, leaf));
        }
        for bucket in &mut fragment.buckets {
            let mut leaf = bucket.take_buffer(group).map_err(exchange_failed)?;
            write(&bucket.plan.elements, leaf.as_mut_slice());
            bucket.add_shard(replica, leaf);
        }
        Ok(())
    }

    /// Starts the sums of a fragment over all ranks.
    pub(super) fn start(
        &mut self,
        index: usize,
        group: &dyn Group,
        replicas: &ExactSum,
    ) -> Result<(), ParallelError> {
        let fragment = &mut self.fragments[index];
        if let Some(coded) = &mut fragment.coded {
            coded.start(group, replicas).map_err(exchange_failed)?;
        }
        if let Some(compressed) = &mut self.compressed {
            let leaves = std::mem::take(&mut fragment.leaves);
            if let Some(replica) = compressed.missing(index, &leaves) {
                let problem = format!("the residuals of replica {replica} are not on this worker");
                return Err(ParallelError::OutOfOrder { problem });
            }
            let started = compressed.start(index, leaves, group);
            started.map_err(exchange_failed)?;
        }
        for bucket in &mut fragment.buckets {
            let operation = Operation::ExactSum(replicas.clone());
            bucket.start(group, operation).map_err(exchange_failed)?;
        }
        Ok(())
    }

    /// Waits for the sums of a fragment.
    pub(super) fn wait(
        &mut self,
        index: usize,
        group: &dyn Group,
        replicas: &ExactSum,
    ) -> Result<(Vec<GradientPart>, SentGradient), ParallelError> {
        let fragment = &mut self.fragments[index];
        let (mut parts, mut sent) = (Vec::new(), SentGradient::default());
        let part = |elements: &Range<usize>, sum| GradientPart {
            elements: elements.clone(),
            sum,
            is_owned: true,
        };
        if let Some(coded) = &mut fragment.coded {
            let mut sum = Buffer::host(DType::F32, fragment.elements.len());
            let gathered = coded.gather(group, replicas, None);
            let gathered = gathered.ok_or_else(not_begun)?;
            gathered.map_err(exchange_failed)?;
            let finished = coded.finish(sum.as_mut_slice()).ok_or_else(not_begun)?;
            finished.map_err(exchange_failed)?;
            parts.push(part(&fragment.elements, sum));
        }
        if let Some(compressed) = &mut self.compressed {
            let mut sum = Buffer::host(DType::F32, fragment.elements.len());
            let gathered = compressed.gather(index, group);
            gathered.ok_or_else(not_begun)?.map_err(exchange_failed)?;
            let finished = compressed.finish(index, sum.as_mut_slice());
            finished.ok_or_else(not_begun)?.map_err(exchange_failed)?;
            sent = compressed.take_sent();
            parts.push(part(&fragment.elements, sum));
        }
        for bucket in &mut fragment.buckets {
            let sum = bucket.wait(group).ok_or_else(not_begun)?;
            parts.push(part(&bucket.plan.elements, sum.map_err(exchange_failed)?));
        }
        Ok((parts, sent))
    }

    /// Takes over the residuals of a round that was applied, and the memory of its sums.
    pub(super) fn keep(
        &mut self,
        index: usize,
        (parts, sent): (Vec<GradientPart>, SentGradient),
        step: Step,
    ) {
        let fragment = &mut self.fragments[index];
        let is_short = fragment.coded.is_some() || self.compressed.is_some();
        if let Some(compressed) = &mut self.compressed {
            compressed.keep(sent, step);
        }
        let parts = parts.into_iter().skip(usize::from(is_short));
        for (bucket, part) in fragment.buckets.iter_mut().zip(parts) {
            bucket.recycle(part.sum);
        }
    }
}

/// Returns the bucket of a fragment.
fn plan_of(elements: Range<usize>) -> BucketPlan {
    BucketPlan {
        stage: 0,
        layers: 0..0,
        region: 0,
        elements,
    }
}
