//! Who goes on: the members of the next generation, or why there is none yet. Pure.

use std::collections::BTreeSet;

use ronde_core::Generation;

use super::roster::Roster;
use crate::membership::{rank_of, succeed};
use crate::{
    JobPhase, Member, OpenGeneration, Phase, Reason, Record, Report, Settings, StartFrom,
    Succession, Time, WorkerId,
};

/// All that the decision depends on.
pub(super) struct Situation<'a> {
    pub(super) now: Time,
    pub(super) leads_since: Time,
    pub(super) settings: &'a Settings,
    pub(super) record: &'a Record,
    pub(super) roster: &'a Roster,
    /// How many workers are wanted.
    pub(super) target: u32,
    /// When the group of this generation was first seen to be broken without a loss.
    pub(super) broken_since: Option<Time>,
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// All is well.
    Stay,
    /// Nothing before this time, unless something happens.
    Later(Time),
    /// A new generation is needed and impossible.
    Wait(Reason),
    /// This one.
    Go(Plan),
}

/// The next generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) members: Vec<Member>,
    pub(super) start: StartFrom,
    /// The one before cannot go on.
    pub(super) is_urgent: bool,
}

impl Situation<'_> {
    pub(super) fn next(&self) -> Next {
        let Some(is_urgent) = self.urgency() else {
            return self.due().map_or(Next::Stay, Next::Later);
        };
        if self.record.generation > Generation(0) && !is_urgent && !self.is_established() {
            return Next::Stay;
        }
        let mut refused = None;
        for members in self.choices() {
            match self.start(&members) {
                Ok(_) if !is_urgent && members == self.record.members => return Next::Stay,
                Ok(start) => {
                    let plan = Plan {
                        members,
                        start,
                        is_urgent,
                    };
                    return Next::Go(plan);
                }
                Err(reason) => refused = Some(reason),
            }
        }
        match refused {
            Some(reason) if is_urgent || self.record.generation == Generation(0) => {
                Next::Wait(reason)
            }
            _ => Next::Stay,
        }
    }

    /// Whether the generation cannot go on (`Some(true)`), may be changed (`Some(false)`), or must be
    /// left alone for now.
    fn urgency(&self) -> Option<bool> {
        match self.due() {
            Some(due) if self.now < due => None,
            Some(_) => Some(true),
            None => Some(false),
        }
    }

    /// When a generation that cannot go on is to be replaced.
    fn due(&self) -> Option<Time> {
        let members = &self.record.members;
        if self.record.phase != JobPhase::Running {
            return None;
        }
        let heard_by = self.leads_since.after(self.settings.silence * 2);
        if self.roster.unheard(members) && self.now < heard_by {
            return Some(heard_by);
        }
        let loss = self.roster.first_loss(members);
        let loss = loss.map(|at| at.after(self.settings.settle));
        let broken = self.broken_since.map(|at| at.after(self.settings.silence));
        [loss, broken].into_iter().flatten().min()
    }

    /// Whether all members compute steps in this generation, as far as they have told.
    pub(super) fn is_established(&self) -> bool {
        let generation = self.record.generation;
        let stands = |member: &Member| {
            self.roster.live(member.worker).is_some_and(|report| {
                report.generation == generation
                    && matches!(report.phase, Phase::Training | Phase::Complete)
            })
        };
        self.record.members.iter().all(stands)
    }

    /// Possible members, the best choice first: without those who want to leave or are too many, then
    /// with them, for as long as the others cannot go on alone.
    fn choices(&self) -> [Vec<Member>; 2] {
        let members = &self.record.members;
        let may = |worker: WorkerId| self.roster.excluded(worker, self.now).is_none();
        let stay = members
            .iter()
            .filter_map(|member| self.roster.live(member.worker));
        let come = self.roster.all_live();
        let come = come.filter(|report| rank_of(members, report.member.worker).is_none());
        // Whoever comes with a state, or has to leave an older generation for this one, comes first.
        let matters = |report: &&Report| {
            let worker = report.member.worker;
            report.next.is_some() || self.open().any(|open| open.workers.contains(&worker))
        };
        let (old, new): (Vec<&Report>, Vec<&Report>) = come.partition(matters);
        let choose = |with_draining: bool, count: usize| {
            let fits =
                |report: &&Report| may(report.member.worker) && (with_draining || !report.draining);
            let member = |report: &Report| report.member.clone();
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

    /// What members do that hold no state, or why these cannot go on together.
    fn start(&self, members: &[Member]) -> Result<StartFrom, Reason> {
        let have = members.len() as u32;
        let is_first = self.record.generation == Generation(0);
        let all_in = self.now >= self.leads_since.after(self.settings.rendezvous);
        let need = match is_first && !all_in {
            true => self.target,
            false => self.settings.workers_min,
        };
        if have < need {
            return Err(Reason::TooFew { have, need });
        }
        match self.no_succession(members) {
            Some(reason) => Err(reason),
            None => self.source(members),
        }
    }

    /// Every generation that may still commit a step must be over before the next one begins: a member
    /// of it goes on, and leaves it for that; or none of its members can run any more. A majority has
    /// to be heard as well, whether it goes on or not.
    fn no_succession(&self, members: &[Member]) -> Option<Reason> {
        self.open().find_map(|open| {
            let (mut goes_on, mut here, mut of) = (0, 0, 0);
            for worker in &open.workers {
                goes_on += u32::from(rank_of(members, *worker).is_some());
                let is_live = self.roster.live(*worker).is_some();
                here += u32::from(is_live);
                of += u32::from(is_live || !self.is_gone(*worker));
            }
            let enough = match self.settings.succession {
                Succession::Lease => goes_on > 0,
                Succession::Majority => goes_on > 0 && 2 * here > of,
            };
            let generation = open.generation;
            (!enough && of > 0).then_some(Reason::NoSuccession {
                generation,
                here,
                of,
            })
        })
    }

    /// Generations that may still commit a step.
    pub(super) fn open(&self) -> impl Iterator<Item = &OpenGeneration> {
        self.record.open.iter().filter(|open| {
            let left = |worker: &WorkerId| self.roster.has_left(*worker, open.generation);
            let all_gone = || open.workers.iter().all(|worker| self.is_gone(*worker));
            !open.workers.iter().any(left) && !all_gone()
        })
    }

    /// Whose state the generation begins with.
    fn source(&self, members: &[Member]) -> Result<StartFrom, Reason> {
        let holds = |member: &Member| {
            self.roster
                .live(member.worker)
                .is_some_and(|report| report.next.is_some())
        };
        if members.iter().any(holds) {
            return Ok(StartFrom::Peers);
        }
        let may_hold = |worker: &WorkerId| match self.roster.live(*worker) {
            Some(report) => report.next.is_some(),
            None => !self.is_gone(*worker),
        };
        let current = self.record.members.iter().map(|member| member.worker);
        let older = self.open().flat_map(|open| open.workers.iter().copied());
        let all: BTreeSet<WorkerId> = current.chain(older).collect();
        match all.into_iter().filter(may_hold).count() {
            0 => Ok(StartFrom::Checkpoint(self.record.checkpoint)),
            unreachable => Err(Reason::NoState {
                unreachable: unreachable as u32,
            }),
        }
    }

    fn is_gone(&self, worker: WorkerId) -> bool {
        let certain = self.settings.certain_end();
        self.roster
            .is_gone(worker, self.leads_since, certain, self.now)
    }
}
