//! Where a [`Training`] saves checkpoints, goes on from one, and stops when it is asked to.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::session::{CommittedStep, VoteRequests};
use ronde_core::{CollectivesExt, Event, Generation, GroupRank, Rank, Step, weight_hash};
use ronde_parallel::Strategy;

use super::Training;
use crate::TrainError;
use crate::checkpoints::{self, Loaded, Now, Resume, Saving, Snapshot};

/// The first generation of a job that goes on when workers die; others begin with 0.
const FIRST: Generation = Generation(1);

impl Training {
    /// The checkpoints, and where this rank is.
    fn saving(&mut self) -> Option<(&mut Saving, Now<'_>)> {
        let now = Now {
            rank: self.place.rank,
            generation: self.place.generation,
            next: self.session.next_step(),
            identity: &self.plan.identity,
            shape: &self.shape,
            tracker: &*self.place.tracker,
        };
        self.saving.as_mut().map(|saving| (saving, now))
    }

    fn pace(&self) -> Duration {
        checkpoints::pace(self.plan.config.comm.timeout())
    }

    /// Before a vote: what the others should know of checkpoints, and what this rank wishes for.
    pub(super) fn tell_and_wish(&mut self) {
        let told = self.saving().map(|(saving, now)| saving.before_vote(&now));
        let (save, note) = told.unwrap_or_default();
        let stop = self.stop.load(Ordering::Relaxed);
        self.session.request(VoteRequests {
            save,
            stop,
            heals: false,
        });
        self.session.attach(note);
    }

    /// After a step: hears what the others told with their votes, and does what any of them wished for.
    ///
    /// # Errors
    /// A peer was lost; [`TrainError::Stopped`] when the run ends here.
    pub(super) fn save_if_wished(&mut self, committed: &CommittedStep) -> Result<(), TrainError> {
        let world_size = self.place.group.size() as u32;
        if let Some((saving, now)) = self.saving() {
            saving.hear(&now, &committed.notes, world_size);
        }
        if committed.requests.stop {
            return self.stop(committed.step);
        }
        if committed.requests.save {
            self.begin_saving();
            if self.saving.as_ref().is_some_and(Saving::is_waited_for) {
                self.finish_saving()?;
            }
        }
        Ok(())
    }

    /// Ends the run after a step, with a checkpoint.
    fn stop(&mut self, last: Step) -> Result<(), TrainError> {
        let next = last.next();
        let saved = self.save_last(next)?;
        if self.place.rank == Rank(0) {
            let stopped = Event::RunStopped { step: next, saved };
            self.place.tracker.record(stopped);
        }
        self.place.group.barrier().map_err(TrainError::Farewell)?;
        Err(TrainError::Stopped { step: next, saved })
    }

    /// Saves the state before step `next` unless it is saved already, and waits for that; false when it
    /// could not be saved.
    fn save_last(&mut self, next: Step) -> Result<bool, TrainError> {
        let (group, pace) = (self.place.group.clone(), self.pace());
        if let Some((saving, now)) = self.saving() {
            saving
                .clear(&now, &*group, pace)
                .map_err(TrainError::Farewell)?;
        }
        let is_saved = |this: &Self| this.saving.as_ref().and_then(Saving::saved) == Some(next);
        if !is_saved(self) {
            self.begin_saving();
            self.finish_saving()?;
        }
        Ok(is_saved(self))
    }

    /// The job ends, all have left: this worker, which is as far as any, saves the state on its own, in a
    /// generation that nobody trains in.
    pub(super) fn save_alone(&mut self, generation: Generation) -> Result<(), TrainError> {
        let left = self.place.generation;
        let job = self.plan.config.run.name.clone();
        let mut config = GroupConfig::new("last", job, GroupRank(0));
        config.generation = generation;
        self.place.group = Arc::new(ProcessGroup::alone(config));
        (self.place.rank, self.place.generation) = (Rank(0), generation);
        if let Some((saving, now)) = self.saving() {
            saving.enter(&now, None);
        }
        let step = self.session.next_step();
        let saved = self.save_last(step)?;
        let tracker = &self.place.tracker;
        tracker.record(Event::RunStopped { step, saved });
        self.place.generation = left;
        Ok(())
    }

    /// Copies this rank's share of the state; a thread writes it.
    fn begin_saving(&mut self) {
        let Some(world_size) = self.place.world_size() else {
            return;
        };
        let next = self.session.next_step();
        let now = Now {
            rank: self.place.rank,
            generation: self.place.generation,
            next,
            identity: &self.plan.identity,
            shape: &self.shape,
            tracker: &*self.place.tracker,
        };
        let snapshot = Snapshot {
            epoch: self.plan.batches.batch(next).epoch,
            world_size,
            replica: self.strategy.replica(),
            weights: weight_hash::hash(self.strategy.state().values()),
            session: self.session.cursor(),
        };
        if let Some(saving) = &mut self.saving {
            saving.begin(&now, snapshot);
        }
    }

