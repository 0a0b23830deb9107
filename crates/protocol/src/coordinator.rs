//! [`CoordinatorMachine`]: decides on the members of the job and on the response to losses and
//! arrivals.
//!
//! The machine re-evaluates its complete knowledge after every event, so a lost or repeated message
//! has no lasting effect. It sends nothing to workers while it does not hold the lease.

use std::collections::BTreeSet;
use std::time::Duration;

use ronde_core::{Generation, Step};

use crate::error::ElasticError;
use crate::journal::{JobPhase, JobRecord};
use crate::lease::{Lease, LeaseEvent};
use crate::membership::{CoordinatorId, MemberInfo, SwitchTiming, WorkerId};
use crate::message::{ToWorker, WorkerPhase, WorkerReport};
use crate::reason::{LossCause, Reason};
use crate::restart_history::{RestartDecision, RestartHistory};
use crate::settings::Settings;
use crate::time::Time;

mod answers;
mod ending;
mod events;
mod generations;
mod slots;
mod staffing;
mod succession;
mod worker_table;

pub use events::{CoordinatorCommand, CoordinatorEvent, JobEnding, SlotStatus};
use slots::{ExitReason, SlotTable};
use worker_table::WorkerTable;

/// A generation and the decision behind it.
#[derive(Debug, Clone)]
struct GenerationChange {
    generation: Generation,
    members: Vec<MemberInfo>,
    when: SwitchTiming,
    reason: Reason,
    previous: Option<Generation>,
    previous_members: Vec<MemberInfo>,
    /// The number of silent workers that may have parts of the state.
    awaited: u32,
}

/// A wait for a new generation.
#[derive(Debug)]
struct Waiting {
    since: Time,
    /// When it was last logged.
    logged: Time,
    cause: Reason,
    /// The cause with the workers and the time left.
    notice: Reason,
}

/// Whether this coordinator leads, as last logged. The lease decides at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CoordinatorRole {
    /// It has not read the record, or has lost the lease.
    Undecided,
    /// Another coordinator leads.
    StandsBy,
    /// It has led since then.
    Leads { since: Time },
}

/// A request to end the whole job, with its origin.
#[derive(Debug, Clone)]
enum EndRequest {
    /// After a last checkpoint.
    Stop { by: String },
    /// Without another checkpoint.
    Abandon { by: String },
    /// After a last checkpoint, because the job cannot continue.
    Fail { reason: Reason },
}

/// The progress of the end of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndProgress {
    /// The job is not ending.
    NotEnding,
    /// The members leave their generation, and one of them saves a checkpoint.
    Leaving {
        since: Time,
        /// When the checkpoint was last requested.
        requested: Option<Time>,
    },
    /// All workers have received the order to end.
    Dismissing { since: Time },
    /// The machine processes no more events.
    Over,
}

/// A generation that was formed without a loss, because the group of its predecessor failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReformedGeneration {
    generation: Generation,
    /// The step at which its predecessor failed.
    failed_at: Option<Step>,
}

/// A start of the job from a checkpoint after the loss of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CheckpointStart {
    checkpoint: Option<Step>,
    /// How often in a row the job has started from it.
    times: u32,
}

/// The state machine of a job's coordinator.
#[derive(Debug)]
pub struct CoordinatorMachine {
    settings: Settings,
    lease: Lease,
    workers: WorkerTable,
    slots: SlotTable,
    target: u32,
    role: CoordinatorRole,
    /// The newest generation that was announced to the members.
    newest: Option<GenerationChange>,
    /// The generation that this coordinator proposed last, until it is announced.
    proposed: Option<GenerationChange>,
    /// The generation whose members have received the order to leave their group.
    aborted: Option<Generation>,
    broken_since: Option<Time>,
    reformed: Option<ReformedGeneration>,
    exclusions: RestartHistory,
    latest_loss: Option<Reason>,
    /// The slot that was given up last.
    given_up: Option<Reason>,
    established_since: Option<Time>,
    begun_anew: Option<CheckpointStart>,
    waiting: Option<Waiting>,
    end_request: Option<EndRequest>,
    end: EndProgress,
    checkpoint_written: Option<Step>,
    dismissed: BTreeSet<WorkerId>,
    killed: BTreeSet<WorkerId>,
    started: u64,
}

