//! [`Residuals`]: the errors of the short forms of earlier steps.

use std::borrow::Cow;
use std::ops::Range;

use ronde_core::Buffer;
use ronde_core::holdings::HeldRanges;
use ronde_core::shards::ShardPlan;
use ronde_core::{GroupRank, exact::ExactSum};

use super::coded_sum::owned;
use super::{Codec, CompressionConfig};
use crate::state::remap;
use crate::{HeldVector, HeldVectorMut, ModelState};

/// The residuals that a rank holds, of one vector: an element for each one of the flat state for each sender, in order, and, unless
/// the sum of the senders has a short form by itself, once more for the sum. Each element is held by one rank: those of a sender
/// by the rank that computes it, those of the sum by the ranks that encode it.
#[derive(Debug, Clone)]
pub struct Residuals {
    senders: u32,
    /// The number of elements of the flat state.
    state_len: usize,
    has_sum: bool,
    /// The elements of each rank.
    layout: Vec<HeldRanges>,
    held: HeldRanges,
    values: Vec<f32>,
}

impl Residuals {
    /// Creates the residuals of a run that begins, which are zero.
    pub(crate) fn new(
        state: &ModelState,
        config: &CompressionConfig,
        shards: &ShardPlan,
        rank: GroupRank,
    ) -> Self {
        let mut this = Self {
            senders: config.senders,
            state_len: state.len(),
            has_sum: !matches!(config.codec, Codec::PowerSgd { .. }),
            layout: Vec::new(),
            held: HeldRanges::default(),
            values: Vec::new(),
        };
        this.arrange(state, config, shards);
        let mine = this.layout[rank.index()].clone();
        this.hold(mine);
        this
    }

    /// Assigns the residuals to the ranks of a layout. Those that this rank holds stay the same until [`Residuals::hold`].
    pub(crate) fn arrange(
        &mut self,
        state: &ModelState,
        config: &CompressionConfig,
        shards: &ShardPlan,
    ) {
        let ranks = shards.ranks();
        let of_sum = match self.has_sum {
            true => owned(state, config.codec, ranks),
            false => vec![HeldRanges::default(); ranks],
        };
        let senders = senders_of(shards, self.senders);
        let base = self.of_sum().start;
        let of_rank = |(rank, sum): (usize, HeldRanges)| {
            let run = senders.run(GroupRank(rank as u32));
            let own = run.map(|sender| self.of_sender(sender));
            let sum = sum.ranges().to_vec();
            let shifted = sum.into_iter().map(|r| r.start + base..r.end + base);
            HeldRanges::new(own.chain(shifted))
        };
        self.layout = of_sum.into_iter().enumerate().map(of_rank).collect();
    }

    /// Returns the residuals of a sender.
    fn of_sender(&self, sender: u32) -> Range<usize> {
        let start = sender as usize * self.state_len;
        start..start + self.state_len
    }

    /// Returns the residuals of the sum.
    fn of_sum(&self) -> Range<usize> {
        let start = self.of_sender(self.senders).start;
        start..self.len()
    }

    /// Returns the number of elements on all ranks together.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.senders as usize + usize::from(self.has_sum)) * self.state_len
    }

    /// Returns whether there are none, because the model has no state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements that each rank of the group holds in training.
    #[must_use]
    pub fn layout(&self) -> &[HeldRanges] {
        &self.layout
    }

    /// Returns the elements that this rank holds.
    #[must_use]
    pub fn held(&self) -> &HeldRanges {
        &self.held
    }

    /// Holds other elements from now on. Values that were held before are kept, the remaining ones are zeros.
    pub fn hold(&mut self, elements: HeldRanges) {
        if self.held != elements {
            remap(&mut self.values, &self.held, &elements);
            self.held = elements;
        }
    }

    /// Returns the held elements as a vector of the state.
    pub(crate) fn vector(&self) -> HeldVector<'_> {
        HeldVector {
            is_flat: false,
            held: Cow::Borrowed(&self.held),
            values: &self.values,
        }
    }

    /// Returns the same vector, mutable.
    pub(crate) fn vector_mut(&mut self) -> HeldVectorMut<'_> {
        HeldVectorMut {
            held: Cow::Borrowed(&self.held),
            values: &mut self.values,
        }
    }

    /// Returns the residuals of a sender, of elements of the flat state; `None` if this rank does not hold them.
    pub(crate) fn of(&self, sender: u32, elements: &Range<usize>) -> Option<&[f32]> {
        let base = self.of_sender(sender).start;
        let held = self
            .held
            .locate(&(elements.start + base..elements.end + base))?;
        Some(&self.values[held])
    }

    /// Returns the residuals of the sum.
    pub(crate) fn of_total(&self, elements: &Range<usize>) -> Option<&[f32]> {
        self.of(self.senders, elements)
    }

    /// Replaces residuals by those of the next step.
    pub(crate) fn replace(&mut self, new: &NewResidual) {
        let base = match new.sender {
            Some(sender) => self.of_sender(sender).start,
            None => self.of_sum().start,
        };
        let mut rest = new.values.as_slice::<f32>();
        for range in new.elements.ranges() {
            let (values, after) = rest.split_at(range.len());
            if let Some(to) = self.held.locate(&(range.start + base..range.end + base)) {
                self.values[to].copy_from_slice(values);
            }
            rest = after;
        }
    }
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
