//! The endpoints: from requests to jobs, and from their results to answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event as StreamEvent, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::future::{Either, select};
use ronde_identity::AccessToken;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::encoded_image::EncodedImage;
use super::model_serving::ModelServing;
use super::prediction_worker::{ComputeFailure, PredictionJob};
use super::requests::{GenerateRequest, PredictRequest, PredictSamples, SampleForm};
use super::served_model::ServedModel;
use super::serving_state::ServingState;
use super::text_worker::{TextJob, TextPart};
use super::{image_decoding, openapi};
use crate::prediction::Prediction;

type StateExtractor = State<Arc<ServingState>>;

/// An answer that is not the requested one: the status and a message.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_response(self.0, &json!({ "error": self.1 }));
        let headers = response.headers_mut();
        if self.0 == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        if self.0 == StatusCode::UNAUTHORIZED {
            let value = header::HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, value);
        }
        response
    }
}

impl From<ComputeFailure> for Refusal {
    fn from(failure: ComputeFailure) -> Self {
        let status = match failure {
            ComputeFailure::Server => StatusCode::INTERNAL_SERVER_ERROR,
            ComputeFailure::Request(_) | ComputeFailure::Image { .. } => StatusCode::BAD_REQUEST,
        };
        Self(status, failure.to_string())
    }
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, value.to_string()).into_response()
}

