//! The schedules of operations that several algorithms can run.

use std::ops::Range;

use ronde_core::exact::ExactSum;
use ronde_core::{GroupRank, Operation};

use crate::algorithm::Algorithm;
use crate::blocks::{block_len, in_blocks};
use crate::broadcast::broadcast;
use crate::contributions::Contributions;
use crate::direct::{direct, direct_scatter};
use crate::driver::driver;
use crate::error::ScheduleError;
use crate::halving_doubling::{halving_doubling, keeps_tree};
use crate::hierarchical::{LevelSums, hierarchical};
use crate::hosts::Hosts;
use crate::ring::ring;
use crate::rooted::{broadcast_by_slices, reduce_at_root, reduce_by_slices};
use crate::schedule::Schedule;
use crate::tree::{tree, tree_reduce};

/// Calls [`all_reduce_on`] for ranks of one host.
///
/// # Errors
/// As for [`all_reduce_on`].
pub fn all_reduce(
    algorithm: Algorithm,
    rank: GroupRank,
    size: usize,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    all_reduce_on(algorithm, rank, &Hosts::one(size), len)
}

/// Returns the schedule of an all-reduce of `len` elements; long operands within a host use [`crate::blocks`].
///
/// # Errors
/// [`ScheduleError::Invalid`] for a rank that is not in the group.
pub fn all_reduce_on(
    algorithm: Algorithm,
    rank: GroupRank,
    hosts: &Hosts,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let block = block_len(algorithm, hosts, len);
    in_blocks(len, block, |len| {
        all_reduce_at_once(algorithm, rank, hosts, len)
    })
}

/// Returns the schedule of [`all_reduce_on`] without blocks.
pub(crate) fn all_reduce_at_once(
    algorithm: Algorithm,
    rank: GroupRank,
    hosts: &Hosts,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let size = hosts.size();
    let rank = member("all_reduce", rank, size)?;
    Ok(match algorithm {
        Algorithm::Driver => driver(&Contributions::plain(size), rank, len),
        // On one host, the hierarchical algorithm equals the direct one.
        Algorithm::Hierarchical if hosts.count() > 1 => {
            hierarchical(hosts, &LevelSums::plain(hosts), rank, len)
        }
        Algorithm::Direct | Algorithm::Hierarchical => {
            direct(&Contributions::plain(size), rank, len)
        }
        Algorithm::Ring => ring(rank, size, len),
        Algorithm::HalvingDoubling => halving_doubling(rank, size, len),
        Algorithm::Tree => tree(&Contributions::neighbours(size), rank, len),
    })
}

/// Calls [`exact_sum_on`] for ranks of one host.
///
/// # Errors
/// As for [`exact_sum_on`].
pub fn exact_sum(
    algorithm: Algorithm,
    sum: &ExactSum,
    rank: GroupRank,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    exact_sum_on(algorithm, sum, rank, &Hosts::one(sum.size()), len)
}

/// Returns the schedule of an exact sum of operands of `len` elements; the caller's slots are its subtrees. Long
/// operands within a host use [`crate::blocks`].
///
/// # Errors
/// [`ScheduleError::Refused`] if the algorithm cannot keep the order of the tree;
/// [`ScheduleError::Invalid`] for a rank that is not in the group or hosts of another group.
pub fn exact_sum_on(
    algorithm: Algorithm,
    sum: &ExactSum,
    rank: GroupRank,
    hosts: &Hosts,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let block = block_len(algorithm, hosts, len);
    in_blocks(len, block, |len| {
        exact_sum_at_once(algorithm, sum, rank, hosts, len)
    })
}

/// Returns the schedule of [`exact_sum_on`] without blocks.
pub(crate) fn exact_sum_at_once(
    algorithm: Algorithm,
    sum: &ExactSum,
    rank: GroupRank,
    hosts: &Hosts,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let size = sum.size();
    let index = member("exact_sum", rank, size)?;
    if hosts.size() != size {
        return Err(ScheduleError::Invalid {
            operation: "exact_sum",
            problem: format!("hosts of {} ranks for {size}", hosts.size()),
        });
    }
    refuse(
        algorithm,
        &Operation::ExactSum(sum.clone()),
        hosts,
        "exact_sum",
    )?;
    Ok(match algorithm {
        Algorithm::Driver => driver(&Contributions::exact(sum), index, len),
        Algorithm::HalvingDoubling => halving_doubling(index, size, len),
        Algorithm::Tree => tree(&Contributions::exact(sum), index, len),
        Algorithm::Hierarchical if hosts.count() > 1 => {
            hierarchical(hosts, &LevelSums::exact(sum, hosts), index, len)
        }
        Algorithm::Direct | Algorithm::Hierarchical | Algorithm::Ring => {
            direct(&Contributions::exact(sum), index, len)
        }
    })
}

