//! [`Error`]: all that can go wrong for a program that uses ronde as a library.

use ronde_bench::BenchError;
use ronde_cluster::ClusterError;
use ronde_core::{CollectiveError, Recovery};
use ronde_data::DataError;
use ronde_engine::EngineError;
use ronde_train::TrainError;

/// All that can go wrong for a program that uses ronde as a library.
///
/// `Debug` is the message with its hint, so that `fn main() -> Result<(), ronde::Error>` shows it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The variables that a supervisor sets make no sense.
    #[error("{0}")]
    Environment(String),
    /// The supervisor could not be reached.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Measuring failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The engine refuses a model.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The process's one group was connected before.
    #[error("{0}")]
    GroupTaken(&'static str),
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.explain())
    }
}

impl Error {
    /// The message, and below it a hint where there is one.
    #[must_use]
    pub fn explain(&self) -> String {
        let hint = match self {
            Self::Train(source) => source.hint(),
            Self::Collective(source) => ronde_train::error::collective_hint(source),
            _ => None,
        };
        hint.map_or_else(
            || self.to_string(),
            |hint| format!("{self}\n  hint: {hint}"),
        )
    }

    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Bench(source) => source.recovery(),
            Self::Cluster(source) => source.recovery(),
            Self::Collective(source) => source.recovery(),
            Self::Data(source) => source.recovery(),
            Self::Engine(source) => source.recovery(),
            Self::Train(source) => source.recovery(),
            Self::Environment(_) | Self::GroupTaken(_) => Recovery::Abort,
        }
    }
}
