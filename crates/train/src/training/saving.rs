//! Saves the checkpoints of a [`Training`], resumes from one, and stops on request.
//!
//! All ranks copy their share after the same step, because rank 0 requests a checkpoint with its vote; `docs/checkpoints.md` has
//! the protocol. Rank 0 loads a whole state and the other ranks copy it as in healing, so both have one path.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::{CollectivesExt, Event, Generation, GroupRank, Rank, Step, weight_hash};
use ronde_protocol::GenerationPurpose;
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::{
    CommittedStep, LoadAgreement, MemberState, StateSource, VoteRequests,
};

use super::pending::Pending;
use super::{Training, vectors, vectors_mut};
use crate::checkpoints::{
    self, LoadedCheckpoint, RankPosition, Resume, RunCheckpoints, SlowWait, StateSnapshot,
};
use crate::error::TrainError;

impl Training {
    /// Returns the checkpoints and the position of this rank.
    fn checkpoints(&mut self) -> Option<(&mut RunCheckpoints, RankPosition<'_>)> {
        let next = self.session.next_step();
        self.saving.at(&self.member, &self.plan, next)
    }

    /// Notes that no step follows the next save.
    pub(super) fn begin_last_save(&mut self) {
        if let Some(saving) = self.saving.checkpoints_mut() {
            saving.begin_last();
        }
    }

    pub(super) fn poll_interval(&self) -> Duration {
        checkpoints::poll_interval(self.plan.config.comm.timeout())
    }

    /// Adds this rank's requests and checkpoint notes to the next vote.
    pub(super) fn prepare_vote(&mut self) {
        // The callbacks of all ranks have seen the same reports, except for those of a rank that has joined since. Rank 0
        // may be such a rank, so the requests of every rank count.
        let actions = self.decisions.actions();
        if actions.save {
            self.saving.request(&self.member);
        }
        let prepared = self
            .checkpoints()
            .map(|(saving, now)| saving.before_vote(&now));
        let (save, note) = prepared.unwrap_or_default();
        // One member can save the state alone after all have left, unless each has a part of it.
        let stops_together = self.is_divided() && self.member.is_stopping();
        let stop = self.saving.stops() || stops_together;
        self.session.request(VoteRequests {
            save,
            stop,
            evaluate: actions.evaluate,
            complete: actions.complete,
            ..VoteRequests::default()
        });
        self.session.attach(note);
    }

    /// Processes the notes and requests that all ranks sent with their votes.
    ///
    /// # Errors
    /// A peer was lost; [`TrainError::Stopped`] when the run ends here.
    pub(super) fn save_if_requested(
        &mut self,
        committed: &CommittedStep,
    ) -> Result<(), TrainError> {
        if let Some((saving, now)) = self.checkpoints() {
            saving.receive_notes(&now, &committed.notes);
        }
        let saves = self.saving.checkpoints();
        if saves.is_some_and(RunCheckpoints::needs_memory) {
            let bytes = self.saved_bytes();
            if let Some(saving) = self.saving.checkpoints_mut() {
                saving.reserve(bytes);
            }
        }
        if committed.requests.stop {
            return self.stop_before(committed.step.next());
        }
        let leaves = committed.requests.leaves && self.member.ends_after(committed);
        if leaves && self.is_divided() && self.saving.checkpoints().is_some() {
            // A member that leaves may be the only one with its slices.
            self.save_last(committed.step.next())?;
        } else if committed.requests.save {
            self.begin_saving();
            let saves = self.saving.checkpoints();
            if saves.is_some_and(RunCheckpoints::blocks_training) {
                self.finish_saving()?;
            }
        }
        Ok(())
    }

    /// Stops the run before a step, with a checkpoint.
    fn stop_before(&mut self, next: Step) -> Result<(), TrainError> {
        let saved = self.save_while_possible(next)?;
        if self.member.rank == Rank(0) {
            let stopped = Event::RunStopped { step: next, saved };
            self.member.tracker.record(stopped);
        }
        self.member.group.barrier().map_err(TrainError::Farewell)?;
        self.member.part();
        Err(TrainError::Stopped { step: next, saved })
    }

