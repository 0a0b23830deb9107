//! [`explain`]: the traffic of each algorithm and the automatic choice, computed without running
//! any.

use std::fmt::Write;

use ronde_core::{GroupRank, Operation};
use ronde_schedule::choose::has_several;
use ronde_schedule::make::refusal;
use ronde_schedule::{
    self as schedule, Algorithm, Cost, CostModel, Hosts, Schedule, ScheduleError, choose_on,
};

use crate::cases::is_in_place;
use crate::error::BenchError;
use crate::operation::{OperationKind, OperationShape};
use crate::settings::{Preference, Settings};
use crate::sizes::show_bytes;

/// Returns, for every operation, number of ranks and size, the rounds, messages and bytes of the
/// busiest rank per algorithm, counted in the schedules, and the choice with its reason. Pure.
///
/// # Errors
/// [`BenchError::Channel`] when a schedule cannot be created, which is a bug.
pub fn explain(settings: &Settings, worlds: &[usize]) -> Result<String, BenchError> {
    let mut text = String::new();
    for &kind in &settings.operations {
        for &ranks in worlds {
            section(&mut text, settings, kind, ranks).map_err(|error| {
                BenchError::channel(format!("plan {kind} on {ranks} ranks"), error)
            })?;
        }
    }
    text += "Rounds, messages and bytes of payload are those of the rank with the most; every message has a \
             header of 48 bytes beside it. Choices are by default costs; a group measures its own.\n";
    Ok(text)
}

fn section(
    text: &mut String,
    settings: &Settings,
    kind: OperationKind,
    ranks: usize,
) -> Result<(), ScheduleError> {
    let hosts = settings.layout(ranks);
    let typed = if kind.reduces() {
        format!(", {} of {}", settings.op, settings.dtype)
    } else {
        format!(", {}", settings.dtype)
    };
    let on = match hosts.count() {
        1 => String::new(),
        count => format!(" on {count} hosts"),
    };
    line(text, &format!("{kind}, {ranks} ranks{on}{typed}"));
    let first = OperationShape::new(kind, settings.op, settings.dtype, ranks, 8);
    if let Some(problem) = first.refusal() {
        line(text, &format!("  none: {problem}\n"));
        return Ok(());
    }
    line(
        text,
        "  size       algorithm         rounds  messages        sent    received  sent by all",
    );
    let mut before = None;
    for &bytes in &settings.sizes {
        let shape = OperationShape::new(kind, settings.op, settings.dtype, ranks, bytes);
        if before.replace(shape) != Some(shape) {
            size(text, settings, &shape, &hosts)?;
        }
    }
    if is_in_place(kind, settings.op) {
        line(
            text,
            "  over shared memory: one implementation, whatever is requested; ranks read each other's buffers \
             in place",
        );
    }
    line(text, "");
    Ok(())
}

fn size(
    text: &mut String,
    settings: &Settings,
    shape: &OperationShape,
    hosts: &Hosts,
) -> Result<(), ScheduleError> {
    let Some(operation) = shape.operation(0) else {
        let cost = Cost {
            messages_sent: 1,
            bytes_sent: shape.bytes(),
            bytes_received: shape.bytes(),
            rounds: 1,
        };
        row(text, shape, shape.kind.one_way(), &[cost]);
        return Ok(());
    };
    let only_auto = settings.algorithms.iter().all(|one| one.0.is_none());
    let wanted = |a: &Algorithm| only_auto || settings.algorithms.contains(&Preference(Some(*a)));
    let mut refused = Vec::new();
    if has_several(&operation) {
        for algorithm in Algorithm::ALL.into_iter().filter(wanted) {
            match refusal(algorithm, &operation, hosts) {
                Some(problem) => refused.push(format!("{algorithm}: {problem}")),
                None => row(
                    text,
                    shape,
                    algorithm.name(),
                    &costs(shape, algorithm, hosts)?,
                ),
            }
        }
    } else {
        row(
            text,
            shape,
            "the one",
            &costs(shape, Algorithm::Direct, hosts)?,
        );
    }
    for problem in refused {
        line(text, &format!("             skipped: {problem}"));
    }
    if has_several(&operation) {
        let (len, element_bytes) = (shape.len(), shape.dtype.size());
        let model = CostModel::default();
        let decision = choose_on(&model, None, &operation, hosts, len, element_bytes);
        line(
            text,
            &format!("             chosen over connections: {}", decision.reason),
        );
    }
    Ok(())
}

