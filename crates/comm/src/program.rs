//! Turns a caller's request into a [`Call`] that can be compared and a schedule that can be run.

use ronde_core::buffer::AllocationError;
use ronde_core::exact::ExactSum;
use ronde_core::{Buffer, CollectiveError, DType, GroupRank, MemoryKind, Operation, ReduceOp};
use ronde_schedule::{self as schedule, Algorithm, Hosts, Schedule, ScheduleError};

use crate::frame::{ANY_LEN, Call, CallKind, FRAME_BYTES_MAX};
use crate::notice::operation_name;

/// Maximum size of a result whose length is decided by other ranks, in bytes.
const RESULT_BYTES_MAX: u64 = 16 << 30;

/// A member's rank and the size of its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupMember {
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
}

/// Checks a call and describes it; the algorithm is not chosen yet.
pub(crate) fn describe(
    operation: &Operation,
    buffer: &Buffer,
    member: GroupMember,
) -> Result<Call, CollectiveError> {
    let (kind, op, detail, len) = outline(operation, buffer, member)?;
    if kind == CallKind::Barrier {
        return Ok(Call {
            kind,
            ..Call::NOTHING
        });
    }
    check_memory(kind.name(), buffer)?;
    let dtype = buffer.dtype();
    if let Some(problem) = op.refusal(dtype) {
        return Err(invalid(kind.name(), problem));
    }
    Ok(Call {
        kind,
        dtype,
        op,
        algorithm: None,
        detail,
        len,
    })
}

/// Sets the algorithm that runs a call.
pub(crate) fn run_by(call: &mut Call, algorithm: Algorithm, hosts: &Hosts) {
    call.algorithm = Some(algorithm);
    if algorithm == Algorithm::Hierarchical {
        call.detail ^= hosts_hash(hosts);
    }
}

/// Describes a call without its buffer, for operations that several algorithms can run.
pub(crate) fn sketch(operation: &Operation, dtype: DType, len: usize) -> Option<Call> {
    let len = len as u64;
    let (kind, detail, len) = match operation {
        Operation::AllReduce(_) => (CallKind::AllReduce, 0, len),
        Operation::Reduce { root, .. } => (CallKind::Reduce, u64::from(root.0), len),
        Operation::Broadcast { root } => (CallKind::Broadcast, u64::from(root.0), len),
        Operation::ExactSum(sum) if contributes_nothing(sum) => {
            (CallKind::ExactSum, spread(sum), ANY_LEN)
        }
        Operation::ExactSum(sum) => (CallKind::ExactSum, spread(sum), len),
        _ => return None,
    };
    Some(Call {
        kind,
        dtype,
        detail,
        len,
        ..Call::NOTHING
    })
}

/// Returns kind, operator, detail and length of a valid call.
fn outline(
    operation: &Operation,
    buffer: &Buffer,
    member: GroupMember,
) -> Result<(CallKind, ReduceOp, u64, u64), CollectiveError> {
    let len = buffer.len() as u64;
    let none = ReduceOp::Sum;
    Ok(match operation {
        Operation::AllReduce(op) => (CallKind::AllReduce, *op, 0, len),
        Operation::Reduce { op, root } => (
            CallKind::Reduce,
            *op,
            member_of("reduce", *root, member)?,
            len,
        ),
        Operation::ReduceScatter(op) => {
            part_len("reduce_scatter", buffer, member)?;
            (CallKind::ReduceScatter, *op, 0, len)
        }
        Operation::AllGather => (CallKind::AllGather, none, 0, ANY_LEN),
        Operation::Gather { root } => {
            let root = member_of("gather", *root, member)?;
            (CallKind::Gather, none, root, ANY_LEN)
        }
        Operation::Scatter { root } => {
            let part = if *root == member.rank {
                part_len("scatter", buffer, member)?
            } else {
                len
            };
            (
                CallKind::Scatter,
                none,
                member_of("scatter", *root, member)?,
                part,
            )
        }
        Operation::Broadcast { root } => (
            CallKind::Broadcast,
            none,
            member_of("broadcast", *root, member)?,
            len,
        ),
        Operation::AllToAll => {
            part_len("all_to_all", buffer, member)?;
            (CallKind::AllToAll, none, 0, len)
        }
        Operation::AllToAllUnequal {
            send_lens,
            receive_lens,
        } => {
            check_lens(send_lens, receive_lens, buffer, member)?;
            (CallKind::AllToAllUnequal, none, 0, ANY_LEN)
        }
        Operation::Barrier => (CallKind::Barrier, none, 0, 0),
        Operation::ExactSum(sum) => {
            let len = operand_len(sum, buffer, member)? as u64;
            let is_unknown = contributes_nothing(sum);
            let len = if is_unknown { ANY_LEN } else { len };
            (CallKind::ExactSum, none, spread(sum), len)
        }
        Operation::ExactSumScatter { sum, lens } => {
            let len = scattered_len(sum, lens, buffer, member)?;
            let detail = spread(sum) ^ fnv(lens.iter().map(|&len| len as u32));
            (CallKind::ExactSumScatter, none, detail, len)
        }
        other => return Err(invalid("start", format!("unknown operation {other:?}"))),
    })
}

