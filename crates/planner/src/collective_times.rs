//! [`CollectiveTimes`]: the predicted times of the collectives of a step, for groups of any size.
//!
//! In groups of up to [`COUNTED_MAX`] ranks, messages and bytes are counted in the schedules of all ranks, and the algorithm
//! is chosen as a run does it. In larger groups, with equally many ranks on all hosts, they follow from formulas that
//! the tests compare with the counts.

use std::cell::RefCell;
use std::collections::HashMap;

use ronde_core::exact::ExactSum;
use ronde_core::{GroupRank, Operation};
use ronde_schedule::{
    Algorithm, CostModel, Counts, Hosts, all_gather, choose_on, exact_sum_scatter,
};

use crate::costs::LinkCosts;

/// The largest group whose schedules are counted.
pub const COUNTED_MAX: usize = 64;

const F32_BYTES: usize = 4;

/// A time, and the part of it in which a core of the rank works.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CollectiveTime {
    /// The seconds from the call to the result.
    pub seconds: f64,
    /// The seconds in which a core of the rank copies, adds, sends and receives.
    pub core_s: f64,
}

/// The ranks of a group on their hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupShape {
    /// The host of each rank, ascending.
    pub hosts: Vec<usize>,
    /// The number of groups that use the link of a host at the same time.
    pub sharing: usize,
}

impl GroupShape {
    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the number of hosts and the most ranks on one of them.
    fn hosts_and_ranks(&self) -> (usize, usize) {
        let of_host = self.hosts.chunk_by(|a, b| a == b);
        let most = of_host.clone().map(<[usize]>::len).max().unwrap_or(1);
        (of_host.count().max(1), most)
    }
}

/// The operation on an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Collective {
    /// All ranks receive the exact sum.
    Sum,
    /// Each rank receives its slice of the exact sum.
    Scatter,
    /// Each rank receives the slices of all.
    Gather,
}

/// The predicted times of the collectives of a step.
#[derive(Debug)]
pub struct CollectiveTimes {
    costs: LinkCosts,
    /// The algorithm of sums, if the run names one.
    algorithm: Option<Algorithm>,
    known: RefCell<HashMap<Question, CollectiveTime>>,
}

/// A collective of a group, by everything that its time depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    collective: Collective,
    hosts: Vec<usize>,
    sharing: usize,
    shards: u32,
    elements: usize,
}

impl CollectiveTimes {
    /// Creates the times for links. Sums use an algorithm if one is named and can run them, otherwise the fastest one; in groups
    /// whose schedules are not counted, always the fastest one.
    #[must_use]
    pub fn new(costs: LinkCosts, algorithm: Option<Algorithm>) -> Self {
        Self {
            costs,
            algorithm,
            known: RefCell::default(),
        }
    }

    /// Returns the time of the exact sum of a number of elements over all ranks.
    #[must_use]
    pub fn exact_sum(&self, group: &GroupShape, sum: &ExactSum, elements: usize) -> CollectiveTime {
        self.look_up(Collective::Sum, group, Some(sum), elements)
    }

    /// Returns the time in which each rank receives its slice of the exact sum.
    #[must_use]
    pub fn scatter(&self, group: &GroupShape, sum: &ExactSum, elements: usize) -> CollectiveTime {
        self.look_up(Collective::Scatter, group, Some(sum), elements)
    }

    /// Returns the time in which all ranks receive the slices of all.
    #[must_use]
    pub fn gather(&self, group: &GroupShape, elements: usize) -> CollectiveTime {
        self.look_up(Collective::Gather, group, None, elements)
    }

    fn look_up(
        &self,
        collective: Collective,
        group: &GroupShape,
        sum: Option<&ExactSum>,
        elements: usize,
    ) -> CollectiveTime {
        if group.size() < 2 || elements == 0 {
            return CollectiveTime::default();
        }
        let question = Question {
            collective,
            hosts: group.hosts.clone(),
            sharing: group.sharing,
            shards: sum.map_or(0, ExactSum::shards),
            elements,
        };
        if let Some(known) = self.known.borrow().get(&question) {
            return *known;
        }
        let mut model = self.costs.collectives;
        model.byte_across_s *= group.sharing.max(1) as f64;
        let counted = match group.size() <= COUNTED_MAX {
            true => counted((&model, self.algorithm), collective, group, sum, elements),
            false => None,
        };
        let found = counted.unwrap_or_else(|| {
            let subtrees = sum.map_or(1, |sum| sum.nodes(GroupRank(0)).len());
            by_formula(&model, collective, group, subtrees, elements)
        });
        self.known.borrow_mut().insert(question, found);
        found
    }
}

/// Returns the time of an operation with these counts.
fn time(model: &CostModel, counts: &Counts) -> CollectiveTime {
    CollectiveTime {
        seconds: model.seconds(counts),
        core_s: model.message_s * counts.messages
            + model.byte_s * counts.bytes
            + model.byte_reduced_s * counts.bytes_reduced,
    }
}

