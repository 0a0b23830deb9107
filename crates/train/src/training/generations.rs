//! How a [`Training`] gets from one generation into the next.
//!
//! ```text
//! a peer is lost, or a vote told of a newer generation
//!   -> next place -> where does everybody stand -> apply or fetch what this rank missed -> next step
//! ```

use ronde_core::event::PhaseTimes;
use ronde_core::session::{CatchUp, RejoinOutcome};
use ronde_core::shards::ShardPlan;
use ronde_core::{Event, MembershipError, Rank, Step};
use ronde_parallel::Strategy;

use super::Training;
use crate::TrainError;
use crate::healing::Healing;

impl Training {
    /// Leaves the generation that has ended, and goes into a later one.
    pub(super) fn move_on(&mut self, cause: &str) -> Result<(), TrainError> {
        loop {
            match self.place.move_on(cause) {
                Err(TrainError::Membership(MembershipError::CheckpointRequested { generation })) => {
                    self.save_alone(generation)?;
                }
                other => break other?,
            }
        }
        self.level_out()
    }

    /// Brings all members of a new generation to the same step. Called by workers that come new into
    /// a running job as well, before their first step.
    pub(super) fn level_out(&mut self) -> Result<(), TrainError> {
        let group = self.place.group.clone();
        self.healing = Healing::default();
        self.find_state()?;
        let next = self.session.next_step();
        let holds = matches!(&self.held, Some((step, _)) if *step == next);
        let even = self.even_shards()?;
        let RejoinOutcome {
            plan: catch_up,
            committed,
        } = self.place.rejoin(&mut self.session, even, holds)?;
        let held = self.held.take();
        if let (Some(committed), Some((_, reduced))) = (committed, held) {
            self.apply(&committed, reduced, PhaseTimes::default())?;
        }
        let heals = catch_up.each.contains(&CatchUp::CopyState);
        if heals {
            let shared = self.history.share(&*group, &catch_up);
            shared.map_err(TrainError::Heal)?;
        }
        // Who heals does so while the others compute the next steps, if there are any.
        let is_at_end = self.session.next_step().0 >= self.plan.steps;
        let spared = catch_up
            .computing()
            .filter(|_| !is_at_end)
            .map(|computing| computing.min(even.computing()))
            .and_then(|computing| {
                ShardPlan::with_spares(even.shards(), self.place.world_size()?, computing)
            });
        self.plan.shards = spared.unwrap_or(even);
        self.session.reshard(self.plan.shards);
        self.strategy.regroup(group.clone(), self.plan.shards);
        self.tune_buckets();
        if heals {
            let healing = Healing::start(&catch_up, &*group, &self.strategy.replica());
            self.healing = healing.map_err(TrainError::Heal)?;
        }
        if spared.is_none() {
            self.catch_up()?;
        }
        self.record_resumed(&catch_up.each);
        Ok(())
    }

    /// All wait until the state of every member is complete. All members call it at the same step.
    pub(super) fn catch_up(&mut self) -> Result<(), TrainError> {
        let group = self.place.group.clone();
        self.healing.send_all(&*group).map_err(TrainError::Heal)?;
        self.heal()?;
        self.healing.sent().map_err(TrainError::Heal)
    }

    /// Takes over the state that the others send when all of it has come.
    pub(super) fn heal_if_come(&mut self) -> Result<(), TrainError> {
        if self.healing.has_come() {
            self.heal()?;
        }
        Ok(())
    }

    /// Takes over the state that the others send, if this rank has to, and applies what was committed
    /// meanwhile.
    fn heal(&mut self) -> Result<(), TrainError> {
        // The state is not touched without need: layers read it where it lies.
        if !self.healing.receives() {
            return Ok(());
        }
        let got = self.healing.receive(&mut self.strategy.replica_mut());
        got.map_err(TrainError::Heal)?;
        self.strategy.reload();
        for (committed, reduced, times) in self.healing.missed() {
            self.apply(&committed, reduced, times)?;
        }
        let last = self.session.next_step().0.saturating_sub(1);
        let digest = self.digest(Step(last));
        self.place.healed(&mut self.session, digest);
        Ok(())
    }

    /// After the step in which all were whole again: all compute. True when that changes the shards.
    pub(super) fn all_compute(&mut self) -> Result<bool, TrainError> {
        let even = self.even_shards()?;
        if self.plan.shards == even {
            return Ok(false);
        }
        self.plan.shards = even;
        self.session.reshard(even);
        self.strategy.regroup(self.place.group.clone(), even);
        Ok(true)
    }

    /// The shards dealt to as many ranks as can have one.
    fn even_shards(&self) -> Result<ShardPlan, TrainError> {
        let shards = self.plan.shards.shards();
        self.place
            .world_size()
            .and_then(|world_size| {
                ShardPlan::with_spares(shards, world_size, shards.min(world_size.get()))
            })
            .ok_or_else(|| TrainError::Impossible {
                problem: "a group without members".to_owned(),
                hint: "this is a bug of ronde; please report it".to_owned(),
            })
    }

    fn record_resumed(&mut self, catch_up: &[CatchUp]) {
        if self.place.rank != Rank(0) {
            return;
        }
        self.tell_history();
        let count = |course| catch_up.iter().filter(|each| **each == course).count() as u32;
        self.place.tracker.record(Event::Resumed {
            generation: self.place.generation,
            world_size: catch_up.len() as u32,
            step: self.session.next_step(),
            applied: count(CatchUp::ApplyGradient),
            healed: count(CatchUp::CopyState),
        });
    }
}
