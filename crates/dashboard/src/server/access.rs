//! [`AccessToken`]: the secret that a browser must send, first in the address and then as a cookie.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{ServerState, SharedState, pages};
use crate::error::DashboardError;

/// Number of random bytes of a token.
const TOKEN_BYTES: usize = 16;
/// Smallest number of characters of a token of the user.
const TOKEN_LENGTH_MIN: usize = 16;

/// The secret that a browser must send.
pub struct AccessToken(String);

impl AccessToken {
    /// Creates a random token of 128 bits.
    ///
    /// # Errors
    /// [`DashboardError::Start`] if the system has no random numbers.
    pub fn random() -> Result<Self, DashboardError> {
        let mut bytes = [0; TOKEN_BYTES];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(
            |error| DashboardError::Start {
                cause: error.into(),
            },
        )?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// Takes a token of the user, without the space around it.
    ///
    /// # Errors
    /// [`DashboardError::Token`] if it has fewer than 16 characters, or one that is not a letter, a digit, `-`, `_` or `.`.
    pub fn parse(text: &str) -> Result<Self, DashboardError> {
        let text = text.trim();
        let is_valid = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
        if text.len() < TOKEN_LENGTH_MIN || !text.chars().all(is_valid) {
            return Err(DashboardError::Token {
                length: text.chars().count(),
                min: TOKEN_LENGTH_MIN,
            });
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the token for the address that is shown to the user.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Compares in a time that depends only on the lengths.
    fn accepts(&self, text: &str) -> bool {
        let differences = self.0.bytes().zip(text.bytes());
        let difference = differences.fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(difference) == 0 && text.len() == self.0.len()
    }
}

impl std::fmt::Debug for AccessToken {
    /// Formats nothing of the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccessToken")
    }
}

impl ServerState {
    /// Returns whether a request has the cookie with the token, or the token as `Authorization: Bearer`.
    fn allows(&self, headers: &HeaderMap) -> bool {
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let mut values = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(name, _)| *name == self.cookie)
            .map(|(_, value)| value);
        bearer.is_some_and(|token| self.token.accepts(token))
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
    State(state): SharedState,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_random_and_compared_completely() {
        let token = AccessToken::random().unwrap();
        assert_eq!(token.text().len(), 2 * TOKEN_BYTES);
        assert_ne!(token.text(), AccessToken::random().unwrap().text());
        assert!(token.accepts(token.text()));
        let text = token.text().to_owned();
        for wrong in [
            "",
            &text[1..],
            &text[..31],
            &format!("{text}0"),
            &"0".repeat(32),
        ] {
            assert!(!token.accepts(wrong), "{wrong}");
        }
        assert!(!format!("{token:?}").contains(&text));
        for refused in [
            "",
            "short",
            "0123456789 abcdef",
            "0123456789abcdé;",
            "0123456789abcde;",
        ] {
            assert!(AccessToken::parse(refused).is_err(), "{refused}");
        }
        assert_eq!(
            AccessToken::parse(" 0123456789abcdef\n").unwrap().text(),
            "0123456789abcdef"
        );
    }
}
