//! [`Counts`]: the messages and bytes of all ranks of a collective, counted in their schedules.
//!
//! The schedules of all ranks are simulated in steps: in each step every rank posts the messages of its round,
//! and the ranks that have received all expected messages continue. The cost of a step is that of the rank with
//! the most work, or of the host whose ranks share too few cores. A receiver does not begin before the first
//! piece was sent: short messages are sent and received sequentially, most of a long message concurrently.
//! Between hosts, the cost of a step is the time of the busiest host's link in its busier direction.

use crate::error::ScheduleError;
use crate::hosts::Hosts;
use crate::schedule::{LocalAction, Round, Schedule, Transfer};

/// The number of bytes of a longer message that are sent before its receiver begins.
const PIECE_BYTES: usize = 64 << 10;

/// The messages and bytes of all ranks of a collective.
///
/// Messages and bytes are sums over steps. A step counts as the maximum over ranks, or as the sum over a host's
/// ranks divided by its cores if that is larger.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Counts {
    /// The number of sequential steps within hosts.
    pub rounds: f64,
    /// The number of sequential steps in which a message crosses between hosts.
    pub rounds_across: f64,
    /// The number of messages sent and received.
    pub messages: f64,
    /// The number of bytes sent and received, including those that a rank waits for before it can receive.
    pub bytes: f64,
    /// The number of bytes that are reduced into other operands or copied.
    pub bytes_reduced: f64,
    /// The number of bytes over the link of the busiest host in its busier direction.
    pub bytes_across: f64,
    /// The largest number of bytes of scratch memory of a rank.
    pub scratch_bytes: f64,
    /// The number of steps in which a rank sends to other peers on other hosts than before: idle connections must
    /// reach their link's rate again.
    pub turns_across: f64,
}

/// The messages and bytes of one rank in one step.
#[derive(Debug, Clone, Copy, Default)]
struct RankLoad {
    messages: usize,
    elements: usize,
    reduced: usize,
    /// The part of `elements` that the rank sends.
    sent: usize,
    /// The elements that the earliest sender sends before this rank can begin to receive.
    first: Option<usize>,
    /// The elements that the latest sender sends until this rank receives the last piece, including that piece.
    last: usize,
}

impl RankLoad {
    /// Returns the number of elements that this rank sends, waits for and receives sequentially.
    fn in_turn(&self) -> usize {
        let begins = self.sent.max(self.first.unwrap_or(0));
        (begins + self.elements - self.sent).max(self.last)
    }
}

/// The position of a rank in its schedule.
struct SchedulePosition<'a> {
    rounds: std::slice::Iter<'a, Round>,
    /// The current round, and the ranks whose messages are still missing.
    current: Option<(&'a Round, Vec<usize>)>,
    /// The ranks on other hosts to which it has sent most recently.
    sent_across: Vec<usize>,
}

/// The simulation of all ranks.
struct ScheduleSimulation<'a> {
    hosts: &'a Hosts,
    cores: f64,
    /// The number of elements of a piece.
    piece: usize,
    positions: Vec<SchedulePosition<'a>>,
    /// Messages that were posted and not yet received, by sender and receiver.
    posted: Vec<u32>,
    /// The work of each rank in this step.
    loads: Vec<RankLoad>,
    /// The number of elements sent and received by each host in this step.
    links: Vec<(usize, usize)>,
    crossed: bool,
    turned: bool,
    counts: Counts,
}

impl Counts {
    /// Counts the messages and bytes of the schedules of all ranks, for elements of `element_bytes` bytes on hosts of
    /// `cores` cores.
    ///
    /// Cost: visits every message once.
    ///
    /// # Errors
    /// [`ScheduleError::Broken`] for schedules with a deadlock, or of another group.
    pub fn of(
        schedules: &[Schedule],
        hosts: &Hosts,
        element_bytes: usize,
        cores: usize,
    ) -> Result<Self, ScheduleError> {
        let size = schedules.len();
        if hosts.size() != size {
            let problem = format!("hosts of {} ranks for {size}", hosts.size());
            return Err(ScheduleError::Broken { problem });
        }
        let scratch_len = |schedule: &'_ Schedule| schedule.scratch_len();
        let scratch = schedules.iter().map(scratch_len).max().unwrap_or(0);
        let positions = schedules.iter().map(|schedule| SchedulePosition {
            rounds: schedule.rounds.iter(),
            current: None,
            sent_across: Vec::new(),
        });
        let mut simulation = ScheduleSimulation {
            hosts,
            cores: cores.max(1) as f64,
            piece: PIECE_BYTES / element_bytes.max(1),
            positions: positions.collect(),
            posted: vec![0; size * size],
            loads: vec![RankLoad::default(); size],
            links: vec![(0, 0); hosts.count()],
            crossed: false,
            turned: false,
            counts: Self::default(),
        };
        while simulation.step()? {}
        let bytes = element_bytes as f64;
        let mut counts = simulation.counts;
        counts.bytes *= bytes;
        counts.bytes_reduced *= bytes;
        counts.bytes_across *= bytes;
        counts.scratch_bytes = scratch as f64 * bytes;
        Ok(counts)
    }
}

