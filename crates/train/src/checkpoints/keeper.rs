//! [`Keeper`]: the thread of the rank that claims, publishes, and lets old checkpoints go.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use ronde_checkpoint::{
    Checkpoint, CheckpointError, Fence, Lineage, Proof, Publish, Retention, SavedPart, Vector,
    publish, retain,
};
use ronde_core::{Epoch, Generation, PlanIdentity, Step, WorldSize};
use ronde_store::{ObjectName, Store, StoreError};

use crate::clock;

/// What the thread does, in the order in which it is asked to.
pub(super) enum Task {
    /// Claim a term above all others, for whoever goes on from a step.
    ClaimTerm(Generation, Step),
    /// Claim a generation of a term.
    Claim(Fence, Step),
    /// Publish what all ranks have saved.
    Publish(Box<Whole>),
    /// Remove what ranks have written for a save that is given up.
    Discard(Vec<SavedPart>),
}

/// A save whose parts are all there.
pub(super) struct Whole {
    pub(super) run: String,
    pub(super) step: Step,
    pub(super) epoch: Epoch,
    pub(super) fence: Fence,
    pub(super) world_size: WorldSize,
    pub(super) identity: PlanIdentity,
    pub(super) vectors: Arc<Vec<Vector>>,
    pub(super) cursor: Vec<u8>,
    pub(super) parts: Vec<SavedPart>,
    pub(super) retention: Retention,
}

/// How it ended.
pub(super) enum Done {
    /// A term was claimed.
    Term(Fence),
    /// A generation was claimed, or will be before something is published under it.
    Claimed,
    /// What was written for nothing is gone, as far as possible.
    Discarded,
    /// A claim failed.
    NotClaimed(Step, String),
    /// A checkpoint counts; beside it what retention had to say.
    Published(Step, Option<String>),
    /// It does not.
    NotPublished(Step, String),
}

/// The thread `ronde-publish`. It is not waited for when this is dropped: what it publishes is there
/// whole or not at all.
pub(super) struct Keeper {
    tasks: Sender<Task>,
    done: Receiver<Done>,
    waiting: usize,
}

impl Keeper {
    pub(super) fn start(store: Arc<dyn Store>) -> Result<Self, CheckpointError> {
        let (tasks, asked) = mpsc::channel();
        let (tell, done) = mpsc::channel();
        std::thread::Builder::new()
            .name("ronde-publish".to_owned())
            .spawn(move || {
                let mut unclaimed = None;
                for task in asked {
                    if tell.send(serve(&store, task, &mut unclaimed)).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| CheckpointError::Thread {
                problem: error.to_string(),
            })?;
        Ok(Self {
            tasks,
            done,
            waiting: 0,
        })
    }

    pub(super) fn ask(&mut self, task: Task) {
        if self.tasks.send(task).is_ok() {
            self.waiting += 1;
        }
    }

    /// Whether everything that was asked for has been done and taken.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// The next thing that is done, within `limit`.
    pub(super) fn next(&mut self, limit: Duration) -> Option<Done> {
        if self.waiting == 0 {
            return None;
        }
        match self.done.recv_timeout(limit) {
            Ok(done) => {
                self.waiting -= 1;
                Some(done)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.waiting = 0;
                None
            }
        }
    }
}

fn serve(store: &Arc<dyn Store>, task: Task, unclaimed: &mut Option<(Fence, Step)>) -> Done {
    match task {
        Task::ClaimTerm(generation, from) => {
            match Lineage::claim_next(&**store, generation, from) {
                Ok(fence) => Done::Term(fence),
                Err(error) => Done::NotClaimed(from, error.to_string()),
            }
        }
        Task::Claim(fence, from) => {
            *unclaimed = Some((fence, from));
            match claim(store, unclaimed) {
                Ok(()) => Done::Claimed,
                Err(error) => Done::NotClaimed(from, error.to_string()),
            }
        }
        Task::Publish(whole) => match claim(store, unclaimed).and_then(|()| put(store, &whole)) {
            Ok(()) => Done::Published(whole.step, let_go(store, &whole.retention)),
            Err(error) => {
                discard(store, whole.step, &whole.parts);
                Done::NotPublished(whole.step, error.to_string())
            }
        },
        Task::Discard(parts) => {
            if let Some(part) = parts.first() {
                discard(store, part.step, &parts);
            }
            Done::Discarded
        }
    }
}

/// Removes the files of a save that does not count, so that they do not fill the place. What is left, or
/// belongs to a manifest after all, is for retention.
fn discard(store: &Arc<dyn Store>, step: Step, parts: &[SavedPart]) {
    let absent = matches!(
        Checkpoint::open(store.clone(), step),
        Err(CheckpointError::Store(StoreError::NotFound { .. }))
    );
    let names = parts.iter().filter(|_| absent).map(|part| &part.file.name);
    for name in names.filter_map(|name| ObjectName::new(name.as_str()).ok()) {
        // The failure that led here is told already.
        let _ = store.delete(&name);
    }
}

/// Claims what has not been claimed yet.
fn claim(
    store: &Arc<dyn Store>,
    unclaimed: &mut Option<(Fence, Step)>,
) -> Result<(), CheckpointError> {
    if let Some((fence, from)) = *unclaimed {
        Lineage::claim(&**store, fence, from)?;
        *unclaimed = None;
    }
    Ok(())
}

fn put(store: &Arc<dyn Store>, whole: &Whole) -> Result<(), CheckpointError> {
    let what = Publish {
        run: &whole.run,
        step: whole.step,
        epoch: whole.epoch,
        fence: whole.fence,
        world_size: whole.world_size,
        identity: &whole.identity,
        vectors: &whole.vectors,
        cursor: &whole.cursor,
        saved_unix_ms: clock::unix_ms(),
    };
    publish(&**store, &what, &whole.parts).map(|_| ())
}

/// Removes what need not be kept; what people should know of it.
fn let_go(store: &Arc<dyn Store>, retention: &Retention) -> Option<String> {
    let removed = match retain(store, retention) {
        Ok(removed) => removed,
        Err(error) => return Some(format!("old checkpoints could not be removed: {error}")),
    };
    let damaged = removed.damaged.first()?;
    Some(format!(
        "the checkpoint of step {} is damaged: {}",
        damaged.step, damaged.reason
    ))
}

/// What is kept: one that was read whole and verified is always among it.
pub(super) fn retention(keep: u32, keep_every_steps: u64) -> Retention {
    Retention {
        keep_last: keep,
        keep_every: keep_every_steps,
        proof: Proof::Hashes { threads: 1 },
    }
}
