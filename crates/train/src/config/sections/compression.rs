//! `[compression]`: the short form in which gradients are sent.

use ronde_engine::Precision;
use ronde_parallel::{Codec, CompressionConfig};
use serde::{Deserialize, Serialize};

use super::{BalanceMode, OuterFormatName, SyncSection, at_least_one};
use crate::config::{ConfigProblem, RunConfig};

/// The largest number of columns of the factors of a matrix.
const RANK_MAX: u32 = 1_024;

/// `[compression]`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "codec", rename_all = "snake_case", deny_unknown_fields)]
pub enum CompressionSection {
    /// Gradients are sent as they are.
    #[default]
    None,
    /// 2 bytes for each element: the upper half of its bits.
    Bf16 {
        /// The number of groups of logical shards whose sums are sent in a short form, at least one for each worker. The trained bits
        /// depend on it, and not on the workers that compute the groups.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [4])))]
        senders: u32,
    },
    /// 2 bytes for each element, and 4 for each block of up to 256 of them.
    F16 {
        /// The number of groups of logical shards whose sums are sent in a short form, at least one for each worker. The trained bits
        /// depend on it, and not on the workers that compute the groups.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [4])))]
        senders: u32,
    },
    /// 1 byte for each element, and 4 for each block of up to 256 of them.
    Int8Blocks {
        /// The number of groups of logical shards whose sums are sent in a short form, at least one for each worker. The trained bits
        /// depend on it, and not on the workers that compute the groups.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [4])))]
        senders: u32,
    },
    /// 6 bytes for each of the largest elements of each block of up to 4,096 of them; the other ones are sent in a later step.
    TopK {
        /// The number of groups of logical shards whose sums are sent in a short form, at least one for each worker. The trained bits
        /// depend on it, and not on the workers that compute the groups.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [4])))]
        senders: u32,
        /// The share of the elements of a block that is sent, above 0 and at most 1; default 0.01. At least one is sent.
        #[serde(default = "ratio")]
        ratio: f64,
    },
    /// Two factors of each matrix, which are shorter than it; other tensors are sent as they are.
    PowerSgd {
        /// The number of groups of logical shards whose sums are sent in a short form, at least one for each worker. The trained bits
        /// depend on it, and not on the workers that compute the groups.
        #[cfg_attr(feature = "schema", schemars(extend("examples" = [4])))]
        senders: u32,
        /// The number of columns of each factor; default 4.
        #[serde(default = "rank")]
        rank: u32,
    },
}

fn ratio() -> f64 {
    0.01
}

fn rank() -> u32 {
    4
}

impl CompressionSection {
    /// Returns the settings of the exchange; `None` if gradients are sent as they are.
    #[must_use]
    pub fn settings(&self) -> Option<CompressionConfig> {
        let (codec, senders) = match *self {
            Self::None => return None,
            Self::Bf16 { senders } => (Codec::Bf16, senders),
            Self::F16 { senders } => (Codec::F16, senders),
            Self::Int8Blocks { senders } => (Codec::Int8Blocks, senders),
            Self::TopK { senders, ratio } => (Codec::TopK { ratio }, senders),
            Self::PowerSgd { senders, rank } => (Codec::PowerSgd { rank }, senders),
        };
        Some(CompressionConfig { codec, senders })
    }

    /// Returns the number of senders; `None` if gradients are sent as they are.
    #[must_use]
    pub fn senders(&self) -> Option<u32> {
        self.settings().map(|settings| settings.senders)
    }

    /// Returns whether gradients are sent in a short form.
    #[must_use]
    pub fn is_on(&self) -> bool {
        *self != Self::None
    }

    /// Describes the form, for the start of a run with or without rounds of local SGD; `None` if gradients are sent as they are.
    #[must_use]
    pub fn describe(&self, has_rounds: bool) -> Option<String> {
        let settings = self.settings()?;
        let form = match settings.codec {
            Codec::Bf16 => "in bf16".to_owned(),
            Codec::F16 => "in f16 with a scale for each block".to_owned(),
            Codec::Int8Blocks => "as int8 with a scale for each block".to_owned(),
            Codec::TopK { ratio } => {
                format!("as the largest {} % of their elements", 100.0 * ratio)
            }
            Codec::PowerSgd { rank } => format!("as factors of rank {rank}"),
            Codec::F32 => "as they are".to_owned(),
        };
        let sent = if has_rounds {
            "displacements"
        } else {
            "gradients"
        };
        Some(format!(
            "compression: {} senders send {sent} {form}, and add the errors to their next {sent}",
            settings.senders
        ))
    }

    /// Adds the problems of the section in a run.
    pub(in crate::config) fn check(&self, run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
        let Some(senders) = self.senders() else {
            return;
        };
        at_least_one("compression.senders", senders.into(), problems);
        match *self {
            Self::TopK { ratio, .. } if !(ratio > 0.0 && ratio <= 1.0) => {
                let message =
                    format!("`compression.ratio` is {ratio}, but must be above 0 and at most 1");
                problems.push(ConfigProblem::error("compression.ratio", message));
            }
            Self::PowerSgd { rank, .. } if !(1..=RANK_MAX).contains(&rank) => {
                let message = format!("`compression.rank` is {rank}, but must be 1 to {RANK_MAX}");
                problems.push(ConfigProblem::error("compression.rank", message));
            }
            _ => {}
        }
        check_senders(senders, run, problems);
        check_others(run, problems);
    }
}