impl ScheduleSimulation<'_> {
    /// Simulates one step of all ranks; returns `false` when all have finished.
    fn step(&mut self) -> Result<bool, ScheduleError> {
        for rank in 0..self.positions.len() {
            self.post(rank);
        }
        let mut moved = false;
        for rank in 0..self.positions.len() {
            moved |= self.hear(rank);
        }
        if !moved {
            if self
                .positions
                .iter()
                .all(|position| position.current.is_none())
            {
                return Ok(false);
            }
            let problem = "a rank waits forever".to_owned();
            return Err(ScheduleError::Broken { problem });
        }
        self.account();
        Ok(true)
    }

    /// Enters the next round with messages and posts them.
    fn post(&mut self, rank: usize) {
        while self.positions[rank].current.is_none() {
            let Some(round) = self.positions[rank].rounds.next() else {
                return;
            };
            if round.transfers.is_empty() {
                self.loads[rank].reduced += reduced(round);
                continue;
            }
            let (mut from, mut across) = (Vec::new(), Vec::new());
            for transfer in &round.transfers {
                match transfer {
                    Transfer::Send { to, region } => {
                        let to = to.index();
                        self.send(rank, to, region.len());
                        if self.hosts.of(rank) != self.hosts.of(to) {
                            across.push(to);
                        }
                    }
                    Transfer::Receive { from: peer, .. } => from.push(peer.index()),
                }
            }
            let position = &mut self.positions[rank];
            if !across.is_empty() {
                let before = std::mem::replace(&mut position.sent_across, across);
                let is_known = position.sent_across.iter().all(|to| before.contains(to));
                self.turned |= !before.is_empty() && !is_known;
            }
            position.current = Some((round, from));
        }
    }

    fn send(&mut self, from: usize, to: usize, elements: usize) {
        self.posted[from * self.positions.len() + to] += 1;
        for rank in [from, to] {
            self.loads[rank].messages += 1;
            self.loads[rank].elements += elements;
        }
        let (piece, before) = (elements.min(self.piece), self.loads[from].sent);
        self.loads[from].sent += elements;
        let load = &mut self.loads[to];
        let first = before + piece;
        load.first = Some(load.first.map_or(first, |known| known.min(first)));
        load.last = load.last.max(before + elements + piece);
        let (here, there) = (self.hosts.of(from), self.hosts.of(to));
        if here != there {
            self.links[here].0 += elements;
            self.links[there].1 += elements;
            self.crossed = true;
        }
    }

    /// Receives the messages that were posted for a rank; returns whether its round is complete.
    fn hear(&mut self, rank: usize) -> bool {
        let (size, posted) = (self.positions.len(), &mut self.posted);
        let Some((round, from)) = &mut self.positions[rank].current else {
            return false;
        };
        from.retain(|peer| {
            let waiting = &mut posted[peer * size + rank];
            let none = *waiting == 0;
            *waiting -= u32::from(!none);
            none
        });
        if !from.is_empty() {
            return false;
        }
        self.loads[rank].reduced += reduced(round);
        self.positions[rank].current = None;
        true
    }

    /// Adds the cost of a step.
    fn account(&mut self) {
        let most_by = |one: fn(&RankLoad) -> usize, of: fn(&RankLoad) -> usize| {
            let one = self.loads.iter().map(one).max().unwrap_or(0) as f64;
            let host = (0..self.hosts.count()).map(|host| {
                let ranks = self.hosts.members(host).iter();
                ranks.map(|&rank| of(&self.loads[rank])).sum::<usize>()
            });
            one.max(host.max().unwrap_or(0) as f64 / self.cores)
        };
        let most = |of: fn(&RankLoad) -> usize| most_by(of, of);
        let link = self.links.iter().map(|(out, into)| *out.max(into)).max();
        let counts = &mut self.counts;
        counts.messages += most(|load| load.messages);
        counts.bytes += most_by(RankLoad::in_turn, |load| load.elements);
        counts.bytes_reduced += most(|load| load.reduced);
        counts.bytes_across += link.unwrap_or(0) as f64;
        if self.crossed {
            counts.rounds_across += 1.0;
        } else if self.loads.iter().any(|load| load.messages > 0) {
            counts.rounds += 1.0;
        }
        self.loads.fill(RankLoad::default());
        self.links.fill((0, 0));
        counts.turns_across += f64::from(u8::from(self.turned));
        (self.crossed, self.turned) = (false, false);
    }
}

