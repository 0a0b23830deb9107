//! [`CompressedExchange`]: the exchange of contributions in a short form, with the residuals of one rank.

use std::collections::VecDeque;
use std::ops::Range;

use ronde_core::exact::ExactSum;
use ronde_core::seed::SeedTree;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, CollectiveError, Group, GroupRank, Step};
use ronde_protocol::holdings::HeldRanges;

use super::low_rank::{LowRankFactors, LowRankSum};
use super::residuals::{NewResidual, Residuals, senders_of};
use super::{Codec, CodedSum, CompressionConfig, SentGradient};
use crate::distributed::DistributedVector;
use crate::state::ModelState;
use crate::strategy::{HeldVector, HeldVectorMut};

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

/// The exchange of one rank.
pub(crate) struct CompressedExchange {
    config: CompressionConfig,
    seeds: SeedTree,
    /// The senders of each rank.
    senders: ExactSum,
    residuals: Residuals,
    factors: Option<LowRankFactors>,
    ranges: Vec<SentRange>,
    /// The ranges whose contributions are under way, in the order in which they were sent.
    under_way: VecDeque<usize>,
    /// The bytes that this step has sent so far.
    sent: SentGradient,
}

impl CompressedExchange {
    /// Creates the exchange of a run that begins; [`CompressedExchange::arrange`] follows.
    pub(crate) fn new(
        config: CompressionConfig,
        seeds: SeedTree,
        state: &ModelState,
        (shards, rank): (&ShardPlan, GroupRank),
    ) -> Self {
        Self {
            config,
            seeds,
            senders: senders_of(shards, config.senders),
            residuals: Residuals::new(state, &config, shards, rank),
            factors: match config.codec {
                Codec::PowerSgd { rank } => Some(LowRankFactors::new(state, rank, &seeds)),
                _ => None,
            },
            ranges: Vec::new(),
            under_way: VecDeque::new(),
            sent: SentGradient::default(),
        }
    }

    /// Returns the vectors of the state that belong to the exchange.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = HeldVector<'_>> {
        let factors = self.factors.iter();
        let factors = factors.map(|factors| HeldVector::whole(&factors.values));
        factors.chain([self.residuals.all.vector()])
    }

    /// Returns the same vectors, mutable.
    pub(crate) fn vectors_mut(&mut self) -> impl Iterator<Item = HeldVectorMut<'_>> {
        let factors = self.factors.iter_mut();
        let factors = factors.map(|factors| HeldVectorMut::whole(&mut factors.values));
        factors.chain([self.residuals.all.vector_mut()])
    }

    /// Returns the residuals.
    pub(crate) fn residuals(&self) -> &DistributedVector {
        &self.residuals.all
    }

    /// Returns the residuals, mutable.
    pub(crate) fn residuals_mut(&mut self) -> &mut DistributedVector {
        &mut self.residuals.all
    }

    /// Enters a layout, or continues with other ranges.
    pub(crate) fn arrange(
        &mut self,
        state: &ModelState,
        shards: &ShardPlan,
        ranges: impl Iterator<Item = Range<usize>>,
    ) {
        self.senders = senders_of(shards, self.config.senders);
        self.residuals.arrange(state, &self.config, shards);
        let each = ranges.map(|elements| {
            let of = elements.clone();
            let sum = match &self.factors {
                Some(factors) => {
                    let senders = self.config.senders;
                    RangeSum::LowRank(LowRankSum::new(state, of, factors, senders))
                }
                None => {
                    let codec = self.config.codec;
                    RangeSum::Coded(CodedSum::new(state, of, codec, shards.ranks()))
                }
            };
            SentRange {
                elements,
                sum,
                sent: Vec::new(),
            }
        });
        self.ranges = each.collect();
        self.reset();
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
    pub(crate) fn missing(&self, index: usize, senders: &[(u32, Buffer)]) -> Option<u32> {
        let elements = &self.ranges[index].elements;
        let mut senders = senders.iter().map(|(sender, _)| *sender);
        senders.find(|sender| self.residuals.of(*sender, elements).is_none())
    }

    /// Adds the residuals to the contributions of this rank's senders to a range, and sends them.
    pub(crate) fn start(
        &mut self,
        index: usize,
        contributions: Vec<(u32, Buffer)>,
        group: &dyn Group,
    ) -> Result<(), CollectiveError> {
        let range = &mut self.ranges[index];
        for (sender, mut values) in contributions {
            let contribution = values.as_mut_slice::<f32>();
            let kept = self.residuals.of(sender, &range.elements);
            for (value, kept) in contribution.iter_mut().zip(kept.unwrap_or_default()) {
                *value += *kept;
            }
            match (&mut range.sum, &self.factors) {
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
        rest: usize,
        group: &dyn Group,
    ) -> Option<(usize, Result<(), CollectiveError>)> {
        if self.under_way.len() <= rest {
            return None;
        }
        let index = *self.under_way.front()?;
        Some((index, self.gather(index, group)?))
    }

    /// Waits for the contributions of the senders to a range, and begins the second exchange; `None` if the first one was not begun.
    pub(crate) fn gather(
        &mut self,
        index: usize,
        group: &dyn Group,
    ) -> Option<Result<(), CollectiveError>> {
        self.under_way.retain(|other| *other != index);
        let range = &mut self.ranges[index];
        match &mut range.sum {
            RangeSum::LowRank(sum) => sum.gather(group, &self.senders, &mut range.sent),
            RangeSum::Coded(sum) => {
                let residual = |elements: &Range<usize>| self.residuals.of_total(elements);
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
        index: usize,
        total: &mut [f32],
    ) -> Option<Result<(), CollectiveError>> {
        let range = &mut self.ranges[index];
        let finished = match (&mut range.sum, &self.factors) {
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

    /// Takes over the residuals and factors of a step that was applied. Returns the memory of its senders' residuals, with their
    /// ranges of the flat state.
    pub(crate) fn keep(&mut self, sent: SentGradient, step: Step) -> Vec<(Range<usize>, Buffer)> {
        if let (Some(factors), Some(next)) = (&mut self.factors, sent.factors) {
            factors.replace(next, &self.seeds, step.0 + 1);
        }
        let mut free = Vec::new();
        for residual in sent.residuals {
            self.residuals.replace(&residual);
            if residual.sender.is_some()
                && let [elements] = residual.elements.ranges()
            {
                free.push((elements.clone(), residual.values));
            }
        }
        free
    }
}
