//! [`SoakMode`]: how the workers of a soak exchange what they compute.

use anyhow::{Result, bail};

/// Adam in batches of 16 samples, as in the examples of parameter servers, gossip and synthetic gradients.
const SMALL_BATCHES: &str = "global_batch_size = 16\nlearning_rate = ";
const ADAM: &str =
    "\n[optimizer]\nkind = \"adam\"\n\n[schedule]\nkind = \"cosine\"\nwarmup_steps = 20\n";

/// Copies of the parts that one worker has, and checkpoints for a part that is lost together with its copy.
const COPIES: &str = "\n[checkpoint]\nevery_steps = 20\n\n[elastic]\ncopy_steps = 1\n";

/// How the workers of a soak exchange what they compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SoakMode {
    /// Gradients in every step.
    EveryStep,
    /// Compressed gradients in every step, with copies of the residuals.
    Compression,
    /// Rounds of separate training, with copies of the states that replicas keep.
    LocalSgd,
    /// Predicted gradients between stages.
    SyntheticGradients,
    /// Parameter servers without waiting.
    ParameterServer,
    /// Averages of random pairs.
    Gossip,
}

impl SoakMode {
    pub(super) const ALL: [Self; 6] = [
        Self::EveryStep,
        Self::Compression,
        Self::LocalSgd,
        Self::SyntheticGradients,
        Self::ParameterServer,
        Self::Gossip,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::EveryStep => "every_step",
            Self::Compression => "compression",
            Self::LocalSgd => "local_sgd",
            Self::SyntheticGradients => "synthetic_gradients",
            Self::ParameterServer => "parameter_server",
            Self::Gossip => "gossip",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|mode| mode.name() == text) {
            Some(mode) => Ok(mode),
            None => bail!(
                "invalid value `{text}` for --mode: expected one of {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        }
    }

    /// Returns whether a training has the bits of the reference. Elsewhere its accuracy is compared.
    pub(super) fn repeats_bits(self) -> bool {
        !matches!(self, Self::ParameterServer | Self::Gossip)
    }

    /// Returns the default number of epochs of a training, which takes some tens of seconds.
    pub(super) fn epochs(self) -> u64 {
        match self {
            Self::EveryStep => 1000,
            Self::Compression | Self::LocalSgd => 400,
            Self::SyntheticGradients | Self::ParameterServer | Self::Gossip => 200,
        }
    }

    /// Returns the number of workers unless the command line states another one.
    pub(super) fn workers(self) -> u32 {
        match self {
            // One for each stage.
            Self::SyntheticGradients => 3,
            _ => 4,
        }
    }

    /// Returns the part of the run file after `[train]` and `epochs`.
    pub(super) fn settings(self) -> String {
        match self {
            Self::EveryStep => String::new(),
            Self::Compression => {
                format!("\n[compression]\ncodec = \"top_k\"\nsenders = 8\nratio = 0.02\n{COPIES}")
            }
            Self::LocalSgd => format!(
                "\n[sync]\nkind = \"local_sgd\"\ninner_steps = 8\nreplicas = 8\n\
                               inner_state = \"keep\"\nfragments = 2\n{COPIES}"
            ),
            Self::SyntheticGradients => format!(
                "{SMALL_BATCHES}0.004\n{ADAM}\n[sync]\nkind = \"synthetic_gradients\"\nstages = 3\n\
                 round_steps = 30\ngradient_delay = 3\npredictor_learning_rate = 0.003\n"
            ),
            Self::ParameterServer => format!(
                "{SMALL_BATCHES}0.002\n{ADAM}\n[sync]\nkind = \"parameter_server\"\nservers = 1\n\
                 round_updates = 30\ncopies = 2\n"
            ),
            Self::Gossip => {
                format!(
                    "{SMALL_BATCHES}0.016\n{ADAM}\n[sync]\nkind = \"gossip\"\nround_updates = 90\n"
                )
            }
        }
    }

    /// Returns the settings of the training in every step with which the accuracy is compared.
    pub(super) fn compared_settings() -> String {
        format!("{SMALL_BATCHES}0.002\n{ADAM}")
    }

    /// Returns the number of micro-batches of a batch.
    pub(super) fn logical_shards(self) -> u32 {
        match self {
            Self::EveryStep | Self::Compression | Self::LocalSgd => 8,
            Self::SyntheticGradients | Self::ParameterServer | Self::Gossip => 1,
        }
    }
}
