//! The choice of algorithms by default and measured costs; every choice can be run.

use ronde_core::exact::ExactSum;
use ronde_core::{GroupRank, Operation, ReduceOp};
use ronde_schedule::choose::counts;
use ronde_schedule::{
    Algorithm, CostModel, CostSample, Decision, Hosts, all_reduce_on, broadcast_by, choose,
    choose_on, exact_sum_on, reduce,
};

const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

fn exact(size: usize, shards: usize) -> Operation {
    let bounds = (0..=size).map(|rank| (rank * shards / size) as u32);
    Operation::ExactSum(ExactSum::new(bounds.collect()).expect("ascending bounds"))
}

fn operations(size: usize) -> Vec<Operation> {
    let (op, root) = (ReduceOp::Sum, GroupRank(size as u32 - 1));
    vec![
        SUM,
        exact(size, 16),
        Operation::Reduce { op, root },
        Operation::Broadcast { root },
    ]
}

fn layouts(size: usize) -> Vec<Hosts> {
    let by = |name: &dyn Fn(usize) -> usize| Hosts::new(&(0..size).map(name).collect::<Vec<_>>());
    vec![
        Hosts::one(size),
        by(&|rank| rank),
        by(&|rank| rank / 2),
        by(&|rank| rank % 2),
        by(&|rank| usize::from(rank > 0)),
    ]
}

fn can_run(chosen: Algorithm, operation: &Operation, hosts: &Hosts) -> bool {
    let (rank, size) = (GroupRank(0), hosts.size());
    match operation {
        Operation::AllReduce(_) => all_reduce_on(chosen, rank, hosts, 10).is_ok(),
        Operation::ExactSum(sum) => exact_sum_on(chosen, sum, rank, hosts, 10).is_ok(),
        Operation::Reduce { root, .. } => reduce(chosen, rank, size, *root, 10).is_ok(),
        Operation::Broadcast { root } => broadcast_by(chosen, rank, size, *root, 10).is_ok(),
        _ => true,
    }
}

/// Returns costs with expensive links between hosts and cheap links within.
fn slow_links() -> CostModel {
    CostModel {
        round_across_s: 200e-6,
        byte_across_s: 80e-9,
        is_measured: true,
        ..CostModel::default()
    }
}

