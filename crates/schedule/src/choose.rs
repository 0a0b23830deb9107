//! Which algorithm runs an operation, with the reason, and the schedule that it makes.

use ronde_core::exact::ExactSum;
use ronde_core::{GroupRank, Operation};

use crate::contributions::Contributions;
use crate::direct::direct;
use crate::driver::driver;
use crate::halving_doubling::halving_doubling;
use crate::ring::ring;
use crate::{Algorithm, Schedule, ScheduleError};

/// Up to this many bytes the count of messages decides, not the count of bytes.
pub const SMALL_BYTES: usize = 256 << 10;

/// Why `algorithm` cannot run `operation` on `size` ranks; `None` when it can.
#[must_use]
pub fn refusal(algorithm: Algorithm, operation: &Operation, size: usize) -> Option<String> {
    match (operation, algorithm) {
        (Operation::ExactSum(_), Algorithm::Ring) => {
            Some("a ring adds each slice in another order and cannot keep that of the tree".into())
        }
        (_, Algorithm::HalvingDoubling) if !size.is_power_of_two() => {
            Some(format!("{size} ranks are not a power of two"))
        }
        (Operation::ExactSum(sum), Algorithm::HalvingDoubling) if !sum.is_balanced() => Some(
            "the ranks do not bring one subtree of the same height each, so that sums of \
             neighbours are not nodes of the tree"
                .into(),
        ),
        _ => None,
    }
}

/// The algorithm for a reduction of operands of `bytes` bytes, and why it was chosen.
///
/// All ranks must pass the same arguments. A preferred algorithm is taken where it can run the
/// operation; operations other than reductions have one schedule each and answer `direct`.
#[must_use]
pub fn choose(
    algorithm: Option<Algorithm>,
    operation: &Operation,
    size: usize,
    bytes: usize,
) -> (Algorithm, String) {
    if !matches!(operation, Operation::AllReduce(_) | Operation::ExactSum(_)) {
        return (Algorithm::Direct, "this operation has one schedule".into());
    }
    if size <= 1 {
        return (Algorithm::Direct, "a group of one sends nothing".into());
    }
    let mut instead = String::new();
    if let Some(preferred) = algorithm {
        match refusal(preferred, operation, size) {
            None => return (preferred, format!("{preferred} was asked for")),
            Some(reason) => instead = format!("{preferred} was asked for, but {reason}; "),
        }
    }
    let (chosen, reason) = automatic(operation, size, bytes);
    (chosen, instead + &reason)
}

fn automatic(operation: &Operation, size: usize, bytes: usize) -> (Algorithm, String) {
    let refused = refusal(Algorithm::HalvingDoubling, operation, size);
    match refused {
        None if bytes <= SMALL_BYTES => (
            Algorithm::HalvingDoubling,
            format!("{bytes} bytes are few and {size} ranks a power of two: fewest messages"),
        ),
        None => (
            Algorithm::Direct,
            format!("{bytes} bytes are many: the least bytes in two rounds"),
        ),
        Some(reason) => (Algorithm::Direct, reason),
    }
}

/// The schedule of an all-reduce of `len` elements.
///
/// # Errors
/// [`ScheduleError::Refused`] when the algorithm cannot; [`ScheduleError::Invalid`] for a rank that
/// is not in the group.
pub fn all_reduce(
    algorithm: Algorithm,
    rank: GroupRank,
    size: usize,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let rank = member("all_reduce", rank, size)?;
    match algorithm {
        Algorithm::Driver => Ok(driver(&Contributions::plain(size), rank, len)),
        Algorithm::Direct => Ok(direct(&Contributions::plain(size), rank, len)),
        Algorithm::Ring => Ok(ring(rank, size, len)),
        Algorithm::HalvingDoubling => {
            halving_doubling(rank, size, len).ok_or_else(|| ScheduleError::Refused {
                algorithm,
                operation: "all_reduce",
                size,
                reason: format!("{size} ranks are not a power of two"),
            })
        }
    }
}

/// The schedule of an exact sum of operands of `len` elements; the caller's slots are its subtrees.
///
/// # Errors
/// As for [`all_reduce`].
pub fn exact_sum(
    algorithm: Algorithm,
    sum: &ExactSum,
    rank: GroupRank,
    len: usize,
) -> Result<Schedule, ScheduleError> {
    let size = sum.size();
    let index = member("exact_sum", rank, size)?;
    let operation = Operation::ExactSum(sum.clone());
    if let Some(reason) = refusal(algorithm, &operation, size) {
        return Err(ScheduleError::Refused {
            algorithm,
            operation: "exact_sum",
            size,
            reason,
        });
    }
    match algorithm {
        Algorithm::Driver => Ok(driver(&Contributions::exact(sum), index, len)),
        Algorithm::HalvingDoubling => all_reduce(algorithm, rank, size, len),
        Algorithm::Direct | Algorithm::Ring => Ok(direct(&Contributions::exact(sum), index, len)),
    }
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
