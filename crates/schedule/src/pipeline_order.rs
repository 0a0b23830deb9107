//! The order in which the ranks of a pipeline compute their stages.
//!
//! A schedule prescribes the order within each stage or, if interleaved, within each rank. A simulation of all ranks merges these
//! orders. So layouts in which a rank has several stages need no formulas, and no layout can deadlock.

use std::cmp::Reverse;

use crate::step_program::{PipelineSchedule, ProgramShape};

/// A pass of one shard through one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pass {
    /// The whole backward pass.
    Backward,
    /// The half of the backward pass that the stage before needs.
    BackwardInput,
    /// The forward pass.
    Forward,
    /// The half of the backward pass that no other stage needs.
    BackwardWeights,
}

/// A pass of a shard through a stage.
pub(crate) type StagePass = (Pass, usize, u32);

/// The stages of one rank whose passes follow each other in a fixed order.
struct Lane {
    column: usize,
    /// In the order of the layers.
    stages: Vec<usize>,
    /// The number of shards that pass through one of the stages before they enter the next one.
    together: usize,
    /// The shards of the step.
    shards: usize,
    /// The most forward passes without their backward pass.
    ahead: usize,
    /// The number of backward passes that have begun before the first one is completed, if they are in halves.
    delay: Option<usize>,
    forward: usize,
    backward: usize,
    weights: usize,
}

impl Lane {
    fn passes(&self) -> usize {
        self.shards * self.stages.len()
    }

    /// Returns the stage and the shard of a pass, by its number.
    fn place(&self, number: usize, is_forward: bool) -> (usize, usize) {
        let stages = self.stages.len();
        let first = number / (self.together * stages) * self.together;
        let together = self.together.min(self.shards - first);
        let rest = number - first * stages;
        let (stage, shard) = (rest / together, first + rest % together);
        match is_forward {
            true => (self.stages[stage], shard),
            false => (self.stages[stages - 1 - stage], shard),
        }
    }

    fn can_begin(&self, pass: Pass) -> bool {
        let next = match pass {
            Pass::Forward => self.forward,
            Pass::BackwardWeights if self.weights == self.backward => return false,
            Pass::BackwardWeights => self.weights,
            Pass::Backward | Pass::BackwardInput => self.backward,
        };
        next < self.passes()
    }

    fn backward_pass(&self) -> Pass {
        match self.delay {
            Some(_) => Pass::BackwardInput,
            None => Pass::Backward,
        }
    }

    /// Returns the pass that the schedule demands next; `None` at the end.
    fn demanded(&self) -> Option<Pass> {
        let is_late = |delay: usize| self.backward - self.weights > delay;
        if self.delay.is_some_and(is_late) {
            return Some(Pass::BackwardWeights);
        }
        if self.can_begin(Pass::Forward) && self.forward - self.backward < self.ahead {
            return Some(Pass::Forward);
        }
        if self.can_begin(self.backward_pass()) {
            return Some(self.backward_pass());
        }
        (self.weights < self.backward && self.delay.is_some()).then_some(Pass::BackwardWeights)
    }

    /// Returns the stage and the shard of the next pass of a kind.
    fn next(&self, pass: Pass) -> (usize, usize) {
        match pass {
            Pass::Forward => self.place(self.forward, true),
            Pass::Backward | Pass::BackwardInput => self.place(self.backward, false),
            Pass::BackwardWeights => self.place(self.weights, false),
        }
    }

    fn advance(&mut self, pass: Pass) {
        match pass {
            Pass::Forward => self.forward += 1,
            Pass::Backward | Pass::BackwardInput => self.backward += 1,
            Pass::BackwardWeights => self.weights += 1,
        }
    }
}

