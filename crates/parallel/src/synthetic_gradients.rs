//! [`SyntheticGradients`]: stages of a model update with predicted gradients, so none of them waits for the next one.
//!
//! Source: Jaderberg et al., "Decoupled neural interfaces using synthetic gradients", ICML 2017, section 2.1.
//!
//! For each batch, a stage computes its output, predicts the gradient of that output, updates its weights with it, and passes the
//! output to the next stage and the gradient of its input to the previous one. There it trains the predictor before a fixed later batch, never on
//! arrival. So the bits do not depend on the ranks: each has consecutive stages. Cost of a round: the values of each batch between
//! stages on different ranks, in both directions, and one broadcast of the state of each stage.
//!
//! The delay until that batch (`gradient_delay`) also bounds how far a stage runs ahead, and thus the memory and the messages under
//! way. A round of batches is a transaction; its reduced gradient is the state at its end, which the rank of each stage broadcasts,
//! because a sum with zeros would change the sign of zeros. Between rounds nothing is under way and every rank has the whole state,
//! so evaluations, checkpoints and healing need no special case. One transaction for each batch would have no batches in which
//! workers wait, but one vote per batch, samples that ranks use in different steps, and a state on one rank only. The price is the
//! whole model on each rank: this mode divides work, not memory.
//!
//! A predictor reads values divided by their root mean square: otherwise predictions grow with the outputs of a stage, the outputs
//! with the predictions, and eight stages learn nothing. Each stage and each predictor is computed by a `SynchronousStrategy` on a
//! group of one, so update rules, parameter groups and clipping have one implementation.

mod inbox;
mod predictor;
mod round;
mod state;
mod step_method;
mod tally;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::shards::even_range;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Group, GroupRank, Step, Work};
use ronde_engine::{Activation, Chain, EngineError};
use ronde_protocol::transaction::ShardReport;

use self::inbox::NeighbourInbox;
use self::predictor::{GradientPredictor, PredictedShard, PredictorShape};
use crate::error::ParallelError;
use crate::inner_losses::InnerLosses;
use crate::synchronous::{ComputeClock, SynchronousStrategy, WaitTimer};

pub use self::tally::BorderTally;

/// The targets that the predictors read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorTargets {
    /// Nothing.
    Unused,
    /// Numbers of classes.
    Classes {
        /// The number of classes.
        classes: usize,
        /// The number of targets of a sample.
        per_sample: usize,
    },
    /// Values.
    Values {
        /// The number of targets of a sample.
        per_sample: usize,
    },
}

/// The settings of predicted gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyntheticGradientsConfig {
    /// The number of batches after which the gradient of a batch trains a predictor, at least 1.
    pub gradient_delay: u64,
    /// The width of the hidden layer of the predictors; 0: they have none.
    pub hidden: usize,
    /// The learning rate of the predictors.
    pub predictor_learning_rate: f64,
    /// The targets that the predictors read.
    pub targets: PredictorTargets,
}

impl SyntheticGradientsConfig {
    /// Returns the number of weights of the predictor of an output of this shape.
    #[must_use]
    pub fn predictor_parameters(&self, output: &[usize]) -> u64 {
        PredictorShape::of(output, self.targets).parameters(self.hidden)
    }
}

/// A batch whose gradient has not trained the predictor yet.
struct PendingBatch {
    /// The number of the batch, and the step of its random numbers.
    of: (u64, Step),
    shards: Vec<Option<PredictedShard>>,
}

/// The predictions of a stage of this rank.
#[derive(Default)]
struct StageBorder {
    pending: VecDeque<PendingBatch>,
    /// The gradients of the next stage, if that is on this rank too.
    arrived: VecDeque<Option<Activation>>,
    tally: BorderTally,
}

/// The first gradient of a round that was not finite. The order is that in which one rank computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Divergence {
    batch: u64,
    stage: u64,
    /// The index of the tensor in the state; behind them, that of the predictor.
    tensor: u64,
}

