//! [`Advice`]: advice to a user before paying for a run, in plain words with the numbers behind them.

use serde::Serialize;

use crate::cluster::ClusterShape;
use crate::forecast::LayoutForecast;

/// The kind of an advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdviceKind {
    /// More workers do not help.
    OneWorker,
    /// A larger machine helps more than several.
    LargerMachine,
    /// The batch or the learning rate needs care.
    BatchCare,
    /// The logical shards limit the workers.
    MoreShards,
    /// Several configurations are best run side by side.
    RunSeparately,
}

/// A sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Its kind.
    pub kind: AdviceKind,
    /// The sentence.
    pub message: String,
}

/// A rule for the learning rate of a batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateRule {
    /// In proportion to it. Source: Goyal et al., arXiv:1706.02677.
    Linear,
    /// In proportion to its square root, for optimizers that divide by the size of gradients. Source: Malladi et al.,
    /// arXiv:2205.10287.
    SquareRoot,
}

impl RateRule {
    /// Returns the name of the rule in a sentence.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::SquareRoot => "square root",
        }
    }

    /// Returns the value of `train.learning_rate_scaling`.
    fn setting(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::SquareRoot => "square_root",
        }
    }

    /// Returns the factor for a batch that is larger by a factor.
    #[must_use]
    pub fn factor(self, of_batch: f64) -> f64 {
        match self {
            Self::Linear => of_batch,
            Self::SquareRoot => of_batch.sqrt(),
        }
    }
}

/// The settings of a run that limit its batch and its learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchSettings {
    /// The samples of a step.
    pub samples: u64,
    /// The samples of the step for which the learning rate was chosen, if the run file has it.
    pub rate_chosen_for: Option<u64>,
    /// The rule with which the run scales the rate; `None`: not at all.
    pub applied: Option<RateRule>,
    /// The rule that suits the optimizer.
    pub suited: RateRule,
    /// Whether the optimizer adapts the rate of each layer, as LARS and LAMB do.
    pub adapts_layers: bool,
    /// The number of steps in which the rate rises.
    pub warmup_steps: u64,
    /// The steps of an epoch.
    pub steps_per_epoch: u64,
    /// The steps of the run.
    pub steps: u64,
    /// The number of logical shards.
    pub shards: u32,
}

/// A batch above this size trains worse with most optimizers. Source: Goyal et al., arXiv:1706.02677, figure 1.
const LARGE_BATCH: u64 = 8192;
/// Two workers that are together less than this many times as fast as one are not worth having.
const WORTH_SPEEDUP: f64 = 1.2;
/// A single host that is this many times as fast as several is worth looking for.
const WORTH_LARGER: f64 = 1.25;
/// The factor of the rate from which it should rise slowly.
const RISE_FROM: f64 = 2.0;
/// The epochs in which the rate should rise, and the largest share of a run for it.
const RISE_EPOCHS: u64 = 5;
const RISE_SHARE: u64 = 10;

/// Returns the advice not to distribute, if the fastest layout is hardly faster than one worker.
pub(crate) fn one_worker(
    one: &LayoutForecast,
    fastest: &LayoutForecast,
    unfit: usize,
) -> Option<Advice> {
    let speedup = one.step_s / fastest.step_s;
    if !one.fits || speedup >= WORTH_SPEEDUP {
        return None;
    }
    let message = match fastest.choice.workers() {
        1 if unfit > 0 => format!(
            "use one worker: no layout with several workers that fits into memory is faster ({unfit} do not fit)"
        ),
        1 => "use one worker: no layout with several workers is faster".to_owned(),
        workers => format!(
            "use one worker: {workers} workers are only {speedup:.2} times as fast, and cost {:.1} times as much",
            f64::from(workers) / speedup
        ),
    };
    Some(Advice {
        kind: AdviceKind::OneWorker,
        message,
    })
}

/// Returns the advice to use a larger machine, if one with the same cores is much faster than several hosts.
pub(crate) fn larger_machine(
    cluster: &ClusterShape,
    best: &LayoutForecast,
    on_one_host: &LayoutForecast,
) -> Option<Advice> {
    let gain = best.step_s / on_one_host.step_s;
    if best.hosts < 2 || gain < WORTH_LARGER {
        return None;
    }
    let (one, cores) = (cluster.as_one_host(), cluster.cores);
    Some(Advice {
        kind: AdviceKind::LargerMachine,
        message: format!(
            "use a larger machine first: one host with {} cores is {gain:.1} times as fast as {} hosts with {cores} each, which \
             exchange bytes during {:.0} % of a step",
            one.cores,
            best.hosts,
            100.0 * best.communication
        ),
    })
}

/// Returns the advice to raise the number of logical shards, if they keep workers out.
pub(crate) fn more_shards(
    batch: &BatchSettings,
    workers: u32,
    best: &LayoutForecast,
) -> Option<Advice> {
    let is_limited = batch.shards < workers && best.choice.data >= batch.shards;
    is_limited.then(|| {
        let factor = f64::from(workers) / f64::from(batch.shards);
        let rate = batch.suited.factor(factor);
        Advice {
            kind: AdviceKind::MoreShards,
            message: format!(
                "{} logical shards keep {} of {workers} workers out: raise workers.logical_shards to {workers}, which changes the \
                 trained bits; if you raise the batch from {} to {:.0} samples with it, multiply the learning rate by {rate:.2} \
                 ({} rule) and let it rise over the first steps",
                batch.shards,
                workers - best.choice.workers().min(workers),
                batch.samples,
                batch.samples as f64 * factor,
                batch.suited.name(),
            ),
        }
    })
}

