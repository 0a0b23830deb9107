//! `[train]`: the length of a run, its batches and its learning rate.

use ronde_engine::{
    ComputeEngine, ParameterGroup, Precision, ProductMethod, RateScaling, ValueLoss, WeightDecayOn,
};
use serde::{Deserialize, Serialize};

use super::{
    EarlyStoppingSection, PlateauSection, RecomputedLayers, ShardsTogether, at_least_one,
    is_default, not_negative,
};
use crate::config::ConfigProblem;

/// The length of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainLength {
    /// Passes over the data.
    Epochs(u64),
    /// Optimizer updates.
    Steps(u64),
}

/// A metric in a run file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MetricName {
    /// `f1`.
    F1,
    /// `confusion_matrix`: not a number, but how often each class is predicted as each class.
    ConfusionMatrix,
    /// `mean_absolute_error`.
    MeanAbsoluteError,
    /// `accuracy_top` and a number from 2: a target counts if it is among the classes with the greatest outputs.
    AccuracyTop(u32),
}

impl TryFrom<String> for MetricName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let top = name
            .strip_prefix("accuracy_top")
            .and_then(|top| top.parse().ok())
            .filter(|top| *top >= 2);
        match (name.as_str(), top) {
            ("f1", _) => Ok(Self::F1),
            ("confusion_matrix", _) => Ok(Self::ConfusionMatrix),
            ("mean_absolute_error", _) => Ok(Self::MeanAbsoluteError),
            (_, Some(top)) => Ok(Self::AccuracyTop(top)),
            _ => Err(format!(
                "unknown metric `{name}`: expected `f1`, `confusion_matrix`, `mean_absolute_error`, or `accuracy_top` and a \
                 number from 2"
            )),
        }
    }
}

impl From<MetricName> for String {
    fn from(metric: MetricName) -> Self {
        match metric {
            MetricName::F1 => "f1".to_owned(),
            MetricName::ConfusionMatrix => "confusion_matrix".to_owned(),
            MetricName::MeanAbsoluteError => "mean_absolute_error".to_owned(),
            MetricName::AccuracyTop(top) => format!("accuracy_top{top}"),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for MetricName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MetricName".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^(f1|confusion_matrix|mean_absolute_error|accuracy_top([2-9]|[1-9][0-9]+))$",
            "examples": ["f1", "confusion_matrix", "mean_absolute_error", "accuracy_top3"],
            "description": "`f1`, `confusion_matrix`, `mean_absolute_error`, or `accuracy_top` and a number from 2."
        })
    }
}

/// `[train]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TrainSection {
    /// Passes over the data; either this or `steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Optimizer updates; either this or `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The number of samples of one step, over all workers; default 64.
    pub global_batch_size: u64,
    /// Whether to skip the smaller last batch of an epoch; default false.
    pub drop_last: bool,
    /// Whether to visit the samples in a new order in each epoch; default true.
    pub shuffle: bool,
    /// The loss of a data set whose targets are values; default `squared_error`. Class numbers always have
    /// cross-entropy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<ValueLoss>,
    /// Metrics of evaluations besides the usual ones: `f1`, `confusion_matrix`, `accuracy_top3` and so on for classes,
    /// `mean_absolute_error` for values.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub metrics: Vec<MetricName>,
    /// The largest norm of the gradient; absent: gradients are not clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// The format of the weights and of the activations between layers; default `f32`. The master
    /// weights are always `f32`. With `f16` the loss is scaled dynamically.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = Precision::default())))]
    pub precision: Precision,
    /// How values are multiplied; default `plain`. `split`: values of f32 as sums of three values of bf16 each, on processors with
    /// AMX, which is as exact. `f16`: values of f16 in f16, of which up to 16 products are summed in f16, on processors with AVX512-FP16; needs
    /// the precision `f16`. The trained bits of each differ.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = ProductMethod::default())))]
    pub products: ProductMethod,
    /// The library that computes matrix products and convolutions; default `ronde`. With `onednn` the trained bits also
    /// depend on its version and on `workers.threads`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = ComputeEngine::default())))]
    pub engine: ComputeEngine,
    /// The layers whose activations the backward pass recomputes instead of storing them: `true` (all), `"auto"` (as many of the
    /// first ones as are needed to fit into memory) or names of layers and ranges; default false. The trained bits do not depend on it.
    #[serde(
        skip_serializing_if = "is_default",
        serialize_with = "ronde_core::outside_identity"
    )]
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    pub recompute_activations: RecomputedLayers,
    /// How many logical shards of a worker pass through the layers together, which costs less than one after the other and takes the
    /// memory of the activations of all of them: `"auto"` (as many as take 256 MiB) or a number; default `"auto"`. The trained bits do
    /// not depend on it.
    #[serde(
        skip_serializing_if = "is_default",
        serialize_with = "ronde_core::outside_identity"
    )]
    #[cfg_attr(feature = "schema", schemars(extend("default" = ShardsTogether::default())))]
    pub shards_together: ShardsTogether,
    /// The parameters to which weight decay applies; default `all`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = WeightDecayOn::default())))]
    pub weight_decay_on: WeightDecayOn,
    /// Parameters with settings of their own; a parameter belongs to the first group whose pattern matches its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parameter_groups: Vec<ParameterGroup>,
    /// The base learning rate of the schedule, before scaling; default 0.001.
    pub learning_rate: f64,
    /// How the learning rate is scaled with the global batch size; default `none`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = RateScaling::default())))]
    pub learning_rate_scaling: RateScaling,
    /// The global batch size for which `learning_rate` was chosen; required if it is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate_batch_size: Option<u64>,
    /// Ends the run when a metric no longer improves; absent: the run has its full length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStoppingSection>,
    /// Lowers the learning rate of the schedule when a metric no longer improves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_on_plateau: Option<PlateauSection>,
    /// The metric, or `loss`, whose best evaluation chooses the model that is saved; absent: that of the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<String>,
    /// The decay of an exponential moving average of the weights, such as 0.999, which is evaluated and saved instead of
    /// them; absent: there is no average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_decay: Option<f64>,
    /// Evaluate on the test set every this many epochs; absent: only at the end.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub evaluate_every_epochs: Option<u64>,
}

