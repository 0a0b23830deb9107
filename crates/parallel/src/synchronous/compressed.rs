//! The reduction of gradients in a short form.

use ronde_core::{Group, Step};

use super::SynchronousStrategy;
use crate::compression::{CompressedExchange, SentGradient};
use crate::error::ParallelError;
use crate::strategy::GradientPart;
use crate::strategy::ReducedGradient;

/// The buckets whose contributions are under way while the backward pass continues. All ranks begin the second exchange of a
/// bucket at the same point of a step.
const IN_FLIGHT: usize = 2;

impl SynchronousStrategy {
    /// Creates the exchange of a run that begins, if the settings have compression.
    pub(super) fn begin_compression(&self) -> Option<CompressedExchange> {
        let config = self.config.compression?;
        let (shards, rank) = (self.layout.shards(), self.groups.all.rank());
        let mut this = CompressedExchange::new(config, self.seeds, &self.state, (shards, rank));
        let ranges = self.buckets.iter().map(|b| b.plan.elements.clone());
        this.arrange(&self.state, shards, ranges);
        Some(this)
    }

    /// Continues with other buckets, or in another layout.
    pub(super) fn rearrange_compression(&mut self) {
        if let Some(compression) = &mut self.compression {
            let ranges = self.buckets.iter().map(|b| b.plan.elements.clone());
            compression.arrange(&self.state, self.layout.shards(), ranges);
        }
    }

    /// Sends the gradients of a bucket in a short form.
    pub(super) fn start_compressed(&mut self, index: usize) -> Result<(), ParallelError> {
        let group = self.same_layers()?.clone();
        let sums = self.buckets[index].take_senders();
        let Some(compression) = &mut self.compression else {
            return Err(not_started());
        };
        if let Some(sender) = compression.missing(index, &sums) {
            let problem = format!("the residuals of sender {sender} are not on this worker");
            return Err(ParallelError::OutOfOrder { problem });
        }
        let started = compression.start(index, sums, &*group);
        started.map_err(|source| self.bucket_error(index, source))?;
        self.gather_compressed(IN_FLIGHT, &*group)
    }

    /// Waits for contributions and begins the second exchange of their buckets, until `rest` buckets are left.
    fn gather_compressed(&mut self, rest: usize, group: &dyn Group) -> Result<(), ParallelError> {
        while let Some(compression) = &mut self.compression
            && let Some((index, gathered)) = compression.gather_next(rest, group)
        {
            gathered.map_err(|source| self.bucket_error(index, source))?;
        }
        Ok(())
    }

    /// Waits for the sums of all buckets.
    pub(super) fn reduce_compressed(&mut self) -> Result<ReducedGradient, ParallelError> {
        let (own, group) = (self.own_buckets(), self.same_layers()?.clone());
        self.gather_compressed(0, &*group)?;
        let mut parts = Vec::with_capacity(own.len());
        for index in own {
            let mut sum = self.take_buffer(index)?;
            let compression = self.compression.as_mut().ok_or_else(not_started)?;
            let finished = compression.finish(index, sum.as_mut_slice());
            let finished = finished.ok_or_else(not_started)?;
            finished.map_err(|source| self.bucket_error(index, source))?;
            parts.push(GradientPart {
                elements: self.buckets[index].plan.elements.clone(),
                sum,
                is_owned: true,
            });
        }
        let compression = self.compression.as_mut().ok_or_else(not_started)?;
        let sent = compression.take_sent();
        Ok(ReducedGradient { parts, sent })
    }

    /// Takes over the residuals of a step that was applied.
    pub(super) fn keep_residuals(&mut self, sent: SentGradient, step: Step) {
        let Some(compression) = &mut self.compression else {
            return;
        };
        for (elements, memory) in compression.keep(sent, step) {
            let mut buckets = self.buckets.iter_mut();
            if let Some(bucket) = buckets.find(|bucket| bucket.plan.elements == elements) {
                bucket.recycle(memory);
            }
        }
    }
}

fn not_started() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no reduction was started".to_owned(),
    }
}