/// Returns the root's index, if there is such a rank.
fn member_of(
    operation: &str,
    root: GroupRank,
    member: GroupMember,
) -> Result<u64, CollectiveError> {
    if root.index() < member.size {
        return Ok(u64::from(root.0));
    }
    let problem = format!("root {root} is not in a group of {}", member.size);
    Err(invalid(operation, problem))
}

/// Returns the number of elements of each part, with one part per rank.
fn part_len(operation: &str, buffer: &Buffer, member: GroupMember) -> Result<u64, CollectiveError> {
    if buffer.len().is_multiple_of(member.size) {
        return Ok((buffer.len() / member.size) as u64);
    }
    let problem = format!(
        "{} elements cannot be divided among {} ranks",
        buffer.len(),
        member.size
    );
    Err(invalid(operation, problem))
}

/// Checks the lengths of an unequal all-to-all as far as this rank can.
fn check_lens(
    send_lens: &[usize],
    receive_lens: &[usize],
    buffer: &Buffer,
    member: GroupMember,
) -> Result<(), CollectiveError> {
    let invalid = |problem| Err(invalid("all_to_all_unequal", problem));
    let (size, me) = (member.size, member.rank.index());
    if send_lens.len() != size || receive_lens.len() != size {
        let (sends, receives) = (send_lens.len(), receive_lens.len());
        return invalid(format!("{sends} and {receives} lengths for {size} ranks"));
    }
    if send_lens[me] != receive_lens[me] {
        let (sent, received) = (send_lens[me], receive_lens[me]);
        return invalid(format!(
            "{sent} elements for itself, {received} from itself"
        ));
    }
    let brought = total(send_lens.iter().map(|&len| len as u64), buffer.dtype());
    if brought != Some(buffer.len() as u64) {
        return invalid(format!("{} elements for {send_lens:?}", buffer.len()));
    }
    if total(receive_lens.iter().map(|&len| len as u64), buffer.dtype()).is_none() {
        return invalid(format!("lengths {receive_lens:?} are too large"));
    }
    Ok(())
}

