//! The end of a job: a stop with a checkpoint, or all steps committed.

use ronde_core::Step;

use super::{
    CoordinatorCommand, CoordinatorMachine, EndProgress, EndRequest, GenerationChange, JobEnding,
};
use crate::assignment::MembershipPolicy;
use crate::journal::JobPhase;
use crate::membership::{MemberInfo, StartFrom, SwitchTiming};
use crate::message::{ToWorker, WorkerPhase, WorkerReport};
use crate::reason::Reason;
use crate::time::Time;

impl CoordinatorMachine {
    /// Proposes a generation without members, which all members enter after the same step.
    pub(super) fn begin_to_stop(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        let record = self.record();
        let (previous, previous_members) = (record.generation, record.members.clone());
        let generation = record.next_generation();
        let is_whole = previous.is_some_and(|previous| {
            self.workers.losses(&previous_members).is_empty()
                && self
                    .workers
                    .broken(&previous_members, previous)
                    .next()
                    .is_none()
        });
        let proposed = self.propose(now, out, |record| {
            (record.generation, record.phase) = (Some(generation), JobPhase::Stopping);
            (record.members, record.start) = (Vec::new(), StartFrom::Peers);
        });
        if proposed {
            let when = if is_whole {
                SwitchTiming::Boundary
            } else {
                SwitchTiming::Now
            };
            let reason = self.stopped(None);
            self.proposed = Some(GenerationChange {
                generation,
                members: Vec::new(),
                when,
                reason,
                previous,
                previous_members,
                awaited: 0,
            });
        }
    }

    /// Ends a job that cannot continue, after a last checkpoint if a worker has a newer state than the published one.
    pub(super) fn give_up(&mut self, cause: Reason, out: &mut Vec<CoordinatorCommand>) {
        let checkpoint = self.record().checkpoint.unwrap_or(Step(0));
        let is_newer = |report: &WorkerReport| report.next.is_some_and(|next| next > checkpoint);
        let has_newer = self.workers.all_live().any(is_newer);
        if !has_newer {
            return self.fail(cause, out);
        }
        let reason = self.failure(cause);
        self.end_request = Some(EndRequest::Fail { reason });
    }

    /// Lets the remaining workers save the state together, in a last generation, if each may have only a part of it. Returns
    /// whether they still do.
    fn save_together(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) -> bool {
        if self.checkpoint_written > self.record().checkpoint {
            self.publish_checkpoint(now, out);
            return true;
        }
        let record = self.record();
        let (members, checkpoint) = (&record.members, record.checkpoint);
        let is_whole = self.workers.losses(members).is_empty();
        if !members.is_empty() && is_whole {
            let generation = record.generation;
            let mut reports = members.iter().filter_map(|m| self.workers.live(m.worker));
            // A member leaves the last generation only when its group has failed.
            let is_intact = |report: &WorkerReport| {
                report.generation < generation || report.phase != WorkerPhase::Idle
            };
            if reports.all(is_intact) {
                return true;
            }
        }
        let holders: Vec<_> = self
            .workers
            .all_live()
            .filter(|r| r.next.is_some())
            .collect();
        let is_saved = holders.iter().all(|report| report.next <= checkpoint);
        if is_saved {
            return false;
        }
        let next_members: Vec<MemberInfo> = holders.iter().map(|r| r.member.clone()).collect();
        if self.situation(now).awaited_state(&next_members).is_some() {
            return true;
        }
        let awaited = self.situation(now).silent_holders().len() as u32;
        let (previous, previous_members) = (record.generation, members.clone());
        let generation = record.next_generation();
        let reason = Reason::Saves {
            generation,
            workers: next_members.len() as u32,
        };
        let proposed = self.propose(now, out, |record| {
            record.generation = Some(generation);
            record.members.clone_from(&next_members);
        });
        if proposed {
            self.proposed = Some(GenerationChange {
                generation,
                members: next_members,
                when: SwitchTiming::Now,
                reason,
                previous,
                previous_members,
                awaited,
            });
        }
        true
    }

