//! [`CalibrationPlanner`]: decides which operation is measured next, and when to stop. Pure: time is an argument.
//!
//! First one algorithm climbs from short operands to long ones, as long as an operation takes only a small
//! part of the time. That warms up memory and connections. Then all algorithms are measured from that
//! length downwards, repeatedly within a host: there, their own times decide between algorithms with the
//! same counts. Each then runs several times in a row, and the first runs are discarded, because a rank that
//! finished early with one algorithm waits in the next one for the ranks that did not.
//!
//! Links between hosts may pass the first bytes above their sustained rate. There the climb continues, in
//! separate time, until two consecutive operations take the same time per byte; its earlier measurements are
//! discarded. Then short operands are measured, before the links have been idle, and the rest after them.

use std::collections::VecDeque;
use std::time::Duration;

use ronde_schedule::{Algorithm, CostSample, Counts, Timing};

/// Lengths of the measured operations in 8-byte words; the first is replaced by the minimum length.
const LENS: [usize; 8] = [0, 512, 2048, 8192, 32 << 10, 128 << 10, 512 << 10, 1 << 20];
const WORD_BYTES: usize = 8;
/// Operands above this level are only measured between hosts.
const LEVEL_WITHIN: usize = 5;
/// Up to this level an operation takes hardly longer than a shorter one.
const SHORT_LEVEL: usize = 1;
/// The algorithms in the order in which they are measured; the first one climbs.
const ORDER: [Algorithm; 6] = [
    Algorithm::HalvingDoubling,
    Algorithm::Tree,
    Algorithm::Direct,
    Algorithm::Hierarchical,
    Algorithm::Driver,
    Algorithm::Ring,
];
/// Number of these algorithms that are measured with long operands first.
const FIRST: usize = 4;
/// Number of runs of the shortest operation after the first one, which is not counted.
const WAKING: usize = 3;
/// Part of the time that the next operation of the climb may take.
const CLIMB: f64 = 1.0 / 8.0;
/// Time of the climb between hosts, as a multiple of the time for everything after it: to longer
/// operands, and until their rate is found.
const CLIMB_ACROSS: f64 = 8.0;
const SETTLE_ACROSS: f64 = 24.0;
/// Maximum number of operations in that climb.
const CLIMBED_MAX: usize = 16;
/// The rate of links is settled when two consecutive operations differ by no more than this factor.
const SETTLED: f64 = 1.2;
/// Part of the remaining time that an operation on a long operand may take.
const SHARE: f64 = 1.0 / 3.0;
/// Number of times that everything is measured again, between hosts and within one.
const PASSES: usize = 3;
const PASSES_WITHIN: usize = 4;
/// Number of runs in a row within a host, and how many of them count: while all algorithms at this
/// length take no more than a part of the time, and otherwise.
const RUN: (usize, usize) = (5, 3);
const SHORT_RUN: (usize, usize) = (2, 1);
const RUN_PART: f64 = 1.0 / 4.0;
/// Time reserved for sending the costs, in operations of the shortest length.
const END: f64 = 2.0;

/// One operation: an algorithm on an operand of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrialOperation {
    pub(super) algorithm: Algorithm,
    /// Index of the operand's length.
    pub(super) level: usize,
}

impl TrialOperation {
    /// Encodes the operation as a nonzero word.
    pub(super) fn encode(self) -> i64 {
        let algorithm = Algorithm::ALL.iter().position(|a| *a == self.algorithm);
        1 + algorithm.unwrap_or(0) as i64 + 16 * self.level as i64
    }

    pub(super) fn decode(word: i64, levels: usize) -> Option<Self> {
        let word = usize::try_from(word.checked_sub(1)?).ok()?;
        let algorithm = *Algorithm::ALL.get(word % 16)?;
        let level = Some(word / 16).filter(|level| *level < levels)?;
        Some(Self { algorithm, level })
    }
}

