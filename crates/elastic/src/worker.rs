//! [`WorkerMachine`]: which generation a worker is in, when it trains, and when it stops.
//!
//! ```text
//!            Assign with a place                Level                   next == end
//!   Idle ------------------------> Forming ------------> Training --------------------> Complete
//!    ^                               |                      |                              |
//!    +------ Failed, Abort, Fence, or a newer Assign -------+------------------------------+
//! ```
//!
//! The commit point is [`WorkerEvent::Voted`]: all members of the generation, the worker included,
//! have said that they hold the complete gradient of the step. No coordinator takes part. A worker
//! leaves a group that is whole only at such a point, and all members see the same votes, so all leave
//! after the same step.

use crate::{
    Assignment, ElasticError, Member, Phase, Position, Reason, Report, Settings, Term, Time,
    ToWorker, Trouble, When,
};
use ronde_core::{Generation, Rank, Step};

mod events;

pub use events::{WorkerCommand, WorkerEvent};

/// One worker process.
#[derive(Debug, Clone)]
pub struct WorkerMachine {
    me: Member,
    settings: Settings,
    /// The step at which training is complete.
    end: Step,
    term: Term,
    sequence: u64,
    phase: Phase,
    generation: Generation,
    assignment: Option<Assignment>,
    /// A newer generation, which is entered after the next vote.
    pending: Option<Assignment>,
    /// The next step to be computed with the group, or to be computed at all.
    next: Option<Step>,
    is_whole: bool,
    holds_gradient: bool,
    draining: bool,
    trouble: Option<Trouble>,
    /// When the last report was sent that a coordinator has answered.
    contact: Time,
    next_report: Time,
    is_over: bool,
}

impl WorkerMachine {
    /// A worker without a state and without a place. `end`: the count of steps of the run.
    ///
    /// # Errors
    /// [`ElasticError::Settings`].
    pub fn new(me: Member, settings: Settings, end: Step, now: Time) -> Result<Self, ElasticError> {
        Ok(Self {
            me,
            settings: settings.checked()?,
            end,
            term: Term(0),
            sequence: 0,
            phase: Phase::Idle,
            generation: Generation(0),
            assignment: None,
            pending: None,
            next: None,
            is_whole: false,
            holds_gradient: false,
            draining: false,
            trouble: None,
            contact: now,
            next_report: now,
            is_over: false,
        })
    }

    /// The generation that this worker has entered or left for.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The newest generation with a place for this worker that it knows of.
    #[must_use]
    pub fn newest(&self) -> Generation {
        let pending = self.pending.as_ref().map(|next| next.generation);
        pending.unwrap_or_default().max(self.generation)
    }

    /// What it does there.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Where it stands: what it would tell the members of a new group.
    #[must_use]
    pub fn position(&self) -> Position {
        Position {
            next: self.next.filter(|_| self.is_whole),
            holds_gradient: self.holds_gradient && self.is_whole,
        }
    }

