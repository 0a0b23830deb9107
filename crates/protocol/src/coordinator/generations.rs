//! From the knowledge about workers to the next generation, its record and its announcement.

use std::time::Duration;

use ronde_core::{Generation, Rank, Step};

use super::succession::{DecisionInputs, GenerationDecision, GenerationPlan};
use super::{
    CheckpointStart, CoordinatorCommand, CoordinatorMachine, GenerationChange, ReformedGeneration,
    Waiting,
};
use crate::assignment::MembershipPolicy;
use crate::journal::{JobPhase, OpenGeneration};
use crate::membership::rank_of;
use crate::membership::{MemberInfo, StartFrom, SwitchTiming, WorkerId};
use crate::message::ToWorker;
use crate::reason::{Reason, WaitEnd};
use crate::time::Time;

/// Time after which a wait is reported again for the first time; shorter ones are usual.
const WAIT_IS_LONG: Duration = Duration::from_secs(2);
/// Interval between two messages about the same wait.
const WAIT_NOTICE: Duration = Duration::from_secs(10);

/// The shortest exclusion of a worker that another one cannot connect to. Each return costs all workers a wait until the
/// time limit of connections.
const SEPARATION: Duration = Duration::from_secs(300);

impl CoordinatorMachine {
    pub(super) fn situation(&self, now: Time) -> DecisionInputs<'_> {
        DecisionInputs {
            now,
            leads_since: self.leads_since(),
            settings: &self.settings,
            record: self.lease.record(),
            workers: &self.workers,
            dismissed: &self.dismissed,
            target: self.target,
            first_due: self.first_generation_due(),
            broken_since: self.broken_since,
        }
    }

    /// Returns whether all members compute steps, according to their reports.
    pub(super) fn is_established(&self, now: Time) -> bool {
        self.situation(now).is_established()
    }

    /// Returns when the next decision about the generation is due, if one is.
    pub(super) fn due_at(&self, now: Time) -> Option<Time> {
        match self.situation(now).next() {
            GenerationDecision::Later(at) => Some(at),
            _ => None,
        }
    }

    /// Announces a generation that is now in the record to all workers concerned.
    pub(super) fn announce(&mut self, out: &mut Vec<CoordinatorCommand>) {
        let record = self.lease.record();
        let before = self.newest.as_ref();
        let generation = match record.generation {
            Some(generation) if before.is_none_or(|before| before.generation != generation) => {
                generation
            }
            _ => return,
        };
        let is_it = |change: &mut GenerationChange| {
            change.generation == generation && change.members == record.members
        };
        // An earlier proposal may be stored although its answer was lost and another one followed.
        let proposed = self.proposed.take_if(is_it);
        let change = proposed.unwrap_or_else(|| GenerationChange {
            generation,
            members: record.members.clone(),
            when: SwitchTiming::Now,
            reason: self.adopted_reason(generation),
            previous: before.map(|before| before.generation),
            previous_members: before.map_or_else(Vec::new, |before| before.members.clone()),
            awaited: 0,
        });
        (self.broken_since, self.waiting) = (None, None);
        out.push(CoordinatorCommand::Log(change.reason.clone()));
        let concerned = change.previous_members.iter().chain(&change.members);
        let mut notified = Vec::new();
        for member in concerned {
            if !notified.contains(&member.worker) && self.workers.live(member.worker).is_some() {
                notified.push(member.worker);
                let message = ToWorker::Assign(self.assignment(&change, change.previous));
                out.push(CoordinatorCommand::Send {
                    to: member.worker,
                    message,
                });
            }
        }
        self.newest = Some(change);
    }

    /// Returns the reason for the generation in the record if its decision is not known.
    pub(super) fn adopted_reason(&self, generation: Generation) -> Reason {
        let record = self.lease.record();
        if record.phase != JobPhase::Running {
            return self.final_reason();
        }
        Reason::Adopted {
            generation,
            workers: record.members.len() as u32,
            start: record.start,
        }
    }

    /// Tells the members of a generation with losses to leave its group immediately.
    pub(super) fn abort_if_lost(&mut self, out: &mut Vec<CoordinatorCommand>) {
        let record = self.lease.record();
        let (term, Some(generation)) = (record.term, record.generation) else {
            return;
        };
        let is_final = self.settings.policy == MembershipPolicy::Fixed;
        if is_final || self.aborted == Some(generation) || record.phase != JobPhase::Running {
            return;
        }
        let losses = self.workers.losses(&record.members);
        if losses.is_empty() {
            return;
        }
        let reason = Reason::GivenUp { losses, generation };
        self.latest_loss = Some(reason.clone());
        for member in &record.members {
            if self.workers.live(member.worker).is_some() {
                let message = ToWorker::Abort {
                    term,
                    generation,
                    reason: reason.clone(),
                };
                out.push(CoordinatorCommand::Send {
                    to: member.worker,
                    message,
                });
            }
        }
        out.push(CoordinatorCommand::Log(reason));
        self.aborted = Some(generation);
    }

    /// Notices a group that failed without a loss, and excludes a member if two cannot connect to each other, or if this
    /// happens twice at the same step.
    pub(super) fn note_broken(&mut self, now: Time) {
        let record = self.lease.record();
        let (Some(generation), members) = (record.generation, record.members.clone()) else {
            return;
        };
        if self.workers.broken(&members, generation).next().is_none() {
            return;
        }
        let since = *self.broken_since.get_or_insert(now);
        let is_due = now >= since.after(self.settings.silence);
        if !is_due || self.lease.is_busy() || !self.workers.losses(&members).is_empty() {
            return;
        }
        // The previous generation failed at this step as well.
        let step = self.workers.newest(&members);
        let again = self
            .reformed
            .take_if(|formed| formed.generation == generation && formed.failed_at == step);
        let separated = self.workers.separated(&members, generation).is_some();
        let blamed = self.workers.most_blamed(&members, generation);
        let Some(blamed) = blamed.filter(|_| separated || again.is_some()) else {
            return;
        };
        let mut excluded = vec![blamed];
        if separated {
            // A fault between two hosts separates all of their workers.
            let of_host = of_host(&members, blamed);
            if self.can_spare(of_host.len(), members.len()) {
                excluded = of_host;
            }
        }
        if !self.can_spare(excluded.len(), members.len()) {
            return;
        }
        let until = match separated {
            true => self.exclusion(now).max(now.after(SEPARATION)),
            false => self.exclusion(now),
        };
        for worker in excluded {
            self.workers.exclude(worker, until);
        }
    }

    /// Returns whether the job can continue without `count` of its `all` workers.
    fn can_spare(&self, count: usize, all: usize) -> bool {
        let left = all.saturating_sub(count) as u32;
        left >= self.settings.workers_min.max(1)
    }

    pub(super) fn next_generation(&mut self, now: Time, out: &mut Vec<CoordinatorCommand>) {
        match self.situation(now).next() {
            GenerationDecision::Stay | GenerationDecision::Later(_) => {
                self.waiting = None;
                self.forget_failures(now);
            }
            GenerationDecision::Wait(reason) => self.wait(now, reason, out),
            GenerationDecision::Go(plan) => self.propose_generation(now, plan, out),
        }
    }

    /// Forgets the latest loss once all members have trained for longer than any pause before a restart, so that it is not
    /// reported as the cause of a later failure.
    fn forget_failures(&mut self, now: Time) {
        if !self.is_established(now) {
            self.established_since = None;
            return;
        }
        let since = *self.established_since.get_or_insert(now);
        if now.since(since) > self.settings.restart.pause_max {
            self.latest_loss = None;
        }
    }

    fn wait(&mut self, now: Time, reason: Reason, out: &mut Vec<CoordinatorCommand>) {
        let since = self.waiting.as_ref().map_or(now, |waiting| waiting.since);
        let too_few = matches!(reason, Reason::TooFew { .. })
            && self.slots.are_fewer_than(self.settings.workers_min);
        let in_vain = now.since(since) > self.settings.wait_limit
            || too_few && !self.settings.hosts_may_join
            || self.slots.are_exhausted() && self.workers.all_live().next().is_none();
        if in_vain {
            return self.give_up(reason, out);
        }
        let last = self
            .waiting
            .as_ref()
            .map(|waiting| (&waiting.cause, waiting.logged));
        let recent = last.filter(|(last, logged)| {
            let interval = match *logged == since {
                true => WAIT_IS_LONG,
                false => WAIT_NOTICE,
            };
            **last == reason && now.since(*logged) < interval
        });
        let logged = recent.map_or(now, |(_, logged)| logged);
        let is_recent = recent.is_some();
        let notice = self.waiting_notice(now, since, reason.clone());
        if !is_recent {
            out.push(CoordinatorCommand::Log(notice.clone()));
        }
        self.waiting = Some(Waiting {
            since,
            logged,
            cause: reason,
            notice,
        });
    }

    /// Returns the complete reason for waiting: the cause, the workers that do not report, and the time
    /// left.
    fn waiting_notice(&self, now: Time, since: Time, cause: Reason) -> Reason {
        let record = self.lease.record();
        let is_first = record.generation.is_none();
        let missing = if is_first {
            let unreported = self
                .slots
                .workers()
                .filter(|placed| !self.workers.knows(placed.worker));
            unreported.map(|placed| placed.slot.0).collect()
        } else {
            let losses = self.workers.losses(&record.members);
            losses.iter().map(|loss| u64::from(loss.rank.0)).collect()
        };
        let start = self.first_generation_due();
        let has_minimum =
            matches!(cause, Reason::TooFew { have, .. } if have >= self.settings.workers_min);
        let silent = self.situation(now).silent_holders().into_iter().max();
        let (then, end) = match (&cause, silent) {
            (Reason::LacksState { .. }, Some(lost)) => (
                WaitEnd::ReturnToEarlier,
                lost.after(self.settings.state_wait),
            ),
            _ if is_first && has_minimum && now < start => (WaitEnd::StartWithFewer, start),
            _ => (WaitEnd::Fail, since.after(self.settings.wait_limit)),
        };
        Reason::Waiting {
            cause: Box::new(cause),
            missing,
            waited: now.since(since),
            left: end.since(now),
            then,
        }
    }

    fn propose_generation(
        &mut self,
        now: Time,
        plan: GenerationPlan,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let generation = self.lease.record().next_generation();
        let reason = self.reason(generation, &plan, now);
        let again = match reason {
            Reason::StateLost { checkpoint, .. } => Some(self.start_from(checkpoint)),
            _ => None,
        };
        if let Some(CheckpointStart { checkpoint, times }) = again
            && times > self.starts_from_checkpoint_max()
        {
            return self.fail(Reason::NoProgress { times, checkpoint }, out);
        }
        let previous = self.lease.record().generation;
        let previous_members = self.lease.record().members.clone();
        let GenerationPlan {
            members,
            start,
            is_urgent,
        } = plan;
        let awaited = self.situation(now).silent_holders().len() as u32;
        let mut open: Vec<OpenGeneration> = self.situation(now).open().cloned().collect();
        let next_members = members.clone();
        let workers = members.iter().map(|member| member.worker).collect();
        open.push(OpenGeneration {
            generation,
            workers,
        });
        let proposed = self.propose(now, out, |record| {
            (record.generation, record.members, record.start) = (Some(generation), members, start);
            record.open = open;
        });
        if proposed {
            self.begun_anew = again.or(self.begun_anew);
            if is_urgent && self.workers.losses(&previous_members).is_empty() {
                self.reformed = Some(ReformedGeneration {
                    generation,
                    failed_at: self.workers.newest(&previous_members),
                });
            }
            let when = if is_urgent {
                SwitchTiming::Now
            } else {
                SwitchTiming::Boundary
            };
            self.proposed = Some(GenerationChange {
                generation,
                members: next_members,
                when,
                reason,
                previous,
                previous_members,
                awaited,
            });
        }
    }

    /// Returns the start from `checkpoint` that is about to happen.
    fn start_from(&self, checkpoint: Option<Step>) -> CheckpointStart {
        let before = self.begun_anew;
        let before = before.filter(|before| before.checkpoint == checkpoint);
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        CheckpointStart { checkpoint, times }
    }

    /// Returns how often all workers may be lost after starting from one checkpoint: as often as
    /// they may fail one by one.
    fn starts_from_checkpoint_max(&self) -> u32 {
        self.settings
            .restart
            .restarts_max
            .max(1)
            .saturating_mul(self.target)
    }

    fn reason(&self, generation: Generation, plan: &GenerationPlan, now: Time) -> Reason {
        let record = self.lease.record();
        let workers = plan.members.len() as u32;
        let losses = self.workers.losses(&record.members);
        let Some(ended) = record.generation else {
            return Reason::Begun {
                generation,
                workers,
            };
        };
        let is_state_lost = !self.situation(now).has_never_started();
        if let StartFrom::Checkpoint(checkpoint) = plan.start
            && is_state_lost
        {
            return Reason::StateLost {
                generation,
                workers,
                checkpoint,
            };
        }
        if !losses.is_empty() {
            let redone = self.workers.newest(&record.members);
            return Reason::Lost {
                losses,
                generation,
                workers,
                redone,
            };
        }
        if plan.is_urgent {
            let reported = || {
                let mut reports = self.workers.broken(&record.members, ended);
                reports.find_map(|report| report.trouble.as_ref().map(|t| t.cause.clone()))
            };
            let separated = self.workers.separated(&record.members, ended);
            let cause = separated.map(|pair| separation(&record.members, pair));
            let cause = cause
                .or_else(reported)
                .unwrap_or_else(|| "a member left it".to_owned());
            let out = record.members.iter().map(|member| member.worker);
            let excluded = out
                .clone()
                .find(|w| self.workers.excluded(*w, now).is_some());
            return Reason::Reformed {
                generation,
                workers,
                cause,
                excluded,
            };
        }
        let is_new =
            |member: &&crate::MemberInfo| rank_of(&record.members, member.worker).is_none();
        let joined = plan.members.iter().filter(is_new).count() as u32;
        let left = record.members.len() as u32 + joined - workers;
        Reason::Changed {
            generation,
            workers,
            joined,
            left,
        }
    }
}

/// Returns a sentence about two members that cannot connect to each other. The higher rank dials the lower one.
fn separation(members: &[MemberInfo], (lower, higher): (Rank, Rank)) -> String {
    let [from, to] = [higher, lower].map(|rank| &members[rank.index()]);
    format!(
        "worker {} on {} cannot connect to worker {} on {} at {}",
        from.worker, from.host, to.worker, to.host, to.address
    )
}

/// Returns the members on the host of one of them.
fn of_host(members: &[MemberInfo], worker: WorkerId) -> Vec<WorkerId> {
    let found = members.iter().find(|member| member.worker == worker);
    let host = found.map(|member| &member.host);
    let of_host = members.iter().filter(|member| Some(&member.host) == host);
    of_host.map(|member| member.worker).collect()
}
