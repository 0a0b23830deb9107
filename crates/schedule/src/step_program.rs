//! The program of a training step: for each rank, the order in which it computes its stages, exchanges borders and reduces
//! gradients.
//!
//! A stage is a contiguous part of the model, and the micro-batches are logical shards. Plain data parallelism is the
//! program of one stage. The actions of a rank have a fixed order, and each runs as soon as its inputs are there, so
//! [`crate::timeline()`] can run the programs of all ranks on paper.
//!
//! All schedules (GPipe, 1F1B, interleaved, zero bubble) and the order of shards and layers without a pipeline are orders of the
//! same actions, so there is one way to run a step. If gradients are divided, the shards of a rank pass layer by layer, and each
//! bucket is scattered once. A scatter after each shard would send a multiple of these bytes and save no memory: an owner would
//! keep the subtrees of all ranks, which are complete only within the contiguous shards of a rank.

use std::ops::Range;

use ronde_core::step_layout::PipelineStage;

use crate::pipeline_order::{Pass, order};

/// The order in which the ranks of a pipeline compute the micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes: a rank keeps the activations of all its micro-batches. Source: Huang et
    /// al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019.
    GPipe,
    /// One forward, one backward (1F1B): a stage starts with as many forward passes as there are stages after it, and then
    /// alternates, so it keeps the activations of at most that many micro-batches and one more. It takes as long as
    /// GPipe. Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021.
    #[default]
    OneForwardOneBackward,
    /// 1F1B in which each rank has several stages, one of each round through all ranks: the first passes reach the last rank
    /// sooner, so the ranks wait less, and more values pass between them. Source: Narayanan et al., "Efficient Large-Scale
    /// Language Model Training on GPU Clusters Using Megatron-LM", 2021.
    Interleaved,
    /// 1F1B in which the backward pass is in halves: the gradients of the weights, which no other rank needs, are computed
    /// while a rank would wait. A stage keeps the values of as many micro-batches as there are stages. Source: Qi et al.,
    /// "Zero Bubble Pipeline Parallelism", 2023, schedule ZB-H1.
    ZeroBubble,
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
    /// Starts to receive the weights of the layers of a bucket from the ranks that hold them.
    Gather {
        /// The bucket.
        bucket: usize,
    },
    /// Releases the gathered weights of a bucket.
    Release {
        /// The bucket.
        bucket: usize,
    },
    /// Computes the forward pass of the layers of a bucket.
    Forward {
        /// The bucket.
        bucket: usize,
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
    /// Computes only the gradients of the inputs of the layers of a bucket.
    BackwardInput {
        /// The bucket.
        bucket: usize,
        /// The shards.
        shards: Range<u32>,
    },
    /// Computes the gradients of the weights of the layers of a bucket after those of the inputs, and adds them.
    BackwardWeights {
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

/// The order in which a replica computes its shards and layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ShardOrder {
    /// A shard passes through all buckets of a stage before the next one does: the least memory for activations.
    #[default]
    ByShard,
    /// All shards pass through a bucket before any of them enters the next one, so weights are gathered once per pass of all
    /// shards, and a bucket's gradients are in memory only while its layers run their backward pass. The activations of all
    /// shards are kept. The layers of the loss run shard by shard, so the outputs of one shard are in memory. Only for one stage. Source:
    /// Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022.
    ByLayer,
    /// As [`ShardOrder::ByLayer`], also through the loss: layers need sums over all shards. Only for one stage.
    LockStep,
}

/// The step of one replica of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramShape {
    /// The stages in the order of the layers.
    pub stages: Vec<StageShape>,
    /// The shards that pass through all of them.
    pub shards: Range<u32>,
    /// The order of shards and layers.
    pub order: ShardOrder,
    /// The number of consecutive shards that pass through the layers together, at least 1. Only for one stage.
    pub together: u32,
    /// If ranks gather weights, the most shards of any replica: ranks with the same layers gather them together, so those with
    /// fewer shards gather them as often.
    pub gather_rounds: Option<u32>,
}