    /// When to call with [`WorkerEvent::Tick`] unless something else happens before; `None` once it
    /// has ended.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let orphaned = self.contact.after(self.settings.orphan_limit);
        (!self.is_over).then(|| self.next_report.min(orphaned))
    }

    /// Takes an event in and says what to do, in this order.
    pub fn handle(&mut self, now: Time, event: WorkerEvent) -> Vec<WorkerCommand> {
        let mut out = Vec::new();
        if self.is_over {
            return out;
        }
        let before = (self.phase, self.generation, self.draining, self.is_whole);
        // An acknowledgement may be the very thing that was waited for; nothing else may.
        self.hear_ack(now, &event);
        let silence = now.since(self.contact);
        if silence >= self.settings.orphan_limit {
            let reason = match self.phase {
                Phase::Complete => Reason::Finished {
                    steps: Some(self.end),
                },
                _ => Reason::NoCoordinator { silence },
            };
            self.end(reason, &mut out);
            return out;
        }
        let is_linked = event == WorkerEvent::Linked;
        self.take(event, &mut out);
        let changed = before != (self.phase, self.generation, self.draining, self.is_whole);
        if !self.is_over && (changed || is_linked || now >= self.next_report) {
            self.report(now, &mut out);
        }
        out
    }

    fn take(&mut self, event: WorkerEvent, out: &mut Vec<WorkerCommand>) {
        match event {
            WorkerEvent::Tick | WorkerEvent::Linked => {}
            WorkerEvent::Coordinator(message) => self.obey(message, out),
            WorkerEvent::Drain => {
                self.draining = true;
                if self.generation == Generation(0) {
                    self.end(Reason::Drained, out);
                }
            }
            WorkerEvent::Level {
                generation,
                next,
                is_whole,
            } => {
                if self.is_in(generation, Phase::Forming) {
                    self.begin(next, is_whole, out);
                }
            }
            WorkerEvent::Ended { generation } => {
                if self.is_in(generation, Phase::Training) {
                    // There will be no further vote to leave after.
                    self.phase = Phase::Complete;
                    self.enter_pending(out);
                }
            }
            WorkerEvent::Healed { generation } => {
                self.is_whole |= self.is_in(generation, Phase::Training)
                    || self.is_in(generation, Phase::Complete);
            }
            WorkerEvent::Reduced { generation, step } => {
                if self.is_in(generation, Phase::Training) && self.next == Some(step) {
                    self.holds_gradient = true;
                    let newest = self
                        .pending
                        .as_ref()
                        .map_or(generation, |next| next.generation);
                    out.push(WorkerCommand::Vote {
                        generation,
                        step,
                        newest,
                    });
                }
            }
            WorkerEvent::Voted {
                generation,
                step,
                newest,
            } => {
                let is_due = self.is_in(generation, Phase::Training) && self.next == Some(step);
                if is_due && self.holds_gradient {
                    self.commit(step, newest, out);
                }
            }
            WorkerEvent::Failed {
                generation,
                suspect,
                cause,
            } => {
                if self.generation == generation && self.phase != Phase::Idle {
                    self.leave(&cause, out);
                    self.trouble = Some(Trouble { suspect, cause });
                    self.enter_pending(out);
                }
            }
        }
    }

    fn is_in(&self, generation: Generation, phase: Phase) -> bool {
        self.generation == generation && self.phase == phase
    }

    fn hear_ack(&mut self, now: Time, event: &WorkerEvent) {
        if let WorkerEvent::Coordinator(ToWorker::Ack { term, echo }) = event
            && *term >= self.term
        {
            self.contact = self.contact.max(now.min(*echo));
        }
    }

    fn obey(&mut self, message: ToWorker, out: &mut Vec<WorkerCommand>) {
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
                if self.generation == generation && self.phase != Phase::Idle {
                    self.leave(&reason.to_string(), out);
                    self.enter_pending(out);
                }
            }
            ToWorker::Fence { generation, .. } => {
                if generation > self.generation {
                    self.pending = None;
                    let reason = Reason::Fenced {
                        was: self.generation,
                        generation,
                    };
                    self.leave_group(reason.clone(), out);
                    out.push(WorkerCommand::Tell(reason));
                    if self.draining {
                        self.end(Reason::Drained, out);
                    }
                }
            }
            ToWorker::Checkpoint { .. } => {
                if let (Phase::Idle, Some(next)) = (self.phase, self.position().next) {
                    let generation = self.generation;
                    out.push(WorkerCommand::Checkpoint { generation, next });
                }
            }
            ToWorker::End { reason, .. } => self.end(reason, out),
        }
    }

    fn assigned(&mut self, assignment: Assignment, out: &mut Vec<WorkerCommand>) {
        let newest = self
            .pending
            .as_ref()
            .map_or(self.generation, |next| next.generation);
        let is_newer = assignment.generation > newest;
        let is_sooner = assignment.generation == newest
            && assignment.generation > self.generation
            && assignment.when == When::Now;
        if !is_newer && !is_sooner {
            return;
        }
        let is_training = self.phase == Phase::Training;
        self.pending = Some(assignment);
        let waits = self
            .pending
            .as_ref()
            .is_some_and(|next| next.when == When::Boundary);
        if !(waits && is_training) {
            self.enter_pending(out);
        }
    }

    /// Goes on to the newest generation, if there is a newer one.
    fn enter_pending(&mut self, out: &mut Vec<WorkerCommand>) {
        let Some(assignment) = self.pending.take() else {
            return;
        };
        self.leave_group(assignment.reason.clone(), out);
        self.generation = assignment.generation;
        self.trouble = None;
        let Some(rank) = assignment.rank_of(self.me.worker) else {
            if self.draining && !assignment.members.is_empty() {
                self.end(Reason::Drained, out);
            }
            return;
        };
        self.phase = Phase::Forming;
        self.assignment = Some(assignment.clone());
        let position = self.position();
        out.push(WorkerCommand::Connect {
            assignment,
            rank,
            position,
        });
    }

    fn begin(&mut self, next: Step, is_whole: bool, out: &mut Vec<WorkerCommand>) {
        (self.next, self.is_whole, self.phase) = (Some(next), is_whole, Phase::Training);
        // Whoever had been first may have died before it could tell.
        if let Some(before) = next.0.checked_sub(1) {
            self.record_if_first(Step(before), out);
        }
        self.compute(next, out);
    }

    fn compute(&mut self, next: Step, out: &mut Vec<WorkerCommand>) {
        self.holds_gradient = false;
        let generation = self.generation;
        if next >= self.end {
            // There will be no further vote to leave after.
            self.phase = Phase::Complete;
            self.enter_pending(out);
        } else {
            out.push(WorkerCommand::Compute {
                generation,
                step: next,
            });
        }
    }

    fn commit(&mut self, step: Step, newest: Generation, out: &mut Vec<WorkerCommand>) {
        let generation = self.generation;
        self.next = Some(step.next());
        self.holds_gradient = false;
        out.push(WorkerCommand::Commit { generation, step });
        self.record_if_first(step, out);
        if newest > generation {
            // All members have seen the same votes and leave now; who does not know the way yet will
            // be told.
            let cause = "a newer generation begins".to_owned();
            self.drop_group(true, Reason::LeftGroup { generation, cause }, out);
            self.enter_pending(out);
        } else {
            self.compute(step.next(), out);
        }
    }

    fn record_if_first(&self, step: Step, out: &mut Vec<WorkerCommand>) {
        let Some(assignment) = &self.assignment else {
            return;
        };
        if assignment.rank_of(self.me.worker) == Some(Rank(0)) {
            let (generation, term) = (self.generation, assignment.term);
            out.push(WorkerCommand::Record {
                generation,
                term,
                step,
            });
        }
    }

    fn leave(&mut self, cause: &str, out: &mut Vec<WorkerCommand>) {
        let reason = Reason::LeftGroup {
            generation: self.generation,
            cause: cause.to_owned(),
        };
        self.leave_group(reason, out);
    }

    fn leave_group(&mut self, reason: Reason, out: &mut Vec<WorkerCommand>) {
        self.drop_group(self.phase == Phase::Complete, reason, out);
    }

    fn drop_group(&mut self, in_order: bool, reason: Reason, out: &mut Vec<WorkerCommand>) {
        if self.phase != Phase::Idle {
            let generation = self.generation;
            out.push(WorkerCommand::Leave {
                generation,
                in_order,
                reason,
            });
            self.phase = Phase::Idle;
            self.assignment = None;
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
        out.push(WorkerCommand::Report(Report {
            member: self.me.clone(),
            sequence: self.sequence,
            sent: now,
            term: self.term,
            generation: self.generation,
            phase: self.phase,
            next: self.position().next,
            draining: self.draining,
            trouble: self.trouble.clone(),
        }));
    }
}

#[cfg(test)]
mod tests;
