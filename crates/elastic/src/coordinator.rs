//! [`CoordinatorMachine`]: who belongs to the job, and what follows when a worker is lost or comes.
//!
//! It decides anew after every event from what it knows, so a lost message or a repeated one changes
//! nothing for long. While it does not hold the lease it says nothing to workers.

use std::collections::BTreeSet;
use std::time::Duration;

use ronde_core::{Generation, Step};

use crate::lease::{Lease, LeaseEvent};
use crate::restart::{Restarts, Verdict};
use crate::{
    CoordinatorId, ElasticError, JobPhase, LossCause, Member, Phase, Reason, Record, Report,
    Settings, Time, ToWorker, When, WorkerId,
};

mod answers;
mod ending;
mod events;
mod generations;
mod places;
mod roster;
mod staffing;
mod succession;

pub use events::{Command, Ending, Event, PlaceState};
use places::{Departure, Places};
use roster::Roster;

/// What was decided about the newest generation, beyond what stands in the record.
#[derive(Debug, Clone)]
struct Newest {
    generation: Generation,
    when: When,
    reason: Reason,
    previous: Generation,
    previous_members: Vec<Member>,
}

/// The coordinator of a job.
#[derive(Debug)]
pub struct CoordinatorMachine {
    settings: Settings,
    lease: Lease,
    roster: Roster,
    places: Places,
    target: u32,
    leads_since: Time,
    /// The newest generation and why it is there.
    newest: Newest,
    /// The newest generation that the members were told of.
    announced: Generation,
    /// The generation whose members were told to drop their group.
    aborted: Option<Generation>,
    broken_since: Option<Time>,
    /// The generation that was formed although nobody was lost, and at which step.
    reformed: Option<(Generation, Option<Step>)>,
    exclusions: Restarts,
    first_failure: Option<Reason>,
    established_since: Option<Time>,
    /// From which checkpoint the job began anew last, and how often in a row.
    begun_anew: Option<(Option<Step>, u32)>,
    waiting: Option<(Time, Reason)>,
    stop: Option<String>,
    /// Whether it has to stop without another checkpoint.
    abandons: bool,
    checkpoint_written: Option<Step>,
    ending_since: Option<Time>,
    asked_checkpoint: Option<Time>,
    dismissing_since: Option<Time>,
    dismissed: BTreeSet<WorkerId>,
    killed: BTreeSet<WorkerId>,
    started: u64,
    told_other: bool,
    is_over: bool,
}

impl CoordinatorMachine {
    /// A coordinator that does not lead yet. `me` must be another number for every process.
    ///
    /// # Errors
    /// [`ElasticError::Settings`].
    pub fn new(me: CoordinatorId, settings: Settings) -> Result<Self, ElasticError> {
        let settings = settings.checked()?;
        let newest = Newest {
            generation: Generation(0),
            when: When::Now,
            reason: Reason::Drained,
            previous: Generation(0),
            previous_members: Vec::new(),
        };
        Ok(Self {
            settings,
            lease: Lease::new(me, settings.lease, settings.store_timeout),
            roster: Roster::new(settings.silence),
            places: Places::default(),
            target: settings.workers,
            leads_since: Time(0),
            newest,
            announced: Generation(0),
            aborted: None,
            broken_since: None,
            reformed: None,
            exclusions: Restarts::default(),
            first_failure: None,
            established_since: None,
            begun_anew: None,
            waiting: None,
            stop: None,
            abandons: false,
            checkpoint_written: None,
            ending_since: None,
            asked_checkpoint: None,
            dismissing_since: None,
            dismissed: BTreeSet::new(),
            killed: BTreeSet::new(),
            started: 0,
            told_other: false,
            is_over: false,
        })
    }

    /// The record as last seen.
    #[must_use]
    pub fn record(&self) -> &Record {
        self.lease.record()
    }

    /// Whether this coordinator leads at this moment.
    #[must_use]
    pub fn leads(&self, now: Time) -> bool {
        self.lease.leads(now)
    }

    /// What a worker said last, whether it is lost since or not.
    #[must_use]
    pub fn last_report(&self, worker: WorkerId) -> Option<&Report> {
        self.roster.last_report(worker)
    }

