//! Simulated calibrations on links of known costs.

use std::collections::BTreeSet;

use ronde_core::{Operation, ReduceOp};
use ronde_schedule::choose::counts;
use ronde_schedule::{CORRECTED_BYTES, CostModel, Hosts};

use super::*;

fn planner(hosts: &Hosts, within: Duration) -> CalibrationPlanner {
    CalibrationPlanner::new(within, 16, |algorithm, len| {
        let operation = Operation::AllReduce(ReduceOp::Sum);
        if algorithm == Algorithm::Hierarchical && !hosts.are_nested() {
            return None;
        }
        counts(algorithm, &operation, hosts, len, 8, 2).ok()
    })
}

/// Simulates a calibration in which `takes` returns the time of an operation from its counts, its plan
/// and the number of earlier ones; returns the operations and the total time.
fn play_by(
    planner: &mut CalibrationPlanner,
    mut takes: impl FnMut(&Counts, TrialOperation, usize) -> f64,
) -> (Vec<TrialOperation>, f64) {
    let (mut step, mut spent, mut steps) = (planner.first(), 0.0, Vec::new());
    loop {
        let next = planner.next(step, Duration::from_secs_f64(spent));
        let mut algorithms = planner.algorithms.iter();
        let trials_of = algorithms.find(|c| c.algorithm == step.algorithm);
        let counts = trials_of.map(|trials_of| trials_of.counts[step.level]);
        let seconds = takes(&counts.unwrap_or_default(), step, steps.len());
        // The time that the first operation waits for late members is not counted.
        spent += if steps.is_empty() { 0.0 } else { seconds };
        planner.record_own_time(step, seconds);
        planner.record_group_time(step, seconds);
        steps.push(step);
        assert!(steps.len() < 1000);
        match next {
            Some(next) => step = next,
            None => return (steps, spent),
        }
    }
}

/// Returns the seconds of consecutive operations on links that pass a burst of bytes above their rate after
/// they were idle.
fn shaped(model: &CostModel, burst: f64) -> impl FnMut(&Counts) -> f64 {
    let mut saved = burst;
    move |counts| {
        let free = counts.bytes_across.min(saved);
        let seconds = model.seconds(counts) - free * model.byte_across_s;
        let refilled = seconds / model.byte_across_s;
        saved = (saved + refilled - counts.bytes_across).clamp(0.0, burst);
        seconds
    }
}

/// Simulates a calibration of a group whose operations cost what `model` predicts, except that links pass
/// a burst of bytes above their rate after they were idle.
fn play_on(
    hosts: &Hosts,
    within: Duration,
    model: &CostModel,
    burst: f64,
) -> (Vec<TrialOperation>, f64, CalibrationPlanner) {
    let mut planner = planner(hosts, within);
    let mut link = shaped(model, burst);
    let (steps, spent) = play_by(&mut planner, |counts, _, _| link(counts));
    (steps, spent, planner)
}

fn play(
    hosts: &Hosts,
    within: Duration,
    model: &CostModel,
) -> (Vec<TrialOperation>, f64, CalibrationPlanner) {
    play_on(hosts, within, model, 0.0)
}

fn gigabit() -> CostModel {
    CostModel {
        byte_across_s: 8e-9,
        round_across_s: 60e-6,
        cores: 2,
        ..CostModel::default()
    }
}

#[test]
fn steps_survive_the_wire() {
    for algorithm in Algorithm::ALL {
        for level in 0..LENS.len() {
            let step = TrialOperation { algorithm, level };
            assert_ne!(step.encode(), 0);
            assert_eq!(
                TrialOperation::decode(step.encode(), LENS.len()),
                Some(step)
            );
            assert_eq!(TrialOperation::decode(step.encode(), level), None);
        }
    }
    for nonsense in [0, -1, i64::MIN, i64::MAX, 8] {
        assert_eq!(TrialOperation::decode(nonsense, 6), None);
    }
}

#[test]
fn the_time_is_kept_on_fast_and_slow_links_and_enough_is_measured() {
    let slow = CostModel {
        byte_across_s: 80e-9,
        ..gigabit()
    };
    let slower = CostModel {
        byte_across_s: 800e-9,
        ..gigabit()
    };
    for model in [CostModel::default(), gigabit(), slow, slower] {
        for names in [vec![0, 1], vec![0, 0, 1, 1], vec![0, 1, 2, 3, 4, 5, 6, 7]] {
            for millis in [5_u32, 30, 200] {
                let within = Duration::from_millis(millis.into());
                let (steps, spent, planner) = play(&Hosts::new(&names), within, &model);
                let longest = planner
                    .algorithms
                    .iter()
                    .flat_map(|c| c.last.iter().flatten());
                let longest = longest.copied().fold(0.0, f64::max);
                let most = if planner.is_across {
                    (1.0 + CLIMB_ACROSS) * within.as_secs_f64()
                } else {
                    within.as_secs_f64()
                };
                assert!(spent <= most + 2.0 * longest, "{spent}");
                // Links without a burst settle at once.
                assert!(model == slower || millis < 30 || spent <= 2.6 * within.as_secs_f64());
                if millis >= 30 {
                    let levels: BTreeSet<_> = steps.iter().map(|s| s.level).collect();
                    assert!(levels.len() >= 2, "{model:?} {names:?}: {levels:?}");
                    assert!(planner.samples().len() >= if model == slower { 2 } else { 4 });
                }
            }
        }
    }
}

