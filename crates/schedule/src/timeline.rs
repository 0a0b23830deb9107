//! [`timeline()`]: runs the programs of all ranks of a step on paper.

use std::collections::BTreeMap;

use crate::error::ScheduleError;
use crate::step_program::{Border, ProgramAction};

/// The costs of the layers of a bucket, for one shard where shards pass. Times are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BucketCost {
    /// The forward pass.
    pub forward_s: f64,
    /// The backward pass.
    pub backward_s: f64,
    /// The part of it for the gradients of weights; it only counts where the backward pass is in halves.
    pub backward_weights_s: f64,
    /// The sum of the gradients over all shards. It runs beside other actions, one bucket of a rank after the other.
    pub reduce_s: f64,
    /// The time in which the weights are gathered, as the sum is.
    pub gather_s: f64,
    /// The bytes of the weights.
    pub weight_bytes: usize,
    /// The time in which the gradients of a shard are added to those of the rank's earlier shards; the first one is not added.
    pub add_s: f64,
    /// The part of the sum over all shards in which the rank's computing core works, for lack of another one.
    pub reduce_busy_s: f64,
    /// The part of gathering in which the rank's computing core works: it copies the rank's own slice, and does the rest if there is
    /// no other core.
    pub gather_busy_s: f64,
}

/// The costs of the values of one shard that pass between two stages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BorderCost {
    /// The seconds that they are under way after the link has taken them.
    pub seconds: f64,
    /// The seconds in which they occupy the link of their sender, which takes one message after the other.
    pub link_s: f64,
    /// The seconds in which the computing cores of their sender and of their receiver work for them, for lack of others.
    pub busy_s: f64,
    /// Their bytes.
    pub bytes: usize,
}

/// The costs of the actions of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepCosts {
    /// The buckets.
    pub buckets: Vec<BucketCost>,
    /// The borders, by the stage before each.
    pub borders: Vec<BorderCost>,
    /// The bytes that a stage keeps of one shard from its forward to its backward pass, by stage.
    pub kept_bytes: Vec<usize>,
    /// The time of the loss of one shard.
    pub loss_s: f64,
}

/// The work of a rank in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankWork {
    /// The seconds in which the rank computes.
    pub busy_s: f64,
    /// When its last pass has ended.
    pub computed_s: f64,
    /// When its last action and its last reduction have ended.
    pub end_s: f64,
    /// The bytes of borders that it sends.
    pub sent_bytes: usize,
    /// The most bytes that it keeps for backward passes at any time.
    pub kept_bytes_max: usize,
    /// The most shards in any stages between their forward and their backward pass, at any time.
    pub in_flight_max: usize,
    /// How often it gathers the weights of a bucket.
    pub gathers: usize,
    /// The most bytes of gathered weights at any time.
    pub gathered_bytes_max: usize,
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
        let computed = self.ranks.iter().map(|rank| rank.computed_s);
        let whole = computed.fold(0.0, f64::max) * self.ranks.len() as f64;
        if whole > 0.0 { 1.0 - busy / whole } else { 0.0 }
    }
}

/// One rank on its way through its program.
struct RunningRank {
    next: usize,
    now_s: f64,
    /// When the last collective ends.
    reduced_s: f64,
    /// When the link has taken the last border.
    linked_s: f64,
    /// The number of shards whose gradients each bucket has.
    added: BTreeMap<usize, usize>,
    /// When the weights of buckets arrive.
    gathered: BTreeMap<usize, f64>,
    gathered_bytes: usize,
    kept_bytes: usize,
    in_flight: usize,
    done: RankWork,
}