/// Returns the advice about the batch and the learning rate.
pub(crate) fn batch_care(batch: &BatchSettings) -> Vec<Advice> {
    let mut messages = Vec::new();
    let from = batch
        .rate_chosen_for
        .filter(|&from| from > 0 && from != batch.samples);
    let grown = from.map_or(1.0, |from| batch.samples as f64 / from as f64);
    let rise = (RISE_EPOCHS * batch.steps_per_epoch)
        .min(batch.steps / RISE_SHARE)
        .max(1);
    match (batch.applied, from) {
        (Some(rule), Some(from)) => {
            let factor = rule.factor(grown);
            let mut text = format!(
                "the learning rate was chosen for batches of {from} and is multiplied by {factor:.2} for batches of {} ({} rule)",
                batch.samples,
                rule.name()
            );
            if factor >= RISE_FROM && batch.warmup_steps == 0 {
                text.push_str(&format!(
                    "; this needs care: let it rise over the first steps, schedule.warmup_steps = {rise}"
                ));
            } else if batch.warmup_steps > 0 {
                text.push_str(&format!(" and rises over {} steps", batch.warmup_steps));
            }
            messages.push(text);
        }
        (None, Some(from)) => messages.push(format!(
            "this rate needs care: it was chosen for batches of {from}, and a step has {}: set train.learning_rate_scaling = \
             \"{}\" (factor {:.2})",
            batch.samples,
            batch.suited.setting(),
            batch.suited.factor(grown),
        )),
        _ => {}
    }
    if batch.samples > LARGE_BATCH && !batch.adapts_layers {
        messages.push(format!(
            "this batch size needs care: above {LARGE_BATCH} samples most optimizers train worse; try optimizer.kind = \"lamb\" or \
             \"lars\", whose rates follow each layer"
        ));
    }
    if batch.steps_per_epoch < 10 && batch.steps > batch.steps_per_epoch {
        messages.push(format!(
            "this batch size needs care: an epoch has only {} steps, so the weights change rarely; a smaller batch may need fewer \
             epochs",
            batch.steps_per_epoch
        ));
    }
    let advice = messages.into_iter().map(|message| Advice {
        kind: AdviceKind::BatchCare,
        message,
    });
    advice.collect()
}

/// Returns the advice to run configurations side by side, each with one worker, if that is faster than one after the other
/// with all workers.
pub(crate) fn run_separately(
    configurations: u32,
    slots: u32,
    one: &LayoutForecast,
    best: &LayoutForecast,
) -> Option<Advice> {
    if configurations < 2 || !one.fits {
        return None;
    }
    let rounds = configurations.div_ceil(slots.max(1));
    let apart_s = f64::from(rounds) * one.run_s;
    let together_s = f64::from(configurations) * best.run_s;
    let workers = match best.choice.workers() {
        1 => "one worker".to_owned(),
        workers => format!("{workers} workers"),
    };
    (apart_s < together_s).then(|| Advice {
        kind: AdviceKind::RunSeparately,
        message: format!(
            "run the configurations separately: {configurations} runs side by side, each with one worker (`ronde sweep`), take {}; one after the \
             other with {workers} they take {}",
            crate::report::duration(apart_s),
            crate::report::duration(together_s)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> BatchSettings {
        BatchSettings {
            samples: 256,
            rate_chosen_for: None,
            applied: None,
            suited: RateRule::Linear,
            adapts_layers: false,
            warmup_steps: 0,
            steps_per_epoch: 100,
            steps: 1000,
            shards: 8,
        }
    }

    fn messages(batch: &BatchSettings) -> String {
        let each = batch_care(batch).into_iter().map(|advice| advice.message);
        each.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_usual_batch_needs_no_care() {
        assert_eq!(messages(&batch()), "");
        let same = BatchSettings {
            rate_chosen_for: Some(256),
            ..batch()
        };
        assert_eq!(messages(&same), "");
    }

    #[test]
    fn rates_follow_the_batch_by_the_applied_rule() {
        let scaled = BatchSettings {
            rate_chosen_for: Some(32),
            applied: Some(RateRule::Linear),
            ..batch()
        };
        let found = messages(&scaled);
        assert!(
            found.contains("multiplied by 8.00") && found.contains("(linear rule)"),
            "{found}"
        );
        assert!(found.contains("schedule.warmup_steps = 100"), "{found}");
        let risen = BatchSettings {
            warmup_steps: 50,
            applied: Some(RateRule::SquareRoot),
            ..scaled
        };
        let found = messages(&risen);
        assert!(
            found.contains("2.83") && found.contains("rises over 50 steps"),
            "{found}"
        );
        let not_scaled = BatchSettings {
            applied: None,
            suited: RateRule::SquareRoot,
            ..scaled
        };
        assert!(messages(&not_scaled).contains("\"square_root\" (factor 2.83)"));
    }

    #[test]
    fn large_batches_and_short_epochs_need_care() {
        let large = BatchSettings {
            samples: 32_768,
            ..batch()
        };
        assert!(messages(&large).contains("lamb"));
        let adapted = BatchSettings {
            adapts_layers: true,
            ..large
        };
        assert_eq!(messages(&adapted), "");
        let short = BatchSettings {
            steps_per_epoch: 3,
            ..batch()
        };
        assert!(messages(&short).contains("only 3 steps"));
    }
}
