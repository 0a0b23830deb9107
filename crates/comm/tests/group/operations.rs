//! Large buffers, the convenience methods, and invalid calls.

use std::time::Duration;

use ronde_comm::testing::{run_ranks, spawn_ranks};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation, ReduceOp,
};

use crate::meshes::{Kind, groups};
use crate::reference::{expected, input, is_right, operations};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn large_buffers_are_reduced_in_pieces_to_the_same_values() {
    for kind in [Kind::InProcess, Kind::Tcp, Kind::TwoHosts] {
        for size in [2, 3] {
            run_ranks(groups(kind, size, LIMIT), LIMIT, move |group| {
                let rank = group.rank().index();
                for len in [1_000_003, 300_001] {
                    for operation in operations(ReduceOp::Sum, GroupRank(1), rank, size, len) {
                        let brought = input(DType::F32, &operation, rank, size, len);
                        let result = group.run(operation.clone(), brought)?;
                        let expected = expected(&operation, rank, size, len);
                        assert!(is_right(&result, expected), "{operation:?}");
                    }
                }
                Ok::<_, CollectiveError>(())
            });
        }
    }
}

#[test]
fn conveniences_work_in_place_or_return_the_result() {
    spawn_ranks(3, LIMIT, |group| {
        let rank = group.rank().0;
        let mut values = [rank, 10];
        group.reduce(&mut values, ReduceOp::Sum, GroupRank(1))?;
        assert_eq!(values, if rank == 1 { [3, 30] } else { [rank, 10] });
        assert_eq!(
            group.reduce_scatter(&[1_i64, 2, 3], ReduceOp::Sum)?,
            [3 * (i64::from(rank) + 1)]
        );
        let gathered = group.gather(&vec![rank; rank as usize], GroupRank(2))?;
        assert_eq!(gathered, (rank == 2).then(|| vec![1, 2, 2]));
        let mut part = [0_u8; 2];
        let all: &[u8] = if rank == 0 { &[1, 2, 3, 4, 5, 6] } else { &[] };
        group.scatter(all, &mut part, GroupRank(0))?;
        assert_eq!(part, [2 * rank as u8 + 1, 2 * rank as u8 + 2]);
        let mut parts = [10 * rank, 10 * rank + 1, 10 * rank + 2];
        group.all_to_all(&mut parts)?;
        assert_eq!(parts, [rank, 10 + rank, 20 + rank]);
        let parts: Vec<Vec<u32>> = (0..3).map(|to| vec![rank; (rank * to) as usize]).collect();
        let got = group.all_to_all_unequal(&parts)?;
        let expected: Vec<Vec<u32>> = (0..3)
            .map(|from| vec![from; (rank * from) as usize])
            .collect();
        assert_eq!(got, expected);
        let mut mean = [rank as f32, 1.0];
        group.all_reduce(&mut mean, ReduceOp::Mean)?;
        assert_eq!(mean, [1.0, 1.0]);
        Ok::<_, CollectiveError>(())
    });
}

#[test]
fn unsupported_operators_and_impossible_lengths_are_refused_at_once() {
    spawn_ranks(3, LIMIT, |group| {
        let refused = |operation: Operation, buffer: Buffer, why: &str| {
            let error = group
                .start(operation, buffer)
                .err()
                .map(|error| error.to_string());
            assert!(
                error.as_ref().is_some_and(|error| error.contains(why)),
                "{error:?}"
            );
        };
        let ints = || Buffer::copy_of(&[1_i32; 3]);
        refused(Operation::AllReduce(ReduceOp::Mean), ints(), "rounded");
        for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
            let floats = Buffer::copy_of(&[1.0_f64; 3]);
            refused(Operation::ReduceScatter(op), floats, "integers");
        }
        let root = GroupRank(3);
        refused(Operation::Gather { root }, ints(), "not in a group");
        refused(
            Operation::Reduce {
                op: ReduceOp::Sum,
                root,
            },
            ints(),
            "not in a group",
        );
        refused(Operation::AllToAll, Buffer::copy_of(&[1_u8; 4]), "3 ranks");
        let lens = |send_lens: Vec<usize>, receive_lens: Vec<usize>| Operation::AllToAllUnequal {
            send_lens,
            receive_lens,
        };
        refused(lens(vec![1; 2], vec![1; 3]), ints(), "lengths");
        refused(lens(vec![1, 1, 2], vec![1; 3]), ints(), "");
        refused(lens(vec![1; 3], vec![usize::MAX, 1, 1]), ints(), "");
        group.barrier()
    });
}

#[test]
fn other_lengths_than_expected_are_the_same_error_on_both_sides() {
    spawn_ranks(2, LIMIT, |group| {
        let mine = group.rank().index();
        let mut send_lens = vec![2; 2];
        send_lens[mine] = 1;
        let mut receive_lens = send_lens.clone();
        if mine == 1 {
            receive_lens[0] = 0;
        }
        let operation = Operation::AllToAllUnequal {
            send_lens,
            receive_lens,
        };
        let outcome = group.run(operation, Buffer::copy_of(&[1_u32; 3])).map(drop);
        let error = outcome.and_then(|()| group.barrier()).unwrap_err();
        assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
        Ok::<_, CollectiveError>(())
    });
}