/// The measurements of one algorithm.
#[derive(Debug)]
struct AlgorithmTrials {
    algorithm: Algorithm,
    /// By level.
    counts: Vec<Counts>,
    /// Seconds measured after the climb, by level.
    times: Vec<Vec<f64>>,
    /// The last time on this rank, by level.
    last: Vec<Option<f64>>,
}

/// The state of the plan.
#[derive(Debug)]
enum CalibrationPhase {
    /// The first operation repeats this many times: at first it waits for late members.
    Waking(usize),
    /// This level is next.
    Climbing(usize),
    /// A short operation is next, while the one of the climb is timed; then the climb continues here.
    Waiting(usize),
    /// The remaining operations in order, and whether their times count.
    Down(VecDeque<(TrialOperation, bool)>),
}

/// Rank 0's plan.
#[derive(Debug)]
pub(super) struct CalibrationPlanner {
    within: Duration,
    lens: Vec<usize>,
    algorithms: Vec<AlgorithmTrials>,
    phase: CalibrationPhase,
    /// Whether bytes cross between hosts.
    is_across: bool,
    /// The level of each operation of the climb, and its seconds on this rank.
    climbed: Vec<(usize, f64)>,
    /// Seconds from the start to the end of the climb between hosts.
    climbed_for: f64,
    /// Whether the times of the planned operations whose results are still missing count.
    planned: VecDeque<bool>,
}

impl CalibrationPlanner {
    /// Plans for `within`; operations have at least `len_min` words. `counted` returns the counts of an
    /// algorithm for a number of words, or `None` if the algorithm cannot run.
    pub(super) fn new(
        within: Duration,
        len_min: usize,
        counted: impl Fn(Algorithm, usize) -> Option<Counts>,
    ) -> Self {
        let lens: Vec<usize> = LENS.iter().map(|&len| len.max(len_min)).collect();
        let mut algorithms: Vec<AlgorithmTrials> = Vec::new();
        for algorithm in ORDER {
            let counts = lens.iter().map(|&len| counted(algorithm, len));
            let Some(counts) = counts.collect::<Option<Vec<Counts>>>() else {
                continue;
            };
            let crosses = counts.iter().any(|counts| counts.bytes_across > 0.0);
            if !crosses || is_new(&algorithms, &counts) {
                algorithms.push(AlgorithmTrials {
                    algorithm,
                    counts,
                    times: vec![Vec::new(); lens.len()],
                    last: vec![None; lens.len()],
                });
            }
        }
        let crosses =
            |trials_of: &AlgorithmTrials| trials_of.counts.iter().any(|c| c.bytes_across > 0.0);
        Self {
            within,
            lens,
            is_across: algorithms.iter().any(crosses),
            algorithms,
            phase: CalibrationPhase::Waking(WAKING),
            climbed: Vec::new(),
            climbed_for: 0.0,
            planned: VecDeque::from([false]),
        }
    }

    /// Returns the lengths in words, by level.
    pub(super) fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// Returns the operation that all ranks start with.
    pub(super) fn first(&self) -> TrialOperation {
        self.step(0, 0)
    }

    fn step(&self, trials_of: usize, level: usize) -> TrialOperation {
        let trials_of = self.algorithms.get(trials_of);
        TrialOperation {
            algorithm: trials_of.map_or(ORDER[0], |trials_of| trials_of.algorithm),
            level,
        }
    }

    /// Returns the operation after `now`, which is about to run, `spent` after the start; `None` ends the plan.
    pub(super) fn next(&mut self, now: TrialOperation, spent: Duration) -> Option<TrialOperation> {
        let within = self.within.as_secs_f64();
        let spent = spent.as_secs_f64() + self.estimate(now) + END * self.shortest();
        if self.within.is_zero() {
            return None;
        }
        let is_waking = matches!(self.phase, CalibrationPhase::Waking(_));
        let (next, counts) = match self.climb(spent) {
            Some(step) if is_waking => (Some(step), false),
            Some(step) => {
                let longer = if self.is_across { SETTLE_ACROSS } else { 1.0 };
                let fits = self.estimate(step) <= longer * within - spent;
                (Some(step).filter(|_| fits), false)
            }
            None => match self.descend(within + self.climbed_for - spent) {
                Some((step, counts)) => (Some(step), counts),
                None => (None, false),
            },
        };
        self.planned.extend(next.map(|_| counts));
        next
    }

