//! [`OuterSum`]: the exact sum of the contributions of all replicas, in the form of the settings.

use std::ops::Range;

use ronde_core::exact::ExactSum;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Buffer, CollectiveError, DType, Group, Operation};

use super::LocalRoundsConfig;
use crate::bucket::{Bucket, BucketPlan};
use crate::compression::{Codec, CodedSum, CompressedExchange, CompressionState, SentGradient};
use crate::error::ParallelError;
use crate::step_method::GradientPart;
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

/// The sums of one rank. The buckets are in the memory of its group.
#[derive(Default)]
pub(super) struct OuterSum {
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
    /// Creates the sums in a group. With each weight, `averaged` states of the inner optimizer are summed.
    pub(super) fn new(
        config: &LocalRoundsConfig,
        inner: &SynchronousStrategy,
        (averaged, compression): (usize, Option<&CompressionState>),
        layout: &StepLayout,
    ) -> Self {
        let (state, format) = (inner.weights(), config.outer_format);
        let fragments = super::fragments(state, config.fragments());
        let compressed = compression.map(|compression| {
            let ranges = fragments.iter().cloned();
            CompressedExchange::new(compression, state, layout.shards(), ranges)
        });
        let is_short = format != Codec::F32 || compressed.is_some();
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
        Self {
            fragments: fragments.into_iter().map(of_fragment).collect(),
            compressed,
            scratch: Vec::new(),
        }
    }

    /// Returns the elements of a fragment.
    pub(super) fn elements(&self, fragment: usize) -> Range<usize> {
        self.fragments[fragment].elements.clone()
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
        (index, compression): (usize, Option<&CompressionState>),
        group: &dyn Group,
        replicas: &ExactSum,
    ) -> Result<(), ParallelError> {
        let fragment = &mut self.fragments[index];
        if let Some(coded) = &mut fragment.coded {
            coded.start(group, replicas).map_err(exchange_failed)?;
        }
        if let (Some(compressed), Some(state)) = (&mut self.compressed, compression) {
            let leaves = std::mem::take(&mut fragment.leaves);
            if let Some(replica) = compressed.missing(state, index, &leaves) {
                let problem = format!("the residuals of replica {replica} are not on this worker");
                return Err(ParallelError::OutOfOrder { problem });
            }
            let started = compressed.start(state, index, leaves, group);
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
        (index, compression): (usize, Option<&CompressionState>),
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
        if let (Some(compressed), Some(state)) = (&mut self.compressed, compression) {
            let mut sum = Buffer::host(DType::F32, fragment.elements.len());
            let gathered = compressed.gather(state, index, group);
            gathered.ok_or_else(not_begun)?.map_err(exchange_failed)?;
            let finished = compressed.finish(state, index, sum.as_mut_slice());
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

    /// Takes back the memory of the sums of a round that was applied.
    pub(super) fn recycle(&mut self, index: usize, parts: Vec<GradientPart>) {
        let fragment = &mut self.fragments[index];
        let is_short = fragment.coded.is_some() || self.compressed.is_some();
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
