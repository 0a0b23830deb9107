//! [`WorkerMachine`]: a worker's generation and its decisions to train, leave and end.
//!
//! ```text
//!            Assign with a rank                CaughtUp                  next == end
//!   Idle ------------------------> Forming ------------> Training --------------------> Complete
//!    ^                               |                      |                              |
//!    +------ Failed, Abort, Fence, or a newer Assign -------+------------------------------+
//! ```
//!
//! The commit point is [`WorkerEvent::Voted`]: all members of the generation, including the worker,
//! have voted that they hold the complete gradient of the step. No coordinator takes part. A worker
//! leaves a group without failures only at such a point, and all members see the same votes, so all
//! leave after the same step.

use ronde_core::{Generation, Rank, Step};

use crate::error::ElasticError;
use crate::membership::{GenerationAssignment, MemberInfo, SwitchTiming, Term};
use crate::message::{GroupFailure, ToWorker, WorkerPhase, WorkerReport};
use crate::reason::Reason;
use crate::settings::Settings;
use crate::time::Time;

mod events;

pub use events::{WorkerCommand, WorkerEvent};

/// The state machine of one worker process.
#[derive(Debug, Clone)]
pub struct WorkerMachine {
    me: MemberInfo,
    settings: Settings,
    /// The step at which training is complete.
    end: Step,
    term: Term,
    sequence: u64,
    phase: WorkerPhase,
    /// The generation that it has entered, or left its group for.
    generation: Option<Generation>,
    /// The generation whose group it belongs to; `None` while it is idle.
    assignment: Option<GenerationAssignment>,
    /// A newer generation, which the worker enters after the next vote.
    pending: Option<GenerationAssignment>,
    /// The next step to compute.
    next: Option<Step>,
    is_whole: bool,
    holds_gradient: bool,
    /// The newest generation in which this worker has voted on a step.
    voted_in: Option<Generation>,
    /// The newest generation whose members lacked parts of the state.
    lacked_in: Option<Generation>,
    /// The newest generation in which this worker could not save the state.
    unsaved_in: Option<Generation>,
    draining: bool,
    /// Whether an assignment had no members, because the whole job stops.
    job_stops: bool,
    trouble: Option<GroupFailure>,
    /// When the last report that a coordinator answered was sent.
    contact: Time,
    next_report: Time,
    is_over: bool,
}

impl WorkerMachine {
    /// Returns a worker without a state and without a rank. `end` is the number of steps in the
    /// run.
    ///
    /// # Errors
    /// Returns [`ElasticError::Settings`] for invalid settings.
    pub fn new(
        me: MemberInfo,
        settings: Settings,
        end: Step,
        now: Time,
    ) -> Result<Self, ElasticError> {
        Ok(Self {
            me,
            settings: settings.checked()?,
            end,
            term: Term(0),
            sequence: 0,
            phase: WorkerPhase::Idle,
            generation: None,
            assignment: None,
            pending: None,
            next: None,
            is_whole: false,
            holds_gradient: false,
            voted_in: None,
            lacked_in: None,
            unsaved_in: None,
            draining: false,
            job_stops: false,
            trouble: None,
            contact: now,
            next_report: now,
            is_over: false,
        })
    }

    /// Returns the generation that this worker has entered, or left its group for.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// Returns the newest generation known to this worker with it as a member.
    #[must_use]
    pub fn newest(&self) -> Option<Generation> {
        let pending = self.pending.as_ref().map(|next| next.generation);
        pending.max(self.generation)
    }