impl ProgramShape {
    /// Returns the shape in which each stage has one bucket; in backward order, that of the last stage is first.
    #[must_use]
    pub fn with_one_bucket_per_stage(stages: &[PipelineStage], shards: Range<u32>) -> Self {
        let count = stages.len();
        let stage = |(index, stage): (usize, &PipelineStage)| StageShape {
            column: stage.column,
            buckets: count - 1 - index..count - index,
            cost: 1,
        };
        Self {
            stages: stages.iter().enumerate().map(stage).collect(),
            shards,
            order: ShardOrder::ByShard,
            together: 1,
            gather_rounds: None,
        }
    }
}

/// Returns the programs of the ranks of one replica, by their coordinates in the pipeline.
#[must_use]
pub fn programs(schedule: PipelineSchedule, shape: &ProgramShape) -> Vec<Vec<ProgramAction>> {
    let own = shape.shards.clone();
    let rounds = shape.gather_rounds.unwrap_or(0).max(own.len() as u32);
    let every = ProgramShape {
        shards: own.start..own.start + rounds,
        ..shape.clone()
    };
    let mut programs = order_of_actions(schedule, &every);
    if shape.gather_rounds.is_some() {
        for program in &mut programs {
            *program = with_gathers(std::mem::take(program));
            program.retain_mut(|action| action.keep_shards(&own));
        }
    }
    programs
}

fn order_of_actions(schedule: PipelineSchedule, shape: &ProgramShape) -> Vec<Vec<ProgramAction>> {
    let columns = shape.stages.iter().map(|stage| stage.column + 1).max();
    let mut programs = vec![Vec::new(); columns.unwrap_or(0)];
    if shape.order != ShardOrder::ByShard || shape.shards.is_empty() {
        for (index, stage) in shape.stages.iter().enumerate() {
            add_together(shape, index, &mut programs[stage.column]);
        }
        return programs;
    }
    if shape.together > 1 && shape.stages.len() == 1 {
        add_runs(shape, &mut programs[shape.stages[0].column]);
        return programs;
    }
    for (pass, index, shard) in order(schedule, shape) {
        let program = &mut programs[shape.stages[index].column];
        match pass {
            Pass::Forward => add_forward(shape, index, shard, program),
            Pass::Backward | Pass::BackwardInput => {
                add_backward(shape, index, shard, pass, program);
            }
            Pass::BackwardWeights => add_backward_weights(shape, index, shard, program),
        }
    }
    programs
}

/// Gathers the weights of each pass while the pass before it is computed, and releases them after it unless the next pass needs
/// them too.
fn with_gathers(program: Vec<ProgramAction>) -> Vec<ProgramAction> {
    let buckets: Vec<usize> = program.iter().filter_map(ProgramAction::computed).collect();
    let mut gathered = Vec::with_capacity(2 * program.len());
    gathered.extend(
        buckets
            .first()
            .map(|&bucket| ProgramAction::Gather { bucket }),
    );
    let mut pass = 0;
    for action in program {
        let Some(bucket) = action.computed() else {
            gathered.push(action);
            continue;
        };
        pass += 1;
        let next = buckets.get(pass).copied();
        let other = next.filter(|next| *next != bucket);
        gathered.extend(other.map(|bucket| ProgramAction::Gather { bucket }));
        gathered.push(action);
        if next != Some(bucket) {
            gathered.push(ProgramAction::Release { bucket });
        }
    }
    gathered
}

impl ProgramAction {
    /// Returns the bucket whose layers the action computes.
    fn computed(&self) -> Option<usize> {
        match self {
            Self::Forward { bucket, .. }
            | Self::Backward { bucket, .. }
            | Self::BackwardInput { bucket, .. }
            | Self::BackwardWeights { bucket, .. } => Some(*bucket),
            _ => None,
        }
    }

