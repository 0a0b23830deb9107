//! Every operation x type x operator x length x algorithm x group size x transport, against references.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ronde_comm::testing::{in_process_groups, run_ranks};
use ronde_comm::{GroupConfig, ProcessGroup, TransportChoice};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation, ReduceOp,
    Work,
};
use ronde_schedule::make::refusal;
use ronde_schedule::{Algorithm, Hosts};

use crate::collectives::exact_bits_of;
use crate::meshes::{configs, join};
use crate::reference::{expected, input, is_right, operations};

const LIMIT: Duration = Duration::from_secs(120);
/// Zero, one, odd numbers, one cache line and more than a page.
const LENS: [usize; 5] = [0, 1, 7, 64, 1001];
const SIZES: std::ops::RangeInclusive<usize> = 1..=17;
/// Number of kinds of operations that [`operations`] lists.
const KINDS: usize = 10;
/// The first of them reduce, and so have an operator.
const REDUCING: usize = 3;
/// Number of pending operations.
const WINDOW: usize = 12;

/// One kind of operation with its type, operator and length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    kind: usize,
    dtype: DType,
    op: ReduceOp,
    len: usize,
}

/// Returns all valid operations of these types and lengths.
pub(crate) fn cells(dtypes: &[DType], lens: &[usize]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (kind, &dtype) in (0..KINDS).flat_map(|kind| dtypes.iter().map(move |dtype| (kind, dtype)))
    {
        let ops = ReduceOp::ALL
            .into_iter()
            .filter(|op| op.refusal(dtype).is_none());
        let ops = ops.take(if kind < REDUCING { usize::MAX } else { 1 });
        cells.extend(ops.flat_map(|op| {
            let of = move |&len| Cell {
                kind,
                dtype,
                op,
                len,
            };
            lens.iter().map(of)
        }));
    }
    cells
}

impl Cell {
    fn operation(&self, root: usize, rank: usize, size: usize) -> Operation {
        let root = GroupRank((root % size) as u32);
        operations(self.op, root, rank, size, self.len).swap_remove(self.kind)
    }
}

/// A started operation and its expected result.
struct Started {
    work: Box<dyn Work>,
    cell: Cell,
    operation: Operation,
}

impl Started {
    fn check(self, group: &ProcessGroup) -> Result<(), CollectiveError> {
        verify(group, &self.cell, &self.operation, &self.work.wait()?);
        Ok(())
    }
}

fn verify(group: &ProcessGroup, cell: &Cell, operation: &Operation, result: &Buffer) {
    let (rank, size) = (group.rank().index(), group.size());
    assert!(
        is_right(result, expected(operation, rank, size, cell.len)),
        "{operation:?} of {} {} on rank {rank} of {size}, {:?}, shared {}: {result:?}",
        cell.len,
        cell.dtype,
        group.config().algorithm,
        group.shares_memory(),
    );
}

/// Runs all cells: some in blocking calls, most started, several pending; in memory of the
/// group and in other memory.
pub(crate) fn run_cells(group: &ProcessGroup, cells: &[Cell]) -> Result<(), CollectiveError> {
    let (rank, size) = (group.rank().index(), group.size());
    let mut under_way: VecDeque<Started> = VecDeque::new();
    for (number, &cell) in cells.iter().enumerate() {
        let operation = cell.operation(number, rank, size);
        let mut buffer = input(cell.dtype, &operation, rank, size, cell.len);
        // Members choose differently.
        if (number + rank).is_multiple_of(2) {
            let mut own = group
                .allocate(cell.dtype, buffer.len())
                .expect("there is memory");
            own.bytes_mut().copy_from_slice(buffer.bytes());
            buffer = own;
        }
        if number % 16 == 5 {
            let result = group.run(operation.clone(), buffer)?;
            verify(group, &cell, &operation, &result);
            continue;
        }
        let work = group.start(operation.clone(), buffer)?;
        under_way.push_back(Started {
            work,
            cell,
            operation,
        });
        if under_way.len() > WINDOW
            && let Some(started) = under_way.pop_front()
        {
            started.check(group)?;
        }
    }
    under_way
        .into_iter()
        .try_for_each(|started| started.check(group))?;
    let (bytes, payload) = (group.bytes_sent(), group.payload_bytes_sent());
    assert!(
        (bytes > payload) == (size > 1),
        "{payload} of {bytes} bytes"
    );
    Ok(())
}

/// Returns members that prefer an algorithm, three per host.
fn preferring(size: usize, algorithm: Algorithm, transport: TransportChoice) -> Vec<GroupConfig> {
    let hosts: Vec<usize> = (0..size).map(|rank| rank / 3).collect();
    let mut members = configs(size, LIMIT);
    for config in &mut members {
        config.algorithm = Some(algorithm);
        config.hosts = Some(Hosts::new(&hosts));
        config.transport = transport;
    }
    members
}

