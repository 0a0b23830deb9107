//! The program of a training step: for each rank, the order in which it computes its stages, exchanges borders and reduces
//! gradients.
//!
//! A stage is a contiguous part of the model, and the micro-batches are logical shards. Plain data parallelism is the
//! program of one stage. The actions of a rank have a fixed order, and each runs as soon as its inputs are there, so
//! [`crate::timeline()`] can run the programs of all ranks on paper.

use std::ops::Range;

/// The order in which the ranks of a pipeline compute the micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes: a rank keeps the activations of all its micro-batches. Source: Huang et
    /// al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019.
    GPipe,
    /// One forward, one backward (1F1B): a stage starts with as many forward passes as there are stages after it, and then
    /// alternates, so it keeps the activations of at most that many micro-batches and one more. It takes as long as
    /// GPipe. Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021.
    #[default]
    OneForwardOneBackward,
}

/// The values that pass from one stage to the next, or their gradient on its way back, for one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Border {
    /// The stage that computes the values.
    pub from: usize,
    /// The stage that needs them: the next one, or the previous one for a gradient.
    pub to: usize,
    /// The shard.
    pub shard: u32,
}

/// One action of a rank in a step. Several shards in one action pass through each layer together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramAction {
    /// Waits for values from the rank of another stage.
    Receive(Border),
    /// Starts to send values to the rank of another stage.
    Send(Border),
    /// Computes the forward pass of a stage.
    Forward {
        /// The stage.
        stage: usize,
        /// The shards.
        shards: Range<u32>,
    },
    /// Computes the loss and its gradient.
    Loss {
        /// The shards.
        shards: Range<u32>,
    },
    /// Computes the backward pass of the layers of a bucket, and adds their gradients.
    Backward {
        /// The bucket.
        bucket: usize,
        /// The shards.
        shards: Range<u32>,
    },
    /// Starts the sum of the gradients of a bucket over all shards.
    Reduce {
        /// The bucket.
        bucket: usize,
    },
}

/// A stage as programs see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageShape {
    /// The coordinate of its rank in the pipeline.
    pub column: usize,
    /// Its buckets, in the order of the backward pass.
    pub buckets: Range<usize>,
    /// The cost of its forward pass, in any unit; the backward pass costs twice as much. It only decides the order of
    /// actions.
    pub cost: u64,
}

/// The step of one replica of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramShape {
    /// The stages in the order of the layers.
    pub stages: Vec<StageShape>,
    /// The shards that pass through all of them.
    pub shards: Range<u32>,
    /// Whether all shards pass through a layer before any of them enters the next one. Only for one stage.
    pub in_lock_step: bool,
}

/// Returns the programs of the ranks of one replica, by their coordinates in the pipeline.
#[must_use]
pub fn programs(schedule: PipelineSchedule, shape: &ProgramShape) -> Vec<Vec<ProgramAction>> {
    let columns = shape.stages.iter().map(|stage| stage.column + 1).max();
    let mut programs = vec![Vec::new(); columns.unwrap_or(0)];
    if shape.in_lock_step || shape.shards.is_empty() {
        for index in 0..shape.stages.len() {
            add_together(shape, index, &mut programs);
        }
        return programs;
    }
    for (pass, index, shard) in order(schedule, shape) {
        let program = &mut programs[shape.stages[index].column];
        match pass {
            Pass::Forward => add_forward(shape, index, shard, program),
            Pass::Backward => add_backward(shape, index, shard, program),
        }
    }
    programs
}

/// Adds the passes of all shards of a stage together. Without shards, only the reductions remain, and in lock step the
/// passes, in which ranks exchange sums.
fn add_together(shape: &ProgramShape, index: usize, programs: &mut [Vec<ProgramAction>]) {
    let (stage, shards) = (&shape.stages[index], shape.shards.clone());
    let program = &mut programs[stage.column];
    if shape.in_lock_step {
        program.push(ProgramAction::Forward {
            stage: index,
            shards: shards.clone(),
        });
        program.push(ProgramAction::Loss {
            shards: shards.clone(),
        });
    }
    for bucket in stage.buckets.clone() {
        if shape.in_lock_step {
            let shards = shards.clone();
            program.push(ProgramAction::Backward { bucket, shards });
        }
        program.push(ProgramAction::Reduce { bucket });
    }
}

