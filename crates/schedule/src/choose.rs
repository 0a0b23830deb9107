//! Which algorithm runs an operation, with the reason: the one that should take the least time.
//!
//! An exact sum has the same bits whatever is chosen. A plain sum of floating-point numbers has not: a
//! group whose costs are measured may choose, and so round, in another way in the next run. Whoever
//! needs the same bits takes the exact sum, or asks for an algorithm by name.

use std::cmp::Ordering;

use ronde_core::{GroupRank, Operation};

use crate::blocks::{SETS, block_len};
use crate::halving_doubling::keeps_tree;
use crate::hosts::Hosts;
use crate::make::{all_reduce_at_once, broadcast_by, exact_sum_at_once, reduce};
use crate::{Algorithm, CostModel, Counts, Schedule, ScheduleError};

/// Of algorithms that should take the same time the first one here is taken.
const ORDER: [Algorithm; 6] = [
    Algorithm::Direct,
    Algorithm::HalvingDoubling,
    Algorithm::Tree,
    Algorithm::Hierarchical,
    Algorithm::Ring,
    Algorithm::Driver,
];

/// Between hosts, of algorithms that take hardly longer than the best, for as many bytes, the one with
/// the fewest messages is taken: messages in each other's way take longer than any model says.
const NEAR: f64 = 1.03;
/// The same within a host, where a fit of some milliseconds is less sharp.
const NEAR_WITHIN: f64 = 1.05;
/// The same from [`LONG_BYTES`] on. Within a host times by most algorithms hardly differ there in
/// anything that is counted. Between hosts the one is taken that stays with its peers: a connection that
/// has rested needs many round trips to come up to its link's rate. Of those it is the hierarchical one,
/// whose ranks exchange all that stays within a host before and after, not between.
const NEAR_LONG: f64 = 1.1;
const LONG_BYTES: f64 = 1e6;
/// Within a host operands from so many bytes on take longer to send than to wait for. Of algorithms that take
/// about as long, in some milliseconds in which the ranks may have shared a core, the one is better in which
/// fewer bytes come one after the other.
const MIDDLE_BYTES: f64 = 48e3;
const NEAR_MIDDLE: f64 = 1.1;
/// Scratch that stays in the cache of a core, beside what else is there. Where one fits, the least is
/// best; else the fewest rounds, in each of which ranks that share cores wait for their turn.
const CACHED_BYTES: f64 = 384e3;
/// Slices differ by some elements, so that equal counts of bytes are not quite.
const EQUAL: f64 = 1.001;

/// An algorithm is not chosen by itself where it needs more scratch than so many operands ...
const SCRATCH_MAX: f64 = 2.0;
/// ... and than so many bytes.
const SCRATCH_BYTES: f64 = 4e6;

/// What was chosen, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What is to run.
    pub algorithm: Algorithm,
    /// Why, in words: `direct 182 us, next halving_doubling 240 us (measured)`.
    pub reason: String,
    /// Seconds that it should take; `None` for an operation that has one schedule.
    pub seconds: Option<f64>,
}

/// An algorithm, what it makes the ranks do, and the seconds that should take.
type Timed = (Algorithm, Counts, f64);

/// Whether several algorithms can run an operation.
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

/// Why `algorithm` cannot run `operation` on these ranks; `None` when it can.
#[must_use]
pub fn refusal(algorithm: Algorithm, operation: &Operation, hosts: &Hosts) -> Option<String> {
    match (operation, algorithm) {
        (Operation::ExactSum(_), Algorithm::Ring) => {
            Some("a ring adds each slice in another order and cannot keep that of the tree".into())
        }
        (Operation::ExactSum(sum), Algorithm::HalvingDoubling) if !keeps_tree(sum) => Some(
            "the ranks do not bring one subtree each whose sums with their neighbours' are nodes \
             of the tree"
                .into(),
        ),
        (Operation::ExactSum(_), Algorithm::Hierarchical) if !hosts.are_contiguous() => Some(
            "the ranks of a host do not follow each other, so that their shards are no run".into(),
        ),
        (
            Operation::Reduce { .. },
            Algorithm::Ring | Algorithm::HalvingDoubling | Algorithm::Hierarchical,
        ) => Some("a reduction to one rank is by driver, tree or direct".into()),
        (Operation::Broadcast { .. }, Algorithm::Direct | Algorithm::Tree) => None,
        (Operation::Broadcast { .. }, _) => Some("a broadcast is by tree or direct".into()),
        _ => None,
    }
}

/// What `operation` on operands of `len` elements makes all ranks do by `algorithm`. Of operands in
/// [`crate::blocks`] it counts the bytes, and the messages and rounds of all at once: those of blocks are
/// under way together, so that they do not add up to waiting.
///
/// Cost: makes the schedules of all ranks, some microseconds for few ranks.
///
/// # Errors
/// [`ScheduleError::Refused`] when the algorithm cannot; [`ScheduleError::Invalid`] for an operation
/// that has one schedule, or of another group.
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
                    problem: "this operation has one schedule".to_owned(),
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

