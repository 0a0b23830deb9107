//! Moves a [`Training`] from one generation to the next.
//!
//! ```text
//! a peer is lost, or a vote announces a newer generation
//!   -> join the next generation -> exchange state reports -> apply or copy missed steps -> next step
//! ```

use ronde_core::shards::ShardPlan;
use ronde_core::spans::SpanKind;
use ronde_core::step_layout::StepLayout;
use ronde_core::{CollectiveError, Event, Group, Rank, Step};
use ronde_parallel::HeldVector;
use ronde_protocol::MembershipError;
use ronde_protocol::transaction::{CatchUp, CatchUpPlan, RejoinOutcome};

use super::restoration::CopyRestoration;
use super::step::StepTiming;
use super::{Training, vectors_mut};
use crate::TrainError;
use crate::event_history::share_bytes;
use crate::progress::RunProgress;
use crate::state_transfer::{self, StateTransfer};

impl Training {
    /// Leaves the generation that has ended and joins a later one.
    pub(super) fn join_next_generation(&mut self, cause: &str) -> Result<(), TrainError> {
        loop {
            match self.member.join_next(cause) {
                Err(TrainError::Membership(MembershipError::CheckpointRequested {
                    generation,
                })) => {
                    self.save_alone(generation)?;
                }
                other => break other?,
            }
        }
        self.synchronize()
    }

    /// Brings all members of a new generation to the same step. Workers that join a running job also call it
    /// before their first step.
    pub(super) fn synchronize(&mut self) -> Result<(), TrainError> {
        let (group, before) = (self.member.group.clone(), self.mesh.clone());
        self.align_clocks()?;
        self.transfer = StateTransfer::default();
        self.state_copies.interrupt();
        self.restoration = CopyRestoration::default();
        self.share_initial_weights()?;
        if std::mem::take(&mut self.is_starting) {
            self.record_start();
            self.keep_beginning();
        }
        self.find_state()?;
        let next = self.session.next_step();
        let holds = self.holds_gradient(next);
        let even = self.even_mesh()?;
        let RejoinOutcome {
            plan: catch_up,
            committed,
        } = self
            .member
            .rejoin(&mut self.session, even.reports(), holds)?;
        let held = self.held.take();
        if let (Some(committed), Some((_, reduced))) = (committed, held) {
            let applied = self.apply(&committed, reduced)?;
            self.unfinished = Some((committed, applied, StepTiming::default()));
        }
        if !self.is_divided() {
            self.finish_unfinished();
        }
        let some_copy_state = catch_up.each.contains(&CatchUp::CopyState);
        if some_copy_state {
            let shared = self.history.share(&*group, &catch_up);
            shared.map_err(TrainError::Heal)?;
            if !self.is_divided() {
                self.share_progress(&catch_up)?;
            }
        }
        let spared = self.spared_shards(&catch_up, &even);
        let all_compute = spared.is_none();
        self.assign(spared.unwrap_or(even))?;
        self.report_layout(&before);
        self.tune_buckets();
        self.measure_speeds();
        if self.is_divided() {
            self.exchange_slices(&catch_up)?;
            self.finish_unfinished();
            if some_copy_state {
                self.share_progress(&catch_up)?;
            }
        } else if some_copy_state {
            let transfer = start_transfer(&catch_up, &*group, &self.vectors());
            self.transfer = transfer.map_err(TrainError::Heal)?;
        }
        if all_compute {
            self.catch_up()?;
        }
        self.record_resumed(&catch_up.each);
        Ok(())
    }

    /// Returns whether this rank has kept the reduced gradient of a step.
    pub(super) fn holds_gradient(&self, step: Step) -> bool {
        matches!(&self.held, Some((held, _)) if *held == step)
    }

    /// Returns the assignment of shards to the members that have the state, while the remaining ones copy it. `None` if all
    /// wait: when no member copies it, at the end of the run, when the state is divided among the members, and when a round begins in
    /// which any member may serve or average with any other.
    fn spared_shards(&self, catch_up: &CatchUpPlan, even: &StepLayout) -> Option<StepLayout> {
        let waits_for_all = self.plan.config.sync.has_one_report();
        if self.is_complete() || self.is_divided() || waits_for_all {
            return None;
        }
        let shards = even.shards();
        let computing = catch_up.computing()?.min(shards.computing());
        let spared = ShardPlan::with_spares(shards.shards(), self.member.world_size()?, computing)?;
        Some(even.resharded(spared))
    }

    /// Replaces the progress of every member by that of the first one that has the state. Others may have evaluated the last
    /// step already; all members evaluate it again, and those that know it ignore it.
    fn share_progress(&mut self, catch_up: &CatchUpPlan) -> Result<(), TrainError> {
        let mut bytes = self.progress.encode(&self.callbacks).into_bytes();
        let shared = share_bytes(&mut bytes, &*self.member.group, catch_up);
        shared.map_err(TrainError::Heal)?;
        let text = String::from_utf8_lossy(&bytes);
        self.progress = RunProgress::decode(&text, &mut self.callbacks)?;
        Ok(())
    }

