//! [`BatchNorms`]: whether the batch normalisations of a run have more than one value per channel, as PyTorch requires. The variance of
//! one value is zero: the outputs do not depend on the inputs, and the running variance goes to zero.

use std::collections::BTreeSet;

use ronde_core::shards::even_sizes;
use ronde_data::Dataset;
use ronde_engine::{Chain, Layer};
use ronde_parallel::MicroBatch;

use crate::error::TrainError;
use crate::plan::Plan;

/// The batch normalisations that have one value per channel in each sample; samples of more values are always enough.
#[derive(Debug, Clone, Default)]
pub(crate) struct BatchNorms {
    /// The first one with the statistics of a shard.
    of_shards: Option<String>,
    /// The first one with the statistics of all shards.
    of_batches: Option<String>,
}

impl BatchNorms {
    /// Finds the normalisations of a model.
    ///
    /// # Errors
    /// A step of the plan has a shard of one sample, or has one sample in all, and there is a normalisation that needs more. Empty
    /// shards contribute nothing.
    pub(crate) fn checked(chain: &Chain, plan: &Plan) -> Result<Self, TrainError> {
        let norms = Self::of(chain);
        norms.check(plan)?;
        Ok(norms)
    }

    fn of(chain: &Chain) -> Self {
        let norms = chain.facts().batch_norms.clone();
        let first = |has_all_shards: bool| {
            let mut norms = norms.iter();
            let found =
                norms.find(|norm| norm.has_all_shards == has_all_shards && norm.of_sample == 1);
            found.map(|norm| norm.name.clone())
        };
        Self {
            of_shards: first(false),
            of_batches: first(true),
        }
    }

    fn check(&self, plan: &Plan) -> Result<(), TrainError> {
        let steps = plan.step_sizes();
        let has_one = |sizes: &BTreeSet<u64>| sizes.contains(&1);
        if let Some(name) = self.of_shards.as_ref().filter(|_| has_one(&steps.shards)) {
            return Err(one_value(name, "a logical shard", &remedy(plan, &steps)));
        }
        if let Some(name) = self.of_batches.as_ref().filter(|_| has_one(&steps.steps)) {
            let hint =
                "raise train.global_batch_size, set train.drop_last = true, or use larger images";
            return Err(one_value(name, "a step", hint));
        }
        Ok(())
    }

    /// Returns an error if bad records that were skipped leave a shard of one sample, and there is a normalisation that needs more.
    pub(crate) fn check_loaded(&self, batches: &[MicroBatch]) -> Result<(), TrainError> {
        let has_one = batches.iter().any(|batch| batch.samples() == 1);
        match self.of_shards.as_ref().filter(|_| has_one) {
            None => Ok(()),
            Some(name) => Err(one_value(
                name,
                "after bad records were skipped, a logical shard",
                "repair the records that are listed above, or use larger shards or images",
            )),
        }
    }
}

/// Checks the batch normalisations of a planned run before any worker starts.
///
/// # Errors
/// The model does not accept the samples, or a normalisation has one value per channel.
pub fn check_planned_batch_norms(plan: &Plan, train: &dyn Dataset) -> Result<(), TrainError> {
    BatchNorms::checked(&plan.chain(train)?, plan).map(drop)
}

fn one_value(name: &str, what: &str, hint: &str) -> TrainError {
    TrainError::Impossible {
        problem: format!(
            "cannot train the batch normalisation `{name}`: {what} has 1 sample, which is 1 value per channel; expected more than 1"
        ),
        hint: hint.to_owned(),
    }
}

/// The numbers of samples that occur in a run.
struct StepSizes {
    /// In the updates of a model over which statistics of all shards are computed: global batches, or inner steps of a replica.
    steps: BTreeSet<u64>,
    /// In their shards that are not empty.
    shards: BTreeSet<u64>,
    /// In the shards of full batches.
    full_shards: BTreeSet<u64>,
}

impl Plan {
    /// Returns the numbers of samples of steps and shards.
    fn step_sizes(&self) -> StepSizes {
        let sizes = |rounds: u64| match &self.rounds {
            Some(plan) => (plan.inner_step_sizes(rounds), plan.part_sizes(rounds)),
            None => {
                let batches = self.batches.batch_sizes(rounds);
                let shards = even_sizes(&batches, self.shards.shards().into());
                (batches, shards)
            }
        };
        let (steps, shards) = sizes(self.steps);
        let (_, full_shards) = sizes(1);
        StepSizes {
            steps,
            shards,
            full_shards,
        }
    }
}

/// Returns how shards get more samples.
fn remedy(plan: &Plan, counts: &StepSizes) -> String {
    let train = &plan.config.train;
    let (batch, shards) = (train.global_batch_size, plan.config.workers.logical_shards);
    let mut hint = match counts.full_shards.contains(&1) {
        true => {
            let least = u64::from(shards).saturating_mul(2);
            format!(
                "give each shard at least 2 samples: set train.global_batch_size = {least} or more, or workers.logical_shards = {} or \
                 fewer (now {batch} samples in {shards} shards)",
                (batch / 2).max(1)
            )
        }
        false => "the last batch of an epoch is smaller than the others: set train.drop_last = true, or another \
                  train.global_batch_size"
            .to_owned(),
    };
    hint.push_str("; or use larger images");
    if plan.config.model.config.has_normalisation() {
        hint.push_str("; or set model.normalisation = \"group\" or \"synchronised_batch\"");
    }
    hint
}

#[cfg(test)]
mod tests;
