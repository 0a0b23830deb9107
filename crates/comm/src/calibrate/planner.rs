//! [`CalibrationPlanner`]: which operation is measured next, and when it is enough. Pure: time is an argument.
//!
//! First one algorithm climbs from short operands to long ones, as far as an operation takes a small
//! part of the time. That warms memory and connections. Then all algorithms are measured from that
//! length down, again and again within a host: their own times decide there between those whose counts
//! are alike. Each runs some times in a row then, and the first ones do not count: a rank that was done
//! early with one algorithm waits in the next one for those that were not.
//!
//! Links between hosts may let much pass at first above their rate. There the climb goes on, in time of
//! its own, until two operations one after the other took as long for each byte; what it saw before is
//! forgotten. Then short operands are measured, before the links have rested, and the rest after them.

use std::collections::VecDeque;
use std::time::Duration;

use ronde_schedule::{Algorithm, Counts, Sample, Timing};

/// Words of eight bytes of the operations that are measured; the first is replaced by what is needed.
const LENS: [usize; 8] = [0, 512, 2048, 8192, 32 << 10, 128 << 10, 512 << 10, 1 << 20];
const WORD_BYTES: usize = 8;
/// Longer operands than at this level are only run between hosts.
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
/// So many of those are measured with long operands at first.
const FIRST: usize = 4;
/// How often the shortest operation runs after the first time, which does not count.
const WAKING: usize = 3;
/// A longer operand is climbed to when that should take this part of the time.
const CLIMB: f64 = 1.0 / 8.0;
/// The climb between hosts, in the time for all that follows it: to longer operands, and until their rate
/// is found.
const CLIMB_ACROSS: f64 = 8.0;
const SETTLE_ACROSS: f64 = 24.0;
/// Most operations of that climb.
const CLIMBED_MAX: usize = 16;
/// The rate of links is found when two operations in turn differ by no more than this factor.
const SETTLED: f64 = 1.2;
/// An operation on a long operand may take this part of the time that is left.
const SHARE: f64 = 1.0 / 3.0;
/// Times that everything is measured again, between hosts and within one.
const PASSES: usize = 3;
const PASSES_WITHIN: usize = 4;
/// How often an operation runs in a row within a host, and how many of these count: while all algorithms
/// at its length take no more than a part of the time, and else.
const RUN: (usize, usize) = (5, 3);
const SHORT_RUN: (usize, usize) = (2, 1);
const RUN_PART: f64 = 1.0 / 4.0;
/// Time that is kept for telling the costs, in operations of the shortest kind.
const END: f64 = 2.0;

/// One operation: an algorithm on an operand of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrialOperation {
    pub(super) algorithm: Algorithm,
    /// Index of its length.
    pub(super) level: usize,
}

impl TrialOperation {
    /// As a word that is not 0.
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

/// What is measured for one algorithm.
#[derive(Debug)]
struct AlgorithmTrials {
    algorithm: Algorithm,
    /// By level.
    counts: Vec<Counts>,
    /// Seconds after the climb, by level.
    times: Vec<Vec<f64>>,
    /// The last time on this rank, by level.
    last: Vec<Option<f64>>,
}

/// How far the plan has come.
#[derive(Debug)]
enum CalibrationPhase {
    /// The first operation comes again so many times: at first it waits for members that are late.
    Waking(usize),
    /// This level comes next.
    Climbing(usize),
    /// A short operation comes next, while the one on the climb is timed; then the climb goes on here.
    Waiting(usize),
    /// What is still wanted, in order, and whether its time counts.
    Down(VecDeque<(TrialOperation, bool)>),
}

/// Rank 0's plan.
#[derive(Debug)]
pub(super) struct CalibrationPlanner {
    within: Duration,
    lens: Vec<usize>,
    courses: Vec<AlgorithmTrials>,
    phase: CalibrationPhase,
    /// Whether bytes cross between hosts.
    is_across: bool,
    /// The level of each operation of the climb, and its seconds on this rank.
    climbed: Vec<(usize, f64)>,
    /// Seconds from the beginning to the end of the climb between hosts.
    climbed_for: f64,
    /// Whether the times of the steps that were planned and not yet heard of count.
    planned: VecDeque<bool>,
}

impl CalibrationPlanner {
    /// Plans for `within`; operations have at least `len_min` words. `counted` counts an algorithm on
    /// an operand of so many words, and leaves out those that cannot.
    pub(super) fn new(
        within: Duration,
        len_min: usize,
        counted: impl Fn(Algorithm, usize) -> Option<Counts>,
    ) -> Self {
        let lens: Vec<usize> = LENS.iter().map(|&len| len.max(len_min)).collect();
        let mut courses: Vec<AlgorithmTrials> = Vec::new();
        for algorithm in ORDER {
            let counts = lens.iter().map(|&len| counted(algorithm, len));
            let Some(counts) = counts.collect::<Option<Vec<Counts>>>() else {
                continue;
            };
            let crosses = counts.iter().any(|counts| counts.bytes_across > 0.0);
            if !crosses || is_new(&courses, &counts) {
                courses.push(AlgorithmTrials {
                    algorithm,
                    counts,
                    times: vec![Vec::new(); lens.len()],
                    last: vec![None; lens.len()],
                });
            }
        }
        let crosses = |course: &AlgorithmTrials| course.counts.iter().any(|c| c.bytes_across > 0.0);
        Self {
            within,
            lens,
            is_across: courses.iter().any(crosses),
            courses,
            phase: CalibrationPhase::Waking(WAKING),
            climbed: Vec::new(),
            climbed_for: 0.0,
            planned: VecDeque::from([false]),
        }
    }