/// Returns the time from the schedules of all ranks; `None` if there are none for such a group.
fn counted(
    (model, preferred): (&CostModel, Option<Algorithm>),
    collective: Collective,
    group: &GroupShape,
    sum: Option<&ExactSum>,
    elements: usize,
) -> Option<CollectiveTime> {
    let hosts = Hosts::new(&group.hosts);
    let size = group.size();
    let lens: Vec<usize> = (0..size)
        .map(|rank| elements * (rank + 1) / size - elements * rank / size)
        .collect();
    let counts = match (collective, sum) {
        (Collective::Sum, Some(sum)) => {
            let operation = Operation::ExactSum(sum.clone());
            let decision = choose_on(model, preferred, &operation, &hosts, elements, F32_BYTES);
            let algorithm = decision.algorithm;
            ronde_schedule::choose::counts(
                algorithm,
                &operation,
                &hosts,
                elements,
                F32_BYTES,
                model.cores,
            )
            .ok()?
        }
        (Collective::Scatter, Some(sum)) => {
            let ranks = 0..size as u32;
            let schedules = ranks.map(|rank| exact_sum_scatter(sum, GroupRank(rank), &lens));
            let schedules: Vec<_> = schedules.collect::<Result<_, _>>().ok()?;
            Counts::of(&schedules, &hosts, F32_BYTES, model.cores).ok()?
        }
        _ => {
            let schedules: Vec<_> = (0..size).map(|rank| all_gather(rank, &lens)).collect();
            Counts::of(&schedules, &hosts, F32_BYTES, model.cores).ok()?
        }
    };
    Some(time(model, &counts))
}

/// Returns the time by the formulas of direct exchange and, for sums, also of the hierarchical algorithm and of recursive
/// halving and doubling, whichever is shortest.
fn by_formula(
    model: &CostModel,
    collective: Collective,
    group: &GroupShape,
    subtrees: usize,
    elements: usize,
) -> CollectiveTime {
    let (hosts, ranks) = group.hosts_and_ranks();
    let form = LargeGroup {
        hosts: hosts as f64,
        ranks: ranks as f64,
        subtrees: subtrees as f64,
        bytes: (elements * F32_BYTES) as f64,
        // The ranks of a host share its cores.
        shared: (ranks as f64 / model.cores as f64).max(1.0),
    };
    let mut candidates = vec![match collective {
        Collective::Sum => added(form.direct_round(true), form.direct_round(false)),
        Collective::Scatter => form.direct_round(true),
        Collective::Gather => form.direct_round(false),
    }];
    if collective == Collective::Sum {
        candidates.push(form.hierarchical());
        if subtrees == 1 && hosts.is_power_of_two() && ranks.is_power_of_two() {
            candidates.push(form.halving_doubling());
        }
    }
    let times = candidates.iter().map(|counts| time(model, counts));
    times
        .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
        .unwrap_or_default()
}

fn added(a: Counts, b: Counts) -> Counts {
    Counts {
        rounds: a.rounds + b.rounds,
        rounds_across: a.rounds_across + b.rounds_across,
        messages: a.messages + b.messages,
        bytes: a.bytes + b.bytes,
        bytes_reduced: a.bytes_reduced + b.bytes_reduced,
        bytes_across: a.bytes_across + b.bytes_across,
        scratch_bytes: a.scratch_bytes.max(b.scratch_bytes),
        turns_across: 0.0,
    }
}

/// A group with equally many ranks on each host.
struct LargeGroup {
    hosts: f64,
    ranks: f64,
    subtrees: f64,
    bytes: f64,
    shared: f64,
}

impl LargeGroup {
    fn size(&self) -> f64 {
        self.hosts * self.ranks
    }

    /// Returns the counts of a round in which every rank sends a part to every other one: of its subtrees, which are added, or
    /// of its slice of the result.
    fn direct_round(&self, adds: bool) -> Counts {
        let (n, others) = (self.size(), self.size() - 1.0);
        let parts = if adds { self.subtrees } else { 1.0 };
        let is_across = self.hosts > 1.0;
        let sent = parts * self.bytes * others / n;
        Counts {
            rounds: if is_across { 0.0 } else { 1.0 },
            rounds_across: if is_across { 1.0 } else { 0.0 },
            messages: 2.0 * parts * others * self.shared,
            bytes: 2.0 * sent * self.shared,
            bytes_reduced: if adds { sent * self.shared } else { 0.0 },
            bytes_across: parts * self.ranks * self.bytes / n * (n - self.ranks),
            ..Counts::default()
        }
    }

    /// Returns the counts of a sum within each host, then between them, and the way back.
    fn hierarchical(&self) -> Counts {
        let within = Self {
            hosts: 1.0,
            ..*self
        };
        let both = added(within.direct_round(true), within.direct_round(false));
        let slice = self.bytes / self.ranks;
        let (h, others) = (self.hosts, self.hosts - 1.0);
        let sent = slice * others / h;
        let across = Counts {
            rounds_across: 2.0,
            messages: 4.0 * others * self.shared,
            bytes: 4.0 * sent * self.shared,
            bytes_reduced: sent * self.shared,
            bytes_across: 2.0 * self.bytes * others / h,
            ..Counts::default()
        };
        added(both, across)
    }

