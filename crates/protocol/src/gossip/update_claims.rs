//! [`UpdateClaims`]: which updates of a round a rank computes, and which ones it grants to others.

use std::collections::{BTreeMap, VecDeque};

/// The progress of a rank, which it sends with every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerProgress {
    /// The number of its updates that no rank has begun.
    pub left: u64,
    /// The milliseconds that it needed for its last update; 0: it has computed none.
    pub pace_ms: u64,
}

/// The next action of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextUpdate {
    /// It computes this update.
    Compute(u32),
    /// It requests an update of another rank.
    Ask {
        /// The owner.
        owner: u32,
        /// The number of the request.
        number: u64,
    },
    /// Others finish the rest of the round earlier: it decides again at this time in milliseconds, or after it has granted an update.
    Wait(u64),
    /// No rank has an update left that is not begun.
    Complete,
}

/// The known state of another rank.
#[derive(Debug, Clone, Copy)]
struct OtherRank {
    progress: WorkerProgress,
    /// Whether it has nothing to grant any more.
    is_exhausted: bool,
}

/// The claims of one rank in a round. Times are milliseconds of any clock that does not run backwards.
///
/// The owner of an update alone decides which rank computes it, so each one is computed once as long as the members stay the same.
#[derive(Debug, Clone)]
pub struct UpdateClaims {
    /// The own updates that no rank has begun.
    own: VecDeque<u32>,
    others: BTreeMap<u32, OtherRank>,
    rank: u32,
    pace_ms: u64,
    begun_ms: Option<u64>,
    waits_since_ms: Option<u64>,
    asked: u64,
    under_way: Option<(u32, u64)>,
    /// The last answer to each rank.
    granted: BTreeMap<u32, (u64, Option<u32>)>,
    is_ended: bool,
}

impl UpdateClaims {
    /// Creates the claims of a rank in a round, with some updates possibly done. The others are dealt to the ranks in turn.
    #[must_use]
    pub fn new(rank: u32, ranks: u32, done: &[bool]) -> Self {
        let open = (0..).zip(done).filter(|(_, done)| !**done);
        let mut dealt = vec![VecDeque::new(); ranks.max(1) as usize];
        for (place, (update, _)) in open.enumerate() {
            dealt[place % ranks.max(1) as usize].push_back(update);
        }
        let others = (0..ranks).filter(|other| *other != rank).map(|other| {
            let left = dealt[other as usize].len() as u64;
            let progress = WorkerProgress { left, pace_ms: 0 };
            let is_exhausted = left == 0;
            (
                other,
                OtherRank {
                    progress,
                    is_exhausted,
                },
            )
        });
        Self {
            others: others.collect(),
            own: std::mem::take(&mut dealt[rank as usize]),
            rank,
            pace_ms: 0,
            begun_ms: None,
            waits_since_ms: None,
            asked: 0,
            under_way: None,
            granted: BTreeMap::new(),
            is_ended: false,
        }
    }

    /// Returns the progress of this rank, for the others.
    #[must_use]
    pub fn progress(&self) -> WorkerProgress {
        WorkerProgress {
            left: self.own.len() as u64,
            pace_ms: self.pace_ms,
        }
    }

    /// Notes the progress of another rank.
    pub fn hear(&mut self, from: u32, progress: WorkerProgress) {
        if let Some(other) = self.others.get_mut(&from) {
            other.progress = progress;
        }
    }

    /// Ends the round early: this rank neither computes nor grants updates any more.
    pub fn end(&mut self) {
        self.is_ended = true;
        self.own.clear();
    }

    /// Returns the next action of this rank. While a request is under way, it is returned again.
    pub fn next(&mut self, now_ms: u64) -> NextUpdate {
        if self.is_ended {
            return NextUpdate::Complete;
        }
        if let Some((owner, number)) = self.under_way {
            return NextUpdate::Ask { owner, number };
        }
        if !self.own.is_empty() {
            if let Some(until_ms) = self.waits_until(now_ms) {
                return NextUpdate::Wait(until_ms);
            }
            if let Some(update) = self.own.pop_front() {
                return self.begin(update, now_ms);
            }
        }
        let Some(owner) = self.slowest() else {
            return NextUpdate::Complete;
        };
        self.asked += 1;
        self.under_way = Some((owner, self.asked));
        NextUpdate::Ask {
            owner,
            number: self.asked,
        }
    }

    fn begin(&mut self, update: u32, now_ms: u64) -> NextUpdate {
        (self.begun_ms, self.waits_since_ms) = (Some(now_ms), None);
        NextUpdate::Compute(update)
    }

