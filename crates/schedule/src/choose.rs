//! [`choose`]: selects the algorithm with the least predicted time for an operation, with a reason.
//!
//! The bits of an exact sum do not depend on the choice. Those of a plain floating-point sum do: a group that
//! measures its costs may choose another algorithm in the next run, which rounds differently. If you need the
//! same bits, use the exact sum or name an algorithm.

use std::cmp::Ordering;

use ronde_core::{GroupRank, Operation};

use crate::algorithm::Algorithm;
use crate::blocks::{SETS, block_len};
use crate::cost_model::CostModel;
use crate::counts::Counts;
use crate::error::ScheduleError;
use crate::hosts::Hosts;
use crate::make::{all_reduce_at_once, broadcast_by, exact_sum_at_once, reduce, refusal};
use crate::schedule::Schedule;

/// The order of preference among algorithms with equal predicted times.
const ORDER: [Algorithm; 6] = [
    Algorithm::Direct,
    Algorithm::HalvingDoubling,
    Algorithm::Tree,
    Algorithm::Hierarchical,
    Algorithm::Ring,
    Algorithm::Driver,
];

/// Factor on the best predicted time between hosts. Among algorithms within this factor that move no more bytes, the
/// one with the fewest messages is chosen, because the model does not include the contention of messages.
const NEAR: f64 = 1.03;
/// The same factor within a host, where a fit over a few milliseconds is less precise.
const NEAR_WITHIN: f64 = 1.05;
/// The same factor from [`LONG_BYTES`] on. Within a host, most algorithms have nearly equal counts there.
/// Between hosts, the algorithm that changes peers least often is chosen, because an idle connection needs many
/// round trips to reach its link's rate again. Among several of those it is the hierarchical one, whose ranks
/// finish the exchange within a host before and after the exchange between hosts.
const NEAR_LONG: f64 = 1.1;
const LONG_BYTES: f64 = 1e6;
/// From this operand size on, transfer time exceeds waiting time within a host. Among algorithms with similar times
/// (measured over a few milliseconds, in which ranks may have shared a core), the one with fewer sequential bytes
/// is better.
const MIDDLE_BYTES: f64 = 48e3;
const NEAR_MIDDLE: f64 = 1.1;
/// The amount of scratch memory that stays in the cache of a core. If an algorithm fits, the one with the least
/// scratch is best; otherwise the one with the fewest rounds, because ranks that share cores wait in each round.
const CACHED_BYTES: f64 = 384e3;
/// Tolerance for equal numbers of bytes: slices differ by a few elements.
const EQUAL: f64 = 1.001;

/// The largest scratch memory, in operands, of an algorithm that is chosen automatically ...
const SCRATCH_MAX: f64 = 2.0;
/// ... unless it needs at most this many bytes.
const SCRATCH_BYTES: f64 = 4e6;

/// A chosen algorithm and the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The algorithm to run.
    pub algorithm: Algorithm,
    /// The reason: `direct 182 us, next halving_doubling 240 us (measured)`.
    pub reason: String,
    /// The predicted time in seconds; `None` for an operation with a single schedule.
    pub seconds: Option<f64>,
}

/// An algorithm, its counts and its predicted time in seconds.
type Candidate = (Algorithm, Counts, f64);

/// Returns whether several algorithms can run an operation.
#[must_use]
pub fn has_several(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::AllReduce(_)
            | Operation::ExactSum(_)
            | Operation::Reduce { .. }
            | Operation::Broadcast { .. }
    )
}

/// Counts the messages and bytes of all ranks for `operation` on operands of `len` elements with `algorithm`. For
/// operands in [`crate::blocks`], messages and rounds are counted as if the operand were one block: blocks are
/// in flight at the same time, so their waits do not add up.
///
/// Cost: creates the schedules of all ranks, which takes some microseconds for few ranks.
///
/// # Errors
/// [`ScheduleError::Refused`] if the algorithm cannot run the operation; [`ScheduleError::Invalid`] for an
/// operation with a single schedule, or of another group.
pub fn counts(
    algorithm: Algorithm,
    operation: &Operation,
    hosts: &Hosts,
    len: usize,
    element_bytes: usize,
    cores: usize,
) -> Result<Counts, ScheduleError> {
    let size = hosts.size();
    let all = |len: usize| {
        let one = |rank: u32| {
            let rank = GroupRank(rank);
            match operation {
                Operation::AllReduce(_) => all_reduce_at_once(algorithm, rank, hosts, len),
                Operation::ExactSum(sum) => exact_sum_at_once(algorithm, sum, rank, hosts, len),
                Operation::Reduce { root, .. } => reduce(algorithm, rank, size, *root, len),
                Operation::Broadcast { root } => broadcast_by(algorithm, rank, size, *root, len),
                _ => Err(ScheduleError::Invalid {
                    operation: "counting",
                    problem: "this operation has only one schedule".to_owned(),
                }),
            }
        };
        let schedules: Result<Vec<Schedule>, _> = (0..size as u32).map(one).collect();
        Counts::of(&schedules?, hosts, element_bytes, cores)
    };
    let mut counts = all(len)?;
    let block = match operation {
        Operation::AllReduce(_) | Operation::ExactSum(_) => block_len(algorithm, hosts, len),
        _ => len,
    };
    if block < len {
        counts.scratch_bytes = SETS as f64 * all(block)?.scratch_bytes;
    }
    Ok(counts)
}

