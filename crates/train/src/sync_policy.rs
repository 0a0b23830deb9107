//! [`SyncPolicy`]: how the workers of a run synchronise.
//!
//! A kind of `[sync]` is a method of `ronde_parallel`, and a file here that computes its transaction. The rest of a run knows a
//! kind by data: [`SyncFacts`](crate::config::SyncFacts).

mod every_step;
mod feed;
mod gossip;
mod local_rounds;
mod predicted;
mod served;

use std::sync::Arc;

use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::rounds::RoundPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Event, Group, GroupRank, WorldSize};
use ronde_data::{Dataset, DatasetDescription};
use ronde_engine::Chain;
use ronde_parallel::{
    Gossip, GossipConfig, InnerLosses, LocalRounds, LocalRoundsConfig, LossScaling,
    ParameterServers, StateEdit, StateView, StepMethod, SynchronousConfig, SynchronousStrategy,
    SyntheticGradients,
};
use ronde_protocol::transaction::{CommittedStep, OpenStep};

use crate::config::SyncMethod;
use crate::error::TrainError;
use crate::plan::Plan;
use crate::predicted_stages::PredictedStages;
use crate::recording::WorkerRecorder;

pub(crate) use self::feed::Feed;
pub use self::local_rounds::check_planned_fragments;

/// The method of a run, by its kind: it determines the transaction and how its gradient is computed.
pub(crate) enum SyncPolicy {
    /// Gradients are summed in every step.
    EveryStep(Box<SynchronousStrategy>),
    /// Replicas make local steps between two sums.
    LocalRounds(Box<LocalRounds>, RoundPlan),
    /// Workers send gradients to servers, which update at once.
    Served(Box<ParameterServers>, RoundPlan),
    /// Replicas average in pairs.
    Gossip(Box<Gossip>, RoundPlan),
    /// Stages update with predicted gradients.
    Predicted(Box<SyntheticGradients>, RoundPlan, PredictedStages),
}

impl SyncPolicy {
    /// Creates the method that a plan chooses.
    ///
    /// # Errors
    /// The predictors of gradients are too large, or the model has too few layers.
    pub(crate) fn new(
        plan: &Plan,
        (group, layout): (Arc<dyn Group>, StepLayout),
        (mut chain, train): (Chain, &dyn Dataset),
        (loss_scaling, recorder): (Option<LossScaling>, &WorkerRecorder),
    ) -> Result<Self, TrainError> {
        let stages = PredictedStages::of(plan, &mut chain, train)?;
        let now = ronde_clock::seconds;
        let mut config = settings(plan, &chain, train.description());
        config.loss_scaling = loss_scaling;
        let strategy = |config, chain, group: &Arc<dyn Group>, layout: StepLayout| {
            let group = group.clone();
            let mut strategy = SynchronousStrategy::new(chain, group, layout, plan.seeds, config);
            strategy.set_clock(now);
            strategy.set_recorder(recorder.spans.clone());
            strategy
        };
        let Some(rounds) = plan.rounds else {
            let strategy = strategy(config, chain, &group, layout);
            return Ok(Self::EveryStep(Box::new(strategy)));
        };
        local_rounds::check_fragments(&plan.config, &chain)?;
        let compression = config.compression.take();
        let (alone, own) = replica_of(&rounds, plan, (chain.len(), stages.as_ref()));
        let replica = strategy(config, chain, &alone, own);
        Ok(match plan.config.sync.method() {
            SyncMethod::EveryStep => Self::EveryStep(Box::new(replica)),
            SyncMethod::LocalRounds(settings) => {
                let settings = LocalRoundsConfig {
                    compression,
                    ..settings
                };
                let method = LocalRounds::new(replica, group, layout, settings);
                Self::LocalRounds(Box::new(method), rounds)
            }
            SyncMethod::Served(servers) => {
                let method = ParameterServers::new(replica, group, servers, now);
                Self::Served(Box::new(method), rounds)
            }
            SyncMethod::Gossip { gossip_steps } => {
                let config = GossipConfig {
                    gossip_steps,
                    seeds: plan.seeds,
                };
                let method = Gossip::new(replica, group, config, now);
                Self::Gossip(Box::new(method), rounds)
            }
            SyncMethod::Predicted { .. } => {
                let stages = stages.expect("a run with predicted gradients has stages");
                let settings = stages.settings();
                let groups = (group, alone);
                let method = SyntheticGradients::new(replica, groups, layout, settings, now);
                let method = method.map_err(TrainError::Model)?;
                Self::Predicted(Box::new(method), rounds, stages)
            }
        })
    }

    /// Computes this rank's part of a transaction. Returns the seconds in which it waited for other ranks; adds the times of the
    /// phases to the times of the feed.
    ///
    /// # Errors
    /// Data or engine failed, or a rank was lost. The state is that before the transaction.
    pub(crate) fn compute(
        &mut self,
        feed: &mut Feed<'_>,
        open: &mut OpenStep,
    ) -> Result<f64, TrainError> {
        match self {
            Self::EveryStep(method) => every_step::compute(method, feed, open).map(|()| 0.0),
            Self::LocalRounds(method, rounds) => {
                local_rounds::compute(method, rounds, feed, open).map(|()| 0.0)
            }
            Self::Served(method, rounds) => served::compute(method, rounds, feed, open),
            Self::Gossip(method, rounds) => gossip::compute(method, rounds, feed, open),
            Self::Predicted(method, rounds, _) => predicted::compute(method, rounds, feed, open),
        }
    }

