//! [`IoThread`]: the only thread with an async runtime; all other threads make blocking calls with
//! a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::StoreError;

/// The additional time that the caller waits after the limit of the request, so that the request's
/// own error is received first.
const GRACE: Duration = Duration::from_secs(5);

/// The interval at which a waiting caller looks at the progress of its request.
const OBSERVATION: Duration = Duration::from_millis(250);

/// A thread that owns a small tokio runtime and runs the requests of any number of remote stores.
///
/// Dropping it ends the thread and cancels running requests.
#[derive(Debug)]
pub struct IoThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts the thread `ronde-store-io`.
    ///
    /// # Errors
    /// [`StoreError::Settings`] when the system cannot create the thread or its poll.
    pub fn start() -> Result<Self, StoreError> {
        let failed = |cause: std::io::Error| StoreError::Settings {
            operation: "start",
            location: "the I/O thread".to_owned(),
            cause: cause.to_string(),
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("ronde-store-io".to_owned())
            .spawn(move || {
                // Dropping the sender ends the thread as well.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_timeout(Duration::from_secs(1));
            })
            .map_err(failed)?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Starts a request; its result is sent to the returned receiver.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        limit: &ProgressLimit,
        request: impl Future<Output = T> + Send + 'static,
    ) -> PendingResponse<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        let of_request = limit.clone();
        self.handle.spawn(async move {
            if let Some(result) = of_request.run(request).await {
                // Sending fails when the caller no longer waits.
                let _ = answer.send(result);
            }
        });
        PendingResponse {
            answered,
            limit: limit.clone(),
        }
    }

    /// Runs a request and waits for its result; the error is a sentence.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        limit: &ProgressLimit,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, String> {
        self.spawn(limit, request).wait_observed(&mut || {})
    }

    /// Does the same and calls `observe` every quarter of a second while it waits.
    pub(crate) fn run_observed<T: Send + 'static>(
        &self,
        limit: &ProgressLimit,
        request: impl Future<Output = T> + Send + 'static,
        observe: &mut dyn FnMut(),
    ) -> Result<T, String> {
        self.spawn(limit, request).wait_observed(observe)
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The longest time of a request without progress.
#[derive(Debug, Clone)]
pub(crate) struct ProgressLimit {
    pub(crate) silence: Duration,
    /// A counter that is incremented whenever something is sent or received.
    pub(crate) progress: Arc<AtomicU64>,
}

impl ProgressLimit {
    /// The number of times that the counter is read within the limit.
    const OBSERVATIONS: u32 = 8;

    pub(crate) fn new(silence: Duration, progress: Arc<AtomicU64>) -> Self {
        Self { silence, progress }
    }

    /// Runs a request; `None` if it made no progress for the limit.
    pub(crate) async fn run<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let mut request = std::pin::pin!(request);
        let (mut seen, mut silent) = (self.count(), 0);
        while silent < Self::OBSERVATIONS {
            let turn = self.silence / Self::OBSERVATIONS;
            if let Ok(result) = tokio::time::timeout(turn, request.as_mut()).await {
                return Some(result);
            }
            let count = self.count();
            silent = if count == seen { silent + 1 } else { 0 };
            seen = count;
        }
        None
    }

    fn count(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }
}

/// A running request.
pub(crate) struct PendingResponse<T> {
    answered: mpsc::Receiver<T>,
    limit: ProgressLimit,
}

impl<T> PendingResponse<T> {
    /// Waits for the result and calls `observe` every [`OBSERVATION`]; the error is a sentence.
    pub(crate) fn wait_observed(self, observe: &mut dyn FnMut()) -> Result<T, String> {
        let whole = self.limit.silence + GRACE;
        let (mut left, mut seen) = (whole, self.limit.count());
        loop {
            let turn = left.min(OBSERVATION);
            match self.answered.recv_timeout(turn) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if left > turn => {
                    let count = self.limit.count();
                    left = if count == seen { left - turn } else { whole };
                    seen = count;
                    observe();
                }
                Err(_) => {
                    let limit = self.limit.silence.as_secs_f64();
                    return Err(format!("no answer within {limit:.0} s"));
                }
            }
        }
    }
}