/// Returns the predicted time in seconds of `operation` on operands of `bytes` bytes with `algorithm`, whose counts
/// are `counts`.
#[must_use]
pub fn seconds_of(
    model: &CostModel,
    operation: &Operation,
    algorithm: Algorithm,
    counts: &Counts,
    bytes: usize,
) -> f64 {
    match operation {
        Operation::AllReduce(_) | Operation::ExactSum(_) => {
            model.seconds_by(algorithm, bytes, counts)
        }
        _ => model.seconds(counts),
    }
}

/// Calls [`choose_on`] for ranks of one host, with the default costs.
#[must_use]
pub fn choose(
    preferred: Option<Algorithm>,
    operation: &Operation,
    size: usize,
    len: usize,
    element_bytes: usize,
) -> Decision {
    let (model, hosts) = (CostModel::default(), Hosts::one(size));
    choose_on(&model, preferred, operation, &hosts, len, element_bytes)
}

/// Chooses the algorithm for an operation on operands of `len` elements; returns it with the reason and the predicted
/// time.
///
/// A preferred algorithm is used if it can run the operation. Otherwise the algorithm with the least predicted
/// time is chosen, among those that need no more scratch memory than two operands. Ties between algorithms with
/// similar times that move no more bytes are decided by properties that the model does not include: the fewest
/// messages; between hosts, for long operands, the fewest changes of peers; within a host, for long operands, the
/// least scratch memory if it stays in the cache, otherwise the fewest rounds.
/// Operations other than reductions and broadcasts have a single schedule; the result is then `direct`. All
/// ranks must pass the same arguments and then get the same result, bit for bit.
///
/// Cost: that of [`counts`] for each algorithm. Frequent callers should cache the result.
#[must_use]
pub fn choose_on(
    model: &CostModel,
    preferred: Option<Algorithm>,
    operation: &Operation,
    hosts: &Hosts,
    len: usize,
    element_bytes: usize,
) -> Decision {
    let only = |reason: &str| Decision {
        algorithm: Algorithm::Direct,
        reason: reason.to_owned(),
        seconds: None,
    };
    if !has_several(operation) {
        return only("this operation has only one schedule");
    }
    if hosts.size() <= 1 {
        return only("a group of one sends nothing");
    }
    let timed = |algorithm: Algorithm| {
        let counts = counts(algorithm, operation, hosts, len, element_bytes, model.cores).ok()?;
        let seconds = seconds_of(model, operation, algorithm, &counts, len * element_bytes);
        Some((algorithm, counts, seconds))
    };
    let mut instead = String::new();
    if let Some(algorithm) = preferred {
        match refusal(algorithm, operation, hosts) {
            None => {
                return Decision {
                    algorithm,
                    reason: format!("{algorithm} was requested"),
                    seconds: timed(algorithm).map(|(_, _, seconds)| seconds),
                };
            }
            Some(reason) => instead = format!("{algorithm} was requested, but {reason}; "),
        }
    }
    let most = (SCRATCH_MAX * (len * element_bytes) as f64).max(SCRATCH_BYTES);
    let mut able: Vec<Candidate> = ORDER
        .into_iter()
        .filter(|algorithm| *algorithm != Algorithm::Hierarchical || hosts.are_nested())
        .filter_map(timed)
        .filter(|(algorithm, counts, _)| {
            *algorithm == Algorithm::Direct || counts.scratch_bytes <= most
        })
        .collect();
    able.sort_by(|a, b| a.2.total_cmp(&b.2));
    let Some(&best) = able.first() else {
        return only("no algorithm can run it");
    };
    let rule = TieBreak::of(&best.1, len * element_bytes);
    let near = able.iter().filter(|other| rule.is_near(other, &best));
    let chosen = near.min_by(|a, b| rule.order(a, b));
    let &(algorithm, _, seconds) = chosen.unwrap_or(&best);
    Decision {
        algorithm,
        reason: instead + &reason(model, algorithm, rule, &able),
        seconds: Some(seconds),
    }
}

