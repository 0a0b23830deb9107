//! [`Saving`]: one rank's part in the checkpoints of a run, from the wish to what counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_checkpoint::{CheckpointError, Fence, Save, SavedPart, Saver};
use ronde_core::{
    CollectiveError, CollectivesExt, Epoch, Event, Generation, Group, PlanIdentity, Rank, Step,
    Tracker, WorldSize,
};
use ronde_store::Store;

use super::Shape;
use super::cursor::Cursor;
use super::keeper::{Done, Keeper, Task, Whole, retention};
use super::together::together;
use super::words::{self, Word};
use crate::clock::Stopwatch;
use crate::config::CheckpointSection;

/// How long a vote may be held up for the term, when the first checkpoint of a run is due at once.
const CLAIM_LIMIT: Duration = Duration::from_secs(5);

/// One rank's part in the checkpoints of a run.
pub struct Saving {
    section: CheckpointSection,
    store: Arc<dyn Store>,
    address: String,
    name: String,
    run: String,
    base: PathBuf,
    saver: Option<Saver>,
    keeper: Option<Keeper>,
    /// The run's term, once it is claimed.
    term: Option<u64>,
    claiming: bool,
    /// A vote was held up for the term; once is enough.
    has_waited: bool,
    under_way: Option<UnderWay>,
    /// What is to be told with the next vote.
    words: Vec<Word>,
    /// Since the last save began.
    since: Stopwatch,
    /// A save was given up, so that the next one is due.
    wanted: bool,
    /// The newest step that counts, as far as this rank has heard.
    saved: Option<Step>,
}

/// A save that has begun; equal on all ranks but for what was heard since.
struct UnderWay {
    step: Step,
    epoch: Epoch,
    fence: Fence,
    world_size: WorldSize,
    cursor: Vec<u8>,
    parts: Vec<SavedPart>,
    /// This rank's time, then that of whoever took longest.
    held_up_s: f64,
    since: Stopwatch,
    published: bool,
}

/// Where a rank is in the run.
pub(crate) struct Now<'a> {
    pub(crate) rank: Rank,
    pub(crate) generation: Generation,
    /// Committed steps.
    pub(crate) next: Step,
    pub(crate) identity: &'a PlanIdentity,
    pub(crate) shape: &'a Shape,
    pub(crate) tracker: &'a dyn Tracker,
}

/// The state of a rank between two steps.
pub(crate) struct Snapshot<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) world_size: WorldSize,
    pub(crate) replica: Vec<&'a [f32]>,
    pub(crate) weights: u64,
    pub(crate) session: Vec<u8>,
}

