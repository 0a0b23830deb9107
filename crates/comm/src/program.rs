//! From what a caller asks for to a [`Call`] that can be compared and a schedule that can be run.

use ronde_core::exact::ExactSum;
use ronde_core::{Buffer, CollectiveError, DType, GroupRank, MemoryKind, Operation, ReduceOp};
use ronde_schedule::{self as schedule, Algorithm, Schedule, ScheduleError};

use crate::frame::{ANY_LEN, Call, CallKind, FRAME_BYTES_MAX};

/// Most bytes of a result whose length other ranks decide.
const TOLD_BYTES_MAX: u64 = 16 << 30;

/// A member's place in its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
}

/// Checks a call and describes it.
pub(crate) fn describe(
    operation: &Operation,
    buffer: &Buffer,
    member: Member,
    preferred: Option<Algorithm>,
) -> Result<Call, CollectiveError> {
    let (kind, op, detail, len) = match operation {
        Operation::AllReduce(op) => (CallKind::AllReduce, *op, 0, buffer.len() as u64),
        Operation::ReduceScatter(op) => {
            if !buffer.len().is_multiple_of(member.size) {
                let problem = format!("{} elements for {} ranks", buffer.len(), member.size);
                return Err(invalid("reduce_scatter", problem));
            }
            (CallKind::ReduceScatter, *op, 0, buffer.len() as u64)
        }
        Operation::AllGather => (CallKind::AllGather, ReduceOp::Sum, 0, ANY_LEN),
        Operation::Broadcast { root } => {
            if root.index() >= member.size {
                let problem = format!("root {root} is not in a group of {}", member.size);
                return Err(invalid("broadcast", problem));
            }
            let root = u64::from(root.0);
            (
                CallKind::Broadcast,
                ReduceOp::Sum,
                root,
                buffer.len() as u64,
            )
        }
        Operation::Barrier => (CallKind::Barrier, ReduceOp::Sum, 0, 0),
        Operation::ExactSum(sum) => {
            let len = operand_len(sum, buffer, member)?;
            let len = if brings_nothing(sum) {
                ANY_LEN
            } else {
                len as u64
            };
            (CallKind::ExactSum, ReduceOp::Sum, spread(sum), len)
        }
        other => return Err(invalid("start", format!("unknown operation {other:?}"))),
    };
    if kind != CallKind::Barrier {
        check_memory(kind.name(), buffer)?;
    }
    let dtype = match kind {
        CallKind::Barrier => DType::U8,
        _ => buffer.dtype(),
    };
    let reduces = matches!(kind, CallKind::AllReduce | CallKind::ExactSum);
    let algorithm = reduces.then(|| {
        let known = if len == ANY_LEN { 0 } else { len as usize };
        schedule::choose(preferred, operation, member.size, known * dtype.size()).0
    });
    Ok(Call {
        kind,
        dtype,
        op,
        algorithm,
        detail,
        len,
    })
}

/// Refuses memory that cannot be sent from.
pub(crate) fn check_memory(operation: &str, buffer: &Buffer) -> Result<(), CollectiveError> {
    if buffer.memory_kind() == MemoryKind::Device {
        let problem = "the buffer is in device memory, which this group cannot read";
        return Err(invalid(operation, problem.to_owned()));
    }
    if buffer.bytes().as_ptr().align_offset(buffer.dtype().size()) != 0 {
        return Err(invalid(operation, format!("{buffer:?} is not aligned")));
    }
    if buffer.bytes().len() as u64 > FRAME_BYTES_MAX {
        return Err(invalid(operation, format!("{buffer:?} is too long")));
    }
    Ok(())
}

/// Elements of each subtree that this rank brings; 0 when it brings none.
fn operand_len(sum: &ExactSum, buffer: &Buffer, member: Member) -> Result<usize, CollectiveError> {
    let invalid = |problem| Err(invalid("exact_sum", problem));
    if sum.size() != member.size {
        return invalid(format!("{} runs for {} ranks", sum.size(), member.size));
    }
    if !matches!(buffer.dtype(), DType::F32 | DType::F64) {
        return invalid(format!("it is of f32 or f64, not {}", buffer.dtype()));
    }
    let nodes = sum.nodes(member.rank).len();
    match nodes {
        0 if buffer.is_empty() => Ok(0),
        1.. if buffer.len().is_multiple_of(nodes) => Ok(buffer.len() / nodes),
        _ => invalid(format!("{} elements for {nodes} subtrees", buffer.len())),
    }
}

