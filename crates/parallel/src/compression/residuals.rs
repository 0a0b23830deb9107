//! [`Residuals`]: the errors of the short forms of earlier steps.

use std::ops::Range;

use ronde_core::Buffer;
use ronde_core::shards::ShardPlan;
use ronde_core::{GroupRank, exact::ExactSum};
use ronde_protocol::holdings::HeldRanges;

use super::coded_sum::owned;
use super::{Codec, CompressionConfig};
use crate::distributed::DistributedVector;
use crate::state::ModelState;

/// The residuals that a rank holds, of one vector: an element for each one of the flat state for each sender, in order, and, unless
/// the sum of the senders has a short form by itself, once more for the sum. Each element is held by one rank: those of a sender
/// by the rank that computes it, those of the sum by the ranks that encode it.
#[derive(Debug, Clone)]
pub(crate) struct Residuals {
    senders: u32,
    /// The number of elements of the flat state.
    state_len: usize,
    pub(crate) all: DistributedVector,
}

impl Residuals {
    /// Creates the residuals of a run that begins, which are zero.
    pub(crate) fn new(
        state: &ModelState,
        config: &CompressionConfig,
        shards: &ShardPlan,
        rank: GroupRank,
    ) -> Self {
        let parts = config.senders as usize + usize::from(has_sum(config));
        let layout = layout(state, config, shards);
        Self {
            senders: config.senders,
            state_len: state.len(),
            all: DistributedVector::zeros(parts * state.len(), layout, rank.index()),
        }
    }

    /// Assigns the residuals to the ranks of a layout.
    pub(crate) fn arrange(
        &mut self,
        state: &ModelState,
        config: &CompressionConfig,
        shards: &ShardPlan,
    ) {
        self.all.assign(layout(state, config, shards));
    }

    /// Returns where elements of the flat state are among the residuals of a sender.
    fn place(&self, sender: u32, elements: &Range<usize>) -> Range<usize> {
        let base = sender as usize * self.state_len;
        elements.start + base..elements.end + base
    }

    /// Returns the residuals of a sender, of elements of the flat state; `None` if this rank does not hold them.
    pub(crate) fn of(&self, sender: u32, elements: &Range<usize>) -> Option<&[f32]> {
        self.all.values(&self.place(sender, elements))
    }

    /// Returns the residuals of the sum.
    pub(crate) fn of_total(&self, elements: &Range<usize>) -> Option<&[f32]> {
        self.of(self.senders, elements)
    }

    /// Replaces residuals by those of the next step.
    pub(crate) fn replace(&mut self, new: &NewResidual) {
        let sender = new.sender.unwrap_or(self.senders);
        let mut rest = new.values.as_slice::<f32>();
        for range in new.elements.ranges() {
            let (values, after) = rest.split_at(range.len());
            let place = self.place(sender, range);
            self.all.write(&place, values);
            rest = after;
        }
    }
}

/// Returns whether the sum of the senders has residuals.
fn has_sum(config: &CompressionConfig) -> bool {
    !matches!(config.codec, Codec::PowerSgd { .. })
}

/// Returns the residuals of each rank.
fn layout(state: &ModelState, config: &CompressionConfig, shards: &ShardPlan) -> Vec<HeldRanges> {
    let ranks = shards.ranks();
    let of_sum = match has_sum(config) {
        true => owned(state, config.codec, ranks),
        false => vec![HeldRanges::default(); ranks],
    };
    let senders = senders_of(shards, config.senders);
    let (len, base) = (state.len(), config.senders as usize * state.len());
    let of_rank = |(rank, sum): (usize, HeldRanges)| {
        let run = senders.run(GroupRank(rank as u32));
        let own = run.map(|sender| sender as usize * len..(sender as usize + 1) * len);
        let sum = sum.ranges().to_vec();
        let shifted = sum.into_iter().map(|r| r.start + base..r.end + base);
        HeldRanges::new(own.chain(shifted))
    };
    of_sum.into_iter().enumerate().map(of_rank).collect()
}

/// Returns the senders of each rank, in the form of a sum over them.
pub(super) fn senders_of(shards: &ShardPlan, senders: u32) -> ExactSum {
    let width = (shards.shards() / senders.max(1)).max(1);
    let ranks = (0..shards.ranks()).map(|rank| shards.run(GroupRank(rank as u32)).end / width);
    let bounds = std::iter::once(0).chain(ranks).collect();
    ExactSum::new(bounds).unwrap_or_else(|| shards.exact_sum())
}

/// The residual of a step that is not applied yet.
#[derive(Debug)]
pub(crate) struct NewResidual {
    /// The sender; `None` for the sum of all.
    pub(crate) sender: Option<u32>,
    /// The elements of the flat state.
    pub(crate) elements: HeldRanges,
    /// Their values, one range after the other.
    pub(crate) values: Buffer,
}

/// The part of a sent gradient that a rank keeps, until the step is applied or aborted.
#[derive(Debug, Default)]
pub(crate) struct SentGradient {
    /// The residuals of the next step.
    pub(crate) residuals: Vec<NewResidual>,
    /// The factors from which the next step begins, if the codec has any.
    pub(crate) factors: Option<Vec<f32>>,
}