/// Returns the routes. All but those about health require the token, if there is one.
pub(super) fn router(state: Arc<ServingState>) -> Router {
    let protected = Router::new()
        .route("/v1/predict", post(predict))
        .route("/v1/generate", post(generate))
        .route("/v1/model", get(manifest))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(description))
        .layer(from_fn_with_state(state.clone(), require_token));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .merge(protected)
        .fallback(|| async { Refusal(StatusCode::NOT_FOUND, "no such endpoint".to_owned()) })
        .method_not_allowed_fallback(|| async {
            let message = "this endpoint has another method".to_owned();
            Refusal(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(from_fn_with_state(state.clone(), count))
        .with_state(state)
}

/// Counts each request and its time.
async fn count(State(state): StateExtractor, request: Request, next: Next) -> Response {
    let endpoint = match request.uri().path() {
        "/v1/predict" => "predict",
        "/v1/generate" => "generate",
        "/v1/model" => "model",
        "/healthz" | "/readyz" => "health",
        "/metrics" => "metrics",
        _ => "other",
    };
    let start = ronde_clock::now();
    let response = next.run(request).await;
    let time = ronde_clock::now().duration_since(start);
    let status = response.status().as_u16();
    state.metrics.count_request(endpoint, status, time);
    response
}

/// Returns whether a request has the token as `Authorization: Bearer`.
fn has_token(token: &AccessToken, headers: &HeaderMap) -> bool {
    let value = headers.get(header::AUTHORIZATION);
    value.is_some_and(|value| token.accepts_bearer(value.as_bytes()))
}

/// Refuses requests without the token.
async fn require_token(State(state): StateExtractor, request: Request, next: Next) -> Response {
    match &state.settings.token {
        Some(token) if !has_token(token, request.headers()) => {
            let message = "a token is required: send `Authorization: Bearer TOKEN`".to_owned();
            Refusal(StatusCode::UNAUTHORIZED, message).into_response()
        }
        _ => next.run(request).await,
    }
}

async fn ready(State(state): StateExtractor) -> Response {
    match state.is_stopping() {
        false => "ready\n".into_response(),
        true => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response(),
    }
}

async fn manifest(State(state): StateExtractor) -> Response {
    match serde_json::to_value(state.present().model.manifest()) {
        Ok(manifest) => json_response(StatusCode::OK, &manifest),
        Err(error) => Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn metrics(State(state): StateExtractor) -> Response {
    let queued = state.present().waiting();
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (headers, state.metrics.render(queued)).into_response()
}

async fn description(State(state): StateExtractor) -> Response {
    json_response(StatusCode::OK, &openapi::describe(&state.present().model))
}

/// Reads a body within its limits of bytes and time.
async fn read_body(state: &ServingState, body: Body) -> Result<Bytes, Refusal> {
    let limit = state.settings.body_bytes_max;
    let too_large = || {
        let message = format!("the body is too large: the limit is {limit} bytes");
        Refusal(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    // A length that the head states is refused before the body is sent.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let read = timeout(
        state.settings.read_timeout,
        axum::body::to_bytes(body, limit),
    );
    let read = match select(std::pin::pin!(read), std::pin::pin!(state.stopped())).await {
        Either::Left((read, _)) => read,
        Either::Right(_) => return Err(busy()),
    };
    let Ok(read) = read else {
        let message = "the body was not received in time".to_owned();
        return Err(Refusal(StatusCode::REQUEST_TIMEOUT, message));
    };
    read.map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        if source.is_some_and(|source| source.contains("limit")) {
            return too_large();
        }
        Refusal(
            StatusCode::BAD_REQUEST,
            format!("cannot read the body: {error}"),
        )
    })
}

fn busy() -> Refusal {
    let message = "the queue is full, or the server is stopping; try again later".to_owned();
    Refusal(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn too_slow(limit: Duration) -> Refusal {
    let message = format!(
        "the request was not computed within {} s",
        limit.as_secs_f64()
    );
    Refusal(StatusCode::GATEWAY_TIMEOUT, message)
}

fn bad_request(error: impl std::fmt::Display) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, error.to_string())
}

/// The answer to a request for predictions.
#[derive(Serialize)]
struct PredictAnswer<'a> {
    predictions: &'a [Prediction],
    /// The hash of the model.
    model: &'a str,
}

/// Parses the body of a request for predictions.
fn parse_samples(
    state: &ServingState,
    serving: &ModelServing,
    body: &[u8],
) -> Result<PredictSamples, Refusal> {
    let manifest = serving.model.manifest();
    let shape = &*manifest.input_shape;
    let images = serving.model.images();
    let form = SampleForm {
        shape,
        images_max: images
            .map(|_| image_decoding::images_max(shape, state.settings.body_bytes_max)),
        columns: &manifest.signature.columns,
        divisor: manifest.signature.feature_scale,
    };
    PredictSamples::parse(body, &form).map_err(bad_request)
}

/// Parses the body of a request for a text.
fn parse_text(model: &ServedModel, body: &[u8]) -> Result<GenerateRequest, Refusal> {
    let classes = model.manifest().classes;
    let parsed = GenerateRequest::parse(body, model.text_task(), model.vocabulary(), classes);
    parsed.map_err(bad_request)
}

/// Converts images to features, within the time limit of the request.
async fn decode_images(
    state: &ServingState,
    serving: &ModelServing,
    images: Vec<EncodedImage>,
) -> Result<PredictRequest, Refusal> {
    let decoder = serving.model.images().ok_or(ComputeFailure::Server)?;
    let limit = state.settings.compute_timeout;
    let decoded = state.decoding.decode(Arc::clone(decoder), images);
    let decoded = timeout(limit, decoded).await.map_err(|_| too_slow(limit))?;
    Ok(decoded?)
}

async fn predict(State(state): StateExtractor, body: Body) -> Result<Response, Refusal> {
    let body = read_body(&state, body).await?;
    let (serving, result) = loop {
        let serving = state.present();
        let request = match parse_samples(&state, &serving, &body)? {
            PredictSamples::Features(request) => request,
            PredictSamples::Images(images) => decode_images(&state, &serving, images).await?,
        };
        let samples = request.samples;
        let (reply, result) = oneshot::channel();
        let job = PredictionJob { request, reply };
        if serving.predictions.push(job, samples) {
            break (serving, result);
        }
        if state.is_present(&serving) {
            return Err(busy());
        }
    };
    drop(body);
    let limit = state.settings.compute_timeout;
    let result = timeout(limit, result).await.map_err(|_| too_slow(limit))?;
    let predictions = result.unwrap_or(Err(ComputeFailure::Server))?;
    let model = &serving.model.manifest().blake3;
    let answer = PredictAnswer {
        predictions: &predictions,
        model,
    };
    // Not by way of a value, which has no f32: its numbers would have more digits.
    match serde_json::to_string(&answer) {
        Ok(text) => Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response()),
        Err(_) => Err(ComputeFailure::Server.into()),
    }
}

async fn generate(State(state): StateExtractor, body: Body) -> Result<Response, Refusal> {
    let body = read_body(&state, body).await?;
    let (serving, streams, received) = loop {
        let serving = state.present();
        let request = parse_text(&serving.model, &body)?;
        let streams = request.streams;
        // At most as many messages as the model has positions.
        let (parts, received) = mpsc::unbounded_channel();
        if serving.texts.push(TextJob { request, parts }, 1) {
            break (serving, streams, received);
        }
        if state.is_present(&serving) {
            return Err(busy());
        }
    };
    drop(body);
    let deadline = Instant::from_std(ronde_clock::now() + state.settings.compute_timeout);
    let text = IncomingText {
        limit: state.settings.compute_timeout,
        serving,
        received,
        tokens: Vec::new(),
        deadline,
        has_ended: false,
    };
    match streams {
        true => Ok(text.stream()),
        false => text.complete().await,
    }
}

/// A text whose tokens arrive one after the other.
struct IncomingText {
    serving: Arc<ModelServing>,
    /// The longest time until the end of the text, which is at the deadline.
    limit: Duration,
    received: mpsc::UnboundedReceiver<TextPart>,
    tokens: Vec<u32>,
    deadline: Instant,
    has_ended: bool,
}

impl IncomingText {
    /// Returns the next token; `None` at the end of the text.
    async fn next(&mut self) -> Result<Option<u32>, Refusal> {
        let part = timeout_at(self.deadline, self.received.recv()).await;
        let part = part.map_err(|_| too_slow(self.limit))?;
        let token = part.transpose()?;
        self.tokens.extend(token);
        Ok(token)
    }

    /// Describes the whole text.
    fn result(&self) -> Value {
        let mut result = json!({
            "tokens": self.tokens, "model": self.serving.model.manifest().blake3,
        });
        if let Some(vocabulary) = self.serving.model.vocabulary() {
            result["text"] = json!(vocabulary.decode(&self.tokens));
        }
        result
    }

    async fn complete(mut self) -> Result<Response, Refusal> {
        while self.next().await?.is_some() {}
        Ok(json_response(StatusCode::OK, &self.result()))
    }

    /// Sends each token as an event, and the whole text as the last one.
    fn stream(self) -> Response {
        let events = futures_util::stream::unfold(self, |mut text| async move {
            if text.has_ended {
                return None;
            }
            let event = match text.next().await {
                Ok(Some(token)) => {
                    let mut part = json!({ "token": token });
                    if let Some(vocabulary) = text.serving.model.vocabulary() {
                        part["text"] = json!(vocabulary.decode(&[token]));
                    }
                    StreamEvent::default().data(part.to_string())
                }
                ended => {
                    text.has_ended = true;
                    match ended {
                        Err(Refusal(_, message)) => StreamEvent::default()
                            .event("error")
                            .data(json!({ "error": message }).to_string()),
                        Ok(_) => StreamEvent::default()
                            .event("end")
                            .data(text.result().to_string()),
                    }
                }
            };
            Some((Ok::<_, Infallible>(event), text))
        });
        Sse::new(events).into_response()
    }
}
