//! [`RankHosts`]: the hosts of the ranks of a layout, and the groups of ranks that exchange bytes.

use std::collections::BTreeMap;

use ronde_core::GroupRank;
use ronde_core::step_layout::{MeshPlace, StepLayout};

use crate::collective_times::GroupShape;

/// The ranks of a layout on hosts that are filled one after the other.
pub(crate) struct RankHosts<'a> {
    layout: &'a StepLayout,
    workers_per_host: usize,
}

impl<'a> RankHosts<'a> {
    /// Places the ranks of a layout on hosts with room for some workers each.
    pub(crate) fn new(layout: &'a StepLayout, workers_per_host: usize) -> Self {
        Self {
            layout,
            workers_per_host: workers_per_host.max(1),
        }
    }

    /// Returns the number of workers for which a host has room.
    pub(crate) fn workers_per_host(&self) -> usize {
        self.workers_per_host
    }

    /// Returns the number of hosts that have workers.
    pub(crate) fn hosts_used(&self) -> u32 {
        self.layout.members().div_ceil(self.workers_per_host) as u32
    }

    fn host_of(&self, place: MeshPlace) -> usize {
        self.layout.rank_at(place).index() / self.workers_per_host
    }

    /// Returns the most bytes that the workers of a host need together, from those of each worker of a replica.
    pub(crate) fn host_bytes(&self, of_replica: &[u64]) -> u64 {
        let tensors = self.layout.tensors();
        let of_rank = |rank: usize| {
            let place = self.layout.place(GroupRank(rank as u32));
            let index = place.map(|place| place.column * tensors + place.tensor);
            let found = index.and_then(|index| of_replica.get(index));
            found.copied().unwrap_or(0)
        };
        let ranks: Vec<usize> = (0..self.layout.members()).collect();
        let hosts = ranks.chunks(self.workers_per_host);
        let sums = hosts.map(|ranks| {
            let each = ranks.iter().map(|&rank| of_rank(rank));
            each.fold(0, u64::saturating_add)
        });
        sums.max().unwrap_or(0)
    }

    /// Returns the ranks with the layers of a column and the parts at a coordinate of the tensor axis.
    pub(crate) fn same_layers(&self, column: usize, tensor: usize) -> GroupShape {
        let replicas = self.layout.replicas();
        let of = |column: usize, tensor: usize| {
            let replicas = 0..replicas;
            let places = replicas.map(move |replica| MeshPlace {
                column,
                replica,
                tensor,
            });
            places.map(|place| self.host_of(place)).collect::<Vec<_>>()
        };
        let hosts = of(column, tensor);
        let columns = 0..self.layout.columns();
        let others = columns.flat_map(|column| {
            let tensors = 0..self.layout.tensors();
            tensors.map(move |tensor| (column, tensor))
        });
        let others = others.map(|(column, tensor)| of(column, tensor));
        GroupShape {
            sharing: sharing(&hosts, others),
            hosts,
        }
    }

    /// Returns the ranks with the layers of a column and the shards of a replica, which have different parts.
    pub(crate) fn other_parts_of(&self, column: usize, replica: usize) -> GroupShape {
        let tensors = 0..self.layout.tensors();
        let hosts = tensors.map(|tensor| {
            self.host_of(MeshPlace {
                column,
                replica,
                tensor,
            })
        });
        GroupShape {
            hosts: hosts.collect(),
            sharing: 1,
        }
    }

    /// Returns those of the column and the replica that cross most between hosts.
    pub(crate) fn other_parts(&self) -> GroupShape {
        let columns = 0..self.layout.columns();
        let groups = columns.flat_map(|column| {
            let replicas = 0..self.layout.replicas();
            replicas.map(move |replica| (column, replica))
        });
        let groups = groups.map(|(column, replica)| self.other_parts_of(column, replica).hosts);
        let groups: Vec<Vec<usize>> = groups.collect();
        let hosts_of = |hosts: &Vec<usize>| hosts.chunk_by(|a, b| a == b).count();
        let slowest = groups.iter().rev().max_by_key(|hosts| hosts_of(hosts));
        let hosts = slowest.cloned().unwrap_or_default();
        GroupShape {
            sharing: sharing(&hosts, groups.into_iter()),
            hosts,
        }
    }

    /// Returns the group of all ranks.
    pub(crate) fn all(&self) -> GroupShape {
        let ranks = 0..self.layout.members();
        GroupShape {
            hosts: ranks.map(|rank| rank / self.workers_per_host).collect(),
            sharing: 1,
        }
    }

    /// Returns whether the border between a stage and the next one crosses between hosts in any pipeline, and how many do on one
    /// host.
    pub(crate) fn crossing(&self, stage: usize) -> (bool, usize) {
        let layout = self.layout;
        let [from, to] = [stage, stage + 1].map(|stage| layout.stages()[stage].column);
        let mut of_host = BTreeMap::new();
        for replica in 0..layout.replicas() {
            for tensor in 0..layout.tensors() {
                let [from, to] = [from, to].map(|column| {
                    self.host_of(MeshPlace {
                        column,
                        replica,
                        tensor,
                    })
                });
                if from != to {
                    *of_host.entry(from).or_insert(0_usize) += 1;
                }
            }
        }
        let most = of_host.values().max().copied().unwrap_or(0);
        (most > 0, most.max(1))
    }
}

/// Returns how many groups on the hosts of a group exchange between hosts at the same time, at least one.
fn sharing(hosts: &[usize], groups: impl Iterator<Item = Vec<usize>>) -> usize {
    let crossing = groups.filter(|other| {
        other.first() != other.last() && other.iter().any(|host| hosts.contains(host))
    });
    crossing.count().max(1)
}

#[cfg(test)]
mod tests {
    use ronde_core::step_layout::divide_layers;

    use super::*;

    fn layout(tensors: usize) -> StepLayout {
        let stages = divide_layers(&[0..1, 1..2], &[1.0, 1.0], (2, 1), false).unwrap();
        StepLayout::mesh(8, 8, stages, tensors).unwrap()
    }

    #[test]
    fn ranks_with_different_parts_are_neighbours() {
        let layout = layout(2);
        let hosts = RankHosts::new(&layout, 2);
        assert_eq!(hosts.hosts_used(), 4);
        let parts = hosts.other_parts();
        assert_eq!((parts.hosts, parts.sharing), (vec![0, 0], 1));
        // Ranks 0 and 2, and beside them ranks 1 and 3.
        let same = hosts.same_layers(0, 0);
        assert_eq!((same.hosts, same.sharing), (vec![0, 1], 2));
        assert_eq!(hosts.crossing(0), (true, 2));
        assert_eq!(hosts.host_bytes(&[1, 2, 30, 40]), 70);
    }

    #[test]
    fn parts_on_several_hosts_share_their_links() {
        let layout = layout(4);
        let hosts = RankHosts::new(&layout, 2);
        let parts = hosts.other_parts();
        assert_eq!((parts.hosts, parts.sharing), (vec![0, 0, 1, 1], 1));
        let hosts = RankHosts::new(&layout, 3);
        assert_eq!(hosts.other_parts().sharing, 2);
        let one = RankHosts::new(&layout, 8);
        assert_eq!(one.crossing(0), (false, 1));
        assert_eq!(one.host_bytes(&[1, 2, 3, 4, 5, 6, 7, 8]), 36);
    }
}
