//! The choice of the next generation's members, or why there is none yet. Pure.

use std::collections::BTreeSet;

use ronde_core::Step;

use super::worker_table::WorkerTable;
use crate::assignment::MembershipPolicy;
use crate::journal::{JobPhase, JobRecord, OpenGeneration};
use crate::membership::{MemberInfo, StartFrom, WorkerId};
use crate::membership::{rank_of, succeed};
use crate::message::{WorkerPhase, WorkerReport};
use crate::reason::Reason;
use crate::settings::{Settings, SuccessionPolicy};
use crate::time::Time;

/// The inputs of the decision.
pub(super) struct DecisionInputs<'a> {
    pub(super) now: Time,
    pub(super) leads_since: Time,
    pub(super) settings: &'a Settings,
    pub(super) record: &'a JobRecord,
    pub(super) workers: &'a WorkerTable,
    /// The surplus workers that have received the order to end, which cannot join again.
    pub(super) dismissed: &'a BTreeSet<WorkerId>,
    /// The target number of workers.
    pub(super) target: u32,
    /// Until when the first generation waits for the target number of workers.
    pub(super) first_due: Time,
    /// When the group of this generation was first observed to have failed without a loss.
    pub(super) broken_since: Option<Time>,
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GenerationDecision {
    /// No change is needed.
    Stay,
    /// A decision is due at this time, unless something happens first.
    Later(Time),
    /// A new generation is needed but impossible.
    Wait(Reason),
    /// This generation.
    Go(GenerationPlan),
}

/// The next generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GenerationPlan {
    pub(super) members: Vec<MemberInfo>,
    pub(super) start: StartFrom,
    /// Whether the previous generation cannot continue.
    pub(super) is_urgent: bool,
}

