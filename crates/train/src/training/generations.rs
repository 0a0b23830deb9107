//! Moves a [`Training`] from one generation to the next.
//!
//! ```text
//! a peer is lost, or a vote announces a newer generation
//!   -> join the next generation -> exchange state reports -> apply or copy missed steps -> next step
//! ```

use ronde_core::shards::ShardPlan;
use ronde_core::spans::SpanKind;
use ronde_core::step_layout::StepLayout;
use ronde_core::{CollectiveError, CollectivesExt, Event, Group, Rank, Step};
use ronde_parallel::HeldVector;
use ronde_protocol::transaction::{CatchUp, CatchUpPlan, CommittedStep};
use ronde_protocol::{MembershipError, Rejoin, RejoinAnswer, RejoinAsk};

use super::entry_facts::EntryFacts;
use super::pending::{Pending, UnrecordedStep};
use super::{StateMovement, Training, vectors_mut};
use crate::config::RoundSamples;
use crate::error::TrainError;
use crate::event_history::share_bytes;
use crate::state_transfer::{self, StateTransfer};
use crate::step_timing::StepTiming;

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

    /// Brings all members of a new generation to the same step, in the order of [`Rejoin`]. Workers that join a running job also
    /// call it before their first step.
    pub(super) fn synchronize(&mut self) -> Result<(), TrainError> {
        let before = self.assignment.layout().clone();
        self.align_clocks()?;
        self.movement = StateMovement::default();
        self.state_copies.interrupt();
        self.share_initial_weights()?;
        if self.initial.rest.is_none() {
            self.record_start();
            self.keep_beginning();
        }
        let (rank, elements) = (
            self.member.group.rank().index(),
            self.policy.state().elements(),
        );
        let entry = EntryFacts {
            before: Some(before),
            ..EntryFacts::default()
        };
        let entered = self.enter(Rejoin::new(rank, elements, self.is_divided()), entry)?;
        if self.is_divided() {
            self.finish_unfinished();
            self.share_progress(&entered.plan)?;
        }
        if entered.all_compute {
            self.catch_up()?;
        }
        self.record_resumed(&entered.plan.each);
        Ok(())
    }

    /// Executes the actions of [`Rejoin`] until the members continue.
    pub(super) fn enter(
        &mut self,
        mut rejoin: Rejoin,
        mut entry: EntryFacts,
    ) -> Result<EntryFacts, TrainError> {
        let mut answer = RejoinAnswer::Done;
        loop {
            let ask = rejoin.next(self.session.log_mut(), &mut self.slices, answer)?;
            entry.plan.clone_from(rejoin.plan());
            answer = match ask {
                RejoinAsk::Continue => return Ok(entry),
                ask => self.answer(ask, &mut entry)?,
            };
        }
    }

    /// Does one thing on the way into a generation.
    fn answer(
        &mut self,
        ask: RejoinAsk,
        entry: &mut EntryFacts,
    ) -> Result<RejoinAnswer, TrainError> {
        match ask {
            RejoinAsk::ExchangeStates => {
                entry.members = self.gather_words(&self.member_state().encode())?;
                return Ok(RejoinAnswer::Words(entry.members.clone()));
            }
            RejoinAsk::WaitForState => self.wait_for_state(&entry.members()?)?,
            RejoinAsk::GiveUpState => self.session.give_up_state(),
            RejoinAsk::Load(source) => {
                entry.has_loaded = self.load_state(source, &entry.members()?)?;
            }
            RejoinAsk::ExchangeReports => {
                self.enter_checkpoints(&entry.members()?, entry.has_loaded);
                let report = self.enter_session()?;
                return Ok(RejoinAnswer::Bytes(self.session.exchange(&report)?));
            }
            RejoinAsk::ExchangeSnapshot(bytes) => {
                return Ok(RejoinAnswer::Bytes(self.session.exchange(&bytes)?));
            }
            RejoinAsk::Report { next, is_complete } => self.member.synchronized(next, is_complete),
            RejoinAsk::Apply(committed) => self.apply_missed(committed)?,
            RejoinAsk::Assign => {
                entry.all_compute = self.assign_shards(&entry.plan)?;
                let may_divide = self.plan.config.parallel.divides_model();
                if let Some(before) = entry.before.as_ref().filter(|_| may_divide) {
                    self.assignment.report_change(before, &self.member);
                }
                self.tune_buckets();
                self.measure_speeds();
            }
            RejoinAsk::Copy => self.begin_copies(&entry.plan)?,
            RejoinAsk::ExchangeSlices(words) => {
                if entry.copies(self.member.group.rank()) {
                    // The outcome of a step before the copied state.
                    self.pending = Pending::Nothing;
                    self.gathered = None;
                }
                return Ok(RejoinAnswer::Words(self.gather_words(&words)?));
            }
            RejoinAsk::ChooseLayout(reports) => {
                let layout = self.next_layout(&entry.plan, &reports);
                return Ok(RejoinAnswer::Layout(layout));
            }
            RejoinAsk::Move(moves) => entry.gathered = self.move_slices(&entry.plan, &moves)?,
            RejoinAsk::Healed => self.slices_received(entry.last()),
            RejoinAsk::GatherWeights => self.gather_missing(&entry.plan, entry.gathered)?,
            RejoinAsk::Confirm => {
                let group = &self.member.group;
                group.barrier().map_err(TrainError::Heal)?;
            }
            RejoinAsk::Keep(elements) => self.keep_slices(elements),
            // The caller continues.
            RejoinAsk::Continue => {}
        }
        Ok(RejoinAnswer::Done)
    }

    /// Brings the session into this generation. Returns this rank's report of its log.
    fn enter_session(&mut self) -> Result<Vec<u8>, TrainError> {
        let holds = self.pending.holds_gradient(self.session.next_step());
        let even = self.even_mesh()?;
        let (group, generation) = (self.member.group.clone(), self.member.generation);
        self.session.enter(group, generation, even.reports());
        Ok(self.session.transaction().report(holds))
    }

    /// Applies a step whose outcome this rank missed, with the gradient that it has kept.
    fn apply_missed(&mut self, committed: CommittedStep) -> Result<(), TrainError> {
        if let Some(reduced) = self.pending.take_gradient() {
            let applied = self.apply(&committed, reduced)?;
            self.pending = Pending::Unrecorded(Box::new(UnrecordedStep {
                committed,
                applied,
                timing: StepTiming::default(),
            }));
        }
        Ok(())
    }

    /// Assigns the shards to the members that have the state. Returns whether all have it, or all wait for those that copy it.
    fn assign_shards(&mut self, catch_up: &CatchUpPlan) -> Result<bool, TrainError> {
        drop(self.pending.take_gradient());
        let is_divided = self.is_divided();
        if !is_divided {
            self.finish_unfinished();
        }
        if catch_up.each.contains(&CatchUp::CopyState) {
            let shared = self.reports.share(&*self.member.group, catch_up);
            shared.map_err(TrainError::Heal)?;
        }
        if !is_divided {
            self.share_progress(catch_up)?;
        }
        let even = self.even_mesh()?;
        let spared = self.spared_shards(catch_up, &even);
        let all_compute = spared.is_none();
        self.assign(spared.unwrap_or(even))?;
        Ok(all_compute)
    }

    /// Starts the copies of whole vectors to the members that copy the state.
    fn begin_copies(&mut self, catch_up: &CatchUpPlan) -> Result<(), TrainError> {
        if catch_up.each.contains(&CatchUp::CopyState) {
            let transfer = start_transfer(catch_up, &*self.member.group, &self.vectors());
            self.movement.transfer = transfer.map_err(TrainError::Heal)?;
        }
        Ok(())
    }

    /// Returns the assignment of shards to the members that have the state, while the remaining ones copy it. `None` if all
    /// wait: when no member copies it, at the end of the run, when the state is divided among the members, and when a round begins in
    /// which any member may serve or average with any other.
    fn spared_shards(&self, catch_up: &CatchUpPlan, even: &StepLayout) -> Option<StepLayout> {
        let waits_for_all = self.plan.samples != RoundSamples::OfShards;
        if self.is_complete() || self.is_divided() || waits_for_all {
            return None;
        }
        let shards = even.shards();
        let computing = catch_up.computing()?.min(shards.computing());
        let spared = ShardPlan::with_spares(shards.shards(), self.member.world_size()?, computing)?;
        Some(even.resharded(spared))
    }

    /// Replaces the progress of every member by that of the first one that has the state, if some copy it. Others may have
    /// evaluated the last step already; all members evaluate it again, and those that know it ignore it.
    fn share_progress(&mut self, catch_up: &CatchUpPlan) -> Result<(), TrainError> {
        if !catch_up.each.contains(&CatchUp::CopyState) {
            return Ok(());
        }
        let mut bytes = self.decisions.encode().into_bytes();
        let shared = share_bytes(&mut bytes, &*self.member.group, catch_up);
        shared.map_err(TrainError::Heal)?;
        let text = String::from_utf8_lossy(&bytes);
        self.decisions.restore(&text)
    }

    /// Waits until the state of every member is complete. All members call it at the same step.
    pub(super) fn catch_up(&mut self) -> Result<(), TrainError> {
        let span = self.reports.begin_span();
        let group = self.member.group.clone();
        self.movement
            .transfer
            .send_all(&*group)
            .map_err(TrainError::Heal)?;
        self.heal()?;
        self.movement
            .transfer
            .wait_sent()
            .map_err(TrainError::Heal)?;
        let step = self.session.next_step();
        self.reports.end_span(span, SpanKind::CatchUp, step);
        Ok(())
    }

    /// Loads the transferred state as soon as all of it has been received.
    pub(super) fn heal_if_received(&mut self) -> Result<(), TrainError> {
        if self.movement.transfer.is_received() {
            self.heal()?;
        }
        Ok(())
    }

    /// Loads the transferred state, if this rank receives one, and applies the steps committed meanwhile.
    fn heal(&mut self) -> Result<(), TrainError> {
        // Do not touch the state without need, because layers read it in place.
        if !self.movement.transfer.receives() {
            return Ok(());
        }
        let mut edit = self.policy.edit();
        let mut vectors = vectors_mut(&mut edit, &mut self.copies);
        let received = self.movement.transfer.receive(&mut vectors);
        drop(vectors);
        edit.reload();
        received.map_err(TrainError::Heal)?;
        for (committed, reduced, timing) in self.movement.transfer.take_deferred() {
            let applied = self.apply(&committed, reduced)?;
            self.policy.edit().reload();
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
        if self.assignment.layout().shards().computing() == even.shards().computing() {
            return Ok(false);
        }
        self.assign(even)?;
        Ok(true)
    }

    /// Replaces the assignment of layers and shards to ranks between two steps. All members call it at the same step; their
    /// loaders start again.
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
        let regrouped = self.policy.method().enter(group, mesh.clone());
        self.assignment.replace(mesh);
        regrouped.map_err(|source| TrainError::of_step(self.session.next_step(), source))
    }

    /// Returns the layout in which as many members as possible have shards, evenly.
    pub(super) fn even_mesh(&self) -> Result<StepLayout, TrainError> {
        self.assignment.even_layout(self.member.group.size())
    }

    fn record_resumed(&mut self, catch_up: &[CatchUp]) {
        if self.member.rank != Rank(0) {
            return;
        }
        self.reports.report(&self.member);
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
