//! [`TextJob`]s and the thread that generates all active texts together, token by token.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ronde_engine::{Activation, Chain, KeptText};
use tokio::sync::mpsc::UnboundedSender;

use super::batch_queue::BatchQueue;
use super::metrics::ServerMetrics;
use super::prediction_worker::ComputeFailure;
use super::requests::GenerateRequest;
use super::served_model::ServedModel;
use crate::error::ServeError;
use crate::text_task::{TextTask, last_scores, translation_scores};

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
    /// The state of the layers for a text that is continued.
    kept: KeptText,
    /// The tokens that have been sent.
    tokens: Vec<u32>,
    has_ended: bool,
}

/// Generates texts until the queue is closed and empty: at most `texts_max` together. A new text joins before the next token.
pub(super) fn work(
    model: (&ServedModel, TextTask),
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
                tokens: Vec::new(),
                has_ended: false,
            }];
            step(model, &mut chain, &mut text);
            metrics.count_tokens(text[0].tokens.len());
            active.extend(text);
        }
        active.retain(|text| !text.has_ended && !text.job.parts.is_closed());
        if active.is_empty() {
            continue;
        }
        metrics.count_tokens(active.len());
        step(model, &mut chain, &mut active);
        active.retain(|text| !text.has_ended && !text.job.parts.is_closed());
    }
}

/// Computes the next token of each text and sends it.
fn step((model, task): (&ServedModel, TextTask), chain: &mut Chain, texts: &mut [ActiveText]) {
    let classes = model.manifest().classes as usize;
    let next = AssertUnwindSafe(|| next_scores(task, chain, texts, classes));
    let failure = match catch_unwind(next) {
        Ok(Ok(scores)) => {
            for (text, scores) in texts.iter_mut().zip(scores.chunks_exact(classes.max(1))) {
                text.send_next(scores, model);
            }
            return;
        }
        Ok(Err(error)) => ComputeFailure::Request(Arc::new(error)),
        Err(_) => {
            // The state of the layers after a panic is not used again.
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

/// Returns the scores of the next token of each text. A text without tokens is computed alone.
fn next_scores(
    task: TextTask,
    chain: &mut Chain,
    texts: &mut [ActiveText],
    classes: usize,
) -> Result<Vec<f32>, ServeError> {
    if let TextTask::Translate { source, target, .. } = task {
        let parts = texts
            .iter()
            .map(|text| (&*text.job.request.prompt, &*text.tokens));
        let parts: Vec<(&[u32], &[u32])> = parts.collect();
        return translation_scores(chain, &parts, (source + target, classes));
    }
    let inputs = texts.iter().flat_map(|text| match &*text.tokens {
        [] => &*text.job.request.prompt,
        [.., last] => std::slice::from_ref(last),
    });
    let inputs: Vec<f32> = inputs.map(|token| *token as f32).collect();
    let length = inputs.len() / texts.len().max(1);
    let input = Activation::from_host(&[texts.len(), length], inputs);
    let mut kept: Vec<&mut KeptText> = texts.iter_mut().map(|text| &mut text.kept).collect();
    let output = chain.extend_texts(input, &mut kept)?;
    last_scores(output.as_slice(), (texts.len(), classes), |_| length - 1)
}

impl ActiveText {
    /// Chooses the next token from its scores and sends it.
    fn send_next(&mut self, scores: &[f32], model: &ServedModel) {
        let sampling = self.job.request.sampling;
        let token = match sampling.choose(scores, 0, self.tokens.len() as u64) {
            Ok(token) => token,
            Err(_) => return self.fail(ComputeFailure::Server),
        };
        if model.vocabulary().and_then(|vocabulary| vocabulary.end()) == Some(token) {
            self.has_ended = true;
            return;
        }
        // The client may be gone; the text is then removed.
        let _ = self.job.parts.send(Ok(token));
        self.tokens.push(token);
        self.has_ended = self.tokens.len() >= self.job.request.tokens_max;
    }

    fn fail(&mut self, failure: ComputeFailure) {
        let _ = self.job.parts.send(Err(failure));
        self.has_ended = true;
    }
}