impl CoordinatorMachine {
    /// Returns a coordinator that does not lead yet. Every process must have a different `me`.
    ///
    /// # Errors
    /// Returns [`ElasticError::Settings`] for invalid settings.
    pub fn new(me: CoordinatorId, settings: Settings) -> Result<Self, ElasticError> {
        let settings = settings.checked()?;
        Ok(Self {
            settings,
            lease: Lease::new(me, settings.lease, settings.store_timeout),
            workers: WorkerTable::new(settings.silence),
            slots: SlotTable::default(),
            target: settings.workers,
            role: CoordinatorRole::Undecided,
            newest: None,
            proposed: None,
            aborted: None,
            broken_since: None,
            reformed: None,
            exclusions: RestartHistory::default(),
            latest_loss: None,
            given_up: None,
            established_since: None,
            begun_anew: None,
            waiting: None,
            end_request: None,
            end: EndProgress::NotEnding,
            checkpoint_written: None,
            dismissed: BTreeSet::new(),
            killed: BTreeSet::new(),
            started: 0,
        })
    }

    /// Returns the record as last read.
    #[must_use]
    pub fn record(&self) -> &JobRecord {
        self.lease.record()
    }

    /// Returns whether this coordinator leads at `now`.
    #[must_use]
    pub fn leads(&self, now: Time) -> bool {
        self.lease.leads(now)
    }

    /// Returns since when this coordinator has led; the start of its clock if it does not.
    fn leads_since(&self) -> Time {
        match self.role {
            CoordinatorRole::Leads { since } => since,
            CoordinatorRole::Undecided | CoordinatorRole::StandsBy => Time(0),
        }
    }

    /// Returns a worker's last report, even if the worker has been lost since.
    #[must_use]
    pub fn last_report(&self, worker: WorkerId) -> Option<&WorkerReport> {
        self.workers.last_report(worker)
    }

    /// Returns how a worker was lost, if it was.
    #[must_use]
    pub fn lost(&self, worker: WorkerId) -> Option<&LossCause> {
        self.workers.lost(worker).map(|(_, cause)| cause)
    }

