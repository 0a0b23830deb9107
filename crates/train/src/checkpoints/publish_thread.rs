//! [`PublishThread`]: rank 0's background thread that claims terms, publishes checkpoints and removes old ones.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use ronde_checkpoint::{
    Checkpoint, CheckpointError, Fence, Lineage, Proof, PublishRequest, Retention, SavedPart,
    StateVector, ThreadFailure, list, publish, retain,
};
use ronde_core::background_spans::BackgroundSpans;
use ronde_core::spans::SpanKind;
use ronde_core::{DataSignature, Epoch, Generation, PlanIdentity, Step, WorldSize};
use ronde_store::{ObjectName, Store, StoreError};

use super::notes::SaveFailure;

/// A task of the thread. Tasks run in the order in which they are submitted.
pub(super) enum PublishTask {
    /// Claim a term above all earlier ones, for a run that continues from a step.
    ClaimTerm(Generation, Step),
    /// Claim a generation of a term.
    Claim(Fence, Step),
    /// Publish a save that all ranks have completed.
    Publish(Box<CompleteSave>),
    /// Remove the files of a cancelled save.
    Discard(Vec<SavedPart>),
}

/// A save whose parts have all been written.
pub(super) struct CompleteSave {
    pub(super) run: String,
    pub(super) step: Step,
    pub(super) epoch: Epoch,
    pub(super) fence: Fence,
    pub(super) world_size: WorldSize,
    pub(super) identity: PlanIdentity,
    pub(super) signature: DataSignature,
    pub(super) vectors: Arc<Vec<StateVector>>,
    pub(super) cursor: Vec<u8>,
    pub(super) parts: Vec<SavedPart>,
    pub(super) retention: Retention,
}

/// The result of a task.
pub(super) enum PublishTaskResult {
    /// A term was claimed.
    Term(Fence),
    /// A generation was claimed, or will be claimed before anything is published under it.
    Claimed,
    /// The files of a cancelled save were removed, as far as possible.
    Discarded,
    /// A claim failed, with the reason.
    NotClaimed(Step, SaveFailure),
    /// A checkpoint was published; the text is a warning from the retention policy.
    Published(Step, Option<String>),
    /// A checkpoint could not be published, with the reason.
    NotPublished(Step, SaveFailure),
}

/// The thread `ronde-publish`. Dropping this handle does not wait for the thread, because publishing is atomic.
pub(super) struct PublishThread {
    tasks: Sender<PublishTask>,
    outcomes: Receiver<PublishTaskResult>,
    pending: usize,
}

