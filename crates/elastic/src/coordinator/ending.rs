//! The end of a job: a stop with a checkpoint, or all steps committed.

use super::{
    CoordinatorCommand, CoordinatorMachine, EndProgress, EndRequest, GenerationChange, JobEnding,
};
use crate::{JobPhase, Reason, StartFrom, SwitchTiming, Time, ToWorker, WorkerPhase};

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
            let reason = self.final_reason();
            self.proposed = Some(GenerationChange {
                generation,
                members: Vec::new(),
                when,
                reason,
                previous,
                previous_members,
            });
        }
    }

    /// When all members have left, requests a checkpoint from the most advanced one; once it is
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
        if !is_late && (waits_for_members || !all_left) {
            return;
        }
        let farthest = self
            .workers
            .all_live()
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
                self.propose(now, out, |record| record.phase = JobPhase::Stopped);
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
        let by = match &self.end_request {
            Some(EndRequest::Stop { by } | EndRequest::Abandon { by }) => by.clone(),
            None => "an earlier coordinator".to_owned(),
        };
        Reason::Stopped {
            by,
            checkpoint: record.checkpoint,
        }
    }
}
