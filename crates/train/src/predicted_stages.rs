//! [`PredictedStages`]: the stages of a model that update with predicted gradients.

use ronde_core::step_layout::{PipelineStage, StepLayout, divide_layers};
use ronde_data::{Dataset, Targets};
use ronde_engine::{Chain, Layer, LayerExt, ModelConfig};
use ronde_parallel::{PredictorTargets, SyntheticGradientsConfig};

use crate::config::{SyncMethod, SyncSection};
use crate::error::TrainError;
use crate::model_parts::{unknown_cut, work};
use crate::plan::Plan;

/// The stages of a model that update with predicted gradients, and their predictors.
#[derive(Debug, Clone)]
pub struct PredictedStages {
    stages: Vec<PipelineStage>,
    /// The names of the layers.
    layers: Vec<String>,
    /// The work of each layer.
    work: Vec<f64>,
    /// The number of weights of each predictor.
    predictors: Vec<u64>,
    /// The number of values of a sample between stages, over all borders.
    border_floats: u64,
    settings: SyntheticGradientsConfig,
}

fn refused(problem: String, hint: &str) -> TrainError {
    TrainError::Impossible {
        problem,
        hint: hint.to_owned(),
    }
}

impl PredictedStages {
    /// Returns the stages of a model as a plan trains it; `None` if they do not update with predicted gradients.
    ///
    /// # Errors
    /// [`TrainError::Impossible`] when the model cannot be divided as `[sync]` requests.
    pub fn of(
        plan: &Plan,
        chain: &mut Chain,
        train: &dyn Dataset,
    ) -> Result<Option<Self>, TrainError> {
        let SyncMethod::Predicted {
            stages,
            borders,
            settings,
        } = plan.config.sync.method()
        else {
            return Ok(None);
        };
        let settings = SyntheticGradientsConfig {
            targets: targets(plan, train),
            ..settings
        };
        check_model(&plan.config.model.config, chain)?;
        let layers: Vec<String> = chain.layers().iter().map(|l| l.name().to_owned()).collect();
        let work = work(&plan.config, chain, train, plan.shard_samples_max());
        let stages = divided(&layers, &work, borders, stages as usize)?;
        let mut shape = vec![1];
        shape.extend_from_slice(&train.description().shape);
        let (mut predictors, mut border_floats) = (Vec::new(), 0);
        for stage in &stages[..stages.len() - 1] {
            for layer in &chain.layers()[stage.layers.clone()] {
                shape = layer.cost(&shape).output_shape;
            }
            predictors.push(settings.predictor_parameters(&shape[1..]));
            border_floats += shape[1..].iter().product::<usize>() as u64;
        }
        Ok(Some(Self {
            stages,
            layers,
            work,
            predictors,
            border_floats,
            settings,
        }))
    }

    /// Returns the stages of the model of a run file. Cost: that of describing the model; no weights are allocated.
    ///
    /// # Errors
    /// As [`PredictedStages::of`], and when the model does not accept the samples.
    pub fn planned(plan: &Plan, train: &dyn Dataset) -> Result<Option<Self>, TrainError> {
        if !matches!(plan.config.sync, SyncSection::SyntheticGradients { .. }) {
            return Ok(None);
        }
        let mut chain = plan.chain(train)?;
        Self::of(plan, &mut chain, train)
    }

    /// Returns the settings of the predictors.
    #[must_use]
    pub fn settings(&self) -> SyntheticGradientsConfig {
        self.settings
    }

    /// Returns the layout of all stages on one rank, for batches of `shards` micro-batches.
    #[must_use]
    pub fn layout(&self, shards: u32) -> Option<StepLayout> {
        StepLayout::pipelines(1, shards, self.stages.clone())
    }

    /// Returns the bytes that the predictors of a worker need: their weights with the states of their optimizer, a gradient, the state
    /// after the last round and that at the end of the next one; and the predictions of the batches whose gradient has not arrived.
    #[must_use]
    pub fn predictor_bytes(&self, batch_samples: u64) -> u64 {
        let weights: u64 = self.predictors.iter().sum();
        let states = weights.saturating_mul(3 * 3 + 1);
        // The values that the predictor reads, and its prediction.
        let of_batch = self.border_floats.saturating_mul(2 * batch_samples);
        let pending = of_batch.saturating_mul(self.settings.gradient_delay);
        states.saturating_add(pending).saturating_mul(4)
    }

