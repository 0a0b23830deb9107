//! `[sync]`: when workers exchange their changes of the weights.

use ronde_core::rounds::RoundPlan;
use ronde_engine::{OptimizerConfig, Precision};
use ronde_parallel::{
    Codec, InnerState, LocalRoundsConfig, ParameterServersConfig, PredictorTargets,
    StreamingConfig, SyntheticGradientsConfig,
};
use serde::{Deserialize, Serialize};

use super::{BalanceMode, at_least_one, not_negative, predicted};
use crate::config::{ConfigProblem, RunConfig};

/// The share of its own weights that a replica keeps of a fragment.
const OWN_SHARE: f64 = 0.5;
/// The most inner steps of a round.
pub(super) const INNER_STEPS_MAX: u64 = 1_000_000;

/// `[sync]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SyncSection {
    /// Gradients are summed in every step.
    #[default]
    EveryStep,
    /// Replicas of the model train alone for some steps, then the mean of their changes is one step of an outer optimizer.
    LocalSgd {
        /// The number of steps that each replica makes between two exchanges.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [50])))]
        inner_steps: u64,
        /// The number of replicas, at least one for each worker. The trained bits depend on it, and not on the workers that
        /// compute the replicas.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [4])))]
        replicas: u32,
        /// The learning rate of the outer optimizer; default 0.7. With 1 and `outer_momentum = 0`, the weights become the mean of the
        /// replicas.
        #[serde(default = "outer_learning_rate")]
        outer_learning_rate: f64,
        /// The momentum of the outer optimizer, which is SGD; default 0.9.
        #[serde(default = "outer_momentum")]
        outer_momentum: f64,
        /// Whether this is Nesterov momentum; default true.
        #[serde(default = "yes")]
        outer_nesterov: bool,
        /// How the states of `[optimizer]` begin in each round; default `reset`.
        #[serde(default)]
        inner_state: InnerStateName,
        /// The form in which changes of weights are sent; default `f32`. The trained bits depend on it.
        #[serde(default)]
        outer_format: OuterFormatName,
        /// The number of parts of the state that are exchanged in turn, each once in `inner_steps` steps, while replicas compute; default 1:
        /// the whole state, while replicas wait. The trained bits depend on it.
        #[serde(default = "one_fragment", skip_serializing_if = "is_one")]
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [2])))]
        fragments: u32,
        /// The share of its own weights that a replica keeps of a fragment when the new ones arrive; default 0.5.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [0.5])))]
        own_share: Option<f64>,
    },
    /// Servers hold the state, and each worker fetches it, computes the gradient of a batch and pushes it without waiting for the
    /// other workers. The trained bits depend on the order in which gradients arrive.
    ParameterServer {
        /// The number of workers that serve instead of computing, unless too few remain; default 1. The state is divided among them.
        #[serde(
            default = "one_server",
            serialize_with = "ronde_core::outside_identity"
        )]
        servers: u32,
        /// The number of updates between two points at which all workers meet, for checkpoints, evaluations and workers that join.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [200])))]
        round_updates: u64,
        /// The most updates that may be applied between the moment when a worker fetches the weights and the one when its gradient
        /// is applied; by default, there is no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [8])))]
        staleness_max: Option<u64>,
        /// Whether the learning rate of a gradient is divided by its staleness; default false.
        #[serde(default)]
        scale_by_staleness: bool,
        /// The number of workers that have each part of the state during a round, 1 or 2; default 2.
        #[serde(
            default = "two_copies",
            serialize_with = "ronde_core::outside_identity"
        )]
        copies: u32,
        /// The seconds after which another worker may compute a batch that a worker has begun; default 60.
        #[serde(default = "lease_s", serialize_with = "ronde_core::outside_identity")]
        lease_s: f64,
    },
    /// Each worker trains its own replica of the model, and averages it with that of one other worker at a time without waiting for the
    /// others. The trained bits depend on the order in which replicas meet.
    Gossip {
        /// The number of updates between two points at which all workers meet, for checkpoints, evaluations and workers that join.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [100])))]
        round_updates: u64,
        /// The number of updates of a worker between two exchanges that it begins; default 1.
        #[serde(default = "one_step")]
        gossip_steps: u64,
    },
    /// The layers are divided into stages, which update with predicted gradients without waiting for each other. The gradients of the next
    /// stage train the predictors.
    SyntheticGradients {
        /// The number of stages, 2 or more, and at least one for each worker. The trained bits depend on it, and not on the workers
        /// that compute the stages.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [4])))]
        stages: u32,
        /// Where the stages begin: `auto`, by their work, or the names of the layers that start the second and later stages.
        #[serde(default, skip_serializing_if = "Vec::is_empty", with = "super::cuts")]
        #[cfg_attr(feature = "schema", schemars(schema_with = "super::cuts::schema", extend("default" = "auto")))]
        borders: Vec<String>,
        /// The number of batches between two points at which all workers meet, for checkpoints, evaluations and workers that join.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [100])))]
        round_steps: u64,
        /// The number of batches after which the gradient of a batch trains a predictor; default 2.
        #[serde(default = "gradient_delay")]
        gradient_delay: u64,
        /// The width of the hidden layer of each predictor; default 0: they have none.
        #[serde(default)]
        hidden: u32,
        /// The learning rate of the predictors, which Adam trains; by default 0.003 for up to 4 stages, and above that in proportion
        /// to the stages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [0.003])))]
        predictor_learning_rate: Option<f64>,
    },
}

