//! Starts missing workers and dismisses surplus ones.

use super::slots::{EndedWorker, SlotWorker};
use super::{CoordinatorCommand, CoordinatorMachine, ExitReason};
use crate::assignment::MembershipPolicy;
use crate::journal::JobPhase;
use crate::membership::rank_of;
use crate::membership::{WorkerId, WorkerSlot};
use crate::message::{ToWorker, WorkerPhase};
use crate::reason::{LossCause, Reason};
use crate::time::Time;

impl CoordinatorMachine {
    pub(super) fn exited(
        &mut self,
        now: Time,
        (slot, worker): (WorkerSlot, WorkerId),
        cause: &LossCause,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let is_final = self.settings.policy == MembershipPolicy::Fixed;
        let drained = self.workers.drains(worker) || is_final;
        let reason = if self.dismissed.contains(&worker) {
            ExitReason::Dismissed
        } else if drained || self.record().phase != JobPhase::Running {
            ExitReason::Drained
        } else {
            ExitReason::Died
        };
        let joined = self.workers.knows(worker);
        self.workers.ended(worker, cause.clone(), now);
        let limits = &self.settings.restart;
        let ended = EndedWorker {
            slot,
            worker,
            cause,
            joined,
        };
        let given_up = self.slots.ended(ended, reason, limits, now);
        if let Some(reason) = given_up {
            self.given_up = Some(reason.clone());
            out.push(CoordinatorCommand::Log(reason));
        }
    }

    /// Starts workers until the target number is reached.
    pub(super) fn staff(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        self.kill_unresponsive(now, out);
        while self.count() < self.target
            && let Some(start) = self.slots.due(now)
        {
            self.started += 1;
            let worker = WorkerId(self.record().term.0 << 20 | self.started);
            self.slots.filled(start.slot, worker, now);
            out.push(CoordinatorCommand::Log(start.reason));
            out.push(CoordinatorCommand::Start {
                host: start.host,
                slot: start.slot,
                worker,
            });
        }
        self.dismiss_surplus(now, out);
    }

    /// Returns the number of workers that run or are being started, as far as is known.
    fn count(&self) -> u32 {
        self.started_workers(|worker| self.workers.lost(worker).is_none())
    }

    /// Returns the number of workers that report, and of those in slots that fulfil a condition.
    fn started_workers(&self, counts: impl Fn(WorkerId) -> bool) -> u32 {
        let placed = self.slots.workers().map(|placed| placed.worker);
        let placed = placed.filter(|worker| counts(*worker));
        let live = self.workers.all_live().map(|report| report.member.worker);
        let mut workers: Vec<WorkerId> = placed.chain(live).collect();
        workers.sort_unstable();
        workers.dedup();
        workers.len() as u32
    }

    /// Kills workers that never reported, that should have ended themselves but still run, or that have
    /// been silent for long and cannot hold the only state. Their slots are then filled again. The
    /// silence counts only while the host's agent responds: the host may be stalled as a whole, and
    /// would kill its workers as soon as all of them respond again.
    fn kill_unresponsive(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        if self.settings.policy == MembershipPolicy::Fixed {
            return;
        }
        let situation = self.situation(now);
        let (certain, leads_since) = (self.settings.certain_end(), self.leads_since());
        let is_unresponsive = |placed: &SlotWorker| {
            let worker = placed.worker;
            let Some(responds) = self.slots.responds_since(placed.slot) else {
                return false;
            };
            let waited = |since: Time| now.since(since.max(responds));
            let never =
                !self.workers.knows(worker) && now > self.first_report_due(placed, responds);
            let silent = self.workers.silent_since(worker);
            never
                || silent.is_some_and(|since| waited(since) > self.settings.silence * 4)
                    && situation.is_dispensable(worker)
                || self.workers.is_gone(worker, leads_since, certain, now)
        };
        let unresponsive: Vec<(WorkerSlot, WorkerId)> = self
            .slots
            .workers()
            .filter(is_unresponsive)
            .map(|placed| (placed.slot, placed.worker))
            .collect();
        for (slot, worker) in unresponsive {
            if self.killed.insert(worker) {
                out.push(CoordinatorCommand::Kill { slot, worker });
            }
        }
    }

    /// Returns when a worker that has never reported is given up: soon if its process makes no progress. `since` is a time
    /// before which its reports could not arrive.
    fn first_report_due(&self, placed: &SlotWorker, since: Time) -> Time {
        let since = since.max(self.leads_since());
        let idle = placed.active.max(since).after(self.settings.first_report);
        let at_most = placed.started.max(since).after(self.settings.rendezvous);
        idle.min(at_most)
    }

    /// Returns until when the first generation waits for the target number of workers. If all are started, and some of them
    /// cannot be replaced because their host does not respond, it does not wait for these: they join later.
    pub(super) fn first_generation_due(&self) -> Time {
        let at_most = self.leads_since().after(self.settings.rendezvous);
        if self.started_workers(|_| true) < self.target {
            return at_most;
        }
        let due = |placed: SlotWorker| {
            let due = match self.workers.lost(placed.worker) {
                Some((lost, _)) => lost.after(self.settings.first_report),
                None => self.first_report_due(&placed, Time(0)),
            };
            due.after(self.settings.silence * 2)
        };
        let missing = self
            .slots
            .workers()
            .filter(|placed| self.workers.live(placed.worker).is_none());
        missing.map(due).max().unwrap_or(at_most).min(at_most)
    }

    /// Dismisses workers that are not members of a generation of full size.
    fn dismiss_surplus(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        let record = self.lease.record();
        // While a member is lost or the state is being copied, no worker is surplus.
        let is_full = record.members.len() as u32 >= self.target;
        if !is_full || !self.is_established(now) {
            return;
        }
        let surplus: Vec<WorkerId> = self
            .workers
            .all_live()
            .filter(|report| {
                report.phase == WorkerPhase::Idle && !self.dismissed.contains(&report.member.worker)
            })
            .map(|report| report.member.worker)
            .filter(|worker| rank_of(&record.members, *worker).is_none())
            .collect();
        let term = record.term;
        for worker in surplus {
            self.dismissed.insert(worker);
            let message = ToWorker::End {
                term,
                reason: Reason::Drained,
            };
            out.push(CoordinatorCommand::Send {
                to: worker,
                message,
            });
        }
    }
}