impl DecisionInputs<'_> {
    pub(super) fn next(&self) -> GenerationDecision {
        if self.settings.policy == MembershipPolicy::Fixed {
            return self.only_generation();
        }
        let Some(is_urgent) = self.urgency() else {
            return self
                .due()
                .map_or(GenerationDecision::Stay, GenerationDecision::Later);
        };
        if self.record.generation.is_some() && !is_urgent && !self.is_established() {
            return GenerationDecision::Stay;
        }
        let mut refused = None;
        for members in self.choices() {
            match self.start(&members) {
                Ok(_) if !is_urgent && members == self.record.members => {
                    return GenerationDecision::Stay;
                }
                Ok(start) => {
                    let plan = GenerationPlan {
                        members,
                        start,
                        is_urgent,
                    };
                    return GenerationDecision::Go(plan);
                }
                Err(reason) => refused = Some(reason),
            }
        }
        match refused {
            Some(reason) if is_urgent || self.record.generation.is_none() => {
                GenerationDecision::Wait(reason)
            }
            _ => GenerationDecision::Stay,
        }
    }

    /// Returns the decision about a job with fixed members: one generation, once all workers have reported.
    fn only_generation(&self) -> GenerationDecision {
        let [members, _] = self.choices();
        if self.record.generation.is_some() || members.len() < self.target as usize {
            return GenerationDecision::Stay;
        }
        GenerationDecision::Go(GenerationPlan {
            members,
            start: StartFrom::Checkpoint(self.record.checkpoint),
            is_urgent: false,
        })
    }

    /// Returns `Some(true)` if the generation must be replaced, `Some(false)` if it may be changed,
    /// and `None` if it must not be changed yet.
    fn urgency(&self) -> Option<bool> {
        match self.due() {
            Some(due) if self.now < due => None,
            Some(_) => Some(true),
            None => Some(false),
        }
    }

    /// Returns when a generation that cannot continue is to be replaced.
    fn due(&self) -> Option<Time> {
        let members = &self.record.members;
        if self.record.phase != JobPhase::Running {
            return None;
        }
        let heard_by = self.leads_since.after(self.settings.silence * 2);
        if self.workers.unheard(members) && self.now < heard_by {
            return Some(heard_by);
        }
        let loss = self.workers.first_loss(members);
        let loss = loss.map(|at| at.after(self.settings.settle));
        let broken = self.broken_since.map(|at| at.after(self.settings.silence));
        [loss, broken].into_iter().flatten().min()
    }

    /// Returns whether all members compute steps in this generation, according to their reports.
    pub(super) fn is_established(&self) -> bool {
        let generation = self.record.generation;
        let trains = |member: &MemberInfo| {
            self.workers.live(member.worker).is_some_and(|report| {
                report.generation == generation
                    && matches!(report.phase, WorkerPhase::Training | WorkerPhase::Complete)
            })
        };
        self.record.members.iter().all(trains)
    }

    /// Returns the possible members, the best choice first: without workers that are leaving or
    /// surplus, then with them, for as long as the others cannot continue alone.
    fn choices(&self) -> [Vec<MemberInfo>; 2] {
        let members = &self.record.members;
        let may = |worker: WorkerId| self.workers.excluded(worker, self.now).is_none();
        let stay = members
            .iter()
            .filter_map(|member| self.workers.live(member.worker));
        let joining = self.workers.all_live().filter(|report| {
            let worker = report.member.worker;
            rank_of(members, worker).is_none() && !self.dismissed.contains(&worker)
        });
        // Workers with a state, or that must leave an older generation, have precedence.
        let has_precedence = |report: &&WorkerReport| {
            let worker = report.member.worker;
            report.next.is_some() || self.open().any(|open| open.workers.contains(&worker))
        };
        let (old, new): (Vec<&WorkerReport>, Vec<&WorkerReport>) =
            joining.partition(has_precedence);
        let choose = |with_draining: bool, count: usize| {
            let fits = |report: &&WorkerReport| {
                may(report.member.worker) && (with_draining || !report.draining)
            };
            let member = |report: &WorkerReport| report.member.clone();
            let stay = stay.clone().filter(fits).map(member);
            let old = old.iter().copied().filter(fits).map(member);
            let new = new.iter().copied().filter(fits).map(member);
            succeed(succeed(stay, old, usize::MAX), new, count)
        };
        let most = self.settings.workers_max.max(members.len() as u32);
        [
            choose(false, self.target as usize),
            choose(true, most as usize),
        ]
    }

    /// Returns the start of members without a state, or why these members cannot continue together.
    fn start(&self, members: &[MemberInfo]) -> Result<StartFrom, Reason> {
        let have = members.len() as u32;
        let is_first = self.record.generation.is_none();
        let need = match is_first && self.now < self.first_due {
            true => self.target,
            false => self.settings.workers_min,
        };
        if have < need {
            return Err(Reason::TooFew { have, need });
        }
        let blocks = self.blocking_generation(members);
        match blocks.or_else(|| self.awaited_state(members)) {
            Some(reason) => Err(reason),
            None => self.source(members),
        }
    }

    /// Returns a generation that may still commit a step and therefore blocks the next one. A
    /// generation is over if a member of it joins the next one, and leaves it for that, or if none
    /// of its members can run any more. With [`SuccessionPolicy::Majority`], a majority must also
    /// be reachable.
    fn blocking_generation(&self, members: &[MemberInfo]) -> Option<Reason> {
        self.open().find_map(|open| {
            let (mut goes_on, mut here, mut of) = (0, 0, 0);
            for worker in &open.workers {
                goes_on += u32::from(rank_of(members, *worker).is_some());
                let is_live = self.workers.live(*worker).is_some();
                here += u32::from(is_live);
                of += u32::from(is_live || !self.is_gone(*worker));
            }
            let enough = match self.settings.succession {
                SuccessionPolicy::Lease => goes_on > 0,
                SuccessionPolicy::Majority => goes_on > 0 && 2 * here > of,
            };
            let generation = open.generation;
            (!enough && of > 0).then_some(Reason::NoSuccession {
                generation,
                here,
                of,
            })
        })
    }

    /// Returns the generations that may still commit a step.
    pub(super) fn open(&self) -> impl Iterator<Item = &OpenGeneration> {
        self.record.open.iter().filter(|open| {
            let left = |worker: &WorkerId| self.workers.has_left(*worker, open.generation);
            let all_gone = || open.workers.iter().all(|worker| self.is_gone(*worker));
            !open.workers.iter().any(left) && !all_gone()
        })
    }

    /// Returns whose state the generation starts with.
    fn source(&self, members: &[MemberInfo]) -> Result<StartFrom, Reason> {
        let holds = |member: &MemberInfo| {
            self.workers
                .live(member.worker)
                .is_some_and(|report| report.next.is_some())
        };
        if members.iter().any(holds) {
            return Ok(StartFrom::Peers);
        }
        match self.possible_holders().len() {
            0 => Ok(StartFrom::Checkpoint(self.record.checkpoint)),
            unreachable => Err(Reason::NoState {
                unreachable: unreachable as u32,
            }),
        }
    }

    /// Returns for whom the members wait if they lack parts of the state: silent workers that may have these, until one of them is
    /// back or they have been silent for too long.
    pub(super) fn awaited_state(&self, members: &[MemberInfo]) -> Option<Reason> {
        let generation = self.record.generation?;
        let report = |member: &MemberInfo| self.workers.live(member.worker);
        let lacks =
            |report: &WorkerReport| report.lacks_state && report.generation == Some(generation);
        let lack_state = self.record.members.iter().filter_map(report).any(lacks);
        let is_back = |member: &MemberInfo| {
            rank_of(&self.record.members, member.worker).is_none()
                && report(member).is_some_and(|report| report.next.is_some())
        };
        if !lack_state || members.iter().any(is_back) {
            return None;
        }
        let silent = self.silent_holders().len() as u32;
        (silent > 0).then_some(Reason::LacksState { silent })
    }

    /// Returns when the workers were lost that may have parts of the state and have not been silent for too long. Their processes may
    /// still run.
    pub(super) fn silent_holders(&self) -> Vec<Time> {
        let limit = self.settings.state_wait;
        match self.settings.is_divided {
            true => self.workers.silent_holders(limit, self.now),
            false => Vec::new(),
        }
    }

    /// Returns the members of generations that may have trained and that may hold the state now: those
    /// that report it, and those that cannot be reached.
    fn possible_holders(&self) -> BTreeSet<WorkerId> {
        let may_hold = |worker: &WorkerId| match self.workers.live(*worker) {
            Some(report) => report.next.is_some(),
            None => !self.is_gone(*worker),
        };
        let is_current = |generation| Some(generation) == self.record.generation;
        let never_started = self.has_never_started();
        let current = self.record.members.iter().map(|member| member.worker);
        let current = current.filter(|_| !never_started);
        let older = self
            .open()
            .filter(|open| !is_current(open.generation))
            .flat_map(|open| open.workers.iter().copied());
        current.chain(older).filter(may_hold).collect()
    }

    /// Returns whether the process of a silent worker may be killed: it has not reported a state, and
    /// if it may have received one since, a worker that responds holds the state as well.
    pub(super) fn is_dispensable(&self, worker: WorkerId) -> bool {
        let has_state = |report: &WorkerReport| report.next.is_some();
        !self.workers.last_report(worker).is_some_and(has_state)
            && (self.workers.all_live().any(has_state)
                || !self.possible_holders().contains(&worker))
    }

    /// Returns whether the newest generation started without a state and has committed nothing. Its
    /// members then hold at most the checkpoint or the initial weights from which it started.
    pub(super) fn has_never_started(&self) -> bool {
        let members = &self.record.members;
        let (StartFrom::Checkpoint(checkpoint), Some(generation)) =
            (self.record.start, self.record.generation)
        else {
            return false;
        };
        // A member may turn out to have a later state, which it then shares with the others.
        let start = checkpoint.unwrap_or(Step(0));
        let has_later_state = |member: &MemberInfo| {
            let report = self.workers.last_report(member.worker);
            report.and_then(|report| report.next) > Some(start)
        };
        self.workers.has_committed_nothing(members, generation)
            && !members.iter().any(has_later_state)
    }

    fn is_gone(&self, worker: WorkerId) -> bool {
        let certain = self.settings.certain_end();
        self.workers
            .is_gone(worker, self.leads_since, certain, self.now)
    }
}