/// The facts about a kind of synchronisation that the rest of a run needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncFacts {
    /// The number of logical replicas if a transaction is a round, which is one with asynchronous training; `None`: gradients are
    /// summed in every step.
    pub replicas: Option<u32>,
    /// The number of steps, or of updates, of a round.
    pub round_steps: u64,
    /// The key of that number.
    pub round_key: &'static str,
    /// The unit of the number.
    pub round_unit: &'static str,
    /// The most workers, the name of the things that they divide among themselves, and the key that limits them; `None`: as many
    /// as there are logical shards.
    pub workers_max: Option<(u32, &'static str, &'static str)>,
    /// The samples that a worker loads and reports.
    pub samples: RoundSamples,
    /// Why another run with the same settings has other weights; `None` if it has the same.
    pub unrepeatable: Option<&'static str>,
}

/// The samples of a transaction that a worker loads and reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundSamples {
    /// Those of its shards, or replicas.
    OfShards,
    /// Those of the updates that it gets. One worker reports all samples of a round, in which all workers take part.
    OnDemand,
    /// All of them, and one worker reports them.
    AllOnEach,
}

/// The settings of the method of a kind.
#[derive(Debug, Clone, PartialEq)]
pub enum SyncMethod<'a> {
    /// Gradients are summed in every step.
    EveryStep,
    /// Replicas make local steps between two sums.
    LocalRounds(LocalRoundsConfig),
    /// Workers send gradients to servers.
    Served(ParameterServersConfig),
    /// Replicas average in pairs.
    Gossip {
        /// The number of updates of a worker between two exchanges that it starts.
        gossip_steps: u64,
    },
    /// Stages update with predicted gradients.
    Predicted {
        /// The number of stages.
        stages: u32,
        /// The names of the layers that start the second and later stages; empty: by their work.
        borders: &'a [String],
        /// The settings of the predictors, apart from their targets.
        settings: SyntheticGradientsConfig,
    },
}

/// The most workers of a run with asynchronous training.
const ASYNCHRONOUS_WORKERS_MAX: u32 = 256;
/// The longest lease in seconds.
const LEASE_S_MAX: f64 = 86_400.0;