    /// How a worker was lost, if it was.
    #[must_use]
    pub fn lost(&self, worker: WorkerId) -> Option<&LossCause> {
        self.roster.lost(worker).map(|(_, cause)| cause)
    }

    /// How many workers are wanted.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.target
    }

    /// Why there is no new generation although one is needed.
    #[must_use]
    pub fn waits_for(&self) -> Option<&Reason> {
        self.waiting.as_ref().map(|(_, reason)| reason)
    }

    /// When to call with [`Event::Tick`] unless something else happens before; `None` once the job is
    /// over. Cost: linear in the workers.
    #[must_use]
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if self.is_over {
            return None;
        }
        let mut wake = self.lease.wake();
        if self.lease.leads(now) {
            let regular = now.after(self.settings.heartbeat);
            let others = [
                self.roster.deadline(),
                self.due_at(now),
                self.places.next_start().filter(|at| *at > now),
            ];
            wake = others
                .into_iter()
                .flatten()
                .fold(wake.min(regular), Time::min);
        }
        Some(wake.max(now.after(std::time::Duration::from_nanos(1))))
    }

    /// Takes an event in and says what to do, in this order.
    pub fn handle(&mut self, now: Time, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        if self.is_over {
            return out;
        }
        // First what time has brought: a lease that is over must not be acted on.
        let (lost, request) = self.lease.tick(now);
        out.extend(request.map(Command::Store));
        if let Some(lost) = lost {
            self.lease_event(now, lost, &mut out);
        }
        self.take(now, event, &mut out);
        if self.lease.leads(now) {
            self.lead(now, &mut out);
        }
        out
    }

    fn take(&mut self, now: Time, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Tick => {}
            Event::Store(reply) => {
                let (events, request) = self.lease.reply(now, reply);
                out.extend(request.map(Command::Store));
                for event in events {
                    self.lease_event(now, event, out);
                }
            }
            Event::Report(report) => self.take_report(now, report, out),
            Event::Disconnected { worker, cause } => {
                self.roster
                    .lose(worker, LossCause::Disconnected(cause), now);
            }
            Event::Exited {
                worker,
                place,
                cause,
            } => self.exited(now, (place, worker), &cause, out),
            Event::HostUp { host, places } => {
                for PlaceState {
                    place,
                    worker,
                    ended,
                } in places
                {
                    if let Some((gone, cause)) = ended {
                        // Nobody has answered that death yet.
                        let is_news = worker.is_none() && !self.places.knows(place);
                        if is_news && cause != LossCause::ExitCode(0) {
                            self.places.remember(place, &[Duration::ZERO], now);
                        }
                        self.exited(now, (place, gone), &cause, out);
                    }
                    let worker = worker.filter(|worker| !self.roster.has_ended(*worker));
                    self.places
                        .offer(&host, place, worker, self.settings.silence, now);
                }
            }
            Event::HostDown { host } => self.places.withdraw(&host),
            Event::DiedBefore { place, ages } => self.places.remember(place, &ages, now),
            Event::CoordinatorEnded { coordinator } => self.lease.ended(coordinator),
            Event::Scale { workers } => {
                self.target = workers.clamp(self.settings.workers_min, self.settings.workers_max);
            }
            Event::Stop { by } => {
                self.stop.get_or_insert(by);
            }
            Event::Abandon { by } => {
                (self.stop, self.abandons) = (Some(by), true);
            }
            Event::CheckpointWritten { generation, next } => {
                if self.lease.leads(now) && generation == self.record().generation {
                    self.checkpoint_written = self.checkpoint_written.max(Some(next));
                }
            }
        }
    }

    fn lease_event(&mut self, now: Time, event: LeaseEvent, out: &mut Vec<Command>) {
        match event {
            LeaseEvent::Published => {}
            LeaseEvent::Taken => self.begin_to_lead(now, out),
            LeaseEvent::Lost { term, cause } => {
                out.push(Command::Tell(Reason::Deposed { term, cause }));
            }
            LeaseEvent::Other { term } => {
                if !std::mem::replace(&mut self.told_other, true) {
                    out.push(Command::Tell(Reason::StandsBy { term }));
                }
            }
        }
    }

    fn begin_to_lead(&mut self, now: Time, out: &mut Vec<Command>) {
        self.roster.begin_anew(self.settings.silence);
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
            self.roster.expect(worker, now.after(self.settings.silence));
        }
        self.leads_since = now;
        self.newest = Newest {
            generation,
            when: When::Now,
            reason: Reason::Leads { term, generation },
            previous: generation,
            previous_members: members,
        };
        self.announced = generation;
        (self.aborted, self.broken_since, self.reformed) = (None, None, None);
        (self.waiting, self.checkpoint_written, self.ending_since) = (None, None, None);
        self.told_other = false;
        out.push(Command::Tell(Reason::Leads { term, generation }));
    }

    /// Looks at everything and does what is due.
    fn lead(&mut self, now: Time, out: &mut Vec<Command>) {
        self.roster.detect(now);
        self.announce(out);
        self.abort_if_lost(out);
        self.note_broken(now);
        match self.record().phase {
            JobPhase::Running | JobPhase::Stopping if self.abandons => {
                self.propose(now, out, |record| record.phase = JobPhase::Stopped);
            }
            JobPhase::Running if self.stop.is_some() => self.begin_to_stop(now, out),
            JobPhase::Running => self.run_on(now, out),
            JobPhase::Stopping => self.finish_stopping(now, out),
            JobPhase::Stopped | JobPhase::Finished => self.dismiss_all(now, out),
        }
        if self.record().phase == JobPhase::Running && !self.is_over {
            self.publish_checkpoint(now, out);
            self.staff(now, out);
        }
    }

    fn run_on(&mut self, now: Time, out: &mut Vec<Command>) {
        let record = self.record();
        let complete = |member: &Member| {
            self.roster.live(member.worker).is_some_and(|report| {
                report.generation == record.generation && report.phase == Phase::Complete
            })
        };
        if !record.members.is_empty() && record.members.iter().all(complete) {
            self.propose(now, out, |record| record.phase = JobPhase::Finished);
        } else {
            self.stop_if_all_leave();
            self.next_generation(now, out);
        }
    }

    /// When all members want to leave and nobody can take over, the job stops with a checkpoint.
    fn stop_if_all_leave(&mut self) {
        let leaves = |member: &Member| {
            self.roster
                .live(member.worker)
                .is_some_and(|report| report.draining)
        };
        let members = &self.record().members;
        let nobody_comes = self.roster.all_live().all(|report| report.draining)
            && self.places.next_start().is_none()
            && self
                .places
                .workers()
                .all(|(_, worker, _)| self.roster.knows(worker));
        if !members.is_empty() && members.iter().all(leaves) && nobody_comes {
            self.stop = Some("the end of all its workers".to_owned());
        }
    }

    fn publish_checkpoint(&mut self, now: Time, out: &mut Vec<Command>) {
        if self.checkpoint_written > self.record().checkpoint {
            let written = self.checkpoint_written;
            self.propose(now, out, |record| record.checkpoint = written);
        }
    }

    /// Changes the record, unless a change is under way; then this is called again after it.
    fn propose(
        &mut self,
        now: Time,
        out: &mut Vec<Command>,
        change: impl FnOnce(&mut Record),
    ) -> bool {
        if self.lease.is_busy() {
            return false;
        }
        out.push(Command::Store(self.lease.propose(now, change)));
        true
    }

    fn fail(&mut self, cause: Reason, out: &mut Vec<Command>) {
        let reason = Reason::Failed {
            cause: Box::new(cause),
            first: self.first_failure.clone().map(Box::new),
        };
        let term = self.record().term;
        for report in self.roster.all_live() {
            let message = ToWorker::End {
                term,
                reason: reason.clone(),
            };
            out.push(Command::Send {
                to: report.member.worker,
                message,
            });
        }
        self.is_over = true;
        out.push(Command::End {
            ending: Ending::Failed,
            reason,
        });
    }

    /// The pause before a worker that the others could not reach may come back.
    fn exclusion(&mut self, now: Time) -> Time {
        let limits = &self.settings.restart;
        match self.exclusions.failed(limits, now) {
            Verdict::Again { pause } => now.after(pause),
            Verdict::GiveUp => now.after(limits.pause_max),
        }
    }
}

#[cfg(test)]
mod tests;