    /// Saves the state after the last step if checkpoints are configured so, and waits for a pending save.
    pub(super) fn save_at_end(&mut self) -> Result<(), TrainError> {
        let saves = self.saving.checkpoints();
        if saves.is_some_and(RunCheckpoints::saves_at_end) {
            self.begin_last_save();
            self.save_last(self.session.next_step())?;
            return Ok(());
        }
        self.finish_saving()
    }

    /// Saves the state before step `next`, unless it is already saved, and waits for the end. Returns whether it is
    /// saved.
    pub(super) fn save_last(&mut self, next: Step) -> Result<bool, TrainError> {
        let (group, interval) = (self.member.group.clone(), self.poll_interval());
        if let Some((saving, now)) = self.checkpoints() {
            saving
                .prepare_save(&now, &*group, interval)
                .map_err(TrainError::Farewell)?;
        }
        let is_saved =
            |this: &Self| this.saving.checkpoints().and_then(RunCheckpoints::saved) == Some(next);
        // A rank that has joined since the last save does not know of it.
        let known = group.all_gather(&[u8::from(is_saved(self))]);
        if known.map_err(TrainError::Farewell)?.contains(&0) {
            self.begin_saving();
            self.finish_saving()?;
        }
        Ok(is_saved(self))
    }

    /// Saves a last checkpoint alone, after all workers have left the ending job. This worker has the newest state
    /// and saves it in a generation in which no worker trains.
    ///
    /// # Errors
    /// The checkpoint cannot be saved.
    pub(super) fn save_alone(&mut self, generation: Generation) -> Result<(), TrainError> {
        let left = self.member.generation;
        let job = self.plan.config.run.name.clone();
        let mut config = GroupConfig::new("last", job, GroupRank(0));
        config.generation = generation;
        self.member.group = Arc::new(ProcessGroup::alone(config));
        (self.member.rank, self.member.generation) = (Rank(0), generation);
        if let Some((saving, now)) = self.checkpoints() {
            saving.enter(&now, None);
        }
        let step = self.session.next_step();
        // The worker that recorded the last steps may be lost.
        self.finish_unfinished();
        self.reports.report(&self.member);
        let saved = self.save_while_possible(step)?;
        let tracker = &self.member.tracker;
        tracker.record(Event::RunStopped { step, saved });
        if !saved {
            self.member.not_saved(generation);
        }
        self.member.generation = left;
        Ok(())
    }

    /// Returns the elements of the state that this rank saves for all ranks.
    fn saved_elements(&self) -> HeldRanges {
        let group = &self.member.group;
        let (rank, size) = (group.rank().index(), group.size());
        // A rank that saves alone has the layout of the generation that it has left.
        if self.plan.config.parallel.is_divided() && size > 1 {
            return self.policy.state().owned().swap_remove(rank);
        }
        let elements = self.policy.state().model().len() as u64;
        let share = ronde_checkpoint::share(elements, rank as u32, size as u32);
        HeldRanges::new(std::iter::once(share.start as usize..share.end as usize))
    }

    /// Returns the bytes of this rank's share of the state.
    fn saved_bytes(&self) -> usize {
        let group = &self.member.group;
        let vectors = vectors(&self.policy.state(), &self.copies);
        let owned = self.saved_elements();
        let share = (group.rank().0, group.size() as u32);
        let slices = self.saving.layout().share(&vectors, &owned, share);
        slices.iter().map(|slice| slice.bytes.len()).sum()
    }

    /// Copies this rank's share of the state, which a thread then writes.
    fn begin_saving(&mut self) {
        let Some(world_size) = self.member.world_size() else {
            return;
        };
        let next = self.session.next_step();
        // A checkpoint after the last evaluation has its model, too.
        self.keep_best(next);
        let snapshot = StateSnapshot {
            epoch: self.plan.batches.batch(next).epoch,
            world_size,
            vectors: vectors(&self.policy.state(), &self.copies),
            owned: self.saved_elements(),
            weights: (!self.divides_weights())
                .then(|| weight_hash::hash(self.policy.state().model().values())),
            progress: self.decisions.encode(),
            session: self.session.cursor(),
        };
        if let Some((saving, now)) = self.saving.at(&self.member, &self.plan, next) {
            saving.begin(&now, snapshot);
        }
    }