    /// Returns the next operation of the climb after `spent`, or else plans the descent.
    fn climb(&mut self, spent: f64) -> Option<TrialOperation> {
        match self.phase {
            CalibrationPhase::Waking(times) => {
                self.phase = match times {
                    0 | 1 => CalibrationPhase::Waiting(1),
                    _ => CalibrationPhase::Waking(times - 1),
                };
                Some(self.first())
            }
            CalibrationPhase::Climbing(level) => {
                let next = self.climb_to(level, spent);
                self.phase = match next {
                    Some(next) => CalibrationPhase::Waiting(next + 1),
                    None => {
                        if self.is_across {
                            self.climbed_for = spent;
                        }
                        CalibrationPhase::Down(self.plan_descent(level - 1))
                    }
                };
                next.map(|level| self.step(0, level))
            }
            CalibrationPhase::Waiting(level) => {
                self.phase = CalibrationPhase::Climbing(level);
                let other = 1 + (level - 1) % (self.algorithms.len() - 1).max(1);
                Some(self.step(other, 0))
            }
            CalibrationPhase::Down(_) => None,
        }
    }

    /// Returns the level after `level` in the climb: the next one, or the same again if the
    /// links' rate is not settled yet.
    fn climb_to(&self, level: usize, spent: f64) -> Option<usize> {
        let within = self.within.as_secs_f64();
        let fits = |level: usize, most: f64| self.estimate(self.step(0, level)) <= most;
        if !self.is_across {
            let most = (within - spent).min(CLIMB * within);
            return (level <= LEVEL_WITHIN && fits(level, most)).then_some(level);
        }
        let left = CLIMB_ACROSS * within - spent;
        let to_settle = SETTLE_ACROSS * within - spent;
        if self.climbed.len() >= CLIMBED_MAX {
            return None;
        }
        if level < self.lens.len() && self.expected(level) <= left.min(within) {
            return Some(level);
        }
        (level > 1 && !self.is_settled() && fits(level - 1, to_settle)).then_some(level - 1)
    }

    /// Predicts the seconds of a level above those climbed, by the additional time per byte between
    /// the last two levels.
    fn expected(&self, level: usize) -> f64 {
        let climber = &self.algorithms[0];
        let least = |at: usize| {
            let climbed = self.climbed.iter().filter(|(level, _)| *level == at);
            let times = climbed.map(|&(_, seconds)| seconds);
            times.min_by(f64::total_cmp).or(climber.last[at])
        };
        let known = |below: usize| (0..below).rev().find_map(|at| Some((at, least(at)?)));
        let Some((upper, upper_time)) = known(level) else {
            return 2.0 * self.shortest();
        };
        let (lower, lower_time) = known(upper).unwrap_or((upper, upper_time));
        let bytes = |level: usize| climber.counts[level].bytes_across;
        let slope = (upper_time - lower_time).max(0.0) / (bytes(upper) - bytes(lower)).max(1.0);
        upper_time + slope * (bytes(level) - bytes(upper))
    }

    /// Returns the seconds per byte at the end of a climb between hosts, by the faster of its last two
    /// operations on the longest operand; 0 if there is none.
    fn settled_rate(&self) -> f64 {
        let (Some(&(level, _)), Some(trials_of)) = (self.climbed.last(), self.algorithms.first())
        else {
            return 0.0;
        };
        let end = self.climbed.iter().rev().take(2);
        let end = end.filter(|(other, _)| *other == level).map(|&(_, s)| s);
        let rate = end.fold(f64::INFINITY, f64::min) / trials_of.counts[level].bytes_across;
        if rate.is_finite() { rate } else { 0.0 }
    }

