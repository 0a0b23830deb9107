//! [`Network`]: delays, loss and cuts of the links between hosts.

use crate::rng::Rng;

/// The index of a host. In the world of a cluster: first the hosts of workers, then those of coordinators, then the store's.
pub type HostIndex = usize;

/// The delays and faults of all links.
#[derive(Debug, Clone, Copy)]
pub struct LinkFaults {
    /// The rate of lost datagrams, per thousand.
    pub loss: u64,
    /// The rate of duplicated datagrams, per thousand.
    pub twice: u64,
    /// The rate of messages that arrive much later than messages that were sent after them, per thousand.
    pub late: u64,
    /// The additional delay of such a message.
    pub late_by: u64,
}

impl LinkFaults {
    /// No faults.
    pub const NONE: Self = Self {
        loss: 0,
        twice: 0,
        late: 0,
        late_by: 0,
    };
}

/// All links between hosts.
#[derive(Debug)]
pub struct Network {
    hosts: usize,
    blocked: Vec<u32>,
    faults: LinkFaults,
    /// The shortest and the longest usual delay.
    delay: (u64, u64),
}

impl Network {
    /// Creates a network without cuts.
    #[must_use]
    pub fn new(hosts: usize, faults: LinkFaults, delay: (u64, u64)) -> Self {
        Self {
            hosts,
            blocked: vec![0; hosts * hosts],
            faults,
            delay,
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

    /// Repairs all links and ends all faults.
    pub fn calm(&mut self) {
        self.blocked.fill(0);
        self.faults = LinkFaults::NONE;
    }

    /// Returns whether a link is cut.
    #[must_use]
    pub fn is_cut(&self, from: HostIndex, to: HostIndex) -> bool {
        from != to
            && self
                .blocked
                .get(from * self.hosts + to)
                .is_some_and(|cuts| *cuts > 0)
    }

    /// Returns the delay of a message that is not lost.
    pub fn delay(&self, rng: &mut Rng) -> u64 {
        let is_late = self.faults.late > 0 && rng.per_mille(self.faults.late);
        let late = if is_late { self.faults.late_by } else { 0 };
        rng.range(self.delay.0, self.delay.1) + late
    }

    /// Returns the delays of the copies of a datagram that arrive: none if it is lost, two if it is duplicated.
    pub fn deliveries(&self, from: HostIndex, to: HostIndex, rng: &mut Rng) -> Vec<u64> {
        if rng.per_mille(self.faults.loss) || self.is_cut(from, to) {
            return Vec::new();
        }
        let copies = if rng.per_mille(self.faults.twice) {
            2
        } else {
            1
        };
        (0..copies).map(|_| self.delay(rng)).collect()
    }
}
