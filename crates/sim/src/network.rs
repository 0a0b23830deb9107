//! [`Network`]: delays, loss and cuts of the links between hosts.

use crate::clock::MS;
use crate::rng::Rng;

/// The index of a host: first the hosts of workers, then those of coordinators, then the store's.
pub type HostIndex = usize;

/// All links between hosts.
#[derive(Debug)]
pub struct Network {
    hosts: usize,
    blocked: Vec<u32>,
    /// The rate of lost datagrams, per thousand.
    pub loss: u64,
    /// The rate of duplicated datagrams, per thousand.
    pub twice: u64,
    /// The longest usual delay.
    pub delay_max: u64,
}

impl Network {
    /// Creates a network without cuts.
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

    /// Cuts or repairs one direction of a link. Several cuts of a link add up.
    pub fn cut(&mut self, from: HostIndex, to: HostIndex, is_cut: bool) {
        let count = &mut self.blocked[from * self.hosts + to];
        *count = if is_cut {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    /// Repairs all links.
    pub fn calm(&mut self) {
        self.blocked.fill(0);
        (self.loss, self.twice) = (0, 0);
    }

    /// Returns whether a link is cut.
    #[must_use]
    pub fn is_cut(&self, from: HostIndex, to: HostIndex) -> bool {
        from != to && self.blocked[from * self.hosts + to] > 0
    }

    /// Returns the delay of a message.
    pub fn delay(&self, rng: &mut Rng) -> u64 {
        // Sometimes a message arrives much later than messages that were sent after it.
        let slow = if self.loss > 0 && rng.per_mille(20) {
            150 * MS
        } else {
            0
        };
        rng.range(MS / 10, self.delay_max) + slow
    }
}
