//! [`timeline()`]: runs the programs of all ranks of a step on paper.

use std::collections::BTreeMap;

use crate::ScheduleError;
use crate::step_program::{Border, ProgramAction};

/// The costs of the actions of a step. Times are in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepCosts {
    /// The forward pass of one shard, by stage.
    pub forward_s: Vec<f64>,
    /// The backward pass of one shard, by bucket.
    pub backward_s: Vec<f64>,
    /// The sum of a bucket over all shards, by bucket. It runs beside other actions, one bucket of a rank after the other.
    pub reduce_s: Vec<f64>,
    /// The time that a border of one shard is under way, by the stage before it.
    pub border_s: Vec<f64>,
    /// The bytes of a border of one shard, by the stage before it.
    pub border_bytes: Vec<usize>,
    /// The bytes that a stage keeps of one shard from its forward to its backward pass, by stage.
    pub kept_bytes: Vec<usize>,
}

/// What one rank does in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankWork {
    /// The seconds in which the rank computes.
    pub busy_s: f64,
    /// When its last action and its last reduction have ended.
    pub end_s: f64,
    /// The bytes of borders that it sends.
    pub sent_bytes: usize,
    /// The most bytes that it keeps for backward passes at any time.
    pub kept_bytes_max: usize,
    /// The most forward passes without their backward pass at any time.
    pub in_flight_max: usize,
}

/// The result of running all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimeline {
    /// The ranks.
    pub ranks: Vec<RankWork>,
    /// The seconds of the step, to the end of the last reduction.
    pub end_s: f64,
}

impl StepTimeline {
    /// Returns the idle share of the time of all ranks, until the last of them has computed.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self.ranks.iter().map(|rank| rank.busy_s).sum();
        let whole = self.end_s * self.ranks.len() as f64;
        if whole > 0.0 { 1.0 - busy / whole } else { 0.0 }
    }
}

/// One rank on its way through its program.
struct RunningRank {
    next: usize,
    now_s: f64,
    reduced_s: f64,
    kept_bytes: usize,
    in_flight: usize,
    done: RankWork,
}