/// Returns the schedule of an exact sum whose `lens[r]` elements rank `r` receives, in rank order; the caller's slots
/// are its subtrees, each as long as all lengths together. One round of direct exchange.
///
/// # Errors
/// [`ScheduleError::Invalid`] for a rank that is not in the group or lengths for another group.
pub fn exact_sum_scatter(
    sum: &ExactSum,
    rank: GroupRank,
    lens: &[usize],
) -> Result<Schedule, ScheduleError> {
    let index = member("exact_sum_scatter", rank, sum.size())?;
    if lens.len() != sum.size() {
        return Err(ScheduleError::Invalid {
            operation: "exact_sum_scatter",
            problem: format!("{} lengths for {} ranks", lens.len(), sum.size()),
        });
    }
    let mut start = 0;
    let slices: Vec<Range<usize>> = lens
        .iter()
        .map(|len| {
            start += len;
            start - len..start
        })
        .collect();
    let contributions = Contributions::exact(sum);
    Ok(direct_scatter(&contributions, index, &slices))
}

/// Returns the schedule of a reduction of `len` elements to `root`; the other ranks have an empty result.
///
/// # Errors
/// [`ScheduleError::Refused`] if the algorithm cannot run it; [`ScheduleError::Invalid`] for a rank or
/// root that is not in the group.
pub fn reduce(
    algorithm: Algorithm,
    rank: GroupRank,
    size: usize,
    root: GroupRank,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let index = member("reduce", rank, size)?;
    let top = member("reduce", root, size)?;
    let op = ronde_core::ReduceOp::Sum;
    let operation = Operation::Reduce { op, root };
    refuse(algorithm, &operation, &Hosts::one(size), "reduce")?;
    Ok(match algorithm {
        Algorithm::Driver => reduce_at_root(index, size, top, len),
        Algorithm::Tree => tree_reduce(index, size, top, len),
        _ => reduce_by_slices(index, size, top, len),
    })
}

/// Returns the schedule of a broadcast of `len` elements from `root`.
///
/// # Errors
/// As for [`reduce`].
pub fn broadcast_by(
    algorithm: Algorithm,
    rank: GroupRank,
    size: usize,
    root: GroupRank,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let index = member("broadcast", rank, size)?;
    let top = member("broadcast", root, size)?;
    let operation = Operation::Broadcast { root };
    refuse(algorithm, &operation, &Hosts::one(size), "broadcast")?;
    Ok(match algorithm {
        Algorithm::Tree => broadcast(index, size, top, len),
        _ => broadcast_by_slices(index, size, top, len),
    })
}

fn refuse(
    algorithm: Algorithm,
    operation: &Operation,
    hosts: &Hosts,
    name: &'static str,
) -> Result<(), ScheduleError> {
    refusal(algorithm, operation, hosts).map_or(Ok(()), |reason| {
        Err(ScheduleError::Refused {
            algorithm,
            operation: name,
            size: hosts.size(),
            reason,
        })
    })
}

fn member(operation: &'static str, rank: GroupRank, size: usize) -> Result<usize, ScheduleError> {
    if rank.index() < size {
        Ok(rank.index())
    } else {
        Err(ScheduleError::Invalid {
            operation,
            problem: format!("group rank {rank} is not in a group of {size}"),
        })
    }
}

/// Returns the reason why `algorithm` cannot run `operation` on these ranks; `None` if it can.
#[must_use]
pub fn refusal(algorithm: Algorithm, operation: &Operation, hosts: &Hosts) -> Option<String> {
    match (operation, algorithm) {
        (Operation::ExactSum(_), Algorithm::Ring) => Some(
            "a ring adds each slice in a different order and cannot keep the order of the tree"
                .into(),
        ),
        (Operation::ExactSum(sum), Algorithm::HalvingDoubling) if !keeps_tree(sum) => Some(
            "the ranks' shards are not one subtree each whose sums with neighbouring subtrees are \
             nodes of the tree"
                .into(),
        ),
        (Operation::ExactSum(_), Algorithm::Hierarchical) if !hosts.are_contiguous() => Some(
            "the ranks of a host are not consecutive, so their shards are not contiguous".into(),
        ),
        (
            Operation::Reduce { .. },
            Algorithm::Ring | Algorithm::HalvingDoubling | Algorithm::Hierarchical,
        ) => Some("a reduction to one rank supports only driver, tree and direct".into()),
        (Operation::Broadcast { .. }, Algorithm::Direct | Algorithm::Tree) => None,
        (Operation::Broadcast { .. }, _) => {
            Some("a broadcast supports only tree and direct".into())
        }
        _ => None,
    }
}