    /// Lengths in words, by level.
    pub(super) fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// The step that all ranks begin with.
    pub(super) fn first(&self) -> TrialOperation {
        self.step(0, 0)
    }

    fn step(&self, course: usize, level: usize) -> TrialOperation {
        let course = self.courses.get(course);
        TrialOperation {
            algorithm: course.map_or(ORDER[0], |course| course.algorithm),
            level,
        }
    }

    /// What comes after `now`, which is about to run, `spent` after the beginning; `None` ends it.
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

    /// The next step of the climb, when `spent` has passed; else the way down is planned.
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
                        CalibrationPhase::Down(self.way_down(level - 1))
                    }
                };
                next.map(|level| self.step(0, level))
            }
            CalibrationPhase::Waiting(level) => {
                self.phase = CalibrationPhase::Climbing(level);
                let other = 1 + (level - 1) % (self.courses.len() - 1).max(1);
                Some(self.step(other, 0))
            }
            CalibrationPhase::Down(_) => None,
        }
    }

    /// The level that is climbed to after that below `level`: this one, or the same again where the
    /// links' rate is still to be found.
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

    /// Seconds that the climber should take at a level above those climbed: as much more for each byte as
    /// between the last two levels.
    fn expected(&self, level: usize) -> f64 {
        let climber = &self.courses[0];
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

    /// Seconds of a byte at the end of a climb between hosts, by the better one of its last two
    /// operations on the longest operand; 0 where there is none.
    fn settled_rate(&self) -> f64 {
        let (Some(&(level, _)), Some(course)) = (self.climbed.last(), self.courses.first()) else {
            return 0.0;
        };
        let end = self.climbed.iter().rev().take(2);
        let end = end.filter(|(other, _)| *other == level).map(|&(_, s)| s);
        let rate = end.fold(f64::INFINITY, f64::min) / course.counts[level].bytes_across;
        if rate.is_finite() { rate } else { 0.0 }
    }

    /// Whether the last two operations of the climb took as long for each byte.
    fn is_settled(&self) -> bool {
        let [.., before, last] = self.climbed[..] else {
            return false;
        };
        let of_byte = |(level, seconds): (usize, f64)| seconds / self.lens[level] as f64;
        let ratio = of_byte(last) / of_byte(before);
        (1.0 / SETTLED..=SETTLED).contains(&ratio)
    }

    fn way_down(&self, top: usize) -> VecDeque<(TrialOperation, bool)> {
        if !self.is_across {
            return self.way_down_within(top);
        }
        let all = 0..self.courses.len();
        let mut wanted = VecDeque::new();
        let short = (0..=SHORT_LEVEL.min(top)).rev();
        wanted.extend(short.flat_map(|level| all.clone().map(move |course| (course, level))));
        for pass in 0..=PASSES {
            for level in (0..=top).rev() {
                let is_all = pass > 0 || level <= SHORT_LEVEL;
                let count = if is_all { all.end } else { FIRST.min(all.end) };
                wanted.extend((0..count).map(|course| (course, level)));
            }
        }
        let step = |(course, level)| (self.step(course, level), true);
        wanted.into_iter().map(step).collect()
    }

    fn way_down_within(&self, top: usize) -> VecDeque<(TrialOperation, bool)> {
        let mut wanted = VecDeque::new();
        let within = self.within.as_secs_f64();
        // The longest ones last: they take most of the time.
        let levels = (0..LEVEL_WITHIN).rev().chain([LEVEL_WITHIN]);
        let levels: Vec<usize> = levels.filter(|level| *level <= top).collect();
        for _ in 0..PASSES_WITHIN {
            for &level in &levels {
                let all = self.estimate(self.step(0, level)) * (RUN.0 * self.courses.len()) as f64;
                let (times, counted) = match all <= RUN_PART * within {
                    true => RUN,
                    false => SHORT_RUN,
                };
                for course in 0..self.courses.len() {
                    let step = self.step(course, level);
                    wanted.extend((0..times).map(|time| (step, time + counted >= times)));
                }
            }
        }
        wanted
    }

    /// The next that is wanted and fits.
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

    /// A step took so long on this rank: for what is planned next.
    pub(super) fn took(&mut self, step: TrialOperation, seconds: f64) {
        if matches!(self.phase, CalibrationPhase::Waking(left) if left + 1 == WAKING) {
            // The first one, whose time is nobody's.
            return;
        }
        let is_climb = !matches!(self.phase, CalibrationPhase::Down(_));
        if is_climb && step.level > 0 {
            self.climbed.push((step.level, seconds));
        }
        if let Some(course) = self.course(step) {
            let last = &mut course.last[step.level];
            // A short operation that takes long has met something else.
            let least = last.filter(|_| is_climb && step.level == 0);
            *last = Some(least.map_or(seconds, |least| least.min(seconds)));
        }
    }

    /// The first step of those planned that was not heard of took so many seconds on all ranks.
    pub(super) fn heard(&mut self, step: TrialOperation, seconds: f64) {
        let counts = self.planned.pop_front().unwrap_or(true);
        if let Some(course) = self.course(step).filter(|_| counts) {
            course.times[step.level].push(seconds);
        }
    }

    fn course(&mut self, step: TrialOperation) -> Option<&mut AlgorithmTrials> {
        let mut courses = self.courses.iter_mut();
        courses.find(|course| course.algorithm == step.algorithm)
    }

    /// The median time of every algorithm and length; that of the climb where there is no other, and
    /// between hosts only of its end.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        let end = self.climbed.last().map_or(0, |&(level, _)| level);
        let rate = self.settled_rate();
        let is_known = |level: usize| !self.is_across || level <= SHORT_LEVEL || level == end;
        for course in &self.courses {
            for (level, &counts) in course.counts.iter().enumerate() {
                let climbed = course.last[level].filter(|_| is_known(level));
                if let Some(seconds) = median(&course.times[level]).or(climbed) {
                    // What went faster than that went through links that had rested.
                    let seconds = seconds.max(rate * counts.bytes_across);
                    samples.push(Sample { counts, seconds });
                }
            }
        }
        samples
    }

    /// The median time of every algorithm and length that was measured after the climb, within a host.
    pub(super) fn timings(&self) -> Vec<Timing> {
        let mut timings = Vec::new();
        for course in self.courses.iter().filter(|_| !self.is_across) {
            for (level, &counts) in course.counts.iter().enumerate() {
                let Some(seconds) = median(&course.times[level]) else {
                    continue;
                };
                timings.push(Timing {
                    algorithm: course.algorithm,
                    bytes: self.lens[level] * WORD_BYTES,
                    sample: Sample { counts, seconds },
                });
            }
        }
        timings
    }

    /// Seconds of the shortest operation so far.
    fn shortest(&self) -> f64 {
        let times = self.courses.iter().flat_map(|course| &course.last[..1]);
        times
            .flatten()
            .copied()
            .min_by(f64::total_cmp)
            .unwrap_or(0.0)
    }

    /// Seconds that a step should take: as last time; or else what it should be by its time for less,
    /// in proportion to the length, and by twice the climber's time, whichever is less.
    fn estimate(&self, step: TrialOperation) -> f64 {
        let mut courses = self.courses.iter();
        let Some(course) = courses.find(|course| course.algorithm == step.algorithm) else {
            return 2.0 * self.shortest();
        };
        if let Some(last) = course.last[step.level] {
            return last;
        }
        let known = (0..step.level)
            .rev()
            .find_map(|known| Some((known, course.last[known]?)));
        let by_length = known.map(|(known, time)| {
            let from = self.lens[known.max(SHORT_LEVEL)];
            let longer = self.lens[step.level.max(SHORT_LEVEL)] as f64 / from as f64;
            let short = if known < SHORT_LEVEL { 2.0 } else { 1.0 };
            time * longer * short
        });
        let by_climber = self.courses[0].last[step.level].map(|time| 2.0 * time);
        let least = by_length
            .into_iter()
            .chain(by_climber)
            .min_by(f64::total_cmp);
        least.unwrap_or(2.0 * self.shortest())
    }
}

/// The median, of an even count the mean of the two in the middle; `None` of nothing.
fn median(times: &[f64]) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let upper = times.get(times.len() / 2)?;
    let lower = times[(times.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// Whether an algorithm of these counts does something, at some level, that none of the others does
/// there: few ranks do the same by several algorithms. What has no cost of its own does not
/// count.
fn is_new(courses: &[AlgorithmTrials], counts: &[Counts]) -> bool {
    let costs = |counts: &Counts| Counts {
        scratch_bytes: 0.0,
        turns_across: 0.0,
        ..*counts
    };
    counts.iter().enumerate().any(|(level, mine)| {
        let mut known = courses.iter().map(|course| &course.counts[level]);
        known.all(|theirs| costs(theirs) != costs(mine))
    })
}

#[cfg(test)]
mod tests;
