//! Which algorithm a group uses: measured alike on all ranks, inherited, switched off, configured.

use std::sync::Mutex;
use std::time::Duration;

use crate::meshes::{Kind, configs, groups, join, secure};
use ronde_comm::testing::{in_process_groups, run_ranks};
use ronde_comm::{Calibration, GroupConfig, ProcessGroup, TransportChoice, merge_report};
use ronde_core::exact::ExactSum;
use ronde_core::{
    CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation, ReduceOp,
};
use ronde_schedule::{Algorithm, CostModel, Hosts};

const LIMIT: Duration = Duration::from_secs(60);
const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

/// Returns members that are connected over TCP, with settings changed alike or one by one.
fn joined(size: usize, change: impl Fn(usize, &mut GroupConfig)) -> Vec<ProcessGroup> {
    let mut configs = configs(size, LIMIT);
    for (rank, config) in configs.iter_mut().enumerate() {
        config.transport = TransportChoice::Tcp;
        change(rank, config);
    }
    let groups = join(configs).into_iter();
    groups
        .map(|group| group.expect("members that agree can join"))
        .collect()
}

fn operations(size: usize) -> Vec<Operation> {
    let (op, root) = (ReduceOp::Sum, GroupRank(size as u32 - 1));
    let sum = ExactSum::new((0..=size as u32).map(|rank| 2 * rank).collect());
    vec![
        SUM,
        Operation::ExactSum(sum.expect("a shard for each")),
        Operation::Reduce { op, root },
        Operation::Broadcast { root },
    ]
}

/// Describes all choices of a group.
fn all_choices(group: &ProcessGroup) -> Vec<String> {
    let mut told = Vec::new();
    for operation in operations(group.size()) {
        for exponent in 0..=24 {
            let choice = group.choice(&operation, DType::F32, 3 << exponent);
            assert!(choice.algorithm.is_some() && !choice.by_shared_memory);
            told.push(format!("{choice:?}"));
        }
    }
    told
}

#[test]
fn all_ranks_measure_the_same_bits_and_choose_the_same_over_tcp_and_tls() {
    for size in [2, 3, 5] {
        for by_tls in [false, true] {
            let mut configs = configs(size, LIMIT);
            if by_tls {
                secure(&mut configs);
            }
            for config in &mut configs {
                config.transport = TransportChoice::Tcp;
            }
            let groups = join(configs)
                .into_iter()
                .map(|group| group.expect("it joins"));
            let told = run_ranks(groups.collect(), LIMIT, |group| {
                let model = group.cost_model();
                assert!(model.is_measured);
                group.all_reduce(&mut [1.0_f32; 300], ReduceOp::Sum)?;
                Ok::<_, CollectiveError>((model.to_words(), all_choices(&group)))
            });
            assert!(told[0].1[0].contains("(measured)"), "{}", told[0].1[0]);
            assert!(told.iter().all(|theirs| *theirs == told[0]));
        }
    }
}

#[test]
fn without_calibration_all_ranks_use_the_default_costs() {
    let off = |rank: usize, config: &mut GroupConfig| {
        if rank == 1 {
            config.calibration = Calibration::Off;
        }
    };
    // One member that switches it off is enough.
    for group in joined(3, off) {
        assert_eq!(group.cost_model(), CostModel::default());
        let choice = group.choice(&SUM, DType::F32, 1 << 20);
        assert!(
            choice.reason.contains("(default costs)"),
            "{}",
            choice.reason
        );
    }
    for group in groups(Kind::InProcess, 2, LIMIT) {
        assert_eq!(group.cost_model(), CostModel::default());
    }
    let ring = joined(2, |_, config| config.algorithm = Some(Algorithm::Ring));
    for group in ring {
        assert_eq!(group.cost_model(), CostModel::default());
        let choice = group.choice(&SUM, DType::F32, 1 << 20);
        assert_eq!(choice.algorithm, Some(Algorithm::Ring));
        assert_eq!(choice.reason, "ring was requested");
        assert!(choice.predicted.is_some());
    }
}

#[test]
fn sub_groups_choose_by_their_parents_costs_without_measuring() {
    let check = |group: ProcessGroup| {
        let model = group.cost_model();
        assert!(model.is_measured);
        let colour = group.rank().0 % 2;
        let half = group.split(Some(colour), 0)?.expect("it has a colour");
        // The corrections only apply to groups of four.
        assert_eq!(half.cost_model(), model.uncorrected());
        let mine = half.payload_bytes_sent();
        assert!(mine < 4096, "{mine} bytes to join");
        let quarter = half.split(Some(0), 0)?.expect("it has a colour");
        assert_eq!(quarter.cost_model(), model.uncorrected());
        group.barrier()
    };
    run_ranks(joined(4, |_, _| {}), LIMIT, check);
    run_ranks(groups(Kind::InProcess, 4, LIMIT), LIMIT, move |group| {
        group.calibrate(Duration::from_millis(5))?;
        check(group)
    });
}

#[test]
fn a_group_measures_again_on_request() {
    let in_process = groups(Kind::InProcess, 3, LIMIT);
    let words = run_ranks(in_process, LIMIT, |group| {
        group.calibrate(Duration::ZERO)?;
        assert!(!group.cost_model().is_measured);
        // The shortest time of all members is used.
        let millis = 2 + u64::from(group.rank().0) * 60_000;
        group.calibrate(Duration::from_millis(millis))?;
        group.all_reduce(&mut [1_i32; 70], ReduceOp::Sum)?;
        let record = group.flight_record();
        let numbers: Vec<_> = record.operations.iter().map(|o| o.sequence).collect();
        let expected: Vec<_> = (0..numbers.len() as u64).map(Some).collect();
        assert_eq!(
            numbers, expected,
            "a requested calibration is recorded and numbered"
        );
        assert!(numbers.len() > 4);
        Ok::<_, CollectiveError>(group.cost_model().to_words())
    });
    assert!(words[0][0] == 1 && words.iter().all(|theirs| *theirs == words[0]));
}

