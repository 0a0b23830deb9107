//! [`serve`]: the web server of the dashboard.

mod access;
mod answers;
mod connections;
mod logs;
mod pages;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event as StreamEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::select;
use futures_util::stream;
use ronde_identity::AccessToken;
use serde::Deserialize;

use crate::error::DashboardError;
use crate::library::RunLibrary;

/// What the browser may load: only files of this server.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// The settings of the web server.
#[derive(Debug)]
pub struct ServerSettings {
    /// The address at which it listens; port 0: any free port.
    pub listen: SocketAddr,
    /// The token that a browser must send.
    pub token: AccessToken,
}

/// The state of all requests.
struct ServerState {
    library: Arc<RunLibrary>,
    token: AccessToken,
    /// The name of the cookie, different for each port: browsers send a host's cookies to all its ports.
    cookie: String,
}

type DashboardState = State<Arc<ServerState>>;

/// Serves the page until `is_stopping` returns true, which is called every 200 ms. `ready` receives the address with the token.
///
/// # Errors
/// [`DashboardError::Listen`] if the address cannot be used, [`DashboardError::Start`] if the server cannot be started.
pub fn serve(
    library: Arc<RunLibrary>,
    settings: ServerSettings,
    ready: impl FnOnce(SocketAddr, &str),
    is_stopping: impl Fn() -> bool,
) -> Result<(), DashboardError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| DashboardError::Start { cause })?;
    let failed = |cause| DashboardError::Listen {
        address: settings.listen,
        cause,
    };
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(settings.listen)
            .await
            .map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        ready(
            address,
            // In an address, a plus sign means a space.
            &format!(
                "http://{address}/?token={}",
                settings.token.expose().replace('+', "%2B")
            ),
        );
        let state = Arc::new(ServerState {
            library,
            cookie: format!("ronde_dashboard_{}", address.port()),
            token: settings.token,
        });
        let router = router(state);
        let accepting = connections::accept(&listener, &router);
        let stopped = async {
            while !is_stopping() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        // Open connections are closed with the runtime.
        select(Box::pin(accepting), Box::pin(stopped)).await;
        Ok(())
    })
}

/// Returns the routes. Everything below `/api` requires the token.
fn router(state: Arc<ServerState>) -> Router {
    let api = Router::new()
        .route("/api/runs", get(runs))
        .route("/api/run", get(run))
        .route("/api/settings", get(settings_of_run))
        .route("/api/logs", get(logs_of_run))
        .route("/api/stream", get(updates))
        .layer(from_fn_with_state(state.clone(), access::require));
    Router::new()
        .route("/", get(access::enter))
        .route("/assets/{name}", get(pages::asset))
        .merge(api)
        .layer(axum::middleware::map_response(add_headers))
        .with_state(state)
}

/// Adds the headers that every answer has.
async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

async fn runs(State(state): DashboardState) -> Response {
    answers::json(&answers::list(&state.library))
}

/// Selects a run and the part of its series that the page lacks.
#[derive(Deserialize)]
struct RunQuery {
    id: String,
    #[serde(flatten)]
    part: answers::PartQuery,
}

async fn run(State(state): DashboardState, Query(query): Query<RunQuery>) -> Response {
    let answer = state
        .library
        .visit(&query.id, |run| answers::run(&run, &query.part));
    answer.map_or_else(no_run, |answer| answers::json(&answer))
}

/// Selects a run.
#[derive(Deserialize)]
struct RunName {
    id: String,
}

async fn settings_of_run(State(state): DashboardState, Query(query): Query<RunName>) -> Response {
    let folder = state.library.visit(&query.id, |run| run.folder.to_owned());
    let Some(folder) = folder else {
        return no_run();
    };
    match crate::settings::flat_settings(&folder) {
        Ok(settings) => answers::json(&settings),
        Err(message) => (StatusCode::NOT_FOUND, message).into_response(),
    }
}

async fn logs_of_run(
    State(state): DashboardState,
    Query(query): Query<logs::LogQuery>,
) -> Response {
    let found = state.library.visit(&query.id, |run| {
        (run.folder.to_owned(), logs::messages(run.history, &query))
    });
    match found {
        Some((folder, messages)) => answers::json(&logs::search(&folder, messages, &query)),
        None => no_run(),
    }
}

fn no_run() -> Response {
    (StatusCode::NOT_FOUND, "no such run").into_response()
}

/// Sends the version of each run whenever one has changed, at most twice a second.
async fn updates(State(state): DashboardState) -> Response {
    let changes = stream::unfold((state, None), |(state, sent)| async move {
        loop {
            let version = state.library.version();
            if sent != Some(version) {
                let versions = answers::versions(&state.library);
                let event = StreamEvent::default().data(versions);
                return Some((
                    Ok::<_, std::convert::Infallible>(event),
                    (state, Some(version)),
                ));
            }
            tokio::time::sleep(crate::library::POLL).await;
        }
    });
    let paced = futures_util::StreamExt::then(changes, |event| async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        event
    });
    Sse::new(paced)
        .keep_alive(KeepAlive::default())
        .into_response()
}

#[cfg(test)]
mod tests;