    /// Keeps some shards only; returns whether anything remains to be done.
    fn keep_shards(&mut self, kept: &Range<u32>) -> bool {
        match self {
            Self::Receive(border) | Self::Send(border) => kept.contains(&border.shard),
            Self::Forward { shards, .. }
            | Self::Loss { shards }
            | Self::Backward { shards, .. }
            | Self::BackwardInput { shards, .. }
            | Self::BackwardWeights { shards, .. } => {
                *shards = shards.start.max(kept.start)..shards.end.min(kept.end);
                shards.start < shards.end
            }
            Self::Gather { .. } | Self::Release { .. } | Self::Reduce { .. } => true,
        }
    }
}

/// Adds the passes of all shards of a stage together. Without shards, only the reductions remain, and in lock step the
/// passes, in which ranks exchange sums.
fn add_together(shape: &ProgramShape, index: usize, program: &mut Vec<ProgramAction>) {
    let (buckets, all) = (shape.stages[index].buckets.clone(), shape.shards.clone());
    let forward = |bucket, shards| ProgramAction::Forward { bucket, shards };
    let backward = |bucket, shards| ProgramAction::Backward { bucket, shards };
    let reduce = |bucket| ProgramAction::Reduce { bucket };
    match shape.order {
        ShardOrder::LockStep => {
            program.extend(buckets.clone().rev().map(|b| forward(b, all.clone())));
            program.push(ProgramAction::Loss {
                shards: all.clone(),
            });
            program.extend(buckets.flat_map(|b| [backward(b, all.clone()), reduce(b)]));
        }
        _ if all.is_empty() => program.extend(buckets.map(reduce)),
        ShardOrder::ByShard | ShardOrder::ByLayer => {
            // The first bucket has the last layers.
            let (last, others) = (buckets.start, buckets.start + 1..buckets.end);
            program.extend(others.clone().rev().map(|b| forward(b, all.clone())));
            for shard in all.clone() {
                let shards = shard..shard + 1;
                program.push(forward(last, shards.clone()));
                program.push(ProgramAction::Loss {
                    shards: shards.clone(),
                });
                program.push(backward(last, shards));
            }
            program.push(reduce(last));
            program.extend(others.flat_map(|b| [backward(b, all.clone()), reduce(b)]));
        }
    }
}

/// Divides shards in runs of at most `together`, counted from the first one, so that all ranks have the same number of runs if they have
/// the same number of shards.
pub fn runs(shards: Range<u32>, together: u32) -> impl Iterator<Item = Range<u32>> {
    let (end, together) = (shards.end, together.max(1));
    let starts = shards.step_by(together as usize);
    starts.map(move |start| start..end.min(start.saturating_add(together)))
}

