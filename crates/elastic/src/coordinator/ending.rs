//! The ways to the end of a job: stop with a checkpoint, or all steps committed.

use ronde_core::Generation;

use super::{Command, CoordinatorMachine, Ending, Newest};
use crate::{JobPhase, Phase, Reason, StartFrom, Time, ToWorker, When};

impl CoordinatorMachine {
    /// All members leave after the same step, for a generation in which nobody has a place.
    pub(super) fn begin_to_stop(&mut self, now: Time, out: &mut Vec<Command>) {
        let record = self.record();
        let (previous, previous_members) = (record.generation, record.members.clone());
        let generation = previous.next();
        let is_whole = previous > Generation(0)
            && self.roster.losses(&previous_members).is_empty()
            && self
                .roster
                .broken(&previous_members, previous)
                .next()
                .is_none();
        let proposed = self.propose(now, out, |record| {
            (record.generation, record.phase) = (generation, JobPhase::Stopping);
            (record.members, record.start) = (Vec::new(), StartFrom::Peers);
        });
        if proposed {
            let when = if is_whole { When::Boundary } else { When::Now };
            let reason = self.final_reason();
            self.newest = Newest {
                generation,
                when,
                reason,
                previous,
                previous_members,
            };
        }
    }

    /// When all have left, whoever is farthest writes the checkpoint; when it counts, the job is over.
    pub(super) fn finish_stopping(&mut self, now: Time, out: &mut Vec<Command>) {
        let since = *self.ending_since.get_or_insert(now);
        let is_late = now.since(since) > self.settings.wait_limit;
        let waits_for_members = self.roster.unheard(&self.newest.previous_members)
            && now < self.leads_since.after(self.settings.silence * 2);
        let generation = self.record().generation;
        let all_left = self
            .roster
            .all_live()
            .all(|report| report.phase == Phase::Idle && report.generation == generation);
        if !is_late && (waits_for_members || !all_left) {
            return;
        }
        let farthest = self
            .roster
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
                } else if self.asks_again(now) {
                    let message = ToWorker::Checkpoint {
                        term: self.record().term,
                    };
                    out.push(Command::Send {
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

    /// At most one request for a checkpoint every heartbeat.
    fn asks_again(&mut self, now: Time) -> bool {
        let due = self
            .asked_checkpoint
            .is_none_or(|at| now.since(at) >= self.settings.heartbeat);
        if due {
            self.asked_checkpoint = Some(now);
        }
        due
    }

    /// Lets all workers end, and ends when they have.
    pub(super) fn dismiss_all(&mut self, now: Time, out: &mut Vec<Command>) {
        let reason = self.final_reason();
        let is_first = self.dismissing_since.is_none();
        let since = *self.dismissing_since.get_or_insert(now);
        let term = self.record().term;
        if is_first {
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
        }
        let all_gone = self.roster.all_live().next().is_none();
        if all_gone && !is_first || now.since(since) > self.settings.silence * 2 {
            let ending = match self.record().phase {
                JobPhase::Finished => Ending::Finished,
                _ => Ending::Stopped,
            };
            self.is_over = true;
            out.push(Command::End { ending, reason });
        }
    }

    /// Why the job is over, or about to be.
    pub(super) fn final_reason(&self) -> Reason {
        let record = self.record();
        let complete = self.roster.newest(&record.members);
        if record.phase == JobPhase::Finished {
            return Reason::Finished { steps: complete };
        }
        let by = self
            .stop
            .clone()
            .unwrap_or_else(|| "an earlier coordinator".to_owned());
        Reason::Stopped {
            by,
            checkpoint: record.checkpoint,
        }
    }
}