    /// Waits until the state of every member is complete. All members call it at the same step.
    pub(super) fn catch_up(&mut self) -> Result<(), TrainError> {
        let span = self.recorder.spans.begin();
        let group = self.member.group.clone();
        self.transfer.send_all(&*group).map_err(TrainError::Heal)?;
        self.heal()?;
        self.transfer.wait_sent().map_err(TrainError::Heal)?;
        let step = self.session.next_step().0;
        self.recorder.spans.end(span, SpanKind::CatchUp, step);
        Ok(())
    }

    /// Loads the transferred state as soon as all of it has been received.
    pub(super) fn heal_if_received(&mut self) -> Result<(), TrainError> {
        if self.transfer.is_received() {
            self.heal()?;
        }
        Ok(())
    }

    /// Loads the transferred state, if this rank receives one, and applies the steps committed meanwhile.
    fn heal(&mut self) -> Result<(), TrainError> {
        // Do not touch the state without need, because layers read it in place.
        if !self.transfer.receives() {
            return Ok(());
        }
        let mut vectors = vectors_mut(&mut *self.strategy, &mut self.copies);
        let received = self.transfer.receive(&mut vectors);
        self.strategy.reload();
        received.map_err(TrainError::Heal)?;
        for (committed, reduced, timing) in self.transfer.take_deferred() {
            let applied = self.apply(&committed, reduced)?;
            self.strategy.reload();
            self.finish_step(&committed, applied, timing);
        }
        let last = self.session.next_step().0.saturating_sub(1);
        let digest = self.digest(Step(last));
        self.member.healed(&mut self.session, digest);
        Ok(())
    }

    /// Assigns shards to all members again after their states are complete. Returns whether the assignment changed.
    pub(super) fn all_compute(&mut self) -> Result<bool, TrainError> {
        let even = self.even_mesh()?;
        if self.mesh.shards().computing() == even.shards().computing() {
            return Ok(false);
        }
        self.assign(even)?;
        Ok(true)
    }

    /// Replaces the assignment of layers and shards to ranks between two steps. All members call it at the same step; their
    /// loaders start anew.
    ///
    /// # Errors
    /// The members of a part of the mesh cannot connect.
    pub(super) fn assign(&mut self, mesh: StepLayout) -> Result<(), TrainError> {
        self.session.reshard(mesh.reports());
        self.regroup(mesh)
    }

    /// Brings the strategy into the group of this generation.
    pub(super) fn regroup(&mut self, mesh: StepLayout) -> Result<(), TrainError> {
        let group = self.member.group.clone();
        let part = mesh.model_part(group.rank());
        self.session.set_digest_of(part.unwrap_or(u32::MAX));
        let regrouped = self.strategy.regroup(group, mesh.clone());
        self.mesh = mesh;
        regrouped.map_err(|source| TrainError::Step {
            step: self.session.next_step(),
            source: Box::new(source),
        })
    }

    /// Returns the layout in which as many members as possible have shards, evenly.
    pub(super) fn even_mesh(&self) -> Result<StepLayout, TrainError> {
        let shards = self.mesh.shards().shards();
        self.parts.layout(shards, self.member.group.size())
    }

    /// Reports how the workers divide the model from now on, if that has changed.
    fn report_layout(&self, before: &StepLayout) {
        let shape = |layout: &StepLayout| {
            let spares = layout.ranks() - layout.members();
            [
                layout.columns(),
                layout.tensors(),
                layout.replicas(),
                spares,
            ]
        };
        let may_divide = self.plan.config.parallel.divides_model();
        if self.member.rank != Rank(0) || !may_divide || shape(before) == shape(&self.mesh) {
            return;
        }
        let layout = self.parts.describe(&self.mesh);
        let message = layout.unwrap_or_else(|| "each worker has the whole model".to_owned());
        let rank = None;
        self.member.tracker.record(Event::Notice { rank, message });
    }

    fn record_resumed(&mut self, catch_up: &[CatchUp]) {
        if self.member.rank != Rank(0) {
            return;
        }
        self.report_history();
        let count = |course| catch_up.iter().filter(|each| **each == course).count() as u32;
        self.member.tracker.record(Event::Resumed {
            generation: self.member.generation,
            world_size: catch_up.len() as u32,
            step: self.session.next_step(),
            applied: count(CatchUp::ApplyGradient),
            healed: count(CatchUp::CopyState),
        });
    }
}

/// Starts the copies of whole vectors to the members that copy the state.
fn start_transfer(
    catch_up: &CatchUpPlan,
    group: &dyn Group,
    vectors: &[HeldVector<'_>],
) -> Result<StateTransfer, CollectiveError> {
    let lens: Vec<usize> = vectors.iter().map(|vector| vector.values.len()).collect();
    let moves = state_transfer::whole_moves(catch_up, &lens);
    StateTransfer::start(&moves, group, vectors)
}
