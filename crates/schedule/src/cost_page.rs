//! [`cost_page`]: what every operation costs, computed from its schedules, as a page of Markdown.

use ronde_core::exact::ExactSum;
use ronde_core::{GroupRank, Operation, ReduceOp};

use crate::choose::counts;
use crate::{
    Algorithm, Hosts, Schedule, ScheduleError, all_gather, all_reduce_on, all_to_all, barrier,
    broadcast_by, exact_sum_on, gather, reduce, reduce_scatter, scatter,
};

/// A buffer of this many elements of one byte is cut without remainder for all sizes of the page.
const LEN: usize = 64 * 64 * 15;
const SIZES: [usize; 5] = [2, 3, 4, 8, 16];

const HEAD: &str = "# What the collectives cost

Messages and bytes of payload per rank, counted in the schedules that are run (`cargo run -p
ronde-schedule --example cost_page` writes this page; a test compares it with the code). `n` is the
count of ranks, `b` the bytes of the whole buffer: the operand of a reduction or broadcast, the result
of a gather, what the root of a scatter or each rank of an all_to_all brings. Rounds, messages and bytes
are those of the rank with the most. Every message has a header of 48 bytes beside it. The rank's own
part never moves. Where lengths differ between ranks (all_gather, gather) one number per rank is
gathered first, in one round more. The hierarchical rows are of two hosts with half of the ranks each;
*across* is what one host sends to others. The exact sum is of 16 logical shards.
";

type Maker = Box<dyn Fn(usize, usize) -> Result<Schedule, ScheduleError>>;

/// One operation by one algorithm: rank, size -> schedule.
struct Entry {
    operation: &'static str,
    algorithm: &'static str,
    make: Maker,
}

impl Entry {
    fn new(
        operation: &'static str,
        algorithm: &'static str,
        make: impl Fn(usize, usize) -> Result<Schedule, ScheduleError> + 'static,
    ) -> Self {
        let make = Box::new(make);
        Self {
            operation,
            algorithm,
            make,
        }
    }

    /// The table row for `size` ranks; `None` where the algorithm cannot.
    fn row(&self, size: usize) -> Option<String> {
        let schedules: Result<Vec<Schedule>, _> =
            (0..size).map(|rank| (self.make)(rank, size)).collect();
        let costs: Vec<_> = schedules.ok()?.iter().map(|s| s.cost(1)).collect();
        let most = |of: fn(&crate::Cost) -> usize| costs.iter().map(of).max().unwrap_or(0);
        let all: usize = costs.iter().map(|cost| cost.bytes_sent).sum();
        Some(format!(
            "| {} | {} | {size} | {} | {} | {} | {} | {} |\n",
            self.operation,
            self.algorithm,
            most(|cost| cost.rounds),
            most(|cost| cost.messages_sent),
            in_buffers(most(|cost| cost.bytes_sent)),
            in_buffers(most(|cost| cost.bytes_received)),
            in_buffers(all),
        ))
    }
}

/// Bytes in units of the buffer: `1.5 b`.
fn in_buffers(bytes: usize) -> String {
    let text = format!("{:.3}", bytes as f64 / LEN as f64);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if bytes == 0 {
        "0".to_owned()
    } else if bytes < LEN / 1000 {
        format!("{bytes} bytes")
    } else {
        format!("{text} b")
    }
}

fn rank_of(rank: usize) -> GroupRank {
    GroupRank(rank as u32)
}

/// Two hosts with half of the ranks each.
fn two_hosts(size: usize) -> Hosts {
    let names: Vec<bool> = (0..size).map(|rank| 2 * rank >= size).collect();
    Hosts::new(&names)
}

fn sixteen_shards(size: usize) -> Option<ExactSum> {
    ExactSum::new((0..=size).map(|rank| (rank * 16 / size) as u32).collect())
}