impl Saving {
    /// Checkpoints of the run `name` at `store`, which people know as `address`. `run` is the resolved run
    /// file and `base` the folder that its paths start from, so that the run can go on from the
    /// checkpoint alone; a program of the user's own leaves both empty.
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
            store,
            address,
            name,
            run,
            base,
            saver: None,
            keeper: None,
            term: None,
            claiming: false,
            has_waited: false,
            under_way: None,
            words: Vec::new(),
            since: Stopwatch::start(),
            wanted: false,
            saved: None,
        }
    }

    /// Where the checkpoints are.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn term(&self) -> Option<u64> {
        self.term
    }

    /// The newest step that counts, as far as this rank has heard.
    pub(crate) fn saved(&self) -> Option<Step> {
        self.saved
    }

    /// Whether a save has begun and has not been heard of as ended. Equal on all ranks.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether training waits for each save.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.section.overlap
    }

    /// The rank goes into a generation. A save under way needed all who began it: it is given up, and
    /// another one is due. `term`: what any member knows.
    pub(crate) fn enter(&mut self, now: &Now<'_>, term: Option<u64>) {
        self.wanted |= self.under_way.take().is_some();
        self.words.clear();
        self.term = self.term.or(term);
        if let (Some(term), Rank(0)) = (self.term, now.rank) {
            let fence = Fence {
                term,
                generation: now.generation,
            };
            self.ask(now, Task::Claim(fence, now.next));
        }
    }

    /// Before the vote on a step: what to tell the others, and whether this rank wishes for a checkpoint
    /// after it.
    pub(crate) fn before_vote(&mut self, now: &Now<'_>) -> (bool, Vec<u8>) {
        self.poll(now, Duration::ZERO);
        let due = now.rank == Rank(0) && self.is_due(now.next);
        if due || now.rank == Rank(0) && self.section.every_steps > 0 {
            self.claim_term(now);
        }
        if due && self.term.is_none() && !std::mem::replace(&mut self.has_waited, true) {
            self.poll(now, CLAIM_LIMIT);
        }
        let wishes = due && self.term.is_some() && self.under_way.is_none();
        self.wanted |= due && !wishes;
        (wishes, words::encode(&self.words))
    }

    /// Whether a checkpoint is due after the step that comes next.
    fn is_due(&self, next: Step) -> bool {
        let (steps, minutes) = (self.section.every_steps, self.section.every_minutes);
        self.wanted
            || steps > 0 && (next.0 + 1).is_multiple_of(steps)
            || minutes > 0.0 && self.since.total_s() >= 60.0 * minutes
    }

    /// Claims a term for the run, in the background, unless it has one. On rank 0.
    pub(crate) fn claim_term(&mut self, now: &Now<'_>) {
        if self.term.is_none() && !self.claiming {
            self.claiming = true;
            self.ask(now, Task::ClaimTerm(now.generation, now.next));
        }
    }

    /// Makes sure, together with all ranks, that a save can begin at once: the run has a term, and no save
    /// is under way.
    ///
    /// # Errors
    /// A peer was lost.
    pub(crate) fn clear(
        &mut self,
        now: &Now<'_>,
        group: &dyn Group,
        pace: Duration,
    ) -> Result<(), CollectiveError> {
        if now.rank == Rank(0) {
            self.claim_term(now);
        }
        self.finish(now, group, pace)
    }

    fn ask(&mut self, now: &Now<'_>, task: Task) {
        if self.keeper.is_none() {
            match Keeper::start(self.store.clone()) {
                Ok(keeper) => self.keeper = Some(keeper),
                Err(error) => return self.failed(now, now.next, now.rank, error.to_string()),
            }
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.ask(task);
        }
    }

    /// Takes in what this rank's threads have done; waits for the keeper up to `limit` while it is busy.
    fn poll(&mut self, now: &Now<'_>, limit: Duration) {
        if let Some(outcome) = self.saver.as_mut().and_then(Saver::poll) {
            self.written(outcome);
        }
        while let Some(done) = self.keeper.as_mut().and_then(|keeper| keeper.next(limit)) {
            self.kept(now, done);
        }
    }

    /// This rank's share is written, or not.
    fn written(&mut self, outcome: Result<SavedPart, CheckpointError>) {
        let Some(under_way) = &self.under_way else {
            return;
        };
        let (step, held_up_s) = (under_way.step, under_way.held_up_s);
        match outcome {
            Ok(part) if (part.step, part.fence) == (step, under_way.fence) => {
                self.words.push(Word::Saved { part, held_up_s });
            }
            // Of a save that was given up.
            Ok(_) => {}
            Err(error) => self.words.push(Word::Failed {
                step,
                problem: error.to_string(),
            }),
        }
    }

    fn kept(&mut self, now: &Now<'_>, done: Done) {
        match done {
            Done::Claimed | Done::Discarded => {}
            Done::Term(fence) => {
                self.claiming = false;
                self.term = Some(fence.term);
                self.words.push(Word::Term(fence.term));
                if fence.generation != now.generation {
                    let generation = now.generation;
                    self.ask(
                        now,
                        Task::Claim(
                            Fence {
                                generation,
                                ..fence
                            },
                            now.next,
                        ),
                    );
                }
            }
            Done::NotClaimed(step, problem) => {
                self.claiming = false;
                // Not again at every step.
                (self.wanted, self.since) = (false, Stopwatch::start());
                self.failed(now, step, now.rank, problem);
            }
            Done::Published(step, notice) => {
                if let Some(message) = notice {
                    let rank = Some(now.rank);
                    now.tracker.record(Event::Notice { rank, message });
                }
                self.saved = Some(step);
                let under_way = self.under_way.as_ref().filter(|save| save.step == step);
                now.tracker.record(Event::CheckpointSaved {
                    step,
                    generation: now.generation,
                    bytes: under_way.map_or(0, |s| s.parts.iter().map(|p| p.file.bytes).sum()),
                    held_up_s: under_way.map_or(f64::NAN, |save| save.held_up_s),
                    total_s: under_way.map_or(f64::NAN, |save| save.since.total_s()),
                    address: self.address.clone(),
                });
                self.words.push(Word::Published { step });
            }
            Done::NotPublished(step, problem) => self.words.push(Word::Failed { step, problem }),
        }
    }

    fn failed(&self, now: &Now<'_>, step: Step, rank: Rank, message: String) {
        now.tracker.record(Event::CheckpointFailed {
            step,
            rank,
            message,
        });
    }

    /// What all ranks told with a vote, by rank. The words of this rank are told.
    pub(crate) fn hear(&mut self, now: &Now<'_>, notes: &[Vec<u8>], world_size: u32) {
        self.words.clear();
        for (rank, note) in (0..).zip(notes) {
            for word in words::decode(note) {
                self.take(now, Rank(rank), word);
            }
        }
        if self.term.is_some() && self.saver.is_none() {
            let reserve = now.shape.share_bytes(world_size);
            // When it cannot be started, the first save says so.
            self.saver = Saver::start(self.store.clone(), reserve).ok();
        }
        self.publish_if_whole(now);
    }

    fn take(&mut self, now: &Now<'_>, rank: Rank, word: Word) {
        let save = self.under_way.as_mut();
        match word {
            Word::Term(term) => self.term = Some(term),
            Word::Saved { part, held_up_s } => {
                if let Some(save) = save
                    && (part.step, part.fence) == (save.step, save.fence)
                    && save.parts.iter().all(|other| other.rank != part.rank)
                {
                    save.held_up_s = save.held_up_s.max(held_up_s);
                    save.parts.push(part);
                }
            }
            Word::Failed { step, problem } => {
                let given_up = self.under_way.take_if(|save| save.step == step);
                if let Some(save) = given_up
                    && now.rank == Rank(0)
                {
                    self.failed(now, step, rank, problem);
                    if !save.published {
                        self.ask(now, Task::Discard(save.parts));
                    }
                }
            }
            Word::Published { step } => {
                self.saved = Some(step);
                self.under_way.take_if(|save| save.step == step);
            }
        }
    }

    /// Rank 0 publishes what all have saved.
    fn publish_if_whole(&mut self, now: &Now<'_>) {
        let Some(save) = &mut self.under_way else {
            return;
        };
        if now.rank != Rank(0) || save.published || save.parts.len() < save.world_size.len() {
            return;
        }
        save.published = true;
        let whole = Whole {
            run: self.name.clone(),
            step: save.step,
            epoch: save.epoch,
            fence: save.fence,
            world_size: save.world_size,
            identity: now.identity.clone(),
            vectors: now.shape.vectors.clone(),
            cursor: std::mem::take(&mut save.cursor),
            parts: save.parts.clone(),
            retention: retention(self.section.keep, self.section.keep_every_steps),
        };
        self.ask(now, Task::Publish(Box::new(whole)));
    }

    /// Copies this rank's share of the state, as all ranks do after the same step, and lets a thread write
    /// it. Does nothing while another save is under way.
    pub(crate) fn begin(&mut self, now: &Now<'_>, snapshot: Snapshot<'_>) {
        let (None, Some(term)) = (&self.under_way, self.term) else {
            return;
        };
        let watch = Stopwatch::start();
        let fence = Fence {
            term,
            generation: now.generation,
        };
        let world_size = snapshot.world_size;
        let slices = now
            .shape
            .share(&snapshot.replica, now.rank.0, world_size.get());
        let save = Save {
            step: now.next,
            fence,
            rank: now.rank,
            world_size,
            vectors: &now.shape.vectors,
            slices: &slices,
        };
        let begun = self.writer().and_then(|saver| saver.begin(&save));
        let cursor = Cursor::new(&self.run, &self.base, snapshot.weights, snapshot.session);
        let cursor = cursor.encode();
        let problem = match (begun, &cursor) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(_), Err(problem)) => Some(problem.clone()),
            (Ok(_), Ok(_)) => None,
        };
        self.words.extend(problem.map(|problem| Word::Failed {
            step: now.next,
            problem,
        }));
        self.under_way = Some(UnderWay {
            step: now.next,
            epoch: snapshot.epoch,
            fence,
            world_size,
            cursor: cursor.unwrap_or_default(),
            parts: Vec::new(),
            held_up_s: watch.total_s(),
            since: watch,
            published: false,
        });
        (self.wanted, self.since) = (false, Stopwatch::start());
    }

    /// The writer, which has nothing to do any more: an earlier save that nobody waits for is given up.
    fn writer(&mut self) -> Result<&mut Saver, CheckpointError> {
        if let Some(saver) = &mut self.saver {
            // The outcome of a save that was given up.
            let _ = saver.poll();
        }
        match &mut self.saver {
            Some(saver) => Ok(saver),
            none => Ok(none.insert(Saver::start(self.store.clone(), 0)?)),
        }
    }

    /// Waits, together with all ranks, until the save under way counts or has failed.
    ///
    /// # Errors
    /// A peer was lost.
    pub(crate) fn finish(
        &mut self,
        now: &Now<'_>,
        group: &dyn Group,
        pace: Duration,
    ) -> Result<(), CollectiveError> {
        together(group, pace, |limit| {
            let Some(saver) = &mut self.saver else {
                return Some(());
            };
            if saver.under_way().is_some() {
                match saver.wait(limit) {
                    Err(CheckpointError::Timeout { .. }) => return None,
                    outcome => self.written(outcome),
                }
            }
            Some(())
        })?;
        self.exchange(now, group)?;
        together(group, pace, |limit| {
            self.poll(now, limit);
            let idle = self.keeper.as_ref().is_none_or(Keeper::is_idle);
            idle.then_some(())
        })?;
        self.exchange(now, group)?;
        self.under_way = None;
        Ok(())
    }

    /// Tells the words of all ranks to all, without a vote.
    fn exchange(&mut self, now: &Now<'_>, group: &dyn Group) -> Result<(), CollectiveError> {
        // One line a rank: JSON has no line breaks of its own.
        let mut mine = words::encode(&self.words);
        mine.push(b'\n');
        let told = group.all_gather(&mine)?;
        let notes: Vec<Vec<u8>> = told
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        self.hear(now, &notes, group.size() as u32);
        Ok(())
    }
}
