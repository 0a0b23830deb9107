//! `[parallel]`: how the work and the state of a run are divided among the workers.

use ronde_parallel::{SynchronousConfig, ZeroLevel};
use ronde_schedule::{PipelineSchedule, ShardOrder};
use serde::{Deserialize, Serialize};

use super::{at_least_one, is_default};
use crate::config::ConfigProblem;

/// `[parallel]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ParallelSection {
    /// What is divided among the workers instead of being held by each of them: nothing (0), the states of the optimizer
    /// (1), these and the reduced gradients (2), or these and the weights (3); default 0. The trained bits do not depend on it.
    pub zero: u32,
    /// How many workers hold each slice of a divided state, 1 or 2; default 2 with more than two workers, otherwise 1. With
    /// 2, the run continues after the loss of any one worker without loading a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    /// How many workers update the state instead of computing logical shards, as synchronous parameter servers; at least one worker
    /// computes. They divide the state among themselves; default 0: the workers that compute also update. The trained bits do not
    /// depend on it.
    #[serde(skip_serializing_if = "is_default")]
    pub servers: u32,
    /// How many workers divide the layers of the model among themselves; default 1. The trained bits do not depend on it.
    #[serde(skip_serializing_if = "is_one")]
    pub pipeline: u32,
    /// How many workers divide the parts of each layer among themselves (`model.tensor_parts`); default 1. The trained bits do
    /// not depend on it.
    #[serde(skip_serializing_if = "is_one")]
    pub tensor: u32,
    /// The order in which the workers of a pipeline compute the logical shards; default `1f1b`. The trained bits do not
    /// depend on it.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "1f1b")))]
    pub schedule: ScheduleName,
    /// Into how many stages the layers of each worker of an interleaved pipeline are divided, at least 2; default 2. The
    /// trained bits do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = 2)))]
    pub stages_per_worker: Option<u32>,
    /// The order in which a worker computes its logical shards without a pipeline: `by_shard`, one shard after the other, or
    /// `by_layer`, all of them through a layer before the next layer, which needs less memory for gradients and fewer gathers of
    /// weights, and more memory for activations; default `by_shard`. The trained bits do not depend on it.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "by_shard")))]
    pub order: OrderName,
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
    /// One forward pass, one backward pass, with several stages on each worker.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// One forward pass, one backward pass, with the gradients of weights while a worker would wait.
    #[serde(rename = "zero_bubble")]
    ZeroBubble,
}

/// The order in which a worker computes its logical shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OrderName {
    /// One shard after the other.
    #[default]
    ByShard,
    /// All shards through a layer before the next layer.
    ByLayer,
}