    /// Returns the target number of workers.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.target
    }

    /// Returns why no new generation was formed although one is needed.
    #[must_use]
    pub fn waits_for(&self) -> Option<&Reason> {
        self.waiting.as_ref().map(|waiting| &waiting.notice)
    }

    /// Returns when to call with [`CoordinatorEvent::Tick`] if no other event occurs first; `None`
    /// once the job is over. Cost: linear in the number of workers.
    #[must_use]
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if self.end == EndProgress::Over {
            return None;
        }
        let mut wake = self.lease.wake();
        if self.lease.leads(now) {
            let regular = now.after(self.settings.heartbeat);
            let others = [
                self.workers.deadline(),
                self.due_at(now),
                self.slots.next_start().filter(|at| *at > now),
            ];
            wake = others
                .into_iter()
                .flatten()
                .fold(wake.min(regular), Time::min);
        }
        Some(wake.max(now.after(std::time::Duration::from_nanos(1))))
    }

    /// Processes an event and returns the commands to execute, in order.
    pub fn handle(&mut self, now: Time, event: CoordinatorEvent) -> Vec<CoordinatorCommand> {
        let mut out = Vec::new();
        if self.end == EndProgress::Over {
            return out;
        }
        // Check the time first: an expired lease must not be used.
        let (lost, request) = self.lease.tick(now);
        out.extend(request.map(CoordinatorCommand::Store));
        if let Some(lost) = lost {
            self.lease_event(now, lost, &mut out);
        }
        let is_tick = event == CoordinatorEvent::Tick;
        self.apply(now, event, &mut out);
        if self.lease.leads(now) {
            if is_tick {
                self.workers.detect(now);
            }
            self.lead(now, &mut out);
        }
        out
    }

    fn apply(&mut self, now: Time, event: CoordinatorEvent, out: &mut Vec<CoordinatorCommand>) {
        match event {
            CoordinatorEvent::Tick => {}
            CoordinatorEvent::Store(reply) => {
                let (events, request) = self.lease.reply(now, reply);
                out.extend(request.map(CoordinatorCommand::Store));
                for event in events {
                    self.lease_event(now, event, out);
                }
            }
            CoordinatorEvent::Report(report) => self.take_report(now, report, out),
            CoordinatorEvent::Busy { worker } => {
                self.workers.busy(worker, now);
                self.slots.busy(worker, now);
            }
            CoordinatorEvent::Disconnected { worker, cause } => {
                self.workers
                    .lose(worker, LossCause::Disconnected(cause), now);
            }
            CoordinatorEvent::Exited {
                worker,
                slot,
                cause,
            } => self.exited(now, (slot, worker), &cause, out),
            CoordinatorEvent::HostUp { host, slots } => self.host_up(now, &host, slots, out),
            CoordinatorEvent::HostDown { host } => self.slots.withdraw(&host),
            CoordinatorEvent::HostSilent { host } => self.slots.host_silent(&host),
            CoordinatorEvent::HostResponds { host } => self.slots.host_responds(&host, now),
            CoordinatorEvent::DiedBefore { slot, ages } => self.slots.remember(slot, &ages, now),
            CoordinatorEvent::CoordinatorEnded { coordinator } => self.lease.ended(coordinator),
            CoordinatorEvent::Scale { workers } => {
                self.target = workers.clamp(self.settings.workers_min, self.settings.workers_max);
            }
            CoordinatorEvent::Stop { by } => {
                self.end_request.get_or_insert(EndRequest::Stop { by });
            }
            CoordinatorEvent::Abandon { by } => {
                self.end_request = Some(EndRequest::Abandon { by });
            }
            CoordinatorEvent::CheckpointWritten { generation, next } => {
                if self.lease.leads(now) && self.record().generation == Some(generation) {
                    self.checkpoint_written = self.checkpoint_written.max(Some(next));
                }
            }
        }
    }

    fn host_up(
        &mut self,
        now: Time,
        host: &str,
        slots: Vec<SlotStatus>,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        for SlotStatus {
            slot,
            worker,
            ended,
        } in slots
        {
            if let Some((ended, cause)) = ended {
                // No coordinator has counted this failure yet.
                let is_unknown = worker.is_none() && !self.slots.knows(slot);
                if is_unknown && cause != LossCause::ExitCode(0) {
                    self.slots.remember(slot, &[Duration::ZERO], now);
                }
                self.exited(now, (slot, ended), &cause, out);
            }
            let worker = worker.filter(|worker| !self.workers.has_ended(*worker));
            self.slots
                .offer(host, slot, worker, self.settings.silence, now);
        }
    }

    fn lease_event(&mut self, now: Time, event: LeaseEvent, out: &mut Vec<CoordinatorCommand>) {
        match event {
            LeaseEvent::Published => {}
            LeaseEvent::Taken => self.begin_to_lead(now, out),
            LeaseEvent::Lost { term, cause } => {
                self.role = CoordinatorRole::Undecided;
                out.push(CoordinatorCommand::Log(Reason::Deposed { term, cause }));
            }
            LeaseEvent::Other { term } => {
                if self.role != CoordinatorRole::StandsBy {
                    self.role = CoordinatorRole::StandsBy;
                    out.push(CoordinatorCommand::Log(Reason::StandsBy { term }));
                }
            }
        }
    }

    fn begin_to_lead(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        self.workers.begin_anew(self.settings.silence);
        let record = self.lease.record();
        let (term, generation) = (record.term, record.generation);
        let members = record.members.clone();
        let older = record
            .open
            .iter()
            .flat_map(|open| open.workers.iter().copied());
        let expected: BTreeSet<WorkerId> = older
            .chain(members.iter().map(|member| member.worker))
            .collect();
        for worker in expected {
            self.workers
                .expect(worker, now.after(self.settings.silence));
        }
        self.role = CoordinatorRole::Leads { since: now };
        self.newest = generation.map(|newest| GenerationChange {
            generation: newest,
            members: members.clone(),
            when: SwitchTiming::Now,
            reason: self.adopted_reason(newest),
            previous: generation,
            previous_members: members,
            awaited: 0,
        });
        let reason = self.newest.as_ref().map(|newest| newest.reason.clone());
        let adopted = reason.filter(|reason| matches!(reason, Reason::Adopted { .. }));
        self.proposed = None;
        (self.aborted, self.broken_since, self.reformed) = (None, None, None);
        (self.waiting, self.checkpoint_written) = (None, None);
        self.end = EndProgress::NotEnding;
        out.push(CoordinatorCommand::Log(Reason::Leads { term, generation }));
        // The previous coordinator may have ended before it could report the generation.
        out.extend(adopted.map(CoordinatorCommand::Log));
    }

    /// Evaluates the current knowledge and does everything that is due.
    fn lead(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        self.announce(out);
        self.abort_if_lost(out);
        self.note_broken(now);
        match self.record().phase {
            JobPhase::Running | JobPhase::Stopping
                if matches!(self.end_request, Some(EndRequest::Abandon { .. })) =>
            {
                self.propose(now, out, |record| record.phase = JobPhase::Stopped);
            }
            JobPhase::Running if self.end_request.is_some() => self.begin_to_stop(now, out),
            JobPhase::Running => self.continue_running(now, out),
            JobPhase::Stopping => self.finish_stopping(now, out),
            JobPhase::Stopped | JobPhase::Finished => self.dismiss_all(now, out),
        }
        if self.record().phase == JobPhase::Running && self.end != EndProgress::Over {
            self.publish_checkpoint(now, out);
            self.staff(now, out);
        }
    }

    fn continue_running(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        let record = self.record();
        let complete = |member: &MemberInfo| {
            self.workers.live(member.worker).is_some_and(|report| {
                report.generation == record.generation && report.phase == WorkerPhase::Complete
            })
        };
        if !record.members.is_empty() && record.members.iter().all(complete) {
            self.propose(now, out, |record| record.phase = JobPhase::Finished);
        } else {
            self.stop_if_all_leave(now);
            self.next_generation(now, out);
        }
    }

    /// Stops the job with a checkpoint if all members are leaving and no replacement is expected.
    fn stop_if_all_leave(&mut self, now: Time) {
        let leaves = |member: &MemberInfo| {
            self.workers
                .live(member.worker)
                .is_some_and(|report| report.draining)
        };
        let members = &self.record().members;
        // Silent workers may return with parts of the state.
        let none_is_expected = self.workers.all_live().all(|report| report.draining)
            && self.situation(now).silent_holders().is_empty()
            && self.slots.next_start().is_none()
            && self
                .slots
                .workers()
                .all(|placed| self.workers.knows(placed.worker));
        if !members.is_empty() && members.iter().all(leaves) && none_is_expected {
            let by = "the departure of all workers".to_owned();
            self.end_request = Some(EndRequest::Stop { by });
        }
    }

    pub(super) fn publish_checkpoint(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        if self.checkpoint_written > self.record().checkpoint {
            let written = self.checkpoint_written;
            self.propose(now, out, |record| record.checkpoint = written);
        }
    }

    /// Changes the record, unless a change is in flight; this is called again once that has
    /// completed.
    fn propose(
        &mut self,
        now: Time,
        out: &mut Vec<CoordinatorCommand>,
        change: impl FnOnce(&mut JobRecord),
    ) -> bool {
        if self.lease.is_busy() {
            return false;
        }
        out.push(CoordinatorCommand::Store(self.lease.propose(now, change)));
        true
    }

    /// Returns why a job that lacks this condition fails.
    fn failure(&self, cause: Reason) -> Reason {
        Reason::Failed {
            cause: Box::new(cause),
            latest: self.latest_loss.clone().map(Box::new),
            given_up: self.given_up.clone().map(Box::new),
        }
    }

    fn fail(&mut self, cause: Reason, out: &mut Vec<CoordinatorCommand>) {
        let reason = self.failure(cause);
        let term = self.record().term;
        for report in self.workers.all_live() {
            let message = ToWorker::End {
                term,
                reason: reason.clone(),
            };
            out.push(CoordinatorCommand::Send {
                to: report.member.worker,
                message,
            });
        }
        self.end = EndProgress::Over;
        out.push(CoordinatorCommand::End {
            ending: JobEnding::Failed,
            reason,
        });
    }

    /// Returns the time until which a worker that the others could not reach is excluded.
    fn exclusion(&mut self, now: Time) -> Time {
        let limits = &self.settings.restart;
        match self.exclusions.failed(limits, now) {
            RestartDecision::Again { pause } => now.after(pause),
            RestartDecision::GiveUp => now.after(limits.pause_max),
        }
    }
}

#[cfg(test)]
mod tests;