    /// Waits for a pending save; all ranks call it together.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn finish_saving(&mut self) -> Result<(), TrainError> {
        let (group, interval) = (self.member.group.clone(), self.poll_interval());
        match self.checkpoints() {
            Some((saving, now)) if saving.is_pending() => saving
                .finish(&now, &*group, interval)
                .map_err(TrainError::Farewell),
            _ => Ok(()),
        }
    }

    /// Loads the newest state that all members can load: a copy in memory, a checkpoint, or the state before the first step. Returns
    /// whether it was one of the first two. All members call it together.
    ///
    /// # Errors
    /// A peer was lost, or the checkpoints cannot be used.
    pub(super) fn load_state(
        &mut self,
        source: StateSource,
        members: &[MemberState],
    ) -> Result<bool, TrainError> {
        self.gathered = None;
        let is_later = self.member.generation > Generation::FIRST;
        let has_loaded = match source {
            StateSource::Members(_) => false,
            StateSource::Checkpoint => self.return_to_copies()? || self.load_together()?,
            StateSource::Initial if self.saving.resume() == Resume::Never && !is_later => false,
            StateSource::Initial => self.load_together()?,
        };
        self.reports.forget_steps();
        self.pending = Pending::Nothing;
        if !has_loaded {
            self.begin_again(members)?;
        }
        Ok(has_loaded)
    }

    /// Continues the checkpoints of the run in this generation, in the newest term that a member knows.
    pub(super) fn enter_checkpoints(&mut self, members: &[MemberState], has_loaded: bool) {
        let term = members.iter().map(|member| member.term).max();
        let term = term.filter(|term| *term > 0);
        if let Some((saving, now)) = self.checkpoints() {
            saving.enter(&now, term);
            if has_loaded && now.rank == Rank(0) {
                saving.claim_term(&now);
            }
        }
    }

    /// Leaves the group to wait for silent workers that may have the state, or ends the run if it was to be saved. Returns if the
    /// members may return to an earlier state. All members call it together.
    ///
    /// # Errors
    /// As described.
    pub(super) fn wait_for_state(&mut self, members: &[MemberState]) -> Result<(), TrainError> {
        let step = members.iter().map(|member| member.next).max();
        let Some(step) = step.filter(|step| *step > Step(0)) else {
            return Ok(());
        };
        let awaited = self.gather_words(&[u64::from(self.member.awaited)])?;
        let workers = awaited.into_iter().max().unwrap_or_default() as u32;
        if workers == 0 {
            return match self.member.purpose {
                GenerationPurpose::Save => self.end_without_state(step),
                GenerationPurpose::Train => Ok(()),
            };
        }
        self.member.lacks_state();
        Err(TrainError::LacksState { step, workers })
    }

    /// Ends a run whose state is lost.
    fn end_without_state(&mut self, step: Step) -> Result<(), TrainError> {
        let saved = false;
        if self.member.rank == Rank(0) {
            let stopped = Event::RunStopped { step, saved };
            self.member.tracker.record(stopped);
        }
        self.member.group.barrier().map_err(TrainError::Farewell)?;
        Err(TrainError::Stopped { step, saved })
    }

    /// Saves the state that the members of a last generation have together, and ends the run.
    pub(super) fn save_and_end(&mut self) -> Result<(), TrainError> {
        self.catch_up()?;
        let next = self.session.next_step();
        self.stop_before(next)
    }

    /// Loads the newest checkpoint: on rank 0 while the remaining ranks wait, which copy the state from it later; or on
    /// every rank, with the slices that it holds, if the state is divided.
    fn load_together(&mut self) -> Result<bool, TrainError> {
        if self.saving.checkpoints().is_none() {
            return Ok(false);
        }
        if !self.is_divided() {
            return self.load_before(u64::MAX).map(|step| step.is_some());
        }
        let even = self.even_mesh()?;
        self.regroup(even)?;
        // The state that the members have is not complete, and is given up.
        self.slices.give_up();
        let mine = self.own_slices();
        self.hold(&mine).reload();
        // Ranks read different slices, so one may find damage in a checkpoint that the others can read.
        let mut end = u64::MAX;
        loop {
            let loaded = self.load_before(end)?.map_or(-1, |step| step.0 as i64);
            let all = self.member.group.all_gather(&[loaded]);
            let all = all.map_err(TrainError::Heal)?.into_iter();
            let all: Vec<Option<Step>> = all.map(|s| u64::try_from(s).ok().map(Step)).collect();
            match LoadAgreement::of(&all) {
                LoadAgreement::Agreed(None) => return Ok(false),
                LoadAgreement::Agreed(Some(_)) => {
                    self.slices.loaded(mine);
                    return Ok(true);
                }
                LoadAgreement::RetryBefore(step) => end = step.0,
            }
        }
    }

    /// Loads the newest checkpoint before step `end`; returns its step.
    fn load_before(&mut self, end: u64) -> Result<Option<Step>, TrainError> {
        let (group, interval) = (self.member.group.clone(), self.poll_interval());
        let loads = self.member.rank == Rank(0) || self.is_divided();
        let (layout, resume) = (self.saving.layout(), self.saving.resume());
        let Some(saving) = self.saving.checkpoints() else {
            return Ok(None);
        };
        let (store, identity, shape) = (saving.store(), &self.plan.identity, layout);
        let address = saving.address().to_owned();
        let (sender, receiver) = mpsc::channel();
        let what = format!("the newest checkpoint in {address} to be loaded");
        let mut slow = SlowWait::start(what, self.member.rank, &*self.member.tracker);
        let mut edit = self.policy.edit();
        let mut vectors = vectors_mut(&mut edit, &mut self.copies);
        let loaded = std::thread::scope(|scope| {
            if loads {
                scope.spawn(move || {
                    let loaded = checkpoints::load(store, identity, shape, &mut vectors, end);
                    // The receiver is gone if a peer was lost; the state is then loaded again.
                    let _ = sender.send(loaded);
                });
            }
            checkpoints::wait_for_all(&*group, interval, &mut slow, |limit| match loads {
                true => receiver.recv_timeout(limit).ok().map(Some),
                false => Some(None),
            })
        });
        // The layers need their weights again, also if there is nothing to load.
        edit.reload();
        let outcome = match loaded.map_err(TrainError::Heal)? {
            Some(Ok(Some(loaded))) => self.resume_from(loaded, address),
            Some(Ok(None)) if resume == Resume::Required => {
                Err(TrainError::NoCheckpoint { address })
            }
            Some(Ok(None)) | None => Ok(None),
            Some(Err(error)) => Err(error.into()),
        };
        let mine = match &outcome {
            Ok(step) => u8::from(step.is_some()),
            Err(_) => 2,
        };
        let gathered = group.all_gather(&[mine]);
        // A rank that failed reports its error, whatever the result on the remaining ranks.
        let step = outcome?;
        let gathered = gathered.map_err(TrainError::Heal)?;
        if gathered.contains(&2) {
            return Err(TrainError::NotLoaded);
        }
        // A rank that does not load copies what rank 0 has loaded.
        let is_copied = !loads && gathered.first() == Some(&1);
        Ok(if is_copied { Some(Step(0)) } else { step })
    }

    /// Resumes from the loaded state that is already in the replica.
    fn resume_from(
        &mut self,
        loaded: LoadedCheckpoint,
        address: String,
    ) -> Result<Option<Step>, TrainError> {
        self.decisions.load(loaded.progress.as_deref())?;
        let parents = self.plan.identity.lineage();
        let parent = parents.last().filter(|parent| parent.plan == loaded.plan);
        if parent.is_some() {
            self.decisions.extend();
        }
        let step = loaded.step;
        let digest = self.digest(Step(step.0.saturating_sub(1)));
        if !self.session.resume(&loaded.session, digest) || self.session.next_step() != step {
            return Err(TrainError::Impossible {
                problem: format!(
                    "the checkpoint of step {step} in {address} has an inconsistent cursor"
                ),
                hint: "this is a bug of ronde; please report it".to_owned(),
            });
        }
        if self.member.rank != Rank(0) {
            return Ok(Some(step));
        }
        self.member.tracker.record(Event::CheckpointLoaded {
            step,
            world_size: loaded.world_size,
            bytes: loaded.bytes,
            duration_s: loaded.duration_s,
            address: Some(address),
            skipped: loaded.skipped,
        });
        if let Some(parent) = parent {
            self.member.tracker.record(Event::RunExtended {
                step,
                parent: parent.plan.clone(),
                changes: parent.changes.clone(),
            });
        }
        Ok(Some(step))
    }
}