    /// Waits for a save under way, together with all ranks.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn finish_saving(&mut self) -> Result<(), TrainError> {
        let (group, pace) = (self.place.group.clone(), self.pace());
        match self.saving() {
            Some((saving, now)) if saving.is_under_way() => saving
                .finish(&now, &*group, pace)
                .map_err(TrainError::Farewell),
            _ => Ok(()),
        }
    }

    /// At the beginning of a generation: when no member holds a state, the newest checkpoint is one.
    ///
    /// # Errors
    /// A peer was lost, or the checkpoints cannot be used.
    pub(super) fn find_state(&mut self) -> Result<(), TrainError> {
        let Some(saving) = &self.saving else {
            return Ok(());
        };
        let holds = !self.session.is_fresh() && self.session.is_complete();
        let mine = [i64::from(holds), saving.term().unwrap_or_default() as i64];
        let told = self.place.group.all_gather(&mine);
        let told = told.map_err(TrainError::Heal)?;
        let (held, terms): (Vec<i64>, Vec<i64>) = told
            .chunks_exact(2)
            .map(|words| (words[0], words[1]))
            .unzip();
        let term = terms.into_iter().max().filter(|term| *term > 0);
        let term = term.map(i64::unsigned_abs);
        let may_load = self.resume != Resume::Never || self.place.generation > FIRST;
        let has_loaded = held.iter().all(|held| *held == 0) && may_load && self.load_together()?;
        if has_loaded {
            self.history.clear();
        }
        if let Some((saving, now)) = self.saving() {
            saving.enter(&now, term);
            if has_loaded && now.rank == Rank(0) {
                saving.claim_term(&now);
            }
        }
        Ok(())
    }

    /// Rank 0 loads the newest checkpoint; the others wait with it and take the state over from it later.
    fn load_together(&mut self) -> Result<bool, TrainError> {
        let (group, pace) = (self.place.group.clone(), self.pace());
        let loads = self.place.rank == Rank(0);
        let Some(saving) = &self.saving else {
            return Ok(false);
        };
        let (store, identity, shape) = (saving.store(), &self.plan.identity, &self.shape);
        let address = saving.address().to_owned();
        let (tell, told) = mpsc::channel();
        let mut replica = self.strategy.replica_mut();
        let loaded = std::thread::scope(|scope| {
            if loads {
                scope.spawn(move || {
                    let loaded = checkpoints::load(store, identity, shape, &mut replica);
                    // Whoever asked has lost a peer and will ask again.
                    let _ = tell.send(loaded);
                });
            }
            checkpoints::together(&*group, pace, |limit| match loads {
                true => told.recv_timeout(limit).ok().map(Some),
                false => Some(None),
            })
        });
        let outcome = match loaded.map_err(TrainError::Heal)? {
            Some(Ok(Some(loaded))) => self.take_up(loaded, address),
            Some(Ok(None)) if self.resume == Resume::Must => {
                Err(TrainError::NoCheckpoint { address })
            }
            Some(Ok(None)) | None => Ok(false),
            Some(Err(error)) => Err(error.into()),
        };
        let mine = match &outcome {
            Ok(loaded) => u8::from(*loaded),
            Err(_) => 2,
        };
        let told = group.all_gather(&[mine]);
        // Whoever failed says why, however the others take it.
        let has_loaded = outcome?;
        match told.map_err(TrainError::Heal)?.first() {
            Some(2) => Err(TrainError::NotLoaded),
            first => Ok(has_loaded || first == Some(&1)),
        }
    }

    /// Goes on from a state that is in the replica already.
    fn take_up(&mut self, loaded: Loaded, address: String) -> Result<bool, TrainError> {
        self.strategy.reload();
        let step = loaded.step;
        let digest = self.digest(Step(step.0.saturating_sub(1)));
        if !self.session.resume(&loaded.session, digest) || self.session.next_step() != step {
            return Err(TrainError::Impossible {
                problem: format!("the checkpoint of step {step} in {address} has another cursor"),
                hint: "this is a bug of ronde; please report it".to_owned(),
            });
        }
        self.place.tracker.record(Event::CheckpointLoaded {
            step,
            world_size: loaded.world_size,
            bytes: loaded.bytes,
            duration_s: loaded.duration_s,
            address,
            skipped: loaded.skipped,
        });
        Ok(true)
    }
}
