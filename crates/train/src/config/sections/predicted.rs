//! `[sync]` with `kind = "synthetic_gradients"`: what it needs, and how a run describes it.

use ronde_engine::Precision;

use super::sync::{INNER_STEPS_MAX, SyncSection};
use super::{BalanceMode, at_least_one};
use crate::config::{ConfigProblem, RunConfig};

/// The widest hidden layer of a predictor.
const HIDDEN_MAX: u32 = 1 << 16;
/// The most batches after which a gradient trains a predictor.
const GRADIENT_DELAY_MAX: u64 = 10_000;

/// Adds the problems of the section in a run.
pub(super) fn check(section: &SyncSection, run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let SyncSection::SyntheticGradients {
        stages,
        ref borders,
        round_steps,
        gradient_delay,
        hidden,
        predictor_learning_rate: rate,
    } = *section
    else {
        return;
    };
    let mut refuse = |path: &str, message: String, hint: &str| {
        let problem = ConfigProblem::error(path, message);
        problems.push(match hint {
            "" => problem,
            hint => problem.hint(hint.to_owned()),
        });
    };
    if stages < 2 {
        let message = format!("`sync.stages` is {stages}, but must be at least 2");
        let hint = "one stage needs no predictions: leave [sync] out";
        refuse("sync.stages", message, hint);
    } else if !borders.is_empty() && borders.len() + 1 != stages as usize {
        let count = borders.len();
        let message = format!(
            "`sync.borders` has {count} names, which make {} stages, but `sync.stages` is {stages}",
            count + 1
        );
        let hint = format!(
            "set `sync.stages` to {}, or leave `sync.borders` out",
            count + 1
        );
        refuse("sync.borders", message, &hint);
    }
    if round_steps > INNER_STEPS_MAX {
        let message =
            format!("`sync.round_steps` is {round_steps}, but must be at most {INNER_STEPS_MAX}");
        refuse("sync.round_steps", message, "");
    }
    if gradient_delay > GRADIENT_DELAY_MAX {
        let message = format!(
            "`sync.gradient_delay` is {gradient_delay}, but must be at most {GRADIENT_DELAY_MAX}"
        );
        refuse("sync.gradient_delay", message, "");
    }
    if hidden > HIDDEN_MAX {
        let message = format!("`sync.hidden` is {hidden}, but must be at most {HIDDEN_MAX}");
        refuse("sync.hidden", message, "");
    }
    if let Some(rate) = rate.filter(|rate| !(*rate > 0.0 && rate.is_finite())) {
        let message = format!("`sync.predictor_learning_rate` is {rate}, but must be above 0");
        refuse("sync.predictor_learning_rate", message, "");
    }
    at_least_one("sync.round_steps", round_steps, problems);
    at_least_one("sync.gradient_delay", gradient_delay, problems);
    check_others(run, problems);
    check_waits(stages, (round_steps, gradient_delay), run, problems);
}

/// Returns the learning rate of predictors by default. Each predictor learns from a stage that has predicted itself, so with more
/// stages the first ones follow the loss later, unless all of them learn faster.
pub(super) fn learning_rate(stages: u32) -> f64 {
    0.003 * (f64::from(stages) / 4.0).max(1.0)
}

/// Adds the settings of other sections that the stages cannot have.
fn check_others(run: &RunConfig, problems: &mut Vec<ConfigProblem>) {
    let mut refuse = |path: &str, message: &str, hint: &str| {
        problems.push(ConfigProblem::error(path, message.to_owned()).hint(hint.to_owned()));
    };
    if run.parallel.is_divided() {
        refuse(
            "sync.kind",
            "workers with predicted gradients hold the whole state and divide the stages of [sync], but [parallel] divides the state",
            "set `parallel.zero` and `parallel.servers` to 0, and `parallel.pipeline` and `parallel.tensor` to 1, or leave [sync] out",
        );
    }
    if run.train.precision == Precision::F16 {
        refuse(
            "train.precision",
            "predicted gradients cannot train in f16: each stage would have a loss scale of its own",
            "set `train.precision` to `bf16` or `f32`",
        );
    }
    if run.workers.balance == BalanceMode::Measured {
        refuse(
            "workers.balance",
            "workers with predicted gradients compute whole stages, so there are no shares to balance",
            "leave `workers.balance` out; `sync.borders` moves layers between stages",
        );
    }
}

/// Adds what makes workers wait.
fn check_waits(
    stages: u32,
    (round_steps, gradient_delay): (u64, u64),
    run: &RunConfig,
    problems: &mut Vec<ConfigProblem>,
) {
    let count = run.workers.count;
    if count > stages {
        let message =
            format!("{count} workers cannot share {stages} stages: each needs at least one");
        let hint = format!("use {stages} workers or fewer, or raise `sync.stages`");
        problems.push(ConfigProblem::error("workers.count", message).hint(hint));
        return;
    }
    if count < 2 {
        return;
    }
    if !stages.is_multiple_of(count) {
        let message = format!(
            "{count} workers share {stages} stages unevenly: some compute {}, others {}",
            stages.div_ceil(count),
            stages / count
        );
        let hint = "a number of workers that divides `sync.stages` keeps all of them busy";
        problems.push(ConfigProblem::notice("workers.count", message).hint(hint));
    }
    if gradient_delay == 1 {
        let message = "with `sync.gradient_delay` = 1, a stage waits for the gradient of each batch before the next one";
        let hint = "set it to 2 or more";
        problems.push(ConfigProblem::notice("sync.gradient_delay", message).hint(hint));
    }
    let busy = busy_share(count, round_steps);
    if round_steps > 0 && busy < 0.9 {
        let message = format!(
            "rounds of {round_steps} steps keep {count} workers busy for about {:.0} % of the time: the last one begins after {} forward passes",
            100.0 * busy,
            count - 1
        );
        let hint = "raise `sync.round_steps`";
        problems.push(ConfigProblem::notice("sync.round_steps", message).hint(hint));
    }
}

/// Returns the share of a round in which workers with equal stages compute, if a forward pass is a third of the work of a batch: each
/// worker begins when the output of the previous one arrives.
fn busy_share(workers: u32, round_steps: u64) -> f64 {
    let steps = round_steps as f64;
    steps / (steps + f64::from(workers.saturating_sub(1)) / 3.0)
}

/// Describes a run with predicted gradients, for its start.
pub(super) fn describe(stages: u32, round_steps: u64) -> String {
    format!(
        "synthetic gradients: {stages} stages of the model update with predicted gradients and do not wait for each other; a step of this \
         run is a round of {round_steps} batches, and workers compute whole stages"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_wait_for_the_first_batches_of_a_round() {
        assert_eq!(busy_share(1, 5), 1.0);
        assert_eq!(busy_share(4, 19), 0.95);
    }

    #[test]
    fn predictors_of_many_stages_learn_faster_by_default() {
        let rates = [2, 4, 8].map(learning_rate);
        assert_eq!(rates, [0.003, 0.003, 0.006]);
    }
}
