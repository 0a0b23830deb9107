//! Pipeline schedules: the order in which each stage processes the micro-batches.
//!
//! The actions of a stage have a fixed order; each runs as soon as its inputs are available. A forward needs the
//! forward of the previous stage. A backward needs the backward of the next stage and the stage's own forward.

use crate::ScheduleError;

/// One action of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Forward of a micro-batch.
    Forward(usize),
    /// Backward of a micro-batch.
    Backward(usize),
}

/// Returns the actions of a stage for one forward, one backward (1F1B): a stage starts with as many forwards as there
/// are stages after it, then alternates, then finishes the backwards.
///
/// At most `stages - stage` micro-batches are in flight on a stage, however many there are. Backwards
/// run in the order of the micro-batches. Source: Narayanan et al., "PipeDream", 2019, and
/// "Memory-efficient pipeline-parallel DNN training", 2021 (1F1B with flush).
#[must_use]
pub fn one_forward_one_backward(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let ahead = stages.saturating_sub(stage + 1).min(micro_batches);
    let mut actions: Vec<Action> = (0..ahead).map(Action::Forward).collect();
    for micro_batch in 0..micro_batches {
        if micro_batch + ahead < micro_batches {
            actions.push(Action::Forward(micro_batch + ahead));
        }
        actions.push(Action::Backward(micro_batch));
    }
    actions
}

/// Returns the idle share of a stage's time in [`one_forward_one_backward`] if all stages take equally long:
/// `(stages - 1) / (micro_batches + stages - 1)`.
#[must_use]
pub fn bubble(stages: usize, micro_batches: usize) -> f64 {
    let waiting = stages.saturating_sub(1);
    if waiting + micro_batches == 0 {
        return 0.0;
    }
    waiting as f64 / (micro_batches + waiting) as f64
}

/// The result of running all stages.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The start and end of each action of each stage, in units of time.
    pub spans: Vec<Vec<(Action, u64, u64)>>,
    /// The time at which the last stage finishes.
    pub end: u64,
    /// The idle share of all stages' time.
    pub bubble: f64,
    /// The largest number of micro-batches between their forward and backward at any time, by stage.
    pub in_flight_max: Vec<usize>,
}

/// Runs the actions of all stages, each as soon as its inputs are available.
///
/// # Errors
/// [`ScheduleError::Broken`] for a deadlock between stages.
pub fn interpret(
    stages: &[Vec<Action>],
    forward_time: u64,
    backward_time: u64,
) -> Result<Timeline, ScheduleError> {
    let mut spans: Vec<Vec<(Action, u64, u64)>> = vec![Vec::new(); stages.len()];
    while let Some((stage, action, ready)) = next_action(stages, &spans) {
        let free = spans[stage].last().map_or(0, |&(_, _, end)| end);
        let start = ready.max(free);
        let time = match action {
            Action::Forward(_) => forward_time,
            Action::Backward(_) => backward_time,
        };
        spans[stage].push((action, start, start + time));
    }
    let unfinished = |&stage: &usize| spans[stage].len() < stages[stage].len();
    if let Some(stage) = (0..stages.len()).find(unfinished) {
        let waiting = stages[stage][spans[stage].len()];
        return Err(ScheduleError::Broken {
            problem: format!("stage {stage} waits forever for the inputs of {waiting:?}"),
        });
    }
    Ok(summary(spans))
}

/// Finds a stage whose next action has all its inputs; returns the stage, the action and the time since which it is
/// ready.
fn next_action(
    stages: &[Vec<Action>],
    spans: &[Vec<(Action, u64, u64)>],
) -> Option<(usize, Action, u64)> {
    let end = |stage: usize, wanted: Action| {
        let of = spans[stage].iter().find(|(action, _, _)| *action == wanted);
        of.map(|&(_, _, end)| end)
    };
    (0..stages.len()).find_map(|stage| {
        let action = *stages[stage].get(spans[stage].len())?;
        let ready = match action {
            Action::Forward(_) if stage == 0 => 0,
            Action::Forward(_) => end(stage - 1, action)?,
            Action::Backward(mb) if stage + 1 == stages.len() => end(stage, Action::Forward(mb))?,
            Action::Backward(mb) => end(stage, Action::Forward(mb))?.max(end(stage + 1, action)?),
        };
        Some((stage, action, ready))
    })
}

fn summary(spans: Vec<Vec<(Action, u64, u64)>>) -> Timeline {
    let all = || spans.iter().flatten();
    let end = all().map(|&(_, _, end)| end).max().unwrap_or(0);
    let busy: u64 = all().map(|&(_, start, end)| end - start).sum();
    let whole = end * spans.len() as u64;
    let in_flight_max = spans.iter().map(|spans| most_in_flight(spans)).collect();
    Timeline {
        end,
        bubble: if whole == 0 {
            0.0
        } else {
            1.0 - busy as f64 / whole as f64
        },
        in_flight_max,
        spans,
    }
}

fn most_in_flight(spans: &[(Action, u64, u64)]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for (action, _, _) in spans {
        match action {
            Action::Forward(_) => now += 1,
            Action::Backward(_) => now = now.saturating_sub(1),
        }
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_pipeline_ends_in_order_with_the_known_bubble_and_memory() {
        for stages in 1..=8 {
            for micro_batches in 1..=12 {
                let all: Vec<_> = (0..stages)
                    .map(|stage| one_forward_one_backward(stage, stages, micro_batches))
                    .collect();
                for actions in &all {
                    let backwards: Vec<_> = actions
                        .iter()
                        .filter(|action| matches!(action, Action::Backward(_)))
                        .copied()
                        .collect();
                    let expected: Vec<_> = (0..micro_batches).map(Action::Backward).collect();
                    assert_eq!(backwards, expected);
                    assert_eq!(actions.len(), 2 * micro_batches);
                }
                let timeline = interpret(&all, 1, 2).unwrap();
                let difference = timeline.bubble - bubble(stages, micro_batches);
                assert!(
                    difference.abs() < 1e-12,
                    "{stages} {micro_batches}: {timeline:?}"
                );
                for (stage, &most) in timeline.in_flight_max.iter().enumerate() {
                    assert_eq!(most, (stages - stage).min(micro_batches));
                }
            }
        }
    }

    #[test]
    fn deadlocks_between_stages_are_detected() {
        let first = vec![Action::Forward(0), Action::Backward(0), Action::Forward(1)];
        let second = vec![Action::Forward(0), Action::Forward(1), Action::Backward(0)];
        let error = interpret(&[first, second], 1, 1).unwrap_err();
        assert!(error.to_string().contains("waits forever"), "{error}");
    }
}
