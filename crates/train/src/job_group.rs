//! [`JobGroup`]: the connected workers of a job over all generations, for ronde's training loop and users' loops.
//!
//! ```text
//! loop {
//!     begin_step -> backward, reduce -> commit -> apply       one step
//!     a peer is lost -> join_next -> rejoin -> apply or heal  then the loop continues
//! } -> finish
//! ```

use std::sync::Arc;

use ronde_core::shards::ShardPlan;
use ronde_core::{
    CollectiveError, CollectivesExt, Generation, Group, Rank, Step, Tracker, WorldSize,
};
use ronde_parallel::HeldVectorMut;
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::{
    CatchUpPlan, CommittedStep, OpenStep, SliceExchange, TransactionError, VoteRequests,
};
use ronde_protocol::{
    Assignment, GenerationPurpose, LoneMember, MembershipPolicy, Milestone, Rejoin, RejoinAnswer,
    RejoinAsk,
};

use crate::connector::GenerationConnector;
use crate::error::TrainError;
use crate::session::Session;
use crate::state_transfer;

/// The group of a worker's current generation, and the way to later ones.
pub struct JobGroup {
    /// The group of connected ranks.
    pub group: Arc<dyn Group>,
    /// The version of the membership.
    pub generation: Generation,
    /// The rank of this worker.
    pub rank: Rank,
    /// Whether a later generation may follow; with fixed members the loss of a peer ends the training.
    pub policy: MembershipPolicy,
    /// The activity of this generation's members.
    pub purpose: GenerationPurpose,
    /// The number of silent workers that may have parts of the state.
    pub awaited: u32,
    /// The tracker of this worker's events.
    pub tracker: Arc<dyn Tracker>,
    connector: GenerationConnector,
}

impl JobGroup {
    /// Joins the generation of an assignment, or a later one if that generation ends before it has begun.
    ///
    /// # Errors
    /// The peers are unreachable or have another plan.
    pub fn join(
        assignment: &Assignment,
        connector: GenerationConnector,
        tracker: Arc<dyn Tracker>,
    ) -> Result<Self, TrainError> {
        let (assignment, group) = connector.first(assignment)?;
        Ok(Self {
            group,
            generation: assignment.generation,
            rank: assignment.rank,
            policy: assignment.policy,
            purpose: assignment.purpose,
            awaited: assignment.awaited,
            tracker,
            connector,
        })
    }

    /// Returns the only generation of a job whose ranks are connected already.
    #[must_use]
    pub fn of(group: Arc<dyn Group>, tracker: Arc<dyn Tracker>) -> Self {
        // A lone member never enters another generation.
        let connect = |_: &Assignment, _, _| {
            let cause = "its ranks were connected once".to_owned();
            Err(TrainError::NoNextGeneration { cause })
        };
        Self {
            rank: Rank(group.rank().0),
            group,
            generation: Generation::FIRST,
            policy: MembershipPolicy::Fixed,
            purpose: GenerationPurpose::Train,
            awaited: 0,
            tracker,
            connector: GenerationConnector::new(Arc::new(LoneMember), None, Box::new(connect)),
        }
    }

    /// Returns whether this worker can join another generation after a failure.
    #[must_use]
    pub fn can_rejoin(&self) -> bool {
        self.policy == MembershipPolicy::Elastic
    }

    /// Leaves the generation that has ended because of `cause`, and joins a later one. All members call
    /// [`JobGroup::rejoin`] next.
    ///
    /// # Errors
    /// No later generation has this worker.
    pub fn join_next(&mut self, cause: &str) -> Result<(), TrainError> {
        let (assignment, group) = self.connector.next(self.generation, cause)?;
        self.group = group;
        self.generation = assignment.generation;
        self.rank = assignment.rank;
        (self.purpose, self.awaited) = (assignment.purpose, assignment.awaited);
        Ok(())
    }

