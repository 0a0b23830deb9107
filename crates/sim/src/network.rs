//! [`Network`]: what a link does to what is sent over it.

use crate::clock::MS;
use crate::rng::Rng;

/// Hosts `0..workers` run workers, then come those of the coordinators, then the store's.
pub type Host = usize;

/// All links between hosts.
#[derive(Debug)]
pub struct Network {
    hosts: usize,
    blocked: Vec<u32>,
    /// Datagrams that are lost, of a thousand.
    pub loss: u64,
    /// Datagrams that arrive twice, of a thousand.
    pub twice: u64,
    /// Longest usual delay.
    pub delay_max: u64,
}

impl Network {
    /// Whole links.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self {
            hosts,
            blocked: vec![0; hosts * hosts],
            loss: 0,
            twice: 0,
            delay_max: 3 * MS,
        }
    }

    /// Cuts or mends one direction of a link. Cuts add up.
    pub fn cut(&mut self, from: Host, to: Host, is_cut: bool) {
        let count = &mut self.blocked[from * self.hosts + to];
        *count = if is_cut {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    /// Mends everything.
    pub fn calm(&mut self) {
        self.blocked.fill(0);
        (self.loss, self.twice) = (0, 0);
    }

    /// Whether nothing passes now.
    #[must_use]
    pub fn is_cut(&self, from: Host, to: Host) -> bool {
        from != to && self.blocked[from * self.hosts + to] > 0
    }

    /// How long something is under way.
    pub fn delay(&self, rng: &mut Rng) -> u64 {
        // Now and then much later than what was sent after it.
        let slow = if self.loss > 0 && rng.per_mille(20) {
            150 * MS
        } else {
            0
        };
        rng.range(MS / 10, self.delay_max) + slow
    }
}
