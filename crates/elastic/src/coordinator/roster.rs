//! [`Roster`]: what the coordinator knows of each worker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ronde_core::{Generation, Rank, Step};

use crate::detector::Detector;
use crate::membership::rank_of;
use crate::{Loss, LossCause, Member, Phase, Report, Time, WorkerId};

/// One worker that has reported.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// What it said last.
    pub(super) report: Report,
    /// When it was heard last.
    pub(super) heard: Time,
    /// Since when it may not be a member because the others could not reach it, and until when.
    pub(super) excluded_until: Option<Time>,
}

/// All workers that have ever reported to this coordinator or stand in the record.
#[derive(Debug, Clone)]
pub(super) struct Roster {
    detector: Detector,
    seen: BTreeMap<WorkerId, Seen>,
    lost: BTreeMap<WorkerId, (Time, LossCause)>,
    /// They have ended for certain; the cause is in `lost`.
    gone: BTreeSet<WorkerId>,
}

impl Roster {
    pub(super) fn new(silence: Duration) -> Self {
        Self {
            detector: Detector::new(silence),
            seen: BTreeMap::new(),
            lost: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Forgets what workers said, but not who has ended: for a coordinator that begins to lead.
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

    /// Whether a worker wanted to leave when it was heard last.
    pub(super) fn drains(&self, worker: WorkerId) -> bool {
        let seen = self.seen.get(&worker);
        seen.is_some_and(|seen| seen.report.draining)
    }

    /// Whether the end of a worker's process was seen.
    pub(super) fn has_ended(&self, worker: WorkerId) -> bool {
        self.gone.contains(&worker)
    }

    /// Whether a worker has ever reported.
    pub(super) fn knows(&self, worker: WorkerId) -> bool {
        self.seen.contains_key(&worker)
    }

    /// What a worker said last.
    pub(super) fn last_report(&self, worker: WorkerId) -> Option<&Report> {
        self.seen.get(&worker).map(|seen| &seen.report)
    }

    /// A worker is expected to report from `now` on.
    pub(super) fn expect(&mut self, worker: WorkerId, now: Time) {
        self.detector.heard(worker, now);
    }

    /// Takes a report in; false when it is old, or of a worker that has ended.
    pub(super) fn reported(&mut self, report: Report, now: Time) -> bool {
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
            Seen {
                report,
                heard: now,
                excluded_until,
            },
        );
        true
    }

    /// A worker is lost; its process may still run.
    pub(super) fn lose(&mut self, worker: WorkerId, cause: LossCause, now: Time) {
        self.detector.forget(worker);
        if !self.gone.contains(&worker) {
            self.lost.entry(worker).or_insert((now, cause));
        }
    }

    /// A worker's process has ended: what is known of it now is better than what was.
    pub(super) fn ended(&mut self, worker: WorkerId, cause: LossCause, now: Time) {
        self.detector.forget(worker);
        if self.gone.insert(worker) {
            let at = self.lost.get(&worker).map_or(now, |(at, _)| *at);
            self.lost.insert(worker, (at, cause));
        }
    }

    /// Notices who has been silent for too long.
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

    /// When and how a worker was lost.
    pub(super) fn lost(&self, worker: WorkerId) -> Option<&(Time, LossCause)> {
        self.lost.get(&worker)
    }

    /// The last report of a worker that is not lost.
    pub(super) fn live(&self, worker: WorkerId) -> Option<&Report> {
        let is_lost = self.lost.contains_key(&worker);
        self.seen
            .get(&worker)
            .filter(|_| !is_lost)
            .map(|seen| &seen.report)
    }

    /// All that are not lost.
    pub(super) fn all_live(&self) -> impl Iterator<Item = &Report> {
        let live = |(worker, seen)| {
            let is_lost = self.lost.contains_key(worker);
            (!is_lost).then_some(seen)
        };
        self.seen
            .iter()
            .filter_map(live)
            .map(|seen: &Seen| &seen.report)
    }

    /// Whether a worker's process has ended, for all that can be known: its end was seen, or it has
    /// not been heard for so long that it has ended itself.
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

    /// Whether a worker has said that it has left a generation for a later one.
    pub(super) fn has_left(&self, worker: WorkerId, generation: Generation) -> bool {
        self.seen
            .get(&worker)
            .is_some_and(|seen| seen.report.generation > generation)
    }

    /// Keeps a worker out until then.
    pub(super) fn exclude(&mut self, worker: WorkerId, until: Time) {
        if let Some(seen) = self.seen.get_mut(&worker) {
            seen.excluded_until = Some(until);
        }
    }

    /// Until when a worker stays out, if it does at `now`.
    pub(super) fn excluded(&self, worker: WorkerId, now: Time) -> Option<Time> {
        self.seen
            .get(&worker)?
            .excluded_until
            .filter(|until| now < *until)
    }

    /// Members that are lost, the earliest first.
    pub(super) fn losses(&self, members: &[Member]) -> Vec<Loss> {
        let mut losses: Vec<(Time, Loss)> = members
            .iter()
            .enumerate()
            .filter_map(|(rank, member)| {
                let (at, cause) = self.lost.get(&member.worker)?;
                let loss = Loss {
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

    /// When the first of `members` was lost.
    pub(super) fn first_loss(&self, members: &[Member]) -> Option<Time> {
        let times = members
            .iter()
            .filter_map(|member| self.lost.get(&member.worker));
        times.map(|(at, _)| *at).min()
    }

    /// Members that are neither heard nor lost yet.
    pub(super) fn unheard(&self, members: &[Member]) -> bool {
        members.iter().any(|member| {
            !self.seen.contains_key(&member.worker) && !self.lost.contains_key(&member.worker)
        })
    }

    /// Live members that have left the group of their generation, and what they said.
    pub(super) fn broken<'a>(
        &'a self,
        members: &'a [Member],
        generation: Generation,
    ) -> impl Iterator<Item = &'a Report> {
        let left =
            move |report: &&Report| report.generation == generation && report.phase == Phase::Idle;
        members
            .iter()
            .filter_map(|member| self.live(member.worker))
            .filter(left)
    }

    /// The largest step that a live member tells of.
    pub(super) fn newest(&self, members: &[Member]) -> Option<Step> {
        let live = members.iter().filter_map(|member| self.live(member.worker));
        live.filter_map(|report| report.next).max()
    }

    /// Who is blamed most by those who left the group, counting both ends of each accusation; the
    /// highest rank among equals. Somebody must be able to stay.
    pub(super) fn most_blamed(
        &self,
        members: &[Member],
        generation: Generation,
    ) -> Option<WorkerId> {
        let mut counts = vec![0_u32; members.len()];
        for report in self.broken(members, generation) {
            let suspect = report.trouble.as_ref().and_then(|trouble| trouble.suspect);
            let ends = [suspect, Some(report.member.worker)];
            let [Some(suspect), Some(accuser)] =
                ends.map(|end| end.and_then(|worker| rank_of(members, worker)))
            else {
                continue;
            };
            counts[suspect.index()] += 1;
            counts[accuser.index()] += 1;
        }
        let (rank, count) = counts
            .iter()
            .enumerate()
            .max_by_key(|(rank, count)| (**count, *rank))?;
        (*count > 0 && members.len() > 1).then(|| members[rank].worker)
    }
}