#[test]
fn much_time_is_not_used_up_and_none_measures_nothing() {
    let hosts = Hosts::one(4);
    let (steps, _, planner) = play(&hosts, Duration::from_secs(3600), &gigabit());
    assert!(steps.len() < 800);
    // All algorithms but the hierarchical one, which is the direct one here, at all lengths that
    // are measured within a host.
    assert_eq!(planner.samples().len(), 5 * (LEVEL_WITHIN + 1));
    let bytes = planner.timings().into_iter().map(|timing| timing.bytes);
    assert_eq!(bytes.collect::<BTreeSet<_>>(), CORRECTED_BYTES.into());
    let (steps, _, planner) = play(&hosts, Duration::ZERO, &gigabit());
    assert!(steps.len() <= 2 && planner.samples().len() <= 2);
}

#[test]
fn two_hosts_measure_what_differs_between_them_and_one_host_all() {
    let measured = |names: &[u64]| {
        let planner = planner(&Hosts::new(names), Duration::from_millis(30));
        let algorithms = planner.algorithms.iter();
        algorithms.map(|c| c.algorithm).collect::<Vec<_>>()
    };
    // A ring of two equals a tree for the shortest operands and halving_doubling for longer ones, and so
    // does direct exchange.
    assert_eq!(
        measured(&[0, 1]),
        [Algorithm::HalvingDoubling, Algorithm::Tree]
    );
    assert_eq!(measured(&[0, 0]).len(), 5);
}

#[test]
fn times_within_a_host_correct_the_costs() {
    // Two algorithms with the same counts between two ranks, one slower than the other.
    let (hosts, operation) = (Hosts::one(2), Operation::AllReduce(ReduceOp::Sum));
    let mut planner = planner(&hosts, Duration::from_secs(10));
    play_by(&mut planner, |counts, step, _| {
        let slow = match step.algorithm {
            Algorithm::Ring => 1.4,
            _ => 1.0,
        };
        slow * gigabit().seconds(counts)
    });
    let model = gigabit()
        .fit(&planner.samples())
        .corrected_by(&planner.timings());
    let len = CORRECTED_BYTES[4] / 8;
    let seconds = |algorithm| {
        let counts = counts(algorithm, &operation, &hosts, len, 8, 2).unwrap();
        model.seconds_by(algorithm, CORRECTED_BYTES[4], &counts)
    };
    let ratio = seconds(Algorithm::Ring) / seconds(Algorithm::HalvingDoubling);
    assert!((ratio - 1.4).abs() < 1e-6, "{ratio}");
}

/// Returns the nanoseconds per byte between hosts that a calibration of 30 ms finds on links of 100 Mbit/s with
/// a burst of 128 KiB, where the operation of a given number takes longer.
fn found_where_one_takes_longer(number: usize, by: f64) -> f64 {
    let slow = CostModel {
        byte_across_s: 80e-9,
        ..gigabit()
    };
    let mut planner = planner(&Hosts::new(&[0, 1, 2, 3]), Duration::from_millis(30));
    let mut link = shaped(&slow, f64::from(128 << 10));
    play_by(&mut planner, |counts, _, before| {
        link(counts) + if before == number { by } else { 0.0 }
    });
    slow.fit(&planner.samples()).byte_across_s * 1e9
}

#[test]
fn a_member_that_is_late_or_a_packet_that_is_sent_again_is_not_taken_for_the_links_rate() {
    for late in [0.0, 0.05, 5.0] {
        let found = found_where_one_takes_longer(0, late);
        assert!((65.0..100.0).contains(&found), "{late}: {found}");
    }
    for number in 1..30 {
        let found = found_where_one_takes_longer(number, 0.2);
        assert!((40.0..120.0).contains(&found), "{number}: {found}");
    }
}

#[test]
fn the_samples_lead_back_to_the_costs_even_of_links_that_had_rested() {
    for names in [vec![0, 0, 1, 1], vec![0, 1], vec![0, 1, 2, 3]] {
        for (rate, burst) in [
            (80e-9, 0.0),
            (80e-9, 65e3),
            (80e-9, 256e3),
            (8e-9, 0.0),
            (8e-9, 65e3),
            (8e-9, 256e3),
            (8e-9, 2e6),
            (0.8e-9, 2e6),
        ] {
            let truth = CostModel {
                byte_across_s: rate,
                ..gigabit()
            };
            let hosts = Hosts::new(&names);
            let (_, _, planner) = play_on(&hosts, Duration::from_millis(30), &truth, burst);
            let start = CostModel {
                cores: 2,
                ..CostModel::default()
            };
            let found = start.fit(&planner.samples());
            let ratio = found.byte_across_s / rate;
            assert!(
                (0.6..1.5).contains(&ratio),
                "{names:?} {rate} {burst}: {found:?}"
            );
        }
    }
}