impl Default for ParallelSection {
    fn default() -> Self {
        Self {
            zero: 0,
            copies: None,
            servers: 0,
            pipeline: 1,
            tensor: 1,
            schedule: ScheduleName::default(),
            stages_per_worker: None,
            order: OrderName::default(),
            cuts: Vec::new(),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_one(workers: &u32) -> bool {
    *workers == 1
}

impl ParallelSection {
    /// Returns the level of `zero`, with servers at least the one that leaves gradients and states of the optimizer to them; none for
    /// a number that `check` rejects.
    #[must_use]
    pub fn zero_level(&self) -> ZeroLevel {
        let level = ZeroLevel::new(self.zero).unwrap_or_default();
        match self.servers {
            0 => level,
            _ => level.max(ZeroLevel::Gradients),
        }
    }

    /// Returns how many of `workers` workers serve.
    #[must_use]
    pub fn servers_among(&self, workers: u32) -> u32 {
        self.servers.min(workers.saturating_sub(1))
    }

    /// Returns how many of `workers` workers hold each slice.
    #[must_use]
    pub fn copies_among(&self, workers: u32) -> u32 {
        SynchronousConfig::copies_among(self.copies, workers as usize)
    }

    /// Returns whether a worker may hold a part of the state only.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.divides_model() || self.zero_level().is_sharded()
    }

    /// Returns whether a worker may have a part of the model only.
    #[must_use]
    pub fn divides_model(&self) -> bool {
        self.pipeline > 1 || self.tensor > 1
    }

    /// Returns how many workers have the whole model together.
    #[must_use]
    pub fn model_workers(&self) -> u32 {
        self.pipeline.max(1).saturating_mul(self.tensor.max(1))
    }

    /// Returns the order in which the workers of a pipeline compute the logical shards.
    #[must_use]
    pub fn pipeline_schedule(&self) -> PipelineSchedule {
        match self.schedule {
            ScheduleName::GPipe => PipelineSchedule::GPipe,
            ScheduleName::OneForwardOneBackward => PipelineSchedule::OneForwardOneBackward,
            ScheduleName::Interleaved => PipelineSchedule::Interleaved,
            ScheduleName::ZeroBubble => PipelineSchedule::ZeroBubble,
        }
    }

    /// Returns the order of shards and layers.
    #[must_use]
    pub fn shard_order(&self) -> ShardOrder {
        match self.order {
            OrderName::ByShard => ShardOrder::ByShard,
            OrderName::ByLayer => ShardOrder::ByLayer,
        }
    }

    /// Returns the number of stages of each worker of a pipeline.
    #[must_use]
    pub fn rounds(&self) -> usize {
        match self.schedule {
            ScheduleName::Interleaved => self.stages_per_worker.unwrap_or(2) as usize,
            _ => 1,
        }
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        if ZeroLevel::new(self.zero).is_none() {
            let message = format!("`parallel.zero` is {}, but must be 0, 1, 2 or 3", self.zero);
            problems.push(ConfigProblem::error("parallel.zero", message));
        }
        if let Some(copies) = self.copies.filter(|copies| !(1..=2).contains(copies)) {
            let message = format!("`parallel.copies` is {copies}, but must be 1 or 2");
            problems.push(ConfigProblem::error("parallel.copies", message));
        }
        self.check_servers(problems);
        at_least_one("parallel.pipeline", self.pipeline.into(), problems);
        at_least_one("parallel.tensor", self.tensor.into(), problems);
        self.check_stages(problems);
        self.check_order(problems);
        let stages = self.pipeline as usize * self.rounds();
        if !self.cuts.is_empty() && self.cuts.len() + 1 != stages {
            let (cuts, parts) = (self.cuts.len(), self.cuts.len() + 1);
            if self.rounds() > 1 {
                let message = format!(
                    "`parallel.cuts` has {cuts} names, which make {parts} stages, but there are {stages}"
                );
                let hint = format!("name {} layers, or leave `parallel.cuts` out", stages - 1);
                problems.push(ConfigProblem::error("parallel.cuts", message).hint(hint));
                return;
            }
            let message = format!(
                "`parallel.cuts` has {cuts} names, which make {parts} parts, but `parallel.pipeline` is {}",
                self.pipeline
            );
            let hint = format!("set `parallel.pipeline` to {parts}, or leave `parallel.cuts` out");
            problems.push(ConfigProblem::error("parallel.cuts", message).hint(hint));
        }
    }

    fn check_servers(&self, problems: &mut Vec<ConfigProblem>) {
        if self.servers > 0 && self.divides_model() {
            let message = "`parallel.servers` leaves the whole state to workers that compute nothing, but `parallel.pipeline` or `parallel.tensor` divides the model among those that compute";
            let hint = "set `parallel.pipeline` = 1 and `parallel.tensor` = 1, or leave `parallel.servers` out and set `parallel.zero`";
            problems.push(ConfigProblem::error("parallel.servers", message).hint(hint));
        }
    }

    fn check_order(&self, problems: &mut Vec<ConfigProblem>) {
        if self.order == OrderName::ByShard {
            return;
        }
        let name = "parallel.order";
        if self.pipeline > 1 {
            let message = format!(
                "`{name}` is \"by_layer\", but the order of a pipeline is `parallel.schedule`"
            );
            let hint = "leave the key out, or set `parallel.pipeline = 1`";
            problems.push(ConfigProblem::error(name, message).hint(hint));
        } else if self.zero_level() < ZeroLevel::Gradients {
            let message = format!(
                "`{name} = \"by_layer\"` saves memory with `parallel.zero = 2` or 3 only, but that is {}",
                self.zero
            );
            let hint = "set `parallel.zero`, or leave the key out";
            problems.push(ConfigProblem::error(name, message).hint(hint));
        }
    }

    fn check_stages(&self, problems: &mut Vec<ConfigProblem>) {
        let name = "parallel.stages_per_worker";
        match self.stages_per_worker {
            Some(_) if self.schedule != ScheduleName::Interleaved => {
                let message = format!(
                    "`{name}` has an effect with `parallel.schedule = \"interleaved\"` only"
                );
                let hint = "set that schedule, or leave the key out";
                problems.push(ConfigProblem::error(name, message).hint(hint));
            }
            Some(stages) if stages < 2 => {
                let message = format!("`{name}` is {stages}, but must be at least 2");
                let hint = "`parallel.schedule = \"1f1b\"` has one stage per worker";
                problems.push(ConfigProblem::error(name, message).hint(hint));
            }
            _ => {}
        }
    }
}