/// Returns whether an algorithm makes a difference to a cell, or represents all if it does not.
fn concerns(algorithm: Algorithm, cell: &Cell, size: usize) -> bool {
    let operation = cell.operation(0, 0, size);
    let has_several = matches!(
        operation,
        Operation::AllReduce(_) | Operation::Reduce { .. } | Operation::Broadcast { .. }
    );
    let one_host = Hosts::one(size);
    if has_several {
        refusal(algorithm, &operation, &one_host).is_none()
    } else {
        algorithm == Algorithm::ALL[0]
    }
}

fn whole_matrix(algorithm: Algorithm) {
    for size in SIZES {
        let mut all = cells(&DType::ALL, &LENS);
        all.retain(|cell| concerns(algorithm, cell, size));
        let members = preferring(size, algorithm, TransportChoice::Tcp);
        run_ranks(in_process_groups(members), LIMIT, move |group| {
            run_cells(&group, &all)
        });
    }
}

/// One test per algorithm, so that they run in parallel and a failure names its algorithm.
macro_rules! whole_matrices {
    ($($name:ident: $algorithm:ident,)*) => {
        $(#[test]
        fn $name() {
            whole_matrix(Algorithm::$algorithm);
        })*

        #[test]
        fn no_algorithm_is_left_out() {
            assert_eq!(Algorithm::ALL, [$(Algorithm::$algorithm),*]);
        }
    };
}
whole_matrices! {
    everything_is_right_by_driver: Driver,
    everything_is_right_by_ring: Ring,
    everything_is_right_by_direct: Direct,
    everything_is_right_by_halving_doubling: HalvingDoubling,
    everything_is_right_by_tree: Tree,
    everything_is_right_by_hierarchical: Hierarchical,
}

/// One of this many cells is tried on each group over sockets and shared memory.
const STRIDE: usize = 7;

/// Runs a part of the matrix over a transport that is slow to set up: for each size one algorithm
/// and every `STRIDE`th cell, starting at a different one.
fn spread_out(transport: TransportChoice) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for size in SIZES {
        let algorithm = Algorithm::ALL[size % Algorithm::ALL.len()];
        let all = cells(&DType::ALL, &LENS);
        let some: Vec<Cell> = all
            .into_iter()
            .skip(size % STRIDE)
            .step_by(STRIDE)
            .collect();
        for cell in &some {
            let Cell {
                kind,
                dtype,
                op,
                len,
            } = cell;
            seen.insert(format!("kind {kind} of {dtype}"));
            seen.insert(format!("kind {kind} on {size} ranks"));
            seen.insert(format!("kind {kind} by {algorithm}"));
            seen.insert(format!("kind {kind} of length {len}"));
            if *kind < REDUCING {
                seen.insert(format!("{op} of {dtype}"));
            }
        }
        let groups = join(preferring(size, algorithm, transport));
        let groups = groups
            .into_iter()
            .map(|group| group.expect("members that agree can join"));
        run_ranks(groups.collect(), LIMIT, move |group| {
            let is_shared = transport == TransportChoice::SharedMemory;
            assert_eq!(group.shares_memory(), is_shared && size > 1);
            run_cells(&group, &some)
        });
    }
    let operators = 4 * 5 + 4 * 7;
    let of_kinds = DType::ALL.len() + SIZES.count() + Algorithm::ALL.len() + LENS.len();
    assert_eq!(seen.len(), KINDS * of_kinds + operators, "{seen:?}");
}

#[test]
fn a_spread_out_part_is_right_over_tcp() {
    spread_out(TransportChoice::Tcp);
}

#[test]
fn a_spread_out_part_is_right_over_shared_memory() {
    spread_out(TransportChoice::SharedMemory);
}

#[test]
fn exact_sums_have_the_same_bits_on_every_transport_and_size() {
    let (shards, len) = (19, 257);
    let alone = ProcessGroup::alone(configs(1, LIMIT).remove(0));
    let alone = exact_bits_of(vec![alone], shards, len).remove(0);
    for transport in [TransportChoice::Tcp, TransportChoice::SharedMemory] {
        for size in SIZES {
            let algorithm = Algorithm::ALL[size % Algorithm::ALL.len()];
            let groups = join(preferring(size, algorithm, transport));
            let groups = groups
                .into_iter()
                .map(|group| group.expect("members that agree can join"));
            for bits in exact_bits_of(groups.collect(), shards, len) {
                assert!(bits == alone, "{transport:?}, {size} ranks, {algorithm}");
            }
        }
    }
}
