//! References against the interpreter's ranks in one process, and results with a wrong element.

use std::time::Duration;

use ronde_comm::testing::run_ranks;
use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::Collectives;

use super::*;

fn groups(size: usize) -> Vec<ProcessGroup> {
    let configs = (0..size as u32).map(|rank| GroupConfig::new("check", "check", GroupRank(rank)));
    let groups = ProcessGroup::in_process(configs.collect());
    groups.into_iter().collect::<Result<_, _>>().unwrap()
}

fn expected(shape: OperationShape, rank: usize) -> ReferenceResult {
    ReferenceResult::new(shape, rank, ElementSource::new(3, shape.op))
}

fn copy(buffer: &Buffer) -> Buffer {
    let mut copy = Buffer::host(buffer.dtype(), buffer.len());
    copy.bytes_mut().copy_from_slice(buffer.bytes());
    copy
}

/// Runs an operation on all ranks and compares the results with the reference.
fn check(kind: OperationKind, op: ReduceOp, dtype: DType, ranks: usize, bytes: usize) {
    let shape = OperationShape::new(kind, op, dtype, ranks, bytes);
    if shape.refusal().is_some() {
        return;
    }
    run_ranks(groups(ranks), Duration::from_secs(60), move |group| {
        let rank = group.rank().index();
        let expected = expected(shape, rank);
        let Some(operation) = shape.operation(rank) else {
            return Ok(());
        };
        let got = group.start_and_wait(operation, copy(&expected.input))?;
        let case = format!("{shape:?}");
        expected
            .check(&got, &case)
            .unwrap_or_else(|error| panic!("{error}"));
        Ok::<_, ronde_core::CollectiveError>(())
    });
}

#[test]
fn every_operation_gives_its_reference() {
    for kind in OperationKind::ALL {
        for ranks in [2, 3, 5] {
            check(kind, ReduceOp::Sum, DType::F32, ranks, 40_000);
            check(kind, ReduceOp::Sum, DType::U8, ranks, 1);
        }
    }
}

#[test]
fn every_type_and_operator_gives_its_reference() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            check(OperationKind::AllReduce, op, dtype, 3, 5_000);
        }
        check(OperationKind::ExactSum, ReduceOp::Sum, dtype, 3, 5_000);
    }
}

#[test]
fn a_wrong_element_is_reported_at_any_index() {
    for (kind, dtype) in [
        (OperationKind::AllReduce, DType::F32),
        (OperationKind::AllReduce, DType::Bf16),
        (OperationKind::ExactSum, DType::F32),
        (OperationKind::AllGather, DType::I32),
    ] {
        let expected = expected(OperationShape::new(kind, ReduceOp::Sum, dtype, 4, 8_000), 2);
        let right = copy(&expected.result);
        expected.check(&right, "case").unwrap();
        for element in [0, right.len() / 2, right.len() - 1] {
            let mut wrong = copy(&right);
            // The highest bits of an element: a difference that no rounding causes.
            let byte = (element + 1) * dtype.size() - 1;
            wrong.bytes_mut()[byte] ^= 0x40;
            let error = expected.check(&wrong, "all_reduce, 8 KB, tcp").unwrap_err();
            let text = error.to_string();
            let place = format!(
                "all_reduce, 8 KB, tcp, rank 2, element {element} of {}",
                right.len()
            );
            assert!(text.contains(&place), "{text}");
            assert!(
                text.contains("got ") && text.contains("expected "),
                "{text}"
            );
        }
        let mut short = copy(&right);
        short.truncate(right.len() - 1);
        let error = expected.check(&short, "case").unwrap_err();
        assert!(matches!(error, BenchError::WrongLength { .. }), "{error}");
    }
}

#[test]
fn the_exact_sum_allows_no_deviation_and_nan_is_always_wrong() {
    let shape = |kind| OperationShape::new(kind, ReduceOp::Sum, DType::F32, 3, 400);
    let change = |kind, bits: u32| {
        let expected = expected(shape(kind), 0);
        let mut wrong = copy(&expected.result);
        let value = &mut wrong.as_mut_slice::<f32>()[7];
        *value = f32::from_bits(value.to_bits() ^ bits);
        expected.check(&wrong, "case").is_err()
    };
    assert!(change(OperationKind::ExactSum, 1));
    assert!(!change(OperationKind::AllReduce, 1));
    assert!(change(OperationKind::AllReduce, 0x7fc0_0000));
    let expected = expected(shape(OperationKind::AllReduce), 0);
    let mut wrong = copy(&expected.result);
    wrong.as_mut_slice::<f32>()[7] = f32::NAN;
    assert!(expected.check(&wrong, "case").is_err());
}