fn costs(
    shape: &OperationShape,
    algorithm: Algorithm,
    hosts: &Hosts,
) -> Result<Vec<Cost>, ScheduleError> {
    (0..shape.ranks)
        .map(|rank| Ok(schedule_of(shape, algorithm, rank, hosts)?.cost(shape.dtype.size())))
        .collect()
}

/// The traffic of one rank in an operation.
fn schedule_of(
    shape: &OperationShape,
    algorithm: Algorithm,
    rank: usize,
    hosts: &Hosts,
) -> Result<Schedule, ScheduleError> {
    let (n, len, part) = (shape.ranks, shape.len(), shape.part());
    let (me, root) = (GroupRank(rank as u32), GroupRank(shape.root() as u32));
    Ok(match shape.kind {
        OperationKind::AllReduce => schedule::all_reduce_on(algorithm, me, hosts, len)?,
        OperationKind::Reduce => schedule::reduce(algorithm, me, n, root, len)?,
        OperationKind::Broadcast => schedule::broadcast_by(algorithm, me, n, root, len)?,
        OperationKind::ReduceScatter => schedule::reduce_scatter(rank, n, part),
        OperationKind::AllGather => schedule::all_gather(rank, &vec![part; n]),
        OperationKind::Gather => schedule::gather(rank, root.index(), &vec![part; n]),
        OperationKind::Scatter => schedule::scatter(rank, n, root.index(), part),
        OperationKind::AllToAll => schedule::all_to_all(rank, n, part),
        OperationKind::AllToAllUnequal => {
            let lens: Vec<usize> = (0..n).map(|peer| shape.unequal_len(rank, peer)).collect();
            schedule::all_to_all_unequal(rank, &lens, &lens)
        }
        OperationKind::Barrier | OperationKind::SendReceive => schedule::barrier(rank, n),
        OperationKind::ExactSum => match shape.operation(rank) {
            Some(Operation::ExactSum(sum)) => {
                schedule::exact_sum_on(algorithm, &sum, me, hosts, len)?
            }
            _ => schedule::barrier(rank, n),
        },
    })
}

fn row(text: &mut String, shape: &OperationShape, algorithm: &str, costs: &[Cost]) {
    let most = |of: fn(&Cost) -> usize| costs.iter().map(of).max().unwrap_or(0);
    let all: usize = costs.iter().map(|cost| cost.bytes_sent).sum();
    line(
        text,
        &format!(
            "  {:<10} {:<17} {:>6} {:>9} {:>11} {:>11} {:>12}",
            show_bytes(shape.bytes()),
            algorithm,
            most(|cost| cost.rounds),
            most(|cost| cost.messages_sent),
            show_bytes(most(|cost| cost.bytes_sent)),
            show_bytes(most(|cost| cost.bytes_received)),
            show_bytes(all),
        ),
    );
}

fn line(text: &mut String, line: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::small;

    #[test]
    fn costs_are_those_of_the_documented_page() {
        let mut settings = small();
        settings.sizes = vec![1 << 20];
        let text = explain(&settings, &[4]).unwrap();
        let has = |words: &[&str]| {
            let found = text.lines().any(|line| {
                let mut rest = line;
                words.iter().all(|word| match rest.find(word) {
                    Some(at) => {
                        rest = &rest[at + word.len()..];
                        true
                    }
                    None => false,
                })
            });
            assert!(found, "{words:?} in\n{text}");
        };
        has(&["all_reduce, 4 ranks, sum of f32"]);
        has(&["1 MiB", "ring", "6", "6", "1.5 MiB", "1.5 MiB", "6 MiB"]);
        has(&["1 MiB", "driver", "2", "3", "3 MiB", "3 MiB", "6 MiB"]);
        has(&["chosen over connections: ", "default costs"]);
        has(&["over shared memory: one implementation"]);
    }

    #[test]
    fn every_operation_is_explained_for_any_number_of_ranks() {
        let mut settings = small();
        settings.operations = OperationKind::ALL.to_vec();
        settings.hosts = 2;
        let text = explain(&settings, &[2, 3, 5, 8]).unwrap();
        for kind in OperationKind::ALL {
            assert!(
                text.contains(&format!("{kind}, 5 ranks on 2 hosts")),
                "{text}"
            );
        }
        assert!(text.contains("skipped: ring: "), "{text}");
        settings.dtype = ronde_core::DType::I32;
        let text = explain(&settings, &[2]).unwrap();
        assert!(
            text.contains("none: the exact sum needs f32 or f64"),
            "{text}"
        );
    }
}