/// How the states of the inner optimizer begin in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InnerStateName {
    /// Zeros.
    #[default]
    Reset,
    /// Their mean over all replicas after the previous round.
    Average,
    /// Those of the same replica after the previous round. Each is on one worker only.
    Keep,
}

/// The form in which the changes of weights are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OuterFormatName {
    /// 4 bytes for each weight.
    #[default]
    F32,
    /// 2 bytes for each weight.
    Bf16,
    /// 1 byte for each weight, and 4 for each block of up to 256 of them.
    Int8Blocks,
}

fn outer_learning_rate() -> f64 {
    0.7
}

fn outer_momentum() -> f64 {
    0.9
}

fn yes() -> bool {
    true
}

fn one_fragment() -> u32 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(count: &u32) -> bool {
    *count == 1
}

fn one_server() -> u32 {
    1
}

fn one_step() -> u64 {
    1
}

fn gradient_delay() -> u64 {
    2
}

fn two_copies() -> u32 {
    2
}

fn lease_s() -> f64 {
    60.0
}

impl SyncSection {
    /// Returns the facts of the kind for the rest of a run.
    #[must_use]
    pub fn facts(&self) -> SyncFacts {
        let every_step = SyncFacts {
            replicas: None,
            round_steps: 1,
            round_key: "sync.inner_steps",
            round_unit: "steps",
            workers_max: None,
            samples: RoundSamples::OfShards,
            unrepeatable: None,
        };
        let asynchronous = SyncFacts {
            replicas: Some(1),
            round_key: "sync.round_updates",
            round_unit: "updates",
            samples: RoundSamples::OnDemand,
            ..every_step
        };
        match *self {
            Self::EveryStep => every_step,
            Self::LocalSgd {
                inner_steps,
                fragments,
                replicas,
                ..
            } => SyncFacts {
                replicas: Some(replicas),
                round_steps: (inner_steps / u64::from(fragments.max(1))).max(1),
                workers_max: Some((replicas, "replicas", "sync.replicas")),
                ..every_step
            },
            Self::ParameterServer { round_updates, .. } => SyncFacts {
                round_steps: round_updates,
                workers_max: Some((
                    ASYNCHRONOUS_WORKERS_MAX,
                    "places of workers",
                    "the most with servers",
                )),
                unrepeatable: Some(
                    "parameter servers apply gradients in the order in which they arrive, which differs from run to run",
                ),
                ..asynchronous
            },
            Self::Gossip { round_updates, .. } => SyncFacts {
                round_steps: round_updates,
                workers_max: Some((
                    ASYNCHRONOUS_WORKERS_MAX,
                    "places of workers",
                    "the most with sync.kind = \"gossip\"",
                )),
                unrepeatable: Some(
                    "replicas average in pairs in the order in which workers get there, which differs from run to run",
                ),
                ..asynchronous
            },
            Self::SyntheticGradients {
                stages,
                round_steps,
                ..
            } => SyncFacts {
                replicas: Some(1),
                round_steps,
                round_key: "sync.round_steps",
                workers_max: Some((stages, "stages", "sync.stages")),
                samples: RoundSamples::AllOnEach,
                ..every_step
            },
        }
    }

