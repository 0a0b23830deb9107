//! `[parallel]`: how the work and the state of a run are divided among the workers.

use ronde_parallel::{SynchronousConfig, ZeroLevel};
use ronde_schedule::PipelineSchedule;
use serde::{Deserialize, Serialize};

use super::{at_least_one, is_default};
use crate::config::ConfigProblem;

/// `[parallel]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ParallelSection {
    /// What is divided among the workers instead of being held by each of them: nothing (0), the states of the optimizer
    /// (1), or these and the reduced gradients (2); default 0. The trained bits do not depend on it.
    pub zero: u32,
    /// How many workers hold each slice of a divided state, 1 or 2; default 2 with more than two workers, otherwise 1. With
    /// 2, the run continues after the loss of any one worker without loading a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    /// How many workers divide the layers of the model among themselves; default 1. The trained bits do not depend on it.
    #[serde(skip_serializing_if = "is_one")]
    pub pipeline: u32,
    /// The order in which the workers of a pipeline compute the logical shards; default `1f1b`. The trained bits do not
    /// depend on it.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "1f1b")))]
    pub schedule: ScheduleName,
    /// Where the layers are divided: `auto`, by their work, or the names of the layers that begin the second and later parts.
    #[serde(skip_serializing_if = "is_default", with = "super::cuts")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "super::cuts::schema", extend("default" = "auto")))]
    pub cuts: Vec<String>,
}

/// The order in which the workers of a pipeline compute the logical shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ScheduleName {
    /// All forward passes, then all backward passes.
    #[serde(rename = "gpipe")]
    GPipe,
    /// One forward pass, one backward pass.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
}

impl Default for ParallelSection {
    fn default() -> Self {
        Self {
            zero: 0,
            copies: None,
            pipeline: 1,
            schedule: ScheduleName::default(),
            cuts: Vec::new(),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_one(pipeline: &u32) -> bool {
    *pipeline == 1
}

impl ParallelSection {
    /// Returns the level of `zero`; none for a number that `check` rejects.
    #[must_use]
    pub fn zero_level(&self) -> ZeroLevel {
        ZeroLevel::new(self.zero).unwrap_or_default()
    }

    /// Returns how many of `workers` workers hold each slice.
    #[must_use]
    pub fn copies_among(&self, workers: u32) -> u32 {
        SynchronousConfig::copies_among(self.copies, workers as usize)
    }

    /// Returns whether a worker may hold a part of the state only.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.pipeline > 1 || self.zero_level().is_sharded()
    }

    /// Returns the order in which the workers of a pipeline compute the logical shards.
    #[must_use]
    pub fn pipeline_schedule(&self) -> PipelineSchedule {
        match self.schedule {
            ScheduleName::GPipe => PipelineSchedule::GPipe,
            ScheduleName::OneForwardOneBackward => PipelineSchedule::OneForwardOneBackward,
        }
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        if ZeroLevel::new(self.zero).is_none() {
            let message = format!("`parallel.zero` is {}, but must be 0, 1 or 2", self.zero);
            problems.push(ConfigProblem::error("parallel.zero", message));
        }
        if let Some(copies) = self.copies.filter(|copies| !(1..=2).contains(copies)) {
            let message = format!("`parallel.copies` is {copies}, but must be 1 or 2");
            problems.push(ConfigProblem::error("parallel.copies", message));
        }
        at_least_one("parallel.pipeline", self.pipeline.into(), problems);
        if !self.cuts.is_empty() && self.cuts.len() + 1 != self.pipeline as usize {
            let (cuts, parts) = (self.cuts.len(), self.cuts.len() + 1);
            let message = format!(
                "`parallel.cuts` has {cuts} names, which make {parts} parts, but `parallel.pipeline` is {}",
                self.pipeline
            );
            let hint = format!("set `parallel.pipeline` to {parts}, or leave `parallel.cuts` out");
            problems.push(ConfigProblem::error("parallel.cuts", message).hint(hint));
        }
    }
}
