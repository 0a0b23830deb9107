//! [`Error`]: the errors of ronde as a library.

#[cfg(feature = "cli")]
use ronde_bench::BenchError;
use ronde_cluster::ClusterError;
use ronde_core::{CollectiveError, Recovery};
use ronde_data::DataError;
use ronde_engine::EngineError;
use ronde_train::TrainError;

/// An error of ronde as a library.
///
/// `Debug` prints the message with its help line, so that `fn main() -> Result<(), ronde::Error>` shows both.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment variables that a supervisor sets are missing or invalid.
    #[error("{0}")]
    Environment(String),
    /// The supervisor could not be reached.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A measurement failed.
    #[cfg(feature = "cli")]
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The engine rejected a model.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A remote call failed.
    #[cfg(feature = "rpc")]
    #[error(transparent)]
    Rpc(#[from] ronde_rpc::RpcError),
    /// The folder of the run cannot be used; the message has a help line.
    #[error("{0}")]
    Output(String),
    /// A run file is invalid.
    #[error("{}", .0.render(false))]
    Config(#[from] ronde_train::config::ConfigError),
    /// The process group has been connected already; a process connects only one.
    #[error("{0}")]
    GroupTaken(&'static str),
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.explain())
    }
}

impl Error {
    /// Returns the message, followed by a help line where there is one.
    #[must_use]
    pub fn explain(&self) -> String {
        let hint = match self {
            Self::Train(source) => source.hint(),
            Self::Collective(source) => ronde_train::error::collective_hint(source),
            _ => None,
        };
        hint.map_or_else(
            || self.to_string(),
            |hint| format!("{self}\n  help: {hint}"),
        )
    }

    /// Returns how a caller can recover.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            #[cfg(feature = "cli")]
            Self::Bench(source) => source.recovery(),
            Self::Cluster(source) => source.recovery(),
            Self::Collective(source) => source.recovery(),
            Self::Data(source) => source.recovery(),
            Self::Engine(source) => source.recovery(),
            Self::Train(source) => source.recovery(),
            #[cfg(feature = "rpc")]
            Self::Rpc(source) => source.recovery(),
            Self::Environment(_) | Self::Output(_) | Self::Config(_) | Self::GroupTaken(_) => {
                Recovery::Abort
            }
        }
    }
}
