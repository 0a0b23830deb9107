//! [`SampleOrder`]: in which order an epoch uses the samples, as a function that needs no memory of the set's size.
//!
//! A set whose samples lie one behind the other in files is read quickly only in large pieces. [`Shuffle::Blocks`] keeps
//! that: blocks of neighbours are put into a random order, and the samples of `window` consecutive blocks of that order
//! are mixed. Whoever holds a window in memory reads every byte once, a block at a time.

use crate::permutation::Permutation;
use crate::philox::Stream;

/// How samples are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shuffle {
    /// Not: in their own order.
    None,
    /// Each order of all samples is as likely as any other.
    Full,
    /// Blocks of `block` neighbours in random order, and samples in random order within `window` blocks.
    Blocks {
        /// Samples of a block; at least one. The last block of the set may be smaller.
        block: u64,
        /// Blocks of a window; at least one.
        window: u64,
    },
}

impl From<bool> for Shuffle {
    fn from(shuffle: bool) -> Self {
        if shuffle { Self::Full } else { Self::None }
    }
}

/// Maps positions in an epoch to samples of the data set.
#[derive(Debug, Clone, Copy)]
pub struct SampleOrder(OrderKind);

#[derive(Debug, Clone, Copy)]
enum OrderKind {
    Own,
    Full(Permutation),
    Blocks(BlockOrder),
}

/// The block that is smaller lies anywhere in the order, so the windows behind the one that it is in begin earlier.
#[derive(Debug, Clone, Copy)]
struct BlockOrder {
    samples: u64,
    block: u64,
    window: u64,
    blocks: Permutation,
    /// Count of blocks.
    count: u64,
    /// What the last block of the set lacks of a whole one.
    lacks: u64,
    /// Its place in the order of blocks.
    short_at: u64,
    stream: Stream,
}

/// A window: its first position, its samples, and its number.
struct ShuffleWindow {
    start: u64,
    samples: u64,
    number: u64,
}

impl SampleOrder {
    /// The order of `samples` samples that `stream` names.
    #[must_use]
    pub fn new(samples: u64, shuffle: Shuffle, stream: Stream) -> Self {
        Self(match shuffle {
            Shuffle::None => OrderKind::Own,
            Shuffle::Full => OrderKind::Full(Permutation::new(samples, stream)),
            Shuffle::Blocks { block, window } => {
                OrderKind::Blocks(BlockOrder::new(samples, block, window, stream))
            }
        })
    }

    /// The sample at a position.
    ///
    /// Cost: nothing in a set's own order, else under 60 Philox blocks.
    ///
    /// # Panics
    /// When the position is not below the count of samples: a bug of the caller.
    #[must_use]
    pub fn sample(&self, position: u64) -> u64 {
        match &self.0 {
            OrderKind::Own => position,
            OrderKind::Full(permutation) => permutation.at(position),
            OrderKind::Blocks(blocks) => blocks.sample(position),
        }
    }

    /// The first position behind `position` whose samples lie elsewhere: until there it is worth while to hold all that
    /// was read. `None` where samples are not kept together.
    #[must_use]
    pub fn window_end(&self, position: u64) -> Option<u64> {
        match &self.0 {
            OrderKind::Own | OrderKind::Full(_) => None,
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
        // Samples of the window that lie before the end of the short block.
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
