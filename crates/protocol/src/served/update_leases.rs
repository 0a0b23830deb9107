//! [`UpdateLeases`]: which worker computes which update of a round.
//!
//! Source of the bound: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.

use std::collections::BTreeMap;

/// The rules of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSettings {
    /// The most updates that may be applied between the pull and the push of a gradient; `None`: any number.
    pub staleness_max: Option<u64>,
    /// The milliseconds after which another worker may compute a leased update.
    pub expiry_ms: u64,
}

/// The answer to a worker that requests work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// The worker computes this update next, from weights that it fetches now.
    Granted(u32),
    /// There is nothing for it at present: ask again after another update is complete, or at this time in milliseconds.
    Wait(u64),
    /// The round is complete.
    Complete,
}

/// A lease of a worker.
#[derive(Debug, Clone, Copy)]
struct HeldLease {
    update: u32,
    /// The number of complete updates when it was granted.
    base: u64,
    granted_ms: u64,
    expires_ms: u64,
}

/// The leases of a round. Times are milliseconds of any clock that does not run backwards.
#[derive(Debug, Clone)]
pub struct UpdateLeases {
    settings: LeaseSettings,
    done: Vec<bool>,
    done_count: u64,
    workers: Vec<u32>,
    held: BTreeMap<u32, HeldLease>,
    /// The milliseconds that each worker needed for its last update.
    paces: BTreeMap<u32, u64>,
    is_ended: bool,
}

impl UpdateLeases {
    /// Creates the table of a round, of which some updates may be complete. `workers` are the ranks that compute.
    #[must_use]
    pub fn new(settings: LeaseSettings, done: Vec<bool>, workers: Vec<u32>) -> Self {
        Self {
            settings,
            done_count: done.iter().filter(|done| **done).count() as u64,
            done,
            workers,
            held: BTreeMap::new(),
            paces: BTreeMap::new(),
            is_ended: false,
        }
    }