    /// When all members have left, requests a checkpoint from the most advanced one, or from all together; once it is
    /// published, stops the job.
    pub(super) fn finish_stopping(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        let (since, requested) = match self.end {
            EndProgress::Leaving { since, requested } => (since, requested),
            _ => (now, None),
        };
        self.end = EndProgress::Leaving { since, requested };
        let is_late = now.since(since) > self.settings.wait_limit;
        let newest = self.newest.as_ref();
        let left = newest.map_or(&[][..], |newest| &newest.previous_members);
        let waits_for_members =
            self.workers.unheard(left) && now < self.leads_since().after(self.settings.silence * 2);
        let generation = self.record().generation;
        let all_left = self
            .workers
            .all_live()
            .all(|report| report.phase == WorkerPhase::Idle && report.generation == generation);
        let is_saving = !self.record().members.is_empty();
        if !is_late && !is_saving && (waits_for_members || !all_left) {
            return;
        }
        let is_fixed = self.settings.policy == MembershipPolicy::Fixed;
        let save_together = self.settings.is_divided && !is_fixed && !is_late;
        if save_together && self.save_together(now, out) {
            return;
        }
        let farthest = self
            .workers
            .all_live()
            .filter(|report| !report.cannot_save)
            .filter_map(|report| Some((report.next?, report.member.worker)));
        let newest = farthest.min_by_key(|(next, worker)| (std::cmp::Reverse(*next), *worker));
        let checkpoint = self.record().checkpoint;
        match newest {
            Some((next, worker)) if checkpoint < Some(next) && !is_late => {
                let written = self
                    .checkpoint_written
                    .filter(|written| Some(*written) > checkpoint);
                if let Some(written) = written {
                    self.propose(now, out, |record| record.checkpoint = Some(written));
                } else if requested.is_none_or(|at| now.since(at) >= self.settings.heartbeat) {
                    let requested = Some(now);
                    self.end = EndProgress::Leaving { since, requested };
                    let message = ToWorker::Checkpoint {
                        term: self.record().term,
                    };
                    out.push(CoordinatorCommand::Send {
                        to: worker,
                        message,
                    });
                }
            }
            _ => {
                // The last worker may have ended before its checkpoint was published.
                let written = self.checkpoint_written.max(checkpoint);
                self.propose(now, out, |record| {
                    record.checkpoint = written;
                    record.phase = JobPhase::Stopped;
                });
            }
        }
    }

    /// Ends all workers, and then the job.
    pub(super) fn dismiss_all(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        let reason = self.final_reason();
        let (since, is_first) = match self.end {
            EndProgress::Dismissing { since } => (since, false),
            _ => (now, true),
        };
        self.end = EndProgress::Dismissing { since };
        let term = self.record().term;
        if is_first {
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
        }
        let all_gone = self.workers.all_live().next().is_none();
        if all_gone && !is_first || now.since(since) > self.settings.silence * 2 {
            let ending = match self.record().phase {
                JobPhase::Finished => JobEnding::Finished,
                _ if matches!(self.end_request, Some(EndRequest::Fail { .. })) => JobEnding::Failed,
                _ => JobEnding::Stopped,
            };
            self.end = EndProgress::Over;
            out.push(CoordinatorCommand::End { ending, reason });
        }
    }

    /// Returns why the job is over, or about to be.
    pub(super) fn final_reason(&self) -> Reason {
        let record = self.record();
        let complete = self.workers.newest(&record.members);
        if record.phase == JobPhase::Finished {
            return Reason::Finished { steps: complete };
        }
        self.stopped(record.checkpoint.max(self.checkpoint_written))
    }

    /// Returns the reason of a stop, with the newest checkpoint that was saved for it; none before it is.
    fn stopped(&self, checkpoint: Option<Step>) -> Reason {
        let by = match &self.end_request {
            Some(EndRequest::Stop { by } | EndRequest::Abandon { by }) => by.clone(),
            Some(EndRequest::Fail { reason }) => return reason.clone(),
            None => "an earlier coordinator".to_owned(),
        };
        Reason::Stopped { by, checkpoint }
    }
}