/// The rule that decides between algorithms with similar predicted times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TieBreak {
    /// Bytes cross between hosts.
    Across,
    /// Long operands cross between hosts.
    LongAcross,
    Short,
    Middle,
    Long,
}

impl TieBreak {
    fn of(best: &Counts, bytes: usize) -> Self {
        match bytes as f64 {
            LONG_BYTES.. if best.rounds_across > 0.0 => Self::LongAcross,
            _ if best.rounds_across > 0.0 => Self::Across,
            LONG_BYTES.. => Self::Long,
            MIDDLE_BYTES.. => Self::Middle,
            _ => Self::Short,
        }
    }

    /// Returns whether an algorithm's predicted time is close to the best one and it moves no more bytes.
    fn is_near(self, other: &Candidate, best: &Candidate) -> bool {
        let (counts, least) = (&other.1, &best.1);
        let near = match self {
            Self::Across => NEAR,
            Self::Short => NEAR_WITHIN,
            Self::Middle => NEAR_MIDDLE,
            Self::Long | Self::LongAcross => NEAR_LONG,
        };
        let reduces_more = counts.bytes_reduced > EQUAL * least.bytes_reduced;
        other.2 <= near * best.2
            && counts.bytes <= EQUAL * least.bytes
            && counts.bytes_across <= EQUAL * least.bytes_across
            && !(self == Self::Across && reduces_more)
    }

    /// Compares two algorithms with similar times; the smaller one is preferred.
    fn order(self, a: &Candidate, b: &Candidate) -> Ordering {
        let is_flat = |timed: &Candidate| timed.0 != Algorithm::Hierarchical;
        let flat = is_flat(a).cmp(&is_flat(b));
        let (a, b) = (&a.1, &b.1);
        let messages = a.messages.total_cmp(&b.messages);
        let rounds = a.rounds.total_cmp(&b.rounds);
        let scratch = a.scratch_bytes.total_cmp(&b.scratch_bytes);
        let is_cached = |counts: &Counts| counts.scratch_bytes <= CACHED_BYTES;
        match self {
            Self::Across => messages,
            Self::LongAcross => {
                let turns = a.turns_across.total_cmp(&b.turns_across);
                turns.then(flat).then(scratch)
            }
            Self::Short => messages.then(a.bytes_reduced.total_cmp(&b.bytes_reduced)),
            Self::Middle if a.bytes > EQUAL * b.bytes => Ordering::Greater,
            Self::Middle if b.bytes > EQUAL * a.bytes => Ordering::Less,
            Self::Middle => messages.then(scratch),
            Self::Long => match (is_cached(a), is_cached(b)) {
                (true, true) => scratch,
                (false, false) => rounds.then(scratch),
                (cached, _) => (!cached).cmp(&cached),
            },
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Across | Self::Short => "with fewer messages than",
            Self::LongAcross => "with fewer changes of peers or less scratch than",
            Self::Middle => "with fewer sequential bytes or fewer messages than",
            Self::Long => "with less scratch or fewer rounds than",
        }
    }
}

/// Returns the reason of a choice: the chosen algorithm and the next best one with their times and the source of the
/// costs.
fn reason(model: &CostModel, chosen: Algorithm, rule: TieBreak, able: &[Candidate]) -> String {
    let timed = |&(algorithm, _, seconds): &Candidate| match seconds * 1e6 {
        micros if micros < 9_999.5 => format!("{algorithm} {micros:.0} us"),
        micros => format!("{algorithm} {:.1} ms", micros / 1e3),
    };
    let source = if model.is_measured {
        "measured"
    } else {
        "default costs"
    };
    let mine = able
        .iter()
        .find(|candidate| candidate.0 == chosen)
        .map(timed);
    let other = able.iter().find(|candidate| candidate.0 != chosen);
    let other = other.map(|other| match able.first() {
        Some(best) if best.0 == chosen => format!(", next {}", timed(other)),
        _ => format!(", {} {}", rule.describe(), timed(other)),
    });
    let (mine, other) = (mine.unwrap_or_default(), other.unwrap_or_default());
    format!("{mine}{other} ({source})")
}