/// Adds the passes of the shards of a stage, run by run.
fn add_runs(shape: &ProgramShape, program: &mut Vec<ProgramAction>) {
    let buckets = shape.stages[0].buckets.clone();
    for shards in runs(shape.shards.clone(), shape.together) {
        for bucket in buckets.clone().rev() {
            let shards = shards.clone();
            program.push(ProgramAction::Forward { bucket, shards });
        }
        program.push(ProgramAction::Loss {
            shards: shards.clone(),
        });
        for bucket in buckets.clone() {
            let last = shards.end - 1;
            let shards = shards.clone();
            program.push(ProgramAction::Backward { bucket, shards });
            add_reduction(shape, bucket, last, program);
        }
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
    for bucket in shape.stages[index].buckets.clone().rev() {
        let shards = shards.clone();
        program.push(ProgramAction::Forward { bucket, shards });
    }
    if index + 1 == shape.stages.len() {
        program.push(ProgramAction::Loss { shards });
    } else if is_elsewhere(index + 1) {
        program.push(ProgramAction::Send(border(index, index + 1)));
    }
}

fn add_backward(
    shape: &ProgramShape,
    index: usize,
    shard: u32,
    pass: Pass,
    program: &mut Vec<ProgramAction>,
) {
    let stage = &shape.stages[index];
    let is_elsewhere = |other: usize| shape.stages[other].column != stage.column;
    let border = |from, to| Border { from, to, shard };
    if index + 1 < shape.stages.len() && is_elsewhere(index + 1) {
        program.push(ProgramAction::Receive(border(index + 1, index)));
    }
    for bucket in stage.buckets.clone() {
        let shards = shard..shard + 1;
        if pass == Pass::BackwardInput {
            program.push(ProgramAction::BackwardInput { bucket, shards });
            continue;
        }
        program.push(ProgramAction::Backward { bucket, shards });
        add_reduction(shape, bucket, shard, program);
    }
    if index > 0 && is_elsewhere(index - 1) {
        program.push(ProgramAction::Send(border(index, index - 1)));
    }
}

fn add_backward_weights(
    shape: &ProgramShape,
    index: usize,
    shard: u32,
    program: &mut Vec<ProgramAction>,
) {
    for bucket in shape.stages[index].buckets.clone() {
        let shards = shard..shard + 1;
        program.push(ProgramAction::BackwardWeights { bucket, shards });
        add_reduction(shape, bucket, shard, program);
    }
}

/// Adds the reduction of a bucket after the last shard.
fn add_reduction(
    shape: &ProgramShape,
    bucket: usize,
    shard: u32,
    program: &mut Vec<ProgramAction>,
) {
    if shard + 1 == shape.shards.end {
        program.push(ProgramAction::Reduce { bucket });
    }
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
            order: ShardOrder::ByShard,
            together: 1,
            gather_rounds: None,
        }
    }

    /// Returns the passes of a program: shards of forward passes, and of backward passes as negative numbers, from 1.
    fn passes(program: &[ProgramAction]) -> Vec<i32> {
        let passes = program.iter().filter_map(|action| match action {
            ProgramAction::Forward { shards, .. } => Some(shards.start as i32 + 1),
            ProgramAction::Backward { shards, .. }
            | ProgramAction::BackwardInput { shards, .. } => Some(-(shards.start as i32) - 1),
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
    fn zero_bubble_delays_the_gradients_of_weights_by_the_number_of_the_stage() {
        let shape = shape(&[0, 1, 2], 3);
        let programs = programs(PipelineSchedule::ZeroBubble, &shape);
        let texts = programs.iter().map(|program| {
            let texts = program.iter().filter_map(|action| match action {
                ProgramAction::Forward { shards, .. } => Some(format!("f{}", shards.start)),
                ProgramAction::BackwardInput { shards, .. } => Some(format!("b{}", shards.start)),
                ProgramAction::BackwardWeights { shards, .. } => Some(format!("w{}", shards.start)),
                _ => None,
            });
            texts.collect::<Vec<_>>().join(" ")
        });
        let expected = [
            "f0 f1 f2 b0 w0 b1 w1 b2 w2",
            "f0 f1 b0 f2 b1 w0 b2 w1 w2",
            "f0 b0 f1 b1 f2 b2 w0 w1 w2",
        ];
        assert_eq!(texts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn interleaved_stages_take_as_many_shards_together_as_there_are_ranks() {
        // Two ranks with two stages each.
        let programs = programs(PipelineSchedule::Interleaved, &shape(&[0, 1, 0, 1], 4));
        let texts = programs.iter().map(|program| {
            let texts = program.iter().filter_map(|action| match action {
                ProgramAction::Forward { bucket, shards } => {
                    Some(format!("f{bucket}{}", shards.start))
                }
                ProgramAction::Backward { bucket, shards } => {
                    Some(format!("b{bucket}{}", shards.start))
                }
                _ => None,
            });
            texts.collect::<Vec<_>>().join(" ")
        });
        let expected = [
            "f00 f01 f20 f21 f02 b20 f03 b21 f22 b00 f23 b01 b22 b23 b02 b03",
            "f10 f11 f30 b30 f31 b31 f12 b10 f13 b11 f32 b32 f33 b33 b12 b13",
        ];
        assert_eq!(texts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn weights_are_gathered_one_pass_ahead_and_equally_often_on_all_ranks() {
        let mut shape = shape(&[0], 1);
        shape.stages[0].buckets = 0..2;
        shape.gather_rounds = Some(2);
        let text = |shape: &ProgramShape| {
            let programs = programs(PipelineSchedule::default(), shape);
            let texts = programs[0].iter().map(|action| match action {
                ProgramAction::Gather { bucket } => format!("+{bucket}"),
                ProgramAction::Release { bucket } => format!("-{bucket}"),
                ProgramAction::Forward { bucket, .. } => format!("f{bucket}"),
                ProgramAction::Backward { bucket, .. } => format!("b{bucket}"),
                ProgramAction::Reduce { bucket } => format!("r{bucket}"),
                _ => "l".to_owned(),
            });
            texts.collect::<Vec<_>>().join(" ")
        };
        let gathers = |text: &str| {
            let words = text.split(' ');
            let kept = words.filter(|word| word.starts_with(['+', '-', 'r']));
            kept.collect::<Vec<_>>().join(" ")
        };
        let one = text(&shape);
        assert_eq!(one, "+1 +0 f1 -1 f0 l +1 b0 -0 b1 +0 -1 +1 -0 r0 -1 r1");
        shape.shards = 0..2;
        let two = text(&shape);
        assert_eq!(
            two,
            "+1 +0 f1 -1 f0 l +1 b0 -0 b1 +0 f1 -1 f0 l +1 b0 -0 r0 b1 -1 r1"
        );
        assert_eq!(gathers(&one), gathers(&two));
        shape.shards = 2..2;
        assert_eq!(gathers(&text(&shape)), gathers(&two));
    }

    #[test]
    fn plain_data_parallelism_is_the_program_of_one_stage() {
        let mut one = shape(&[0], 2);
        one.stages[0].buckets = 0..2;
        let forward = |bucket, shards| ProgramAction::Forward { bucket, shards };
        let loss = |shards| ProgramAction::Loss { shards };
        let backward = |bucket, shards| ProgramAction::Backward { bucket, shards };
        let reduce = |bucket| ProgramAction::Reduce { bucket };
        let each = [
            [forward(1, 0..1), forward(0, 0..1), loss(0..1)].to_vec(),
            [backward(0, 0..1), backward(1, 0..1)].to_vec(),
            [forward(1, 1..2), forward(0, 1..2), loss(1..2)].to_vec(),
            [backward(0, 1..2), reduce(0), backward(1, 1..2), reduce(1)].to_vec(),
        ];
        let found = programs(PipelineSchedule::OneForwardOneBackward, &one);
        assert_eq!(found, [each.concat()]);
        one.order = ShardOrder::LockStep;
        let together = [
            [forward(1, 0..2), forward(0, 0..2), loss(0..2)].to_vec(),
            [backward(0, 0..2), reduce(0), backward(1, 0..2), reduce(1)].to_vec(),
        ];
        let found = programs(PipelineSchedule::OneForwardOneBackward, &one);
        assert_eq!(found, [together.concat()]);
        one.order = ShardOrder::ByLayer;
        let last = |shard| {
            [
                forward(0, shard..shard + 1),
                loss(shard..shard + 1),
                backward(0, shard..shard + 1),
            ]
        };
        let by_layer = [
            [forward(1, 0..2)].to_vec(),
            [last(0), last(1)].concat(),
            [reduce(0), backward(1, 0..2), reduce(1)].to_vec(),
        ];
        let found = programs(PipelineSchedule::OneForwardOneBackward, &one);
        assert_eq!(found, [by_layer.concat()]);
        one.order = ShardOrder::ByShard;
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