/// Returns the lanes of all ranks. Interleaved stages of a rank share one; otherwise each stage has its own, as a last stage
/// has that is on the rank of the first one.
fn lanes(schedule: PipelineSchedule, shape: &ProgramShape) -> Vec<Lane> {
    let (stages, shards) = (shape.stages.len(), shape.shards.len());
    let columns = shape.stages.iter().map(|stage| stage.column + 1).max();
    let columns = columns.unwrap_or(1);
    let lane = |stages: Vec<usize>, ahead| Lane {
        column: stages
            .first()
            .map_or(0, |&stage| shape.stages[stage].column),
        stages,
        together: shards.max(1),
        shards,
        ahead,
        delay: None,
        forward: 0,
        backward: 0,
        weights: 0,
    };
    let own = |index: usize| {
        let ahead = match schedule {
            PipelineSchedule::GPipe => shards,
            _ => stages - index,
        };
        let delay = (schedule == PipelineSchedule::ZeroBubble).then_some(index);
        Lane {
            delay,
            ..lane(vec![index], ahead)
        }
    };
    if schedule != PipelineSchedule::Interleaved {
        return (0..stages).map(own).collect();
    }
    let rounds = stages / columns;
    let interleaved = (0..columns).map(|column| {
        let stages = (0..rounds).map(|round| round * columns + column);
        let ahead = 2 * (columns - column - 1) + (rounds - 1) * columns + 1;
        Lane {
            together: columns,
            ..lane(stages.collect(), ahead)
        }
    });
    interleaved
        .chain((rounds * columns..stages).map(own))
        .collect()
}

/// The passes so far, when they ended, and when each rank is free.
struct Progress {
    /// By stage and by position of the shard.
    forward: Vec<Vec<u64>>,
    backward: Vec<Vec<u64>>,
    free: Vec<u64>,
}

impl Progress {
    /// Returns when a pass can begin; `None` while a pass that it needs has no time yet.
    fn begin(&self, column: usize, pass: Pass, stage: usize, shard: usize) -> Option<u64> {
        let ready = match pass {
            Pass::Forward => match stage.checked_sub(1) {
                Some(before) => *self.forward[before].get(shard)?,
                None => 0,
            },
            Pass::Backward | Pass::BackwardInput => {
                let own = *self.forward[stage].get(shard)?;
                match self.backward.get(stage + 1) {
                    Some(after) => own.max(*after.get(shard)?),
                    None => own,
                }
            }
            Pass::BackwardWeights => *self.backward[stage].get(shard)?,
        };
        Some(ready.max(self.free[column]))
    }
}

/// Returns all passes through all stages in the order in which they begin if every stage takes its cost. The passes of a stage
/// take the shards in order. The order of the ranks together is one in which no rank waits for a later pass.
pub(crate) fn order(schedule: PipelineSchedule, shape: &ProgramShape) -> Vec<StagePass> {
    let mut lanes = lanes(schedule, shape);
    let stages = shape.stages.len();
    let columns = shape.stages.iter().map(|stage| stage.column + 1).max();
    let mut progress = Progress {
        forward: vec![Vec::new(); stages],
        backward: vec![Vec::new(); stages],
        free: vec![0; columns.unwrap_or(0)],
    };
    let mut order = Vec::new();
    while let Some((begin, pass, index)) = next_pass(&lanes, &progress) {
        let (stage, shard) = lanes[index].next(pass);
        lanes[index].advance(pass);
        let cost = shape.stages[stage].cost;
        let end = match pass {
            Pass::Backward => begin + 2 * cost,
            _ => begin + cost,
        };
        match pass {
            Pass::Forward => progress.forward[stage].push(end),
            Pass::Backward | Pass::BackwardInput => progress.backward[stage].push(end),
            Pass::BackwardWeights => {}
        }
        progress.free[lanes[index].column] = end;
        order.push((pass, stage, shape.shards.start + shard as u32));
    }
    order
}

/// Returns the pass that can begin first, when, and its lane: of those that the schedule demands, or of all if each of these
/// waits for another one, as at the end of an interleaved schedule whose shards are not a multiple of its ranks.
fn next_pass(lanes: &[Lane], progress: &Progress) -> Option<(u64, Pass, usize)> {
    let begin = |index: usize, pass: Pass| {
        let lane = &lanes[index];
        let (stage, shard) = lane.next(pass);
        Some((
            progress.begin(lane.column, pass, stage, shard)?,
            pass,
            index,
        ))
    };
    // At equal times, backward passes and later stages are first.
    let first = |begins: &mut dyn Iterator<Item = (u64, Pass, usize)>| {
        begins.min_by_key(|&(begin, pass, index)| (begin, pass, Reverse(lanes[index].next(pass).0)))
    };
    let demanded = |index: usize| begin(index, lanes[index].demanded()?);
    let possible = |index: usize| {
        let passes = [lanes[index].backward_pass(), Pass::Forward];
        let passes = passes
            .into_iter()
            .filter(move |pass| lanes[index].can_begin(*pass));
        passes.filter_map(move |pass| begin(index, pass))
    };
    let each = 0..lanes.len();
    first(&mut each.clone().filter_map(demanded)).or_else(|| first(&mut each.flat_map(possible)))
}
