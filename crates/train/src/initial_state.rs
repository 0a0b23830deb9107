//! Initial states that depend on the training samples, such as the centres of clusters.

use ronde_core::order::SampleOrder;
use ronde_core::seed::Purpose;
use ronde_data::{Dataset, DatasetExt};
use ronde_engine::Chain;

use crate::error::TrainError;
use crate::plan::Plan;
use crate::plan::shuffle;

/// Sets the part of a model's initial state that depends on samples, if there is one. The seed determines the samples,
/// so every worker computes the same state. Cost: reading [`ronde_engine::ModelConfig::initial_samples`] samples.
///
/// # Errors
/// The data cannot be read, or there are too few samples.
pub(crate) fn from_samples(
    plan: &Plan,
    chain: &mut Chain,
    train: &dyn Dataset,
) -> Result<(), TrainError> {
    let model = &plan.config.model.config;
    let count = model.initial_samples();
    if count == 0 {
        return Ok(());
    }
    let stream = plan.seeds.named(Purpose::InitialWeights, "samples");
    let order = SampleOrder::new(train.len(), shuffle(true, train), stream);
    let numbers = (0..train.len().min(count as u64)).map(|position| order.sample(position));
    let samples = train.features(&numbers.collect::<Vec<u64>>())?;
    model
        .initialise(chain, &samples, &plan.seeds)
        .map_err(TrainError::Model)
}
