//! Expected results of operations, computed in one thread: small whole numbers that every type represents.

use ronde_core::{Buffer, DType, Element, GroupRank, Operation, ReduceOp};

/// Small whole numbers, so that every type represents every result exactly.
trait Small: Element + PartialEq + std::fmt::Debug {
    fn small(value: f64) -> Self;
}

macro_rules! small {
    ($($t:ty => $from:expr),* $(,)?) => { $(impl Small for $t { fn small(value: f64) -> Self { $from(value) } })* };
}
small!(
    f64 => |v| v, f32 => |v| v as f32, i64 => |v| v as i64, i32 => |v| v as i32,
    u32 => |v| v as u32, u8 => |v| v as u8,
    half::f16 => half::f16::from_f64, half::bf16 => half::bf16::from_f64,
);

/// Returns a rank's input at an index: 1, or 2 for one of three neighbouring ranks, chosen separately at every
/// index, so that an element of another rank or index is detected. 17 ranks have a product of at most 2^6.
fn value(rank: usize, index: usize) -> u32 {
    let mixed = (index as u32 ^ (rank as u32 / 3) << 24).wrapping_mul(2_654_435_761) >> 7;
    1 + u32::from(mixed % 3 == rank as u32 % 3)
}

fn brought(rank: usize, len: usize) -> Vec<u32> {
    (0..len).map(|index| value(rank, index)).collect()
}

/// Returns a rank's number of elements in an operation of length `len`.
pub(crate) fn len_of(operation: &Operation, rank: usize, size: usize, len: usize) -> usize {
    match operation {
        Operation::ReduceScatter(_) | Operation::AllToAll => len * size,
        Operation::AllGather | Operation::Gather { .. } => len * (rank % 3),
        Operation::Scatter { root } if root.index() == rank => len * size,
        Operation::AllToAllUnequal { send_lens, .. } => send_lens.iter().sum(),
        _ => len,
    }
}

/// Returns an all-to-all with unequal lengths.
pub(crate) fn unequal(rank: usize, size: usize, len: usize) -> Operation {
    let lens = |from: usize, to: usize| (from * 5 + to * 3 + len) % (len + 1);
    Operation::AllToAllUnequal {
        send_lens: (0..size).map(|to| lens(rank, to)).collect(),
        receive_lens: (0..size).map(|from| lens(from, rank)).collect(),
    }
}

fn reduced(op: ReduceOp, values: impl Iterator<Item = u32>, size: usize) -> f64 {
    let values: Vec<u32> = values.collect();
    let fold = |f: fn(u32, u32) -> u32| f64::from(values.iter().copied().reduce(f).unwrap_or(0));
    match op {
        ReduceOp::Sum => fold(|a, b| a + b),
        // The division rounds once, in the type itself.
        ReduceOp::Mean => fold(|a, b| a + b) / size as f64,
        ReduceOp::Product => fold(|a, b| a * b),
        ReduceOp::Min => fold(u32::min),
        ReduceOp::Max => fold(u32::max),
        ReduceOp::And => fold(|a, b| a & b),
        ReduceOp::Or => fold(|a, b| a | b),
        ReduceOp::Xor => fold(|a, b| a ^ b),
    }
}

/// Returns the expected result of a rank.
pub(crate) fn expected(operation: &Operation, rank: usize, size: usize, len: usize) -> Vec<f64> {
    let input = |peer: usize| brought(peer, len_of(operation, peer, size, len));
    let reduced = |op: ReduceOp, elements: std::ops::Range<usize>| -> Vec<f64> {
        elements
            .map(|index| reduced(op, (0..size).map(|peer| value(peer, index)), size))
            .collect()
    };
    let wide = |values: Vec<u32>| values.into_iter().map(f64::from).collect();
    match operation {
        Operation::AllReduce(op) => reduced(*op, 0..len),
        Operation::Reduce { op, root } if root.index() == rank => reduced(*op, 0..len),
        Operation::Reduce { .. } => Vec::new(),
        Operation::ReduceScatter(op) => reduced(*op, rank * len..(rank + 1) * len),
        Operation::AllGather => wide((0..size).flat_map(input).collect()),
        Operation::Gather { root } if root.index() == rank => {
            wide((0..size).flat_map(input).collect())
        }
        Operation::Scatter { root } => {
            wide(brought(root.index(), len * size)[rank * len..(rank + 1) * len].to_vec())
        }
        Operation::Broadcast { root } => wide(input(root.index())),
        Operation::AllToAll => wide(
            (0..size)
                .flat_map(|peer| input(peer)[rank * len..(rank + 1) * len].to_vec())
                .collect(),
        ),
        Operation::AllToAllUnequal { .. } => wide(
            (0..size)
                .flat_map(|peer| {
                    let Operation::AllToAllUnequal { send_lens, .. } = unequal(peer, size, len)
                    else {
                        return Vec::new();
                    };
                    let start: usize = send_lens[..rank].iter().sum();
                    let all = brought(peer, send_lens.iter().sum());
                    all[start..start + send_lens[rank]].to_vec()
                })
                .collect(),
        ),
        _ => wide(input(rank)),
    }
}

fn buffer_of<T: Small>(values: impl Iterator<Item = f64>) -> Buffer {
    Buffer::copy_of(&values.map(T::small).collect::<Vec<T>>())
}

/// Calls `$f::<T>` for the Rust type of `$dtype`.
macro_rules! typed {
    ($dtype:expr, $f:ident ( $($argument:expr),* )) => {
        match $dtype {
            DType::F64 => $f::<f64>($($argument),*),
            DType::F32 => $f::<f32>($($argument),*),
            DType::F16 => $f::<half::f16>($($argument),*),
            DType::Bf16 => $f::<half::bf16>($($argument),*),
            DType::I64 => $f::<i64>($($argument),*),
            DType::I32 => $f::<i32>($($argument),*),
            DType::U32 => $f::<u32>($($argument),*),
            DType::U8 => $f::<u8>($($argument),*),
        }
    };
}

/// Returns a rank's input as elements of `dtype`.
pub(crate) fn input(
    dtype: DType,
    operation: &Operation,
    rank: usize,
    size: usize,
    len: usize,
) -> Buffer {
    let len = len_of(operation, rank, size, len);
    let values = brought(rank, len).into_iter().map(f64::from);
    typed!(dtype, buffer_of(values))
}

/// Returns whether a result equals the expected one.
pub(crate) fn is_right(result: &Buffer, expected: Vec<f64>) -> bool {
    let expected = typed!(result.dtype(), buffer_of(expected.into_iter()));
    result.bytes() == expected.bytes()
}

/// Returns all operations for one root.
pub(crate) fn operations(
    op: ReduceOp,
    root: GroupRank,
    rank: usize,
    size: usize,
    len: usize,
) -> Vec<Operation> {
    vec![
        Operation::AllReduce(op),
        Operation::Reduce { op, root },
        Operation::ReduceScatter(op),
        Operation::AllGather,
        Operation::Gather { root },
        Operation::Scatter { root },
        Operation::Broadcast { root },
        Operation::AllToAll,
        unequal(rank, size, len),
        Operation::Barrier,
    ]
}
