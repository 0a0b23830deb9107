//! [`CompressionState`]: the state of short forms in a run.

use std::ops::Range;

use ronde_core::seed::SeedTree;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, GroupRank, Step};

use super::low_rank::LowRankFactors;
use super::residuals::Residuals;
use super::{Codec, CompressionConfig, SentGradient};
use crate::state::ModelState;
use crate::state_view::{RunVector, RunVectorMut};

/// The residuals that a rank holds, and the factors of the start of the next step.
pub(crate) struct CompressionState {
    pub(super) config: CompressionConfig,
    seeds: SeedTree,
    pub(super) residuals: Residuals,
    pub(super) factors: Option<LowRankFactors>,
}

impl CompressionState {
    /// Creates the state of a run before its first step.
    pub(crate) fn new(
        config: CompressionConfig,
        seeds: SeedTree,
        state: &ModelState,
        (shards, rank): (&ShardPlan, GroupRank),
    ) -> Self {
        Self {
            config,
            seeds,
            residuals: Residuals::new(state, &config, shards, rank),
            factors: match config.codec {
                Codec::PowerSgd { rank } => Some(LowRankFactors::new(state, rank, &seeds)),
                _ => None,
            },
        }
    }

    /// Assigns the residuals to the ranks of a layout.
    pub(crate) fn arrange(&mut self, state: &ModelState, shards: &ShardPlan) {
        self.residuals.arrange(state, &self.config, shards);
    }

    /// Returns the vectors.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = RunVector<'_>> {
        let factors = self.factors.iter();
        let factors = factors.map(|factors| RunVector::Whole(&factors.values));
        factors.chain([RunVector::Distributed(&self.residuals.all)])
    }

    /// Returns the same vectors, mutable.
    pub(crate) fn vectors_mut(&mut self) -> impl Iterator<Item = RunVectorMut<'_>> {
        let factors = self.factors.iter_mut();
        let factors = factors.map(|factors| RunVectorMut::Whole(&mut factors.values));
        factors.chain([RunVectorMut::Distributed(&mut self.residuals.all)])
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