fn add_forward(shape: &ProgramShape, index: usize, shard: u32, program: &mut Vec<ProgramAction>) {
    let column = shape.stages[index].column;
    let is_elsewhere = |stage: usize| shape.stages[stage].column != column;
    let border = |from, to| Border { from, to, shard };
    if index > 0 && is_elsewhere(index - 1) {
        program.push(ProgramAction::Receive(border(index - 1, index)));
    }
    let shards = shard..shard + 1;
    program.push(ProgramAction::Forward {
        stage: index,
        shards: shards.clone(),
    });
    if index + 1 == shape.stages.len() {
        program.push(ProgramAction::Loss { shards });
    } else if is_elsewhere(index + 1) {
        program.push(ProgramAction::Send(border(index, index + 1)));
    }
}

fn add_backward(shape: &ProgramShape, index: usize, shard: u32, program: &mut Vec<ProgramAction>) {
    let stage = &shape.stages[index];
    let is_elsewhere = |other: usize| shape.stages[other].column != stage.column;
    let border = |from, to| Border { from, to, shard };
    if index + 1 < shape.stages.len() && is_elsewhere(index + 1) {
        program.push(ProgramAction::Receive(border(index + 1, index)));
    }
    for bucket in stage.buckets.clone() {
        let shards = shard..shard + 1;
        program.push(ProgramAction::Backward { bucket, shards });
        if shard + 1 == shape.shards.end {
            program.push(ProgramAction::Reduce { bucket });
        }
    }
    if index > 0 && is_elsewhere(index - 1) {
        program.push(ProgramAction::Send(border(index, index - 1)));
    }
}

/// The direction of a pass through a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    Backward,
}

/// The times at which the passes of a stage end, by position of the shard.
#[derive(Debug, Default)]
struct StageEnds {
    forward: Vec<u64>,
    backward: Vec<u64>,
}

/// Returns all passes through all stages in the order in which they begin if every stage takes its cost. Both passes of a
/// stage take the shards in order.
fn order(schedule: PipelineSchedule, shape: &ProgramShape) -> Vec<(Pass, usize, u32)> {
    let count = shape.shards.len();
    let stages = shape.stages.len();
    let mut ends: Vec<StageEnds> = (0..stages).map(|_| StageEnds::default()).collect();
    let columns = shape.stages.iter().map(|stage| stage.column + 1).max();
    let mut free = vec![0; columns.unwrap_or(0)];
    let mut order = Vec::with_capacity(2 * count * stages);
    while let Some((begin, pass, index)) = next_pass(schedule, shape, &ends, &free) {
        let StageShape { column, cost, .. } = shape.stages[index];
        let (done, cost) = match pass {
            Pass::Forward => (&mut ends[index].forward, cost),
            Pass::Backward => (&mut ends[index].backward, 2 * cost),
        };
        order.push((pass, index, shape.shards.start + done.len() as u32));
        done.push(begin + cost);
        free[column] = begin + cost;
    }
    order
}

