//! [`WorkerTable`]: the coordinator's knowledge about each worker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ronde_core::{Generation, Rank, Step};

use crate::detector::FailureDetector;
use crate::membership::rank_of;
use crate::membership::{MemberInfo, WorkerId};
use crate::message::{WorkerPhase, WorkerReport};
use crate::reason::{LossCause, WorkerLoss};
use crate::time::Time;

/// A worker that has reported.
#[derive(Debug, Clone)]
pub(super) struct KnownWorker {
    /// Its last report.
    pub(super) report: WorkerReport,
    /// When its last report was received.
    pub(super) heard: Time,
    /// The end of its exclusion, if the others could not reach it.
    pub(super) excluded_until: Option<Time>,
}

/// All workers that have reported to this coordinator or are members in the record.
#[derive(Debug, Clone)]
pub(super) struct WorkerTable {
    detector: FailureDetector,
    seen: BTreeMap<WorkerId, KnownWorker>,
    lost: BTreeMap<WorkerId, (Time, LossCause)>,
    /// Workers whose processes have certainly ended; the cause is in `lost`.
    gone: BTreeSet<WorkerId>,
}

/// A member's report that another one caused the failure of their group.
#[derive(Debug, Clone, Copy)]
struct Accusation {
    accuser: Rank,
    suspect: Rank,
    /// Whether the accuser could not connect to the suspect.
    is_unreachable: bool,
}