/// Seconds that `operation` on operands of so many bytes should take by `algorithm`, which makes the ranks do
/// what `counts` says.
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

/// [`choose_on`] for ranks of one host, with the default costs.
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

/// The algorithm for an operation on operands of `len` elements, why, and how long it should take.
///
/// A preferred algorithm is taken where it can run the operation; else the one with the least time by
/// the model, of those that need no more scratch than two operands. Of those that are about as good and
/// move no more bytes one is taken for what no model says: the one with the fewest messages; between
/// hosts, of long operands, the one that turns to other peers the least often; of long operands within
/// a host the one with the least scratch where that stays in the cache, or else the
/// fewest rounds.
/// Operations other than reductions and broadcasts have one schedule each and answer `direct`. All
/// ranks must pass the same arguments; then they get the same answer, bit for bit.
///
/// Cost: that of [`counts`] for each algorithm. Callers that ask often remember the answer.
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
        return only("this operation has one schedule");
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
                    reason: format!("{algorithm} was asked for"),
                    seconds: timed(algorithm).map(|(_, _, seconds)| seconds),
                };
            }
            Some(reason) => instead = format!("{algorithm} was asked for, but {reason}; "),
        }
    }
    let most = (SCRATCH_MAX * (len * element_bytes) as f64).max(SCRATCH_BYTES);
    let mut able: Vec<Timed> = ORDER
        .into_iter()
        .filter(|algorithm| *algorithm != Algorithm::Hierarchical || hosts.are_nested())
        .filter_map(timed)
        .filter(|(algorithm, counts, _)| {
            *algorithm == Algorithm::Direct || counts.scratch_bytes <= most
        })
        .collect();
    able.sort_by(|a, b| a.2.total_cmp(&b.2));
    let Some(&best) = able.first() else {
        return only("no algorithm can");
    };
    let taste = Taste::of(&best.1, len * element_bytes);
    let near = able.iter().filter(|other| taste.is_near(other, &best));
    let chosen = near.min_by(|a, b| taste.order(a, b));
    let &(algorithm, _, seconds) = chosen.unwrap_or(&best);
    Decision {
        algorithm,
        reason: instead + &words(model, algorithm, taste, &able),
        seconds: Some(seconds),
    }
}

/// What tells algorithms apart that are about as good by the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taste {
    /// Bytes cross between hosts.
    Across,
    /// Many do.
    LongAcross,
    Short,
    Middle,
    Long,
}

impl Taste {
    fn of(best: &Counts, bytes: usize) -> Self {
        match bytes as f64 {
            LONG_BYTES.. if best.rounds_across > 0.0 => Self::LongAcross,
            _ if best.rounds_across > 0.0 => Self::Across,
            LONG_BYTES.. => Self::Long,
            MIDDLE_BYTES.. => Self::Middle,
            _ => Self::Short,
        }
    }

    /// Whether an algorithm is about as good as the best one and moves no more bytes.
    fn is_near(self, other: &Timed, best: &Timed) -> bool {
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

    /// Which of two that are about as good comes first.
    fn order(self, a: &Timed, b: &Timed) -> Ordering {
        let is_flat = |timed: &Timed| timed.0 != Algorithm::Hierarchical;
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

    fn told(self) -> &'static str {
        match self {
            Self::Across | Self::Short => "with fewer messages than",
            Self::LongAcross => "which keeps more to its peers, or with less scratch, than",
            Self::Middle => "with fewer bytes one after the other or fewer messages than",
            Self::Long => "with less scratch or fewer rounds than",
        }
    }
}

/// The chosen one and the next best with their times, and where those come from.
fn words(model: &CostModel, chosen: Algorithm, taste: Taste, able: &[Timed]) -> String {
    let told = |&(algorithm, _, seconds): &Timed| match seconds * 1e6 {
        micros if micros < 9_999.5 => format!("{algorithm} {micros:.0} us"),
        micros => format!("{algorithm} {:.1} ms", micros / 1e3),
    };
    let source = if model.is_measured {
        "measured"
    } else {
        "default costs"
    };
    let mine = able.iter().find(|timed| timed.0 == chosen).map(told);
    let other = able.iter().find(|timed| timed.0 != chosen);
    let other = other.map(|other| match able.first() {
        Some(best) if best.0 == chosen => format!(", next {}", told(other)),
        _ => format!(", {} {}", taste.told(), told(other)),
    });
    let (mine, other) = (mine.unwrap_or_default(), other.unwrap_or_default());
    format!("{mine}{other} ({source})")
}