    /// Begins to bring a session into this generation; all members call it together. `holds_gradient` is true if this worker has
    /// stored the reduced gradient of the session's next step. Apply [`GenerationEntry::committed`] first, then call
    /// [`JobGroup::heal`].
    ///
    /// # Errors
    /// Another peer was lost, or no member has the state.
    pub fn rejoin(
        &self,
        session: &mut Session,
        shards: ShardPlan,
        holds_gradient: bool,
    ) -> Result<GenerationEntry, TrainError> {
        session.enter(self.group.clone(), self.generation, shards);
        let mut entry = GenerationEntry {
            rejoin: Rejoin::of_logs(self.group.rank().index()),
            slices: SliceExchange::new(HeldRanges::default()),
            committed: None,
        };
        let mut answer = RejoinAnswer::Done;
        loop {
            let ask = entry.next(session, answer)?;
            answer = match ask {
                RejoinAsk::ExchangeReports => {
                    let report = session.transaction().report(holds_gradient);
                    RejoinAnswer::Bytes(session.exchange(&report)?)
                }
                RejoinAsk::ExchangeSnapshot(bytes) => {
                    RejoinAnswer::Bytes(session.exchange(&bytes)?)
                }
                RejoinAsk::Report { next, is_complete } => {
                    self.synchronized(next, is_complete);
                    RejoinAnswer::Done
                }
                RejoinAsk::Apply(committed) => {
                    entry.committed = Some(committed);
                    return Ok(entry);
                }
                // The shards were assigned before.
                _ => return Ok(entry),
            };
        }
    }

    /// Copies the state from the members that have it to those that need it, and waits for the end. `state` is
    /// everything a member needs besides its session, with the same lengths on all ranks. Returns true if this
    /// worker has received the state; it then calls [`JobGroup::healed`].
    ///
    /// # Errors
    /// A peer was lost.
    pub fn heal(
        &self,
        session: &mut Session,
        mut entry: GenerationEntry,
        state: &mut [&mut [f32]],
    ) -> Result<bool, TrainError> {
        let mut has_healed = false;
        loop {
            match entry.next(session, RejoinAnswer::Done)? {
                RejoinAsk::Report { next, is_complete } => self.synchronized(next, is_complete),
                RejoinAsk::Copy => {
                    let copied = self.copy_state(entry.rejoin.plan(), state);
                    has_healed = copied.map_err(TrainError::Heal)?;
                }
                RejoinAsk::Continue => return Ok(has_healed),
                _ => {}
            }
        }
    }

    /// Copies whole vectors. Returns whether this worker has received them.
    fn copy_state(
        &self,
        catch_up: &CatchUpPlan,
        state: &mut [&mut [f32]],
    ) -> Result<bool, CollectiveError> {
        let lens: Vec<usize> = state.iter().map(|values| values.len()).collect();
        let moves = state_transfer::whole_moves(catch_up, &lens);
        let vectors = state.iter_mut().map(|values| HeldVectorMut::whole(values));
        let mut vectors: Vec<HeldVectorMut<'_>> = vectors.collect();
        state_transfer::exchange(&moves, &*self.group, &mut vectors)?;
        let me = self.group.rank().index();
        Ok(moves.iter().flatten().any(|each| each.to == me))
    }

    /// Reports that all members have agreed on the next step.
    pub(crate) fn synchronized(&self, next: Step, is_complete: bool) {
        self.reached(Milestone::Synchronized { next, is_complete });
    }

    /// Declares that this worker now has the whole state; `digest` as for [`Session::set_digest`].
    pub fn healed(&self, session: &mut Session, digest: u64) {
        session.healed(digest);
        self.reached(Milestone::Healed);
    }

    /// Votes on a step whose complete gradient this worker holds; see [`Session::commit`]. If a newer generation
    /// has begun, all members learn of it in the same vote; see [`JobGroup::ends_after`].
    ///
    /// # Errors
    /// As [`Session::commit`]. If the vote itself failed, other members may have received all votes, so keep
    /// the gradient for [`JobGroup::rejoin`].
    pub fn commit(
        &self,
        session: &mut Session,
        open: OpenStep,
    ) -> Result<CommittedStep, TransactionError> {
        let step = open.step();
        self.reached(Milestone::Reduced(step));
        if let Some(newest) = self.connector.member().pending() {
            session.announce(newest);
            session.request(VoteRequests {
                leaves: self.connector.member().drops_members(),
                ..VoteRequests::default()
            });
        }
        let committed = session.commit(open)?;
        self.reached(Milestone::Voted {
            step,
            newest: committed.newest,
        });
        Ok(committed)
    }