    /// Returns the settings of the method of the kind.
    #[must_use]
    pub fn method(&self) -> SyncMethod<'_> {
        match *self {
            Self::EveryStep => SyncMethod::EveryStep,
            Self::LocalSgd {
                outer_learning_rate,
                outer_momentum: momentum,
                outer_nesterov,
                inner_state,
                outer_format,
                fragments,
                own_share,
                ..
            } => SyncMethod::LocalRounds(LocalRoundsConfig {
                streaming: (fragments > 1).then(|| StreamingConfig {
                    fragments,
                    own_share: own_share.unwrap_or(OWN_SHARE) as f32,
                }),
                outer: OptimizerConfig::Sgd {
                    momentum,
                    nesterov: outer_nesterov && momentum > 0.0,
                    weight_decay: 0.0,
                },
                outer_learning_rate,
                inner_state: match inner_state {
                    InnerStateName::Reset => InnerState::Reset,
                    InnerStateName::Average => InnerState::Average,
                    InnerStateName::Keep => InnerState::Keep,
                },
                outer_format: match outer_format {
                    OuterFormatName::F32 => Codec::F32,
                    OuterFormatName::Bf16 => Codec::Bf16,
                    OuterFormatName::Int8Blocks => Codec::Int8Blocks,
                },
                compression: None,
            }),
            Self::ParameterServer {
                servers,
                staleness_max,
                scale_by_staleness,
                copies,
                lease_s,
                ..
            } => SyncMethod::Served(ParameterServersConfig {
                servers,
                copies,
                staleness_max,
                scales_by_staleness: scale_by_staleness,
                lease_ms: (lease_s * 1e3) as u64,
            }),
            Self::Gossip { gossip_steps, .. } => SyncMethod::Gossip { gossip_steps },
            Self::SyntheticGradients {
                stages,
                ref borders,
                gradient_delay,
                hidden,
                predictor_learning_rate,
                ..
            } => SyncMethod::Predicted {
                stages,
                borders,
                settings: SyntheticGradientsConfig {
                    gradient_delay,
                    hidden: hidden as usize,
                    predictor_learning_rate: predictor_learning_rate
                        .unwrap_or_else(|| predicted::learning_rate(stages)),
                    targets: PredictorTargets::Unused,
                },
            },
        }
    }

    /// Returns the names of the states of a run with this optimizer, which have a value for each weight.
    #[must_use]
    pub fn state_names(&self, optimizer: &OptimizerConfig) -> Vec<&'static str> {
        let SyncMethod::LocalRounds(rounds) = self.method() else {
            return optimizer.state_names().to_vec();
        };
        let outer = rounds.outer.state_names().iter().map(|_| "outer_momentum");
        let inner = match rounds.inner_state {
            InnerState::Reset | InnerState::Keep => &[],
            InnerState::Average => optimizer.state_names(),
        };
        let inner = inner.iter().map(|name| match *name {
            "mean" => "inner_mean",
            "mean_square" => "inner_mean_square",
            _ => "inner_momentum",
        });
        outer.chain(inner).collect()
    }

    /// Returns the number of vectors that each replica keeps between rounds, of as many elements as the weights; 0 if it keeps nothing.
    #[must_use]
    pub fn kept_vectors(&self, optimizer: &OptimizerConfig) -> u64 {
        match self.method() {
            SyncMethod::LocalRounds(rounds) if rounds.inner_state == InnerState::Keep => {
                let weights = u64::from(rounds.streaming.is_some());
                weights + optimizer.state_names().len() as u64
            }
            _ => 0,
        }
    }

    /// Describes how the run is synchronised, for its start; `None` if gradients are summed in every step.
    #[must_use]
    pub fn describe(&self, rounds: &RoundPlan) -> Option<String> {
        let settings = match self.method() {
            SyncMethod::EveryStep => return None,
            SyncMethod::LocalRounds(settings) => settings,
            SyncMethod::Served(servers) => return Some(describe_servers(&servers, rounds)),
            SyncMethod::Gossip { gossip_steps } => {
                return Some(describe_gossip(gossip_steps, rounds));
            }
            SyncMethod::Predicted { stages, .. } => {
                return Some(predicted::describe(stages, rounds.inner_steps_max()));
            }
        };
        let replicas = rounds.replicas();
        let inner = match settings.inner_state {
            InnerState::Reset => "begin at zero",
            InnerState::Average => "are averaged",
            InnerState::Keep => "are kept by each",
        };
        let exchange = match settings.streaming {
            None => "exchange",
            Some(_) => "begin to exchange another part of the state",
        };
        Some(format!(
            "local SGD: {replicas} replicas {exchange} after every {} steps, and the states of their optimizers {inner}; a step \
             of this run is such a round, and workers compute whole replicas",
            rounds.inner_steps_max()
        ))
    }

    /// Adds the problems of the section in a run.
    pub(in crate::config) fn check(&self, run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
        if matches!(self, Self::ParameterServer { .. }) {
            return self.check_servers(run, problems);
        }
        if let Self::Gossip {
            round_updates,
            gossip_steps,
        } = *self
        {
            return check_gossip((round_updates, gossip_steps), run, problems);
        }
        if let Self::SyntheticGradients { .. } = self {
            return predicted::check(self, run, problems);
        }
        let Self::LocalSgd {
            inner_steps,
            replicas,
            outer_learning_rate,
            inner_state,
            fragments,
            own_share,
            ..
        } = *self
        else {
            return;
        };
        at_least_one("sync.inner_steps", inner_steps, problems);
        check_fragments((fragments, inner_steps), (inner_state, own_share), problems);
        at_least_one("sync.replicas", replicas.into(), problems);
        not_negative("sync.outer_learning_rate", outer_learning_rate, problems);
        if inner_steps > INNER_STEPS_MAX {
            let message = format!(
                "`sync.inner_steps` is {inner_steps}, but must be at most {INNER_STEPS_MAX}"
            );
            problems.push(ConfigProblem::error("sync.inner_steps", message));
        }
        check_replicas(replicas, run, problems);
        if run.parallel.is_divided() {
            let message = "replicas of local SGD hold the whole state, but [parallel] divides it among workers";
            let hint = "set `parallel.zero` and `parallel.servers` to 0, and `parallel.pipeline` and `parallel.tensor` to 1, or leave [sync] out";
            problems.push(ConfigProblem::error("sync.kind", message).hint(hint));
        }
        if run.train.precision == Precision::F16 {
            let message =
                "local SGD cannot train in f16: each replica would have a loss scale of its own";
            let hint = "set `train.precision` to `bf16` or `f32`";
            problems.push(ConfigProblem::error("train.precision", message).hint(hint));
        }
    }
}