impl PublishThread {
    /// Starts the thread, which first removes temporary files of processes that have ended. `run` names the run in claims.
    pub(super) fn start(
        store: Arc<dyn Store>,
        run: &str,
        spans: Arc<BackgroundSpans>,
    ) -> Result<Self, CheckpointError> {
        let run = format!("run `{run}` (process {})", std::process::id());
        let (tasks, submitted) = mpsc::channel();
        let (report, outcomes) = mpsc::channel();
        std::thread::Builder::new()
            .name("ronde-publish".to_owned())
            .spawn(move || {
                // A failure only leaves files that the next sweep removes.
                let _ = store.sweep();
                let mut unclaimed = None;
                for task in submitted {
                    let saved = match &task {
                        PublishTask::Publish(whole) => Some((spans.begin(), whole.step)),
                        _ => None,
                    };
                    let result = serve(&store, task, &mut unclaimed, &run);
                    if let Some((span, step)) = saved {
                        spans.end(span, SpanKind::PublishCheckpoint, 0, step.0);
                    }
                    if report.send(result).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| CheckpointError::Thread {
                cause: ThreadFailure::Start(error),
            })?;
        Ok(Self {
            tasks,
            outcomes,
            pending: 0,
        })
    }

    pub(super) fn submit(&mut self, task: PublishTask) {
        if self.tasks.send(task).is_ok() {
            self.pending += 1;
        }
    }

    /// Returns whether all submitted tasks have finished and their results were taken.
    pub(super) fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// Waits up to `limit` for the next result; `None` if no task is pending or the time is over.
    pub(super) fn next(&mut self, limit: Duration) -> Option<PublishTaskResult> {
        if self.pending == 0 {
            return None;
        }
        match self.outcomes.recv_timeout(limit) {
            Ok(outcome) => {
                self.pending -= 1;
                Some(outcome)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.pending = 0;
                None
            }
        }
    }
}

fn serve(
    store: &Arc<dyn Store>,
    task: PublishTask,
    unclaimed: &mut Option<(Fence, Step)>,
    run: &str,
) -> PublishTaskResult {
    match task {
        PublishTask::ClaimTerm(generation, from) => {
            match Lineage::claim_next(&**store, generation, from, run) {
                Ok(fence) => PublishTaskResult::Term(fence),
                Err(error) => PublishTaskResult::NotClaimed(from, SaveFailure::from(&error)),
            }
        }
        PublishTask::Claim(fence, from) => {
            *unclaimed = Some((fence, from));
            match claim(store, unclaimed, run) {
                Ok(()) => PublishTaskResult::Claimed,
                Err(error) => PublishTaskResult::NotClaimed(from, explain(store, &error)),
            }
        }
        PublishTask::Publish(whole) => match claim(store, unclaimed, run)
            .and_then(|()| publish_save(store, &whole))
        {
            Ok(()) => PublishTaskResult::Published(whole.step, remove_old(store, &whole.retention)),
            Err(error) => {
                discard(store, whole.step, &whole.parts);
                PublishTaskResult::NotPublished(whole.step, explain(store, &error))
            }
        },
        PublishTask::Discard(parts) => {
            if let Some(part) = parts.first() {
                discard(store, part.step, &parts);
            }
            PublishTaskResult::Discarded
        }
    }
}

/// Describes an error, with the name of the other run if one saves to the same store.
fn explain(store: &Arc<dyn Store>, error: &CheckpointError) -> SaveFailure {
    let theirs = match error {
        CheckpointError::Superseded { mine, theirs, .. } if theirs.term != mine.term => theirs,
        _ => return SaveFailure::from(error),
    };
    let other = list(&**store).ok().and_then(|all| {
        let mut manifests = all.into_iter().filter_map(|entry| entry.manifest);
        manifests.find(|manifest| manifest.fence.term == theirs.term)
    });
    SaveFailure::lasting(match other {
        Some(manifest) => format!(
            "{error}; the run `{}` saves to the same store and has published step {}",
            manifest.run, manifest.step
        ),
        None => format!("{error}; another run or attempt saves to the same store"),
    })
}

/// Removes the files of an unpublished save to free space. The retention policy handles files that remain,
/// or that belong to a manifest after all.
fn discard(store: &Arc<dyn Store>, step: Step, parts: &[SavedPart]) {
    let absent = matches!(
        Checkpoint::open(store.clone(), step),
        Err(CheckpointError::Store(StoreError::NotFound { .. }))
    );
    let names = parts.iter().filter(|_| absent).map(|part| &part.file.name);
    for name in names.filter_map(|name| ObjectName::new(name.as_str()).ok()) {
        // The failure that led here has already been reported.
        let _ = store.delete(&name);
    }
}

/// Claims the generation in `unclaimed`, if any.
fn claim(
    store: &Arc<dyn Store>,
    unclaimed: &mut Option<(Fence, Step)>,
    run: &str,
) -> Result<(), CheckpointError> {
    if let Some((fence, from)) = *unclaimed {
        Lineage::claim(&**store, fence, from, run)?;
        *unclaimed = None;
    }
    Ok(())
}

fn publish_save(store: &Arc<dyn Store>, whole: &CompleteSave) -> Result<(), CheckpointError> {
    let checkpoint = PublishRequest {
        run: &whole.run,
        step: whole.step,
        epoch: whole.epoch,
        fence: whole.fence,
        world_size: whole.world_size,
        identity: &whole.identity,
        signature: &whole.signature,
        vectors: &whole.vectors,
        cursor: &whole.cursor,
        saved_unix_ms: ronde_clock::unix_ms(),
    };
    publish(&**store, &checkpoint, &whole.parts).map(|_| ())
}

/// Applies the retention policy; returns a warning if there is one.
fn remove_old(store: &Arc<dyn Store>, retention: &Retention) -> Option<String> {
    let removed = match retain(store, retention) {
        Ok(removed) => removed,
        Err(error) => return Some(format!("cannot remove old checkpoints: {error}")),
    };
    let damaged = removed.damaged.first()?;
    Some(format!(
        "the checkpoint of step {} is damaged: {}",
        damaged.step, damaged.reason
    ))
}

/// Returns the retention policy. It always keeps one checkpoint that was read completely and verified.
pub(super) fn retention(keep: u32, keep_every_steps: u64) -> Retention {
    Retention {
        keep_last: keep,
        keep_every: keep_every_steps,
        proof: Proof::Hashes { threads: 1 },
    }
}