    /// Returns whether this generation ends for all members after they have applied a step.
    #[must_use]
    pub fn ends_after(&self, committed: &CommittedStep) -> bool {
        committed.newest > self.generation
    }

    /// Ends the membership after all members have reached the end of the run, for example by a barrier. Returns false if a
    /// member has not received the last outcome and needs this worker in a later generation. Waits until no member needs
    /// the connections of this one.
    #[must_use]
    pub fn finish(&self) -> bool {
        if self.policy == MembershipPolicy::Fixed {
            self.part();
        }
        self.connector.member().farewell()
    }

    /// Waits until all members know the outcome of the operations before, so that none closes its connections while
    /// another one still waits for it. Members of an elastic job learn that from the coordinator.
    ///
    /// The outcome of this last barrier does not matter: a member that fails in it has learned that all have entered it, or
    /// has lost one that has left it, and both mean that the operations before have succeeded on all members.
    pub(crate) fn part(&self) {
        let _parted = self.group.barrier();
    }

    /// Returns whether the job stops after this generation.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.connector.member().is_stopping()
    }

    /// Returns the number of members of the group.
    #[must_use]
    pub fn world_size(&self) -> Option<WorldSize> {
        WorldSize::new(self.group.size() as u32)
    }

    /// Reports that the members lack parts of the state, before all of them leave the group to wait for silent workers.
    pub(crate) fn lacks_state(&self) {
        self.reached(Milestone::LacksState);
    }

    /// Reports that this worker cannot save the last checkpoint that the coordinator has requested for a generation.
    pub(crate) fn not_saved(&self, generation: Generation) {
        self.reached(Milestone::NotSaved(generation));
    }

    fn reached(&self, milestone: Milestone) {
        self.connector.member().reached(milestone);
    }
}

/// A worker on its way into a generation, between [`JobGroup::rejoin`] and [`JobGroup::heal`].
#[derive(Debug)]
pub struct GenerationEntry {
    rejoin: Rejoin,
    slices: SliceExchange,
    /// The step that became final, if this worker has kept its gradient: apply it before anything else.
    pub committed: Option<CommittedStep>,
}

impl GenerationEntry {
    fn next(
        &mut self,
        session: &mut Session,
        answer: RejoinAnswer,
    ) -> Result<RejoinAsk, TrainError> {
        Ok((self.rejoin).next(session.log_mut(), &mut self.slices, answer)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use ronde_comm::testing::spawn_ranks;
    use ronde_core::{Collectives, GroupRank, NullTracker};

    use super::*;

    #[test]
    fn no_member_leaves_before_all_have_what_they_need() {
        const RANKS: usize = 3;
        let (entered, ready) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let counts = Arc::new((entered, ready));
        let over = spawn_ranks(RANKS, Duration::from_secs(60), move |group| {
            let (entered, ready) = &*counts;
            let is_last = group.rank() == GroupRank(1);
            let member = JobGroup::of(Arc::new(group), Arc::new(NullTracker));
            member.group.barrier()?;
            while is_last && ready.load(Ordering::SeqCst) < RANKS - 1 {
                std::thread::yield_now();
            }
            // The others wait for this member, or have left by now.
            for _ in 0..if is_last { 1_000 } else { 0 } {
                std::thread::yield_now();
            }
            entered.fetch_add(1, Ordering::SeqCst);
            ready.fetch_add(1, Ordering::SeqCst);
            let is_over = member.finish();
            assert_eq!(entered.load(Ordering::SeqCst), RANKS);
            Ok::<_, CollectiveError>(is_over)
        });
        assert_eq!(over, [true; RANKS]);
    }
}