impl SyncSection {
    /// Adds the problems of a run with parameter servers.
    fn check_servers(&self, run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
        let Self::ParameterServer {
            servers,
            round_updates,
            copies,
            lease_s,
            ..
        } = *self
        else {
            return;
        };
        at_least_one("sync.servers", servers.into(), problems);
        check_round_updates(round_updates, problems);
        if !(1..=2).contains(&copies) {
            let message = format!("`sync.copies` is {copies}, but must be 1 or 2");
            problems.push(ConfigProblem::error("sync.copies", message));
        }
        if !(lease_s > 0.0 && lease_s <= LEASE_S_MAX) {
            let message = format!(
                "`sync.lease_s` is {lease_s}, but must be above 0 and at most {LEASE_S_MAX}"
            );
            problems.push(ConfigProblem::error("sync.lease_s", message));
        }
        let count = run.workers.count;
        if count > ASYNCHRONOUS_WORKERS_MAX {
            let message = format!(
                "`workers.count` is {count}, but a run with parameter servers has at most {ASYNCHRONOUS_WORKERS_MAX} workers"
            );
            problems.push(ConfigProblem::error("workers.count", message));
        } else if count > 1 && servers >= count {
            let message = format!(
                "{servers} servers leave none of {count} workers to compute, so one computes and {} serve",
                count - 1
            );
            let hint = format!(
                "set `workers.count` to {} or more",
                servers.saturating_add(1)
            );
            problems.push(ConfigProblem::notice("sync.servers", message).hint(hint));
        }
        check_servers_with(run, problems);
    }
}