impl Default for TrainSection {
    fn default() -> Self {
        Self {
            epochs: None,
            steps: None,
            global_batch_size: 64,
            drop_last: false,
            shuffle: true,
            loss: None,
            metrics: Vec::new(),
            clip_norm: None,
            precision: Precision::default(),
            products: ProductMethod::default(),
            engine: ComputeEngine::default(),
            recompute_activations: RecomputedLayers::default(),
            shards_together: ShardsTogether::default(),
            weight_decay_on: WeightDecayOn::default(),
            parameter_groups: Vec::new(),
            learning_rate: 0.001,
            learning_rate_scaling: RateScaling::default(),
            learning_rate_batch_size: None,
            early_stopping: None,
            reduce_on_plateau: None,
            keep_best: None,
            average_decay: None,
            evaluate_every_epochs: None,
        }
    }
}

impl TrainSection {
    /// Returns the base learning rate of the schedule, scaled to the global batch size.
    #[must_use]
    pub fn base_learning_rate(&self) -> f64 {
        let from = self.learning_rate_batch_size;
        let from = from.unwrap_or(self.global_batch_size);
        let scaling = self.learning_rate_scaling;
        self.learning_rate * scaling.factor(from, self.global_batch_size)
    }

    /// Returns the keys that act on evaluations, with the metrics that they use.
    pub(crate) fn evaluation_users(&self) -> Vec<(&'static str, &str)> {
        let stopping = self.early_stopping.as_ref();
        let plateau = self.reduce_on_plateau.as_ref();
        let users = [
            (
                "train.early_stopping",
                stopping.map(|section| section.metric.as_str()),
            ),
            (
                "train.reduce_on_plateau",
                plateau.map(|section| section.metric.as_str()),
            ),
            ("train.keep_best", self.keep_best.as_deref()),
        ];
        let used = users
            .into_iter()
            .filter_map(|(key, metric)| Some((key, metric?)));
        used.collect()
    }

    /// Returns the library that multiplies matrices, with its version; `None` if it is not used or not found.
    #[must_use]
    pub fn library(&self) -> Option<String> {
        if self.engine != ComputeEngine::OneDnn {
            return None;
        }
        let products = self.engine.products(1, self.precision, self.products);
        let name = products.ok().flatten()?;
        // The number of threads follows.
        name.split(',').next().map(str::to_owned)
    }

    /// Describes the precision for users; `None` for plain `f32`.
    #[must_use]
    pub fn precision_note(&self) -> Option<String> {
        let products = self.engine.products(1, self.precision, self.products);
        let products = products.ok().flatten();
        let format = match self.precision {
            Precision::F32 => {
                let products = products.filter(|_| self.engine == ComputeEngine::Ronde)?;
                return Some(format!("products of f32: {products}"));
            }
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16 with loss scaling",
        };
        let products = match products {
            Some(products) => format!("multiplied by {products}"),
            None => "multiplied in f32".to_owned(),
        };
        Some(format!(
            "precision: weight matrices, activations and their gradients in {format}, {products}; master weights in f32; \
             values kept for the backward pass take half the memory"
        ))
    }

    /// Describes how the learning rate was scaled; `None` if it was not.
    #[must_use]
    pub fn learning_rate_rule(&self) -> Option<String> {
        let rule = match self.learning_rate_scaling {
            RateScaling::None => return None,
            RateScaling::Linear => "linear",
            RateScaling::SquareRoot => "square root",
        };
        Some(format!(
            "learning rate: {} for batches of {}, scaled ({rule}) to batches of {}: {}",
            self.learning_rate,
            self.learning_rate_batch_size
                .unwrap_or(self.global_batch_size),
            self.global_batch_size,
            self.base_learning_rate(),
        ))
    }