    /// Returns whether the newest generation has no members, because the job stops.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|next| next.members.is_empty())
    }

    /// Returns whether the newest generation lacks a member of the current one, but not all of them.
    #[must_use]
    pub fn drops_members(&self) -> bool {
        let (Some(now), Some(next)) = (&self.assignment, &self.pending) else {
            return false;
        };
        let is_dropped = |member: &MemberInfo| next.rank_of(member.worker).is_none();
        !next.members.is_empty() && now.members.iter().any(is_dropped)
    }

    /// Returns the worker's activity in its generation.
    #[must_use]
    pub fn phase(&self) -> WorkerPhase {
        self.phase
    }

    /// Returns the next step, if the worker's state is complete: all earlier steps are committed.
    #[must_use]
    pub fn next_step(&self) -> Option<Step> {
        self.next.filter(|_| self.is_whole)
    }

    /// Returns when to call with [`WorkerEvent::Tick`] if no other event occurs first; `None` once
    /// the worker has ended.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let orphaned = self.contact.after(self.settings.orphan_limit);
        (!self.is_over).then(|| self.next_report.min(orphaned))
    }

    /// Processes an event and returns the commands to execute, in order.
    pub fn handle(&mut self, now: Time, event: WorkerEvent) -> Vec<WorkerCommand> {
        let mut out = Vec::new();
        if self.is_over {
            return out;
        }
        let before = self.status();
        // An acknowledgement extends the limit before it is checked; other events do not.
        self.note_ack(now, &event);
        let silence = now.since(self.contact);
        if silence >= self.settings.orphan_limit {
            let reason = match self.phase {
                WorkerPhase::Complete => Reason::Finished {
                    steps: Some(self.end),
                },
                _ => Reason::NoCoordinator { silence },
            };
            self.end(reason, &mut out);
            return out;
        }
        let is_linked = event == WorkerEvent::Connected;
        self.apply(event, &mut out);
        let changed = before != self.status();
        if !self.is_over && (changed || is_linked || now >= self.next_report) {
            self.report(now, &mut out);
        }
        out
    }

    /// Returns the state whose changes are reported at once.
    fn status(&self) -> impl PartialEq + use<> {
        let (phase, generation) = (self.phase, self.generation);
        let unsaved_in = self.unsaved_in;
        (phase, generation, self.draining, self.is_whole, unsaved_in)
    }

    fn apply(&mut self, event: WorkerEvent, out: &mut Vec<WorkerCommand>) {
        match event {
            WorkerEvent::Tick | WorkerEvent::Connected => {}
            WorkerEvent::Coordinator(message) => self.apply_message(message, out),
            WorkerEvent::Drain => self.drain(out),
            WorkerEvent::CaughtUp {
                generation,
                next,
                is_whole,
            } => {
                if self.is_in(generation, WorkerPhase::Forming) {
                    self.begin(generation, next, is_whole, out);
                }
            }
            WorkerEvent::Ended { generation } => {
                if self.is_in(generation, WorkerPhase::Training) {
                    // No further vote will occur.
                    self.phase = WorkerPhase::Complete;
                    self.enter_pending(out);
                }
            }
            WorkerEvent::LacksState { generation } => {
                if self.is_in(generation, WorkerPhase::Forming) {
                    self.lacked_in = Some(generation);
                }
            }
            WorkerEvent::NotSaved { generation } => {
                self.unsaved_in = self.unsaved_in.max(Some(generation));
            }
            WorkerEvent::Healed { generation } => {
                self.is_whole |= self.is_in(generation, WorkerPhase::Training)
                    || self.is_in(generation, WorkerPhase::Complete);
            }
            WorkerEvent::Reduced { generation, step } => {
                if self.is_in(generation, WorkerPhase::Training) && self.next == Some(step) {
                    self.vote(generation, step, out);
                }
            }
            WorkerEvent::Voted {
                generation,
                step,
                newest,
            } => {
                let is_due =
                    self.is_in(generation, WorkerPhase::Training) && self.next == Some(step);
                if is_due && self.holds_gradient {
                    self.commit(generation, step, newest, out);
                }
            }
            WorkerEvent::Failed {
                generation,
                suspect,
                is_unreachable,
                cause,
            } => {
                if self.generation == Some(generation) && self.phase != WorkerPhase::Idle {
                    self.leave(&cause, out);
                    self.trouble = Some(GroupFailure {
                        suspect,
                        is_unreachable,
                        cause,
                    });
                    self.enter_pending(out);
                }
            }
        }
    }

    /// Votes for a step whose gradient this member holds.
    fn vote(&mut self, generation: Generation, step: Step, out: &mut Vec<WorkerCommand>) {
        self.holds_gradient = true;
        self.voted_in = Some(generation);
        let pending = self.pending.as_ref();
        out.push(WorkerCommand::Vote {
            generation,
            step,
            newest: pending.map_or(generation, |next| next.generation),
        });
    }

    /// Leaves after the step, unless the whole job stops: then this worker may have to save its state.
    fn drain(&mut self, out: &mut Vec<WorkerCommand>) {
        self.draining |= !self.job_stops;
        if self.generation.is_none() {
            self.end(Reason::Drained, out);
        }
    }

    fn is_in(&self, generation: Generation, phase: WorkerPhase) -> bool {
        self.generation == Some(generation) && self.phase == phase
    }

    fn note_ack(&mut self, now: Time, event: &WorkerEvent) {
        if let WorkerEvent::Coordinator(ToWorker::Ack { term, echo }) = event
            && *term >= self.term
        {
            self.contact = self.contact.max(now.min(*echo));
        }
    }

    fn apply_message(&mut self, message: ToWorker, out: &mut Vec<WorkerCommand>) {
        if message.term() < self.term {
            return;
        }
        self.term = message.term();
        match message {
            ToWorker::Ack { .. } => {}
            ToWorker::Assign(assignment) => self.assigned(assignment, out),
            ToWorker::Abort {
                generation, reason, ..
            } => {
                if self.generation == Some(generation) && self.phase != WorkerPhase::Idle {
                    self.leave(&reason.to_string(), out);
                    self.enter_pending(out);
                }
            }
            ToWorker::Fence { generation, .. } => {
                if Some(generation) > self.generation {
                    self.pending = None;
                    let reason = Reason::Fenced {
                        was: self.generation,
                        generation,
                    };
                    self.leave_group(reason.clone(), out);
                    out.push(WorkerCommand::Log(reason));
                    if self.draining {
                        self.end(Reason::Drained, out);
                    }
                }
            }
            ToWorker::Checkpoint { .. } => {
                if let (WorkerPhase::Idle, Some(next), Some(generation)) =
                    (self.phase, self.next_step(), self.generation)
                {
                    out.push(WorkerCommand::Checkpoint { generation, next });
                }
            }
            ToWorker::End { reason, .. } => self.end(reason, out),
        }
    }

    fn assigned(&mut self, assignment: GenerationAssignment, out: &mut Vec<WorkerCommand>) {
        let newest = self.newest();
        let assigned = Some(assignment.generation);
        let is_newer = assigned > newest;
        let is_sooner = assigned == newest
            && assigned > self.generation
            && assignment.when == SwitchTiming::Now;
        if !is_newer && !is_sooner {
            return;
        }
        let is_training = self.phase == WorkerPhase::Training;
        self.job_stops |= assignment.members.is_empty();
        self.pending = Some(assignment);
        let waits = self
            .pending
            .as_ref()
            .is_some_and(|next| next.when == SwitchTiming::Boundary);
        if !(waits && is_training) {
            self.enter_pending(out);
        }
    }

    /// Enters the newest generation, if there is a newer one.
    fn enter_pending(&mut self, out: &mut Vec<WorkerCommand>) {
        let Some(assignment) = self.pending.take() else {
            return;
        };
        self.leave_group(assignment.reason.clone(), out);
        self.generation = Some(assignment.generation);
        self.trouble = None;
        let Some(rank) = assignment.rank_of(self.me.worker) else {
            if self.draining && !assignment.members.is_empty() {
                self.end(Reason::Drained, out);
            }
            return;
        };
        self.phase = WorkerPhase::Forming;
        self.assignment = Some(assignment.clone());
        out.push(WorkerCommand::Connect { assignment, rank });
    }

    fn begin(
        &mut self,
        generation: Generation,
        next: Step,
        is_whole: bool,
        out: &mut Vec<WorkerCommand>,
    ) {
        (self.next, self.is_whole, self.phase) = (Some(next), is_whole, WorkerPhase::Training);
        // The previous first rank may have ended before it could record the step.
        if let Some(before) = next.0.checked_sub(1) {
            self.record_if_first(Step(before), out);
        }
        self.compute(generation, next, out);
    }

    fn compute(&mut self, generation: Generation, next: Step, out: &mut Vec<WorkerCommand>) {
        self.holds_gradient = false;
        if next >= self.end {
            // No further vote will occur.
            self.phase = WorkerPhase::Complete;
            self.enter_pending(out);
        } else {
            out.push(WorkerCommand::Compute {
                generation,
                step: next,
            });
        }
    }

    fn commit(
        &mut self,
        generation: Generation,
        step: Step,
        newest: Generation,
        out: &mut Vec<WorkerCommand>,
    ) {
        self.next = Some(step.next());
        self.holds_gradient = false;
        out.push(WorkerCommand::Commit { generation, step });
        self.record_if_first(step, out);
        if newest > generation {
            // All members have seen the same votes and leave now. A member that has not received
            // the new assignment yet waits for it.
            let cause = "a newer generation starts".to_owned();
            self.drop_group(true, Reason::LeftGroup { generation, cause }, out);
            self.enter_pending(out);
        } else {
            self.compute(generation, step.next(), out);
        }
    }

    fn record_if_first(&self, step: Step, out: &mut Vec<WorkerCommand>) {
        let Some(assignment) = &self.assignment else {
            return;
        };
        if assignment.rank_of(self.me.worker) == Some(Rank(0)) {
            let (generation, term) = (assignment.generation, assignment.term);
            out.push(WorkerCommand::Record {
                generation,
                term,
                step,
            });
        }
    }

    fn leave(&mut self, cause: &str, out: &mut Vec<WorkerCommand>) {
        if let Some(generation) = self.generation {
            let cause = cause.to_owned();
            self.leave_group(Reason::LeftGroup { generation, cause }, out);
        }
    }

    fn leave_group(&mut self, reason: Reason, out: &mut Vec<WorkerCommand>) {
        self.drop_group(self.phase == WorkerPhase::Complete, reason, out);
    }

    fn drop_group(&mut self, in_order: bool, reason: Reason, out: &mut Vec<WorkerCommand>) {
        if let Some(assignment) = self.assignment.take() {
            self.phase = WorkerPhase::Idle;
            out.push(WorkerCommand::Leave {
                generation: assignment.generation,
                in_order,
                reason,
            });
        }
    }

    fn end(&mut self, reason: Reason, out: &mut Vec<WorkerCommand>) {
        self.leave_group(reason.clone(), out);
        self.is_over = true;
        out.push(WorkerCommand::End(reason));
    }

    fn report(&mut self, now: Time, out: &mut Vec<WorkerCommand>) {
        self.sequence += 1;
        self.next_report = now.after(self.settings.heartbeat);
        out.push(WorkerCommand::Report(WorkerReport {
            member: self.me.clone(),
            sequence: self.sequence,
            sent: now,
            term: self.term,
            generation: self.generation,
            phase: self.phase,
            next: self.next_step(),
            has_voted: self.voted_in.is_some() && self.voted_in == self.generation,
            lacks_state: self.lacked_in.is_some() && self.lacked_in == self.generation,
            cannot_save: self.unsaved_in.is_some() && self.unsaved_in == self.generation,
            draining: self.draining,
            trouble: self.trouble.clone(),
        }));
    }
}

#[cfg(test)]
mod tests;