fn entries() -> Vec<Entry> {
    let root = GroupRank(0);
    let mut all = Vec::new();
    for algorithm in Algorithm::ALL {
        all.push(Entry::new(
            "all_reduce",
            algorithm.name(),
            move |rank, n| all_reduce_on(algorithm, rank_of(rank), &two_hosts(n), LEN),
        ));
    }
    for algorithm in Algorithm::ALL {
        all.push(Entry::new("exact_sum", algorithm.name(), move |rank, n| {
            let invalid = || ScheduleError::Invalid {
                operation: "exact_sum",
                problem: "no shard".to_owned(),
            };
            let sum = sixteen_shards(n).ok_or_else(invalid)?;
            exact_sum_on(algorithm, &sum, rank_of(rank), &two_hosts(n), LEN)
        }));
    }
    for algorithm in [Algorithm::Driver, Algorithm::Tree, Algorithm::Direct] {
        all.push(Entry::new("reduce", algorithm.name(), move |rank, n| {
            reduce(algorithm, rank_of(rank), n, root, LEN)
        }));
    }
    for algorithm in [Algorithm::Tree, Algorithm::Direct] {
        all.push(Entry::new("broadcast", algorithm.name(), move |rank, n| {
            broadcast_by(algorithm, rank_of(rank), n, root, LEN)
        }));
    }
    let direct = Algorithm::Direct.name();
    all.push(Entry::new("reduce_scatter", direct, |rank, n| {
        Ok(reduce_scatter(rank, n, LEN / n))
    }));
    all.push(Entry::new("all_gather", direct, |rank, n| {
        Ok(all_gather(rank, &vec![LEN / n; n]))
    }));
    all.push(Entry::new("gather", direct, |rank, n| {
        Ok(gather(rank, 0, &vec![LEN / n; n]))
    }));
    all.push(Entry::new("scatter", direct, |rank, n| {
        Ok(scatter(rank, n, 0, LEN / n))
    }));
    all.push(Entry::new("all_to_all", direct, |rank, n| {
        Ok(all_to_all(rank, n, LEN / n))
    }));
    all.push(Entry::new("barrier", "dissemination", |rank, n| {
        Ok(barrier(rank, n))
    }));
    all
}

/// Bytes that the first of two hosts sends to the other one, in an all-reduce.
fn across(algorithm: Algorithm, size: usize) -> Option<usize> {
    let hosts = two_hosts(size);
    let mut bytes = 0;
    for &rank in hosts.members(0) {
        let schedule = all_reduce_on(algorithm, rank_of(rank), &hosts, LEN).ok()?;
        for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
            if let crate::Transfer::Send { to, region } = transfer
                && hosts.of(to.index()) != 0
            {
                bytes += region.len();
            }
        }
    }
    Some(bytes)
}

const COUNTS_HEAD: &str = "
## What the choice counts

All ranks of an all_reduce on one host together: sums over steps, each step as the most of one rank or, where
more, as the sum of all ranks divided by the cores. Messages and bytes are both sent and received. Between
hosts the busiest host's link counts as well, in its busier direction. The algorithm whose counts, times what
each costs, are least is taken (`CostModel`); a group measures those costs while it joins.

| algorithm | n | cores | rounds | messages | bytes | reduced or copied | scratch |
|---|---|---|---|---|---|---|---|
";

/// What the choice counts for an all-reduce on one host.
fn counts_row(algorithm: Algorithm, size: usize, cores: usize) -> Option<String> {
    let operation = Operation::AllReduce(ReduceOp::Sum);
    let counts = counts(algorithm, &operation, &Hosts::one(size), LEN, 1, cores).ok()?;
    Some(format!(
        "| {algorithm} | {size} | {cores} | {} | {} | {} | {} | {} |\n",
        counts.rounds,
        counts.messages,
        in_buffers(counts.bytes as usize),
        in_buffers(counts.bytes_reduced as usize),
        in_buffers(counts.scratch_bytes as usize),
    ))
}

/// The page `docs/collectives-cost.md`. Pure; the same text on every machine.
#[must_use]
pub fn cost_page() -> String {
    let mut page = HEAD.to_owned();
    let mut before = "";
    for entry in entries() {
        if entry.operation != before {
            before = entry.operation;
            page += &format!(
                "\n## {before}\n\n| operation | algorithm | n | rounds | messages | sent | received | sent by all |\n|---|---|---|---|---|---|---|---|\n"
            );
        }
        page.extend(SIZES.into_iter().filter_map(|size| entry.row(size)));
    }
    page += "\n## Across two hosts\n\nWhat the ranks of one host together send to the other host in an all_reduce.\n\n| algorithm | n = 4 | n = 8 | n = 16 |\n|---|---|---|---|\n";
    for algorithm in Algorithm::ALL {
        let cell = |size| across(algorithm, size).map_or("-".to_owned(), in_buffers);
        page += &format!(
            "| {algorithm} | {} | {} | {} |\n",
            cell(4),
            cell(8),
            cell(16)
        );
    }
    page += COUNTS_HEAD;
    for (size, cores) in [(4, 4), (4, 2), (8, 8), (8, 2)] {
        // On one host the hierarchical algorithm is the direct one.
        let different = Algorithm::ALL
            .into_iter()
            .filter(|a| *a != Algorithm::Hierarchical);
        page.extend(different.filter_map(|algorithm| counts_row(algorithm, size, cores)));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_costs_are_those_of_the_schedules() {
        let documented = include_str!("../../../docs/collectives-cost.md");
        assert!(
            documented == cost_page(),
            "docs/collectives-cost.md is old: cargo run -p ronde-schedule --example cost_page > docs/collectives-cost.md"
        );
        assert!(documented.contains("| all_reduce | ring | 4 | 6 | 6 | 1.5 b | 1.5 b | 6 b |"));
    }
}