/// Runs the programs of all ranks of one replica, each action as soon as its inputs are there. `buckets_of` has the stage of
/// each bucket; the last one of a stage ends the stage's backward pass.
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
        linked_s: 0.0,
        added: BTreeMap::new(),
        gathered: BTreeMap::new(),
        gathered_bytes: 0,
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
                let border = border.from.min(border.to);
                self.now_s = self.now_s.max(arrival) + costs.borders[border].busy_s;
            }
            ProgramAction::Send(border) => {
                let before = border.from.min(border.to);
                let cost = costs.borders[before];
                self.now_s += cost.busy_s;
                self.linked_s = self.linked_s.max(self.now_s) + cost.link_s;
                arrivals.insert(*border, self.linked_s + cost.seconds);
                self.done.sent_bytes += cost.bytes;
            }
            ProgramAction::Gather { bucket } => self.gather(*bucket, costs),
            ProgramAction::Release { bucket } => {
                self.gathered.remove(bucket);
                self.gathered_bytes -= costs.buckets[*bucket].weight_bytes;
            }
            ProgramAction::Forward { bucket, shards } => {
                let stage = buckets_of[*bucket];
                self.compute(*bucket, costs.buckets[*bucket].forward_s, shards.len());
                // The last bucket is the first one in the forward pass.
                if buckets_of.get(bucket + 1) != Some(&stage) {
                    self.kept_bytes += costs.kept_bytes[stage] * shards.len();
                    self.in_flight += shards.len();
                }
                self.done.kept_bytes_max = self.done.kept_bytes_max.max(self.kept_bytes);
                self.done.in_flight_max = self.done.in_flight_max.max(self.in_flight);
            }
            ProgramAction::Loss { shards } => self.work(costs.loss_s * shards.len() as f64),
            ProgramAction::Backward { bucket, shards } => {
                self.compute(*bucket, costs.buckets[*bucket].backward_s, shards.len());
                self.add_gradients(*bucket, shards.len(), costs);
                self.end_shards(*bucket, shards.len(), buckets_of, costs);
            }
            ProgramAction::BackwardInput { bucket, shards } => {
                let cost = costs.buckets[*bucket];
                let seconds = cost.backward_s - cost.backward_weights_s;
                self.compute(*bucket, seconds, shards.len());
            }
            ProgramAction::BackwardWeights { bucket, shards } => {
                let seconds = costs.buckets[*bucket].backward_weights_s;
                self.compute(*bucket, seconds, shards.len());
                self.add_gradients(*bucket, shards.len(), costs);
                self.end_shards(*bucket, shards.len(), buckets_of, costs);
            }
            ProgramAction::Reduce { bucket } => {
                let cost = costs.buckets[*bucket];
                self.reduced_s = self.reduced_s.max(self.now_s) + cost.reduce_s;
                self.now_s += cost.reduce_busy_s;
            }
        }
        true
    }

    /// Starts to gather the weights of a bucket.
    fn gather(&mut self, bucket: usize, costs: &StepCosts) {
        let cost = costs.buckets[bucket];
        self.reduced_s = self.reduced_s.max(self.now_s) + cost.gather_s;
        self.now_s += cost.gather_busy_s;
        self.gathered.insert(bucket, self.reduced_s);
        self.gathered_bytes += cost.weight_bytes;
        self.done.gathers += 1;
        self.done.gathered_bytes_max = self.done.gathered_bytes_max.max(self.gathered_bytes);
    }

    /// Releases the values of shards that a stage keeps when its last bucket is done.
    fn end_shards(
        &mut self,
        bucket: usize,
        shards: usize,
        buckets_of: &[usize],
        costs: &StepCosts,
    ) {
        let stage = buckets_of[bucket];
        if buckets_of.get(bucket + 1) != Some(&stage) {
            self.kept_bytes -= costs.kept_bytes[stage] * shards;
            self.in_flight -= shards;
        }
    }

    /// Computes a pass of shards through a bucket as soon as its weights are there. Each shard takes `seconds`.
    fn compute(&mut self, bucket: usize, seconds: f64, shards: usize) {
        if let Some(arrival) = self.gathered.get(&bucket) {
            self.now_s = self.now_s.max(*arrival);
        }
        self.work(seconds * shards as f64);
    }

    /// Adds the gradients of shards to those of earlier ones.
    fn add_gradients(&mut self, bucket: usize, shards: usize, costs: &StepCosts) {
        let added = self.added.entry(bucket).or_default();
        let additions = shards - usize::from(*added == 0 && shards > 0);
        *added += shards;
        self.work(costs.buckets[bucket].add_s * additions as f64);
    }

    fn work(&mut self, seconds: f64) {
        self.now_s += seconds;
        self.done.busy_s += seconds;
        self.done.computed_s = self.now_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_program::{PipelineSchedule, ProgramShape, ShardOrder, StageShape, programs};

    fn even(stages: usize) -> StepCosts {
        let bucket = BucketCost {
            forward_s: 1.0,
            backward_s: 2.0,
            backward_weights_s: 1.0,
            ..BucketCost::default()
        };
        let border = BorderCost {
            bytes: 10,
            ..BorderCost::default()
        };
        StepCosts {
            buckets: vec![bucket; stages],
            borders: vec![border; stages],
            kept_bytes: vec![100; stages],
            loss_s: 0.0,
        }
    }

    fn run(schedule: PipelineSchedule, stages: usize, shards: u32) -> StepTimeline {
        let columns: Vec<usize> = (0..stages).collect();
        run_on(schedule, &columns, shards)
    }

    fn run_on(schedule: PipelineSchedule, columns: &[usize], shards: u32) -> StepTimeline {
        let stages = columns.len();
        // In backward order.
        let stage = |(index, &column): (usize, &usize)| StageShape {
            column,
            buckets: stages - 1 - index..stages - index,
            cost: 1,
        };
        let shape = ProgramShape {
            stages: columns.iter().enumerate().map(stage).collect(),
            shards: 0..shards,
            order: ShardOrder::ByShard,
            together: 1,
            gather_rounds: None,
        };
        let buckets: Vec<usize> = (0..stages).rev().collect();
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
                            _ => (stages - stage).min(shards as usize),
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
    fn zero_bubble_pipelines_have_the_known_bubble_and_memory() {
        for stages in 1..=8 {
            for shards in stages as u32..=20 {
                let found = run(PipelineSchedule::ZeroBubble, stages, shards);
                // (p - 1) (F + B - W) with halves of the same length.
                let idle = (stages - 1) as f64;
                assert_eq!(
                    found.end_s,
                    3.0 * f64::from(shards) + idle,
                    "{stages} {shards}"
                );
                for rank in &found.ranks {
                    assert!(rank.in_flight_max <= stages, "{stages} {shards}: {rank:?}");
                }
            }
        }
    }

    #[test]
    fn interleaved_pipelines_have_the_known_bubble() {
        for ranks in 1..=8 {
            for rounds in 2..=4 {
                let columns: Vec<usize> = (0..ranks * rounds).map(|stage| stage % ranks).collect();
                for shards in (1..=4).map(|times| (times * ranks) as u32) {
                    let found = run_on(PipelineSchedule::Interleaved, &columns, shards);
                    let (waiting, rounds) = ((ranks - 1) as f64, rounds as f64);
                    let bubble = waiting / (rounds * f64::from(shards) + waiting);
                    let difference = found.bubble() - bubble;
                    assert!(
                        difference.abs() < 1e-12,
                        "{ranks} {rounds} {shards}: {found:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_schedule_ends_with_any_number_of_shards_and_a_tied_last_stage() {
        use PipelineSchedule::{GPipe, Interleaved, OneForwardOneBackward, ZeroBubble};
        for ranks in 1..=5 {
            for rounds in 1..=3 {
                for is_tied in [false, true] {
                    let columns = (0..ranks * rounds).map(|stage| stage % ranks);
                    let columns: Vec<usize> = columns.chain(is_tied.then_some(0)).collect();
                    for shards in 0..=9 {
                        for schedule in [GPipe, OneForwardOneBackward, Interleaved, ZeroBubble] {
                            let found = run_on(schedule, &columns, shards);
                            let computed: f64 = found.ranks.iter().map(|rank| rank.busy_s).sum();
                            assert_eq!(computed, 3.0 * f64::from(shards) * columns.len() as f64);
                        }
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
        let shards = 0..1;
        let forward = ProgramAction::Forward { bucket: 1, shards };
        let program: Vec<ProgramAction> =
            std::iter::once(forward).chain(actions.concat()).collect();
        let mut costs = even(1);
        let even = costs.buckets[0];
        let bucket = |reduce_s| BucketCost { reduce_s, ..even };
        costs.buckets = vec![bucket(1.0), bucket(1.5)];
        let found = timeline(&[program], &[0, 0], &costs).unwrap();
        assert_eq!((found.end_s, found.ranks[0].busy_s), (6.5, 5.0));
        // The last reduction is not idle time of a schedule.
        assert_eq!((found.ranks[0].computed_s, found.bubble()), (5.0, 0.0));
    }

    #[test]
    fn a_link_takes_one_message_after_the_other() {
        let end = |link_s, busy_s| {
            let mut costs = even(2);
            costs.borders = vec![BorderCost {
                seconds: 0.5,
                link_s,
                busy_s,
                bytes: 0,
            }];
            let stage = |column: usize| StageShape {
                column,
                buckets: 1 - column..2 - column,
                cost: 1,
            };
            let shape = ProgramShape {
                stages: vec![stage(0), stage(1)],
                shards: 0..3,
                order: ShardOrder::ByShard,
                together: 1,
                gather_rounds: None,
            };
            let programs = programs(PipelineSchedule::GPipe, &shape);
            timeline(&programs, &[1, 0], &costs).unwrap().end_s
        };
        // The last shard is sent at 3 s, arrives at 3.5 s, is computed at 4.5 s; three backward passes take 6 s and the last
        // gradient travels 0.5 s to a pass of 2 s.
        assert_eq!(end(0.0, 0.0), 13.0);
        // Messages of 2 s: sent from 1 s, they end at 3, 5 and 7 s; the last gradient is sent at 14.5 s.
        assert_eq!(end(2.0, 0.0), 19.0);
        // The first rank sends three messages and receives three, and the second one too: of its own work, a quarter of a second
        // for each; each message also delays its receiver.
        assert_eq!(end(0.0, 0.25), 15.0);
    }

    #[test]
    fn losses_and_later_additions_take_time() {
        let mut costs = even(1);
        costs.loss_s = 0.25;
        costs.buckets[0].add_s = 0.125;
        let shape = ProgramShape {
            stages: vec![StageShape {
                column: 0,
                buckets: 0..1,
                cost: 1,
            }],
            shards: 0..4,
            order: ShardOrder::ByShard,
            together: 1,
            gather_rounds: None,
        };
        for schedule in [PipelineSchedule::GPipe, PipelineSchedule::ZeroBubble] {
            let found = timeline(&programs(schedule, &shape), &[0], &costs).unwrap();
            assert_eq!(found.end_s, 4.0 * 3.25 + 3.0 * 0.125);
        }
    }

    #[test]
    fn weights_arrive_beside_the_pass_before() {
        let stage = StageShape {
            column: 0,
            buckets: 0..3,
            cost: 1,
        };
        let shape = ProgramShape {
            stages: vec![stage],
            shards: 0..1,
            order: ShardOrder::ByShard,
            together: 1,
            gather_rounds: Some(1),
        };
        let programs = programs(PipelineSchedule::default(), &shape);
        let end = |gather_s| {
            let mut costs = even(1);
            let bucket = BucketCost {
                gather_s,
                weight_bytes: 5,
                ..costs.buckets[0]
            };
            costs.buckets = vec![bucket; 3];
            timeline(&programs, &[0; 3], &costs).unwrap()
        };
        // 3 forward and 3 backward passes of 1 and 2 seconds; only the first arrival is awaited.
        let found = end(1.0);
        assert_eq!((found.end_s, found.ranks[0].gathers), (10.0, 5));
        assert_eq!(found.ranks[0].gathered_bytes_max, 10);
        // Arrivals at 3, 6, 9, 13 and 16 seconds; passes end at 4, 7, 10, 12, 15 and 18.
        assert_eq!(end(3.0).end_s, 18.0);
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