/// Runs the programs of all ranks of one replica, each action as soon as its inputs are there. `buckets_of` has the stage of
/// each bucket, of which the last one of a stage ends the stage's backward pass.
///
/// # Errors
/// [`ScheduleError::Broken`] when ranks wait for each other forever, or a border is never received.
pub fn timeline(
    programs: &[Vec<ProgramAction>],
    buckets_of: &[usize],
    costs: &StepCosts,
) -> Result<StepTimeline, ScheduleError> {
    let start = |_: &Vec<ProgramAction>| RunningRank {
        next: 0,
        now_s: 0.0,
        reduced_s: 0.0,
        kept_bytes: 0,
        in_flight: 0,
        done: RankWork::default(),
    };
    let mut ranks: Vec<RunningRank> = programs.iter().map(start).collect();
    // When the borders that were sent arrive.
    let mut arrivals: BTreeMap<Border, f64> = BTreeMap::new();
    loop {
        let mut moved = false;
        for (rank, program) in ranks.iter_mut().zip(programs) {
            while let Some(action) = program.get(rank.next)
                && rank.run(action, buckets_of, costs, &mut arrivals)
            {
                rank.next += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let waiting = |(index, rank): (usize, &RunningRank)| {
        let action = programs[index].get(rank.next)?;
        Some(format!("rank {index} waits forever for {action:?}"))
    };
    let problem = ranks.iter().enumerate().find_map(waiting);
    let unread = arrivals.keys().next();
    let problem = problem.or_else(|| Some(format!("nothing receives {:?}", unread?)));
    if let Some(problem) = problem {
        return Err(ScheduleError::Broken { problem });
    }
    let ranks = ranks.into_iter().map(|rank| RankWork {
        end_s: rank.now_s.max(rank.reduced_s),
        ..rank.done
    });
    let ranks: Vec<RankWork> = ranks.collect();
    let end_s = ranks.iter().map(|rank| rank.end_s).fold(0.0, f64::max);
    Ok(StepTimeline { ranks, end_s })
}

impl RunningRank {
    /// Runs an action; returns false if its input is not there.
    fn run(
        &mut self,
        action: &ProgramAction,
        buckets_of: &[usize],
        costs: &StepCosts,
        arrivals: &mut BTreeMap<Border, f64>,
    ) -> bool {
        match action {
            ProgramAction::Receive(border) => {
                let Some(arrival) = arrivals.remove(border) else {
                    return false;
                };
                self.now_s = self.now_s.max(arrival);
            }
            ProgramAction::Send(border) => {
                let before = border.from.min(border.to);
                arrivals.insert(*border, self.now_s + costs.border_s[before]);
                self.done.sent_bytes += costs.border_bytes[before];
            }
            ProgramAction::Forward { stage, shards } => {
                self.compute(costs.forward_s[*stage] * shards.len() as f64);
                self.kept_bytes += costs.kept_bytes[*stage] * shards.len();
                self.in_flight += shards.len();
                self.done.kept_bytes_max = self.done.kept_bytes_max.max(self.kept_bytes);
                self.done.in_flight_max = self.done.in_flight_max.max(self.in_flight);
            }
            ProgramAction::Loss { .. } => {}
            ProgramAction::Backward { bucket, shards } => {
                self.compute(costs.backward_s[*bucket] * shards.len() as f64);
                let stage = buckets_of[*bucket];
                if buckets_of.get(bucket + 1) != Some(&stage) {
                    self.kept_bytes -= costs.kept_bytes[stage] * shards.len();
                    self.in_flight -= shards.len();
                }
            }
            ProgramAction::Reduce { bucket } => {
                self.reduced_s = self.reduced_s.max(self.now_s) + costs.reduce_s[*bucket];
            }
        }
        true
    }

    fn compute(&mut self, seconds: f64) {
        self.now_s += seconds;
        self.done.busy_s += seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_program::{PipelineSchedule, ProgramShape, StageShape, programs};

    fn even(stages: usize) -> StepCosts {
        StepCosts {
            forward_s: vec![1.0; stages],
            backward_s: vec![2.0; stages],
            reduce_s: vec![0.0; stages],
            border_s: vec![0.0; stages],
            border_bytes: vec![10; stages],
            kept_bytes: vec![100; stages],
        }
    }

    fn run(schedule: PipelineSchedule, stages: usize, shards: u32) -> StepTimeline {
        let stage = |column| StageShape {
            column,
            buckets: column..column + 1,
            cost: 1,
        };
        let shape = ProgramShape {
            stages: (0..stages).map(stage).collect(),
            shards: 0..shards,
            in_lock_step: false,
        };
        let buckets: Vec<usize> = (0..stages).collect();
        timeline(&programs(schedule, &shape), &buckets, &even(stages)).unwrap()
    }

    #[test]
    fn every_small_pipeline_has_the_known_bubble_and_memory() {
        use PipelineSchedule::{GPipe, OneForwardOneBackward};
        for stages in 1..=8 {
            for shards in 1..=12 {
                let waiting = (stages - 1) as f64;
                let bubble = waiting / (f64::from(shards) + waiting);
                for schedule in [GPipe, OneForwardOneBackward] {
                    let found = run(schedule, stages, shards);
                    let difference = found.bubble() - bubble;
                    assert!(difference.abs() < 1e-12, "{stages} {shards}: {found:?}");
                    for (stage, rank) in found.ranks.iter().enumerate() {
                        let kept = match schedule {
                            GPipe => shards as usize,
                            OneForwardOneBackward => (stages - stage).min(shards as usize),
                        };
                        assert_eq!(
                            (rank.in_flight_max, rank.kept_bytes_max),
                            (kept, 100 * kept)
                        );
                        let neighbours = usize::from(stage > 0) + usize::from(stage + 1 < stages);
                        assert_eq!(rank.sent_bytes, neighbours * shards as usize * 10);
                    }
                }
            }
        }
    }

    #[test]
    fn reductions_run_beside_earlier_layers() {
        let actions = [0, 1].map(|bucket| {
            let shards = 0..1;
            [
                ProgramAction::Backward { bucket, shards },
                ProgramAction::Reduce { bucket },
            ]
        });
        let forward = ProgramAction::Forward {
            stage: 0,
            shards: 0..1,
        };
        let program: Vec<ProgramAction> =
            std::iter::once(forward).chain(actions.concat()).collect();
        let costs = StepCosts {
            backward_s: vec![2.0, 2.0],
            reduce_s: vec![1.0, 1.5],
            ..even(1)
        };
        let found = timeline(&[program], &[0, 0], &costs).unwrap();
        assert_eq!((found.end_s, found.ranks[0].busy_s), (6.5, 5.0));
    }

    #[test]
    fn a_deadlock_and_a_lost_border_are_errors() {
        let border = |from, to| Border { from, to, shard: 0 };
        let wait = |from, to| ProgramAction::Receive(border(from, to));
        let error = timeline(&[vec![wait(1, 0)], vec![wait(0, 1)]], &[], &even(2)).unwrap_err();
        assert!(error.to_string().contains("waits forever"), "{error}");
        let sent = vec![ProgramAction::Send(border(0, 1))];
        let error = timeline(&[sent, vec![]], &[], &even(2)).unwrap_err();
        assert!(error.to_string().contains("nothing receives"), "{error}");
    }
}
