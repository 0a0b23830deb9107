//! [`CompressedExchange`]: the exchange of contributions in a short form among the ranks of a group.

use std::collections::VecDeque;
use std::ops::Range;

use ronde_core::exact::ExactSum;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, CollectiveError, Group};
use ronde_protocol::holdings::HeldRanges;

use super::low_rank::LowRankSum;
use super::residuals::{NewResidual, senders_of};
use super::state::CompressionState;
use super::{CodedSum, CompressionConfig, SentGradient};
use crate::state::ModelState;

/// The sum over a range of the flat state.
enum RangeSum {
    Coded(CodedSum),
    LowRank(LowRankSum),
}

/// A range of the flat state whose contributions are sent together.
struct SentRange {
    elements: Range<usize>,
    sum: RangeSum,
    /// The contributions of this rank's senders, then the errors of their forms.
    sent: Vec<(u32, Buffer)>,
}

/// The exchange of one rank in a group. The state is passed to its functions.
pub(crate) struct CompressedExchange {
    /// The senders of each rank.
    senders: ExactSum,
    ranges: Vec<SentRange>,
    /// The ranges whose contributions are under way, in the order in which they were sent.
    under_way: VecDeque<usize>,
    /// The bytes that this step has sent so far.
    sent: SentGradient,
}

impl CompressedExchange {
    /// Creates the exchange of ranges of the flat state among the ranks of a layout.
    pub(crate) fn new(
        state: &CompressionState,
        model: &ModelState,
        shards: &ShardPlan,
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> Self {
        let CompressionConfig { codec, senders } = state.config;
        let each = ranges.map(|elements| {
            let of = elements.clone();
            let sum = match &state.factors {
                Some(factors) => RangeSum::LowRank(LowRankSum::new(model, of, factors, senders)),
                None => RangeSum::Coded(CodedSum::new(model, of, codec, shards.ranks())),
            };
            SentRange {
                elements,
                sum,
                sent: Vec::new(),
            }
        });
        Self {
            senders: senders_of(shards, senders),
            ranges: each.collect(),
            under_way: VecDeque::new(),
            sent: SentGradient::default(),
        }
    }

    /// Discards a step.
    pub(crate) fn reset(&mut self) {
        self.under_way.clear();
        self.sent = SentGradient::default();
        for range in &mut self.ranges {
            range.sent.clear();
            match &mut range.sum {
                RangeSum::Coded(sum) => sum.reset(),
                RangeSum::LowRank(sum) => sum.reset(),
            }
        }
    }

    /// Returns the first of some senders whose residuals of a range are not on this rank.
    pub(crate) fn missing(
        &self,
        state: &CompressionState,
        index: usize,
        senders: &[(u32, Buffer)],
    ) -> Option<u32> {
        let elements = &self.ranges[index].elements;
        let mut senders = senders.iter().map(|(sender, _)| *sender);
        senders.find(|sender| state.residuals.of(*sender, elements).is_none())
    }

    /// Adds the residuals to the contributions of this rank's senders to a range, and sends them.
    pub(crate) fn start(
        &mut self,
        state: &CompressionState,
        index: usize,
        contributions: Vec<(u32, Buffer)>,
        group: &dyn Group,
    ) -> Result<(), CollectiveError> {
        let range = &mut self.ranges[index];
        for (sender, mut values) in contributions {
            let contribution = values.as_mut_slice::<f32>();
            let kept = state.residuals.of(sender, &range.elements);
            for (value, kept) in contribution.iter_mut().zip(kept.unwrap_or_default()) {
                *value += *kept;
            }
            match (&mut range.sum, &state.factors) {
                (RangeSum::Coded(sum), _) => sum.add(contribution, true),
                (RangeSum::LowRank(sum), Some(factors)) => {
                    sum.add(sender, contribution, factors);
                }
                (RangeSum::LowRank(_), None) => {}
            }
            range.sent.push((sender, values));
        }
        self.under_way.push_back(index);
        match &mut range.sum {
            RangeSum::Coded(sum) => sum.start(group, &self.senders),
            RangeSum::LowRank(sum) => sum.start(group, &self.senders),
        }
    }

    /// Waits for the contributions that were sent first, and begins the second exchange of their range, if more than `rest`
    /// ranges are under way. Returns the range.
    pub(crate) fn gather_next(
        &mut self,
        state: &CompressionState,
        rest: usize,
        group: &dyn Group,
    ) -> Option<(usize, Result<(), CollectiveError>)> {
        if self.under_way.len() <= rest {
            return None;
        }
        let index = *self.under_way.front()?;
        Some((index, self.gather(state, index, group)?))
    }

    /// Waits for the contributions of the senders to a range, and begins the second exchange; `None` if the first one was not begun.
    pub(crate) fn gather(
        &mut self,
        state: &CompressionState,
        index: usize,
        group: &dyn Group,
    ) -> Option<Result<(), CollectiveError>> {
        self.under_way.retain(|other| *other != index);
        let range = &mut self.ranges[index];
        match &mut range.sum {
            RangeSum::LowRank(sum) => sum.gather(group, &self.senders, &mut range.sent),
            RangeSum::Coded(sum) => {
                let residual = |elements: &Range<usize>| state.residuals.of_total(elements);
                let gathered = sum.gather(group, &self.senders, Some(&residual))?;
                Some(gathered.map(|(elements, values)| {
                    self.sent.residuals.push(NewResidual {
                        sender: None,
                        elements,
                        values,
                    });
                }))
            }
        }
    }

    /// Waits for the second exchange and writes the sum over a range; `None` if it was not begun.
    pub(crate) fn finish(
        &mut self,
        state: &CompressionState,
        index: usize,
        total: &mut [f32],
    ) -> Option<Result<(), CollectiveError>> {
        let range = &mut self.ranges[index];
        let finished = match (&mut range.sum, &state.factors) {
            (RangeSum::LowRank(sum), Some(factors)) => {
                let next = self
                    .sent
                    .factors
                    .get_or_insert_with(|| factors.values.clone());
                sum.finish(total, next)?
            }
            (RangeSum::LowRank(_), None) => return None,
            (RangeSum::Coded(sum), _) => sum.finish(total)?,
        };
        let elements = HeldRanges::new([range.elements.clone()]);
        let sent = range.sent.drain(..).map(|(sender, values)| NewResidual {
            sender: Some(sender),
            elements: elements.clone(),
            values,
        });
        self.sent.residuals.extend(sent);
        Some(finished)
    }

    /// Returns the sent bytes of this step, after the second exchange of all ranges.
    pub(crate) fn take_sent(&mut self) -> SentGradient {
        std::mem::take(&mut self.sent)
    }
}
