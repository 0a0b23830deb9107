//! A program's own loop has the same bits on any number of ranks, and its wrong uses are errors.

#![expect(clippy::unwrap_used, reason = "a test may fail here")]

use std::sync::Arc;
use std::time::Duration;

use ronde_comm::testing::spawn_ranks;
use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::batch::BatchPlan;
use ronde_core::{GroupRank, NullTracker};
use ronde_train::{JobGroup, StepAction, StepLoop, StepLoopPlan, TrainError};

/// The watchdog's time limit.
const LIMIT: Duration = Duration::from_secs(60);

/// The weights of a loop of 7 steps on some ranks, with the sample numbers as gradients.
fn loop_weights(ranks: usize) -> Vec<Vec<f32>> {
    spawn_ranks(ranks, LIMIT, |group| {
        let mut steps = StepLoop::new(member_of(group), loop_plan(3))?;
        let mut weights = vec![0.25_f32; 5];
        while let Some(action) = steps.next(&mut [&mut weights])? {
            match action {
                StepAction::Compute(mut step) => {
                    for shard in step.shards() {
                        let sum: u64 = shard.ids().iter().sum();
                        let gradient: Vec<f32> = weights.iter().map(|w| w * sum as f32).collect();
                        step.add(&shard, &gradient, sum as f64)?;
                    }
                    steps.reduce_and_vote(step);
                }
                StepAction::Apply(update) => {
                    for (weight, gradient) in weights.iter_mut().zip(update.mean_gradient()) {
                        *weight -= 0.01 * gradient;
                    }
                }
            }
        }
        Ok::<_, TrainError>(weights)
    })
}

fn member_of(group: ProcessGroup) -> JobGroup {
    JobGroup::of(Arc::new(group), Arc::new(NullTracker))
}

fn loop_plan(shards: u32) -> StepLoopPlan {
    StepLoopPlan {
        batches: BatchPlan::new(20, 6, false, true, 1).unwrap(),
        shards,
        steps: 7,
    }
}

#[test]
fn an_own_loop_has_the_same_bits_on_any_number_of_ranks_also_with_spares() {
    let one = loop_weights(1);
    assert!(one[0].iter().all(|weight| *weight != 0.25));
    for ranks in 2..=4 {
        assert!(loop_weights(ranks).iter().all(|weights| *weights == one[0]));
    }
}

#[test]
fn wrong_uses_of_an_own_loop_are_errors_that_name_the_shard() {
    let group = || ProcessGroup::alone(GroupConfig::new("dp", "test", GroupRank(0)));
    assert!(StepLoop::new(member_of(group()), loop_plan(0)).is_err());
    let mut steps = StepLoop::new(member_of(group()), loop_plan(3)).unwrap();
    let Some(StepAction::Compute(mut step)) = steps.next(&mut []).unwrap() else {
        panic!("the first action is to compute");
    };
    let shards = step.shards();
    assert_eq!(shards.len(), 3);
    let problem = |result: Result<(), TrainError>| result.unwrap_err().to_string();
    let text = problem(step.add(&shards[1], &[1.0], 0.0));
    assert!(text.contains("shard 1: it is not the next shard"), "{text}");
    step.add(&shards[0], &[1.0], 0.0).unwrap();
    let text = problem(step.add(&shards[1], &[1.0, 2.0], 0.0));
    assert!(text.contains("has 2 elements; expected 1"), "{text}");
    steps.reduce_and_vote(step);
    let text = steps.next(&mut []).unwrap_err().to_string();
    assert!(
        text.contains("1 of 3 shards of this rank were added"),
        "{text}"
    );
    assert!(steps.next(&mut []).unwrap().is_none(), "the loop has ended");
}
