//! Opens the model, and serves it until the command is asked to stop.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ronde_cluster::StopFlag;
use ronde_identity::rustls::ServerConfig;
use ronde_identity::{AccessToken, https_server_config};
use ronde_serve::{ClassDetail, HttpSettings, PredictionForm, ServeError, ServedModel};

use super::ServeArguments;
use super::newer::NewerModels;
use crate::command::console::{Printable, info, message};
use crate::command::exit;
use crate::command::model::model_data::UsedModel;
use crate::command::signals::begin_supervision;

/// The longest time in which the head and the body of a request must arrive, each.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of bytes of a token file.
const TOKEN_BYTES_MAX: u64 = 4096;
/// The largest number of bytes of a file with certificates or a key.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Serves the model, and returns the exit code.
pub(super) fn start(arguments: &ServeArguments, stop: &StopFlag) -> i32 {
    match serve(arguments, stop) {
        Ok(()) => exit::DONE,
        Err(message) => {
            message!("{message}");
            exit::USER_ERROR
        }
    }
}

fn serve(arguments: &ServeArguments, stop: &StopFlag) -> Result<(), String> {
    let token = arguments.token_file.as_deref().map(token).transpose()?;
    let tls = tls(arguments)?;
    let data = arguments.source.open_alone(false)?;
    for note in &data.notes {
        message!("note: {note}");
    }
    for difference in &data.differences {
        message!("{difference}");
    }
    let newer = Box::new(NewerModels::of(&arguments.source, &data.saved));
    let model = served(data)?;
    let listen = arguments.listen;
    warn_of_others(listen, token.is_some(), tls.is_some());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let settings = HttpSettings {
        listen,
        token,
        tls,
        workers: arguments.workers,
        batch_max: arguments.batch_max,
        batch_wait: Duration::from_millis(arguments.batch_wait),
        queue_max: arguments.queue_max,
        connections_max: arguments.connections_max,
        body_bytes_max: arguments.body_max,
        read_timeout: READ_TIMEOUT,
        compute_timeout: Duration::from_secs(arguments.timeout),
    };
    let run = model.manifest().run.clone();
    begin_supervision();
    let ready = |address| {
        message!("serving the model of {run}; press Ctrl-C to stop");
        // The reader may have closed the pipe.
        let _ = writeln!(Printable(std::io::stdout()), "{scheme}://{address}");
    };
    let served = ronde_serve::serve(model, newer, settings, ready, || stop.signal() != 0);
    served.map_err(|error| match error {
        ServeError::Listen { .. } => {
            format!(
                "error: {error}\n  help: choose another address, such as `--listen 127.0.0.1:0`"
            )
        }
        error => format!("error: {error}"),
    })?;
    info!("stopped; all requests that had arrived are answered");
    Ok(())
}

/// Warns of what other hosts can do with the server.
fn warn_of_others(listen: SocketAddr, has_token: bool, has_tls: bool) {
    if listen.ip().is_loopback() || (has_token && has_tls) {
        return;
    }
    let without_tls = if has_tls {
        ""
    } else {
        "; its connections are not encrypted: `--tls-cert` and `--tls-key` encrypt them"
    };
    let without_token = if has_token {
        ""
    } else {
        "; anyone who reaches it can use the model: `--token-file` requires a token"
    };
    message!("warning: other hosts can reach the server at {listen}{without_tls}{without_token}");
}

/// Reads the certificate and the key of the server.
fn tls(arguments: &ServeArguments) -> Result<Option<Arc<ServerConfig>>, String> {
    let (Some(certificate), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) else {
        return Ok(None);
    };
    let read = |path: &Path| {
        let bytes = ronde_store::read_regular(path, PEM_BYTES_MAX);
        bytes.map_err(|error| format!("error: cannot read {}: {error}", path.display()))
    };
    let config = https_server_config(&read(certificate)?, &read(key)?);
    config.map(Some).map_err(|error| {
        format!(
            "error: cannot use the certificate {} with the key {}: {error}\n  \
             help: both are PEM files, and the key is not encrypted",
            certificate.display(),
            key.display()
        )
    })
}

/// Combines a model with what its outputs and tokens mean.
pub(super) fn served(model: UsedModel) -> Result<ServedModel, String> {
    let UsedModel {
        saved, form: data, ..
    } = model;
    let form = PredictionForm::of(saved.manifest(), data.targets, ClassDetail::All);
    let form = form.map_err(|error| format!("error: {error}"))?;
    let model = ServedModel::new(saved, form, data.vocabulary);
    model.map_err(|error| format!("error: {error}"))
}

/// Reads a token file.
fn token(path: &Path) -> Result<AccessToken, String> {
    let bytes = ronde_store::read_regular(path, TOKEN_BYTES_MAX);
    let bytes = bytes
        .map_err(|error| format!("error: cannot read token file {}: {error}", path.display()))?;
    let token = AccessToken::parse(&String::from_utf8_lossy(&bytes));
    token.map_err(|error| {
        format!("error: {error}\n  help: `openssl rand -hex 16 > FILE` writes a good one")
    })
}