    /// Returns whether the last two operations of the climb took the same time per byte.
    fn is_settled(&self) -> bool {
        let [.., before, last] = self.climbed[..] else {
            return false;
        };
        let of_byte = |(level, seconds): (usize, f64)| seconds / self.lens[level] as f64;
        let ratio = of_byte(last) / of_byte(before);
        (1.0 / SETTLED..=SETTLED).contains(&ratio)
    }

    fn plan_descent(&self, top: usize) -> VecDeque<(TrialOperation, bool)> {
        if !self.is_across {
            return self.plan_descent_within(top);
        }
        let all = 0..self.algorithms.len();
        let mut wanted = VecDeque::new();
        let short = (0..=SHORT_LEVEL.min(top)).rev();
        wanted.extend(short.flat_map(|level| all.clone().map(move |trials_of| (trials_of, level))));
        for pass in 0..=PASSES {
            for level in (0..=top).rev() {
                let is_all = pass > 0 || level <= SHORT_LEVEL;
                let count = if is_all { all.end } else { FIRST.min(all.end) };
                wanted.extend((0..count).map(|trials_of| (trials_of, level)));
            }
        }
        let step = |(trials_of, level)| (self.step(trials_of, level), true);
        wanted.into_iter().map(step).collect()
    }

    fn plan_descent_within(&self, top: usize) -> VecDeque<(TrialOperation, bool)> {
        let mut wanted = VecDeque::new();
        let within = self.within.as_secs_f64();
        // The longest ones last: they take most of the time.
        let levels = (0..LEVEL_WITHIN).rev().chain([LEVEL_WITHIN]);
        let levels: Vec<usize> = levels.filter(|level| *level <= top).collect();
        for _ in 0..PASSES_WITHIN {
            for &level in &levels {
                let all =
                    self.estimate(self.step(0, level)) * (RUN.0 * self.algorithms.len()) as f64;
                let (times, counted) = match all <= RUN_PART * within {
                    true => RUN,
                    false => SHORT_RUN,
                };
                for trials_of in 0..self.algorithms.len() {
                    let step = self.step(trials_of, level);
                    wanted.extend((0..times).map(|time| (step, time + counted >= times)));
                }
            }
        }
        wanted
    }

    /// Returns the next planned operation that fits the time left.
    fn descend(&mut self, left: f64) -> Option<(TrialOperation, bool)> {
        loop {
            let CalibrationPhase::Down(wanted) = &mut self.phase else {
                return None;
            };
            let (step, counts) = wanted.pop_front()?;
            let share = if step.level > SHORT_LEVEL { SHARE } else { 1.0 };
            if self.estimate(step) <= share * left {
                return Some((step, counts));
            }
        }
    }

    /// Records the time of an operation on this rank, to plan the next ones.
    pub(super) fn record_own_time(&mut self, step: TrialOperation, seconds: f64) {
        if matches!(self.phase, CalibrationPhase::Waking(left) if left + 1 == WAKING) {
            // The first operation, whose time is not used.
            return;
        }
        let is_climb = !matches!(self.phase, CalibrationPhase::Down(_));
        if is_climb && step.level > 0 {
            self.climbed.push((step.level, seconds));
        }
        if let Some(trials_of) = self.trials_of(step) {
            let last = &mut trials_of.last[step.level];
            // A short operation that takes long was delayed by something else.
            let least = last.filter(|_| is_climb && step.level == 0);
            *last = Some(least.map_or(seconds, |least| least.min(seconds)));
        }
    }

    /// Records the time on all ranks of the first planned operation whose result is missing.
    pub(super) fn record_group_time(&mut self, step: TrialOperation, seconds: f64) {
        let counts = self.planned.pop_front().unwrap_or(true);
        if let Some(trials_of) = self.trials_of(step).filter(|_| counts) {
            trials_of.times[step.level].push(seconds);
        }
    }

    fn trials_of(&mut self, step: TrialOperation) -> Option<&mut AlgorithmTrials> {
        let mut algorithms = self.algorithms.iter_mut();
        algorithms.find(|trials_of| trials_of.algorithm == step.algorithm)
    }