    /// Returns the counts of recursive halving and doubling, neighbours first.
    fn halving_doubling(&self) -> Counts {
        let (within, across) = (self.ranks.log2(), self.hosts.log2());
        let sent = 2.0 * self.bytes * (self.size() - 1.0) / self.size();
        Counts {
            rounds: 2.0 * within,
            rounds_across: 2.0 * across,
            messages: 4.0 * (within + across) * self.shared,
            bytes: 2.0 * sent * self.shared,
            bytes_reduced: sent / 2.0 * self.shared,
            bytes_across: 2.0 * self.bytes * (self.hosts - 1.0) / self.hosts,
            ..Counts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::WorldSize;
    use ronde_core::shards::ShardPlan;
    use ronde_schedule::exact_sum_on;

    use super::*;
    use crate::cluster::HostLink;

    fn sum(size: usize) -> ExactSum {
        let size = WorldSize::new(size as u32).unwrap();
        ShardPlan::new(size.get(), size).unwrap().exact_sum()
    }

    fn shape(hosts: usize, ranks: usize) -> GroupShape {
        GroupShape {
            hosts: (0..hosts * ranks).map(|rank| rank / ranks).collect(),
            sharing: 1,
        }
    }

    fn model(cores: usize) -> CostModel {
        CostModel {
            cores,
            ..CostModel::default()
        }
    }

    #[test]
    fn formulas_agree_with_the_schedules() {
        const LEN: usize = 1 << 16;
        for (hosts, ranks) in [(1, 4), (2, 4), (4, 2), (8, 1), (4, 8), (8, 4)] {
            let (group, sum) = (shape(hosts, ranks), sum(hosts * ranks));
            let form = LargeGroup {
                hosts: hosts as f64,
                ranks: ranks as f64,
                subtrees: 1.0,
                bytes: (LEN * 4) as f64,
                shared: (ranks as f64 / 4.0).max(1.0),
            };
            let on = Hosts::new(&group.hosts);
            let each = [
                (
                    Algorithm::Direct,
                    added(form.direct_round(true), form.direct_round(false)),
                ),
                (Algorithm::Hierarchical, form.hierarchical()),
                (Algorithm::HalvingDoubling, form.halving_doubling()),
            ];
            for (algorithm, found) in each {
                if algorithm == Algorithm::Hierarchical && (hosts == 1 || ranks == 1) {
                    continue;
                }
                let all = (0..group.size() as u32)
                    .map(|rank| exact_sum_on(algorithm, &sum, GroupRank(rank), &on, LEN).unwrap());
                let counts = Counts::of(&all.collect::<Vec<_>>(), &on, 4, 4).unwrap();
                let close = |a: f64, b: f64| (a - b).abs() <= 0.02 * b.max(1.0);
                let name =
                    format!("{algorithm} on {hosts} x {ranks}: {found:?}, counted {counts:?}");
                assert!(close(found.bytes_across, counts.bytes_across), "{name}");
                assert!(close(found.messages, counts.messages), "{name}");
                assert!(close(found.rounds_across, counts.rounds_across), "{name}");
                // Pieces of long messages overlap.
                assert!(
                    (0.8..1.25).contains(&(found.bytes / counts.bytes)),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn times_grow_with_hosts_and_with_sharing() {
        let link = HostLink {
            bytes_per_s: 1e8,
            latency_s: 1e-4,
        };
        let times = CollectiveTimes::new(LinkCosts::new(model(8), 1e-5, 1e-10, link), None);
        let seconds =
            |group: &GroupShape| times.exact_sum(group, &sum(group.size()), 1 << 20).seconds;
        let within = seconds(&shape(1, 8));
        let across = seconds(&shape(2, 4));
        let shared = GroupShape {
            sharing: 4,
            ..shape(2, 4)
        };
        assert!(across > 2.0 * within, "{within} {across}");
        assert!(
            seconds(&shared) > 3.0 * across,
            "{across} {}",
            seconds(&shared)
        );
        assert_eq!(seconds(&shape(1, 1)), 0.0);
        // 4 MiB pass each link twice at 100 MB/s, less the own half.
        assert!(across > 0.04, "{across}");
        let large = seconds(&shape(512, 8));
        assert!(large > across && large < 10.0 * across, "{across} {large}");
        // Slices are gathered by direct exchange only, so each passes the link once for every rank of the other host.
        let gather = times.gather(&shape(2, 4), 1 << 20).seconds;
        assert!(
            gather > across && gather < 3.0 * across,
            "{gather} {across}"
        );
        let scatter = times.scatter(&shape(2, 4), &sum(8), 1 << 20).seconds;
        assert!(
            (0.9..1.1).contains(&(scatter / gather)),
            "{scatter} {gather}"
        );
    }
}