    /// Notes that this rank has finished the update that it has begun.
    pub fn finish(&mut self, now_ms: u64) {
        if let Some(begun_ms) = self.begun_ms.take() {
            self.pace_ms = now_ms.saturating_sub(begun_ms).max(1);
        }
    }

    /// Returns the other rank that needs the longest time for its remaining updates, as far as this rank knows.
    fn slowest(&self) -> Option<u32> {
        let open = self.others.iter().filter(|(_, other)| !other.is_exhausted);
        let ranks = self.others.len() as u32 + 1;
        let found = open.max_by_key(|(rank, other)| {
            let WorkerProgress { left, pace_ms } = other.progress;
            // Ranks that know nothing of each other begin with different ones.
            let distance = (**rank + ranks - self.rank) % ranks;
            (
                left.saturating_mul(pace_ms.max(1)),
                std::cmp::Reverse(distance),
            )
        });
        found.map(|(rank, _)| *rank)
    }

    /// Returns until when this rank leaves its own updates to the others, because they finish all that is left before it finishes one.
    fn waits_until(&mut self, now_ms: u64) -> Option<u64> {
        let mut per_ms = 0.0;
        let mut left = self.own.len() as u64;
        for other in self.others.values() {
            let WorkerProgress {
                left: of_other,
                pace_ms,
            } = other.progress;
            if pace_ms == 0 {
                return None;
            }
            left += of_other;
            per_ms += 1.0 / pace_ms as f64;
        }
        if self.pace_ms == 0 || left as f64 / per_ms >= self.pace_ms as f64 {
            return None;
        }
        // Its knowledge may be old: it waits for the time of one update at most.
        let since_ms = *self.waits_since_ms.get_or_insert(now_ms);
        let until_ms = since_ms.saturating_add(self.pace_ms);
        (now_ms < until_ms).then_some(until_ms)
    }

    /// Answers another rank that requests an update; `None`: this rank has nothing left for it, and will not have.
    pub fn grant(&mut self, from: u32, number: u64, progress: WorkerProgress) -> Option<u32> {
        self.hear(from, progress);
        match self.granted.get(&from) {
            Some((last, answer)) if *last == number => return *answer,
            Some((last, _)) if *last > number => return None,
            _ => {}
        }
        // Unless this rank finishes all of its updates before the other one finishes one.
        let own_ms = self.pace_ms.saturating_mul(self.own.len() as u64);
        let is_too_slow = self.pace_ms > 0 && progress.pace_ms > own_ms;
        let answer = match is_too_slow && self.waits_since_ms.is_none() {
            true => None,
            false => self.own.pop_back(),
        };
        self.granted.insert(from, (number, answer));
        answer
    }