/// A round on its way.
struct RunningStages {
    /// The weights before the round, and the states of the optimizer.
    weights: Vec<f32>,
    states: Vec<Vec<f32>>,
    /// The stages of this rank.
    own: Range<usize>,
    /// Their predictions, by stage.
    borders: Vec<StageBorder>,
    /// The outputs of the previous stage, if that is on another rank.
    inputs: Option<NeighbourInbox>,
    /// The gradients of the next stage, if that is on another rank.
    gradients: Option<NeighbourInbox>,
    sends: VecDeque<Box<dyn Work>>,
    /// The number of batches so far.
    batches: u64,
    diverged: Option<Divergence>,
    /// The samples and the loss so far, on the rank with the last stage.
    report: Option<ShardReport>,
}

/// The strategy's state on one rank.
///
/// Between rounds, the inner strategy has the state of the run. During a round, its stages on this rank have their own.
pub struct SyntheticGradients {
    group: Arc<dyn Group>,
    layout: StepLayout,
    config: SyntheticGradientsConfig,
    inner: Box<SynchronousStrategy>,
    /// One after each stage but the last.
    predictors: Vec<GradientPredictor>,
    /// The state of all predictors after the last round: the weights, then each state of their optimizer.
    committed: Vec<Vec<f32>>,
    running: Option<RunningStages>,
    losses: InnerLosses,
    tallies: Vec<BorderTally>,
    waits: WaitTimer,
    is_computed: bool,
}

fn no_round() -> ParallelError {
    ParallelError::OutOfOrder {
        problem: "no round with predicted gradients is complete".to_owned(),
    }
}

fn exchange_failed(action: &str, source: ronde_core::CollectiveError) -> ParallelError {
    ParallelError::Exchange {
        action: action.to_owned(),
        source,
    }
}

impl SyntheticGradients {
    /// Creates the strategy. `inner` has the stages of the model on a separate group of one rank, with the micro-batches of a
    /// batch as shards; `alone` is that group.
    ///
    /// # Errors
    /// The predictors are too large.
    ///
    /// # Panics
    /// When `inner` does not hold the whole state, which is a bug of the caller.
    pub fn new(
        inner: SynchronousStrategy,
        (group, alone): (Arc<dyn Group>, Arc<dyn Group>),
        layout: StepLayout,
        config: SyntheticGradientsConfig,
        clock: ComputeClock,
    ) -> Result<Self, EngineError> {
        let len = inner.weights().len();
        assert_eq!(
            inner.weights().stored().len(),
            len,
            "each rank has the whole state"
        );
        let predictors = (0..inner.stages() - 1).map(|stage| {
            let samples_max = inner.config().shard_samples_max;
            let on = (alone.clone(), inner.stage_layout(), samples_max);
            let output = inner.output_of_stage(stage);
            GradientPredictor::new(stage, output, &config, inner.seeds(), on)
        });
        let predictors: Vec<GradientPredictor> = predictors.collect::<Result<_, _>>()?;
        let mut this = Self {
            group,
            layout,
            config,
            tallies: vec![BorderTally::default(); predictors.len()],
            inner: Box::new(inner),
            predictors,
            committed: Vec::new(),
            running: None,
            losses: InnerLosses::default(),
            waits: WaitTimer::new(clock),
            is_computed: false,
        };
        this.committed = this.predictor_vectors();
        Ok(this)
    }

    /// Returns the model with the current state.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.inner.into_chain()
    }

    /// Returns the stages of a rank: consecutive ones, as even as possible.
    fn stages_of(&self, rank: GroupRank) -> Range<usize> {
        let (stages, ranks) = (self.inner.stages() as u64, self.group.size() as u64);
        let own = even_range(stages, ranks, rank.index() as u64);
        own.start as usize..own.end as usize
    }

    /// Calls a function with the round on its way.
    fn in_round<T>(
        &mut self,
        call: impl FnOnce(&mut Self, &mut RunningStages) -> Result<T, ParallelError>,
    ) -> Result<T, ParallelError> {
        let mut running = self.running.take().ok_or_else(no_round)?;
        let result = call(self, &mut running);
        self.running = Some(running);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_divergence_is_that_of_the_earliest_batch_and_stage() {
        let of = |batch, stage, tensor| Divergence {
            batch,
            stage,
            tensor,
        };
        let found = [of(3, 0, 9), of(2, 1, 0), of(2, 0, 4)].into_iter().min();
        assert_eq!(found, Some(of(2, 0, 4)));
    }
}
