//! [`SaveThreads`]: the threads of one rank that write its shares of checkpoints, and publish those that are complete.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_checkpoint::{CheckpointError, SaveRequest, SavedPart, Saver};
use ronde_core::background_spans::BackgroundSpans;
use ronde_store::Store;

use crate::checkpoints::publish_thread::{PublishTask, PublishTaskResult, PublishThread};

/// Where the checkpoints of a run are saved, and what all of them have.
pub(super) struct CheckpointTarget {
    pub(super) store: Arc<dyn Store>,
    /// The name of the store in messages.
    pub(super) address: String,
    pub(super) name: String,
    /// The resolved run file, and the folder of its relative paths.
    pub(super) run: String,
    pub(super) base: PathBuf,
}

/// The threads, each started at its first task.
pub(super) struct SaveThreads {
    saver: Option<Saver>,
    publisher: Option<PublishThread>,
    /// The recorder of their activity.
    spans: Arc<BackgroundSpans>,
}

impl Default for SaveThreads {
    fn default() -> Self {
        Self {
            saver: None,
            publisher: None,
            spans: Arc::new(BackgroundSpans::off()),
        }
    }
}

impl SaveThreads {
    /// Records the activity of threads that start later.
    pub(super) fn record_spans(&mut self, spans: Arc<BackgroundSpans>) {
        self.spans = spans;
    }

    /// Starts to write a share; cancels an earlier one that no rank waits for.
    pub(super) fn begin(
        &mut self,
        target: &CheckpointTarget,
        save: &SaveRequest<'_>,
    ) -> Result<(), CheckpointError> {
        if let Some(saver) = &mut self.saver {
            // The outcome of a cancelled save.
            let _ = saver.poll();
        }
        let saver = match &mut self.saver {
            Some(saver) => saver,
            none => none.insert(start(target, 0, &self.spans)?),
        };
        saver.begin(save).map(drop)
    }

    /// Reserves memory for the first share, of this size, in the thread that writes it.
    pub(super) fn reserve(&mut self, target: &CheckpointTarget, bytes: usize) {
        // If the thread cannot be started, the first save reports the error.
        self.saver = start(target, bytes, &self.spans).ok();
    }

    /// Returns whether the thread that writes has started.
    pub(super) fn can_write(&self) -> bool {
        self.saver.is_some()
    }

    /// Returns the thread that writes.
    pub(super) fn saver(&mut self) -> Option<&mut Saver> {
        self.saver.as_mut()
    }

    /// Returns the outcome of a share that was written since the last call.
    pub(super) fn written(&mut self) -> Option<Result<SavedPart, CheckpointError>> {
        self.saver.as_mut().and_then(Saver::poll)
    }

    /// Adds a task of the thread that publishes.
    pub(super) fn publish(
        &mut self,
        target: &CheckpointTarget,
        task: PublishTask,
    ) -> Result<(), CheckpointError> {
        let publisher = match &mut self.publisher {
            Some(publisher) => publisher,
            none => {
                let (store, spans) = (target.store.clone(), self.spans.clone());
                none.insert(PublishThread::start(store, &target.name, spans)?)
            }
        };
        publisher.submit(task);
        Ok(())
    }

    /// Returns the next outcome of a task; waits up to `limit` while there are tasks.
    pub(super) fn next_published(&mut self, limit: Duration) -> Option<PublishTaskResult> {
        self.publisher.as_mut()?.next(limit)
    }

    /// Returns whether the thread that publishes has no task.
    pub(super) fn publishes_nothing(&self) -> bool {
        self.publisher.as_ref().is_none_or(PublishThread::is_idle)
    }
}

/// Starts the thread that writes.
fn start(
    target: &CheckpointTarget,
    bytes: usize,
    spans: &Arc<BackgroundSpans>,
) -> Result<Saver, CheckpointError> {
    Saver::start_recorded(target.store.clone(), bytes, spans.clone())
}
