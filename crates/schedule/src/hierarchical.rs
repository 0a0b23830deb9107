//! Hierarchical: first within each host, then across hosts, then within each host again.
//!
//! With `m` ranks on the smallest host, the first `m` ranks of every host own a slice each. They receive it
//! from their host's ranks, exchange partial sums with the owners of the same slice on other hosts (as in
//! direct exchange), and send the result to their host's ranks. Between `h` hosts, each host sends about
//! `2 b (h - 1) / h` bytes, for any `m`. Operands are added in the order of ranks within a host, then in the
//! order of hosts. An exact sum adds within a host the subtrees that the host's shards complete and sends the
//! remaining ones, so that it keeps its bits if the ranks of each host are consecutive.

use ronde_core::GroupRank;
use ronde_core::exact::{self, ExactSum};

use crate::hosts::Hosts;
use crate::schedule::{Region, Round, Schedule};
use crate::slices::slice;

/// The additions within each host and across hosts.
pub(crate) struct LevelSums {
    /// The number of operands of each rank.
    counts: Vec<usize>,
    inside: Vec<HostSum>,
    /// Additions `into += from` over the remaining operands of all hosts, in the order of hosts.
    across: Vec<(usize, usize)>,
}

/// The additions within one host, over its ranks' operands in rank order.
struct HostSum {
    additions: Vec<(usize, usize)>,
    left: Vec<usize>,
}

impl LevelSums {
    /// Returns the additions for one operand per rank.
    pub(crate) fn plain(hosts: &Hosts) -> Self {
        let inside = (0..hosts.count()).map(|host| HostSum {
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

    /// Returns the additions of an exact sum; the ranks of each host must be consecutive.
    pub(crate) fn exact(sum: &ExactSum, hosts: &Hosts) -> Self {
        let nodes = |rank: usize| sum.nodes(GroupRank(rank as u32));
        let mut inside = Vec::new();
        let mut shipped = Vec::new();
        for host in 0..hosts.count() {
            let all: Vec<_> = hosts.members(host).iter().flat_map(|&r| nodes(r)).collect();
            let (additions, left) = exact::reductions(&all, sum.shards());
            shipped.extend(left.iter().map(|&(_, node)| node));
            let left = left.into_iter().map(|(index, _)| index).collect();
            inside.push(HostSum { additions, left });
        }
        Self {
            counts: (0..sum.size()).map(|rank| nodes(rank).len()).collect(),
            inside,
            across: exact::additions(&shipped, sum.shards()),
        }
    }
}

/// The state while one rank's schedule is built.
struct HierarchicalBuilder<'a> {
    hosts: &'a Hosts,
    levels: &'a LevelSums,
    rank: usize,
    host: usize,
    /// The index within the host; a rank below `slices` owns the slice of that index.
    local: usize,
    slices: usize,
    len: usize,
    schedule: Schedule,
}

/// Returns the schedule of `rank` for operands of `len` elements.
pub(crate) fn hierarchical(hosts: &Hosts, levels: &LevelSums, rank: usize, len: usize) -> Schedule {
    let count = levels.counts[rank];
    let mut schedule = Schedule::new(vec![len; count], Region::new(0, 0..len));
    if count == 0 {
        schedule.result.slot = schedule.scratch(len);
    }
    let host = hosts.of(rank);
    let members = hosts.members(host);
    let mut maker = HierarchicalBuilder {
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
    maker.broadcast_in_host();
    maker.schedule
}

impl HierarchicalBuilder<'_> {
    fn slice(&self, owner: usize) -> std::ops::Range<usize> {
        slice(self.len, self.slices, owner)
    }

    fn owns(&self) -> bool {
        self.local < self.slices
    }

    /// Returns the part of this rank's slice that `host` reduces.
    fn part(&self, host: usize) -> std::ops::Range<usize> {
        let whole = self.slice(self.local);
        let part = slice(whole.len(), self.hosts.count(), host);
        whole.start + part.start..whole.start + part.end
    }

    /// Adds the round in which owners receive their slice from their host; returns the regions of the partial sums.
    fn reduce_inside(&mut self) -> Vec<Region> {
        let members = self.hosts.members(self.host);
        let mut round = Round::default();
        for (owner, &peer) in members.iter().enumerate().take(self.slices) {
            for operand in (0..self.levels.counts[self.rank]).filter(|_| peer != self.rank) {
                round.send(peer, Region::new(operand, self.slice(owner)));
            }
        }
        let mut regions = Vec::new();
        if self.owns() {
            let owned = self.slice(self.local);
            for &peer in members {
                for operand in 0..self.levels.counts[peer] {
                    if peer == self.rank {
                        regions.push(Region::new(operand, owned.clone()));
                        continue;
                    }
                    let slot = self.schedule.scratch(owned.len());
                    let region = Region::new(slot, 0..owned.len());
                    round.receive(peer, region.clone());
                    regions.push(region);
                }
            }
            for &(into, from) in &self.levels.inside[self.host].additions {
                round.reduce_right(regions[into].clone(), regions[from].clone());
            }
        }
        self.schedule.push(round);
        let left = self.levels.inside[self.host].left.iter();
        left.filter_map(|&index| regions.get(index).cloned())
            .collect()
    }

    /// Adds the rounds in which the owners of one slice exchange partial sums and then results.
    fn reduce_across(&mut self, left: &[Region]) {
        if !self.owns() {
            return;
        }
        let result = self.schedule.result.slot;
        let start = self.slice(self.local).start;
        let within = |region: &Region, part: std::ops::Range<usize>| {
            let shift = |at: usize| region.elements.start + at - start;
            Region::new(region.slot, shift(part.start)..shift(part.end))
        };
        let mine = self.part(self.host);
        let (mut scatter, mut gather) = (Round::default(), Round::default());
        let mut regions = Vec::new();
        for host in 0..self.hosts.count() {
            if host == self.host {
                regions.extend(left.iter().map(|region| within(region, mine.clone())));
                continue;
            }
            let peer = self.hosts.members(host)[self.local];
            for region in left {
                scatter.send(peer, within(region, self.part(host)));
            }
            for _ in &self.levels.inside[host].left {
                let slot = self.schedule.scratch(mine.len());
                let region = Region::new(slot, 0..mine.len());
                scatter.receive(peer, region.clone());
                regions.push(region);
            }
            gather.send(peer, Region::new(result, mine.clone()));
            gather.receive(peer, Region::new(result, self.part(host)));
        }
        for &(into, from) in &self.levels.across {
            scatter.reduce_right(regions[into].clone(), regions[from].clone());
        }
        scatter.copy(Region::new(result, mine), regions[0].clone());
        self.schedule.push(scatter);
        self.schedule.push(gather);
    }

    fn broadcast_in_host(&mut self) {
        let result = self.schedule.result.slot;
        let mut round = Round::default();
        for (local, &peer) in self.hosts.members(self.host).iter().enumerate() {
            if peer == self.rank {
                continue;
            }
            if self.owns() {
                round.send(peer, Region::new(result, self.slice(self.local)));
            }
            if local < self.slices {
                round.receive(peer, Region::new(result, self.slice(local)));
            }
        }
        self.schedule.push(round);
    }
}
