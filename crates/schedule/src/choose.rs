//! Which algorithm runs an operation, with the reason, and the schedule that it makes.

use ronde_core::exact::ExactSum;
use ronde_core::{GroupRank, Operation};

use crate::broadcast::broadcast;
use crate::contributions::Contributions;
use crate::direct::direct;
use crate::driver::driver;
use crate::halving_doubling::{halving_doubling, keeps_tree};
use crate::hierarchical::{Levels, hierarchical};
use crate::hosts::Hosts;
use crate::ring::ring;
use crate::rooted::{broadcast_by_slices, reduce_at_root, reduce_by_slices};
use crate::tree::{tree, tree_reduce};
use crate::{Algorithm, Schedule, ScheduleError};

/// Up to this many bytes the count of messages decides, not the count of bytes.
pub const SMALL_BYTES: usize = 256 << 10;

/// Up to this many ranks that are no power of two, two rounds with everybody beat folding.
const FEW_RANKS: usize = 4;

/// Why `algorithm` cannot run `operation` on these ranks; `None` when it can.
#[must_use]
pub fn refusal(algorithm: Algorithm, operation: &Operation, hosts: &Hosts) -> Option<String> {
    match (operation, algorithm) {
        (Operation::ExactSum(_), Algorithm::Ring) => {
            Some("a ring adds each slice in another order and cannot keep that of the tree".into())
        }
        (Operation::ExactSum(sum), Algorithm::HalvingDoubling) if !keeps_tree(sum) => Some(
            "the ranks do not bring one subtree each whose sums with their neighbours' are nodes \
             of the tree"
                .into(),
        ),
        (Operation::ExactSum(_), Algorithm::Hierarchical) if !hosts.are_contiguous() => Some(
            "the ranks of a host do not follow each other, so that their shards are no run".into(),
        ),
        (
            Operation::Reduce { .. },
            Algorithm::Ring | Algorithm::HalvingDoubling | Algorithm::Hierarchical,
        ) => Some("a reduction to one rank is by driver, tree or direct".into()),
        (Operation::Broadcast { .. }, Algorithm::Direct | Algorithm::Tree) => None,
        (Operation::Broadcast { .. }, _) => Some("a broadcast is by tree or direct".into()),
        _ => None,
    }
}

/// [`choose_on`] for ranks of one host.
#[must_use]
pub fn choose(
    algorithm: Option<Algorithm>,
    operation: &Operation,
    size: usize,
    bytes: usize,
) -> (Algorithm, String) {
    choose_on(algorithm, operation, &Hosts::one(size), bytes)
}

/// The algorithm for an operation on operands of `bytes` bytes, and why it was chosen.
///
/// All ranks must pass the same arguments. A preferred algorithm is taken where it can run the
/// operation; operations other than reductions and broadcasts have one schedule each and answer
/// `direct`.
#[must_use]
pub fn choose_on(
    algorithm: Option<Algorithm>,
    operation: &Operation,
    hosts: &Hosts,
    bytes: usize,
) -> (Algorithm, String) {
    let several = matches!(
        operation,
        Operation::AllReduce(_)
            | Operation::ExactSum(_)
            | Operation::Reduce { .. }
            | Operation::Broadcast { .. }
    );
    if !several {
        return (Algorithm::Direct, "this operation has one schedule".into());
    }
    if hosts.size() <= 1 {
        return (Algorithm::Direct, "a group of one sends nothing".into());
    }
    let mut instead = String::new();
    if let Some(preferred) = algorithm {
        match refusal(preferred, operation, hosts) {
            None => return (preferred, format!("{preferred} was asked for")),
            Some(reason) => instead = format!("{preferred} was asked for, but {reason}; "),
        }
    }
    let (chosen, reason) = match operation {
        Operation::Reduce { .. } | Operation::Broadcast { .. } => with_root(bytes),
        _ => for_all(operation, hosts, bytes),
    };
    (chosen, instead + &reason)
}

fn with_root(bytes: usize) -> (Algorithm, String) {
    if bytes <= SMALL_BYTES {
        let reason = format!("{bytes} bytes are few: fewest messages");
        (Algorithm::Tree, reason)
    } else {
        let reason = format!("{bytes} bytes are many: no rank handles all of them for the others");
        (Algorithm::Direct, reason)
    }
}

fn for_all(operation: &Operation, hosts: &Hosts, bytes: usize) -> (Algorithm, String) {
    let size = hosts.size();
    if bytes > SMALL_BYTES
        && hosts.are_nested()
        && refusal(Algorithm::Hierarchical, operation, hosts).is_none()
    {
        let count = hosts.count();
        let reason = format!("{bytes} bytes are many and {count} hosts share the ranks");
        return (Algorithm::Hierarchical, reason);
    }
    if let Some(reason) = refusal(Algorithm::HalvingDoubling, operation, hosts) {
        return (Algorithm::Direct, reason);
    }
    if bytes > SMALL_BYTES {
        let reason = format!("{bytes} bytes are many: the least bytes in two rounds");
        return (Algorithm::Direct, reason);
    }
    if size <= FEW_RANKS && !size.is_power_of_two() {
        let reason = format!("{size} ranks are few and no power of two: two rounds");
        return (Algorithm::Direct, reason);
    }
    let reason = format!("{bytes} bytes are few: fewest messages in the fewest rounds");
    (Algorithm::HalvingDoubling, reason)
}

/// [`all_reduce_on`] for ranks of one host.
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

/// The schedule of an all-reduce of `len` elements.
///
/// # Errors
/// [`ScheduleError::Invalid`] for a rank that is not in the group.
pub fn all_reduce_on(
    algorithm: Algorithm,
    rank: GroupRank,
    hosts: &Hosts,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let size = hosts.size();
    let rank = member("all_reduce", rank, size)?;
    Ok(match algorithm {
        Algorithm::Driver => driver(&Contributions::plain(size), rank, len),
        Algorithm::Direct => direct(&Contributions::plain(size), rank, len),
        Algorithm::Ring => ring(rank, size, len),
        Algorithm::HalvingDoubling => halving_doubling(rank, size, len),
        Algorithm::Tree => tree(&Contributions::neighbours(size), rank, len),
        Algorithm::Hierarchical => hierarchical(hosts, &Levels::plain(hosts), rank, len),
    })
}

/// [`exact_sum_on`] for ranks of one host.
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

/// The schedule of an exact sum of operands of `len` elements; the caller's slots are its subtrees.
///
/// # Errors
/// [`ScheduleError::Refused`] when the algorithm cannot keep the order of the tree;
/// [`ScheduleError::Invalid`] for a rank that is not in the group or hosts of another group.
pub fn exact_sum_on(
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
        Algorithm::Hierarchical => hierarchical(hosts, &Levels::exact(sum, hosts), index, len),
        Algorithm::Direct | Algorithm::Ring => direct(&Contributions::exact(sum), index, len),
    })
}

/// The schedule of a reduction of `len` elements to `root`; the others end with nothing.
///
/// # Errors
/// [`ScheduleError::Refused`] when the algorithm cannot; [`ScheduleError::Invalid`] for a rank or
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

/// The schedule of a broadcast of `len` elements from `root`.
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
