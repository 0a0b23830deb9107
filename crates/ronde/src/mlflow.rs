//! The connection to the MLflow server that `track.mlflow` names.

use std::path::Path;

use ronde_tracking::track::MlflowSender;

/// Opens the spool in the folder of a run, to be sent to the server at `address`. Sends nothing.
///
/// # Errors
/// A message with a help line: the address is invalid, or another process sends this spool.
#[cfg(feature = "full")]
pub fn open_sender(run: &Path, address: &str, experiment: &str) -> Result<MlflowSender, String> {
    use std::time::Duration;

    use ronde_store::HttpService;
    use ronde_tracking::track::MlflowConnection;

    use crate::environment;

    struct Server(HttpService);

    impl MlflowConnection for Server {
        fn send(
            &self,
            method: &str,
            path: &str,
            body: (&str, Vec<u8>),
            limit: Duration,
        ) -> Result<(u16, Vec<u8>), String> {
            self.0.send(method, path, body, limit)
        }
    }

    let authorities = environment::store_settings().authorities;
    let login = environment::mlflow_login();
    let service = HttpService::new(address, authorities.as_deref(), login)
        .map_err(|error| format!("cannot use the MLflow server: {error}"))?;
    MlflowSender::open(run, experiment, Box::new(Server(service)))
        .map_err(|error| error.to_string())
}

/// Reports that this build has no HTTP client.
///
/// # Errors
/// Always.
#[cfg(not(feature = "full"))]
pub fn open_sender(_: &Path, _: &str, _: &str) -> Result<MlflowSender, String> {
    Err(
        "cannot use an MLflow server: this build has no HTTP client\n  \
         help: build ronde with `--features full`, or remove track.mlflow"
            .to_owned(),
    )
}