    /// Returns the median time of every algorithm and length; that of the climb without another one, and
    /// between hosts only of its end.
    pub(super) fn samples(&self) -> Vec<CostSample> {
        let mut samples = Vec::new();
        let end = self.climbed.last().map_or(0, |&(level, _)| level);
        let rate = self.settled_rate();
        let is_known = |level: usize| !self.is_across || level <= SHORT_LEVEL || level == end;
        for trials_of in &self.algorithms {
            for (level, &counts) in trials_of.counts.iter().enumerate() {
                let climbed = trials_of.last[level].filter(|_| is_known(level));
                if let Some(seconds) = median(&trials_of.times[level]).or(climbed) {
                    // Faster measurements passed through links that had been idle.
                    let seconds = seconds.max(rate * counts.bytes_across);
                    samples.push(CostSample { counts, seconds });
                }
            }
        }
        samples
    }

    /// Returns the median time of every algorithm and length measured after the climb, within a host.
    pub(super) fn timings(&self) -> Vec<Timing> {
        let mut timings = Vec::new();
        for trials_of in self.algorithms.iter().filter(|_| !self.is_across) {
            for (level, &counts) in trials_of.counts.iter().enumerate() {
                let Some(seconds) = median(&trials_of.times[level]) else {
                    continue;
                };
                timings.push(Timing {
                    algorithm: trials_of.algorithm,
                    bytes: self.lens[level] * WORD_BYTES,
                    sample: CostSample { counts, seconds },
                });
            }
        }
        timings
    }

    /// Returns the seconds of the shortest operation so far.
    fn shortest(&self) -> f64 {
        let times = self
            .algorithms
            .iter()
            .flat_map(|trials_of| &trials_of.last[..1]);
        times
            .flatten()
            .copied()
            .min_by(f64::total_cmp)
            .unwrap_or(0.0)
    }

    /// Predicts the seconds of an operation: its last time, or else the smaller of its time for a shorter
    /// operand in proportion to the length, and twice the climbing algorithm's time.
    fn estimate(&self, step: TrialOperation) -> f64 {
        let mut algorithms = self.algorithms.iter();
        let Some(trials_of) = algorithms.find(|trials_of| trials_of.algorithm == step.algorithm)
        else {
            return 2.0 * self.shortest();
        };
        if let Some(last) = trials_of.last[step.level] {
            return last;
        }
        let known = (0..step.level)
            .rev()
            .find_map(|known| Some((known, trials_of.last[known]?)));
        let by_length = known.map(|(known, time)| {
            let from = self.lens[known.max(SHORT_LEVEL)];
            let longer = self.lens[step.level.max(SHORT_LEVEL)] as f64 / from as f64;
            let short = if known < SHORT_LEVEL { 2.0 } else { 1.0 };
            time * longer * short
        });
        let by_climber = self.algorithms[0].last[step.level].map(|time| 2.0 * time);
        let least = by_length
            .into_iter()
            .chain(by_climber)
            .min_by(f64::total_cmp);
        least.unwrap_or(2.0 * self.shortest())
    }
}

/// Returns the median, the mean of the two middle values for an even number; `None` if empty.
fn median(times: &[f64]) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let upper = times.get(times.len() / 2)?;
    let lower = times[(times.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// Returns whether an algorithm with these counts differs, at some level, from all the others: with few
/// ranks, several algorithms do the same. An algorithm without its own cost parameter does not
/// differ.
fn is_new(algorithms: &[AlgorithmTrials], counts: &[Counts]) -> bool {
    let costs = |counts: &Counts| Counts {
        scratch_bytes: 0.0,
        turns_across: 0.0,
        ..*counts
    };
    counts.iter().enumerate().any(|(level, mine)| {
        let mut known = algorithms.iter().map(|trials_of| &trials_of.counts[level]);
        known.all(|theirs| costs(theirs) != costs(mine))
    })
}

#[cfg(test)]
mod tests;
