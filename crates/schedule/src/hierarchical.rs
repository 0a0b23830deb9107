//! Hierarchical: inside each host first, then across hosts, then inside again.
//!
//! With `m` ranks on the smallest host, the first `m` ranks of every host own a slice each: they hear
//! it from their host's ranks, exchange what remains with the owners of the same slice on the other
//! hosts (as in direct exchange), and tell their host. Between `h` hosts of `m` ranks a host sends
//! about `2 b (h - 1) / h` bytes, whatever `m`. The order of additions is that of the ranks within a
//! host, then of the hosts; an exact sum adds within a host the subtrees that its run of shards
//! completes and ships the others, so that it keeps its bits where each host's ranks follow each other.

use ronde_core::GroupRank;
use ronde_core::exact::{self, ExactSum};

use crate::hosts::Hosts;
use crate::schedule::{Region, Round, Schedule};
use crate::slices::slice;

/// What is added within each host and then across.
pub(crate) struct Levels {
    /// Operands per rank.
    counts: Vec<usize>,
    inside: Vec<Inside>,
    /// `into += from` over what remains of all hosts, one host after the other.
    across: Vec<(usize, usize)>,
}

/// One host's part: its ranks' operands, one rank after the other.
struct Inside {
    additions: Vec<(usize, usize)>,
    left: Vec<usize>,
}

impl Levels {
    /// One operand per rank.
    pub(crate) fn plain(hosts: &Hosts) -> Self {
        let inside = (0..hosts.count()).map(|host| Inside {
            additions: (1..hosts.members(host).len())
                .map(|from| (0, from))
                .collect(),
            left: vec![0],
        });
        Self {
            counts: vec![1; hosts.size()],
            inside: inside.collect(),
            across: (1..hosts.count()).map(|from| (0, from)).collect(),
        }
    }

    /// The subtrees of an exact sum; each host's ranks must follow each other.
    pub(crate) fn exact(sum: &ExactSum, hosts: &Hosts) -> Self {
        let nodes = |rank: usize| sum.nodes(GroupRank(rank as u32));
        let mut inside = Vec::new();
        let mut shipped = Vec::new();
        for host in 0..hosts.count() {
            let all: Vec<_> = hosts.members(host).iter().flat_map(|&r| nodes(r)).collect();
            let (additions, left) = exact::reductions(&all, sum.shards());
            shipped.extend(left.iter().map(|&(_, node)| node));
            let left = left.into_iter().map(|(place, _)| place).collect();
            inside.push(Inside { additions, left });
        }
        Self {
            counts: (0..sum.size()).map(|rank| nodes(rank).len()).collect(),
            inside,
            across: exact::additions(&shipped, sum.shards()),
        }
    }
}

/// One rank's view while its schedule is made.
struct Maker<'a> {
    hosts: &'a Hosts,
    levels: &'a Levels,
    rank: usize,
    host: usize,
    /// Place within the host; below `slices` it owns the slice of that number.
    local: usize,
    slices: usize,
    len: usize,
    schedule: Schedule,
}

/// The schedule of `rank` for operands of `len` elements.
pub(crate) fn hierarchical(hosts: &Hosts, levels: &Levels, rank: usize, len: usize) -> Schedule {
    let count = levels.counts[rank];
    let mut schedule = Schedule::new(vec![len; count], Region::new(0, 0..len));
    if count == 0 {
        schedule.result.slot = schedule.scratch(len);
    }
    let host = hosts.of(rank);
    let members = hosts.members(host);
    let mut maker = Maker {
        hosts,
        levels,
        rank,
        host,
        local: members.iter().position(|&r| r == rank).unwrap_or(0),
        slices: hosts.smallest(),
        len,
        schedule,
    };
    let left = maker.reduce_inside();
    maker.reduce_across(&left);
    maker.tell_inside();
    maker.schedule
}

impl Maker<'_> {
    fn slice(&self, owner: usize) -> std::ops::Range<usize> {
        slice(self.len, self.slices, owner)
    }

    fn owns(&self) -> bool {
        self.local < self.slices
    }

    /// The part of this rank's slice that `host` reduces.
    fn part(&self, host: usize) -> std::ops::Range<usize> {
        let whole = self.slice(self.local);
        let part = slice(whole.len(), self.hosts.count(), host);
        whole.start + part.start..whole.start + part.end
    }

    /// Owners hear their slice from their host; where what remains of it lies.
    fn reduce_inside(&mut self) -> Vec<Region> {
        let members = self.hosts.members(self.host);
        let mut round = Round::default();
        for (owner, &peer) in members.iter().enumerate().take(self.slices) {
            for operand in (0..self.levels.counts[self.rank]).filter(|_| peer != self.rank) {
                round.send(peer, Region::new(operand, self.slice(owner)));
            }
        }
        let mut places = Vec::new();
        if self.owns() {
            let owned = self.slice(self.local);
            for &peer in members {
                for operand in 0..self.levels.counts[peer] {
                    if peer == self.rank {
                        places.push(Region::new(operand, owned.clone()));
                        continue;
                    }
                    let slot = self.schedule.scratch(owned.len());
                    let place = Region::new(slot, 0..owned.len());
                    round.receive(peer, place.clone());
                    places.push(place);
                }
            }
            for &(into, from) in &self.levels.inside[self.host].additions {
                round.reduce_right(places[into].clone(), places[from].clone());
            }
        }
        self.schedule.push(round);
        let left = self.levels.inside[self.host].left.iter();
        left.filter_map(|&place| places.get(place).cloned())
            .collect()
    }

    /// Owners of one slice exchange what remains and then the results.
    fn reduce_across(&mut self, left: &[Region]) {
        if !self.owns() {
            return;
        }
        let result = self.schedule.result.slot;
        let start = self.slice(self.local).start;
        let within = |place: &Region, part: std::ops::Range<usize>| {
            let shift = |at: usize| place.elements.start + at - start;
            Region::new(place.slot, shift(part.start)..shift(part.end))
        };
        let mine = self.part(self.host);
        let (mut scatter, mut gather) = (Round::default(), Round::default());
        let mut places = Vec::new();
        for host in 0..self.hosts.count() {
            if host == self.host {
                places.extend(left.iter().map(|place| within(place, mine.clone())));
                continue;
            }
            let peer = self.hosts.members(host)[self.local];
            for place in left {
                scatter.send(peer, within(place, self.part(host)));
            }
            for _ in &self.levels.inside[host].left {
                let slot = self.schedule.scratch(mine.len());
                let place = Region::new(slot, 0..mine.len());
                scatter.receive(peer, place.clone());
                places.push(place);
            }
            gather.send(peer, Region::new(result, mine.clone()));
            gather.receive(peer, Region::new(result, self.part(host)));
        }
        for &(into, from) in &self.levels.across {
            scatter.reduce_right(places[into].clone(), places[from].clone());
        }
        scatter.copy(Region::new(result, mine), places[0].clone());
        self.schedule.push(scatter);
        self.schedule.push(gather);
    }

    fn tell_inside(&mut self) {
        let result = self.schedule.result.slot;
        let mut round = Round::default();
        for (place, &peer) in self.hosts.members(self.host).iter().enumerate() {
            if peer == self.rank {
                continue;
            }
            if self.owns() {
                round.send(peer, Region::new(result, self.slice(self.local)));
            }
            if place < self.slices {
                round.receive(peer, Region::new(result, self.slice(place)));
            }
        }
        self.schedule.push(round);
    }
}