    /// Returns the length of the run; `None` unless exactly one of `epochs` and `steps` is set.
    #[must_use]
    pub fn length(&self) -> Option<TrainLength> {
        match (self.epochs, self.steps) {
            (Some(epochs), None) => Some(TrainLength::Epochs(epochs)),
            (None, Some(steps)) => Some(TrainLength::Steps(steps)),
            _ => None,
        }
    }

    /// Adds the problems of the section.
    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        match (self.epochs, self.steps) {
            (Some(epochs), Some(steps)) => {
                let message =
                    format!("both `train.epochs` = {epochs} and `train.steps` = {steps} are given");
                problems
                    .push(ConfigProblem::error("train.steps", message).hint("remove one of them"));
            }
            (None, None) => {
                let message = "neither `train.epochs` nor `train.steps` is given";
                let hint = "add for example `epochs = 10` to [train]";
                problems.push(ConfigProblem::error("train.epochs", message).hint(hint));
            }
            _ => {}
        }
        at_least_one("train.epochs", self.epochs.unwrap_or(1), problems);
        at_least_one("train.steps", self.steps.unwrap_or(1), problems);
        at_least_one("train.global_batch_size", self.global_batch_size, problems);
        let every = self.evaluate_every_epochs.unwrap_or(1);
        at_least_one("train.evaluate_every_epochs", every, problems);
        not_negative("train.learning_rate", self.learning_rate, problems);
        for group in &self.parameter_groups {
            if let Err(message) = group.check() {
                let message = format!("parameter group `{}`: {message}", group.tensors);
                problems.push(ConfigProblem::error("train.parameter_groups", message));
            }
        }
        self.check_rate_scaling(problems);
        self.check_products(problems);
        self.check_selection(problems);
        if let Some(clip) = self
            .clip_norm
            .filter(|clip| !(clip.is_finite() && *clip > 0.0))
        {
            let message = format!("`train.clip_norm` is {clip}, but must be above 0");
            let hint = "remove it to train without clipping";
            problems.push(ConfigProblem::error("train.clip_norm", message).hint(hint));
        }
    }

    /// Checks that the method of products fits the precision, and that our own kernels multiply.
    fn check_products(&self, problems: &mut Vec<ConfigProblem>) {
        let (name, precision) = match self.products {
            ProductMethod::Plain => return,
            ProductMethod::Split => ("split", Precision::F32),
            ProductMethod::F16 => ("f16", Precision::F16),
        };
        let path = "train.products";
        if self.precision != precision {
            let format = precision.name();
            let message = format!("`train.products` = \"{name}\" needs values in {format}");
            let hint = format!("set `precision = \"{format}\"` in [train]");
            problems.push(ConfigProblem::error(path, message).hint(hint));
        } else if self.engine != ComputeEngine::Ronde {
            let message = format!("only the engine `ronde` has the products \"{name}\"");
            problems.push(ConfigProblem::error(path, message).hint("remove `train.engine`"));
        }
    }

    /// Checks the keys that act on evaluations, and the average.
    fn check_selection(&self, problems: &mut Vec<ConfigProblem>) {
        if let Some(stopping) = &self.early_stopping {
            stopping.check(problems);
        }
        if let Some(plateau) = &self.reduce_on_plateau {
            plateau.check(problems);
        }
        if self.evaluate_every_epochs.is_none()
            && let Some((key, _)) = self.evaluation_users().first()
        {
            let message = format!("`{key}` needs evaluations during the run");
            let hint = "add `evaluate_every_epochs = 1` to [train]";
            problems.push(ConfigProblem::error(*key, message).hint(hint));
        }
        if let Some(decay) = self.average_decay
            && !(0.0..1.0).contains(&decay)
        {
            let message = format!("`train.average_decay` is {decay}, but must be in [0, 1)");
            let hint = "remove it to train without an average; usual values are 0.99 to 0.9999";
            problems.push(ConfigProblem::error("train.average_decay", message).hint(hint));
        }
    }

    /// Checks that a scaled learning rate has a reference batch size, and an unscaled one has none.
    fn check_rate_scaling(&self, problems: &mut Vec<ConfigProblem>) {
        let path = "train.learning_rate_batch_size";
        match (self.learning_rate_scaling, self.learning_rate_batch_size) {
            (RateScaling::None, Some(_)) => {
                let message = format!("`{path}` is set, but the learning rate is not scaled");
                let hint =
                    "add `learning_rate_scaling = \"linear\"` or \"square_root\", or remove it";
                problems.push(ConfigProblem::error(path, message).hint(hint));
            }
            (RateScaling::Linear | RateScaling::SquareRoot, None) => {
                let message = format!("a scaled learning rate needs `{path}`");
                let hint = "add the global batch size for which `train.learning_rate` was chosen";
                problems
                    .push(ConfigProblem::error("train.learning_rate_scaling", message).hint(hint));
            }
            (_, size) => at_least_one(path, size.unwrap_or(1), problems),
        }
    }
}
