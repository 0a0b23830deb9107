//! From what is known of the workers to the next generation, its record and its announcement.

use ronde_core::{Generation, Step};

use super::succession::{Next, Plan, Situation};
use super::{Command, CoordinatorMachine, Newest};
use crate::membership::rank_of;
use crate::{JobPhase, OpenGeneration, Reason, StartFrom, Time, ToWorker, When};

impl CoordinatorMachine {
    fn situation(&self, now: Time) -> Situation<'_> {
        Situation {
            now,
            leads_since: self.leads_since,
            settings: &self.settings,
            record: self.lease.record(),
            roster: &self.roster,
            target: self.target,
            broken_since: self.broken_since,
        }
    }

    /// Whether all members compute steps, as far as they have told.
    pub(super) fn is_established(&self, now: Time) -> bool {
        self.situation(now).is_established()
    }

    /// When the next decision about the generation is due, if one is.
    pub(super) fn due_at(&self, now: Time) -> Option<Time> {
        match self.situation(now).next() {
            Next::Later(at) => Some(at),
            _ => None,
        }
    }

    /// Tells everybody concerned of a generation that stands in the record now.
    pub(super) fn announce(&mut self, out: &mut Vec<Command>) {
        let generation = self.lease.record().generation;
        if generation == self.announced {
            return;
        }
        self.announced = generation;
        if self.newest.generation != generation {
            // A change of this coordinator whose plan was overtaken by another one of its own.
            self.newest.previous = self.newest.generation;
            (self.newest.generation, self.newest.when) = (generation, When::Now);
        }
        (self.broken_since, self.waiting) = (None, None);
        out.push(Command::Tell(self.newest.reason.clone()));
        let concerned = self
            .newest
            .previous_members
            .iter()
            .chain(&self.lease.record().members);
        let mut told = Vec::new();
        for member in concerned {
            if !told.contains(&member.worker) && self.roster.live(member.worker).is_some() {
                told.push(member.worker);
                let message = ToWorker::Assign(self.assignment(self.newest.previous));
                out.push(Command::Send {
                    to: member.worker,
                    message,
                });
            }
        }
    }

    /// Members of a generation that has lost somebody drop its group at once.
    pub(super) fn abort_if_lost(&mut self, out: &mut Vec<Command>) {
        let record = self.lease.record();
        let (term, generation) = (record.term, record.generation);
        if self.aborted == Some(generation) || record.phase != JobPhase::Running {
            return;
        }
        let losses = self.roster.losses(&record.members);
        if losses.is_empty() {
            return;
        }
        let reason = Reason::GivenUp { losses, generation };
        self.first_failure.get_or_insert(reason.clone());
        for member in &record.members {
            if self.roster.live(member.worker).is_some() {
                let message = ToWorker::Abort {
                    term,
                    generation,
                    reason: reason.clone(),
                };
                out.push(Command::Send {
                    to: member.worker,
                    message,
                });
            }
        }
        out.push(Command::Tell(reason));
        self.aborted = Some(generation);
    }

    /// Notices a group that failed although nobody is lost, and who has to stay out when that happens
    /// at the same step again.
    pub(super) fn note_broken(&mut self, now: Time) {
        let record = self.lease.record();
        let (generation, members) = (record.generation, record.members.clone());
        if self.roster.broken(&members, generation).next().is_none() {
            return;
        }
        let since = *self.broken_since.get_or_insert(now);
        let is_due = now >= since.after(self.settings.silence);
        if !is_due || self.lease.is_busy() || !self.roster.losses(&members).is_empty() {
            return;
        }
        // The generation before had failed at this step as well.
        let step = self.roster.newest(&members);
        let again = self
            .reformed
            .take_if(|(formed, at)| *formed == generation && *at == step);
        let can_spare = members.len() as u32 > self.settings.workers_min;
        if again.is_some()
            && can_spare
            && let Some(worker) = self.roster.most_blamed(&members, generation)
        {
            let until = self.exclusion(now);
            self.roster.exclude(worker, until);
        }
    }

    pub(super) fn next_generation(&mut self, now: Time, out: &mut Vec<Command>) {
        match self.situation(now).next() {
            Next::Stay | Next::Later(_) => {
                self.waiting = None;
                self.forget_failures(now);
            }
            Next::Wait(reason) => self.wait(now, reason, out),
            Next::Go(plan) => self.go(now, plan, out),
        }
    }

    /// What all have trained on from for longer than any pause before a restart is history. A program
    /// that dies soon after each start is told of with its first death.
    fn forget_failures(&mut self, now: Time) {
        if !self.is_established(now) {
            self.established_since = None;
            return;
        }
        let since = *self.established_since.get_or_insert(now);
        if now.since(since) > self.settings.restart.pause_max {
            self.first_failure = None;
        }
    }

    fn wait(&mut self, now: Time, reason: Reason, out: &mut Vec<Command>) {
        let since = self.waiting.as_ref().map_or(now, |(since, _)| *since);
        if self
            .waiting
            .as_ref()
            .is_none_or(|(_, told)| *told != reason)
        {
            out.push(Command::Tell(reason.clone()));
        }
        let in_vain = now.since(since) > self.settings.wait_limit
            || self.places.are_exhausted() && self.roster.all_live().next().is_none();
        self.waiting = Some((since, reason.clone()));
        if in_vain {
            self.fail(reason, out);
        }
    }

    fn go(&mut self, now: Time, plan: Plan, out: &mut Vec<Command>) {
        let generation = self.lease.record().generation.next();
        let reason = self.reason(generation, &plan, now);
        let anew = match reason {
            Reason::StateLost { checkpoint, .. } => Some((checkpoint, self.times_from(checkpoint))),
            _ => None,
        };
        if let Some((checkpoint, times)) = anew
            && times > self.anew_max()
        {
            return self.fail(Reason::NoProgress { times, checkpoint }, out);
        }
        let previous = self.lease.record().generation;
        let previous_members = self.lease.record().members.clone();
        let Plan {
            members,
            start,
            is_urgent,
        } = plan;
        let mut open: Vec<OpenGeneration> = self.situation(now).open().cloned().collect();
        let workers = members.iter().map(|member| member.worker).collect();
        open.push(OpenGeneration {
            generation,
            workers,
        });
        let proposed = self.propose(now, out, |record| {
            (record.generation, record.members, record.start) = (generation, members, start);
            record.open = open;
        });
        if proposed {
            self.begun_anew = anew.or(self.begun_anew);
            if is_urgent && self.roster.losses(&previous_members).is_empty() {
                self.reformed = Some((generation, self.roster.newest(&previous_members)));
            }
            let when = if is_urgent { When::Now } else { When::Boundary };
            self.newest = Newest {
                generation,
                when,
                reason,
                previous,
                previous_members,
            };
        }
    }

    /// How often in a row the job has begun from a checkpoint, when it does so once more.
    fn times_from(&self, checkpoint: Option<Step>) -> u32 {
        match self.begun_anew {
            Some((from, times)) if from == checkpoint => times.saturating_add(1),
            _ => 1,
        }
    }

    /// All workers may be lost this often on the way from one checkpoint to the next: as often as they
    /// may die one by one.
    fn anew_max(&self) -> u32 {
        self.settings
            .restart
            .restarts_max
            .max(1)
            .saturating_mul(self.target)
    }

    fn reason(&self, generation: Generation, plan: &Plan, now: Time) -> Reason {
        let record = self.lease.record();
        let workers = plan.members.len() as u32;
        let losses = self.roster.losses(&record.members);
        if record.generation == Generation(0) {
            return Reason::Begun {
                generation,
                workers,
            };
        }
        if let StartFrom::Checkpoint(checkpoint) = plan.start {
            return Reason::StateLost {
                generation,
                workers,
                checkpoint,
            };
        }
        if !losses.is_empty() {
            let redone = self.roster.newest(&record.members);
            return Reason::Lost {
                losses,
                generation,
                workers,
                redone,
            };
        }
        if plan.is_urgent {
            let mut told = self.roster.broken(&record.members, record.generation);
            let cause = told.find_map(|report| report.trouble.as_ref().map(|t| t.cause.clone()));
            let cause = cause.unwrap_or_else(|| "a member left it".to_owned());
            let out = record.members.iter().map(|member| member.worker);
            let excluded = out
                .clone()
                .find(|w| self.roster.excluded(*w, now).is_some());
            return Reason::Reformed {
                generation,
                workers,
                cause,
                excluded,
            };
        }
        let came = |member: &&crate::Member| rank_of(&record.members, member.worker).is_none();
        let joined = plan.members.iter().filter(came).count() as u32;
        let left = record.members.len() as u32 + joined - workers;
        Reason::Changed {
            generation,
            workers,
            joined,
            left,
        }
    }
}