/// Adds the problems of fragments.
fn check_fragments(
    (fragments, inner_steps): (u32, u64),
    (inner_state, own_share): (InnerStateName, Option<f64>),
    problems: &mut Vec<ConfigProblem>,
) {
    at_least_one("sync.fragments", fragments.into(), problems);
    if fragments <= 1 {
        if own_share.is_some() {
            let message = "`sync.own_share` has no effect without fragments: all replicas continue from the same weights";
            let hint = "set `sync.fragments` to 2 or more, or leave `sync.own_share` out";
            problems.push(ConfigProblem::error("sync.own_share", message).hint(hint));
        }
        return;
    }
    if !inner_steps.is_multiple_of(fragments.into()) {
        let message = format!(
            "each of {fragments} fragments is exchanged once in `sync.inner_steps` = {inner_steps} steps, at equal distances"
        );
        let hint = format!("set `sync.inner_steps` to a multiple of {fragments}");
        problems.push(ConfigProblem::error("sync.fragments", message).hint(hint));
    }
    if inner_state != InnerStateName::Keep {
        let message = "replicas that exchange fragments never have the same state, so each keeps the states of its optimizer";
        let hint = "set `sync.inner_state` = \"keep\"";
        problems.push(ConfigProblem::error("sync.inner_state", message).hint(hint));
    }
    if own_share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
        let message = "`sync.own_share` must be from 0 to 1";
        problems.push(ConfigProblem::error("sync.own_share", message));
    }
}

/// Adds the problems of the updates of a round.
fn check_round_updates(round_updates: u64, problems: &mut Vec<ConfigProblem>) {
    at_least_one("sync.round_updates", round_updates, problems);
    if round_updates > INNER_STEPS_MAX {
        let message = format!(
            "`sync.round_updates` is {round_updates}, but must be at most {INNER_STEPS_MAX}"
        );
        problems.push(ConfigProblem::error("sync.round_updates", message));
    }
}

/// Adds the problems of a run in which replicas average in pairs.
fn check_gossip(
    (round_updates, gossip_steps): (u64, u64),
    run: &RunConfig,
    problems: &mut Vec<ConfigProblem>,
) {
    check_round_updates(round_updates, problems);
    at_least_one("sync.gossip_steps", gossip_steps, problems);
    let count = run.workers.count;
    let each = round_updates / u64::from(count.max(1));
    if count > ASYNCHRONOUS_WORKERS_MAX {
        let message = format!(
            "`workers.count` is {count}, but a run with `sync.kind` = \"gossip\" has at most {ASYNCHRONOUS_WORKERS_MAX} workers"
        );
        problems.push(ConfigProblem::error("workers.count", message));
    } else if count > 1 && round_updates > 0 && gossip_steps > each {
        let message = format!(
            "the replicas of {count} workers meet only at the ends of rounds: each computes {each} of {round_updates} updates, \
             and begins an exchange after {gossip_steps}"
        );
        let hint = "lower `sync.gossip_steps`, or raise `sync.round_updates`";
        problems.push(ConfigProblem::notice("sync.gossip_steps", message).hint(hint));
    }
    if run.parallel.is_divided() {
        let message = "workers that average in pairs have whole replicas, but [parallel] divides the state among workers";
        let hint = "set `parallel.zero` and `parallel.servers` to 0, and `parallel.pipeline` and `parallel.tensor` to 1, or leave [sync] out";
        problems.push(ConfigProblem::error("sync.kind", message).hint(hint));
    }
    if run.train.precision == Precision::F16 {
        let message = "workers that average in pairs cannot train in f16: each replica would have a loss scale of its own";
        let hint = "set `train.precision` to `bf16` or `f32`";
        problems.push(ConfigProblem::error("train.precision", message).hint(hint));
    }
    if run.workers.balance == BalanceMode::Measured {
        let message = "workers that average in pairs take as many batches as they can compute, so there are no shares to balance";
        let hint = "leave `workers.balance` out";
        problems.push(ConfigProblem::error("workers.balance", message).hint(hint));
    }
}