/// Adds the problems of a number of senders.
fn check_senders(senders: u32, run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let (count, shards) = (run.workers.count, run.workers.logical_shards);
    if senders == 0 || shards == 0 || count == 0 || run.sync != SyncSection::EveryStep {
        return;
    }
    if !shards.is_multiple_of(senders) {
        let message = format!(
            "{senders} senders cannot divide {shards} logical shards equally among themselves"
        );
        let most = shards.div_ceil(senders).saturating_mul(senders);
        let hint = format!(
            "set `workers.logical_shards` to {most}, which changes the trained bits, or `compression.senders` to a divisor of {shards}"
        );
        problems.push(ConfigProblem::error("compression.senders", message).hint(hint));
    }
    if count > senders {
        let message =
            format!("{count} workers cannot share {senders} senders: each needs at least one");
        let hint = format!("use {senders} workers or fewer, or raise `compression.senders`");
        problems.push(ConfigProblem::error("workers.count", message).hint(hint));
    } else if !senders.is_multiple_of(count) {
        let busy = f64::from(senders) / f64::from(senders.div_ceil(count) * count);
        let message = format!(
            "{count} workers share {senders} senders unevenly: they are busy {:.0} % of the time",
            100.0 * busy
        );
        let multiple = senders.div_ceil(count) * count;
        let hint = format!(
            "`compression.senders` = {multiple} keeps all workers busy, but changes the trained bits"
        );
        problems.push(ConfigProblem::notice("workers.count", message).hint(hint));
    }
}

/// Adds the problems of compression in a run of local SGD, whose replicas are its senders.
fn check_replicas(
    replicas: u32,
    outer_format: OuterFormatName,
    run: &RunConfig,
    problems: &mut Vec<ConfigProblem>,
) {
    let senders = run.compression.senders().unwrap_or(replicas);
    if senders != replicas {
        let message = format!(
            "`compression.senders` is {senders}, but with local SGD the {replicas} replicas are the senders"
        );
        let hint = format!("set `compression.senders` to {replicas}");
        problems.push(ConfigProblem::error("compression.senders", message).hint(hint));
    }
    if outer_format != OuterFormatName::F32 {
        let message =
            "[compression] and `sync.outer_format` both choose the form of the displacements";
        let hint = "leave `sync.outer_format` out";
        problems.push(ConfigProblem::error("sync.outer_format", message).hint(hint));
    }
}

/// Adds the settings of other sections that compression cannot have.
fn check_others(run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    match run.sync {
        SyncSection::LocalSgd {
            replicas,
            outer_format,
            ..
        } => check_replicas(replicas, outer_format, run, problems),
        SyncSection::EveryStep => {}
        SyncSection::ParameterServer { .. } => {
            let message = "[compression] shortens the gradients that workers sum, but parameter servers sum none";
            let hint = "leave [compression] or [sync] out";
            problems.push(ConfigProblem::error("compression.codec", message).hint(hint));
        }
        SyncSection::Gossip { .. } => {
            let message = "[compression] shortens the gradients that workers sum, but workers of `sync.kind = \"gossip\"` average weights";
            let hint = "leave [compression] or [sync] out";
            problems.push(ConfigProblem::error("compression.codec", message).hint(hint));
        }
        SyncSection::SyntheticGradients { .. } => {
            let message = "[compression] shortens the gradients that workers sum, but stages with predicted gradients sum none";
            let hint = "leave [compression] or [sync] out";
            problems.push(ConfigProblem::error("compression.codec", message).hint(hint));
        }
    }
    if run.comm.sparse_tables == Some(true) {
        let message = "`comm.sparse_tables` sends exact gradients without their zeros, and [compression] sends short forms of all of them";
        let hint = "leave one of them out";
        problems.push(ConfigProblem::error("comm.sparse_tables", message).hint(hint));
    }
    if run.parallel.is_divided() {
        let message = "senders of compressed gradients hold the whole model, but [parallel] divides the state among workers";
        let hint = "set `parallel.zero` and `parallel.servers` to 0, and `parallel.pipeline` and `parallel.tensor` to 1, or leave [compression] out";
        problems.push(ConfigProblem::error("compression.codec", message).hint(hint));
    }
    if run.train.precision == Precision::F16 {
        let message = "compression cannot train in f16: residuals would have the loss scale of an earlier step";
        let hint = "set `train.precision` to `bf16` or `f32`";
        problems.push(ConfigProblem::error("train.precision", message).hint(hint));
    }
    if run.workers.balance == BalanceMode::Measured {
        let message = "workers compute whole senders, so `workers.balance` has no shards to move";
        let hint = "leave `workers.balance` out";
        problems.push(ConfigProblem::error("workers.balance", message).hint(hint));
    }
}