fn reduced(round: &Round) -> usize {
    let of = |action: &LocalAction| match action {
        LocalAction::Reduce { into, .. } | LocalAction::Copy { into, .. } => into.len(),
    };
    round.actions.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use ronde_core::GroupRank;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::make::all_reduce_on;

    fn counted(algorithm: Algorithm, hosts: &Hosts, len: usize, cores: usize) -> Counts {
        let ranks = 0..hosts.size() as u32;
        let schedules: Result<Vec<_>, _> = ranks
            .map(|rank| all_reduce_on(algorithm, GroupRank(rank), hosts, len))
            .collect();
        Counts::of(&schedules.unwrap(), hosts, 1, cores).unwrap()
    }

    #[test]
    fn a_step_costs_as_much_as_its_busiest_rank() {
        let hosts = Hosts::one(4);
        let direct = counted(Algorithm::Direct, &hosts, 4096, 4);
        assert_eq!((direct.rounds, direct.rounds_across), (2.0, 0.0));
        assert_eq!((direct.messages, direct.bytes), (12.0, 12_288.0));
        assert_eq!((direct.bytes_reduced, direct.bytes_across), (3072.0, 0.0));
        assert_eq!(direct.scratch_bytes, 3072.0);
        // Two pairs, then one pair, then the reverse.
        let tree = counted(Algorithm::Tree, &hosts, 4096, 4);
        assert_eq!((tree.rounds, tree.messages), (4.0, 4.0));
        // Each message is first sent, then received.
        assert_eq!((tree.bytes, tree.bytes_reduced), (32_768.0, 8192.0));
        let ring = counted(Algorithm::Ring, &hosts, 4096, 4);
        assert_eq!((ring.rounds, ring.messages), (6.0, 12.0));
        assert_eq!(ring.bytes, 12_288.0);
        // Rank 0 receives from three ranks and sends to three.
        let driver = counted(Algorithm::Driver, &hosts, 4096, 4);
        assert_eq!((driver.rounds, driver.messages), (2.0, 6.0));
        assert_eq!((driver.bytes, driver.scratch_bytes), (32_768.0, 12_288.0));
        // All pieces of a long message except the first are sent and received at the same time.
        let long = counted(Algorithm::Driver, &hosts, 1 << 20, 4);
        assert_eq!(long.bytes, (6 << 20) as f64 + 2.0 * PIECE_BYTES as f64);
    }

    #[test]
    fn ranks_that_share_cores_do_their_work_one_after_the_other() {
        let hosts = Hosts::one(4);
        let direct = counted(Algorithm::Direct, &hosts, 4096, 2);
        assert_eq!((direct.messages, direct.bytes), (24.0, 24_576.0));
        let tree = counted(Algorithm::Tree, &hosts, 4096, 1);
        assert_eq!((tree.messages, tree.bytes), (12.0, 49_152.0));
        // Two hosts have twice the cores.
        let two = Hosts::new(&[0, 0, 1, 1]);
        assert_eq!(counted(Algorithm::Direct, &two, 4096, 2).messages, 12.0);
    }

    #[test]
    fn links_between_hosts_carry_both_ways_at_once() {
        let hosts = Hosts::new(&[0, 0, 1, 1]);
        let hierarchical = counted(Algorithm::Hierarchical, &hosts, 4096, 4);
        assert_eq!(hierarchical.rounds, 2.0);
        assert_eq!(hierarchical.rounds_across, 2.0);
        assert_eq!(hierarchical.bytes_across, 4096.0);
        let direct = counted(Algorithm::Direct, &hosts, 4096, 4);
        assert_eq!((direct.rounds, direct.rounds_across), (0.0, 2.0));
        assert_eq!(direct.bytes_across, 8192.0);
        // Up and down the tree: the whole operand one way, then the other way.
        let tree = counted(Algorithm::Tree, &hosts, 4096, 4);
        assert_eq!((tree.rounds, tree.rounds_across), (2.0, 2.0));
        assert_eq!(tree.bytes_across, 8192.0);
    }

    #[test]
    fn changes_of_peers_are_counted() {
        let apart = Hosts::new(&[0, 1, 2, 3]);
        let turns = |algorithm| counted(algorithm, &apart, 4096, 4).turns_across;
        assert_eq!(turns(Algorithm::Ring), 0.0);
        assert_eq!(turns(Algorithm::Direct), 0.0);
        // One change to the second peer, and one back to the first.
        assert_eq!(turns(Algorithm::HalvingDoubling), 2.0);
        let one = Hosts::one(4);
        assert_eq!(
            counted(Algorithm::HalvingDoubling, &one, 4096, 4).turns_across,
            0.0
        );
    }

    #[test]
    fn deadlocks_are_an_error() {
        let hosts = Hosts::one(2);
        let one = all_reduce_on(Algorithm::Direct, GroupRank(0), &hosts, 100).unwrap();
        let alone = Schedule::new(vec![100], crate::Region::new(0, 0..100));
        let error = Counts::of(&[one.clone(), alone], &hosts, 1, 1).unwrap_err();
        assert!(error.to_string().contains("waits forever"), "{error}");
        assert!(Counts::of(&[one], &hosts, 1, 1).is_err());
    }
}