#[test]
fn every_choice_can_be_run_and_has_a_reason() {
    let mut decided = 0;
    for size in 1..=17 {
        for hosts in layouts(size) {
            for preferred in Algorithm::ALL.map(Some).into_iter().chain([None]) {
                for operation in operations(size) {
                    for len in [0, 25, 1 << 21] {
                        for model in [CostModel::default(), slow_links()] {
                            let Decision {
                                algorithm,
                                reason,
                                seconds,
                            } = choose_on(&model, preferred, &operation, &hosts, len, 4);
                            assert!(!reason.is_empty());
                            assert!(can_run(algorithm, &operation, &hosts), "{reason}");
                            assert_eq!(seconds.is_some(), size > 1, "{reason}");
                            decided += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(decided > 1000);
}

#[test]
fn a_requested_algorithm_is_used_or_its_refusal_is_reported() {
    let asked = choose(Some(Algorithm::Ring), &SUM, 4, 64, 4);
    assert_eq!(asked.algorithm, Algorithm::Ring);
    assert!(asked.reason.contains("requested") && asked.seconds.is_some());
    let refused = choose(Some(Algorithm::Ring), &exact(4, 8), 4, 1 << 20, 4);
    assert_ne!(refused.algorithm, Algorithm::Ring);
    assert!(refused.reason.contains("order"), "{}", refused.reason);
    assert!(
        refused.reason.contains("default costs"),
        "{}",
        refused.reason
    );
    let gather = choose(None, &Operation::AllGather, 4, 64, 4);
    assert_eq!(
        (gather.algorithm, gather.seconds),
        (Algorithm::Direct, None)
    );
}

#[test]
fn by_default_short_operands_use_few_messages_and_long_ones_few_bytes() {
    for size in [8, 16, 32] {
        let short = choose(None, &SUM, size, 2, 4);
        let rounds = counts(short.algorithm, &SUM, &Hosts::one(size), 2, 4, 64).unwrap();
        let direct = counts(Algorithm::Direct, &SUM, &Hosts::one(size), 2, 4, 64).unwrap();
        assert!(rounds.messages <= direct.messages, "{}", short.reason);
        let long = choose(None, &SUM, size, 1 << 22, 4);
        let fewest = [
            Algorithm::Ring,
            Algorithm::Direct,
            Algorithm::HalvingDoubling,
        ];
        assert!(fewest.contains(&long.algorithm), "{size}: {}", long.reason);
        let root = GroupRank(0);
        let broadcast = |len| choose(None, &Operation::Broadcast { root }, size, len, 4).algorithm;
        assert_eq!(broadcast(2), Algorithm::Tree);
        assert_eq!(broadcast(1 << 22), Algorithm::Direct);
        let hosts = Hosts::new(&(0..size).map(|rank| rank / 2).collect::<Vec<_>>());
        let across = choose_on(&CostModel::default(), None, &SUM, &hosts, 1 << 22, 4);
        let crossing = |by| {
            counts(by, &SUM, &hosts, 1 << 22, 4, 64)
                .unwrap()
                .bytes_across
        };
        let least = crossing(Algorithm::Hierarchical);
        assert!(crossing(across.algorithm) <= least, "{}", across.reason);
    }
}

#[test]
fn between_hosts_long_operands_change_peers_rarely() {
    for size in [3, 4, 8] {
        let apart = Hosts::new(&(0..size).collect::<Vec<_>>());
        let chosen = |operation: &Operation, len| {
            choose_on(&slow_links(), None, operation, &apart, len, 4).algorithm
        };
        assert_eq!(chosen(&SUM, 1 << 22), Algorithm::Ring);
        let sum = exact(size, 8);
        let by = chosen(&sum, 1 << 22);
        let counted = counts(by, &sum, &apart, 1 << 22, 4, 2).unwrap();
        assert_eq!(counted.turns_across, 0.0, "{by}");
        assert_ne!(chosen(&SUM, 2), Algorithm::Ring);
    }
    let pairs = Hosts::new(&[0, 0, 1, 1]);
    let long = choose_on(&slow_links(), None, &SUM, &pairs, 1 << 22, 4);
    assert_eq!(long.algorithm, Algorithm::Hierarchical, "{}", long.reason);
}

#[test]
fn the_reason_has_the_two_best_algorithms_with_their_times() {
    let model = CostModel {
        is_measured: true,
        message_s: 100e-6,
        ..CostModel::default()
    };
    let Decision {
        algorithm,
        reason,
        seconds,
    } = choose_on(&model, None, &SUM, &Hosts::one(8), 2, 4);
    let micros = seconds.unwrap() * 1e6;
    assert!(
        reason.starts_with(&format!("{algorithm} {micros:.0} us, next ")),
        "{reason}"
    );
    assert!(reason.ends_with("(measured)"), "{reason}");
}

#[test]
fn the_cheapest_algorithm_is_chosen_for_every_expensive_kind_of_cost() {
    let free = CostModel {
        operation_s: 0.0,
        round_s: 0.0,
        round_across_s: 0.0,
        message_s: 0.0,
        byte_s: 0.0,
        byte_reduced_s: 0.0,
        byte_across_s: 0.0,
        ..CostModel::default()
    };
    let one = Hosts::one(8);
    let rounds = CostModel {
        round_s: 1.0,
        ..free
    };
    let decision = choose_on(&rounds, None, &SUM, &one, 1 << 10, 4);
    assert_eq!(decision.seconds, Some(2.0), "{}", decision.reason);
    let messages = CostModel {
        message_s: 1.0,
        ..free
    };
    let decision = choose_on(&messages, None, &SUM, &one, 1 << 10, 4);
    assert_eq!(decision.algorithm, Algorithm::Tree, "{}", decision.reason);
    let bytes = CostModel {
        byte_s: 1.0,
        ..free
    };
    let decision = choose_on(&bytes, None, &SUM, &one, 1 << 20, 4);
    assert_eq!(
        decision.seconds,
        Some(2.0 * 2.0 * 7.0 / 8.0 * f64::from(4 << 20))
    );
    // Over two hosts, halving reaches the other host last, with the shortest messages.
    let hosts = Hosts::new(&[0, 0, 0, 0, 1, 1, 1, 1]);
    let across = CostModel {
        byte_across_s: 1.0,
        ..free
    };
    let decision = choose_on(&across, None, &SUM, &hosts, 1 << 20, 4);
    assert_eq!(
        decision.seconds,
        Some(f64::from(4 << 20)),
        "{}",
        decision.reason
    );
}

#[test]
fn of_two_algorithms_with_similar_times_the_one_with_fewer_messages_is_chosen() {
    let model = CostModel {
        is_measured: true,
        ..slow_links()
    };
    let hosts = Hosts::new(&[0, 1, 2, 3]);
    let long = choose_on(&model, None, &SUM, &hosts, 1 << 16, 4);
    assert_eq!(long.algorithm, Algorithm::HalvingDoubling);
    let told = "ms, with fewer messages than direct";
    assert!(long.reason.contains(told), "{}", long.reason);
}

#[test]
fn within_a_host_caches_and_rounds_decide_between_algorithms_with_similar_times() {
    let model = CostModel {
        cores: 2,
        is_measured: true,
        ..CostModel::default()
    };
    let choose = |operation: &Operation, size, len| {
        choose_on(&model, None, operation, &Hosts::one(size), len, 4)
    };
    for size in 3..=8 {
        // No algorithm's scratch memory fits the cache.
        for operation in [SUM, exact(size, 16)] {
            let long = choose(&operation, size, 1 << 24);
            assert_eq!(long.algorithm, Algorithm::Direct, "{}", long.reason);
        }
        let short = choose(&SUM, size, 2);
        assert_ne!(short.algorithm, Algorithm::Ring, "{}", short.reason);
    }
    // A slice fits, and a ring needs no more.
    let some = choose(&SUM, 4, 1 << 18);
    assert_eq!(some.algorithm, Algorithm::Ring, "{}", some.reason);
    let told = "us, with less scratch or fewer rounds than";
    assert!(some.reason.contains(told), "{}", some.reason);
    // Between the two sizes, the number of sequential bytes decides.
    for operation in [SUM, exact(4, 16)] {
        let middle = choose(&operation, 4, 1 << 16);
        let by = middle.algorithm;
        assert_eq!(by, Algorithm::HalvingDoubling, "{}", middle.reason);
    }
    // Short operands use fewer messages if the times are similar.
    let few = choose(&SUM, 2, 1 << 11);
    assert_eq!(few.algorithm, Algorithm::Tree, "{}", few.reason);
}

#[test]
fn an_algorithm_with_much_scratch_memory_is_used_only_on_request() {
    // All costs except the driver's two rounds are high; the driver would need seven operands at rank 0.
    let model = CostModel {
        message_s: 0.0,
        round_s: 1.0,
        cores: 1,
        ..CostModel::default()
    };
    let root = GroupRank(0);
    let reduction = Operation::Reduce {
        op: ReduceOp::Sum,
        root,
    };
    let chosen = |len| choose_on(&model, None, &reduction, &Hosts::one(8), len, 4).algorithm;
    assert_eq!(chosen(1 << 10), Algorithm::Driver);
    assert_ne!(chosen(1 << 22), Algorithm::Driver);
}

#[test]
fn the_algorithm_with_the_least_measured_time_is_chosen() {
    let hosts = Hosts::new(&[0, 0, 1, 1]);
    let truth = CostModel {
        cores: 2,
        ..slow_links()
    };
    let mut samples = Vec::new();
    for len in [16, 1024, 8192] {
        for algorithm in Algorithm::ALL {
            let counts = counts(algorithm, &SUM, &hosts, len, 8, 2).unwrap();
            samples.push(CostSample {
                counts,
                seconds: truth.seconds(&counts),
            });
        }
    }
    let start = CostModel {
        cores: 2,
        ..CostModel::default()
    };
    let fitted = start.fit(&samples);
    for operation in operations(4) {
        for len in (0..24).map(|exponent| 1 << exponent) {
            let by = |model| choose_on(model, None, &operation, &hosts, len, 4);
            let (found, best) = (by(&fitted), by(&truth));
            let real = counts(found.algorithm, &operation, &hosts, len, 4, 2).unwrap();
            let ratio = truth.seconds(&real) / best.seconds.unwrap();
            assert!(ratio < 1.04, "{operation:?} of {len}: {}", found.reason);
        }
    }
    let long = choose_on(&fitted, None, &SUM, &hosts, 1 << 22, 4);
    let across = counts(long.algorithm, &SUM, &hosts, 1 << 22, 4, 2).unwrap();
    assert_eq!(across.bytes_across, f64::from(4 << 22), "{}", long.reason);
}
