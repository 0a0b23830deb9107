//! [`TextJob`]s and the thread that generates all active texts together, token by token.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ronde_engine::{Activation, Chain, KeptText};
use tokio::sync::mpsc::UnboundedSender;

use super::batch_queue::BatchQueue;
use super::metrics::ServerMetrics;
use super::prediction_worker::ComputeFailure;
use super::requests::GenerateRequest;
use super::served_model::ServedModel;
use crate::ServeError;

/// A part of a generated text. The channel ends with the text.
pub(super) type TextPart = Result<u32, ComputeFailure>;

/// A request for a text, and where its tokens are sent; at most as many as the model has positions.
pub(super) struct TextJob {
    pub(super) request: GenerateRequest,
    pub(super) parts: UnboundedSender<TextPart>,
}

/// A text that is being generated.
struct ActiveText {
    job: TextJob,
    kept: KeptText,
    /// The number of tokens that have been sent.
    sent: usize,
    /// The last token, from which the next one is computed.
    last: u32,
    has_ended: bool,
}

/// Generates texts until the queue is closed and empty: at most `texts_max` together. A new text joins before the next token.
pub(super) fn work(
    model: &ServedModel,
    mut chain: Chain,
    queue: &BatchQueue<TextJob>,
    texts_max: usize,
    metrics: &ServerMetrics,
) {
    let mut active: Vec<ActiveText> = Vec::new();
    loop {
        let joining = if active.is_empty() {
            match queue.next_batch(texts_max, Duration::ZERO) {
                Some(jobs) => jobs,
                None => return,
            }
        } else {
            queue.take(texts_max.saturating_sub(active.len()))
        };
        // A prompt is computed alone: those that are computed together have equal lengths.
        for job in joining {
            let mut text = [ActiveText {
                job,
                kept: KeptText::new(),
                sent: 0,
                last: 0,
                has_ended: false,
            }];
            let prompt = text[0].job.request.prompt.clone();
            step(model, &mut chain, &mut text, (&prompt, prompt.len()));
            metrics.count_tokens(text[0].sent);
            active.extend(text);
        }
        active.retain(|text| !text.has_ended && !text.job.parts.is_closed());
        if active.is_empty() {
            continue;
        }
        let last: Vec<u32> = active.iter().map(|text| text.last).collect();
        metrics.count_tokens(active.len());
        step(model, &mut chain, &mut active, (&last, 1));
        active.retain(|text| !text.has_ended && !text.job.parts.is_closed());
    }
}

/// Computes the given tokens, `length` of each text, and sends the token after them.
fn step(model: &ServedModel, chain: &mut Chain, texts: &mut [ActiveText], tokens: (&[u32], usize)) {
    let failure = match catch_unwind(AssertUnwindSafe(|| scores(chain, texts, tokens))) {
        Ok(Ok(scores)) => {
            let classes = model.manifest().classes as usize;
            let each = scores.len() / texts.len().max(1);
            for (text, scores) in texts.iter_mut().zip(scores.chunks_exact(each.max(1))) {
                let last = scores.len().saturating_sub(classes);
                text.send_next(&scores[last..], model);
            }
            return;
        }
        Ok(Err(error)) => ComputeFailure::Request(error.to_string()),
        Err(_) => {
            // What a panic has left in the layers is not used again.
            if let Ok(fresh) = model.chain() {
                *chain = fresh;
            }
            ComputeFailure::Server
        }
    };
    for text in texts {
        text.fail(failure.clone());
    }
}

/// Returns the scores of the positions of each text.
fn scores(
    chain: &mut Chain,
    texts: &mut [ActiveText],
    (tokens, length): (&[u32], usize),
) -> Result<Vec<f32>, ServeError> {
    let tokens = tokens.iter().map(|token| *token as f32).collect();
    let input = Activation::from_host(&[texts.len(), length], tokens);
    let mut kept: Vec<&mut KeptText> = texts.iter_mut().map(|text| &mut text.kept).collect();
    let output = chain.extend_texts(input, &mut kept)?;
    Ok(output.as_slice().to_vec())
}

impl ActiveText {
    /// Chooses the next token from its scores and sends it.
    fn send_next(&mut self, scores: &[f32], model: &ServedModel) {
        let sampling = self.job.request.sampling;
        let token = match sampling.choose(scores, 0, self.sent as u64) {
            Ok(token) => token,
            Err(_) => return self.fail(ComputeFailure::Server),
        };
        if model.vocabulary().and_then(|vocabulary| vocabulary.end()) == Some(token) {
            self.has_ended = true;
            return;
        }
        // The client may be gone; the text is then removed.
        let _ = self.job.parts.send(Ok(token));
        self.last = token;
        self.sent += 1;
        self.has_ended = self.sent >= self.job.request.tokens_max;
    }

    fn fail(&mut self, failure: ComputeFailure) {
        let _ = self.job.parts.send(Err(failure));
        self.has_ended = true;
    }
}