#[test]
fn joining_hides_its_calibration_and_numbers_begin_at_zero() {
    run_ranks(joined(3, |_, _| {}), LIMIT, |group| {
        assert!(group.cost_model().is_measured);
        assert_eq!(group.flight_record().operations, []);
        assert_eq!(group.choices(), []);
        group.all_reduce(&mut [1_i32; 1000], ReduceOp::Sum)?;
        let record = group.flight_record();
        let [operation] = &record.operations[..] else {
            panic!("{record:?}");
        };
        assert_eq!(operation.sequence, Some(0));
        let by = operation.algorithm.clone().expect("it was chosen");
        let report = merge_report(&[record]);
        assert!(report.contains(&format!(", by {by})")), "{report}");
        let [taken] = &group.choices()[..] else {
            panic!("{:?}", group.choices());
        };
        assert_eq!((&*taken.operation, taken.times), ("all_reduce", 1));
        assert!(taken.bytes.contains(&4000));
        let chosen = taken.choice.algorithm.expect("there was a choice");
        assert_eq!(chosen.name(), by);
        group.barrier()
    });
}

#[test]
fn errors_number_operations_as_callers_count_them() {
    run_ranks(joined(2, |_, _| {}), LIMIT, |group| {
        group.barrier()?;
        let mut mine = vec![0_i32; 1 + group.rank().index()];
        let error = group.all_reduce(&mut mine, ReduceOp::Sum);
        let error = error.expect_err("they disagree").to_string();
        assert!(
            error.starts_with("operation 1: this rank called"),
            "{error}"
        );
        Ok::<_, CollectiveError>(())
    });
}

#[test]
fn shared_memory_leaves_nothing_to_choose_but_for_what_it_does_not_run() {
    run_ranks(groups(Kind::Shared, 2, LIMIT), LIMIT, |group| {
        assert!(!group.cost_model().is_measured);
        group.calibrate(Duration::from_secs(1))?;
        let choice = group.choice(&SUM, DType::F32, 1000);
        assert!(choice.by_shared_memory && choice.algorithm.is_none());
        assert!(choice.predicted.is_none() && choice.reason.contains("shared memory"));
        group.all_reduce(&mut [1_i32; 1000], ReduceOp::Sum)?;
        assert_eq!(group.choices(), []);
        assert_eq!(group.flight_record().operations[0].algorithm, None);
        let mut bits = [group.rank().0; 100];
        group.all_reduce(&mut bits, ReduceOp::Xor)?;
        assert_eq!(bits, [1; 100]);
        let xor = Operation::AllReduce(ReduceOp::Xor);
        let choice = group.choice(&xor, DType::U32, 100);
        assert!(choice.algorithm.is_some() && !choice.by_shared_memory);
        let gather = group.choice(&Operation::Barrier, DType::U8, 0);
        assert!(gather.by_shared_memory);
        Ok::<_, CollectiveError>(())
    });
}

#[test]
fn a_member_that_fails_during_calibration_is_reported_to_all_others() {
    let groups = groups(Kind::InProcess, 3, LIMIT);
    run_ranks(groups, LIMIT, |group| {
        if group.rank().0 == 2 {
            group.abort("aborted on purpose");
            return Ok(());
        }
        let error = group
            .calibrate(Duration::from_secs(30))
            .expect_err("one is missing");
        assert!(error.to_string().contains("on purpose"), "{error}");
        Ok::<_, CollectiveError>(())
    });
    // A member that leaves is named, with the operation that it missed.
    let failures = std::sync::Arc::new(Mutex::new(Vec::new()));
    let told = failures.clone();
    let mut configs = configs(2, LIMIT);
    configs[0].on_failure = Some(ronde_comm::FailureHook::new(move |record, error| {
        let mut told = told.lock().expect("no thread panics");
        told.push((record.operations.len(), error.to_string()));
    }));
    run_ranks(in_process_groups(configs), LIMIT, |group| {
        if group.rank().0 == 0 {
            let error = group
                .calibrate(Duration::from_secs(30))
                .expect_err("one is gone");
            assert!(error.to_string().contains("rank 1"), "{error}");
        }
        Ok::<_, CollectiveError>(())
    });
    let told = failures.lock().expect("no thread panics");
    assert!(told.len() == 1 && told[0].0 > 0, "{told:?}");
}

#[test]
fn members_find_out_which_share_a_host_and_refuse_different_settings() {
    // All are on this host.
    let one = joined(3, |_, _| {});
    let choice = one[0].choice(&SUM, DType::F32, 1 << 22);
    assert_ne!(choice.algorithm, Some(Algorithm::Hierarchical));
    let told = joined(4, |_, config| {
        config.hosts = Some(Hosts::new(&[0, 0, 1, 1]))
    });
    assert!(told[0].cost_model().is_measured);
    let mut configs = configs(2, LIMIT);
    for (rank, config) in configs.iter_mut().enumerate() {
        config.transport = TransportChoice::Tcp;
        config.hosts = Some(Hosts::new(&[0, rank]));
    }
    for outcome in join(configs) {
        let error = outcome.expect_err("they disagree").to_string();
        assert!(error.contains("different host settings"), "{error}");
    }
}