    /// Returns the events of a committed transaction that other kinds do not have.
    pub(crate) fn events(&self, committed: &CommittedStep) -> Vec<Event> {
        let step = committed.step;
        let (rounds, own) = match self {
            Self::EveryStep(_) => return Vec::new(),
            Self::LocalRounds(_, rounds) => (rounds, None),
            Self::Served(servers, rounds) => {
                let workers = servers.staleness().to_vec();
                (rounds, Some(Event::Staleness { step, workers }))
            }
            Self::Gossip(gossip, rounds) => {
                let summary = gossip.summary().clone();
                let event = Event::ReplicasAveraged {
                    step,
                    distance: summary.distance,
                    exchanges: summary.exchanges,
                    missed: summary.missed,
                    exchanged_bytes: summary.exchanged_bytes,
                    updates: summary.updates,
                };
                (rounds, Some(event))
            }
            Self::Predicted(stages, rounds, _) => {
                let tallies = stages.tallies().iter();
                let (cosines, errors) = tallies
                    .map(|tally| (tally.cosine(), tally.relative_error()))
                    .unzip();
                let event = Event::GradientsPredicted {
                    step,
                    cosines,
                    errors,
                };
                (rounds, Some(event))
            }
        };
        let losses = InnerLosses::decode(committed.sums.iter().map(Vec::as_slice));
        let losses = losses.map(|losses| Event::InnerLosses {
            step,
            first: rounds.steps_before(step),
            losses: losses.means(),
        });
        losses.into_iter().chain(own).collect()
    }

    /// Returns the common interface of all kinds.
    pub(crate) fn method(&mut self) -> &mut dyn StepMethod {
        match self {
            Self::EveryStep(method) => &mut **method,
            Self::LocalRounds(method, _) => &mut **method,
            Self::Served(method, _) => &mut **method,
            Self::Gossip(method, _) => &mut **method,
            Self::Predicted(method, ..) => &mut **method,
        }
    }

    /// Describes the stages that update with predicted gradients, if the run has any.
    pub(crate) fn describe_stages(&self) -> Option<String> {
        match self {
            Self::Predicted(_, _, stages) => Some(stages.describe()),
            _ => None,
        }
    }

    /// Returns the state of the run on this rank.
    pub(crate) fn state(&self) -> StateView<'_> {
        match self {
            Self::EveryStep(method) => method.state(),
            Self::LocalRounds(method, _) => method.state(),
            Self::Served(method, _) => method.state(),
            Self::Gossip(method, _) => method.state(),
            Self::Predicted(method, ..) => method.state(),
        }
    }

    /// Returns the state of the run for changes: see [`StepMethod::edit`].
    pub(crate) fn edit(&mut self) -> StateEdit<'_> {
        self.method().edit()
    }

    /// Returns the strategy whose ranks exchange gradients in every step; `None` for the other kinds.
    pub(crate) fn every_step(&mut self) -> Option<&mut SynchronousStrategy> {
        match self {
            Self::EveryStep(method) => Some(method),
            _ => None,
        }
    }

    /// Returns the group of the ranks with the same layers as this one, if it is not the group of all ranks.
    pub(crate) fn part_group(&self) -> Option<&dyn Group> {
        match self {
            Self::EveryStep(method) => method.part_group(),
            _ => None,
        }
    }

    /// Returns the model with the current state.
    pub(crate) fn into_chain(self) -> Chain {
        match self {
            Self::EveryStep(method) => method.into_chain(),
            Self::LocalRounds(method, _) => method.into_chain(),
            Self::Served(method, _) => method.into_chain(),
            Self::Gossip(method, _) => method.into_chain(),
            Self::Predicted(method, ..) => method.into_chain(),
        }
    }
}

/// Returns the settings of a step.
fn settings(plan: &Plan, chain: &Chain, data: &DatasetDescription) -> SynchronousConfig {
    let config = &plan.config;
    let mut settings = SynchronousConfig::new(config.optimizer, plan.objective.loss.clone());
    settings.weight_decay_on = config.train.weight_decay_on;
    let groups = &config.train.parameter_groups;
    settings.parameter_groups.clone_from(groups);
    settings.clip_norm = config.train.clip_norm;
    if let Some(bytes) = config.comm.bucket_bytes_max {
        settings.bucket_bytes_max = bytes as usize;
    }
    settings.sparse_tables = config.comm.sparse_tables;
    settings.zero = config.parallel.zero_level();
    settings.hashing = plan.hashing;
    settings.copies = config.parallel.copies;
    settings.schedule = config.parallel.pipeline_schedule();
    settings.order = config.parallel.shard_order();
    settings.together = plan.shards_together(chain, &data.shape);
    settings.compression = config.compression.settings();
    (settings.sample_shape, settings.may_reset) = (data.shape.clone(), config.has_slices());
    settings.targets_per_sample = data.targets_per_sample;
    settings.shard_samples_max = plan.shard_samples_max();
    settings
}

/// Returns the group and the layout in which one replica trains alone, or the stages that update with predicted gradients.
fn replica_of(
    rounds: &RoundPlan,
    plan: &Plan,
    (layers, predicted): (usize, Option<&PredictedStages>),
) -> (Arc<dyn Group>, StepLayout) {
    let name = &plan.config.run.name;
    let config = GroupConfig::new("replica", name, GroupRank(0));
    let parts = ShardPlan::new(rounds.parts(), WorldSize::ONE);
    let parts = parts.expect("a plan of rounds has at least one part");
    let stages = predicted.and_then(|predicted| predicted.layout(rounds.parts()));
    let layout = stages.unwrap_or_else(|| StepLayout::data_parallel(parts, layers));
    (Arc::new(ProcessGroup::alone(config)), layout)
}
