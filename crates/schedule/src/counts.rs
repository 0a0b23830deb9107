//! [`Counts`]: what a collective makes all ranks do together, counted in their schedules.
//!
//! The ranks are walked through their schedules in steps: in each step every rank posts the messages of
//! its round, and those that have heard what they wait for go on. What a step costs is decided by the
//! rank with the most to do, or by the host whose ranks share too few cores. Who receives does not begin
//! before the first piece was sent: short messages are sent and received one after the other, of long
//! ones most at once. Between hosts a step takes what the busiest host's link takes in its busier
//! direction.

use crate::schedule::{LocalAction, Round, Schedule, Transfer};
use crate::{Hosts, ScheduleError};

/// Bytes of a message that are sent before its receiver begins, where it is not shorter.
const PIECE_BYTES: usize = 64 << 10;

/// What a collective makes all ranks do together.
///
/// Messages and bytes are sums over steps, each step counted as the most of one rank or, where more,
/// as the sum over a host's ranks divided by its cores.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Counts {
    /// Steps one after the other within hosts.
    pub rounds: f64,
    /// Steps one after the other in which a message crosses between hosts.
    pub rounds_across: f64,
    /// Messages sent and received.
    pub messages: f64,
    /// Bytes sent and received, those that a rank waits for before it can receive included.
    pub bytes: f64,
    /// Bytes of operands that are reduced into others, or copied.
    pub bytes_reduced: f64,
    /// Bytes over the link of the busiest host in its busier direction.
    pub bytes_across: f64,
    /// Most bytes of scratch of one rank.
    pub scratch_bytes: f64,
    /// Steps in which some rank turns to other peers on other hosts than it has sent to before:
    /// connections that have rested must come up to their link's rate again.
    pub turns_across: f64,
}

/// What one rank does in one step.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    messages: usize,
    elements: usize,
    reduced: usize,
    /// Of `elements` those that it sends.
    sent: usize,
    /// Elements that are sent, by whoever does so first, before it can begin to receive.
    first: Option<usize>,
    /// Elements that are sent, by whoever does so last, before it receives the last piece, and that piece.
    last: usize,
}

impl Load {
    /// Elements that this rank sends, waits for and receives one after the other.
    fn in_turn(&self) -> usize {
        let begins = self.sent.max(self.first.unwrap_or(0));
        (begins + self.elements - self.sent).max(self.last)
    }
}

/// A rank on its way through its schedule.
struct Place<'a> {
    rounds: std::slice::Iter<'a, Round>,
    /// The round that it is in, and from whom it is still to hear there.
    current: Option<(&'a Round, Vec<usize>)>,
    /// To whom it has sent across hosts last.
    sent_across: Vec<usize>,
}

/// All ranks on their way.
struct Walk<'a> {
    hosts: &'a Hosts,
    cores: f64,
    /// Elements of a piece.
    piece: usize,
    places: Vec<Place<'a>>,
    /// Messages that were posted and not yet heard, by sender and receiver.
    posted: Vec<u32>,
    /// Of this step, by rank.
    loads: Vec<Load>,
    /// Elements out of and into each host in this step.
    links: Vec<(usize, usize)>,
    crossed: bool,
    turned: bool,
    counts: Counts,
}

impl Counts {
    /// Counts the schedules of all ranks, by rank, for elements of `element_bytes` on hosts of `cores`.
    ///
    /// Cost: one look at every message.
    ///
    /// # Errors
    /// [`ScheduleError::Broken`] for schedules in which a rank waits for ever, or of another group.
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
        let place = |schedule: &'_ Schedule| schedule.scratch_len();
        let scratch = schedules.iter().map(place).max().unwrap_or(0);
        let places = schedules.iter().map(|schedule| Place {
            rounds: schedule.rounds.iter(),
            current: None,
            sent_across: Vec::new(),
        });
        let mut walk = Walk {
            hosts,
            cores: cores.max(1) as f64,
            piece: PIECE_BYTES / element_bytes.max(1),
            places: places.collect(),
            posted: vec![0; size * size],
            loads: vec![Load::default(); size],
            links: vec![(0, 0); hosts.count()],
            crossed: false,
            turned: false,
            counts: Self::default(),
        };
        while walk.step()? {}
        let bytes = element_bytes as f64;
        let mut counts = walk.counts;
        counts.bytes *= bytes;
        counts.bytes_reduced *= bytes;
        counts.bytes_across *= bytes;
        counts.scratch_bytes = scratch as f64 * bytes;
        Ok(counts)
    }
}

