//! [`Hosts`]: the assignment of the ranks of a group to hosts.

/// The host of every rank of a group, as an index from 0 in the order of first appearance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hosts {
    of_rank: Vec<usize>,
    members: Vec<Vec<usize>>,
}

impl Hosts {
    /// Puts all ranks on one host.
    #[must_use]
    pub fn one(size: usize) -> Self {
        Self::new(&vec![0; size])
    }

    /// Assigns rank `r` to the host `names[r]`.
    #[must_use]
    pub fn new<T: PartialEq>(names: &[T]) -> Self {
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut of_rank = Vec::with_capacity(names.len());
        for (rank, name) in names.iter().enumerate() {
            let known = members.iter().position(|host| names[host[0]] == *name);
            let host = known.unwrap_or_else(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            members[host].push(rank);
            of_rank.push(host);
        }
        Self { of_rank, members }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.of_rank.len()
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Returns the host of a rank.
    #[must_use]
    pub fn of(&self, rank: usize) -> usize {
        self.of_rank[rank]
    }

    /// Returns the ranks of a host in ascending order.
    #[must_use]
    pub fn members(&self, host: usize) -> &[usize] {
        &self.members[host]
    }

    /// Returns the number of ranks of the smallest host, which is the number of slices that can be reduced across hosts
    /// at once.
    #[must_use]
    pub fn smallest(&self) -> usize {
        self.members.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Returns whether the ranks of each host are consecutive.
    #[must_use]
    pub fn are_contiguous(&self) -> bool {
        self.of_rank.is_sorted()
    }

    /// Returns whether there are several hosts, at least one of them with several ranks.
    #[must_use]
    pub fn are_nested(&self) -> bool {
        self.count() > 1 && self.count() < self.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_in_order_of_appearance() {
        let hosts = Hosts::new(&["b", "a", "b", "c"]);
        assert_eq!(hosts.members(0), [0, 2]);
        assert_eq!((hosts.of(1), hosts.of(3)), (1, 2));
        assert_eq!((hosts.count(), hosts.smallest()), (3, 1));
        assert!(!hosts.are_contiguous() && hosts.are_nested());
        assert!(!Hosts::one(5).are_nested());
    }
}
