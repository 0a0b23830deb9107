//! [`Place`]: a worker's place in a run, through all generations; for ronde's own loop and for a user's.
//!
//! ```text
//! loop {
//!     begin_step -> backward, reduce -> commit -> apply       one step
//!     a peer is lost -> move_on -> rejoin -> apply or heal    then the loop goes on
//! } -> farewell
//! ```

use std::net::TcpListener;
use std::sync::Arc;

use ronde_core::session::{
    CatchUp, CatchUpPlan, CommittedStep, OpenStep, RejoinOutcome, Session, SessionError,
};
use ronde_core::shards::ShardPlan;
use ronde_core::{
    Assignment, CollectiveError, Generation, Group, Membership, Milestone, Rank, Tracker, WorldSize,
};

use crate::TrainError;
use crate::healing::Healing;
use crate::seat::{Connect, Seat};

/// A worker's place in the run: its group, and where events go.
pub struct Place {
    /// The connected ranks.
    pub group: Arc<dyn Group>,
    /// Version of the membership.
    pub generation: Generation,
    /// This worker.
    pub rank: Rank,
    /// Where events go.
    pub tracker: Arc<dyn Tracker>,
    /// How this worker gets into the next generation; `None`: a lost peer ends the training.
    pub seat: Option<Seat>,
}

impl Place {
    /// Takes the place of an assignment, or, when that generation is over before it has begun, one in
    /// a later one. With a `membership` the worker can go through more generations.
    ///
    /// # Errors
    /// The peers cannot be reached, or hold another plan.
    pub fn take(
        assignment: &Assignment,
        listener: TcpListener,
        membership: Option<Arc<dyn Membership>>,
        connect: Box<Connect>,
        tracker: Arc<dyn Tracker>,
    ) -> Result<Self, TrainError> {
        let seat = Seat::new(membership, listener, connect);
        let (assignment, group) = seat.first(assignment)?;
        Ok(Self {
            group,
            generation: assignment.generation,
            rank: assignment.rank,
            tracker,
            seat: seat.is_kept().then_some(seat),
        })
    }

    /// Whether there can be another generation after a failure.
    #[must_use]
    pub fn can_move_on(&self) -> bool {
        self.seat.is_some()
    }

    /// Leaves the generation that has ended, for a cause, and goes into a later one. All members call
    /// [`Place::rejoin`] next.
    ///
    /// # Errors
    /// There is no later one for this worker.
    pub fn move_on(&mut self, cause: &str) -> Result<(), TrainError> {
        let Some(seat) = &self.seat else {
            return Err(TrainError::NoSeat {
                cause: cause.to_owned(),
            });
        };
        let (assignment, group) = seat.next(self.generation, cause)?;
        self.group = group;
        self.generation = assignment.generation;
        self.rank = assignment.rank;
        Ok(())
    }

    /// Brings a session into this generation, together with all other members; see
    /// [`Session::rejoin`]. `holds_gradient`: whether the reduced gradient of the session's next step
    /// was kept.
    ///
    /// # Errors
    /// A peer was lost again, or nobody has the state.
    pub fn rejoin(
        &self,
        session: &mut Session,
        shards: ShardPlan,
        holds_gradient: bool,
    ) -> Result<RejoinOutcome, SessionError> {
        let group = self.group.clone();
        let rejoined = session.rejoin(group, self.generation, shards, holds_gradient)?;
        let catch_up = &rejoined.plan;
        self.reached(Milestone::Synchronized {
            next: catch_up.next,
            is_complete: catch_up.each[self.group.rank().index()] != CatchUp::CopyState,
        });
        Ok(rejoined)
    }

    /// Takes the state over from the members that have it, or hands it over, and waits for that. The
    /// runs are all that a member needs beside its session, of the same lengths on all ranks. True
    /// when this worker has taken it over; it then calls [`Place::healed`].
    ///
    /// # Errors
    /// A peer was lost.
    pub fn heal(
        &self,
        catch_up: &CatchUpPlan,
        state: &mut [&mut [f32]],
    ) -> Result<bool, CollectiveError> {
        let runs: Vec<&[f32]> = state.iter().map(|run| &**run).collect();
        let mut healing = Healing::start(catch_up, &*self.group, &runs)?;
        healing.send_all(&*self.group)?;
        let has_healed = healing.receive(state)?;
        healing.sent()?;
        Ok(has_healed)
    }

    /// This worker has the whole state now; `digest` as for [`Session::set_digest`].
    pub fn healed(&self, session: &mut Session, digest: u64) {
        session.healed(digest);
        self.reached(Milestone::Healed);
    }

    /// Votes on a step whose complete gradient this worker holds; see [`Session::commit`]. When a
    /// newer generation has begun, all members hear of it in the same vote: see
    /// [`Place::is_left_after`].
    ///
    /// # Errors
    /// As [`Session::commit`]. When the vote itself failed, others may have heard all votes: keep the
    /// gradient for [`Place::rejoin`].
    pub fn commit(
        &self,
        session: &mut Session,
        open: OpenStep,
    ) -> Result<CommittedStep, SessionError> {
        let step = open.step();
        self.reached(Milestone::Reduced(step));
        if let Some(newest) = self.seat.as_ref().and_then(Seat::pending) {
            session.announce(newest);
        }
        let committed = session.commit(open)?;
        self.reached(Milestone::Voted {
            step,
            newest: committed.newest,
        });
        Ok(committed)
    }

    /// Whether all members leave this generation after a step, once they have applied it.
    #[must_use]
    pub fn is_left_after(&self, committed: &CommittedStep) -> bool {
        committed.newest > self.generation
    }

    /// All members have come to the end of the run. False when this worker is needed once more, in a
    /// later generation, by a member that did not hear of the end.
    #[must_use]
    pub fn farewell(&self) -> bool {
        self.seat.as_ref().is_none_or(Seat::farewell)
    }

    /// The members of the group.
    #[must_use]
    pub fn world_size(&self) -> Option<WorldSize> {
        WorldSize::new(self.group.size() as u32)
    }

    fn reached(&self, milestone: Milestone) {
        if let Some(seat) = &self.seat {
            seat.reached(milestone);
        }
    }
}