/// Describes a run in which replicas average in pairs, for its start.
fn describe_gossip(gossip_steps: u64, rounds: &RoundPlan) -> String {
    let after = match gossip_steps {
        1 => "each update".to_owned(),
        steps => format!("{steps} updates"),
    };
    format!(
        "gossip: each worker trains a replica, and averages it with that of one other worker after {after}; a step of this run is a \
         round of {} updates, at whose end all replicas become their mean. The trained bits depend on the order in which replicas meet, \
         so another run has others",
        rounds.inner_steps_max()
    )
}

/// Adds the settings of other sections that parameter servers cannot have.
fn check_servers_with(run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    if run.parallel.is_divided() {
        let message = "parameter servers divide the state themselves, but [parallel] divides it among workers";
        let hint = "set `parallel.zero` and `parallel.servers` to 0, and `parallel.pipeline` and `parallel.tensor` to 1, or leave [sync] out";
        problems.push(ConfigProblem::error("sync.kind", message).hint(hint));
    }
    if run.train.precision == Precision::F16 {
        let message =
            "parameter servers cannot train in f16: each worker would have a loss scale of its own";
        let hint = "set `train.precision` to `bf16` or `f32`";
        problems.push(ConfigProblem::error("train.precision", message).hint(hint));
    }
    if run.optimizer.has_trust_ratio() {
        let message = "this optimizer needs the norms of whole tensors, but each server has a part of the state";
        let hint = "use `sgd`, `adam` or `adamw`, or leave [sync] out";
        problems.push(ConfigProblem::error("optimizer.kind", message).hint(hint));
    }
    if run.workers.balance == BalanceMode::Measured {
        let message = "workers of parameter servers take as many batches as they can compute, so there are no shares to balance";
        let hint = "leave `workers.balance` out";
        problems.push(ConfigProblem::error("workers.balance", message).hint(hint));
    }
}

/// Describes a run with parameter servers, for its start.
fn describe_servers(servers: &ParameterServersConfig, rounds: &RoundPlan) -> String {
    let bound = servers.staleness_max.map_or_else(
        || "as stale as it happens".to_owned(),
        |most| format!("at most {most} updates stale"),
    );
    let count = servers.servers;
    let plural = if count == 1 { "" } else { "s" };
    format!(
        "parameter servers: {count} worker{plural} hold the state, and gradients are {bound}; a step of this run is a round of {} \
         updates. The trained bits depend on the order in which gradients arrive, so another run has others",
        rounds.inner_steps_max()
    )
}

/// Adds the problems of a number of replicas.
fn check_replicas(replicas: u32, run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let (count, shards) = (run.workers.count, run.workers.logical_shards);
    if replicas == 0 || shards == 0 || count == 0 {
        return;
    }
    if !shards.is_multiple_of(replicas) {
        let message = format!(
            "{replicas} replicas cannot divide {shards} logical shards equally among themselves"
        );
        let most = (shards / replicas).max(1).saturating_mul(replicas);
        let hint = format!(
            "set `workers.logical_shards` to {most}: each replica divides its part of a batch into {} micro-batches",
            most / replicas
        );
        problems.push(ConfigProblem::error("sync.replicas", message).hint(hint));
    }
    if count > replicas {
        let message =
            format!("{count} workers cannot share {replicas} replicas: each needs at least one");
        let hint = format!("use {replicas} workers or fewer, or raise `sync.replicas`");
        problems.push(ConfigProblem::error("workers.count", message).hint(hint));
    } else if !replicas.is_multiple_of(count) {
        let busy = f64::from(replicas) / f64::from(replicas.div_ceil(count) * count);
        let message = format!(
            "{count} workers share {replicas} replicas unevenly: they are busy {:.0} % of the time",
            100.0 * busy
        );
        let multiple = replicas.div_ceil(count) * count;
        let hint = format!(
            "`sync.replicas` = {multiple} keeps all workers busy, but changes the trained bits"
        );
        problems.push(ConfigProblem::notice("workers.count", message).hint(hint));
    }
}