impl WorkerTable {
    pub(super) fn new(silence: Duration) -> Self {
        Self {
            detector: FailureDetector::new(silence),
            seen: BTreeMap::new(),
            lost: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Forgets all reports but not the ended processes, for a coordinator that starts to lead.
    pub(super) fn begin_anew(&mut self, silence: Duration) {
        let gone = std::mem::take(&mut self.gone);
        let mut lost = std::mem::take(&mut self.lost);
        lost.retain(|worker, _| gone.contains(worker));
        *self = Self {
            gone,
            lost,
            ..Self::new(silence)
        };
    }

    /// Returns whether a worker was leaving at the time of its last report.
    pub(super) fn drains(&self, worker: WorkerId) -> bool {
        let seen = self.seen.get(&worker);
        seen.is_some_and(|seen| seen.report.draining)
    }

    /// Returns whether the end of a worker's process was observed.
    pub(super) fn has_ended(&self, worker: WorkerId) -> bool {
        self.gone.contains(&worker)
    }

    /// Returns whether a worker has ever reported.
    pub(super) fn knows(&self, worker: WorkerId) -> bool {
        self.seen.contains_key(&worker)
    }

    /// Returns a worker's last report.
    pub(super) fn last_report(&self, worker: WorkerId) -> Option<&WorkerReport> {
        self.seen.get(&worker).map(|seen| &seen.report)
    }

    /// Expects reports of a worker from `now` on.
    pub(super) fn expect(&mut self, worker: WorkerId, now: Time) {
        self.detector.heard(worker, now);
    }

    /// Records that a worker's process lacks CPU time.
    pub(super) fn busy(&mut self, worker: WorkerId, now: Time) {
        self.detector.busy(worker, now);
    }

    /// Stores a report; returns false if it is out of date or its worker has ended.
    pub(super) fn reported(&mut self, report: WorkerReport, now: Time) -> bool {
        let worker = report.member.worker;
        let known = self.seen.get(&worker);
        if self.gone.contains(&worker)
            || known.is_some_and(|seen| seen.report.sequence >= report.sequence)
        {
            return false;
        }
        let excluded_until = known.and_then(|seen| seen.excluded_until);
        self.lost.remove(&worker);
        self.detector.heard(worker, now);
        self.seen.insert(
            worker,
            KnownWorker {
                report,
                heard: now,
                excluded_until,
            },
        );
        true
    }

    /// Marks a worker as lost; its process may still run.
    pub(super) fn lose(&mut self, worker: WorkerId, cause: LossCause, now: Time) {
        self.detector.forget(worker);
        if !self.gone.contains(&worker) {
            self.lost.entry(worker).or_insert((now, cause));
        }
    }

    /// Marks a worker's process as ended. This replaces a less certain cause of its loss.
    pub(super) fn ended(&mut self, worker: WorkerId, cause: LossCause, now: Time) {
        self.detector.forget(worker);
        if self.gone.insert(worker) {
            let at = self.lost.get(&worker).map_or(now, |(at, _)| *at);
            self.lost.insert(worker, (at, cause));
        }
    }

    /// Marks workers that have been silent for too long as lost.
    pub(super) fn detect(&mut self, now: Time) {
        for (worker, silence) in self.detector.overdue(now) {
            self.lost
                .entry(worker)
                .or_insert((now, LossCause::Silent(silence)));
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.detector.deadline()
    }

    /// Returns when and how a worker was lost.
    pub(super) fn lost(&self, worker: WorkerId) -> Option<&(Time, LossCause)> {
        self.lost.get(&worker)
    }

    /// Returns the last report of a worker that is not lost.
    pub(super) fn live(&self, worker: WorkerId) -> Option<&WorkerReport> {
        let is_lost = self.lost.contains_key(&worker);
        self.seen
            .get(&worker)
            .filter(|_| !is_lost)
            .map(|seen| &seen.report)
    }

    /// Returns the last reports of all workers that are not lost.
    pub(super) fn all_live(&self) -> impl Iterator<Item = &WorkerReport> {
        let live = |(worker, seen)| {
            let is_lost = self.lost.contains_key(worker);
            (!is_lost).then_some(seen)
        };
        self.seen
            .iter()
            .filter_map(live)
            .map(|seen: &KnownWorker| &seen.report)
    }

    /// Returns whether a worker's process has certainly ended: its end was observed, or it was
    /// silent for so long that it has ended itself.
    pub(super) fn is_gone(
        &self,
        worker: WorkerId,
        leads_since: Time,
        certain: Duration,
        now: Time,
    ) -> bool {
        let heard = self
            .seen
            .get(&worker)
            .map_or(leads_since, |seen| seen.heard.max(leads_since));
        self.gone.contains(&worker) || self.lost.contains_key(&worker) && now.since(heard) > certain
    }

    /// Returns when a worker was lost, if it was lost by silence.
    pub(super) fn silent_since(&self, worker: WorkerId) -> Option<Time> {
        let (at, cause) = self.lost(worker)?;
        matches!(cause, LossCause::Silent(_)).then_some(*at)
    }

    /// Returns when workers were lost that reported a state and may still run, as far as this was within `limit`.
    pub(super) fn silent_holders(&self, limit: Duration, now: Time) -> Vec<Time> {
        let lost = self.lost.iter().filter(|(worker, (at, _))| {
            let report = self.last_report(**worker);
            let has_state = report.is_some_and(|report| report.next.is_some() && !report.draining);
            has_state && !self.gone.contains(worker) && now.since(*at) < limit
        });
        lost.map(|(_, (at, _))| *at).collect()
    }

    /// Returns whether a worker has reported that it left a generation for a later one.
    pub(super) fn has_left(&self, worker: WorkerId, generation: Generation) -> bool {
        self.seen
            .get(&worker)
            .is_some_and(|seen| seen.report.generation > Some(generation))
    }

    /// Excludes a worker until `until`.
    pub(super) fn exclude(&mut self, worker: WorkerId, until: Time) {
        if let Some(seen) = self.seen.get_mut(&worker) {
            seen.excluded_until = Some(until);
        }
    }

    /// Returns the end of a worker's exclusion if it is excluded at `now`.
    pub(super) fn excluded(&self, worker: WorkerId, now: Time) -> Option<Time> {
        self.seen
            .get(&worker)?
            .excluded_until
            .filter(|until| now < *until)
    }

    /// Returns the lost members, the earliest loss first.
    pub(super) fn losses(&self, members: &[MemberInfo]) -> Vec<WorkerLoss> {
        let mut losses: Vec<(Time, WorkerLoss)> = members
            .iter()
            .enumerate()
            .filter_map(|(rank, member)| {
                let (at, cause) = self.lost.get(&member.worker)?;
                let loss = WorkerLoss {
                    worker: member.worker,
                    rank: Rank(rank as u32),
                    host: member.host.clone(),
                    cause: cause.clone(),
                };
                Some((*at, loss))
            })
            .collect();
        losses.sort_by_key(|(at, loss)| (*at, loss.rank));
        losses.into_iter().map(|(_, loss)| loss).collect()
    }

    /// Returns when the first of `members` was lost.
    pub(super) fn first_loss(&self, members: &[MemberInfo]) -> Option<Time> {
        let times = members
            .iter()
            .filter_map(|member| self.lost.get(&member.worker));
        times.map(|(at, _)| *at).min()
    }

    /// Returns whether any member has neither reported nor been lost.
    pub(super) fn unheard(&self, members: &[MemberInfo]) -> bool {
        members.iter().any(|member| {
            !self.seen.contains_key(&member.worker) && !self.lost.contains_key(&member.worker)
        })
    }

    /// Returns the reports of live members that have left the group of their generation.
    pub(super) fn broken<'a>(
        &'a self,
        members: &'a [MemberInfo],
        generation: Generation,
    ) -> impl Iterator<Item = &'a WorkerReport> {
        let left = move |report: &&WorkerReport| {
            report.generation == Some(generation) && report.phase == WorkerPhase::Idle
        };
        members
            .iter()
            .filter_map(|member| self.live(member.worker))
            .filter(left)
    }

    /// Returns whether a generation can never have committed a step and never will: a member has left
    /// its group without a vote.
    pub(super) fn has_committed_nothing(
        &self,
        members: &[MemberInfo],
        generation: Generation,
    ) -> bool {
        members.iter().any(|member| {
            self.last_report(member.worker).is_some_and(|report| {
                report.generation == Some(generation)
                    && report.phase == WorkerPhase::Idle
                    && !report.has_voted
            })
        })
    }

    /// Returns the largest next step among live members.
    pub(super) fn newest(&self, members: &[MemberInfo]) -> Option<Step> {
        let live = members.iter().filter_map(|member| self.live(member.worker));
        live.filter_map(|report| report.next).max()
    }

    /// Returns the ranks of two members, which could not connect to each other; the lower rank first.
    pub(super) fn separated(
        &self,
        members: &[MemberInfo],
        generation: Generation,
    ) -> Option<(Rank, Rank)> {
        let mut accusations = self.accusations(members, generation).into_iter();
        let mutual = accusations.find(|accusation| accusation.is_unreachable)?;
        let (one, other) = (mutual.accuser, mutual.suspect);
        Some((one.min(other), one.max(other)))
    }

    /// Returns the accusations by members that left the group. A member that could not connect to another one counts only if
    /// that one reports the same: a member that is merely late accuses no other.
    fn accusations(&self, members: &[MemberInfo], generation: Generation) -> Vec<Accusation> {
        let all = self.broken(members, generation).filter_map(|report| {
            let trouble = report.trouble.as_ref()?;
            Some(Accusation {
                accuser: rank_of(members, report.member.worker)?,
                suspect: rank_of(members, trouble.suspect?)?,
                is_unreachable: trouble.is_unreachable,
            })
        });
        let all: Vec<Accusation> = all.collect();
        let is_mutual = |one: &Accusation| {
            all.iter().any(|other| {
                other.is_unreachable && (other.accuser, other.suspect) == (one.suspect, one.accuser)
            })
        };
        let counts = |one: &&Accusation| !one.is_unreachable || is_mutual(one);
        all.iter().filter(counts).copied().collect()
    }

    /// Returns the member with the most accusations, counting both ends of each accusation, and the highest rank among
    /// equals. `None` if no other member would remain.
    pub(super) fn most_blamed(
        &self,
        members: &[MemberInfo],
        generation: Generation,
    ) -> Option<WorkerId> {
        let mut counts = vec![0_u32; members.len()];
        for accusation in self.accusations(members, generation) {
            counts[accusation.suspect.index()] += 1;
            counts[accusation.accuser.index()] += 1;
        }
        let (rank, count) = counts
            .iter()
            .enumerate()
            .max_by_key(|(rank, count)| (**count, *rank))?;
        (*count > 0 && members.len() > 1).then(|| members[rank].worker)
    }
}
