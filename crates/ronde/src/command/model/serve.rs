//! `ronde serve`: answers requests for predictions and generated text over HTTP.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use ronde_cluster::StopFlag;

use crate::command::model::model_data::ModelDataArguments;

#[cfg(feature = "full")]
mod newer;
#[cfg(feature = "full")]
mod start;

/// Arguments of `ronde serve`.
#[derive(Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    source: ModelDataArguments,
    /// Address of the server; port 0: any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// File with the token that clients must send, at least 16 characters [default: none is needed].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the certificate of the server and those that lead to its authority, in PEM [default: no TLS].
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Number of threads that compute predictions.
    #[arg(short = 'n', long, value_name = "N", default_value = "1")]
    workers: NonZeroUsize,
    /// Largest number of samples, or of texts, that are computed together.
    #[arg(long, value_name = "N", default_value = "32")]
    batch_max: NonZeroUsize,
    /// Longest time in ms that a request waits for others to be computed with.
    #[arg(long, value_name = "MS", default_value = "2", value_parser = clap::value_parser!(u64).range(..=60_000))]
    batch_wait: u64,
    /// Largest number of waiting requests; others get status 503.
    #[arg(long, value_name = "N", default_value = "256")]
    queue_max: NonZeroUsize,
    /// Largest number of connections; others wait.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = connections)]
    connections_max: NonZeroUsize,
    /// Largest number of bytes of a request.
    #[arg(long, value_name = "BYTES", default_value = "16777216")]
    body_max: usize,
    /// Longest time in s until a request is computed; then it gets status 504.
    #[arg(long, value_name = "S", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// Parses a number of connections.
fn connections(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse::<NonZeroUsize>().ok();
    let number = number.filter(|number| number.get() <= 65_536);
    number.ok_or_else(|| "expected a number from 1 to 65536".to_owned())
}

/// Runs `ronde serve`.
#[cfg(feature = "full")]
pub(crate) fn run(arguments: &ServeArguments, stop: &StopFlag) -> i32 {
    start::start(arguments, stop)
}

/// Reports that this build has no server.
#[cfg(not(feature = "full"))]
pub(crate) fn run(_arguments: &ServeArguments, _stop: &StopFlag) -> i32 {
    crate::command::console::message!(
        "error: cannot run `ronde serve`: this program was built without it\n  \
         help: build it with `--features full`"
    );
    crate::command::exit::USER_ERROR
}
