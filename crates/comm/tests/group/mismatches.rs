//! Every pair of different operations: all ranks report the mismatch, whichever rank sends to which.

use std::time::Duration;

use crate::meshes::{Kind, groups};
use ronde_comm::ProcessGroup;
use ronde_comm::testing::run_ranks;
use ronde_core::exact::ExactSum;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, GroupRank, Operation, ReduceOp,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Far above the time needed, below the watchdog's.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns one operation of each kind, for two roots, with the number of elements that each needs.
fn operations(size: usize, rank: GroupRank) -> Vec<(Operation, usize)> {
    let (op, sum) = (
        ReduceOp::Sum,
        ExactSum::new((0..=size as u32).collect()).expect("a shard each"),
    );
    let mut all = vec![
        (Operation::AllReduce(op), 6),
        (Operation::ReduceScatter(op), 6 * size),
        (Operation::AllGather, 6),
        (Operation::AllToAll, 6 * size),
        (
            Operation::AllToAllUnequal {
                send_lens: vec![6; size],
                receive_lens: vec![6; size],
            },
            6 * size,
        ),
        (Operation::ExactSum(sum), 6),
        (Operation::Barrier, 0),
    ];
    for root in [0, size as u32 - 1].map(GroupRank) {
        let of_root = if root == rank { 6 * size } else { 6 };
        all.extend([
            (Operation::Reduce { op, root }, 6),
            (Operation::Gather { root }, 6),
            (Operation::Scatter { root }, of_root),
            (Operation::Broadcast { root }, 6),
        ]);
    }
    all
}

/// Makes the call, and then barriers: a call that only sends may end before other ranks disagree.
fn call(group: &ProcessGroup, number: usize) -> Result<(), CollectiveError> {
    let (operation, len) = operations(group.size(), group.rank()).swap_remove(number);
    group.run(operation, Buffer::copy_of(&vec![1.0_f32; len]))?;
    group.barrier()?;
    group.barrier()
}

fn check(kind: Kind, size: usize, odd: usize, calls: [usize; 2]) {
    let errors = run_ranks(groups(kind, size, TIMEOUT), LIMIT, move |group| {
        let number = calls[usize::from(group.rank().index() == odd)];
        Ok::<_, CollectiveError>(call(&group, number).err())
    });
    for (rank, error) in errors.into_iter().enumerate() {
        assert!(
            matches!(error, Some(CollectiveError::Mismatch { .. })),
            "{kind:?}: rank {rank} of {size}, of which {odd} is odd, in {calls:?}: {error:?}"
        );
    }
}

#[test]
fn every_pair_of_different_operations_is_a_mismatch_on_all_ranks() {
    for size in 2..=5 {
        let count = operations(size, GroupRank(0)).len();
        for most in 0..count {
            for one in (0..count).filter(|&one| one != most) {
                check(Kind::InProcess, size, (most + one) % size, [most, one]);
            }
        }
    }
}

#[test]
fn pairs_of_operations_over_sockets_are_a_mismatch_on_all_ranks() {
    for kind in [Kind::Tcp, Kind::Tls] {
        let count = operations(3, GroupRank(0)).len();
        for most in 0..count {
            let one = (most + 1 + most % 5) % count;
            check(kind, 3, most % 3, [most, one]);
        }
    }
}
