//! The [`AccessToken`](ronde_identity::AccessToken) of a browser: first in the address, then a cookie.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{DashboardState, ServerState, pages};

impl ServerState {
    /// Returns whether a request has the cookie with the token, or the token as `Authorization: Bearer`.
    fn allows(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(header::AUTHORIZATION);
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let mut values = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(name, _)| *name == self.cookie)
            .map(|(_, value)| value);
        bearer.is_some_and(|value| self.token.accepts_bearer(value.as_bytes()))
            || values.any(|token| self.token.accepts(token))
    }
}

/// Refuses requests without the token.
pub(super) async fn require(
    State(state): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    match state.allows(request.headers()) {
        true => next.run(request).await,
        false => (StatusCode::UNAUTHORIZED, "a token is required").into_response(),
    }
}

/// The token in the address of the page.
#[derive(Deserialize)]
pub(super) struct TokenQuery {
    token: Option<String>,
}

/// Answers with the page. A valid token in the address becomes a cookie, and disappears from the address.
pub(super) async fn enter(
    State(state): DashboardState,
    query: Query<TokenQuery>,
    headers: HeaderMap,
) -> Response {
    match &query.token {
        Some(token) if state.token.accepts(token) => {
            let cookie = format!(
                "{}={token}; HttpOnly; SameSite=Strict; Path=/",
                state.cookie
            );
            let headers = [(header::SET_COOKIE, cookie)];
            // Not a redirect: browsers may send no strict cookie with the redirect of a link from another site.
            (headers, pages::entered()).into_response()
        }
        None if state.allows(&headers) => pages::page(),
        Some(_) => (StatusCode::UNAUTHORIZED, pages::login(true)).into_response(),
        None => (StatusCode::UNAUTHORIZED, pages::login(false)).into_response(),
    }
}

/// Makes an HTML answer.
pub(super) fn html(text: impl Into<Body>) -> Response {
    (
        [(header::CONTENT_TYPE, "text/html; charset=utf-8")],
        text.into(),
    )
        .into_response()
}
