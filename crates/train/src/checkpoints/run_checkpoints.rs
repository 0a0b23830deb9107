//! [`RunCheckpoints`]: one rank's part in saving the checkpoints of a run, from the request to the publication.

mod outcomes;
mod threads;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_checkpoint::{CheckpointError, Fence, SaveRequest, SavedPart};
use ronde_clock::Stopwatch;
use ronde_core::background_spans::BackgroundSpans;
use ronde_core::{
    CollectiveError, CollectivesExt, DataSignature, Epoch, Event, Generation, Group, PlanIdentity,
    Rank, Step, Tracker, WorldSize,
};
use ronde_parallel::HeldVector;
use ronde_protocol::holdings::HeldRanges;
use ronde_store::Store;

use self::threads::{CheckpointTarget, SaveThreads};
use super::ReplicaLayout;
use super::cursor::TrainingCursor;
use super::notes::{self, SaveFailure, SaveNote};
use super::publish_thread::PublishTask;
use super::wait::{SlowWait, wait_for_all};
use crate::config::CheckpointSection;

/// The longest time that a vote waits for the term if the first checkpoint of a run is due at once.
const CLAIM_LIMIT: Duration = Duration::from_secs(5);

/// The longest wait for a checkpoint to be written and published, after which it counts as failed.
const WRITE_LIMIT: Duration = Duration::from_secs(3600);

/// One rank's part in the checkpoints of a run.
pub struct RunCheckpoints {
    section: CheckpointSection,
    target: CheckpointTarget,
    threads: SaveThreads,
    term: RunTerm,
    pending: Option<PendingSave>,
    /// The notes to send with the next vote.
    notes: Vec<SaveNote>,
    /// Measures the time since the last save began.
    since: Stopwatch,
    /// Whether a save was cancelled or postponed, so that another one is due.
    is_overdue: bool,
    /// Whether the notice about postponed saves was recorded.
    is_postponement_reported: bool,
    /// The step of the newest checkpoint that this rank knows to be published.
    saved: Option<Step>,
    /// Whether the cause of the newest failure since the last request to save may pass, as far as this rank knows.
    failed: Option<bool>,
    /// The step of the newest failure that was reported.
    reported_failure: Option<Step>,
    /// Whether no step follows the next save.
    is_last: bool,
}

/// The term of a run, which rank 0 claims before the first save.
#[derive(Debug, Default)]
struct RunTerm {
    /// `None` before it has been claimed.
    number: Option<u64>,
    is_being_claimed: bool,
    /// Whether a vote has already waited for the term; it waits at most once.
    has_waited: bool,
}

/// A save that has begun. Equal on all ranks except for reports received since.
struct PendingSave {
    step: Step,
    epoch: Epoch,
    fence: Fence,
    world_size: WorldSize,
    cursor: Vec<u8>,
    parts: Vec<SavedPart>,
    /// The time for which training stopped: this rank's, later the longest of all ranks.
    held_up_s: f64,
    since: Stopwatch,
    published: bool,
}

/// The rank's position in the run.
pub(crate) struct RankPosition<'a> {
    pub(crate) rank: Rank,
    pub(crate) generation: Generation,
    /// The number of committed steps.
    pub(crate) next: Step,
    pub(crate) identity: &'a PlanIdentity,
    pub(crate) signature: &'a DataSignature,
    pub(crate) layout: &'a ReplicaLayout,
    pub(crate) tracker: &'a dyn Tracker,
}

/// The state of a rank between two steps, to be saved.
pub(crate) struct StateSnapshot<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) world_size: WorldSize,
    pub(crate) vectors: Vec<HeldVector<'a>>,
    /// The elements of divided vectors that this rank saves.
    pub(crate) owned: HeldRanges,
    pub(crate) weights: Option<u64>,
    /// [`crate::progress::RunProgress::encode`].
    pub(crate) progress: String,
    pub(crate) session: Vec<u8>,
}

impl RunCheckpoints {
    /// Creates the checkpoints of the run `name` in `store`; messages show the store as `address`. `run` is the
    /// resolved run file and `base` the folder that its relative paths are resolved against; with both, the run
    /// can resume from the checkpoint alone. A user's own program leaves both empty.
    #[must_use]
    pub fn new(
        section: &CheckpointSection,
        store: Arc<dyn Store>,
        address: String,
        name: String,
        (run, base): (String, PathBuf),
    ) -> Self {
        Self {
            section: section.clone(),
            target: CheckpointTarget {
                store,
                address,
                name,
                run,
                base,
            },
            threads: SaveThreads::default(),
            term: RunTerm::default(),
            pending: None,
            notes: Vec::new(),
            since: Stopwatch::start(),
            is_overdue: false,
            is_postponement_reported: false,
            saved: None,
            failed: None,
            reported_failure: None,
            is_last: false,
        }
    }