    /// Notes the answer to a request. Returns the update to compute, if the request was not answered before.
    pub fn answered(
        &mut self,
        owner: u32,
        number: u64,
        answer: Option<u32>,
        now_ms: u64,
    ) -> Option<u32> {
        if self.under_way != Some((owner, number)) {
            return None;
        }
        self.under_way = None;
        match answer {
            Some(update) => {
                self.begin(update, now_ms);
                Some(update)
            }
            None => {
                if let Some(other) = self.others.get_mut(&owner) {
                    other.is_exhausted = true;
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEW: WorkerProgress = WorkerProgress {
        left: 0,
        pace_ms: 0,
    };

    fn paced(left: u64, pace_ms: u64) -> WorkerProgress {
        WorkerProgress { left, pace_ms }
    }

    #[test]
    fn updates_are_dealt_in_turn_and_idle_ranks_help() {
        let mut first = UpdateClaims::new(0, 2, &[false; 5]);
        let mut second = UpdateClaims::new(1, 2, &[false; 5]);
        assert_eq!(first.next(0), NextUpdate::Compute(0));
        assert_eq!(second.next(0), NextUpdate::Compute(1));
        second.finish(10);
        assert_eq!(second.next(10), NextUpdate::Compute(3));
        second.finish(20);
        let ask = NextUpdate::Ask {
            owner: 0,
            number: 1,
        };
        assert_eq!(second.next(20), ask);
        assert_eq!(second.next(20), ask, "until it is answered");
        assert_eq!(first.grant(1, 1, second.progress()), Some(4));
        assert_eq!(first.grant(1, 1, second.progress()), Some(4), "repeated");
        assert_eq!(second.answered(0, 1, Some(4), 21), Some(4));
        assert_eq!(second.answered(0, 1, Some(4), 21), None, "once");
        assert_eq!(first.next(21), NextUpdate::Compute(2));
        second.finish(30);
        assert_eq!(
            second.next(30),
            NextUpdate::Ask {
                owner: 0,
                number: 2
            }
        );
        assert_eq!(first.grant(1, 2, second.progress()), None);
        assert_eq!(first.grant(1, 1, second.progress()), None, "late");
        assert_eq!(second.answered(0, 2, None, 31), None);
        assert_eq!(second.next(31), NextUpdate::Complete);
    }

    #[test]
    fn what_is_done_is_not_dealt() {
        let done = [true, false, true, true, false, false];
        let mut claims = UpdateClaims::new(1, 2, &done);
        assert_eq!(claims.progress(), paced(1, 0));
        assert_eq!(claims.next(0), NextUpdate::Compute(4));
        let mut alone = UpdateClaims::new(0, 1, &done);
        let all: Vec<NextUpdate> = (0..4).map(|_| alone.next(0)).collect();
        let compute = NextUpdate::Compute;
        let complete = NextUpdate::Complete;
        assert_eq!(all, [compute(1), compute(4), compute(5), complete]);
    }

    #[test]
    fn a_slow_rank_leaves_the_rest_to_the_others_but_not_for_ever() {
        let mut slow = UpdateClaims::new(0, 2, &[false; 8]);
        assert_eq!(slow.next(0), NextUpdate::Compute(0));
        slow.finish(100);
        slow.hear(1, paced(1, 10));
        // The other rank needs 40 ms for four updates, and this one 100 ms for one.
        assert_eq!(slow.next(100), NextUpdate::Wait(200));
        assert_eq!(slow.grant(1, 1, paced(0, 10)), Some(6));
        assert_eq!(slow.next(199), NextUpdate::Wait(200));
        assert_eq!(slow.next(200), NextUpdate::Compute(2));
    }

    #[test]
    fn a_slow_rank_gets_nothing_that_its_owner_finishes_earlier() {
        let mut fast = UpdateClaims::new(0, 2, &[false; 8]);
        assert_eq!(fast.next(0), NextUpdate::Compute(0));
        fast.finish(10);
        assert_eq!(fast.grant(1, 1, paced(0, 31)), None);
        assert_eq!(fast.grant(1, 2, paced(0, 30)), Some(6));
        assert_eq!(fast.grant(1, 3, NEW), Some(4), "one without a pace");
    }

    #[test]
    fn a_round_can_end_early() {
        let mut claims = UpdateClaims::new(0, 2, &[false; 8]);
        claims.end();
        assert_eq!(claims.next(0), NextUpdate::Complete);
        assert_eq!(claims.grant(1, 1, NEW), None);
    }

    proptest! {
        /// Ranks act in any order, with any paces: each update that is not done is computed once.
        #[test]
        fn each_update_is_computed_once(
            ranks in 1..6_u32,
            done in proptest::collection::vec(proptest::bool::weighted(0.3), 0..40),
            order in proptest::collection::vec((0..6_u32, 1..50_u64), 0..200),
        ) {
            let mut all: Vec<UpdateClaims> =
                (0..ranks).map(|rank| UpdateClaims::new(rank, ranks, &done)).collect();
            let mut computed = vec![0; done.len()];
            let mut finished = vec![false; ranks as usize];
            let mut now_ms = 0;
            // After the drawn steps, all ranks act in turn.
            let rest = (0..2_000_u32).map(|step| (step, 7));
            for (rank, passed_ms) in order.into_iter().chain(rest) {
                let at = (rank % ranks) as usize;
                now_ms += passed_ms;
                all[at].finish(now_ms);
                match all[at].next(now_ms) {
                    NextUpdate::Compute(update) => computed[update as usize] += 1,
                    NextUpdate::Wait(until_ms) => prop_assert!(until_ms > now_ms),
                    NextUpdate::Complete => finished[at] = true,
                    NextUpdate::Ask { owner, number } => {
                        let progress = all[at].progress();
                        let answer = all[owner as usize].grant(at as u32, number, progress);
                        let granted = all[at].answered(owner, number, answer, now_ms);
                        if let Some(update) = granted {
                            computed[update as usize] += 1;
                        }
                    }
                }
            }
            prop_assert!(finished.iter().all(|finished| *finished));
            let expected: Vec<u32> = done.iter().map(|done| u32::from(!done)).collect();
            prop_assert_eq!(computed, expected);
        }
    }
}
