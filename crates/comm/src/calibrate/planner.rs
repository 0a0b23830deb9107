//! [`Planner`]: which operation is measured next, and when it is enough. Pure: time is an argument.
//!
//! First one algorithm climbs from short operands to long ones, as far as an operation takes a small
//! part of the time. That warms memory and connections, and uses up what links let pass at first above
//! their rate. Then all algorithms are measured from that length down, so that short operands are not
//! measured on links that have rested.

use std::collections::VecDeque;
use std::time::Duration;

use ronde_schedule::{Algorithm, Counts, Sample};

/// Words of eight bytes of the operations that are measured; the first is replaced by what is needed.
const LENS: [usize; 6] = [0, 512, 2048, 8192, 32 << 10, 128 << 10];
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
/// A longer operand is climbed to when that should take this part of the time.
const CLIMB: f64 = 1.0 / 8.0;
/// An operation on a long operand may take this part of the time that is left.
const SHARE: f64 = 1.0 / 3.0;
/// Times that everything is measured again.
const PASSES: usize = 3;
/// Time that is kept for telling the costs, in operations of the shortest kind.
const END: f64 = 2.0;

/// One operation: an algorithm on an operand of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) algorithm: Algorithm,
    /// Index of its length.
    pub(super) level: usize,
}

impl Step {
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
struct Course {
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
enum Phase {
    /// This level comes next.
    Climbing(usize),
    /// A short operation comes next, while the one on the climb is timed; then the climb goes on here.
    Waiting(usize),
    /// What is still wanted, in order.
    Down(VecDeque<Step>),
}

/// Rank 0's plan.
#[derive(Debug)]
pub(super) struct Planner {
    within: Duration,
    lens: Vec<usize>,
    courses: Vec<Course>,
    phase: Phase,
    /// Whether the steps that were planned and not yet heard of belong to the climb.
    planned: VecDeque<bool>,
}

impl Planner {
    /// Plans for `within`; operations have at least `len_min` words. `counted` counts an algorithm on
    /// an operand of so many words, and leaves out those that cannot.
    pub(super) fn new(
        within: Duration,
        len_min: usize,
        counted: impl Fn(Algorithm, usize) -> Option<Counts>,
    ) -> Self {
        let lens: Vec<usize> = LENS.iter().map(|&len| len.max(len_min)).collect();
        let mut courses: Vec<Course> = Vec::new();
        for algorithm in ORDER {
            let counts = lens.iter().map(|&len| counted(algorithm, len));
            let Some(counts) = counts.collect::<Option<Vec<Counts>>>() else {
                continue;
            };
            if is_new(&courses, &counts) {
                courses.push(Course {
                    algorithm,
                    counts,
                    times: vec![Vec::new(); lens.len()],
                    last: vec![None; lens.len()],
                });
            }
        }
        Self {
            within,
            lens,
            courses,
            phase: Phase::Climbing(1),
            planned: VecDeque::from([true]),
        }
    }

    /// Lengths in words, by level.
    pub(super) fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// The step that all ranks begin with.
    pub(super) fn first(&self) -> Step {
        self.step(0, 0)
    }

    fn step(&self, course: usize, level: usize) -> Step {
        let course = self.courses.get(course);
        Step {
            algorithm: course.map_or(ORDER[0], |course| course.algorithm),
            level,
        }
    }

    /// What comes after `now`, which is about to run, `spent` after the beginning; `None` ends it.
    pub(super) fn next(&mut self, now: Step, spent: Duration) -> Option<Step> {
        let within = self.within.as_secs_f64();
        let end = END * self.shortest();
        let left = within - spent.as_secs_f64() - self.estimate(now) - end;
        let next = self.climb(left.min(CLIMB * within));
        let next = match next {
            Some(step) => Some(step).filter(|step| self.estimate(*step) <= left),
            None => self.descend(left),
        };
        if next.is_some() {
            self.planned
                .push_back(!matches!(self.phase, Phase::Down(_)));
        }
        next
    }

    /// The next step of the climb, while it takes no more than `most`; else the way down is planned.
    fn climb(&mut self, most: f64) -> Option<Step> {
        match self.phase {
            Phase::Climbing(level)
                if level < self.lens.len() && self.estimate(self.step(0, level)) <= most =>
            {
                self.phase = Phase::Waiting(level + 1);
                Some(self.step(0, level))
            }
            Phase::Climbing(level) => {
                self.phase = Phase::Down(self.way_down(level - 1));
                None
            }
            Phase::Waiting(level) => {
                self.phase = Phase::Climbing(level);
                let other = 1 + (level - 2) % (self.courses.len() - 1).max(1);
                Some(self.step(other, 0))
            }
            Phase::Down(_) => None,
        }
    }

    fn way_down(&self, top: usize) -> VecDeque<Step> {
        let mut wanted = VecDeque::new();
        for pass in 0..=PASSES {
            for level in (0..=top).rev() {
                let all = pass > 0 || level <= SHORT_LEVEL;
                let count = if all { self.courses.len() } else { FIRST };
                let courses = 0..count.min(self.courses.len());
                wanted.extend(courses.map(|course| self.step(course, level)));
            }
        }
        wanted
    }

    /// The next that is wanted and fits.
    fn descend(&mut self, left: f64) -> Option<Step> {
        loop {
            let Phase::Down(wanted) = &mut self.phase else {
                return None;
            };
            let step = wanted.pop_front()?;
            let share = if step.level > SHORT_LEVEL { SHARE } else { 1.0 };
            if self.estimate(step) <= share * left {
                return Some(step);
            }
        }
    }