    /// Records the activity of the threads that write and publish.
    pub(crate) fn record_spans(&mut self, spans: Arc<BackgroundSpans>) {
        self.threads.record_spans(spans);
    }

    /// Makes a checkpoint due after the next step at which one can be saved.
    pub(crate) fn request(&mut self) {
        self.is_overdue = true;
    }

    /// Returns the address of the checkpoint store.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.target.address
    }

    /// Returns the checkpoint store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.target.store
    }

    pub(crate) fn term(&self) -> Option<u64> {
        self.term.number
    }

    /// Returns the step of the newest checkpoint that this rank knows to be published.
    pub(crate) fn saved(&self) -> Option<Step> {
        self.saved
    }

    /// Returns whether a save has begun and is not known to have ended. Equal on all ranks.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Notes that no step follows the next save.
    pub(crate) fn begin_last(&mut self) {
        self.is_last = true;
    }

    /// Returns whether the last save has failed and another attempt may succeed. Known on rank 0.
    pub(crate) fn may_save_later(&self) -> bool {
        self.failed == Some(true)
    }

    /// Returns whether training waits for each save.
    pub(crate) fn blocks_training(&self) -> bool {
        !self.section.overlap
    }

    /// Returns whether the state after the last step is saved.
    pub(crate) fn saves_at_end(&self) -> bool {
        self.section.at_end
    }

    /// Enters a generation. A pending save needs all ranks that began it, so it is cancelled and another one
    /// becomes due. `term` is the run's term if any member knows it.
    pub(crate) fn enter(&mut self, now: &RankPosition<'_>, term: Option<u64>) {
        self.is_overdue |= self.pending.take().is_some();
        self.notes.clear();
        self.term.number = self.term.number.or(term);
        if let (Some(term), Rank(0)) = (self.term.number, now.rank) {
            let fence = Fence {
                term,
                generation: now.generation,
            };
            self.submit(now, PublishTask::Claim(fence, now.next));
        }
    }

    /// Prepares the vote on a step: returns whether this rank requests a checkpoint after it, and the notes to send
    /// to the other ranks.
    pub(crate) fn before_vote(&mut self, now: &RankPosition<'_>) -> (bool, Vec<u8>) {
        self.poll(now, Duration::ZERO);
        let due = now.rank == Rank(0) && self.is_due(now.next);
        if due && !self.is_overdue {
            self.report_postponement(now);
        }
        if due || now.rank == Rank(0) && self.section.every_steps > 0 {
            self.claim_term(now);
        }
        let has_term = self.term.number.is_some();
        if due && !has_term && !std::mem::replace(&mut self.term.has_waited, true) {
            self.poll(now, CLAIM_LIMIT);
        }
        let requests = due && self.term.number.is_some() && self.pending.is_none();
        self.is_overdue |= due && !requests;
        (requests, notes::encode(&self.notes))
    }

    /// Records a notice if a checkpoint is due while the previous one is still being written; at most once.
    fn report_postponement(&mut self, now: &RankPosition<'_>) {
        let Some(pending) = self
            .pending
            .as_ref()
            .filter(|_| !self.is_postponement_reported)
        else {
            return;
        };
        self.is_postponement_reported = true;
        let message = format!(
            "the checkpoint due after step {} is postponed: the one of step {} is still being written after {:.1} s; \
             raise checkpoint.every_steps, or set checkpoint.overlap = false to wait for each save",
            now.next,
            pending.step,
            pending.since.elapsed_s(),
        );
        let rank = Some(now.rank);
        now.tracker.record(Event::Notice { rank, message });
    }

    /// Returns whether a checkpoint is due after the next step.
    fn is_due(&self, next: Step) -> bool {
        let (steps, minutes) = (self.section.every_steps, self.section.every_minutes);
        self.is_overdue
            || steps > 0 && (next.0 + 1).is_multiple_of(steps)
            || minutes > 0.0 && self.since.elapsed_s() >= 60.0 * minutes
    }

    /// Claims a term for the run in the background, unless it has one. Called on rank 0.
    pub(crate) fn claim_term(&mut self, now: &RankPosition<'_>) {
        if self.term.number.is_none() && !self.term.is_being_claimed {
            self.term.is_being_claimed = true;
            self.submit(now, PublishTask::ClaimTerm(now.generation, now.next));
        }
    }

    /// Ensures that a save can begin at once: the run has a term, and no save is pending. All ranks call it
    /// together.
    ///
    /// # Errors
    /// A peer was lost.
    pub(crate) fn prepare_save(
        &mut self,
        now: &RankPosition<'_>,
        group: &dyn Group,
        interval: Duration,
    ) -> Result<(), CollectiveError> {
        self.failed = None;
        if now.rank == Rank(0) {
            self.claim_term(now);
        }
        self.finish(now, group, interval)
    }

    fn submit(&mut self, now: &RankPosition<'_>, task: PublishTask) {
        if let Err(error) = self.threads.publish(&self.target, task) {
            self.record_failure(now, now.next, now.rank, SaveFailure::from(&error));
        }
    }

    /// Reports a failure, once for each step: further attempts usually fail in the same way.
    fn record_failure(
        &mut self,
        now: &RankPosition<'_>,
        step: Step,
        rank: Rank,
        failure: SaveFailure,
    ) {
        self.failed = Some(failure.may_pass);
        if self.reported_failure.replace(step) != Some(step) {
            now.tracker.record(Event::CheckpointFailed {
                step,
                rank,
                message: failure.problem,
                is_last: self.is_last,
            });
        }
    }

    /// Copies this rank's share of the state, which a thread then writes. All ranks call it after the same step.
    /// Does nothing while another save is pending.
    pub(crate) fn begin(&mut self, now: &RankPosition<'_>, snapshot: StateSnapshot<'_>) {
        let (None, Some(term)) = (&self.pending, self.term.number) else {
            return;
        };
        let watch = Stopwatch::start();
        let fence = Fence {
            term,
            generation: now.generation,
        };
        let world_size = snapshot.world_size;
        let share = (now.rank.0, world_size.get());
        let slices = now.layout.share(&snapshot.vectors, &snapshot.owned, share);
        let save = SaveRequest {
            step: now.next,
            fence,
            rank: now.rank,
            world_size,
            vectors: &now.layout.vectors,
            slices: &slices,
        };
        let begun = self.threads.begin(&self.target, &save);
        let run = (self.target.run.as_str(), self.target.base.as_path());
        let (weights, progress) = (snapshot.weights, snapshot.progress);
        let cursor = TrainingCursor::new(run, weights, progress, snapshot.session).encode();
        let problem = match (begun, &cursor) {
            (Err(error), _) => Some(SaveFailure::from(&error)),
            (Ok(_), Err(problem)) => Some(SaveFailure::lasting(problem.clone())),
            (Ok(_), Ok(_)) => None,
        };
        self.notes.extend(problem.map(|failure| SaveNote::Failed {
            step: now.next,
            failure,
        }));
        self.pending = Some(PendingSave {
            step: now.next,
            epoch: snapshot.epoch,
            fence,
            world_size,
            cursor: cursor.unwrap_or_default(),
            parts: Vec::new(),
            held_up_s: watch.elapsed_s(),
            since: watch,
            published: false,
        });
        (self.is_overdue, self.since) = (false, Stopwatch::start());
    }

    /// Waits until the pending save is published or has failed. All ranks call it together.
    ///
    /// # Errors
    /// A peer was lost.
    pub(crate) fn finish(
        &mut self,
        now: &RankPosition<'_>,
        group: &dyn Group,
        interval: Duration,
    ) -> Result<(), CollectiveError> {
        let step = self.pending.as_ref().map_or(now.next, |save| save.step);
        let (since, limit_s) = (Stopwatch::start(), WRITE_LIMIT.as_secs_f64());
        let slow = |what: &str| {
            let what = format!(
                "{what} of the checkpoint at step {step} in {}",
                self.target.address
            );
            SlowWait::start(what, now.rank, now.tracker).until(limit_s)
        };
        let (mut writes, mut publishes) = (slow("the files"), slow("the publication"));
        wait_for_all(group, interval, &mut writes, |limit| {
            let Some(saver) = self.threads.saver() else {
                return Some(());
            };
            if saver.under_way().is_some() {
                match saver.wait(limit) {
                    Err(CheckpointError::Timeout { .. }) if since.elapsed_s() < limit_s => {
                        return None;
                    }
                    Err(CheckpointError::Timeout { step, .. }) => {
                        self.share_written(Err(CheckpointError::Timeout { step, limit_s }));
                    }
                    outcome => self.share_written(outcome),
                }
            }
            Some(())
        })?;
        self.exchange(now, group)?;
        wait_for_all(group, interval, &mut publishes, |limit| {
            self.poll(now, limit);
            let idle = self.threads.publishes_nothing();
            (idle || since.elapsed_s() >= limit_s).then_some(())
        })?;
        self.exchange(now, group)?;
        self.pending = None;
        Ok(())
    }

    /// Exchanges the queued notes of all ranks without a vote.
    fn exchange(
        &mut self,
        now: &RankPosition<'_>,
        group: &dyn Group,
    ) -> Result<(), CollectiveError> {
        // One line for each rank: the compact JSON contains no line breaks.
        let mut mine = notes::encode(&self.notes);
        mine.push(b'\n');
        let gathered = group.all_gather(&mine)?;
        let notes: Vec<Vec<u8>> = gathered
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        self.receive_notes(now, &notes);
        Ok(())
    }
}
