//! [`RankAssignment`]: the work of each rank, which may change within a generation.

use ronde_core::step_layout::StepLayout;
use ronde_core::{Event, Rank};

use super::buckets::BucketTuning;
use crate::balance::{Balance, BalancedShares};
use crate::error::TrainError;
use crate::job_group::JobGroup;
use crate::model_parts::ModelParts;

/// The layers and the shards of each rank, and the measurements that change them.
pub(super) struct RankAssignment {
    parts: ModelParts,
    layout: StepLayout,
    /// The tuning of the bucket size; `None` after the size was chosen.
    pub(super) tuning: Option<BucketTuning>,
    /// The measurement of the ranks' speeds; `None`: all have equal shares.
    balance: Option<Balance>,
}

impl RankAssignment {
    /// Divides shards and the parts of a model among ranks, evenly.
    ///
    /// # Errors
    /// The model cannot be divided among so many ranks.
    pub(super) fn even(parts: ModelParts, shards: u32, ranks: usize) -> Result<Self, TrainError> {
        Ok(Self {
            layout: parts.layout(shards, ranks)?,
            parts,
            tuning: None,
            balance: None,
        })
    }

    /// Returns the layers and the shards of each rank.
    pub(super) fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// Returns the layout in which as many of `ranks` as possible have shards, evenly.
    ///
    /// # Errors
    /// As [`RankAssignment::even`].
    pub(super) fn even_layout(&self, ranks: usize) -> Result<StepLayout, TrainError> {
        self.parts.layout(self.layout.shards().shards(), ranks)
    }

    /// Replaces the layout.
    pub(super) fn replace(&mut self, layout: StepLayout) {
        self.layout = layout;
    }

    /// Measures the speeds of the ranks from now on, or gives all of them equal shares.
    pub(super) fn measure_speeds(&mut self, is_measured: bool) {
        self.balance = is_measured.then(Balance::default);
    }

    /// Records the seconds that each rank was busy in a step. Returns other shares if they are worth the change.
    pub(super) fn observe(&mut self, busy_s: &[f64]) -> Option<BalancedShares> {
        // The sizes that are tried change the times.
        if self.tuning.is_some() {
            return None;
        }
        let (present, servers) = (self.layout.shards(), self.layout.servers());
        let balance = self.balance.as_mut()?;
        balance.observe(busy_s, present, servers)
    }

    /// Describes how the ranks divide the model; `None` if each has all of it.
    pub(super) fn describe(&self) -> Option<String> {
        self.parts.describe(&self.layout)
    }

    /// Reports on rank 0 how the ranks divide the model from now on, if that has changed.
    pub(super) fn report_change(&self, before: &StepLayout, member: &JobGroup) {
        let shape = |layout: &StepLayout| {
            let spares = layout.ranks() - layout.members();
            [
                layout.columns(),
                layout.tensors(),
                layout.replicas(),
                spares,
            ]
        };
        if member.rank != Rank(0) || shape(before) == shape(&self.layout) {
            return;
        }
        let layout = self.describe();
        let message = layout.unwrap_or_else(|| "each worker has the whole model".to_owned());
        let rank = None;
        member.tracker.record(Event::Notice { rank, message });
    }
}