/// Whether some rank holds no shard and so cannot know the length.
fn brings_nothing(sum: &ExactSum) -> bool {
    (0..sum.size()).any(|rank| sum.run(GroupRank(rank as u32)).is_empty())
}

/// A number that tells who holds which shard (FNV-1a over the bounds).
fn spread(sum: &ExactSum) -> u64 {
    (0..sum.size())
        .flat_map(|rank| sum.run(GroupRank(rank as u32)).end.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// Whether the ranks must tell each other their lengths first.
pub(crate) fn needs_lens(call: &Call) -> bool {
    call.len == ANY_LEN
}

/// What this rank tells the others where lengths differ: its elements per operand.
pub(crate) fn own_len(operation: &Operation, buffer: &Buffer, member: Member) -> u64 {
    match operation {
        Operation::ExactSum(sum) => match sum.nodes(member.rank).len() {
            0 => ANY_LEN,
            nodes => (buffer.len() / nodes) as u64,
        },
        _ => buffer.len() as u64,
    }
}

/// The schedule of a call whose lengths are known: by rank in `lens` where [`needs_lens`].
pub(crate) fn schedule(
    operation: &Operation,
    call: &Call,
    member: Member,
    lens: &[u64],
) -> Result<Schedule, CollectiveError> {
    let rank = member.rank.index();
    let algorithm = call.algorithm.unwrap_or(Algorithm::Direct);
    let made = match operation {
        Operation::AllReduce(_) => {
            schedule::all_reduce(algorithm, member.rank, member.size, call.len as usize)
        }
        Operation::ExactSum(sum) => {
            let len = if needs_lens(call) {
                agreed_len(call, member, lens)?
            } else {
                call.len
            };
            schedule::exact_sum(algorithm, sum, member.rank, len as usize)
        }
        Operation::ReduceScatter(_) => {
            let part = call.len as usize / member.size;
            Ok(schedule::reduce_scatter(rank, member.size, part))
        }
        Operation::AllGather => {
            let bytes = call.dtype.size() as u64;
            let total = lens
                .iter()
                .try_fold(0_u64, |sum, &len| sum.checked_add(len));
            let total = total.and_then(|total| total.checked_mul(bytes));
            if total.is_none_or(|total| total > TOLD_BYTES_MAX) {
                return Err(invalid(
                    "all_gather",
                    format!("lengths {lens:?} are too many"),
                ));
            }
            let lens: Vec<usize> = lens.iter().map(|&len| len as usize).collect();
            Ok(schedule::all_gather(rank, &lens))
        }
        Operation::Broadcast { root } => {
            let len = call.len as usize;
            Ok(schedule::broadcast(rank, member.size, root.index(), len))
        }
        _ => Ok(schedule::barrier(rank, member.size)),
    };
    made.map_err(|error: ScheduleError| invalid(call.kind.name(), error.to_string()))
}

/// The one length of all ranks that bring something.
fn agreed_len(call: &Call, member: Member, lens: &[u64]) -> Result<u64, CollectiveError> {
    let mut told = lens.iter().enumerate().filter(|(_, len)| **len != ANY_LEN);
    let (first, &agreed) = told
        .next()
        .ok_or_else(|| invalid("exact_sum", "no rank brings a subtree".to_owned()))?;
    let other = told.find(|(_, len)| **len != agreed);
    if let Some((peer, &len)) = other {
        let of = |rank: usize, len: u64| {
            format!("exact_sum of {len} x {} (group rank {rank})", call.dtype)
        };
        return Err(CollectiveError::Mismatch {
            sequence: 0,
            peer: GroupRank(if peer == member.rank.index() {
                first
            } else {
                peer
            } as u32),
            mine: of(first, agreed),
            theirs: of(peer, len),
        });
    }
    if agreed.saturating_mul(call.dtype.size() as u64) > TOLD_BYTES_MAX {
        return Err(invalid(
            "exact_sum",
            format!("{agreed} elements are too many"),
        ));
    }
    Ok(agreed)
}

/// The caller asked for what cannot be.
pub(crate) fn invalid(operation: &str, problem: String) -> CollectiveError {
    CollectiveError::Invalid {
        operation: operation.to_owned(),
        problem,
    }
}