    /// Describes the layers of the stages, and the predictors.
    #[must_use]
    pub fn describe(&self) -> String {
        let total: f64 = self.work.iter().sum();
        let of_stage = |stage: &PipelineStage| {
            let share: f64 = self.work[stage.layers.clone()].iter().sum();
            let (first, last) = (stage.layers.start, stage.layers.end - 1);
            let names = match first == last {
                true => self.layers[first].clone(),
                false => format!("{} to {}", self.layers[first], self.layers[last]),
            };
            format!("{names} ({:.0} %)", 100.0 * share / total)
        };
        let stages: Vec<String> = self.stages.iter().map(of_stage).collect();
        let weights: u64 = self.predictors.iter().sum();
        let targets = match self.settings.targets {
            PredictorTargets::Unused => "",
            _ => " from the outputs of stages and the targets",
        };
        format!(
            "the stages and their work: {}; {} predictors with {weights} weights predict gradients{targets}",
            stages.join(", "),
            self.predictors.len()
        )
    }
}

/// Returns the targets that predictors read.
fn targets(plan: &Plan, train: &dyn Dataset) -> PredictorTargets {
    let description = train.description();
    let per_sample = description.targets_per_sample;
    match description.targets {
        _ if !plan.config.model.config.uses_targets() => PredictorTargets::Unused,
        Targets::Classes => PredictorTargets::Classes {
            classes: description.classes as usize,
            per_sample,
        },
        Targets::Values => PredictorTargets::Values { per_sample },
        _ => PredictorTargets::Unused,
    }
}

/// Checks that a model can be divided into stages that update alone.
fn check_model(model: &ModelConfig, chain: &mut Chain) -> Result<(), TrainError> {
    if chain.facts().needs_all_shards() {
        let problem = "predicted gradients cannot train this model: a layer needs sums over all samples of a step within its pass";
        let hint = match model {
            ModelConfig::KMeans { .. } => "leave [sync] out: `kmeans` has only one layer",
            _ => "use `model.normalisation = \"batch\"` or `\"group\"`, or leave [sync] out",
        };
        return Err(refused(problem.to_owned(), hint));
    }
    if let Some(parameter) = chain.shared_parameter() {
        let problem = format!(
            "predicted gradients cannot train this model: its first and last layer share `{parameter}`, so they cannot update apart"
        );
        return Err(refused(
            problem,
            "set `model.tied = false`, or leave [sync] out",
        ));
    }
    if chain.parts() > 1 {
        let problem = "predicted gradients cannot train a model whose layers are in parts";
        let hint = "set `model.tensor_parts = 1`, or leave [sync] out";
        return Err(refused(problem.to_owned(), hint));
    }
    Ok(())
}

/// Divides layers into stages, by their work or at named ones.
fn divided(
    layers: &[String],
    work: &[f64],
    borders: &[String],
    stages: usize,
) -> Result<Vec<PipelineStage>, TrainError> {
    let count = layers.len();
    let mut begins = vec![0];
    for name in borders {
        let after = begins.last().map_or(0, |begin| begin + 1);
        let found = layers.iter().skip(after).position(|layer| layer == name);
        let begin = found.ok_or_else(|| unknown_cut("sync.borders", name, layers, after))?;
        begins.push(after + begin);
    }
    let ends = begins.iter().skip(1).copied().chain([count]);
    let pieces = match borders {
        [] => (0..count).map(|layer| layer..layer + 1).collect(),
        _ => begins
            .iter()
            .zip(ends)
            .map(|(&begin, end)| begin..end)
            .collect::<Vec<_>>(),
    };
    let divided = divide_layers(&pieces, work, (1, stages), false);
    divided.ok_or_else(|| {
        let names = layers.join(", ");
        let problem = format!("{stages} stages cannot divide a model of {count} layers: {names}");
        refused(problem, &format!("set sync.stages to {count} or less"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(borders: &[&str], count: usize) -> Result<Vec<std::ops::Range<usize>>, String> {
        let layers = ["embedding", "block1", "block2", "head"].map(str::to_owned);
        let borders: Vec<String> = borders.iter().map(|name| (*name).to_owned()).collect();
        let found = divided(&layers, &[1.0, 5.0, 5.0, 1.0], &borders, count);
        let found = found.map_err(|error| error.to_string())?;
        assert!(found.iter().all(|stage| stage.column == 0));
        Ok(found.into_iter().map(|stage| stage.layers).collect())
    }

    #[test]
    fn stages_begin_by_work_or_at_named_layers() {
        assert_eq!(stages(&[], 2), Ok(vec![0..2, 2..4]));
        assert_eq!(stages(&["block1"], 2), Ok(vec![0..1, 1..4]));
        assert_eq!(stages(&["block1", "head"], 3), Ok(vec![0..1, 1..3, 3..4]));
        for (borders, count, part) in [
            (&[][..], 5, "5 stages cannot divide a model of 4 layers"),
            (&["block9"], 2, "sync.borders names `block9`"),
            (&["block2", "block1"], 3, "too late or twice"),
            (&["embedding"], 2, "the first layer"),
        ] {
            let problem = stages(borders, count).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