impl Walk<'_> {
    /// One step of all ranks; `false` when all are done.
    fn step(&mut self) -> Result<bool, ScheduleError> {
        for rank in 0..self.places.len() {
            self.post(rank);
        }
        let mut moved = false;
        for rank in 0..self.places.len() {
            moved |= self.hear(rank);
        }
        if !moved {
            if self.places.iter().all(|place| place.current.is_none()) {
                return Ok(false);
            }
            let problem = "a rank waits for ever".to_owned();
            return Err(ScheduleError::Broken { problem });
        }
        self.account();
        Ok(true)
    }

    /// Enters the next round that has messages, and posts those.
    fn post(&mut self, rank: usize) {
        while self.places[rank].current.is_none() {
            let Some(round) = self.places[rank].rounds.next() else {
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
            let place = &mut self.places[rank];
            if !across.is_empty() {
                let before = std::mem::replace(&mut place.sent_across, across);
                let is_known = place.sent_across.iter().all(|to| before.contains(to));
                self.turned |= !before.is_empty() && !is_known;
            }
            place.current = Some((round, from));
        }
    }

    fn send(&mut self, from: usize, to: usize, elements: usize) {
        self.posted[from * self.places.len() + to] += 1;
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

    /// Takes what was posted for a rank; whether its round is over.
    fn hear(&mut self, rank: usize) -> bool {
        let (size, posted) = (self.places.len(), &mut self.posted);
        let Some((round, from)) = &mut self.places[rank].current else {
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
        self.places[rank].current = None;
        true
    }

    /// Adds a step up.
    fn account(&mut self) {
        let most_by = |one: fn(&Load) -> usize, of: fn(&Load) -> usize| {
            let one = self.loads.iter().map(one).max().unwrap_or(0) as f64;
            let host = (0..self.hosts.count()).map(|host| {
                let ranks = self.hosts.members(host).iter();
                ranks.map(|&rank| of(&self.loads[rank])).sum::<usize>()
            });
            one.max(host.max().unwrap_or(0) as f64 / self.cores)
        };
        let most = |of: fn(&Load) -> usize| most_by(of, of);
        let link = self.links.iter().map(|(out, into)| *out.max(into)).max();
        let counts = &mut self.counts;
        counts.messages += most(|load| load.messages);
        counts.bytes += most_by(Load::in_turn, |load| load.elements);
        counts.bytes_reduced += most(|load| load.reduced);
        counts.bytes_across += link.unwrap_or(0) as f64;
        if self.crossed {
            counts.rounds_across += 1.0;
        } else if self.loads.iter().any(|load| load.messages > 0) {
            counts.rounds += 1.0;
        }
        self.loads.fill(Load::default());
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
    use crate::{Algorithm, all_reduce_on};

    fn counted(algorithm: Algorithm, hosts: &Hosts, len: usize, cores: usize) -> Counts {
        let ranks = 0..hosts.size() as u32;
        let schedules: Result<Vec<_>, _> = ranks
            .map(|rank| all_reduce_on(algorithm, GroupRank(rank), hosts, len))
            .collect();
        Counts::of(&schedules.unwrap(), hosts, 1, cores).unwrap()
    }

    #[test]
    fn a_step_costs_what_its_busiest_rank_does() {
        let hosts = Hosts::one(4);
        let direct = counted(Algorithm::Direct, &hosts, 4096, 4);
        assert_eq!((direct.rounds, direct.rounds_across), (2.0, 0.0));
        assert_eq!((direct.messages, direct.bytes), (12.0, 12_288.0));
        assert_eq!((direct.bytes_reduced, direct.bytes_across), (3072.0, 0.0));
        assert_eq!(direct.scratch_bytes, 3072.0);
        // Two pairs, then one pair, then the same back.
        let tree = counted(Algorithm::Tree, &hosts, 4096, 4);
        assert_eq!((tree.rounds, tree.messages), (4.0, 4.0));
        // Each of them first sent, then received.
        assert_eq!((tree.bytes, tree.bytes_reduced), (32_768.0, 8192.0));
        let ring = counted(Algorithm::Ring, &hosts, 4096, 4);
        assert_eq!((ring.rounds, ring.messages), (6.0, 12.0));
        assert_eq!(ring.bytes, 12_288.0);
        // Rank 0 hears and tells three.
        let driver = counted(Algorithm::Driver, &hosts, 4096, 4);
        assert_eq!((driver.rounds, driver.messages), (2.0, 6.0));
        assert_eq!((driver.bytes, driver.scratch_bytes), (32_768.0, 12_288.0));
        // Of long ones all but the first piece at the same time.
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
    fn ranks_that_turn_to_other_peers_are_counted() {
        let apart = Hosts::new(&[0, 1, 2, 3]);
        let turns = |algorithm| counted(algorithm, &apart, 4096, 4).turns_across;
        assert_eq!(turns(Algorithm::Ring), 0.0);
        assert_eq!(turns(Algorithm::Direct), 0.0);
        // To the second peer, and back to the first one.
        assert_eq!(turns(Algorithm::HalvingDoubling), 2.0);
        let one = Hosts::one(4);
        assert_eq!(
            counted(Algorithm::HalvingDoubling, &one, 4096, 4).turns_across,
            0.0
        );
    }

    #[test]
    fn ranks_that_wait_for_ever_are_an_error() {
        let hosts = Hosts::one(2);
        let one = all_reduce_on(Algorithm::Direct, GroupRank(0), &hosts, 100).unwrap();
        let alone = Schedule::new(vec![100], crate::Region::new(0, 0..100));
        let error = Counts::of(&[one.clone(), alone], &hosts, 1, 1).unwrap_err();
        assert!(error.to_string().contains("waits for ever"), "{error}");
        assert!(Counts::of(&[one], &hosts, 1, 1).is_err());
    }
}
