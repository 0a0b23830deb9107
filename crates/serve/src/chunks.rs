//! [`ChunkPlan`]: the division of a data set into chunks, and [`ChunkQueue`]: their assignment to workers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The number of samples that are computed together.
const BATCH: u64 = 60;
/// The number of chunks into which a data set is divided, unless they get too large or too small.
const CHUNKS: u64 = 256;
/// The maximum number of batches of a chunk.
const BATCHES_MAX: u64 = 100;
/// The number of workers that a chunk may lose before it is given up.
const LOSSES_MAX: u32 = 3;

/// The division of the samples of a data set into chunks of consecutive samples. It depends on the number of samples alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPlan {
    samples: u64,
}

impl ChunkPlan {
    /// Creates the plan of a number of samples.
    #[must_use]
    pub fn new(samples: u64) -> Self {
        Self { samples }
    }

    /// Returns the number of samples of a batch.
    #[must_use]
    pub fn batch_size(&self) -> u64 {
        BATCH
    }

    /// Returns the number of samples of a chunk; the last one may have fewer.
    #[must_use]
    pub fn chunk_size(&self) -> u64 {
        let batches = self.samples.div_ceil(BATCH).div_ceil(CHUNKS);
        batches.clamp(1, BATCHES_MAX) * BATCH
    }

    /// Returns the number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.samples.div_ceil(self.chunk_size())
    }

    /// Returns the samples of a chunk; empty for a chunk that does not exist.
    #[must_use]
    pub fn samples(&self, chunk: u64) -> Range<u64> {
        let start = chunk.saturating_mul(self.chunk_size()).min(self.samples);
        start..(start + self.chunk_size()).min(self.samples)
    }

    /// Returns the batches of a chunk.
    #[must_use]
    pub fn batches(&self, chunk: u64) -> Range<u64> {
        let samples = self.samples(chunk);
        samples.start / BATCH..samples.end.div_ceil(BATCH)
    }
}

/// The chunks that are still to be computed. A worker takes one after another; the chunks of a lost worker are taken by
/// others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkQueue {
    waiting: VecDeque<u64>,
    /// The chunks of each worker.
    assigned: BTreeMap<u64, BTreeSet<u64>>,
    /// The number of workers that were lost with each chunk.
    losses: BTreeMap<u64, u32>,
}

impl ChunkQueue {
    /// Creates a queue.
    #[must_use]
    pub fn new(chunks: impl IntoIterator<Item = u64>) -> Self {
        Self {
            waiting: chunks.into_iter().collect(),
            assigned: BTreeMap::new(),
            losses: BTreeMap::new(),
        }
    }

    /// Assigns the next chunk to a worker; `None` if none is waiting.
    pub fn take(&mut self, worker: u64) -> Option<u64> {
        let chunk = self.waiting.pop_front()?;
        self.assigned.entry(worker).or_default().insert(chunk);
        Some(chunk)
    }

    /// Removes a chunk that its worker has finished.
    pub fn finish(&mut self, worker: u64, chunk: u64) {
        if let Some(chunks) = self.assigned.get_mut(&worker) {
            chunks.remove(&chunk);
        }
    }

    /// Returns the chunks of a lost worker to the queue. The first of them was being computed.
    ///
    /// # Errors
    /// The chunk that was being computed, if it has lost three workers.
    pub fn lose(&mut self, worker: u64) -> Result<(), u64> {
        let chunks = self.assigned.remove(&worker).unwrap_or_default();
        let first = chunks.first().copied();
        chunks
            .into_iter()
            .rev()
            .for_each(|chunk| self.waiting.push_front(chunk));
        let Some(first) = first else { return Ok(()) };
        let losses = self.losses.entry(first).or_default();
        *losses += 1;
        if *losses < LOSSES_MAX {
            Ok(())
        } else {
            Err(first)
        }
    }

    /// Returns whether all chunks are finished.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.waiting.is_empty() && self.assigned.values().all(BTreeSet::is_empty)
    }

    /// Returns whether chunks wait for a worker.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_each_sample_once_and_whole_batches() {
        for samples in [
            1,
            59,
            60,
            61,
            360,
            15_360,
            15_361,
            50_000,
            1_281_167,
            u64::MAX >> 1,
        ] {
            let plan = ChunkPlan::new(samples);
            assert_eq!(plan.samples(0).start, 0);
            assert_eq!(plan.samples(plan.chunks() - 1).end, samples);
            assert!(plan.samples(plan.chunks()).is_empty());
            for chunk in 0..plan.chunks().min(300) {
                assert_eq!(plan.samples(chunk).start % BATCH, 0);
                assert_eq!(plan.batches(chunk).start * BATCH, plan.samples(chunk).start);
                if chunk > 0 {
                    assert_eq!(plan.samples(chunk - 1).end, plan.samples(chunk).start);
                    assert_eq!(plan.batches(chunk - 1).end, plan.batches(chunk).start);
                }
            }
        }
        assert_eq!(ChunkPlan::new(0).chunks(), 0);
    }

    #[test]
    fn the_chunks_of_a_lost_worker_are_taken_by_others() {
        let mut queue = ChunkQueue::new(0..4);
        assert_eq!(
            [queue.take(0), queue.take(1), queue.take(0)],
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(queue.lose(0), Ok(()));
        assert_eq!(
            [queue.take(1), queue.take(1), queue.take(1)],
            [Some(0), Some(2), Some(3)]
        );
        assert!(!queue.is_waiting() && !queue.is_finished());
        (0..4).for_each(|chunk| queue.finish(1, chunk));
        assert!(queue.is_finished());
    }

    #[test]
    fn a_chunk_that_ends_three_workers_is_given_up() {
        let mut queue = ChunkQueue::new([7, 8]);
        for worker in 0..2 {
            assert_eq!((queue.take(worker), queue.take(worker)), (Some(7), Some(8)));
            assert_eq!(queue.lose(worker), Ok(()));
        }
        assert_eq!((queue.take(2), queue.take(3)), (Some(7), Some(8)));
        assert_eq!(queue.lose(3), Ok(()), "chunk 8 was only once the first");
        assert_eq!(queue.lose(2), Err(7));
    }
}