    /// A step took so long on this rank: for what is planned next.
    pub(super) fn took(&mut self, step: Step, seconds: f64) {
        if let Some(course) = self.course(step) {
            course.last[step.level] = Some(seconds);
        }
    }

    /// The first step of those planned that was not heard of took so many seconds on all ranks.
    pub(super) fn heard(&mut self, step: Step, seconds: f64) {
        let climbed = self.planned.pop_front().unwrap_or(false);
        if let Some(course) = self.course(step).filter(|_| !climbed) {
            course.times[step.level].push(seconds);
        }
    }

    fn course(&mut self, step: Step) -> Option<&mut Course> {
        let mut courses = self.courses.iter_mut();
        courses.find(|course| course.algorithm == step.algorithm)
    }

    /// The median time of every algorithm and length; that of the climb where there is no other.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        for course in &self.courses {
            for (level, &counts) in course.counts.iter().enumerate() {
                let mut times = course.times[level].clone();
                times.sort_by(f64::total_cmp);
                let median = times.get(times.len() / 2).copied();
                if let Some(seconds) = median.or(course.last[level]) {
                    samples.push(Sample { counts, seconds });
                }
            }
        }
        samples
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
    fn estimate(&self, step: Step) -> f64 {
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

/// Whether an algorithm of these counts does something, at some level, that none of the others does
/// there: few ranks do the same by several algorithms. Scratch takes no time.
fn is_new(courses: &[Course], counts: &[Counts]) -> bool {
    let without_scratch = |counts: &Counts| Counts {
        scratch_bytes: 0.0,
        ..*counts
    };
    counts.iter().enumerate().any(|(level, mine)| {
        let mut known = courses.iter().map(|course| &course.counts[level]);
        known.all(|theirs| without_scratch(theirs) != without_scratch(mine))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ronde_core::{Operation, ReduceOp};
    use ronde_schedule::choose::counts;
    use ronde_schedule::{CostModel, Hosts};

    use super::*;

    fn planner(hosts: &Hosts, within: Duration) -> Planner {
        Planner::new(within, 16, |algorithm, len| {
            let operation = Operation::AllReduce(ReduceOp::Sum);
            counts(algorithm, &operation, hosts, len, 8, 2).ok()
        })
    }

    /// Plays a calibration of a group in which operations cost what `model` says, but that links let
    /// so many bytes pass above their rate when they have rested.
    fn play_on(
        hosts: &Hosts,
        within: Duration,
        model: &CostModel,
        burst: f64,
    ) -> (Vec<Step>, f64, Planner) {
        let mut planner = planner(hosts, within);
        let (mut step, mut spent, mut steps) = (planner.first(), 0.0, Vec::new());
        let mut saved = burst;
        loop {
            let next = planner.next(step, Duration::from_secs_f64(spent));
            let mut courses = planner.courses.iter();
            let course = courses.find(|c| c.algorithm == step.algorithm);
            let counts = course
                .map(|course| course.counts[step.level])
                .unwrap_or_default();
            let free = counts.bytes_across.min(saved);
            let seconds = model.seconds(&counts) - free * model.byte_across_s;
            let refilled = seconds / model.byte_across_s;
            saved = (saved + refilled - counts.bytes_across).clamp(0.0, burst);
            spent += seconds;
            planner.took(step, seconds);
            planner.heard(step, seconds);
            steps.push(step);
            assert!(steps.len() < 1000);
            match next {
                Some(next) => step = next,
                None => return (steps, spent, planner),
            }
        }
    }

    fn play(hosts: &Hosts, within: Duration, model: &CostModel) -> (Vec<Step>, f64, Planner) {
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
            for level in 0..6 {
                let step = Step { algorithm, level };
                assert_ne!(step.encode(), 0);
                assert_eq!(Step::decode(step.encode(), 6), Some(step));
                assert_eq!(Step::decode(step.encode(), level), None);
            }
        }
        for nonsense in [0, -1, i64::MIN, i64::MAX, 8] {
            assert_eq!(Step::decode(nonsense, 6), None);
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
                    let longest = planner.courses.iter().flat_map(|c| c.last.iter().flatten());
                    let longest = longest.copied().fold(0.0, f64::max);
                    assert!(spent <= within.as_secs_f64() + 2.0 * longest, "{spent}");
                    assert!(
                        model == slower || millis < 30 || spent <= 0.033 * f64::from(millis) / 30.0
                    );
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
        assert!(steps.len() < 200);
        // All algorithms but the hierarchical one, which is the direct one here, at all lengths.
        assert_eq!(planner.samples().len(), 5 * 6);
        let (steps, _, planner) = play(&hosts, Duration::ZERO, &gigabit());
        assert!(steps.len() <= 2 && planner.samples().len() <= 2);
    }

    #[test]
    fn two_ranks_measure_what_differs_between_them() {
        let planner = planner(&Hosts::one(2), Duration::from_millis(30));
        let measured: Vec<_> = planner.courses.iter().map(|c| c.algorithm).collect();
        // A ring of two is a tree for the shortest operands and halving_doubling for longer ones.
        assert_eq!(
            measured,
            [
                Algorithm::HalvingDoubling,
                Algorithm::Tree,
                Algorithm::Direct
            ]
        );
    }

    #[test]
    fn the_samples_lead_back_to_the_costs_even_of_links_that_had_rested() {
        for names in [vec![0, 0, 1, 1], vec![0, 1], vec![0, 1, 2, 3]] {
            for (rate, burst) in [(80e-9, 0.0), (80e-9, 65e3), (8e-9, 0.0), (8e-9, 65e3)] {
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
                    (0.5..2.0).contains(&ratio),
                    "{names:?} {rate} {burst}: {found:?}"
                );
            }
        }
    }
}
