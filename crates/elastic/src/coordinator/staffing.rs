//! Starting workers where they are missing, and letting go of those that are too many.

use super::{Command, CoordinatorMachine, Departure};
use crate::membership::rank_of;
use crate::{JobPhase, LossCause, Phase, Place, Reason, Time, ToWorker, WorkerId};

impl CoordinatorMachine {
    pub(super) fn exited(
        &mut self,
        now: Time,
        (place, worker): (Place, WorkerId),
        cause: &LossCause,
        out: &mut Vec<Command>,
    ) {
        let drained = self.roster.drains(worker);
        let departure = if self.dismissed.contains(&worker) {
            Departure::Dismissed
        } else if drained || self.record().phase != JobPhase::Running {
            Departure::Drained
        } else {
            Departure::Died
        };
        self.roster.ended(worker, cause.clone(), now);
        let limits = &self.settings.restart;
        let given_up = self
            .places
            .ended((place, worker), cause, departure, limits, now);
        if let Some(reason) = given_up {
            self.first_failure.get_or_insert(reason.clone());
            out.push(Command::Tell(reason));
        }
    }

    /// Starts workers until there are as many as are wanted.
    pub(super) fn staff(&mut self, now: Time, out: &mut Vec<Command>) {
        self.kill_the_mute(now, out);
        while self.count() < self.target
            && let Some(start) = self.places.due(now)
        {
            self.started += 1;
            let worker = WorkerId(self.record().term.0 << 20 | self.started);
            self.places.filled(start.place, worker, now);
            out.push(Command::Tell(start.reason));
            out.push(Command::Start {
                host: start.host,
                place: start.place,
                worker,
            });
        }
        self.dismiss_surplus(now, out);
    }

    /// Workers that run or are being started, as far as is known.
    fn count(&self) -> u32 {
        let placed = self.places.workers().map(|(_, worker, _)| worker);
        let placed = placed.filter(|worker| self.roster.lost(*worker).is_none());
        let live = self.roster.all_live().map(|report| report.member.worker);
        let mut workers: Vec<WorkerId> = placed.chain(live).collect();
        workers.sort_unstable();
        workers.dedup();
        workers.len() as u32
    }

    /// A worker that never reported, or that must have ended and has not, only keeps its place.
    fn kill_the_mute(&mut self, now: Time, out: &mut Vec<Command>) {
        let certain = self.settings.certain_end();
        let mute: Vec<(Place, WorkerId)> = self
            .places
            .workers()
            .filter(|(_, worker, started)| {
                let never = !self.roster.knows(*worker)
                    && now.since((*started).max(self.leads_since)) > self.settings.rendezvous;
                never || self.roster.is_gone(*worker, self.leads_since, certain, now)
            })
            .map(|(place, worker, _)| (place, worker))
            .collect();
        for (place, worker) in mute {
            if self.killed.insert(worker) {
                out.push(Command::Kill { place, worker });
            }
        }
    }

    /// Workers without a place in a generation that is as large as it should be may end.
    fn dismiss_surplus(&mut self, now: Time, out: &mut Vec<Command>) {
        let record = self.lease.record();
        // While a member is lost or the state is passed on, nobody is one too many.
        let is_full = record.members.len() as u32 >= self.target;
        if !is_full || !self.is_established(now) {
            return;
        }
        let surplus: Vec<WorkerId> = self
            .roster
            .all_live()
            .filter(|report| {
                report.phase == Phase::Idle && !self.dismissed.contains(&report.member.worker)
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
            out.push(Command::Send {
                to: worker,
                message,
            });
        }
    }
}
