//! Compression: the sums of fixed groups of shards are sent in a short form.
//!
//! The senders, groups of consecutive logical shards, are fixed by the plan, and workers compute whole senders. The error of a
//! short form is the residual of its sender, which is added to its next sum (error feedback). The decoded sums are added along
//! the tree over senders, and the total is sent in a short form again, with its own residual. All of it belongs to
//! senders and elements, never to ranks, so the bits do not depend on the ranks.
//!
//! Sources: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014, and Karimireddy et al., "Error feedback fixes
//! SignSGD", ICML 2019 (residuals); Vogels et al., "PowerSGD", NeurIPS 2019, algorithms 1 and 2.
//!
//! Compression is an option of `SynchronousStrategy`: a bucket has a sum for each sender, and its exchange starts in the backward
//! pass like an exact sum. Without the second short form, each rank would gather the forms of all senders: for `top_k` and four
//! workers, 3 % of the bytes instead of 1.5 %. PowerSGD needs none, because its two sums of factors are exact sums. The owner of a
//! unit follows its layer, so the bits depend neither on buckets nor on ranks.
//!
//! Residuals are a `DistributedVector` after the flat state, so the moves, the search for a complete state and the checkpoints of a
//! divided state hold for them too. New residuals are applied or dropped together with the reduced gradient. A second copy that is
//! always up to date would receive whole gradients, which compression avoids; so a loss leads back to the newest copy in memory or
//! checkpoint.

mod codec;
mod coded_sum;
mod exchange;
mod low_rank;
mod orthonormal;
mod residuals;
mod state;

use crate::state::ModelState;

pub use codec::Codec;
pub(crate) use coded_sum::CodedSum;
pub(crate) use exchange::CompressedExchange;
pub(crate) use residuals::SentGradient;
pub(crate) use state::CompressionState;

/// Encodes values of the whole flat state once, and leaves the errors in them. Returns the bytes of the short form; `None` for a codec that
/// needs the values of several senders. Cost: a sender's computation in each step.
#[must_use]
pub fn encode_once(codec: Codec, state: &ModelState, values: &mut [f32]) -> Option<usize> {
    if matches!(codec, Codec::PowerSgd { .. }) {
        return None;
    }
    let mut sum = CodedSum::new(state, 0..state.len(), codec, 1);
    sum.add(values, true);
    Some(sum.payload_bytes())
}

/// The settings of compression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressionConfig {
    /// The short form of a sum.
    pub codec: Codec,
    /// The number of senders, which divides that of the shards.
    pub senders: u32,
}