/// Returns the pass that can begin first, and when. At equal times, 1F1B prefers backward passes, and the later stage.
fn next_pass(
    schedule: PipelineSchedule,
    shape: &ProgramShape,
    ends: &[StageEnds],
    free: &[u64],
) -> Option<(u64, Pass, usize)> {
    let (stages, count) = (shape.stages.len(), shape.shards.len());
    let forward = |index: usize| {
        let next = ends[index].forward.len();
        let in_flight = next - ends[index].backward.len();
        let is_limited = schedule == PipelineSchedule::OneForwardOneBackward;
        if next == count || is_limited && in_flight >= stages - index {
            return None;
        }
        let ready = match index.checked_sub(1) {
            Some(before) => *ends[before].forward.get(next)?,
            None => 0,
        };
        Some((ready, Pass::Forward, index))
    };
    let backward = |index: usize| {
        let next = ends[index].backward.len();
        if schedule == PipelineSchedule::GPipe && ends[index].forward.len() < count {
            return None;
        }
        let own = *ends[index].forward.get(next)?;
        let ready = match ends.get(index + 1) {
            Some(after) => *after.backward.get(next)?,
            None => own,
        };
        Some((ready.max(own), Pass::Backward, index))
    };
    let each = (0..stages).rev();
    let all = each
        .clone()
        .filter_map(backward)
        .chain(each.filter_map(forward));
    let begins = all.map(|(ready, pass, index)| {
        let begin = ready.max(free[shape.stages[index].column]);
        (begin, pass, index)
    });
    begins.min_by_key(|&(begin, ..)| begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(columns: &[usize], shards: u32) -> ProgramShape {
        let stage = |(index, &column): (usize, &usize)| StageShape {
            column,
            buckets: index..index + 1,
            cost: 1,
        };
        ProgramShape {
            stages: columns.iter().enumerate().map(stage).collect(),
            shards: 0..shards,
            in_lock_step: false,
        }
    }

    /// Returns the passes of a program: shards of forward passes, and of backward passes as negative numbers, from 1.
    fn passes(program: &[ProgramAction]) -> Vec<i32> {
        let passes = program.iter().filter_map(|action| match action {
            ProgramAction::Forward { shards, .. } => Some(shards.start as i32 + 1),
            ProgramAction::Backward { shards, .. } => Some(-(shards.start as i32) - 1),
            _ => None,
        });
        passes.collect()
    }

    /// One forward, one backward as it is published.
    fn published(stage: usize, stages: usize, shards: i32) -> Vec<i32> {
        let ahead = ((stages - stage - 1) as i32).min(shards);
        let mut passes: Vec<i32> = (1..=ahead).collect();
        for shard in 1..=shards {
            if shard + ahead <= shards {
                passes.push(shard + ahead);
            }
            passes.push(-shard);
        }
        passes
    }

    #[test]
    fn one_forward_one_backward_is_the_published_schedule() {
        for stages in 1..=8 {
            for shards in 1..=12 {
                let columns: Vec<usize> = (0..stages).collect();
                let shape = shape(&columns, shards);
                let programs = programs(PipelineSchedule::OneForwardOneBackward, &shape);
                for (stage, program) in programs.iter().enumerate() {
                    let expected = published(stage, stages, shards as i32);
                    assert_eq!(passes(program), expected, "{stage} of {stages}, {shards}");
                }
            }
        }
    }

    #[test]
    fn gpipe_computes_all_forward_passes_first() {
        for program in programs(PipelineSchedule::GPipe, &shape(&[0, 1, 2], 4)) {
            assert_eq!(passes(&program), [1, 2, 3, 4, -1, -2, -3, -4]);
        }
    }

    #[test]
    fn plain_data_parallelism_is_the_program_of_one_stage() {
        let mut one = shape(&[0], 2);
        one.stages[0].buckets = 0..2;
        let forward = |shards| ProgramAction::Forward { stage: 0, shards };
        let loss = |shards| ProgramAction::Loss { shards };
        let backward = |bucket, shards| ProgramAction::Backward { bucket, shards };
        let reduce = |bucket| ProgramAction::Reduce { bucket };
        let each = [
            [forward(0..1), loss(0..1)].to_vec(),
            [backward(0, 0..1), backward(1, 0..1)].to_vec(),
            [forward(1..2), loss(1..2)].to_vec(),
            [backward(0, 1..2), reduce(0), backward(1, 1..2), reduce(1)].to_vec(),
        ];
        let found = programs(PipelineSchedule::OneForwardOneBackward, &one);
        assert_eq!(found, [each.concat()]);
        one.in_lock_step = true;
        let together = [
            [forward(0..2), loss(0..2)].to_vec(),
            [backward(0, 0..2), reduce(0), backward(1, 0..2), reduce(1)].to_vec(),
        ];
        let found = programs(PipelineSchedule::OneForwardOneBackward, &one);
        assert_eq!(found, [together.concat()]);
        one.in_lock_step = false;
        one.shards = 2..2;
        let spare = programs(PipelineSchedule::OneForwardOneBackward, &one);
        assert_eq!(spare, [vec![reduce(0), reduce(1)]]);
    }

    #[test]
    fn borders_pass_between_neighbouring_stages_on_other_ranks_only() {
        // The last stage is on the rank of the first one, as with tied tables.
        let programs = programs(PipelineSchedule::default(), &shape(&[0, 1, 0], 1));
        let border = |from, to| Border { from, to, shard: 0 };
        let borders = |program: &[ProgramAction]| {
            let borders = program.iter().filter_map(|action| match action {
                ProgramAction::Receive(border) | ProgramAction::Send(border) => Some(*border),
                _ => None,
            });
            borders.collect::<Vec<_>>()
        };
        let all = [border(0, 1), border(1, 2), border(2, 1), border(1, 0)];
        assert_eq!(borders(&programs[0]), all);
        assert_eq!(borders(&programs[1]), all);
    }
}
