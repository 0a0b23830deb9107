//! [`Planner`]: which operation is measured next, and when it is enough. Pure: time is an argument.

use std::time::Duration;

use ronde_schedule::{Algorithm, Counts, Sample};

/// Words of eight bytes of the operations that are measured; the first is replaced by what is needed.
const LENS: [usize; 5] = [0, 512, 4096, 32 << 10, 128 << 10];
/// Up to this level an operation takes hardly longer than a shorter one.
const SHORT_LEVEL: usize = 1;
/// Most times that everything is measured, the first not counted.
const PASSES: usize = 5;
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
    /// Seconds, by level.
    times: Vec<Vec<f64>>,
}

/// Rank 0's plan: all algorithms on short operands, then on longer ones while there is time, then again.
#[derive(Debug)]
pub(super) struct Planner {
    within: Duration,
    lens: Vec<usize>,
    courses: Vec<Course>,
    /// Pass, level, place among the courses of what comes next.
    at: (usize, usize, usize),
    /// Something was planned in this pass.
    moved: bool,
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
        for algorithm in Algorithm::ALL {
            let counts = lens.iter().map(|&len| counted(algorithm, len));
            let Some(counts) = counts.collect::<Option<Vec<Counts>>>() else {
                continue;
            };
            // Few ranks do the same by several algorithms.
            if courses.iter().all(|course| course.counts != counts) {
                courses.push(Course {
                    algorithm,
                    counts,
                    times: vec![Vec::new(); lens.len()],
                });
            }
        }
        Self {
            within,
            lens,
            courses,
            at: (0, 0, 0),
            moved: false,
        }
    }

    /// Lengths in words, by level.
    pub(super) fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// The step that all ranks begin with.
    pub(super) fn first(&self) -> Step {
        Step {
            algorithm: Algorithm::Tree,
            level: 0,
        }
    }

    /// What comes after `now`, which is about to run, `spent` after the beginning; `None` ends it.
    pub(super) fn next(&mut self, now: Step, spent: Duration) -> Option<Step> {
        let left = self.within.as_secs_f64() - spent.as_secs_f64();
        let place = |course: &Course| course.algorithm == now.algorithm;
        let end = END * self.shortest();
        let left = left
            - end
            - self
                .courses
                .iter()
                .position(place)
                .map_or(end, |place| self.estimate(place, now.level));
        loop {
            let (pass, level, place) = self.at;
            let levels = if pass == 0 { 1 } else { self.lens.len() };
            if place == self.courses.len() {
                self.at = (pass, level + 1, 0);
            } else if level >= levels {
                if !self.moved || pass == PASSES {
                    return None;
                }
                (self.at, self.moved) = ((pass + 1, 0, 0), false);
            } else {
                self.at.2 += 1;
                if self.estimate(place, level) <= left {
                    self.moved = true;
                    let algorithm = self.courses[place].algorithm;
                    return Some(Step { algorithm, level });
                }
            }
        }
    }

    /// A step took so many seconds.
    pub(super) fn heard(&mut self, step: Step, seconds: f64) {
        let mut courses = self.courses.iter_mut();
        if let Some(course) = courses.find(|course| course.algorithm == step.algorithm) {
            course.times[step.level].push(seconds);
        }
    }

    /// The median time of every algorithm and length. Of the shortest the first times are left out:
    /// memory and connections were cold.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        for course in &self.courses {
            for (level, times) in course.times.iter().enumerate() {
                let cold = usize::from(level == 0 && times.len() > 1);
                let mut times = times[cold..].to_vec();
                times.sort_by(f64::total_cmp);
                if let Some(&seconds) = times.get(times.len() / 2) {
                    let counts = course.counts[level];
                    samples.push(Sample { counts, seconds });
                }
            }
        }
        samples
    }

    /// Seconds of the shortest operation so far.
    fn shortest(&self) -> f64 {
        let times = self.courses.iter().flat_map(|course| &course.times[0]);
        times.copied().min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// Seconds that a step should take: no less than in proportion to its length.
    fn estimate(&self, place: usize, level: usize) -> f64 {
        let course = &self.courses[place];
        let known = (0..=level).rev().find_map(|known| {
            let time = course.times[known].iter().copied().min_by(f64::total_cmp);
            Some((known, time?))
        });
        let (known, time) = known.unwrap_or((0, 2.0 * self.shortest()));
        if level <= SHORT_LEVEL {
            return time * 2_f64.powi((level - known) as i32);
        }
        let from = self.lens[known.max(SHORT_LEVEL)];
        time * self.lens[level] as f64 / from as f64
    }
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

    /// Plays a calibration of a group in which operations cost what `model` says.
    fn play(hosts: &Hosts, within: Duration, model: &CostModel) -> (Vec<Step>, f64, Planner) {
        let mut planner = planner(hosts, within);
        let (mut step, mut spent, mut steps) = (planner.first(), 0.0, Vec::new());
        loop {
            let next = planner.next(step, Duration::from_secs_f64(spent));
            let course = planner
                .courses
                .iter()
                .find(|c| c.algorithm == step.algorithm);
            let counts = course
                .map(|course| course.counts[step.level])
                .unwrap_or_default();
            let seconds = model.seconds(&counts);
            spent += seconds;
            planner.heard(step, seconds);
            steps.push(step);
            assert!(steps.len() < 1000);
            match next {
                Some(next) => step = next,
                None => return (steps, spent, planner),
            }
        }
    }

    fn longest(planner: &Planner) -> f64 {
        let times = planner
            .courses
            .iter()
            .flat_map(|course| course.times.iter().flatten());
        times.copied().fold(0.0, f64::max)
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
            for level in 0..5 {
                let step = Step { algorithm, level };
                assert_ne!(step.encode(), 0);
                assert_eq!(Step::decode(step.encode(), 5), Some(step));
                assert_eq!(Step::decode(step.encode(), level), None);
            }
        }
        for nonsense in [0, -1, i64::MIN, i64::MAX, 8] {
            assert_eq!(Step::decode(nonsense, 5), None);
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
                    let longest = longest(&planner);
                    assert!(spent <= within.as_secs_f64() + 2.0 * longest, "{spent}");
                    assert!(
                        model == slower || millis < 30 || spent <= 0.033 * f64::from(millis) / 30.0
                    );
                    if millis >= 30 {
                        let levels: BTreeSet<_> = steps.iter().map(|s| s.level).collect();
                        assert!(levels.len() >= 2, "{model:?} {names:?}: {levels:?}");
                        assert!(planner.samples().len() >= 4);
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
        assert_eq!(planner.samples().len(), 5 * 5);
        let (steps, _, planner) = play(&hosts, Duration::ZERO, &gigabit());
        assert!(steps.len() <= 2 && planner.samples().len() <= 2);
    }

    #[test]
    fn two_ranks_measure_what_differs_between_them() {
        let planner = planner(&Hosts::one(2), Duration::from_millis(30));
        let measured: Vec<_> = planner.courses.iter().map(|c| c.algorithm).collect();
        assert_eq!(
            measured,
            [
                Algorithm::Driver,
                Algorithm::Ring,
                Algorithm::HalvingDoubling
            ]
        );
    }

    #[test]
    fn the_samples_lead_back_to_the_costs() {
        let hosts = Hosts::new(&[0, 0, 1, 1]);
        let (_, _, planner) = play(&hosts, Duration::from_millis(200), &gigabit());
        let start = CostModel {
            cores: 2,
            ..CostModel::default()
        };
        let found = start.fit(&planner.samples());
        let ratio = found.byte_across_s / gigabit().byte_across_s;
        assert!((0.9..1.1).contains(&ratio), "{found:?}");
    }
}
