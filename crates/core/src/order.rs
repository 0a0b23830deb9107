//! [`SampleOrder`]: the order in which an epoch uses the samples, as a function of constant memory.
//!
//! Samples that are stored one after another in files are read fast only in large blocks. [`Shuffle::Blocks`]
//! supports this: it puts blocks of neighbouring samples into a random order, and shuffles the samples within each
//! window of `window` consecutive blocks of that order. A reader that holds one window in memory reads every byte
//! once, one block at a time.

use crate::permutation::Permutation;
use crate::philox::Stream;

/// The method of shuffling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shuffle {
    /// No shuffling: samples are used in stored order.
    None,
    /// A permutation of all samples.
    Full,
    /// A permutation of blocks of `block` neighbouring samples, and of the samples within `window` blocks.
    Blocks {
        /// The number of samples of a block, at least one. The last block of the data set may be smaller.
        block: u64,
        /// The number of blocks of a window, at least one.
        window: u64,
    },
}

impl From<bool> for Shuffle {
    fn from(shuffle: bool) -> Self {
        if shuffle { Self::Full } else { Self::None }
    }
}

/// A map from positions in an epoch to samples of the data set.
#[derive(Debug, Clone, Copy)]
pub struct SampleOrder(OrderKind);

#[derive(Debug, Clone, Copy)]
enum OrderKind {
    Stored,
    Full(Permutation),
    Blocks(BlockOrder),
}

/// An order of blocks. The smaller last block can be anywhere in the order, so the windows after the one that
/// contains it begin earlier.
#[derive(Debug, Clone, Copy)]
struct BlockOrder {
    samples: u64,
    block: u64,
    window: u64,
    blocks: Permutation,
    /// The number of blocks.
    count: u64,
    /// The number of samples that the last block of the data set has less than a full block.
    lacks: u64,
    /// The index of that block in the order of blocks.
    short_at: u64,
    stream: Stream,
}

/// A window: its first position, its number of samples, and its index.
struct ShuffleWindow {
    start: u64,
    samples: u64,
    number: u64,
}

impl SampleOrder {
    /// Creates the order of `samples` samples that the random numbers of `stream` determine.
    #[must_use]
    pub fn new(samples: u64, shuffle: Shuffle, stream: Stream) -> Self {
        Self(match shuffle {
            Shuffle::None => OrderKind::Stored,
            Shuffle::Full => OrderKind::Full(Permutation::new(samples, stream)),
            Shuffle::Blocks { block, window } => {
                OrderKind::Blocks(BlockOrder::new(samples, block, window, stream))
            }
        })
    }

    /// Returns the sample at a position.
    ///
    /// Cost: nothing without shuffling, otherwise less than 60 Philox blocks.
    ///
    /// # Panics
    /// If the position is not below the number of samples, which is a bug of the caller.
    #[must_use]
    pub fn sample(&self, position: u64) -> u64 {
        match &self.0 {
            OrderKind::Stored => position,
            OrderKind::Full(permutation) => permutation.at(position),
            OrderKind::Blocks(blocks) => blocks.sample(position),
        }
    }

    /// Returns the end of the window that contains `position`; a reader should keep the window's blocks in memory
    /// until then. `None` for orders without windows.
    #[must_use]
    pub fn window_end(&self, position: u64) -> Option<u64> {
        match &self.0 {
            OrderKind::Stored | OrderKind::Full(_) => None,
            OrderKind::Blocks(blocks) => {
                let window = blocks.window_of(position);
                Some(window.start + window.samples)
            }
        }
    }
}

impl BlockOrder {
    fn new(samples: u64, block: u64, window: u64, stream: Stream) -> Self {
        let (block, window) = (block.max(1), window.max(1));
        let count = samples.div_ceil(block);
        let blocks = Permutation::new(count, stream);
        Self {
            samples,
            block,
            window,
            blocks,
            count,
            lacks: count * block - samples,
            short_at: count.checked_sub(1).map_or(0, |b| blocks.position_of(b)),
            stream,
        }
    }

    fn window_of(&self, position: u64) -> ShuffleWindow {
        assert!(
            position < self.samples,
            "position {position} of an order of {}",
            self.samples
        );
        let whole = self.window.saturating_mul(self.block);
        let short_in = self.short_at / self.window;
        let behind_short = (short_in + 1).saturating_mul(whole) - self.lacks;
        let number = if position < behind_short {
            position / whole
        } else {
            (position + self.lacks) / whole
        };
        let blocks = self.window.min(self.count - number * self.window);
        ShuffleWindow {
            start: number * whole - if number > short_in { self.lacks } else { 0 },
            samples: blocks * self.block - if number == short_in { self.lacks } else { 0 },
            number,
        }
    }

    fn sample(&self, position: u64) -> u64 {
        let window = self.window_of(position);
        let key = self.stream.child(window.number);
        let mut within = Permutation::new(window.samples, key).at(position - window.start);
        let first = window.number * self.window;
        // The samples of the window before the end of the short block.
        let before = self.short_at.checked_sub(first);
        let before = before.map(|blocks| (blocks + 1) * self.block - self.lacks);
        if before.is_some_and(|before| within >= before) {
            within += self.lacks;
        }
        let block = self.blocks.at(first + within / self.block);
        block * self.block + within % self.block
    }
}

#[cfg(test)]
mod tests;