/// Returns the sum of lengths, unless it exceeds the limit for lengths given by other ranks.
fn total(lens: impl Iterator<Item = u64>, dtype: DType) -> Option<u64> {
    let mut sum = 0_u64;
    for len in lens {
        sum = sum.checked_add(len)?;
    }
    let bytes = sum.checked_mul(dtype.size() as u64)?;
    (bytes <= RESULT_BYTES_MAX).then_some(sum)
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

/// Returns the number of elements of each subtree that this rank contributes; 0 if it contributes none.
fn operand_len(
    sum: &ExactSum,
    buffer: &Buffer,
    member: GroupMember,
) -> Result<usize, CollectiveError> {
    let invalid = |problem| Err(invalid("exact_sum", problem));
    if sum.size() != member.size {
        return invalid(format!("{} runs for {} ranks", sum.size(), member.size));
    }
    if !matches!(buffer.dtype(), DType::F32 | DType::F64) {
        return invalid(format!(
            "invalid element type `{}`: expected f32 or f64",
            buffer.dtype()
        ));
    }
    let nodes = sum.nodes(member.rank).len();
    match nodes {
        0 if buffer.is_empty() => Ok(0),
        1.. if buffer.len().is_multiple_of(nodes) => Ok(buffer.len() / nodes),
        _ => invalid(format!("{} elements for {nodes} subtrees", buffer.len())),
    }
}

/// Returns the number of elements of each subtree of a scattered exact sum, which every rank knows from the lengths.
fn scattered_len(
    sum: &ExactSum,
    lens: &[usize],
    buffer: &Buffer,
    member: GroupMember,
) -> Result<u64, CollectiveError> {
    let invalid = |problem| Err(invalid("exact_sum_scatter", problem));
    let found = operand_len(sum, buffer, member)?;
    if lens.len() != member.size {
        return invalid(format!("{} lengths for {} ranks", lens.len(), member.size));
    }
    let Some(len) = total(lens.iter().map(|&len| len as u64), buffer.dtype()) else {
        return invalid(format!("lengths {lens:?} are too large"));
    };
    let has_operands = !sum.run(member.rank).is_empty();
    if has_operands && found as u64 != len {
        return invalid(format!("subtrees of {found} elements for lengths {lens:?}"));
    }
    Ok(len)
}

/// Returns whether some rank holds no shard and so cannot know the length.
pub(crate) fn contributes_nothing(sum: &ExactSum) -> bool {
    (0..sum.size()).any(|rank| sum.run(GroupRank(rank as u32)).is_empty())
}

/// Returns a hash of the assignment of shards to ranks.
fn spread(sum: &ExactSum) -> u64 {
    fnv((0..sum.size()).map(|rank| sum.run(GroupRank(rank as u32)).end))
}

/// Returns a hash of the assignment of ranks to hosts.
pub(crate) fn hosts_hash(hosts: &Hosts) -> u64 {
    fnv((0..hosts.size()).map(|rank| hosts.of(rank) as u32))
}

/// Computes the FNV-1a hash.
pub(crate) fn fnv(words: impl Iterator<Item = u32>) -> u64 {
    words
        .flat_map(u32::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// Returns whether the ranks must first send each other (or a root) their lengths.
pub(crate) fn needs_lens(call: &Call) -> bool {
    call.len == ANY_LEN && call.kind != CallKind::AllToAllUnequal
}

/// Returns the schedule that exchanges lengths: one number per rank.
pub(crate) fn exchange_lens(operation: &Operation, member: GroupMember) -> Schedule {
    let (rank, ones) = (member.rank.index(), vec![1; member.size]);
    match operation {
        Operation::Gather { root } => schedule::gather(rank, root.index(), &ones),
        _ => schedule::all_gather(rank, &ones),
    }
}

/// Returns the length that this rank sends to the others if lengths differ: its elements per operand.
pub(crate) fn own_len(operation: &Operation, buffer: &Buffer, member: GroupMember) -> u64 {
    match operation {
        Operation::ExactSum(sum) => match sum.nodes(member.rank).len() {
            0 => ANY_LEN,
            nodes => (buffer.len() / nodes) as u64,
        },
        _ => buffer.len() as u64,
    }
}

/// Returns the schedule of a call whose lengths are known: by rank in `lens` where [`needs_lens`], or
/// only this rank's own where it is not the root of a gather.
pub(crate) fn schedule(
    operation: &Operation,
    call: &Call,
    member: GroupMember,
    hosts: &Hosts,
    lens: &[u64],
) -> Result<Schedule, CollectiveError> {
    let GroupMember { rank, size } = member;
    let index = rank.index();
    let len = call.len as usize;
    let algorithm = call.algorithm.unwrap_or(Algorithm::Direct);
    let made = match operation {
        Operation::AllReduce(_) => schedule::all_reduce_on(algorithm, rank, hosts, len),
        Operation::ExactSum(sum) => {
            let len = if needs_lens(call) {
                agreed_len(call, member, lens)? as usize
            } else {
                len
            };
            schedule::exact_sum_on(algorithm, sum, rank, hosts, len)
        }
        Operation::ExactSumScatter { sum, lens } => schedule::exact_sum_scatter(sum, rank, lens),
        Operation::Reduce { root, .. } => schedule::reduce(algorithm, rank, size, *root, len),
        Operation::Broadcast { root } => schedule::broadcast_by(algorithm, rank, size, *root, len),
        Operation::ReduceScatter(_) => Ok(schedule::reduce_scatter(index, size, len / size)),
        Operation::AllGather => Ok(schedule::all_gather(index, &received_lens(call, lens)?)),
        Operation::Gather { root } => {
            let mut lens = received_lens(call, lens)?;
            if *root != rank {
                let own = lens.first().copied().unwrap_or(0);
                lens = vec![own; size];
            }
            Ok(schedule::gather(index, root.index(), &lens))
        }
        Operation::Scatter { root } => Ok(schedule::scatter(index, size, root.index(), len)),
        Operation::AllToAll => Ok(schedule::all_to_all(index, size, len / size)),
        Operation::AllToAllUnequal {
            send_lens,
            receive_lens,
        } => Ok(schedule::all_to_all_unequal(index, send_lens, receive_lens)),
        _ => Ok(schedule::barrier(index, size)),
    };
    made.map_err(|error: ScheduleError| invalid(call.kind.name(), error.to_string()))
}

/// Returns the lengths received from the other ranks, if they are within the limit.
fn received_lens(call: &Call, lens: &[u64]) -> Result<Vec<usize>, CollectiveError> {
    if total(lens.iter().copied(), call.dtype).is_none() {
        let problem = format!("lengths {lens:?} are too large");
        return Err(invalid(call.kind.name(), problem));
    }
    Ok(lens.iter().map(|&len| len as usize).collect())
}

/// Returns the one length of all ranks that contribute.
fn agreed_len(call: &Call, member: GroupMember, lens: &[u64]) -> Result<u64, CollectiveError> {
    let mut told = lens.iter().enumerate().filter(|(_, len)| **len != ANY_LEN);
    let (first, &agreed) = told
        .next()
        .ok_or_else(|| invalid("exact_sum", "no rank contributes a subtree".to_owned()))?;
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
    if agreed.saturating_mul(call.dtype.size() as u64) > RESULT_BYTES_MAX {
        return Err(invalid(
            "exact_sum",
            format!("{agreed} elements are too many"),
        ));
    }
    Ok(agreed)
}

/// Returns the error of an operation for which this rank cannot allocate memory.
pub(crate) fn out_of_memory(
    kind: CallKind,
    rank: GroupRank,
    error: AllocationError,
) -> CollectiveError {
    CollectiveError::OutOfMemory {
        operation: operation_name(kind).to_owned(),
        rank,
        bytes: error.bytes,
    }
}

/// Returns the error of an invalid call.
pub(crate) fn invalid(operation: &str, problem: String) -> CollectiveError {
    CollectiveError::Invalid {
        operation: operation.to_owned(),
        problem,
    }
}
