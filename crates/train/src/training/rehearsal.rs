//! [`rehearsed_step_s`]: measures real steps of workers that exchange their gradients on this machine.

use std::sync::Arc;

use ronde_core::{NullTracker, WorldSize};
use ronde_data::Split;

use super::Training;
use super::measuring::{typical, with_one_worker};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::initial_state;
use crate::job_group::JobGroup;
use crate::local_ranks::on_local_ranks;
use crate::plan::Plan;

/// Trains some steps of a run with a number of workers that have the whole model each, as threads of this process, and returns the
/// median seconds of a step. Unlike the measured parts of a step, it contains what workers take from each other where they use all
/// cores: threads that exchange and compute at once, and workers that wait for the slowest one. Cost: the memory of as many workers.
///
/// # Errors
/// When the model, the data, a connection or a step fails.
pub fn rehearsed_step_s(
    config: &RunConfig,
    split: &Split,
    workers: usize,
    steps: usize,
) -> Result<f64, TrainError> {
    let size = u32::try_from(workers).ok().and_then(WorldSize::new);
    let size = size.unwrap_or(WorldSize::ONE);
    let mut reduced = with_one_worker(config);
    reduced.workers.count = size.get();
    (reduced.train.steps, reduced.train.epochs) = (Some(u64::from(u32::MAX)), None);
    let measured = on_local_ranks(&config.comm, workers, |group| {
        let plan = Plan::resolve(&reduced, size, &*split.train)?;
        let description = split.train.description();
        let model = &reduced.model.config;
        let built = model.build(&description.shape, description.classes, &plan.seeds);
        let mut chain = built.map_err(TrainError::Model)?;
        initial_state::from_samples(&plan, &mut chain, &*split.train)?;
        chain = chain
            .recomputing(reduced.train.recompute_activations.layers())
            .map_err(TrainError::Model)?;
        let member = JobGroup::of(Arc::new(group), Arc::new(NullTracker));
        let training = Training::new(member, plan, chain, split.clone())?;
        let mut training = training.with_engine(&reduced.train, reduced.workers.threads)?;
        let mut loader = training.load()?;
        // The first step touches memory for the first time.
        training.step(&mut loader)?;
        let times = (0..steps.max(1)).map(|_| {
            let begun = ronde_clock::seconds();
            training.step(&mut loader)?;
            Ok(ronde_clock::seconds() - begun)
        });
        Ok(typical(times.collect::<Result<_, TrainError>>()?))
    })?;
    Ok(measured.into_iter().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use ronde_data::OpenContext;

    use super::*;

    #[test]
    fn workers_exchange_gradients_in_each_step() {
        let text = "[run]\nname = 'x'\n[data]\nsource = 'digits'\n[model]\nkind = 'mlp'\nhidden = [32]\n\
                    [train]\nepochs = 1\n[workers]\nlogical_shards = 4\n";
        let config: RunConfig = toml::from_str(text).unwrap();
        let opening = OpenContext::new(".".as_ref(), config.run.seed);
        let split = ronde_data::open(&config.data, &opening).unwrap();
        assert!(rehearsed_step_s(&config, &split, 2, 5).unwrap() > 0.0);
    }
}