    /// Returns whether no update is left.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_ended || self.done_count == self.done.len() as u64
    }

    /// Ends the round early: every worker gets [`LeaseAnswer::Complete`].
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Answers a worker. One that has a lease gets the same update again: it has lost the answer, or its gradient was refused.
    ///
    /// A worker gets the updates of every `n`-th number, of `n` workers, and then helps the others. While others would finish the
    /// round earlier without it, a slow worker waits, so that it does not delay the end.
    pub fn request(&mut self, worker: u32, now_ms: u64) -> LeaseAnswer {
        if self.is_complete() {
            return LeaseAnswer::Complete;
        }
        self.held.retain(|_, lease| lease.expires_ms > now_ms);
        let again = self.held.remove(&worker).map(|lease| lease.update);
        let next = again.or_else(|| self.next_of(worker));
        let Some(update) = next.filter(|_| !self.would_be_too_stale()) else {
            return self.wait(now_ms);
        };
        if again.is_none() && self.would_delay(worker, now_ms) {
            return self.wait(now_ms);
        }
        let lease = HeldLease {
            update,
            base: self.done_count,
            granted_ms: now_ms,
            expires_ms: now_ms.saturating_add(self.settings.expiry_ms),
        };
        self.held.insert(worker, lease);
        LeaseAnswer::Granted(update)
    }

    /// Notes that slot 0 has applied an update; it does not matter who has pushed it. Returns whether it was not complete before.
    pub fn complete(&mut self, worker: u32, update: u32, now_ms: u64) -> bool {
        if let Some(lease) = self
            .held
            .get(&worker)
            .filter(|lease| lease.update == update)
        {
            let pace = now_ms.saturating_sub(lease.granted_ms).max(1);
            self.paces.insert(worker, pace);
        }
        self.held.retain(|_, lease| lease.update != update);
        let Some(done) = self.done.get_mut(update as usize) else {
            return false;
        };
        let is_new = !std::mem::replace(done, true);
        self.done_count += u64::from(is_new);
        is_new
    }

    /// Returns the update that a worker computes next: its own one, or the last one that no worker computes.
    fn next_of(&self, worker: u32) -> Option<u32> {
        let leased = |update: &usize| {
            let mut held = self.held.values();
            held.any(|lease| lease.update as usize == *update)
        };
        let is_free = |update: &usize| !self.done[*update] && !leased(update);
        let of = self.workers.iter().position(|rank| *rank == worker);
        let own = of.and_then(|first| {
            let mut own = (first..self.done.len()).step_by(self.workers.len());
            own.find(is_free)
        });
        let found = own.or_else(|| (0..self.done.len()).rev().find(is_free));
        found.map(|update| update as u32)
    }

    /// Returns whether one more lease could make a gradient that is being computed too stale.
    fn would_be_too_stale(&self) -> bool {
        let Some(most) = self.settings.staleness_max else {
            return false;
        };
        // All other leased updates, and this one, may be applied before the oldest gradient arrives.
        let others = self.done_count + self.held.len() as u64;
        let mut held = self.held.values();
        held.any(|lease| others - lease.base > most)
    }

    /// Returns whether the workers that are computing would finish the round before this worker finishes one update.
    fn would_delay(&self, worker: u32, now_ms: u64) -> bool {
        let Some(own_ms) = self.paces.get(&worker) else {
            return false;
        };
        let paces = self.held.iter().map(|(rank, lease)| {
            let since = now_ms.saturating_sub(lease.granted_ms);
            self.paces.get(rank).map(|pace| (*pace).max(since))
        });
        let paces: Option<Vec<u64>> = paces.collect();
        let Some(paces) = paces.filter(|paces| !paces.is_empty()) else {
            return false;
        };
        let per_ms: f64 = paces.iter().map(|pace| 1.0 / *pace as f64).sum();
        let left = self.done.len() as u64 - self.done_count;
        left as f64 / per_ms < *own_ms as f64
    }

    fn wait(&self, now_ms: u64) -> LeaseAnswer {
        let first = self.held.values().map(|lease| lease.expires_ms).min();
        LeaseAnswer::Wait(first.unwrap_or(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(updates: usize, workers: u32, staleness_max: Option<u64>) -> UpdateLeases {
        let settings = LeaseSettings {
            staleness_max,
            expiry_ms: 100,
        };
        UpdateLeases::new(settings, vec![false; updates], (0..workers).collect())
    }

    #[test]
    fn workers_compute_every_nth_update_and_then_help_each_other() {
        let mut leases = table(5, 2, None);
        assert_eq!(leases.request(1, 0), LeaseAnswer::Granted(1));
        assert_eq!(leases.request(0, 0), LeaseAnswer::Granted(0));
        assert_eq!(
            leases.request(0, 5),
            LeaseAnswer::Granted(0),
            "a lost answer"
        );
        assert!(leases.complete(0, 0, 10));
        assert!(!leases.complete(0, 0, 10), "counted once");
        for update in [2, 4, 3] {
            assert_eq!(leases.request(0, 10), LeaseAnswer::Granted(update));
            assert!(leases.complete(0, update, 20));
        }
        // Worker 1 has the last update until its lease expires.
        assert_eq!(leases.request(0, 20), LeaseAnswer::Wait(100));
        assert_eq!(leases.request(0, 100), LeaseAnswer::Granted(1));
        // Its late push is as good as another one.
        assert!(leases.complete(1, 1, 101));
        assert!(leases.is_complete());
        assert_eq!(leases.request(1, 101), LeaseAnswer::Complete);
        assert!(!leases.complete(1, 99, 101));
    }

    #[test]
    fn no_gradient_becomes_staler_than_the_bound() {
        for bound in 0..6 {
            let mut leases = table(40, 4, Some(bound));
            assert_eq!(leases.request(0, 0), LeaseAnswer::Granted(0));
            let mut applied = 0;
            // The other workers compute as much as they may while worker 0 does not finish.
            loop {
                let granted: Vec<(u32, u32)> = (1..4)
                    .filter_map(|worker| match leases.request(worker, 1) {
                        LeaseAnswer::Granted(update) => Some((worker, update)),
                        _ => None,
                    })
                    .collect();
                if granted.is_empty() {
                    break;
                }
                for (worker, update) in granted {
                    leases.complete(worker, update, 1);
                    applied += 1;
                }
            }
            assert_eq!(applied, bound, "as many as the bound");
            leases.complete(0, 0, 2);
            assert_eq!(
                leases.request(1, 2),
                LeaseAnswer::Granted(1 + 4 * (bound as u32).div_ceil(3))
            );
        }
    }

    #[test]
    fn a_slow_worker_does_not_begin_what_the_others_finish_earlier() {
        let mut leases = table(8, 2, None);
        assert_eq!(leases.request(1, 0), LeaseAnswer::Granted(1));
        let mut now = 0;
        for update in [0, 2, 4, 6, 7] {
            assert_eq!(leases.request(0, now), LeaseAnswer::Granted(update));
            now += 10;
            leases.complete(0, update, now);
        }
        leases.complete(1, 1, now);
        // Worker 0 needs 20 ms for the remaining two, and worker 1 needs 50 ms for one.
        assert_eq!(leases.request(0, now), LeaseAnswer::Granted(5));
        assert!(matches!(leases.request(1, now), LeaseAnswer::Wait(_)));
        // If worker 0 hangs, worker 1 helps.
        assert_eq!(leases.request(1, now + 60), LeaseAnswer::Granted(3));
    }

    #[test]
    fn a_round_can_end_early() {
        let mut leases = table(8, 2, None);
        leases.end();
        assert_eq!(leases.request(0, 0), LeaseAnswer::Complete);
    }
}
